//! Sequence numbers and IVs: each is used once, whatever happens to the SA that gives them.

mod fixture;

use std::collections::HashSet;
use std::sync::Arc;

use dataplane::nonce::NonceSpace;
use dataplane::sa::{HardLimits, Sa, SaConfig, SaError, SealRefusal};
use dataplane::verdict::Verdict;
use fixture::*;
use proptest::prelude::*;

/// What may happen to a gateway that holds a static key.
#[derive(Clone, Debug)]
enum Step {
    /// Packets are sealed.
    Send(usize),
    /// The SA is deleted and added again with the same key.
    Readd,
    /// The SA is updated.
    Update,
    /// A second SA with the same key takes over, the first stays installed.
    Twin,
    /// The process starts again, under the next epoch, and its tunnels are installed again.
    Restart,
    /// Control claims a new epoch while everything runs.
    NewEpoch,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..20usize).prop_map(Step::Send),
        1 => Just(Step::Readd),
        1 => Just(Step::Update),
        1 => Just(Step::Twin),
        1 => Just(Step::Restart),
        1 => Just(Step::NewEpoch),
    ]
}

/// The gateway and the epoch file that outlives it.
struct Life {
    west: Gateway,
    next_epoch: Arc<std::sync::atomic::AtomicU16>,
    nonces: Arc<NonceSpace>,
}

impl Life {
    fn new() -> Life {
        let next_epoch = Arc::new(std::sync::atomic::AtomicU16::new(5));
        let nonces = Life::start(&next_epoch);
        Life { west: Gateway::at(Site::West, &PLAIN), next_epoch, nonces }
    }

    fn start(next_epoch: &Arc<std::sync::atomic::AtomicU16>) -> Arc<NonceSpace> {
        let claim = next_epoch.clone();
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        NonceSpace::new(move || Ok(claim.fetch_add(1, relaxed))).unwrap()
    }

    fn install(&mut self) {
        let sa = Arc::new(Sa::new(PLAIN.sa(Site::East)).unwrap());
        sa.arm(&self.nonces).unwrap();
        self.west.change(|view| assert!(view.bundles.set(0, Some(sa))));
    }

    fn step(&mut self, step: &Step, seen: &mut HashSet<u64>) {
        match step {
            Step::Send(count) => {
                for _ in 0..*count {
                    let packet = Packet::towards(Site::East, false, 20);
                    let (_, _, sealed) = self.west.forward(RED, &packet.frame(RED));
                    let opened = Opened::from(&unframe(BLACK, &sealed), &PLAIN.sa(Site::East), 0);
                    // The key is the same all the time, so the IV alone must never repeat.
                    assert!(seen.insert(opened.iv), "IV {:#x} twice", opened.iv);
                }
            }
            Step::Readd => {
                self.west.change(|view| assert!(view.bundles.set(0, None)));
                self.install();
            }
            Step::Twin => {
                let old = self.west.outbound().clone();
                self.install();
                // The old one seals once more, as a worker on the old view may.
                let (_, iv) = old.take_numbers().unwrap();
                assert!(seen.insert(iv));
            }
            Step::Update => {
                let limits = HardLimits { packets: 1 << 40, bytes: u64::MAX };
                let changed = self.west.outbound().with_changes(|config| config.limits = limits);
                let changed = Arc::new(changed.unwrap());
                // Arming again is what control does with every SA it points a bundle to.
                changed.arm(&self.nonces).unwrap();
                self.west.change(|view| assert!(view.bundles.set(0, Some(changed))));
            }
            Step::Restart => {
                self.nonces = Life::start(&self.next_epoch);
                self.install();
            }
            Step::NewEpoch => self.nonces.replenish(u64::MAX).unwrap(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn no_iv_repeats_over_updates_additions_and_restarts(
        steps in prop::collection::vec(step(), 1..30)
    ) {
        let mut life = Life::new();
        life.install();
        let mut seen = HashSet::new();
        for step in &steps {
            life.step(step, &mut seen);
        }
        life.step(&Step::Send(5), &mut seen);
        prop_assert!(seen.iter().all(|iv| (iv >> 48) as u16 >= 5));
    }
}

#[test]
fn a_sequence_ends_at_its_last_number_and_never_starts_again() {
    for (extended, last) in [(false, u64::from(u32::MAX)), (true, u64::MAX)] {
        let tunnel = Tunnel { extended, ..PLAIN };
        let sa = Sa::new(SaConfig { sent: last - 3, ..tunnel.sa(Site::East) }).unwrap();
        sa.arm(&nonces()).unwrap();
        for back in [2, 1, 0] {
            assert_eq!(sa.take_numbers().unwrap().0, last - back);
        }
        for _ in 0..100_000 {
            assert_eq!(sa.take_numbers(), Err(SealRefusal::SequenceExhausted));
        }
        assert_eq!(sa.stats().sent, last);
    }
}

/// What a worker numbers in one go ends where a block of IVs does, or the sequence.
#[test]
fn packets_of_one_turn_are_numbered_one_after_the_other_up_to_the_last() {
    const BURST: usize = 40;
    let ends = [(false, u64::from(u32::MAX)), (true, u64::from(u32::MAX)), (true, u64::MAX)];
    for ((extended, end), before) in
        ends.into_iter().flat_map(|end| [0, 1, 17, 40].map(|n| (end, n)))
    {
        let tunnel = Tunnel { extended, ..PLAIN };
        let start = end - before;
        let sa = Sa::new(SaConfig { sent: start, ..tunnel.sa(Site::East) }).unwrap();
        let sa = Arc::new(sa);
        sa.arm(&nonces()).unwrap();
        let mut west = Gateway::at(Site::West, &tunnel);
        west.change(|view| assert!(view.bundles.set(0, Some(sa.clone()))));
        let packet = Packet::towards(Site::East, false, 40).frame(RED);
        (0..BURST).for_each(|_| west.inject(RED, &packet));
        assert_eq!(west.worker.turn(), BURST);
        let last = if extended { u64::MAX } else { u64::from(u32::MAX) };
        let left = (last - start).min(BURST as u64);
        let mut ivs = HashSet::new();
        for number in 1..=left {
            let sealed = unframe(BLACK, &west.collect(BLACK).expect("it was sealed"));
            let sequence = start + number;
            let opened = Opened::from(&sealed, &tunnel.sa(Site::East), (sequence >> 32) as u32);
            assert_eq!(opened.sequence, sequence as u32);
            assert!(ivs.insert(opened.iv));
        }
        assert_eq!(west.collect(BLACK), None);
        let refused = west.snapshot().of(Verdict::SequenceExhausted);
        assert_eq!((sa.stats().sent, refused), (start + left, BURST as u64 - left));
    }
}

#[test]
fn two_workers_share_no_number() {
    const EACH: usize = 50_000;
    let sa = Sa::new(PLAIN.sa(Site::East)).unwrap();
    sa.arm(&nonces()).unwrap();
    let take = || (0..EACH).map(|_| sa.take_numbers().unwrap()).collect::<Vec<_>>();
    let (mine, theirs) = std::thread::scope(|scope| {
        let other = scope.spawn(take);
        (take(), other.join().unwrap())
    });
    let all = || mine.iter().chain(&theirs);
    assert_eq!(all().map(|(sequence, _)| sequence).collect::<HashSet<_>>().len(), 2 * EACH);
    assert_eq!(all().map(|(_, iv)| iv).collect::<HashSet<_>>().len(), 2 * EACH);
    assert_eq!(sa.stats().sent, 2 * EACH as u64);
}

#[test]
fn two_workers_racing_to_the_end_share_what_is_left() {
    for _ in 0..50 {
        let sent = u64::from(u32::MAX) - 100;
        let sa = Sa::new(SaConfig { sent, ..PLAIN.sa(Site::East) }).unwrap();
        sa.arm(&nonces()).unwrap();
        let take = || (0..100).filter(|_| sa.take_numbers().is_ok()).count();
        let total = std::thread::scope(|scope| {
            let other = scope.spawn(take);
            take() + other.join().unwrap()
        });
        assert_eq!(total, 100);
    }
}

#[test]
fn an_update_goes_on_where_the_old_sa_stood() {
    let mut west = Gateway::at(Site::West, &PLAIN);
    let mut east = Gateway::at(Site::East, &PLAIN);
    let mut exchange = |west: &mut Gateway, expected: u32| {
        let packet = Packet::towards(Site::East, false, 20);
        let (_, _, sealed) = west.forward(RED, &packet.frame(RED));
        let sealed = unframe(BLACK, &sealed);
        assert_eq!(Opened::from(&sealed, &PLAIN.sa(Site::East), 0).sequence, expected);
        assert_eq!(east.forward(BLACK, &frame(BLACK, &sealed)).0, Verdict::Opened);
        let changed = east.inbound().with_changes(|config| config.reqid = REQID).unwrap();
        assert!(changed.same_runtime(east.inbound()));
        east.change(|view| {
            view.sad.insert(Arc::new(changed));
        });
        assert_eq!(east.drop(BLACK, &frame(BLACK, &sealed)), Verdict::Replayed);
    };
    exchange(&mut west, 1);
    let changed = west.outbound().with_changes(|config| config.reqid = 9).unwrap();
    west.change(|view| assert!(view.bundles.set(0, Some(Arc::new(changed)))));
    exchange(&mut west, 2);
    assert_eq!(west.outbound().stats().usage.packets, 2);
    assert_eq!(west.outbound().config().reqid, 9);
}

#[test]
fn what_the_runtime_rests_on_cannot_be_changed() {
    let sa = Sa::new(PLAIN.sa(Site::East)).unwrap();
    let changes: [fn(&mut SaConfig); 5] = [
        |config| config.spi += 1,
        |config| config.key = PLAIN.key(),
        |config| config.salt[0] ^= 1,
        |config| config.extended_sequence = true,
        |config| config.replay_window = 128,
    ];
    for change in changes {
        assert_eq!(sa.with_changes(change).err(), Some(SaError::Immutable));
    }
}

#[test]
fn impossible_sas_are_refused() {
    let refused = |change: fn(&mut SaConfig)| {
        let mut config = PLAIN.sa(Site::East);
        change(&mut config);
        Sa::new(config).err()
    };
    assert_eq!(refused(|config| config.spi = 0), Some(SaError::SpiZero));
    assert_eq!(refused(|config| config.replay_window = 4097), Some(SaError::Window(4097)));
    assert!(matches!(refused(|config| config.source = ip("::1")), Some(SaError::Families(..))));
}

/// Whoever has seen one packet of an SA can send to its SPI by whatever way leads to another worker.
#[test]
fn an_sa_is_not_lost_to_whoever_knows_its_name() {
    let mut view = PLAIN.view(Site::East, &nonces());
    // Far away; but what several workers use is counted packet by packet then, and none follows.
    let limits = HardLimits { packets: 1 << 40, bytes: u64::MAX };
    let sa = Sa::new(SaConfig { limits, ..PLAIN.sa(Site::East) }).unwrap();
    view.sad.insert(Arc::new(sa));
    let mut workers = [0, 1].map(|id| Gateway::worker(id, id, view.clone()));
    let inner = Packet::towards(Site::East, false, 20).bytes();
    let mut sequence = 0;
    // How many follow, which only those do whose SA is their worker's alone.
    let mut following = |worker: &mut Gateway| {
        let before = worker.snapshot().followed;
        for _ in 0..16 {
            for _ in 0..4 {
                sequence += 1;
                let frame = Seal::sequence(sequence).frame(&PLAIN.sa(Site::East), &inner);
                worker.inject(BLACK, &frame);
            }
            worker.worker.turn();
            while worker.collect(RED).is_some() {}
        }
        worker.snapshot().followed - before
    };
    let [own, other] = &mut workers;
    following(own);
    let alone = following(own);
    assert_eq!(alone, 64);
    let mut forged = Seal::sequence(1000).frame(&PLAIN.sa(Site::East), &inner);
    if let Some(last) = forged.last_mut() {
        *last ^= 1;
    }
    for _ in 0..3 {
        assert_eq!(other.drop(BLACK, &forged), Verdict::IntegrityFailed);
    }
    // One that is authentic and has come before is none of the other worker's either.
    let seen = Seal::sequence(100).frame(&PLAIN.sa(Site::East), &inner);
    assert_eq!(other.drop(BLACK, &seen), Verdict::Replayed);
    assert_eq!(following(own), alone);
    // One that is both comes to be everybody's.
    let frame = Seal::sequence(1001).frame(&PLAIN.sa(Site::East), &inner);
    other.inject(BLACK, &frame);
    other.turn_until_nothing_waits();
    other.worker.turn();
    assert_eq!(other.snapshot().of(Verdict::Opened), 1);
    assert_eq!(own.drop(BLACK, &frame), Verdict::Replayed);
}
