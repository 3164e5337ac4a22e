//! A ruler for the path itself: the real loop on memory ports, without a kernel, against the bare
//! cipher on the same packets.
//!
//! ```text
//!        west worker (seals)             east worker (opens)
//!  red end ──► turn ──► black end ──► black end ──► turn ──► red end ─┐
//!     ▲              frames move, nothing is copied                   │
//!     └───────── the first 42 bytes are written afresh ◄──────────────┘
//! ```
//!
//! **What is counted:** the whole of [`Worker::turn`] of the measured side or sides, from the
//! port's ring to the port's ring, 64 packets at a time, with two readings of the clock per turn
//! (about 1 ns per packet). **What is not:** moving frames between the rings, writing the next
//! headers, and the turn of the other side. The payload was last touched by the other side on the
//! same core, so it is in the second level cache, as a packet is that the kernel just copied.
//! Consecutive packets use different tunnels, in a fixed random order over all of them.
//!
//! All SAs: AES-256-GCM, extended sequence numbers, window of 128, IPv4 in IPv4. Nothing here
//! prints or judges.

mod cipher;
mod gateways;

use std::sync::Arc;
use std::time::Instant;

use crypto::{Engine, Key};
use wire::esp;
use wire::ethernet::HEADER_LEN;
use xsk::{Frame, MemoryEnd, MemoryPort, Pool, Port, Umem};

use crate::batch::BATCH_PACKETS;
use crate::bundles::BUNDLES_MAX;
use crate::clock::Clock;
use crate::event;
use crate::verdict::Verdict;
use crate::view::{Publisher, View};
use crate::worker::{Worker, WorkerParts};

pub use cipher::CipherBench;

/// The smallest inner packet: IPv4 and UDP headers.
pub const SIZE_MIN: usize = 28;

/// The largest inner packet: what a 2048-byte chunk holds after headroom, tunnel and link headers.
pub const SIZE_MAX: usize = 1700;

/// Bytes of a frame that the source writes: Ethernet, IPv4 and UDP headers.
const HEADERS_LEN: usize = HEADER_LEN + SIZE_MIN;

/// Frames of each worker's pool: a batch in each of three rings, and one in hand.
const POOL_FRAMES: usize = 4 * BATCH_PACKETS;

/// Bytes of a frame's chunk.
const CHUNK: usize = 2048;

/// Padding, trailer and ICV, at most.
const TAIL_MAX: usize = esp::ALIGNMENT - 1 + esp::TRAILER_LEN + esp::ICV_LEN;

const _: () = assert!(HEADER_LEN + SIZE_MAX + TAIL_MAX <= CHUNK - xsk::HEADROOM);

/// Which work is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// From clear to ESP.
    Seal,
    /// From ESP to clear.
    Open,
    /// Both, one after the other, on each packet.
    Both,
}

/// Why a bench cannot run.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// The request makes no sense.
    #[error("{0}")]
    Request(String),
    /// There is no memory for the rings or the frames.
    #[error("packet memory: {0}")]
    Memory(#[from] std::io::Error),
    /// The engine gives no key.
    #[error("{0}")]
    Key(#[from] crypto::KeyError),
    /// A packet did not come out; the figure would be a lie.
    #[error("{lost} of {sent} packets were lost in the bench, the first by {verdict}")]
    Lost {
        /// Packets that went in.
        sent: u64,
        /// Packets that did not come out.
        lost: u64,
        /// The first verdict that was not a success.
        verdict: &'static str,
    },
}

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Packets.
    pub packets: u64,
    /// Bytes of the inner IP packets.
    pub bytes: u64,
    /// Time in the measured part.
    pub elapsed_ns: u64,
}

impl Sample {
    /// Nanoseconds per packet.
    pub fn ns_per_packet(&self) -> f64 {
        self.elapsed_ns as f64 / self.packets.max(1) as f64
    }

    /// Gigabits of inner IP packets per second.
    pub fn gbps(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.elapsed_ns.max(1) as f64
    }
}

/// The path, ready to be measured.
pub struct PathBench {
    west: Side,
    east: Side,
    measured: Measured,
    sizes: Vec<usize>,
    /// Tunnels in the order in which packets use them.
    order: Vec<u32>,
    next: usize,
    frames: Vec<Frame>,
}

struct Side {
    worker: Worker,
    red: MemoryEnd,
    black: MemoryEnd,
    _publisher: Publisher,
}

impl PathBench {
    /// Builds two gateways with `tunnels` tunnels between them. `sizes` are the lengths of the
    /// inner IP packets, in the order in which they are sent, over and over.
    ///
    /// # Errors
    /// If a number is out of bounds, or memory or the engine cannot be had.
    pub fn new(
        engine: Engine,
        tunnels: usize,
        measured: Measured,
        sizes: &[usize],
    ) -> Result<PathBench, PathError> {
        check_sizes(sizes)?;
        if !(1..=BUNDLES_MAX as usize).contains(&tunnels) {
            let message = format!("between 1 and {BUNDLES_MAX} tunnels, not {tunnels}");
            return Err(PathError::Request(message));
        }
        let keys = (0..tunnels).map(|n| Ok(Arc::new(Key::new(engine, &gateways::key_bytes(n))?)));
        let keys = keys.collect::<Result<Vec<_>, PathError>>()?;
        let umem = Umem::new(2 * POOL_FRAMES, CHUNK, true)?;
        let west = Side::new(umem.pool(0..POOL_FRAMES), gateways::west_view(&keys)?)?;
        let east = Side::new(umem.pool(POOL_FRAMES..2 * POOL_FRAMES), gateways::east_view(&keys)?)?;
        let mut bench = PathBench {
            west,
            east,
            measured,
            sizes: sizes.to_vec(),
            order: gateways::order(tunnels),
            next: 0,
            frames: Vec::with_capacity(BATCH_PACKETS),
        };
        for _ in 0..BATCH_PACKETS {
            bench.frames.extend(bench.west.worker.pool_mut().take());
        }
        Ok(bench)
    }

    /// Sends `rounds` batches of 64 packets along the path.
    ///
    /// # Errors
    /// If a packet was lost on the way.
    pub fn run(&mut self, rounds: usize) -> Result<Sample, PathError> {
        let mut sample = Sample::default();
        for _ in 0..rounds {
            sample.bytes += self.write_batch();
            sample.packets += BATCH_PACKETS as u64;
            self.west.red.inject_all(&mut self.frames);
            let seal_ns = timed_turn(&mut self.west.worker);
            self.west.black.collect(&mut self.frames, BATCH_PACKETS);
            self.check(&self.west, Verdict::Sealed)?;

            self.east.black.inject_all(&mut self.frames);
            let open_ns = timed_turn(&mut self.east.worker);
            self.east.red.collect(&mut self.frames, BATCH_PACKETS);
            self.check(&self.east, Verdict::Opened)?;
            sample.elapsed_ns += match self.measured {
                Measured::Seal => seal_ns,
                Measured::Open => open_ns,
                Measured::Both => seal_ns + open_ns,
            };
        }
        Ok(sample)
    }

    /// Writes the headers of the next batch; its bytes without link headers.
    fn write_batch(&mut self) -> u64 {
        let mut bytes = 0;
        for frame in &mut self.frames {
            let size = self.sizes[self.next % self.sizes.len()];
            let tunnel = self.order[self.next % self.order.len()] as usize;
            self.next += 1;
            frame.clear();
            // Whatever the chunk holds is payload enough; `check_sizes` saw that it fits.
            if let Some(room) = frame.push_back(HEADER_LEN + size) {
                room[..HEADERS_LEN].copy_from_slice(&gateways::headers(tunnel, size));
            }
            bytes += size as u64;
        }
        bytes
    }

    fn check(&self, side: &Side, success: Verdict) -> Result<(), PathError> {
        if self.frames.len() == BATCH_PACKETS {
            return Ok(());
        }
        let counters = side.worker.counters().snapshot();
        let failed = |v: &&Verdict| **v != success && counters.of(**v) != 0;
        Err(PathError::Lost {
            sent: BATCH_PACKETS as u64,
            lost: (BATCH_PACKETS - self.frames.len()) as u64,
            verdict: Verdict::ALL.iter().find(failed).map_or("none", |v| v.name()),
        })
    }
}

fn timed_turn(worker: &mut Worker) -> u64 {
    let start = Instant::now();
    worker.turn();
    start.elapsed().as_nanos() as u64
}

impl Side {
    fn new(pool: Pool, view: View) -> Result<Side, PathError> {
        let (red_port, red) = MemoryPort::pair(pool.umem(), BATCH_PACKETS as u32)?;
        let (black_port, black) = MemoryPort::pair(pool.umem(), BATCH_PACKETS as u32)?;
        let publisher = Publisher::new(view);
        let worker = Worker::new(WorkerParts {
            id: 0,
            cpu: None,
            ports: vec![Port::Memory(red_port), Port::Memory(black_port)],
            pool,
            reader: publisher.reader(),
            events: event::channel().0,
            clock: Clock::start(),
        });
        Ok(Side { worker, red, black, _publisher: publisher })
    }
}

fn check_sizes(sizes: &[usize]) -> Result<(), PathError> {
    match sizes.iter().find(|size| !(SIZE_MIN..=SIZE_MAX).contains(*size)) {
        None if sizes.is_empty() => Err(PathError::Request("no packet size was given".to_owned())),
        None => Ok(()),
        Some(size) => Err(PathError::Request(format!(
            "inner IP packets of {SIZE_MIN} to {SIZE_MAX} bytes can be measured, not {size}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_comes_through_and_is_counted_once() {
        for measured in [Measured::Seal, Measured::Open, Measured::Both] {
            let sizes = [64, 576, 1428, SIZE_MIN, SIZE_MAX];
            let mut bench = PathBench::new(Engine::AwsLc, 7, measured, &sizes).unwrap();
            let sample = bench.run(35).unwrap();
            assert_eq!(sample.packets, 35 * 64);
            // 35 batches are a whole number of passes over five sizes.
            let per_pass: u64 = sizes.iter().map(|size| *size as u64).sum();
            assert_eq!(sample.bytes, per_pass * 35 * 64 / 5);
            assert!(sample.elapsed_ns > 0 && sample.ns_per_packet() > 0.0 && sample.gbps() > 0.0);
            let east = bench.east.worker.counters().snapshot();
            assert_eq!((east.of(Verdict::Opened), east.decided()), (35 * 64, 35 * 64));
        }
    }

    #[test]
    fn consecutive_packets_use_different_tunnels_evenly() {
        let mut bench =
            PathBench::new(Engine::AwsLc, 64, Measured::Both, &[100, 200, 300]).unwrap();
        bench.run(6).unwrap();
        for tunnel in 0..64 {
            let mut reader = bench.east._publisher.reader();
            let sad = &reader.enter().sad;
            let sa = sad.get(gateways::SPI_FIRST + tunnel, gateways::EAST.into()).unwrap();
            assert_eq!(sa.stats().usage.packets, 6);
        }
        let mut order = bench.order.clone();
        assert!(!order.is_sorted());
        order.sort_unstable();
        assert!(order.into_iter().eq(0..64));
    }

    #[test]
    fn the_bare_cipher_runs_on_the_same_bytes() {
        let mut bench = CipherBench::new(Engine::AwsLc, Measured::Both, &[64, 1428, 576]).unwrap();
        let sample = bench.run(3);
        assert_eq!(sample.packets, 3 * 66);
        assert_eq!(sample.bytes, 3 * 22 * (64 + 1428 + 576));
        assert!(sample.elapsed_ns > 0);
    }

    #[test]
    fn impossible_requests_are_refused() {
        let bench = |tunnels, sizes: &[usize]| {
            PathBench::new(Engine::AwsLc, tunnels, Measured::Seal, sizes)
                .err()
                .map(|e| e.to_string())
        };
        assert!(bench(0, &[64]).unwrap().contains("tunnels"));
        assert!(bench(1, &[]).unwrap().contains("no packet size"));
        assert!(bench(1, &[27]).unwrap().contains("28 to 1700 bytes"));
        assert!(bench(1, &[64, 1701]).unwrap().contains("not 1701"));
        assert!(CipherBench::new(Engine::AwsLc, Measured::Seal, &[1]).is_err());
    }
}
