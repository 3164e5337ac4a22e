//! An SA that takes another's place: what it goes on with.

use super::*;
use crypto::Engine;

/// An SA as any, with limits.
pub(crate) fn config() -> SaConfig {
    SaConfig {
        spi: 0x101,
        mode: Mode::Tunnel,
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        reqid: 1,
        key: SharedKey::new(Engine::AwsLc, &[7; 16]).unwrap(),
        salt: [0; 4],
        extended_sequence: true,
        replay_window: 64,
        selector: None,
        flags: SaFlags::default(),
        encapsulation: None,
        limits: HardLimits { packets: 2, bytes: u64::MAX },
        sent: 0,
        received: 0,
        received_bitmap: None,
        if_id: 0,
        added_ns: 5,
    }
}

#[test]
fn a_moved_sa_takes_no_number_back() {
    let old = Sa::new(SaConfig { sent: 70, ..config() }).unwrap();
    for sequence in [3, 5] {
        old.replay().commit(sequence).unwrap();
    }
    old.count(1, 1000, 7, true);
    let key = SharedKey::new(Engine::AwsLc, &[7; 16]).unwrap();
    let elsewhere = SaConfig {
        source: [192, 0, 2, 9].into(),
        // As they were read before the last packets: 4 was received, 5 not yet, 70 not sent.
        sent: 69,
        received: 4,
        received_bitmap: Some([0b1100, 0].into()),
        key,
        ..config()
    };
    let new = old.moved(elsewhere.clone()).unwrap();
    let stats = new.stats();
    assert_eq!((stats.sent, stats.received, stats.usage.packets), (70, 5, 1));
    let refused: Vec<u32> = (1..8).filter(|n| new.replay().check(*n).is_err()).collect();
    assert_eq!(refused, [3, 4, 5]);
    assert!(new.same_runtime(&old));
    assert_eq!(new.source(), IpAddr::from([192, 0, 2, 9]));
    // Numbers from elsewhere count where they are higher.
    assert_eq!(old.moved(SaConfig { sent: 99, ..elsewhere.clone() }).unwrap().stats().sent, 99);
    for other in [
        SaConfig { spi: 0x102, ..elsewhere.clone() },
        SaConfig { salt: [1; 4], ..elsewhere.clone() },
        SaConfig { replay_window: 32, ..elsewhere },
    ] {
        assert_eq!(old.moved(other).map(|_| ()), Err(SaError::Immutable));
    }
}

#[test]
fn a_successor_with_another_window_takes_nothing_back_either() {
    let old = Sa::new(SaConfig { sent: 70, received: 5, ..config() }).unwrap();
    old.count(1, 1000, 7, true);
    let ledger = Ledger::in_memory();
    let wider =
        SaConfig { sent: 69, received: 4, replay_window: 128, if_id: 9, added_ns: 11, ..config() };
    let new = Sa::new_in(wider, &ledger).unwrap().in_place_of(&old);
    let stats = new.stats();
    assert_eq!((stats.sent, stats.received, stats.usage.packets), (70, 5, 1));
    assert_eq!((stats.added_ns, new.if_id(), ledger.in_use()), (5, 9, 1));
    let refused: Vec<u32> = (1..8).filter(|n| new.replay().check(*n).is_err()).collect();
    assert_eq!(refused, [1, 2, 3, 4, 5]);
}

#[test]
fn a_successor_with_other_numbers_keeps_counters_and_limits() {
    let old = Sa::new(config()).unwrap();
    old.count(1, 1000, 7, true);
    old.count(1, 400, 9, false);
    old.count_error(Verdict::IntegrityFailed);
    assert!(old.expired());
    let new = Sa::new(SaConfig { sent: 90, received: 80, added_ns: 11, ..config() }).unwrap();
    assert!(!new.expired());
    let new = new.counting_on(&old);
    assert!(new.expired(), "a limit does not begin anew");
    let stats = new.stats();
    assert_eq!((stats.sent, stats.received, stats.added_ns), (90, 80, 5));
    assert_eq!((stats.usage, stats.integrity_failed), (old.stats().usage, 1));
}
