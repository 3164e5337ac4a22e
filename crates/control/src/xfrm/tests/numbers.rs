//! Sequence numbers, windows and counters: the data plane's, and those that NEWAE sets.

use rustix::io::Errno;
use wire::xfrm::lifetime::LifetimeCurrent;
use wire::xfrm::netlink::{NLM_F_ACK, NLM_F_REPLACE, NLM_F_REQUEST};
use wire::xfrm::number::{attr, group, msg, sa_flag};
use wire::xfrm::replay::{ReplayState, ReplayStateEsn};
use wire::xfrm::sa::{AeventId, UsersaInfo};
use zerocopy::{FromBytes, IntoBytes};

use super::super::{Change, ReplayValue, SaCounters, SaId};
use super::bench::*;

#[test]
fn the_data_planes_figures_are_shown() {
    let mut bench = Bench::new();
    let value = esn(64, 2);
    bench.accept(
        &new_sa(1)
            .with(attr::REPLAY_ESN_VAL, &value[..])
            .change(|info: &mut UsersaInfo| info.flags = sa_flag::ESN),
    );
    let mut live = SaCounters {
        bytes: 100,
        packets: 2,
        use_time: NOW + 3,
        last_used: NOW + 4,
        output_sequence: 9,
        input_sequence: (1 << 32) + 2,
        received: vec![0b101],
        ..SaCounters::default()
    };
    live.stats.replay = 7;
    bench.figures.sas.insert(SaId(0), live);
    let info = shown_sa(&mut bench, 1);
    assert_eq!((info.curlft.bytes, info.curlft.packets), (100, 2));
    assert_eq!((info.curlft.use_time, info.stats.replay), (NOW + 3, 7));
    let answer = bench.send(&get_sa(1));
    let found = attributes(&answer.replies[0]);
    assert_eq!(found[&attr::LASTUSED], (NOW + 4).to_ne_bytes());
    let (head, bitmap) =
        ReplayStateEsn::read_from_prefix(&found[&attr::REPLAY_ESN_VAL][..]).unwrap();
    assert_eq!((head.seq_hi, head.seq, head.oseq, head.oseq_hi), (1, 2, 9, 0));
    // Numbers 2 and 0 of the second epoch: bit (2 - 1) and bit (0 - 1) modulo 64.
    assert_eq!(bitmap, [2u32.to_ne_bytes(), 0x8000_0000u32.to_ne_bytes()].concat());
}

#[test]
fn sequence_numbers_are_set_and_asked_for() {
    let mut bench = Bench::new();
    let ae = |kind, flags| {
        let id = AeventId { sa_id: sa_id(1), flags, ..AeventId::default() };
        Request::new(kind, &id)
    };
    let replay = ReplayState { oseq: 5, seq: 6, bitmap: 3 };
    let set = |bench: &mut Bench, replace: u16| {
        let request = ae(msg::NEWAE, 0)
            .with(attr::REPLAY_VAL, &replay)
            .with(
                attr::LTIME_VAL,
                &LifetimeCurrent { bytes: 1, packets: 2, add_time: 3, use_time: 4 },
            )
            .flags(NLM_F_REQUEST | NLM_F_ACK | replace);
        bench.send(&request)
    };
    let errno = |answer: Answer| answer.result().map_err(|(errno, _)| errno);
    assert_eq!(errno(bench.send(&ae(msg::NEWAE, 0))), Err(Errno::INVAL));
    assert_eq!(errno(set(&mut bench, 0)), Err(Errno::INVAL));
    assert_eq!(errno(set(&mut bench, NLM_F_REPLACE)), Err(Errno::SRCH));
    bench.refuse(&ae(msg::GETAE, 0), Errno::SRCH, "");
    bench.accept(&allocate(1, 1));
    assert_eq!(errno(set(&mut bench, NLM_F_REPLACE)), Err(Errno::INVAL));
    bench.accept(&update_sa(1));
    bench.changes();
    let answer = set(&mut bench, NLM_F_REPLACE);
    assert_eq!(answer.kinds(), [(group::AEVENTS, msg::NEWAE)]);
    let changes = bench.changes();
    let [Change::SaReplaySet(record)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(record.replay, ReplayValue::Legacy(replay));
    // RTHR | ETHR: two packets, one second.
    let answer = bench.send(&ae(msg::GETAE, 9).flags(NLM_F_REQUEST));
    let found = attributes(&answer.replies[0]);
    assert_eq!(found[&attr::REPLAY_VAL], replay.as_bytes());
    assert_eq!(found[&attr::LTIME_VAL][..8], 1u64.to_ne_bytes());
    assert_eq!(found[&attr::REPLAY_THRESH], 2u32.to_ne_bytes());
    assert_eq!(found[&attr::ETIMER_THRESH], 10u32.to_ne_bytes());
}

#[test]
fn a_wide_window_is_set_only_by_one_of_its_size() {
    let mut bench = Bench::new();
    bench.accept(&new_sa(1).with(attr::REPLAY_ESN_VAL, &esn(64, 2)[..]));
    bench.changes();
    let set = |value: &[u8]| {
        let id = AeventId { sa_id: sa_id(1), ..AeventId::default() };
        Request::new(msg::NEWAE, &id)
            .with(attr::REPLAY_ESN_VAL, value)
            .flags(NLM_F_REQUEST | NLM_F_ACK | NLM_F_REPLACE)
    };
    for wrong in [esn(64, 3), esn(65, 2), esn(64, 2)[..28].to_vec()] {
        bench.refuse(&set(&wrong), Errno::INVAL, "");
    }
    bench.accept(&set(&esn(33, 2)));
    let changes = bench.changes();
    assert!(matches!(&changes[..], [Change::SaReplaySet(record)] if record.replay_window() == 33));
}
