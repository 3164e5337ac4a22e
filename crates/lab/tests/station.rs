//! The station against a plain link: what it sends is what it counts, and it sends what it owes.

mod bench;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bench::{assert_closes, lost_on_links, mac, order, station};
use lab::generator::Load;
use lab::station::Station;
use lab::topology::{Namespace, Veth};

/// A station whose two ports are the two ends of one link.
fn looped() -> (Namespace, Station, Arc<AtomicBool>) {
    let namespace = Namespace::new("loop").unwrap();
    Veth::new((&namespace, "c0"), (&namespace, "c1"), 1).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let gateways = [mac(&namespace, "c1"), mac(&namespace, "c0")];
    let station = station(&namespace, ["c0", "c1"], gateways, &stop);
    (namespace, station, stop)
}

#[test]
fn every_frame_is_counted_at_any_rate() {
    let (_namespace, mut station, _) = looped();
    for pps in [50.0, 1_234.5, 20_000.0, 100_000.0] {
        for load in [
            [Load::Paced(pps), Load::Silent],
            [Load::Silent, Load::Paced(pps)],
            [Load::Paced(pps), Load::Paced(pps / 2.0)],
        ] {
            let before = station.counters().unwrap();
            let duration = Duration::from_millis(400);
            let books = station.step(order(load, duration), |_| {}).unwrap();
            let after = station.counters().unwrap();
            for (direction, load) in load.into_iter().enumerate() {
                assert_closes(&books, direction, lost_on_links(direction, &before, &after));
                let counts = books.directions[direction].load;
                match load {
                    Load::Silent => assert_eq!((counts.expected, counts.sent), (0, 0)),
                    _ => assert!(counts.sent > 0 && counts.received > 0),
                }
                assert_eq!((counts.corrupted, counts.misrouted), (0, 0));
            }
            assert_eq!(books.duration, duration);
        }
    }
}

#[test]
fn the_load_is_what_was_asked_for() {
    let (_namespace, mut station, _) = looped();
    let pps = 10_000.0;
    let load = [Load::Paced(pps), Load::Silent];
    // On a machine that others use too, one undisturbed step in a few is enough to prove it.
    let sent = (0..5).find_map(|_| {
        let books = station.step(order(load, Duration::from_secs(2)), |_| {}).unwrap();
        let direction = &books.directions[0];
        assert_eq!(direction.load.expected, 20_000);
        let whole = direction.load.sent == 20_000 && direction.probes.sent == 200;
        whole.then_some(direction.clone())
    });
    let direction = sent.expect("20000 frames within 2 s in one of five steps");
    let latency = direction.latency.latency().expect("probes came back");
    assert_eq!(latency.samples, direction.probes.received);
    assert!(latency.min_us > 0.0 && latency.p50_us < 1e6);
    // The mix: the bytes on the wire are those of the table.
    let average = direction.load_bytes as f64 / direction.load.received as f64;
    let wanted = lab::traffic::Mix::from_names(&["imix1"]).unwrap().average_bytes();
    assert!((average / wanted - 1.0).abs() < 0.01, "{average} {wanted}");
}

#[test]
fn flat_out_is_faster_than_any_pace_and_closes() {
    let (_namespace, mut station, _) = looped();
    let before = station.counters().unwrap();
    let load = [Load::FlatOut, Load::FlatOut];
    let books = station.step(order(load, Duration::from_millis(500)), |_| {}).unwrap();
    let after = station.counters().unwrap();
    for direction in [0, 1] {
        assert_closes(&books, direction, lost_on_links(direction, &before, &after));
        let counts = books.directions[direction].load;
        assert_eq!(counts.sent, counts.expected);
        assert!(counts.sent > 5_000, "{counts:?}");
    }
}

#[test]
fn a_step_reports_while_it_runs_and_its_sums_agree() {
    let (_namespace, mut station, _) = looped();
    let mut snapshots = Vec::new();
    let load = [Load::Paced(5_000.0), Load::Silent];
    let books = station
        .step(order(load, Duration::from_secs(1)), |snapshot| snapshots.push(snapshot.clone()))
        .unwrap();
    // Four a second, and a late turn may merge the last ones.
    assert!((1..=5).contains(&snapshots.len()), "{}", snapshots.len());
    let last = &snapshots[snapshots.len() - 1];
    assert_eq!(last.elapsed, Duration::from_secs(1));
    assert!(snapshots.iter().any(|snapshot| snapshot.latency_us.is_some()));
    for pair in snapshots.windows(2) {
        assert!(pair[0].elapsed < pair[1].elapsed);
        assert!(pair[0].directions[0].sent <= pair[1].directions[0].sent);
    }
    let direction = &books.directions[0];
    assert!(last.directions[0].arrived.load.received <= direction.load.received);
    assert_eq!(direction.steady.frames, last.directions[0].arrived.load.received);
}

#[test]
fn a_stopped_step_ends_early_and_still_closes() {
    let (_namespace, mut station, stop) = looped();
    let before = station.counters().unwrap();
    let started = Instant::now();
    let load = [Load::Paced(10_000.0), Load::Silent];
    let books = station
        .step(order(load, Duration::from_secs(600)), |_| stop.store(true, Ordering::Relaxed))
        .unwrap();
    let after = station.counters().unwrap();
    assert!(books.interrupted && books.duration < Duration::from_secs(300));
    assert!(started.elapsed() < Duration::from_secs(300));
    assert_closes(&books, 0, lost_on_links(0, &before, &after));
    let counts = books.directions[0].load;
    assert!(counts.sent > 0 && counts.expected < 10_000 * 300);
}
