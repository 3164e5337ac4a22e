//! Requests about policies.

use rustix::io::Errno;
use wire::xfrm::address::Mark;
use wire::xfrm::event::{UserAcquire, UserPolexpire};
use wire::xfrm::netlink::NLM_F_REQUEST;
use wire::xfrm::number::{action, attr, direction, group, mode, msg};
use wire::xfrm::policy::{UserTmpl, UserpolicyDefault, UserpolicyInfo, UserpolicyType};

use super::super::{Change, Defaults, PolicyCounters, PolicyId};
use super::bench::*;

const IN: u8 = direction::IN;
const OUT: u8 = direction::OUT;
const FWD: u8 = direction::FWD;

fn shown(bench: &mut Bench, request: Request) -> UserpolicyInfo {
    let answer = bench.send(&request.flags(NLM_F_REQUEST));
    assert_eq!(header(&answer.replies[0]).kind, msg::NEWPOLICY);
    messages(&answer.replies[0])[0].fixed().unwrap()
}

fn installed(bench: &mut Bench) -> Vec<(u64, u32, u64)> {
    let changes = bench.changes();
    let policies = changes.iter().filter_map(|change| match change {
        Change::PolicyInstalled(record) => Some((record.id.0, record.index, record.order)),
        _ => None,
    });
    policies.collect()
}

#[test]
fn indices_are_those_of_a_fresh_kernel() {
    let mut bench = Bench::new();
    for (number, dir) in [OUT, FWD, IN, IN, OUT].into_iter().enumerate() {
        bench.accept(&new_policy(&format!("10.2.0.{number}"), dir));
    }
    let indices: Vec<_> = installed(&mut bench).iter().map(|policy| policy.1).collect();
    assert_eq!(indices, [1, 10, 16, 24, 33]);
    let mut bench = Bench::new();
    bench.accept(&new_policy("10.2.0.1", IN));
    bench.accept(&new_policy("10.2.0.2", IN));
    assert_eq!(installed(&mut bench).iter().map(|policy| policy.1).collect::<Vec<_>>(), [8, 16]);
}

#[test]
fn an_index_may_be_asked_for() {
    let mut bench = Bench::new();
    let with =
        |to, index| new_policy(to, OUT).change(|info: &mut UserpolicyInfo| info.index = index);
    bench.refuse(&with("10.2.0.1", 2), Errno::INVAL, "Policy index doesn't match direction");
    bench.accept(&with("10.2.0.1", 0x101));
    // Taken: another one is given.
    bench.accept(&with("10.2.0.2", 0x101));
    assert_eq!(installed(&mut bench).iter().map(|policy| policy.1).collect::<Vec<_>>(), [0x101, 1]);
}

#[test]
fn a_policy_is_found_by_selector_or_index_and_by_everything_else() {
    let mut bench = Bench::new();
    bench.accept(&new_policy("10.2.0.1", OUT));
    bench.refuse(&new_policy("10.2.0.1", OUT), Errno::EXIST, "");
    bench.accept(&new_policy("10.2.0.1", FWD));
    bench.accept(&new_policy("10.2.0.1", OUT).with(attr::IF_ID, &5u32));
    bench.accept(&new_policy("10.2.0.1", OUT).with(attr::MARK, &Mark { v: 1, m: 3 }));

    let get = || policy_id(msg::GETPOLICY, "10.2.0.1", OUT);
    assert_eq!(shown(&mut bench, get()).index, 1);
    assert_eq!(shown(&mut bench, get().with(attr::IF_ID, &5u32)).index, 17);
    assert_eq!(shown(&mut bench, get().with(attr::MARK, &Mark { v: 1, m: 3 })).index, 25);
    bench.refuse(&get().with(attr::MARK, &Mark { v: 1, m: 1 }), Errno::NOENT, "");
    bench.refuse(&policy_id(msg::GETPOLICY, "10.2.0.1", IN), Errno::NOENT, "");
    bench.refuse(
        &policy_id(msg::GETPOLICY, "10.2.0.1", 3),
        Errno::INVAL,
        "Invalid policy direction",
    );

    assert_eq!(shown(&mut bench, policy_index(msg::GETPOLICY, 1, OUT)).sel, selector("10.2.0.1"));
    bench.refuse(&policy_index(msg::GETPOLICY, 1, IN), Errno::NOENT, "");
    bench.refuse(&policy_index(msg::GETPOLICY, 17, OUT), Errno::NOENT, "");
    bench.refuse(&policy_index(msg::GETPOLICY, 9, OUT), Errno::NOENT, "");

    let answer = bench.accept(&policy_index(msg::DELPOLICY, 1, OUT));
    assert_eq!(answer.kinds(), [(group::POLICY, msg::DELPOLICY)]);
    bench.refuse(&get(), Errno::NOENT, "");
    assert!(super::super::spd::consistent(&bench.server.spd));
}

#[test]
fn an_update_replaces_and_keeps_index_and_place() {
    let mut bench = Bench::new();
    bench.accept(&new_policy("10.2.0.1", OUT));
    bench.accept(&new_policy("10.2.0.2", OUT));
    bench.changes();
    let update = |priority| {
        let mut request = new_policy("10.2.0.1", OUT);
        request.header.kind = msg::UPDPOLICY;
        request.change(|info: &mut UserpolicyInfo| info.priority = priority)
    };
    bench.now += 5;
    assert_eq!(bench.accept(&update(0)).kinds(), [(group::POLICY, msg::UPDPOLICY)]);
    let changes = bench.changes();
    let [Change::PolicyRemoved(PolicyId(0)), Change::PolicyInstalled(record)] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!((record.index, record.order), (1, 0), "same priority keeps its place");
    bench.accept(&update(7));
    assert_eq!(installed(&mut bench), [(3, 1, 3)]);
    let info = shown(&mut bench, policy_id(msg::GETPOLICY, "10.2.0.1", OUT));
    assert_eq!((info.priority, info.curlft.add_time), (7, NOW + 5));
    bench.figures.policies.insert(PolicyId(3), PolicyCounters { use_time: NOW + 9 });
    let info = shown(&mut bench, policy_id(msg::GETPOLICY, "10.2.0.1", OUT));
    assert_eq!(info.curlft.use_time, NOW + 9);
}

#[test]
fn what_a_kernel_refuses() {
    let mut bench = Bench::new();
    let base = || new_policy("10.2.0.1", OUT);
    let edit = |edit: fn(&mut UserpolicyInfo)| base().change(edit);
    let tmpl = |edit: fn(&mut UserTmpl)| {
        let mut value = template();
        edit(&mut value);
        base().without(attr::TMPL).with(attr::TMPL, &value)
    };
    let cases: Vec<(Request, &str)> = vec![
        (edit(|info| info.share = 4), "Invalid policy share"),
        (edit(|info| info.action = 2), "Invalid policy action"),
        (
            edit(|info| info.sel.prefixlen_s = 33),
            "Invalid prefix length in selector (must be <= 32 for IPv4)",
        ),
        (
            edit(|info| (info.sel.family, info.sel.prefixlen_s) = (10, 129)),
            "Invalid prefix length in selector (must be <= 128 for IPv6)",
        ),
        (edit(|info| info.sel.family = 0), "Invalid selector family"),
        (edit(|info| info.dir = 3), "Invalid policy direction"),
        (base().with(attr::SEC_CTX, &[1u8; 8]), "Invalid security context length"),
        (base().with(attr::POLICY_TYPE, &[2u8, 0, 0, 0, 0, 0]), "Invalid policy type"),
        (base().with(attr::TMPL, &[template(); 7]), "Template count must be <= XFRM_MAX_DEPTH (6)"),
        (
            tmpl(|tmpl| tmpl.optional = 1),
            "Mode in optional template not allowed in outbound policy",
        ),
        (
            tmpl(|tmpl| (tmpl.mode, tmpl.family) = (mode::TRANSPORT, 10)),
            "Mode in template doesn't support a family change",
        ),
        (tmpl(|tmpl| tmpl.mode = 5), "Mode in template must be < XFRM_MODE_MAX (5)"),
        (tmpl(|tmpl| tmpl.family = 3), "Invalid family in template"),
        (tmpl(|tmpl| tmpl.id.proto = 17), "Invalid XFRM protocol in template"),
    ];
    for (request, text) in cases {
        bench.refuse(&request, Errno::INVAL, text);
    }
    assert!(bench.changes().is_empty());
    // Old programs leave the family of a template out.
    bench.accept(&tmpl(|tmpl| tmpl.family = 0));
    bench.accept(
        &edit(|info| info.action = action::BLOCK)
            .change(|info: &mut UserpolicyInfo| info.dir = FWD)
            .without(attr::TMPL),
    );
}

#[test]
fn policies_are_of_one_type() {
    let mut bench = Bench::new();
    let of = |kind| UserpolicyType { kind, ..UserpolicyType::default() };
    let flush = || Request::new(msg::FLUSHPOLICY, &[0u8; 0]);
    assert!(bench.accept(&flush()).events.is_empty());
    let add = || new_policy("10.2.0.1", OUT);
    for kind in [1, 9] {
        for request in [add(), flush()] {
            let request = request.with(attr::POLICY_TYPE, &of(kind));
            bench.refuse(&request, Errno::INVAL, "Invalid policy type");
        }
    }
    bench.accept(&add().with(attr::POLICY_TYPE, &of(0)));
    assert_eq!(bench.server.sizes().1, 1);
    let answer = bench.accept(&flush().with(attr::POLICY_TYPE, &of(0)));
    assert_eq!(answer.kinds(), [(group::POLICY, msg::FLUSHPOLICY)]);
    assert_eq!(bench.server.sizes().1, 0);
}

#[test]
fn defaults() {
    let mut bench = Bench::new();
    let wanted = UserpolicyDefault { input: 1, forward: 0, output: 9 };
    let answer = bench.accept(&Request::new(msg::SETDEFAULT, &wanted));
    assert_eq!(answer.kinds(), [(group::POLICY, msg::GETDEFAULT)]);
    let expected = Defaults { input: 1, forward: 2, output: 2 };
    assert_eq!(bench.changes(), [Change::DefaultsChanged(expected)]);
    let get = Request::new(msg::GETDEFAULT, &[0u8; 3]).flags(NLM_F_REQUEST);
    let answer = bench.send(&get);
    let shown: UserpolicyDefault = messages(&answer.replies[0])[0].fixed().unwrap();
    assert_eq!(shown, UserpolicyDefault { input: 1, forward: 2, output: 2 });
}

#[test]
fn expiry_from_user_space() {
    let mut bench = Bench::new();
    let expire = |hard| {
        let info = UserpolicyInfo { sel: selector("10.2.0.1"), dir: OUT, ..Default::default() };
        Request::new(msg::POLEXPIRE, &UserPolexpire { pol: info, hard, pad: [0; 7] })
    };
    bench.refuse(&expire(0), Errno::NOENT, "");
    bench.accept(&new_policy("10.2.0.1", OUT));
    assert_eq!(bench.accept(&expire(0)).kinds(), [(group::EXPIRE, msg::POLEXPIRE)]);
    assert_eq!(bench.server.sizes().1, 1);
    bench.accept(&expire(1));
    assert_eq!(bench.server.sizes().1, 0);
}

#[test]
fn acquire_from_user_space() {
    let mut bench = Bench::new();
    let policy = UserpolicyInfo { sel: selector("10.2.0.1"), dir: OUT, ..Default::default() };
    let acquire = |policy: UserpolicyInfo| {
        let body = UserAcquire { policy, saddr: address("192.0.2.1"), ..Default::default() };
        Request::new(msg::ACQUIRE, &body).with(attr::TMPL, &template())
    };
    let bad = UserpolicyInfo { action: 9, ..policy };
    bench.refuse(&acquire(bad), Errno::INVAL, "Invalid policy action");
    bench.refuse(&acquire(policy).with(attr::SA_PCPU, &500u32), Errno::INVAL, "");
    let answer = bench.accept(&acquire(policy).with(attr::SA_PCPU, &0u32));
    assert_eq!(answer.kinds(), [(group::ACQUIRE, msg::ACQUIRE)]);
    let body: UserAcquire = messages(&answer.events[0].bytes)[0].fixed().unwrap();
    assert_eq!((body.seq, body.id), (1, template().id));
    assert_eq!(attributes(&answer.events[0].bytes)[&attr::SA_PCPU], [0; 4]);
}
