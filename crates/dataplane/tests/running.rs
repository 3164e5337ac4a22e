//! A worker on a thread of its own: it finds packets, follows new views, sleeps and stops.

mod fixture;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use dataplane::clock::Clock;
use dataplane::counters::Counters;
use dataplane::event;
use dataplane::verdict::Verdict;
use dataplane::view::Publisher;
use dataplane::worker::{Worker, WorkerParts};
use fixture::*;
use xsk::{MemoryPort, Port, Umem};

fn wait(what: &str, done: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < limit, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_worker_forwards_follows_views_sleeps_and_stops() {
    let umem = Umem::new(256, 2048, false).unwrap();
    let mut pool = umem.pool(128..256);
    let (red, mut red_end) = MemoryPort::pair(umem, 128).unwrap();
    let (black, mut black_end) = MemoryPort::pair(umem, 128).unwrap();
    let mut view = PLAIN.view(Site::West, &nonces());
    let mut publisher = Publisher::new(view.clone());
    let (events, _receiver) = event::channel();
    let mut worker = Worker::new(WorkerParts {
        id: 3,
        cpu: Some(0),
        ports: vec![Port::Memory(red), Port::Memory(black)],
        pool: umem.pool(0..128),
        reader: publisher.reader(),
        events,
        clock: Clock,
    });
    assert_eq!((worker.id(), worker.ports().len()), (3, 2));
    let counters: Arc<Counters> = worker.counters();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            worker.run(&stop).unwrap();
            worker
        });
        let protected = Packet::towards(Site::East, false, 20).frame(RED);
        for _ in 0..50 {
            assert!(red_end.inject_bytes(&mut pool, &protected));
        }
        wait("sealed packets", || counters.snapshot().of(Verdict::Sealed) == 50);
        while black_end.collect_bytes(&mut pool).is_some() {}

        // A new view takes effect, and the old one goes although no packets come.
        view.bundles.set(0, None);
        publisher.publish(view.clone());
        wait("the new view", || publisher.settled());
        assert_eq!(publisher.reclaim(), 0);
        assert!(red_end.inject_bytes(&mut pool, &protected));
        wait("a packet without SA", || counters.snapshot().of(Verdict::NoSa) == 1);

        wait("sleep", || counters.snapshot().sleeps > 0);
        stop.store(true, Relaxed);
        let worker = running.join().unwrap();
        assert_eq!(worker.waiting(), 0);
        assert_eq!(worker.pool().free() + pool.free(), 256);
    });
    let snapshot = counters.snapshot();
    assert_eq!(snapshot.decided(), snapshot.received);
    assert!(snapshot.turns > snapshot.busy_turns && snapshot.busy_turns >= 2);
}

#[test]
fn a_cpu_that_does_not_exist_is_an_error() {
    let umem = Umem::new(8, 2048, false).unwrap();
    let publisher = Publisher::new(dataplane::view::View::default());
    let mut worker = Worker::new(WorkerParts {
        id: 0,
        cpu: Some(1000),
        ports: Vec::new(),
        pool: umem.pool(0..8),
        reader: publisher.reader(),
        events: event::channel().0,
        clock: Clock,
    });
    assert!(worker.run(&AtomicBool::new(true)).is_err());
}
