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
//! port's ring to the port's ring, 64 packets at a time, with two readings of the time stamp counter
//! per turn (below 1 cycle per packet). **What is not:** moving frames between the rings, writing
//! the next headers, and the turn of the other side; where sealing is measured there is no other
//! side. What the other side leaves in the caches is not to be helped; where opening alone is measured
//! it has but one key for all tunnels, so that it is less than half of what it would be. The payload was
//! last touched on the same core, so it is in the second level cache, as a packet is that the kernel just
//! copied. Consecutive packets use different tunnels, in a fixed random order over all of them or one
//! after the other ([`Order`]).
//!
//! All SAs: AES-256-GCM, extended sequence numbers, window of 64, IPv4 in IPv4. Nothing here
//! prints or judges.

mod cipher;
#[cfg(test)]
mod contest;
pub(crate) mod gateways;
pub(crate) mod headers;
mod selection;

use crypto::Engine;
use wire::esp;
use wire::ethernet::HEADER_LEN;
use xsk::{Frame, MemoryEnd, Pool, Umem};

use crate::batch::BATCH_PACKETS;
use crate::bundles::BUNDLES_MAX;
use crate::cpu::cycles;
use crate::cycles::hz;
use crate::laps::{Stage, StageCycles};
use crate::policy::Direction;
use crate::ruler::{RulerError, worker_on_memory};
use crate::verdict::Verdict;
use crate::view::{Publisher, View};
use crate::worker::Worker;

pub use cipher::CipherBench;
pub(crate) use cipher::plaintext_len;
use gateways::Keys;
pub use gateways::lead_to_vrfs;
pub use selection::Selection;

/// The smallest inner packet: IPv4 and UDP headers.
pub const SIZE_MIN: usize = 28;

/// The smallest one of IPv6.
pub(crate) const SIZE_MIN_V6: usize = 48;

/// The largest inner packet: what a 2048-byte chunk holds after headroom, tunnel and link headers.
pub const SIZE_MAX: usize = 1700;

/// Bytes of a frame that the source writes: Ethernet, IPv4 and UDP headers.
pub(crate) const HEADERS_LEN: usize = HEADER_LEN + SIZE_MIN;
/// The same of IPv6.
pub(crate) const HEADERS_V6_LEN: usize = HEADER_LEN + SIZE_MIN_V6;

/// Of so many packets one is another, or is changed on its way, where some are.
const SELDOM: usize = 16;

/// Frames of each worker's pool: a batch in each of three rings, and one in hand.
const POOL_FRAMES: usize = 4 * BATCH_PACKETS;

/// Bytes of a frame's chunk.
pub(crate) const CHUNK: usize = 2048;

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

/// Which tunnel the next packet uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Any other, in an order that was drawn once: what a gateway of many peers meets.
    Random,
    /// The next one by number, as packet generators count: a processor sees where that leads.
    Turns,
}

impl Order {
    /// Both.
    pub const ALL: [Order; 2] = [Order::Random, Order::Turns];

    /// The name used on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Order::Random => "random",
            Order::Turns => "turns",
        }
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Packets.
    pub packets: u64,
    /// Bytes of the inner IP packets.
    pub bytes: u64,
    /// Time in the measured part, in cycles of the time stamp counter.
    pub cycles: u64,
}

impl Sample {
    /// Cycles of the time stamp counter per packet.
    pub fn cycles_per_packet(&self) -> f64 {
        self.cycles as f64 / self.packets.max(1) as f64
    }

    /// Nanoseconds per packet.
    pub fn ns_per_packet(&self) -> f64 {
        self.cycles_per_packet() * 1e9 / hz()
    }

    /// Gigabits of inner IP packets per second.
    pub fn gbps(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e9 * hz() / self.cycles.max(1) as f64
    }
}

/// The path, ready to be measured.
pub struct PathBench {
    west: Side,
    east: Side,
    selection: Selection,
    measured: Measured,
    sizes: Vec<usize>,
    /// Tunnels in the order in which packets use them.
    order: Vec<u32>,
    next: usize,
    frames: Vec<Frame>,
    /// Whether policies change as they are to.
    changing: bool,
    /// Measured cycles since the policies were changed last.
    unchanged: u64,
    /// How often they were.
    changes: u32,
}

struct Side {
    worker: Worker,
    red: MemoryEnd,
    black: MemoryEnd,
    publisher: Publisher,
}

impl PathBench {
    /// Builds two gateways with `tunnels` tunnels between them, which packets enter by
    /// `selection`, for what is to be `measured`. `sizes` are the lengths of the inner IP packets, in
    /// the order in which they are sent, over and over.
    ///
    /// # Errors
    /// If a number is out of bounds, memory or the engine cannot be had, or nothing can be opened
    /// because nothing is sealed.
    pub fn new(
        engine: Engine,
        selection: Selection,
        tunnels: usize,
        measured: Measured,
        sizes: &[usize],
    ) -> Result<PathBench, RulerError> {
        check_tunnels(tunnels)?;
        if selection == Selection::Plain && measured != Measured::Seal {
            let message = "a path in clear has nothing to open: only `seal` can be measured";
            return Err(RulerError::Request(message.to_owned()));
        }
        let keys = if measured == Measured::Open { Keys::Alike } else { Keys::Apart };
        let west_view = gateways::west_view(selection, engine, tunnels, keys)?;
        let east_view = gateways::east_view(selection, engine, tunnels, keys)?;
        let umem = Umem::new(2 * POOL_FRAMES, CHUNK, true)?;
        let west = Side::new(umem.pool(0..POOL_FRAMES), west_view)?;
        let east = Side::new(umem.pool(POOL_FRAMES..2 * POOL_FRAMES), east_view)?;
        let mut bench = PathBench {
            west,
            east,
            selection,
            measured,
            sizes: Vec::new(),
            order: gateways::random_order(tunnels),
            next: 0,
            frames: Vec::with_capacity(BATCH_PACKETS),
            changing: true,
            unchanged: 0,
            changes: 0,
        };
        for _ in 0..BATCH_PACKETS {
            bench.frames.extend(bench.west.worker.pool_mut().take());
        }
        bench.set_sizes(sizes)?;
        Ok(bench)
    }

    /// Measures packets of other lengths on the same gateways from now on.
    ///
    /// # Errors
    /// If a size is out of bounds.
    pub fn set_sizes(&mut self, sizes: &[usize]) -> Result<(), RulerError> {
        check_sizes_from(self.selection.size_min(), sizes)?;
        self.sizes = sizes.to_vec();
        Ok(())
    }

    /// Uses the tunnels in another order from now on; it begins in random order.
    pub fn set_order(&mut self, order: Order) {
        self.order = match order {
            Order::Random => gateways::random_order(self.order.len()),
            Order::Turns => (0..self.order.len() as u32).collect(),
        };
    }

    /// Lets the policies that are to change ([`Selection::PolicyChanging`]) change from now on, or not.
    pub fn set_changing(&mut self, changing: bool) {
        self.changing = changing;
    }

    /// Sends `rounds` batches of 64 packets along the path.
    ///
    /// # Errors
    /// If a packet was lost on the way.
    pub fn run(&mut self, rounds: usize) -> Result<Sample, RulerError> {
        let mut sample = Sample::default();
        for _ in 0..rounds {
            sample.bytes += self.write_batch();
            sample.packets += BATCH_PACKETS as u64;
            self.west.red.inject_all(&mut self.frames);
            let seal = timed_turn(&mut self.west.worker);
            self.west.black.collect(&mut self.frames, BATCH_PACKETS);
            self.check(&self.west, Verdict::Sealed)?;
            let mut cycles = seal;
            if self.measured != Measured::Seal {
                self.hand_over();
                let open = timed_turn(&mut self.east.worker);
                self.collect_opened()?;
                cycles = if self.measured == Measured::Open { open } else { seal + open };
            }
            sample.cycles += cycles;
            self.change_policies(cycles);
        }
        Ok(sample)
    }

    /// Sends as [`run`](PathBench::run) does, and says which stages of the measured turns the cycles
    /// went to: cycles per packet, in the order of a turn.
    ///
    /// # Errors
    /// If a packet was lost on the way.
    pub fn stages(&mut self, rounds: usize) -> Result<[(Stage, f64); Stage::COUNT], RulerError> {
        let (mut sealing, mut opening) = (StageCycles::default(), StageCycles::default());
        for _ in 0..rounds {
            self.write_batch();
            self.west.red.inject_all(&mut self.frames);
            self.west.worker.turn_timed(&mut sealing);
            self.west.black.collect(&mut self.frames, BATCH_PACKETS);
            self.check(&self.west, Verdict::Sealed)?;
            if self.measured != Measured::Seal {
                self.hand_over();
                self.east.worker.turn_timed(&mut opening);
                self.collect_opened()?;
            }
        }
        let packets = (rounds * BATCH_PACKETS).max(1) as f64;
        Ok(Stage::ALL.map(|stage| {
            let cycles = match self.measured {
                Measured::Seal => sealing.of(stage),
                Measured::Open => opening.of(stage),
                Measured::Both => sealing.of(stage) + opening.of(stage),
            };
            (stage, cycles as f64 / packets)
        }))
    }

    /// Changes the policies of both gateways if a millisecond was measured since they were changed last.
    fn change_policies(&mut self, cycles: u64) {
        self.unchanged += cycles;
        let is_due = self.unchanged >= (hz() / 1e3) as u64;
        if !(self.changing && is_due && self.selection == Selection::PolicyChanging) {
            return;
        }
        self.unchanged = 0;
        let directions = [Direction::Out, Direction::Forward];
        for (side, direction) in [&mut self.west, &mut self.east].into_iter().zip(directions) {
            let mut view = side.publisher.reader().enter().clone();
            gateways::change(&mut view, direction, self.changes);
            side.publisher.publish(view);
        }
        self.changes += 1;
    }

    /// What the west sent, to the east.
    fn hand_over(&mut self) {
        let (change, every): (fn(&mut [u8]), _) = match self.selection {
            Selection::P2mp => (headers::lead_to_hub, 1),
            Selection::PolicyMarked => (headers::mark, SELDOM),
            Selection::PolicyStray => (headers::lead_astray, SELDOM),
            _ => (|_| (), BATCH_PACKETS),
        };
        self.frames.iter_mut().step_by(every).for_each(|frame| change(frame.bytes_mut()));
        self.east.black.inject_all(&mut self.frames);
    }

    /// What the east has opened.
    fn collect_opened(&mut self) -> Result<(), RulerError> {
        let astray =
            if self.selection == Selection::PolicyStray { BATCH_PACKETS / SELDOM } else { 0 };
        self.east.red.collect(&mut self.frames, BATCH_PACKETS);
        if astray != 0 && self.frames.len() == BATCH_PACKETS - astray {
            // Those that were dropped are in its pool.
            self.frames.extend((0..astray).filter_map(|_| self.east.worker.pool_mut().take()));
        }
        self.check(&self.east, Verdict::Opened)
    }

    /// Writes the headers of the next batch; its bytes without link headers.
    fn write_batch(&mut self) -> u64 {
        let mut bytes = 0;
        for frame in &mut self.frames {
            let size = self.sizes[self.next % self.sizes.len()];
            let tunnel = self.order[self.next % self.order.len()] as usize;
            // Which pass over the tunnels this is.
            let number = self.next / self.order.len();
            // Each tunnel's next one is of the other kind, and each one that comes behind another, but at the end of a pass.
            let turn = self.next + if self.order.len().is_multiple_of(2) { number } else { 0 };
            let is_second = !turn.is_multiple_of(2);
            let is_seldom = self.next % SELDOM == SELDOM / 2;
            self.next += 1;
            frame.clear();
            // Whatever the chunk holds is payload enough; `check_sizes` saw that it fits.
            if let Some(room) = frame.push_back(HEADER_LEN + size) {
                headers::write(room, self.selection, tunnel, size, number, is_second, is_seldom);
            }
            bytes += size as u64;
        }
        bytes
    }

    fn check(&self, side: &Side, success: Verdict) -> Result<(), RulerError> {
        if self.frames.len() == BATCH_PACKETS {
            return Ok(());
        }
        let counters = side.worker.counters().snapshot();
        let failed = |v: &&Verdict| **v != success && counters.of(**v) != 0;
        Err(RulerError::Lost {
            sent: BATCH_PACKETS as u64,
            lost: (BATCH_PACKETS - self.frames.len()) as u64,
            verdict: Verdict::ALL.iter().find(failed).map_or("none", |v| v.name()),
        })
    }
}

/// A turn, in cycles. Never part of another function: by this one's name an instruction counter
/// tells the turns from everything around them.
#[inline(never)]
fn timed_turn(worker: &mut Worker) -> u64 {
    let start = cycles();
    worker.turn();
    cycles().wrapping_sub(start)
}

impl Side {
    fn new(pool: Pool, view: View) -> Result<Side, RulerError> {
        let publisher = Publisher::new(view);
        let (worker, [red, black]) = worker_on_memory(0, pool, publisher.reader(), BATCH_PACKETS)?;
        Ok(Side { worker, red, black, publisher })
    }
}

fn check_tunnels(tunnels: usize) -> Result<(), RulerError> {
    if (1..=BUNDLES_MAX as usize).contains(&tunnels) {
        return Ok(());
    }
    Err(RulerError::Request(format!("between 1 and {BUNDLES_MAX} tunnels, not {tunnels}")))
}

pub(crate) fn check_sizes(sizes: &[usize]) -> Result<(), RulerError> {
    check_sizes_from(SIZE_MIN, sizes)
}

/// Inner packets of at least so many bytes, and of no more than there is room for.
fn check_sizes_from(size_min: usize, sizes: &[usize]) -> Result<(), RulerError> {
    match sizes.iter().find(|size| !(size_min..=SIZE_MAX).contains(*size)) {
        None if sizes.is_empty() => Err(RulerError::Request("no packet size was given".to_owned())),
        None => Ok(()),
        Some(size) => Err(RulerError::Request(format!(
            "inner IP packets of {size_min} to {SIZE_MAX} bytes can be measured, not {size}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench(tunnels: usize, measured: Measured, sizes: &[usize]) -> Result<PathBench, RulerError> {
        PathBench::new(Engine::AwsLc, Selection::Policy, tunnels, measured, sizes)
    }

    #[test]
    fn every_packet_comes_through_and_is_counted_once() {
        for measured in [Measured::Seal, Measured::Open, Measured::Both] {
            let sizes = [64, 576, 1428, SIZE_MIN, SIZE_MAX];
            let mut bench = bench(7, measured, &sizes).unwrap();
            let sample = bench.run(35).unwrap();
            assert_eq!(sample.packets, 35 * 64);
            // 35 batches are a whole number of passes over five sizes.
            let per_pass: u64 = sizes.iter().map(|size| *size as u64).sum();
            assert_eq!(sample.bytes, per_pass * 35 * 64 / 5);
            assert!(sample.cycles > 0 && sample.ns_per_packet() > 0.0 && sample.gbps() > 0.0);
            let west = bench.west.worker.counters().snapshot();
            assert_eq!((west.of(Verdict::Sealed), west.decided()), (35 * 64, 35 * 64));
            let opened = if measured == Measured::Seal { 0 } else { 35 * 64 };
            let east = bench.east.worker.counters().snapshot();
            assert_eq!((east.of(Verdict::Opened), east.decided()), (opened, opened));
        }
    }

    #[test]
    fn every_selection_brings_packets_through() {
        let bench =
            |selection, measured| PathBench::new(Engine::AwsLc, selection, 5, measured, &[100]);
        for selection in Selection::ALL.into_iter().filter(|one| *one != Selection::Plain) {
            let mut bench = bench(selection, Measured::Both).unwrap();
            assert_eq!(bench.run(3).unwrap().packets, 3 * 64);
            let ends = bench.east.worker.counters().snapshot();
            let ends = [Verdict::Opened, Verdict::Forwarded].map(|verdict| ends.of(verdict));
            let in_clear = if selection.is_split() { 3 * 32 } else { 0 };
            let astray = if selection == Selection::PolicyStray { 3 * 4 } else { 0 };
            assert_eq!(ends, [3 * 64 - in_clear - astray, in_clear], "{selection:?}");
        }
        let mut plain = bench(Selection::Plain, Measured::Seal).unwrap();
        plain.run(3).unwrap();
        let forwarded = plain.west.worker.counters().snapshot().of(Verdict::Forwarded);
        assert_eq!(forwarded, 3 * 64);
        assert!(bench(Selection::Plain, Measured::Both).is_err());
    }

    #[test]
    fn consecutive_packets_use_different_tunnels_evenly() {
        let mut bench = bench(64, Measured::Both, &[28]).unwrap();
        bench.set_sizes(&[100, 200, 300]).unwrap();
        assert!(bench.set_sizes(&[]).is_err());
        bench.run(6).unwrap();
        for tunnel in 0..64 {
            let mut reader = bench.east.publisher.reader();
            let sad = &reader.enter().sad;
            let sa = sad.get(gateways::SPI_FIRST + tunnel, gateways::EAST.into()).unwrap();
            assert_eq!(sa.stats().usage.packets, 6);
        }
        let drawn = bench.order.clone();
        assert!(!drawn.is_sorted());
        bench.set_order(Order::Turns);
        assert!(bench.order.iter().copied().eq(0..64));
        bench.set_order(Order::Random);
        assert_eq!(bench.order, drawn);
        bench.order.sort_unstable();
        assert!(bench.order.iter().copied().eq(0..64));
    }

    #[test]
    fn stages_are_told_of_whole_turns() {
        for measured in [Measured::Seal, Measured::Open, Measured::Both] {
            let mut bench = bench(3, measured, &[100]).unwrap();
            let stages = bench.stages(4).unwrap();
            assert!(stages.iter().map(|(stage, _)| *stage).eq(Stage::ALL));
            assert!(stages.iter().map(|(_, cycles)| cycles).sum::<f64>() > 0.0);
            let sealed = bench.west.worker.counters().snapshot().of(Verdict::Sealed);
            let opened = bench.east.worker.counters().snapshot().of(Verdict::Opened);
            assert_eq!((sealed, opened), (256, if measured == Measured::Seal { 0 } else { 256 }));
        }
    }

    #[test]
    fn the_bare_cipher_runs_on_the_same_bytes() {
        for (keys, measured) in [(1, Measured::Both), (7, Measured::Open), (100, Measured::Seal)] {
            let mut bench =
                CipherBench::new(Engine::AwsLc, keys, measured, &[64, 1428, 576]).unwrap();
            let sample = bench.run(3);
            // 3 batches are 64 passes over three sizes.
            assert_eq!((sample.packets, sample.bytes), (3 * 64, 64 * (64 + 1428 + 576)));
            assert!(sample.cycles > 0);
            assert_eq!(bench.fetching().run(3).packets, 3 * 64);
        }
    }

    #[test]
    fn impossible_requests_are_refused() {
        let bench = |tunnels, sizes: &[usize]| {
            bench(tunnels, Measured::Seal, sizes).err().map(|e| e.to_string())
        };
        assert!(bench(0, &[64]).unwrap().contains("tunnels"));
        assert!(bench(1, &[]).unwrap().contains("no packet size"));
        assert!(bench(1, &[27]).unwrap().contains("28 to 1700 bytes"));
        assert!(bench(1, &[64, 1701]).unwrap().contains("not 1701"));
        assert!(CipherBench::new(Engine::AwsLc, 1, Measured::Seal, &[1]).is_err());
    }
}
