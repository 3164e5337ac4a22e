//! Our messages as another implementation reads and writes them.

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_xfrm::{XfrmAttrs, XfrmMessage};
use wire::xfrm::address::Mark;
use wire::xfrm::event::{UserAcquire, UserExpire, UserPolexpire};
use wire::xfrm::netlink::{NLM_F_REPLACE, NLM_F_REQUEST};
use wire::xfrm::number::{attr, direction, msg, sa_flag};
use wire::xfrm::policy::{UserpolicyDefault, UserpolicyInfo};
use wire::xfrm::replay::{ReplayState, ReplayStateEsn};
use wire::xfrm::sa::{AeventId, UsersaFlush, UsersaInfo};
use zerocopy::IntoBytes;

use super::super::{SaCounters, SaId};
use super::bench::*;

/// The other implementation reads the message, and writes the same bytes back.
#[track_caller]
fn agreed(bytes: &[u8]) -> XfrmMessage {
    let mut message = NetlinkMessage::<XfrmMessage>::deserialize(bytes).unwrap();
    message.finalize();
    let mut written = vec![0; message.buffer_len()];
    message.serialize(&mut written);
    assert_eq!(written, bytes, "{message:?}");
    let NetlinkPayload::InnerMessage(inner) = message.payload else { panic!("{message:?}") };
    inner
}

fn everything(spi: u32) -> Request {
    let window = ReplayStateEsn { bmp_len: 4, replay_window: 128, ..ReplayStateEsn::default() };
    new_sa(spi)
        .with(attr::MARK, &Mark { v: 1, m: 3 })
        .with(attr::SET_MARK, &5u32)
        .with(attr::SET_MARK_MASK, &6u32)
        .with(attr::IF_ID, &4u32)
        .with(attr::SA_EXTRA_FLAGS, &1u32)
        .with(attr::COADDR, &address("192.0.2.9"))
        .with(attr::REPLAY_ESN_VAL, &[window.as_bytes(), &[0; 16]].concat()[..])
        .change(|info: &mut UsersaInfo| info.flags = sa_flag::ESN | sa_flag::DECAP_DSCP)
}

#[test]
fn an_sa_with_everything() {
    let mut bench = Bench::new();
    agreed(&everything(0x1000).bytes());
    let answer = bench.accept(&everything(0x1000));
    agreed(&answer.events[0].bytes);
    let live = SaCounters { last_used: NOW, packets: 3, ..SaCounters::default() };
    bench.figures.sas.insert(SaId(0), live);
    let answer = bench.send(&get_sa(0x1000).with(attr::MARK, &Mark { v: 1, m: 3 }));
    let XfrmMessage::AddSa(sa) = agreed(&answer.replies[0]) else { panic!() };
    assert_eq!(sa.user_sa_info.id.spi, 0x1000);
    assert_eq!(sa.user_sa_info.lifetime_cur.packets, 3);
    let key = sa.nlas.iter().find_map(|nla| match nla {
        XfrmAttrs::EncryptionAlgAead(aead) => Some(aead.alg_key.clone()),
        _ => None,
    });
    assert_eq!(key.unwrap(), KEY);
    // The kernel's order of attributes.
    let kinds: Vec<_> = messages(&answer.replies[0])[0].attributes().map(|a| a.kind).collect();
    let expected = [
        attr::SA_EXTRA_FLAGS,
        attr::COADDR,
        attr::LASTUSED,
        attr::ALG_AEAD,
        attr::MARK,
        attr::SET_MARK,
        attr::SET_MARK_MASK,
        attr::REPLAY_ESN_VAL,
        attr::IF_ID,
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn events_about_sas() {
    let mut bench = Bench::new();
    bench.accept(&new_sa(1));
    let replay = ReplayState { oseq: 1, ..ReplayState::default() };
    let id = AeventId { sa_id: sa_id(1), ..AeventId::default() };
    let numbers = Request::new(msg::NEWAE, &id).with(attr::REPLAY_VAL, &replay);
    let numbers = Request {
        header: wire::xfrm::Header { flags: NLM_F_REQUEST | NLM_F_REPLACE, ..numbers.header },
        ..numbers
    };
    let soft = UserExpire { state: usersa(1), hard: 0, pad: [0; 7] };
    for request in [
        update_sa(1),
        numbers,
        Request::new(msg::EXPIRE, &soft),
        delete_sa(1),
        new_sa(2),
        Request::new(msg::FLUSHSA, &UsersaFlush { proto: 0 }),
    ] {
        // FLUSHSA's padding after one byte is beyond what the other implementation writes.
        if request.header.kind != msg::FLUSHSA {
            agreed(&request.bytes());
        }
        let answer = bench.accept(&request);
        assert_eq!(answer.events.len(), 1, "{request:?}");
        if request.header.kind != msg::FLUSHSA {
            agreed(&answer.events[0].bytes);
        }
    }
}

#[test]
fn policies_and_their_events() {
    let mut bench = Bench::new();
    let add = || {
        new_policy("10.2.0.1", direction::OUT)
            .with(attr::MARK, &Mark { v: 1, m: 3 })
            .with(attr::IF_ID, &9u32)
    };
    let named =
        |request: Request| request.with(attr::MARK, &Mark { v: 1, m: 3 }).with(attr::IF_ID, &9u32);
    let info =
        UserpolicyInfo { sel: selector("10.2.0.1"), dir: direction::OUT, ..Default::default() };
    let expire = UserPolexpire { pol: info, hard: 0, pad: [0; 7] };
    let acquire = UserAcquire { policy: info, ..Default::default() };
    for request in [
        add(),
        Request { header: wire::xfrm::Header { kind: msg::UPDPOLICY, ..add().header }, ..add() },
        named(Request::new(msg::POLEXPIRE, &expire)),
        Request::new(msg::ACQUIRE, &acquire).with(attr::TMPL, &template()),
        named(policy_id(msg::DELPOLICY, "10.2.0.1", direction::OUT)),
    ] {
        agreed(&request.bytes());
        let answer = bench.accept(&request);
        agreed(&answer.events[0].bytes);
    }
    bench.accept(&add());
    let get = named(policy_id(msg::GETPOLICY, "10.2.0.1", direction::OUT)).flags(NLM_F_REQUEST);
    let answer = bench.send(&get);
    let XfrmMessage::AddPolicy(policy) = agreed(&answer.replies[0]) else { panic!() };
    assert_eq!(policy.user_policy_info.selector.prefixlen_d, 32);
}

#[test]
fn sizes() {
    let mut bench = Bench::new();
    for spi in 1..=9 {
        bench.accept(&new_sa(spi));
    }
    bench.accept(&new_policy("10.2.0.1", direction::OUT));
    let get = |kind| Request::new(kind, &0u32).flags(NLM_F_REQUEST);
    let sad = bench.send(&get(msg::GETSADINFO));
    let found = attributes(&sad.replies[0]);
    assert_eq!(found[&1], 9u32.to_ne_bytes());
    assert_eq!(found[&2], [16u32.to_ne_bytes(), (1u32 << 20).to_ne_bytes()].concat());
    agreed(&sad.replies[0]);
    let threshold = Request::new(msg::NEWSPDINFO, &0u32);
    bench.accept(&threshold.clone().with(3, &[24u8, 16]));
    assert!(bench.send(&threshold.with(4, &[129u8, 0])).result().is_err());
    let spd = bench.send(&get(msg::GETSPDINFO));
    let found = attributes(&spd.replies[0]);
    assert_eq!(found[&1][..12], [[0; 4], 1u32.to_ne_bytes(), [0; 4]].concat());
    assert_eq!((&found[&3][..], &found[&4][..]), (&[24, 16][..], &[128, 128][..]));
    agreed(&spd.replies[0]);
    bench.send(&Request::new(msg::SETDEFAULT, &UserpolicyDefault::default()));
}
