//! What time and traffic do.

use wire::xfrm::algorithm::{Algorithm, Name};
use wire::xfrm::event::{UserExpire, UserPolexpire};
use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::netlink::NLM_F_REQUEST;
use wire::xfrm::number::{attr, direction, group, msg};
use wire::xfrm::policy::UserpolicyInfo;
use wire::xfrm::sa::{UsersaInfo, UserspiInfo};
use zerocopy::IntoBytes;

use super::super::{Change, PolicyCounters, PolicyId, SaCounters, SaId};
use super::bench::*;

fn limited(limits: LifetimeConfig) -> Request {
    new_sa(1).change(|info: &mut UsersaInfo| info.lft = limits)
}

/// What the data plane counted of an SA that never moved.
pub fn counted(bytes: u64, packets: u64) -> SaCounters {
    let (total_bytes, total_packets) = (bytes, packets);
    SaCounters { bytes, packets, total_bytes, total_packets, ..SaCounters::default() }
}

pub fn hardness(answer: &Answer) -> Vec<u8> {
    let expiries = answer.events.iter().map(|event| {
        assert_eq!((event.group, header(&event.bytes).kind), (group::EXPIRE, msg::EXPIRE));
        messages(&event.bytes)[0].fixed::<UserExpire>().unwrap().hard
    });
    expiries.collect()
}

#[test]
fn an_sa_warns_once_and_then_goes() {
    let mut bench = Bench::new();
    bench.accept(&limited(LifetimeConfig {
        soft_add_expires_seconds: 10,
        hard_add_expires_seconds: 20,
        ..LifetimeConfig::UNLIMITED
    }));
    bench.changes();
    assert_eq!(bench.server.next_deadline(), Some(NOW + 1));
    let mut seen = Vec::new();
    for second in 1..=30 {
        let answer = bench.tick(1);
        seen.extend(hardness(&answer).into_iter().map(|hard| (second, hard)));
    }
    assert_eq!(seen, [(10, 0), (20, 1)]);
    let expected = [Change::SaDying(SaId(0)), Change::SaRemoved(SaId(0))];
    assert_eq!(bench.changes(), expected);
    assert_eq!(bench.server.next_deadline(), None);
}

#[test]
fn a_clock_that_jumps_leaves_time_to_rekey() {
    let mut bench = Bench::new();
    bench.accept(&limited(LifetimeConfig {
        soft_add_expires_seconds: 100,
        hard_add_expires_seconds: 160,
        ..LifetimeConfig::UNLIMITED
    }));
    bench.tick(1);
    assert_eq!(hardness(&bench.tick(1_000_000)), [0]);
    assert!(hardness(&bench.tick(30)).is_empty());
    assert_eq!(hardness(&bench.tick(60)), [1]);
}

#[test]
fn use_time_counts_from_the_first_packet() {
    let mut bench = Bench::new();
    bench.accept(&limited(LifetimeConfig {
        soft_use_expires_seconds: 5,
        hard_use_expires_seconds: 10,
        ..LifetimeConfig::UNLIMITED
    }));
    assert!(hardness(&bench.tick(100)).is_empty());
    let live = SaCounters { use_time: bench.now, packets: 1, ..SaCounters::default() };
    bench.figures.sas.insert(SaId(0), live);
    assert_eq!(hardness(&bench.tick(6)), [0]);
    assert_eq!(hardness(&bench.tick(6)), [1]);
}

#[test]
fn traffic_counts() {
    let mut bench = Bench::new();
    bench.accept(&limited(LifetimeConfig {
        soft_byte_limit: 1000,
        hard_packet_limit: 50,
        ..LifetimeConfig::UNLIMITED
    }));
    let figures = |bench: &mut Bench, bytes, packets| {
        let live = counted(bytes, packets);
        bench.figures.sas.insert(SaId(0), live);
        hardness(&bench.tick(1))
    };
    assert!(figures(&mut bench, 999, 1).is_empty());
    assert_eq!(figures(&mut bench, 1000, 2), [0]);
    assert!(figures(&mut bench, 2000, 49).is_empty());
    // New limits, and a new warning.
    let update = update_sa(1).change(|info: &mut UsersaInfo| {
        info.lft = LifetimeConfig {
            soft_byte_limit: 3000,
            hard_byte_limit: 4000,
            ..LifetimeConfig::UNLIMITED
        };
    });
    bench.accept(&update);
    assert_eq!(figures(&mut bench, 3500, 60), [0]);
    assert_eq!(figures(&mut bench, 4000, 70), [1]);
    assert_eq!(bench.server.sizes().0, 0);
}

#[test]
fn of_limits_out_of_reach_only_the_data_plane_tells() {
    let mut bench = Bench::new();
    let far = |soft_packet_limit| LifetimeConfig {
        soft_byte_limit: 1 << 62,
        hard_byte_limit: 1 << 63,
        soft_packet_limit,
        hard_packet_limit: 1 << 63,
        ..LifetimeConfig::UNLIMITED
    };
    bench.accept(&limited(far(1 << 62)));
    bench.figures.sas.insert(SaId(0), counted(0, 1 << 62));
    assert!(hardness(&bench.tick(1)).is_empty(), "nobody looks");
    let told = Answer::new(bench.server.limit_reached(SaId(0), &bench.figures));
    assert_eq!(hardness(&told), [0]);
    // One of them is within reach.
    bench.accept(&update_sa(1).change(|info: &mut UsersaInfo| info.lft = far(1000)));
    assert_eq!(hardness(&bench.tick(1)), [0]);
}

#[test]
fn a_limit_that_the_data_plane_saw_is_announced_at_once() {
    let mut bench = Bench::new();
    let limits = LifetimeConfig {
        soft_packet_limit: 10,
        hard_packet_limit: 20,
        ..LifetimeConfig::UNLIMITED
    };
    bench.accept(&limited(limits).with(attr::SA_PCPU, &0u32));
    let reach = |bench: &mut Bench, packets| {
        let live = counted(0, packets);
        bench.figures.sas.insert(SaId(0), live);
        Answer::new(bench.server.limit_reached(SaId(0), &bench.figures))
    };
    assert!(hardness(&reach(&mut bench, 9)).is_empty(), "said in error, or too early");
    let soft = reach(&mut bench, 10);
    assert_eq!(hardness(&soft), [0]);
    assert_eq!(attributes(&soft.events[0].bytes)[&attr::SA_PCPU], [0; 4], "0 is a CPU");
    assert!(hardness(&reach(&mut bench, 11)).is_empty());
    assert!(hardness(&bench.tick(1)).is_empty(), "the second look finds it told");
    assert_eq!(hardness(&reach(&mut bench, 20)), [1]);
    assert!(bench.server.limit_reached(SaId(0), &bench.figures).is_empty());
    assert_eq!(bench.server.sizes().0, 0);
}

#[test]
fn a_reservation_is_forgotten() {
    let mut bench = Bench::new();
    let reserve = UserspiInfo { info: usersa(0), min: 9, max: 9 };
    bench.accept(&Request::new(msg::ALLOCSPI, &reserve).flags(NLM_F_REQUEST));
    assert!(hardness(&bench.tick(29)).is_empty());
    assert_eq!(hardness(&bench.tick(1)), [1]);
    assert!(bench.changes().is_empty(), "the data plane never knew of it");
    bench.accept(&new_sa(9));
}

#[test]
fn a_probe_is_gone_by_itself() {
    let mut bench = Bench::new();
    let nowhere = |info: &mut UsersaInfo| {
        (info.saddr, info.id.daddr) = (Default::default(), Default::default());
    };
    let cipher = Algorithm { name: Name::new("aes"), key_len: 128 };
    let cipher = [cipher.as_bytes(), &[7; 16]].concat();
    let probe = new_sa(9).change(nowhere).without(attr::ALG_AEAD);
    bench.accept(&probe.with(attr::ALG_CRYPT, &cipher[..]));
    assert!(hardness(&bench.tick(29)).is_empty());
    assert_eq!(hardness(&bench.tick(1)), [1]);
    assert_eq!(bench.server.sizes().0, 0);
    assert!(bench.changes().is_empty(), "the data plane never knew of it");
}

#[test]
fn what_the_data_plane_holds_up_is_announced_whatever_is_shown() {
    let mut bench = Bench::new();
    let limits = LifetimeConfig {
        soft_packet_limit: 40,
        hard_packet_limit: 50,
        ..LifetimeConfig::UNLIMITED
    };
    bench.accept(&limited(limits));
    let count = |bench: &mut Bench, total_packets| {
        // It moved after 45 packets, and nothing is sent any more.
        let live = SaCounters { packets: 0, total_packets, ..SaCounters::default() };
        bench.figures.sas.insert(SaId(0), live);
        hardness(&bench.tick(1))
    };
    assert!(count(&mut bench, 39).is_empty());
    assert_eq!(count(&mut bench, 40), [0]);
    assert_eq!(count(&mut bench, 50), [1]);
    assert_eq!(bench.server.sizes().0, 0);
}

#[test]
fn a_clock_that_goes_back_does_not_have_sas_looked_at_all_the_time() {
    let mut bench = Bench::new();
    let limits = LifetimeConfig { hard_add_expires_seconds: 10_000, ..LifetimeConfig::UNLIMITED };
    bench.accept(&limited(limits));
    bench.tick(5000);
    bench.now -= 1000;
    bench.accept(&new_sa(2).change(|info: &mut UsersaInfo| info.lft = limits));
    // The first look at it.
    bench.tick(1);
    bench.changes();
    bench.server.forget_touched();
    bench.tick(1);
    assert!(!bench.server.has_changes(), "nothing is due, so the journal has nothing to hear");
    assert_eq!(hardness(&bench.tick(9998)), [1, 1]);
}

#[test]
fn a_policy_is_reminded_of_until_it_goes() {
    let mut bench = Bench::new();
    let limits = LifetimeConfig {
        soft_add_expires_seconds: 10,
        hard_use_expires_seconds: 100,
        ..LifetimeConfig::UNLIMITED
    };
    let request = new_policy("10.2.0.1", direction::OUT);
    bench.accept(&request.change(|info: &mut UserpolicyInfo| info.lft = limits));
    bench.changes();
    let mut seen = Vec::new();
    for second in 1..=200 {
        if second == 50 {
            let used = PolicyCounters { use_time: bench.now };
            bench.figures.policies.insert(PolicyId(0), used);
        }
        for event in bench.tick(1).events {
            assert_eq!((event.group, header(&event.bytes).kind), (group::EXPIRE, msg::POLEXPIRE));
            let body: UserPolexpire = messages(&event.bytes)[0].fixed().unwrap();
            seen.push((second, body.hard));
        }
    }
    assert_eq!(seen, [(10, 0), (40, 0), (70, 0), (100, 0), (130, 0), (149, 1)]);
    assert!(matches!(bench.changes()[..], [Change::PolicyRemoved(PolicyId(0))]));
}

#[test]
fn what_expires_together_is_said_in_parts() {
    let mut bench = Bench::new();
    let time = LifetimeConfig { hard_add_expires_seconds: 10, ..LifetimeConfig::UNLIMITED };
    let traffic = LifetimeConfig { hard_packet_limit: 5, ..LifetimeConfig::UNLIMITED };
    for spi in 1..=300 {
        let limits = if spi % 2 == 0 { time } else { traffic };
        bench.accept(&new_sa(spi).change(|info: &mut UsersaInfo| info.lft = limits));
        bench.figures.sas.insert(SaId(u64::from(spi) - 1), counted(0, 5));
    }
    let policy = new_policy("10.2.0.1", direction::OUT);
    bench.accept(&policy.change(|info: &mut UserpolicyInfo| info.lft = time));
    let mut parts = Vec::new();
    bench.now += 10;
    while parts.is_empty() || bench.server.has_more_due() {
        let part = bench.server.tick(bench.now, &bench.figures);
        parts.push(Answer::new(part).events.len());
    }
    assert_eq!((parts.iter().sum::<usize>(), bench.server.sizes()), (301, (0, 0)));
    assert!(parts.iter().all(|part| *part <= 128), "{parts:?}");
    assert_eq!(parts.len(), 3, "{parts:?}");
}
