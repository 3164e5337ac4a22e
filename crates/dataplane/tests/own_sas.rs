//! SAs of single workers (RFC 9611): which one a packet leaves by, and what is asked for.

mod fixture;

use std::sync::Arc;

use dataplane::alarm::Alarm;
use dataplane::bundles::{Bundle, Whose};
use dataplane::event::Event;
use dataplane::policy::{Direction, Policy, PolicyConfig};
use dataplane::sa::{Sa, SaConfig};
use dataplane::verdict::Verdict;
use dataplane::view::View;
use fixture::*;

/// CPUs of the two workers of these tests.
const CPUS: [usize; 2] = [4, 9];

/// An SA towards the east with an SPI of its own, ready to seal.
fn sa(spi: u32) -> Arc<Sa> {
    let sa = Sa::new(SaConfig { spi, ..PLAIN.sa(Site::East) }).unwrap();
    sa.arm(&nonces()).unwrap();
    Arc::new(sa)
}

/// Two workers of one gateway on the same view.
struct Pair {
    workers: [Gateway; 2],
}

impl Pair {
    fn new() -> Pair {
        let view = PLAIN.view(Site::West, &nonces());
        Pair { workers: [0, 1].map(|id| Gateway::worker(id, CPUS[id], view.clone())) }
    }

    fn change(&mut self, change: impl Fn(&mut View)) {
        for worker in &mut self.workers {
            worker.change(&change);
        }
    }

    fn fill(&mut self, shared: Option<&Arc<Sa>>, own: [Option<&Arc<Sa>>; 2]) {
        let bundle = Bundle::new(shared.cloned(), own.map(Option::<&Arc<Sa>>::cloned).to_vec());
        self.change(|view| assert!(view.bundles.set_bundle(0, bundle.clone())));
    }

    /// The policy asks for SAs of single workers.
    fn flag(&mut self) {
        let config = PolicyConfig { own_sas: true, ..PLAIN.policy(Direction::Out, Site::East) };
        self.change(|view| {
            view.spd.insert(Arc::new(Policy::new(config.clone())));
        });
    }

    /// One packet by each worker: the SPI that it leaves with, 0 if there was no SA.
    fn spis(&mut self) -> [u32; 2] {
        [0, 1].map(|worker| {
            let frame = Packet::towards(Site::East, false, 20).frame(RED);
            match self.workers[worker].pass(RED, &frame) {
                (Verdict::Sealed, Some((BLACK, sealed))) => {
                    u32::from_be_bytes(unframe(BLACK, &sealed)[20..24].try_into().unwrap())
                }
                (Verdict::NoSa, None) => 0,
                (verdict, _) => panic!("{}", verdict.name()),
            }
        })
    }

    /// The CPUs for which SAs were asked for since the last call.
    fn asked(&mut self) -> [Vec<Option<u32>>; 2] {
        [0, 1].map(|worker| {
            let events = self.workers[worker].events.try_iter();
            events
                .map(|event| match event {
                    Event::SaNeeded { cpu, .. } => cpu,
                    other => panic!("{other:?}"),
                })
                .collect()
        })
    }
}

#[test]
fn each_worker_seals_with_its_own_sa_else_with_that_for_all() {
    let (shared, first, second) = (sa(10), sa(11), sa(12));
    let mut pair = Pair::new();
    pair.fill(Some(&shared), [None, None]);
    assert_eq!(pair.spis(), [10, 10]);
    pair.fill(Some(&shared), [Some(&first), None]);
    assert_eq!(pair.spis(), [11, 10]);
    pair.fill(Some(&shared), [Some(&first), Some(&second)]);
    assert_eq!(pair.spis(), [11, 12]);
    // Rekeyed: the successor takes over at once.
    pair.fill(Some(&shared), [Some(&sa(21)), Some(&second)]);
    assert_eq!(pair.spis(), [21, 12]);
    // Without the SA for all, own SAs stay in use, and nobody takes another's.
    pair.fill(None, [Some(&first), Some(&second)]);
    assert_eq!(pair.spis(), [11, 12]);
    pair.fill(None, [Some(&first), None]);
    assert_eq!(pair.spis(), [11, 0]);
    let counts = [0, 1].map(|worker| {
        let counted = pair.workers[worker].snapshot();
        (counted.own_sa, counted.fallback_sa)
    });
    assert_eq!(counts, [(5, 0), (3, 1)]);
    assert_eq!((shared.stats().usage.packets, first.stats().usage.packets), (3, 4));
}

#[test]
fn an_own_sa_is_asked_for_while_packets_leave_by_that_for_all() {
    let mut pair = Pair::new();
    pair.flag();
    assert_eq!(pair.spis(), [PLAIN.sa(Site::East).spi; 2]);
    let wanted = [4, 9].map(|cpu| vec![Some(cpu)]);
    assert_eq!(pair.asked(), wanted);
    // Once, however many packets come.
    for _ in 0..100 {
        pair.spis();
    }
    assert_eq!(pair.asked(), [vec![], vec![]]);
    // The answer for the first worker silences it for good, not the other.
    pair.fill(Some(&sa(10)), [Some(&sa(11)), None]);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(pair.spis(), [11, 10]);
    assert_eq!(pair.asked(), [vec![], vec![Some(9)]]);
    // With no SA at all, the question is for everybody.
    pair.fill(None, [Some(&sa(11)), None]);
    assert_eq!(pair.spis(), [11, 0]);
    assert_eq!(pair.asked(), [vec![], vec![None]]);
}

#[test]
fn nobody_asks_for_own_sas_of_a_policy_that_does_not() {
    let mut pair = Pair::new();
    pair.fill(Some(&sa(10)), [Some(&sa(11)), None]);
    assert_eq!(pair.spis(), [11, 10]);
    assert_eq!(pair.asked(), [vec![], vec![]]);
}

#[test]
fn a_bundle_without_own_sas_has_none_for_anybody() {
    let bundle = Bundle::new(Some(sa(1)), vec![None, None]);
    assert!(bundle.own(0).is_none());
    assert_eq!(bundle.choose(1).unwrap().1, Whose::Everybodys);
    let bundle = Bundle::new(None, vec![Some(sa(1))]);
    assert!(bundle.choose(1).is_none() && bundle.choose(usize::MAX).is_none());
}

#[test]
fn limits_are_told_by_the_packet_that_reaches_them() {
    let none = (u64::MAX, u64::MAX);
    let mut gateway = Gateway::at(Site::West, &PLAIN);
    let alarmed = Sa::new(PLAIN.sa(Site::East)).unwrap();
    let alarmed = Arc::new(alarmed.with_alarm(Some(Alarm::new(77, (3, u64::MAX), none))));
    alarmed.arm(&nonces()).unwrap();
    gateway.change(|view| assert!(view.bundles.set(0, Some(alarmed.clone()))));
    let frame = Packet::towards(Site::East, false, 20).frame(RED);
    for packet in 1..=5 {
        gateway.forward(RED, &frame);
        let events: Vec<Event> = gateway.events.try_iter().collect();
        let expected = if packet == 3 { vec![Event::LimitReached { token: 77 }] } else { vec![] };
        assert_eq!(events, expected, "packet {packet}");
    }
}
