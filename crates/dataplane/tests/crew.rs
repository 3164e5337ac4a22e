//! Packets that are out with other workers: what comes meanwhile, and how they end.

mod fixture;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dataplane::clock::Clock;
use dataplane::crew::{Lending, crew};
use dataplane::event;
use dataplane::fib::{NextHop, Route};
use dataplane::laps::{Laps, Stage};
use dataplane::policy::{Action, Direction, Policy, PolicyConfig};
use dataplane::selector::Selector;
use dataplane::tunnel::TunnelName;
use dataplane::verdict::Verdict;
use dataplane::view::{Publisher, View};
use dataplane::worker::{Worker, WorkerParts};
use fixture::*;
use xsk::{MemoryEnd, MemoryPort, Pool, Port, Umem};

/// West, whose packets another worker has, who never comes to them.
fn lending(worker: &mut Worker, lending: Lending) {
    let mut member = crew(2, Clock).unwrap().swap_remove(0);
    member.set_lending(lending);
    worker.join(member);
}

fn towards(dst: &str) -> Vec<u8> {
    Packet { dst: ip(dst), ..Packet::towards(Site::East, false, 20) }.frame(RED)
}

/// Who changes the policies when a turn has settled what it may receive, and sends once that is answered for.
struct Changing<'a> {
    change: Option<(&'a mut Publisher, View)>,
    end: &'a mut MemoryEnd,
    pool: &'a mut Pool,
}

impl Laps for Changing<'_> {
    fn begin(&mut self) {}

    fn receiving(&mut self) {
        if let Some((publisher, view)) = self.change.take() {
            publisher.publish(view);
            assert!(self.end.inject_bytes(self.pool, &towards("198.51.100.1")));
        }
    }

    fn lap(&mut self, _: Stage) {}
}

/// Another worker, whose turn is in between.
struct Inside<'a>(Option<&'a mut Gateway>);

impl Laps for Inside<'_> {
    fn begin(&mut self) {}

    fn lap(&mut self, stage: Stage) {
        if stage == Stage::Seal
            && let Some(other) = self.0.take()
        {
            other.worker.turn();
        }
    }
}

/// Two workers of west's, of which the second met an SA in the first one's turn: its packet waits for the next.
fn met_in_between(view: &View) -> [Gateway; 2] {
    let mut workers = [0, 1].map(|id| Gateway::worker(id, id, view.clone()));
    let [first, second] = &mut workers;
    for worker in [&mut *first, &mut *second] {
        worker.inject(RED, &towards("10.2.0.1"));
    }
    first.worker.turn_timed(&mut Inside(Some(second)));
    assert_eq!(second.worker.waiting(), 1);
    workers
}

#[test]
fn what_waits_for_another_workers_turn_is_counted_once() {
    let view = PLAIN.view(Site::West, &nonces());
    let [_, mut second] = met_in_between(&view);
    second.turn_until_nothing_waits();
    assert_eq!(second.snapshot().of(Verdict::Sealed), 1);
    let is_out = |policy: &&Arc<Policy>| policy.config().direction == Direction::Out;
    let policy = view.spd.iter().find(is_out).unwrap();
    assert_eq!(policy.usage().packets, 2);
}

/// A route alone led into the tunnel, so that nobody is asked for another SA.
#[test]
fn what_waits_for_an_sa_that_goes_meanwhile_ends_as_others_do() {
    let mut view = Tunnel { if_id: 7, ..PLAIN }.view(Site::West, &nonces());
    view.spd = Default::default();
    view.acquire_is_heard = true;
    let name = TunnelName { if_id: 7, remote: Some(Site::East.outer(false)) };
    let row = view.tunnels.join(name).unwrap();
    view.tunnels.set_slots(row, [Some(0); 2]);
    view.fib.insert(Site::East.inner(false), Route::Tunnel(row));
    let [_, mut second] = met_in_between(&view);
    second.change(|view| assert!(view.bundles.set(0, None)));
    second.worker.turn();
    assert_eq!((second.worker.waiting(), second.snapshot().of(Verdict::NoSa)), (0, 1));
}

/// A packet sent when a policy was in force for it must not leave in clear, as the one before it did.
#[test]
fn a_policy_that_was_answered_for_is_met_while_packets_are_out() {
    let umem = Umem::new(1024, 2048, false).unwrap();
    let mut pool = umem.pool(512..1024);
    let (red, mut red_end) = MemoryPort::pair(umem, 128).unwrap();
    let (black, mut black_end) = MemoryPort::pair(umem, 128).unwrap();
    let mut view = PLAIN.view(Site::West, &nonces());
    let hop = NextHop { port: BLACK, gateway: Some(Site::East.outer(false)) };
    view.fib.insert(prefix("198.51.100.0/24"), Route::Via(hop));
    let mut publisher = Publisher::new(view.clone());
    let mut worker = Worker::new(WorkerParts {
        id: 0,
        cpu: None,
        ports: vec![Port::Memory(red), Port::Memory(black)],
        pool: umem.pool(0..512),
        reader: publisher.reader(),
        events: event::channel().0,
        clock: Clock,
    });
    lending(&mut worker, Lending::Always);
    assert!(red_end.inject_bytes(&mut pool, &towards("10.2.0.1")));
    assert!(red_end.inject_bytes(&mut pool, &towards("198.51.100.1")));
    worker.turn();
    assert_eq!(worker.counters().snapshot().of(Verdict::Forwarded), 1);
    assert_ne!(worker.waiting(), 0, "the other one is out");

    let config = PLAIN.policy(Direction::Out, Site::East);
    let selector = Selector { destination: prefix("198.51.100.0/24"), ..config.selector };
    let policy = PolicyConfig { index: 200, selector, action: Action::Discard, ..config };
    view.spd.insert(Arc::new(Policy::new(policy)));
    view.generation += 1;
    let change = Some((&mut publisher, view));
    let mut changing = Changing { change, end: &mut red_end, pool: &mut pool };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while worker.waiting() != 0 || changing.change.is_some() {
        assert!(std::time::Instant::now() < end, "{} wait", worker.waiting());
        worker.turn_timed(&mut changing);
    }
    let counts = worker.counters().snapshot();
    let clear = std::iter::from_fn(|| black_end.collect_bytes(&mut pool))
        .filter(|frame| frame[30..34] == [198, 51, 100, 1])
        .count();
    assert_eq!((clear, counts.of(Verdict::OutPolicyBlock)), (1, 1), "{counts:?}");
    assert_eq!(counts.decided(), counts.received);
}

/// What comes back when the worker is told to stop may find no SA for its way on; it is counted all the same.
#[test]
fn what_comes_back_at_the_end_and_would_wait_is_counted() {
    let mut view = PLAIN.view(Site::West, &nonces());
    view.acquire_is_heard = true;
    let config = PLAIN.policy(Direction::Out, Site::East);
    let selector = Selector::between(Site::East.inner(false), Site::West.inner(false)).unwrap();
    let Action::Protect { template, .. } = config.action else { unreachable!() };
    let action = Action::Protect { template, bundle: Some(5) };
    view.spd.insert(Arc::new(Policy::new(PolicyConfig { index: 200, selector, action, ..config })));
    let mut west = Gateway::with_frames(view, 1024);
    lending(&mut west.worker, Lending::Always);
    let inner = Packet::towards(Site::West, false, 20).bytes();
    west.inject(BLACK, &Seal::sequence(1).frame(&PLAIN.sa(Site::West), &inner));
    west.worker.turn();
    assert_ne!(west.worker.waiting(), 0, "it is out");
    west.worker.run(&AtomicBool::new(true)).unwrap();
    let counts = west.snapshot();
    assert_eq!((counts.of(Verdict::Stopped), counts.decided()), (1, counts.received));
    assert_eq!((west.worker.waiting(), west.worker.pool().free()), (0, 1024));
}
