//! Tests of workers that come to an SA which another one has claimed: nothing is lost, nothing leaves
//! early, and all of it in order.

use std::sync::Arc;

use crypto::Engine;

use super::{BATCH_PACKETS, Measured, PathBench, Selection};
use crate::claim::{Access, access};
use crate::sa::Sa;
use crate::seat::{self, Seat};

/// Two tunnels, and packets that their lengths tell apart: each longer than the one before.
fn bench() -> PathBench {
    let sizes: Vec<usize> = (0..BATCH_PACKETS).map(|n| 100 + 4 * n).collect();
    PathBench::new(Engine::AwsLc, Selection::Policy, 2, Measured::Both, &sizes).unwrap()
}

/// Another worker, in a turn in which it has the SA for itself.
fn owner(sa: &Sa) -> Seat {
    let mut seat = Seat::take();
    let turn = seat.begin_turn();
    let claim = sa.words().claim();
    assert_eq!(access(claim, seat.number(), turn, seat::turn_of), Access::Alone);
    seat
}

/// What came out: the SPI's last byte, the sequence number, and the length.
fn sealed(bench: &mut PathBench) -> Vec<(u8, u32, usize)> {
    let mut frames = Vec::new();
    bench.west.black.collect(&mut frames, 2 * BATCH_PACKETS);
    let read = |bytes: &[u8]| {
        let esp = &bytes[14 + 20..];
        (esp[3], u32::from_be_bytes(esp[4..8].try_into().unwrap()), bytes.len())
    };
    let read = frames.iter().map(|frame| read(frame.bytes())).collect();
    bench.frames.append(&mut frames);
    read
}

#[test]
fn packets_to_be_sealed_wait_for_the_end_of_the_owners_turn() {
    let mut bench = bench();
    let sa: Arc<Sa> = bench.west.publisher.reader().enter().bundles.get(0).unwrap().clone();
    let other = owner(&sa);
    assert!(sa.take_run(5, true).is_ok());
    bench.write_batch();
    bench.west.red.inject_all(&mut bench.frames);

    bench.west.worker.turn();
    let first = sealed(&mut bench);
    assert!(first.iter().all(|(spi, _, _)| *spi == 1), "the other tunnel's leave");
    let waiting = BATCH_PACKETS - first.len();
    assert!(waiting > 16 && bench.west.worker.waiting() == waiting);
    bench.west.worker.turn();
    assert!(sealed(&mut bench).is_empty(), "its turn goes on");
    assert!(sa.take_run(2, true).is_ok());

    drop(other);
    bench.west.worker.turn();
    let late = sealed(&mut bench);
    assert_eq!((late.len(), bench.west.worker.waiting()), (waiting, 0));
    for (at, (spi, sequence, _)) in late.iter().enumerate() {
        assert_eq!((*spi, *sequence), (0, 8 + at as u32), "after what the owner took");
    }
    for one in [&first, &late] {
        assert!(one.is_sorted_by_key(|(_, sequence, _)| *sequence), "numbers rise");
        assert!(one.is_sorted_by_key(|(_, _, len)| *len), "and packets are as they came");
    }
    let east = bench.west.worker.counters().snapshot();
    assert_eq!(east.decided(), BATCH_PACKETS as u64);
}

#[test]
fn packets_to_be_opened_wait_for_the_end_of_the_owners_turn() {
    let mut bench = bench();
    bench.write_batch();
    bench.west.red.inject_all(&mut bench.frames);
    bench.west.worker.turn();
    bench.west.black.collect(&mut bench.frames, BATCH_PACKETS);
    bench.east.black.inject_all(&mut bench.frames);

    let spi = super::gateways::SPI_FIRST;
    let mut reader = bench.east.publisher.reader();
    let sa: Arc<Sa> = reader.enter().sad.get(spi, super::gateways::EAST.into()).unwrap().clone();
    let other = owner(&sa);
    bench.east.worker.turn();
    let mut frames = Vec::new();
    let first = bench.east.red.collect(&mut frames, 2 * BATCH_PACKETS);
    assert_eq!(bench.east.worker.waiting(), BATCH_PACKETS - first);
    assert_eq!(sa.stats().usage.packets, 0);
    bench.east.worker.turn();
    assert_eq!(bench.east.red.collect(&mut frames, 2 * BATCH_PACKETS), 0);

    drop(other);
    bench.east.worker.turn();
    assert_eq!(bench.east.red.collect(&mut frames, 2 * BATCH_PACKETS), BATCH_PACKETS - first);
    assert!(frames.is_sorted_by_key(|frame| frame.len()), "in the order in which they came");
    let east = bench.east.worker.counters().snapshot();
    assert_eq!((east.received, east.decided()), (BATCH_PACKETS as u64, BATCH_PACKETS as u64));
    assert_eq!(sa.stats().replayed, 0);
}
