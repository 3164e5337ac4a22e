//! Claims by themselves, and SAs whose numbers and windows are claimed by workers that come and go.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use crypto::{Engine, SharedKey};
use proptest::prelude::*;

use super::*;
use crate::nonce::NonceSpace;
use crate::sa::{HardLimits, Mode, Sa, SaConfig, SaFlags};
use crate::seat::{self, Seat};

/// Nobody is in a turn.
fn all_rest(_: u16) -> u64 {
    RESTING
}

#[test]
fn the_first_is_alone_until_another_comes_and_then_all_share() {
    let word = AtomicU64::new(0);
    assert_eq!(access(&word, 1, 1, all_rest), Access::Alone);
    assert_eq!(access(&word, 1, 2, all_rest), Access::Alone);
    assert_eq!(access(&word, 2, 7, all_rest), Access::Shared, "the owner is in no turn");
    assert_eq!(access(&word, 1, 3, all_rest), Access::Shared);
    assert_eq!(access(&AtomicU64::new(0), 0, RESTING, all_rest), Access::Shared);
}

#[test]
fn who_comes_waits_for_the_end_of_the_owners_turn() {
    let word = AtomicU64::new(0);
    assert_eq!(access(&word, 1, 5, all_rest), Access::Alone);
    let in_turn = |turn: u64| move |_: u16| turn;
    assert_eq!(access(&word, 2, 1, in_turn(5)), Access::Wait);
    assert_eq!(access(&word, 2, 2, in_turn(5)), Access::Wait);
    assert_eq!(access(&word, 3, 1, in_turn(5)), Access::Wait, "and so does a third");
    assert_eq!(access(&word, 1, 5, all_rest), Access::Alone, "what was allowed stays allowed");
    assert_eq!(access(&word, 2, 3, in_turn(6)), Access::Shared);
    assert_eq!(access(&word, 1, 6, all_rest), Access::Shared);
}

#[test]
fn an_owner_that_is_to_leave_does_so_in_its_next_turn_whether_or_not_anybody_waits() {
    let word = AtomicU64::new(0);
    assert_eq!(access(&word, 1, 5, all_rest), Access::Alone);
    assert_eq!(access(&word, 2, 1, |_| 5), Access::Wait);
    assert_eq!(access(&word, 1, 6, all_rest), Access::Shared);
    // Whoever came died between saying so and reading the turn: the owner writes its own.
    word.store(1 | LEAVING, Relaxed);
    assert_eq!(access(&word, 1, 7, all_rest), Access::Alone);
    assert_eq!(access(&word, 2, 2, |_| 7), Access::Wait);
    assert_eq!(access(&word, 1, 8, all_rest), Access::Shared);
}

fn sa() -> Sa {
    let sa = Sa::new(SaConfig {
        spi: 0x101,
        mode: Mode::Tunnel,
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        reqid: 1,
        if_id: 0,
        key: SharedKey::new(Engine::AwsLc, &[7; 16]).unwrap(),
        salt: [0; 4],
        extended_sequence: true,
        replay_window: 64,
        selector: None,
        flags: SaFlags::default(),
        encapsulation: None,
        limits: HardLimits::NONE,
        sent: 0xffff_ff00,
        received: 0,
        received_bitmap: None,
        added_ns: 5,
    })
    .unwrap();
    sa.arm(&NonceSpace::new(|| Ok(9)).unwrap()).unwrap();
    sa
}

/// What a worker does in its turns: how many packets at once, and whether it rests in between.
type Schedule = Vec<(u32, bool)>;

fn schedule() -> impl Strategy<Value = Schedule> {
    prop::collection::vec((1..40u32, any::<bool>()), 1..60)
}

/// Takes numbers for packets, turn by turn.
fn take(sa: &Sa, schedule: &Schedule) -> Vec<(u64, u64)> {
    let mut seat = Seat::take();
    let mut taken = Vec::new();
    for (packets, rests) in schedule {
        let turn = seat.begin_turn();
        let mut wanted = *packets;
        while wanted != 0 {
            let words = sa.words();
            let alone = match access(words.claim(), seat.number(), turn, seat::turn_of) {
                Access::Wait => break,
                access => access == Access::Alone,
            };
            let mut numbers = sa.take_run(wanted, alone).unwrap();
            while let Some(number) = numbers.next() {
                taken.push(number);
                wanted -= 1;
            }
            sa.count(1, 10, 1, alone);
        }
        seat.end_turn();
        if *rests {
            std::thread::yield_now();
        }
    }
    taken
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn workers_share_no_number_whoever_owns_them(
        schedules in prop::collection::vec(schedule(), 1..4)
    ) {
        let sa = sa();
        let taken: Vec<Vec<(u64, u64)>> = std::thread::scope(|scope| {
            let workers: Vec<_> =
                schedules.iter().map(|one| scope.spawn(|| take(&sa, one))).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        for worker in &taken {
            prop_assert!(worker.is_sorted(), "a worker's numbers only rise");
        }
        let all = || taken.iter().flatten();
        let count = all().count();
        prop_assert_eq!(all().map(|(sequence, _)| sequence).collect::<HashSet<_>>().len(), count);
        prop_assert_eq!(all().map(|(_, iv)| iv).collect::<HashSet<_>>().len(), count);
        // None is left out either: what was taken was sent.
        prop_assert_eq!(sa.stats().sent, 0xffff_ff00 + count as u64);
        prop_assert_eq!(sa.stats().usage.bytes, 10 * sa.stats().usage.packets);
    }

    #[test]
    fn a_window_accepts_each_number_once_whoever_owns_it(
        schedules in prop::collection::vec(schedule(), 1..4),
        seed in any::<u32>(),
    ) {
        let sa = sa();
        // Each worker receives about the same numbers, so most come to several.
        let receive = |schedule: &Schedule, worker: u32| {
            let mut seat = Seat::take();
            let (mut accepted, mut number) = (Vec::new(), 1u32);
            for (packets, _) in schedule {
                let turn = seat.begin_turn();
                let words = sa.words();
                let access = access(words.claim(), seat.number(), turn, seat::turn_of);
                for _ in 0..if access == Access::Wait { 0 } else { *packets } {
                    number = number.wrapping_mul(1_664_525).wrapping_add(seed ^ worker) % 500 + 1;
                    let Ok(checked) = sa.replay().check(number) else { continue };
                    let committed = match access {
                        Access::Alone => sa.replay().commit_alone(checked),
                        _ => sa.replay().commit(checked),
                    };
                    accepted.extend(committed.ok().map(|()| checked));
                }
                seat.end_turn();
            }
            accepted
        };
        let mut accepted: Vec<u64> = std::thread::scope(|scope| {
            let receive = &receive;
            let workers: Vec<_> = (0..)
                .zip(&schedules)
                .map(|(worker, one)| scope.spawn(move || receive(one, worker)))
                .collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        let count = accepted.len();
        accepted.sort_unstable();
        accepted.dedup();
        prop_assert_eq!(accepted.len(), count, "accepted twice");
        prop_assert_eq!(sa.replay().top(), accepted.last().copied().unwrap_or(0));
    }

    #[test]
    fn alone_or_not_a_window_says_the_same(numbers in prop::collection::vec(1..300u64, 1..200)) {
        let (alone, shared) = (sa(), sa());
        for number in numbers {
            prop_assert_eq!(alone.replay().commit_alone(number), shared.replay().commit(number));
            prop_assert_eq!(alone.replay().top(), shared.replay().top());
        }
        prop_assert_eq!(alone.replay().bitmap(), shared.replay().bitmap());
    }
}
