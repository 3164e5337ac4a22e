//! Who hears of what.

use wire::xfrm::address::{Address, Be32};
use wire::xfrm::event::UserAcquire;
use wire::xfrm::number::{attr, direction, group, mode, msg};
use wire::xfrm::policy::UserTmpl;
use wire::xfrm::sa::{UsersaInfo, UserspiInfo};

use super::super::{Flow, PolicyId};
use super::bench::*;

#[test]
fn events_that_nobody_hears_are_not_built() {
    let mut bench = Bench::new();
    bench.server.set_listeners(group::bit(group::EXPIRE));
    assert!(bench.accept(&new_sa(1)).events.is_empty());
    bench.server.set_listeners(group::bit(group::SA));
    assert_eq!(bench.accept(&delete_sa(1)).kinds(), [(group::SA, msg::DELSA)]);
}

#[test]
fn an_event_carries_the_askers_sequence_number_and_port() {
    let mut bench = Bench::new();
    let mut request = new_sa(1);
    request.header.pid = 4242;
    let answer = bench.accept(&request);
    let head = header(&answer.events[0].bytes);
    assert_eq!((head.seq, head.pid, head.flags), (5, 4242, 0));
    // The event comes before the acknowledgement, as it enters the queues in a kernel.
    let deliveries = bench.handle(&delete_sa(1).bytes()).deliveries;
    assert!(matches!(deliveries[0], super::super::Delivery::Event(_)));
    assert!(matches!(deliveries[1], super::super::Delivery::Reply(_)));
}

fn flow(cpu: Option<u32>) -> Flow {
    Flow {
        addresses: ("10.1.2.3".parse().unwrap(), "10.2.0.1".parse().unwrap()),
        protocol: 17,
        ports: (1000, 2000),
        cpu,
    }
}

#[test]
fn a_packet_without_sa_is_asked_for_once() {
    let mut bench = Bench::new();
    bench.accept(&new_policy("10.2.0.1", direction::OUT));
    let ask = |bench: &mut Bench, cpu| {
        let out = bench.server.acquire(PolicyId(0), &flow(cpu), bench.now, &());
        Answer::new(out)
    };
    let answer = ask(&mut bench, None);
    assert_eq!(answer.kinds(), [(group::ACQUIRE, msg::ACQUIRE)]);
    let body: UserAcquire = messages(&answer.events[0].bytes)[0].fixed().unwrap();
    assert_eq!((body.seq, body.saddr), (1, address("192.0.2.1")));
    assert_eq!((body.sel.sport.get(), body.sel.dport.get(), body.sel.proto), (1000, 2000, 17));
    assert!(attributes(&answer.events[0].bytes).contains_key(&attr::TMPL));
    assert!(ask(&mut bench, None).events.is_empty());
    // A worker that wants an SA of its own is another question (RFC 9611).
    assert_eq!(ask(&mut bench, Some(2)).events.len(), 1);
    // IKE reserves an SPI for the question and installs the SA, which replaces the larval one.
    let reserve = UserspiInfo { info: UsersaInfo { seq: 1, ..usersa(0) }, min: 9, max: 9 };
    bench.accept(&Request::new(msg::ALLOCSPI, &reserve));
    assert_eq!(bench.server.sizes().0, 2);
    // An answer for another CPU is not the answer.
    bench.accept(&new_sa(10).change(|info: &mut UsersaInfo| info.seq = 2));
    assert_eq!(bench.server.sizes().0, 3);
    let own = new_sa(11).change(|info: &mut UsersaInfo| info.seq = 2);
    bench.accept(&own.with(attr::SA_PCPU, &2u32));
    assert_eq!(bench.server.sizes().0, 3);
    // Unanswered questions may be asked again after a while.
    bench.tick(31);
    assert_eq!(bench.server.sizes().0, 2);
    assert_eq!(ask(&mut bench, None).events.len(), 1);
}

/// strongSwan's outbound templates have the SPI of their CHILD_SA: what is larval must not be found instead of it, nor expire
/// in its name.
#[test]
fn a_policy_that_insists_on_an_spi_asks_for_it_once_and_not_while_it_is_there() {
    const SPI: u32 = 0xc0ffee;
    let mut bench = Bench::new();
    let mut insisting = template();
    insisting.id.spi = Be32::new(SPI);
    let policy = new_policy("10.2.0.1", direction::OUT).without(attr::TMPL);
    bench.accept(&policy.with(attr::TMPL, &insisting));
    let ask = |bench: &mut Bench| {
        let asked = bench.server.acquire(PolicyId(0), &flow(None), bench.now, &());
        Answer::new(asked).events.len()
    };
    bench.accept(&new_sa(SPI));
    assert_eq!((ask(&mut bench), bench.server.sizes().0), (0, 1));
    bench.accept(&delete_sa(SPI));
    assert_eq!((ask(&mut bench), ask(&mut bench), bench.server.sizes().0), (1, 0, 1));
    bench.tick(31);
    assert_eq!(ask(&mut bench), 1);
}

/// Who scans the far ends of transport mode leaves room for tunnels.
#[test]
fn far_ends_of_transport_mode_do_not_fill_all_the_room_for_questions() {
    let mut bench = Bench::new();
    let mut open = UserTmpl { mode: mode::TRANSPORT, saddr: Address::default(), ..template() };
    open.id.daddr = Address::default();
    let any = new_policy("10.2.0.1", direction::OUT).without(attr::TMPL);
    bench.accept(&any.with(attr::TMPL, &open));
    bench.accept(&new_policy("10.2.0.2", direction::OUT));
    let mut asked = 0;
    for n in 0..10_000u32 {
        let far = std::net::IpAddr::from((0x0a03_0000 + n).to_be_bytes());
        let flow = Flow { addresses: ("10.1.2.3".parse().unwrap(), far), ..flow(None) };
        let out = bench.server.acquire(PolicyId(0), &flow, bench.now, &());
        asked += Answer::new(out).events.len();
    }
    assert_eq!(asked, 4096);
    let tunnel = bench.server.acquire(PolicyId(1), &flow(None), bench.now, &());
    assert_eq!(Answer::new(tunnel).events.len(), 1);
}

#[test]
fn each_tunnel_of_the_same_ends_is_asked_for() {
    let mut bench = Bench::new();
    bench.accept(&new_policy("10.2.0.1", direction::OUT).with(attr::IF_ID, &1u32));
    bench.accept(&new_policy("10.2.0.1", direction::OUT).with(attr::IF_ID, &2u32));
    let ask = |bench: &mut Bench, id| {
        let asked = bench.server.acquire(PolicyId(id), &flow(None), bench.now, &());
        Answer::new(asked).events.len()
    };
    assert_eq!([0, 1, 0, 1].map(|id| ask(&mut bench, id)), [1, 1, 0, 0]);
}

#[test]
fn in_transport_mode_the_packets_ends_are_asked_for() {
    let mut bench = Bench::new();
    for (number, open) in [(0, true), (1, false)] {
        let mut transport = UserTmpl { mode: mode::TRANSPORT, ..template() };
        if open {
            (transport.saddr, transport.id.daddr) = Default::default();
        }
        let destination = format!("10.2.0.{number}");
        let request = new_policy(&destination, direction::OUT).without(attr::TMPL);
        bench.accept(&request.with(attr::TMPL, &transport));
        let asked = bench.server.acquire(PolicyId(number), &flow(None), bench.now, &());
        let asked = Answer::new(asked);
        let body: UserAcquire = messages(&asked.events[0].bytes)[0].fixed().unwrap();
        let expected = match open {
            true => (body.sel.saddr, body.sel.daddr),
            false => (template().saddr, template().id.daddr),
        };
        assert_eq!((body.saddr, body.id.daddr), expected);
    }
}

#[test]
fn a_flood_of_questions_is_bounded_and_nobody_is_asked_who_does_not_listen() {
    let mut bench = Bench::new();
    for reqid in 1..=8200u32 {
        let template = UserTmpl { reqid, ..template() };
        let [_, _, high, low] = reqid.to_be_bytes();
        let request = new_policy(&format!("10.3.{high}.{low}"), direction::OUT);
        bench.accept(&request.without(attr::TMPL).with(attr::TMPL, &template));
    }
    bench.server.set_listeners(group::bit(group::EXPIRE));
    assert!(bench.server.acquire(PolicyId(0), &flow(None), NOW, &()).is_empty());
    assert_eq!(bench.server.sizes().0, 0, "and nothing is remembered");
    bench.server.set_listeners(group::bit(group::ACQUIRE));
    let ask = |bench: &mut Bench, ids: std::ops::Range<u64>| -> usize {
        let now = bench.now;
        ids.map(|id| bench.server.acquire(PolicyId(id), &flow(None), now, &()).len()).sum()
    };
    assert_eq!(ask(&mut bench, 0..8200), 8192);
    assert_eq!(ask(&mut bench, 0..8200), 0);
    // An answer makes room for one more.
    let answer = new_sa(1).change(|info: &mut UsersaInfo| (info.seq, info.reqid) = (5, 5));
    bench.accept(&answer);
    assert_eq!(ask(&mut bench, 8192..8200), 1);
    bench.tick(30);
    assert_eq!(ask(&mut bench, 0..8200), 8192);
}

#[test]
fn nothing_is_asked_for_a_policy_that_wants_what_is_not_carried() {
    let mut bench = Bench::new();
    bench.accept(&new_policy("10.2.0.1", direction::OUT).without(attr::TMPL));
    let beet = UserTmpl { mode: mode::BEET, ..template() };
    let request = new_policy("10.2.0.2", direction::OUT).without(attr::TMPL);
    bench.accept(&request.with(attr::TMPL, &beet));
    for id in 0..3 {
        assert!(bench.server.acquire(PolicyId(id), &flow(None), NOW, &()).is_empty());
    }
}
