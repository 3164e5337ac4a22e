//! A ruler for many cores: the real loop on memory ports, on as many threads as there are workers, with
//! every packet checked behind it.
//!
//! ```text
//!   feed ─► rings ─► workers, one thread each ─► rings ─► a receiver that opens with a window of 64
//!   (before the clock runs)   (timed)                      (after; order, number, count)
//! ```
//!
//! A round is a fixed number of packets, all in the rings before the clock runs: 8 MiB of them for each
//! worker, more than a second level cache holds, so that a worker finds them where a NIC would have put
//! them, however many workers there are. **What is counted:** from the moment all threads are ready
//! until the last one has sent its last packet. **What is checked, of every packet:** that it left with the
//! next number of its tunnel, that a receiver with a window of 64 accepts it, and that what it carried
//! comes out in the order in which it went in. Nothing here prints or judges.

mod ceiling;
mod feed;
mod model;
mod stages;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crypto::Engine;
use rustix::thread::{CpuSet, sched_setaffinity};
use xsk::{MemoryEnd, Pool};

use crate::clock::Clock;
use crate::crew::{Lending, Member, crew};
use crate::ruler::path::Measured;
use crate::ruler::{RulerError, worker_on_memory};
use crate::verdict::{Outcome, Verdict};
use crate::view::{Publisher, View};
use crate::worker::Worker;

pub use ceiling::Ceiling;
use feed::{Feed, Way};
pub use model::{Costs, packets_per_second};
pub use stages::StageCosts;

/// Packets of a round, for each worker that receives. With chunks of 2048 bytes they are 8 MiB.
pub const ROUND_PACKETS: usize = 4096;

/// What a round took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoresSample {
    /// Packets.
    pub packets: u64,
    /// Bytes of the inner IP packets.
    pub bytes: u64,
    /// Time of the slowest worker.
    pub elapsed_ns: u64,
}

impl CoresSample {
    /// Nanoseconds per packet, of all workers together.
    pub fn ns_per_packet(&self) -> f64 {
        self.elapsed_ns as f64 / self.packets.max(1) as f64
    }

    /// Gigabits of inner IP packets per second.
    pub fn gbps(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.elapsed_ns.max(1) as f64
    }
}

/// What the packets belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// So many tunnels, dealt out evenly among the workers: each worker receives its own.
    Many(usize),
    /// One tunnel, all of it received by one worker. The others help.
    Fat,
}

/// Workers with their ports, and whoever feeds and checks them.
pub struct CoresBench {
    workers: Vec<Lane>,
    feed: Feed,
    way: Way,
    load: Load,
    publisher: Publisher,
}

/// A worker and the far ends of its ports.
struct Lane {
    worker: Worker,
    red: MemoryEnd,
    black: MemoryEnd,
}

impl Lane {
    fn new(
        id: usize,
        pool: Pool,
        publisher: &Publisher,
        member: Member,
    ) -> Result<Lane, RulerError> {
        let (mut worker, [red, black]) =
            worker_on_memory(id, pool, publisher.reader(), ROUND_PACKETS)?;
        worker.join(member);
        Ok(Lane { worker, red, black })
    }
}

impl CoresBench {
    /// Builds `workers` workers that seal or open. `sizes` are the lengths of the inner IP packets, in the
    /// order in which they are sent, over and over.
    ///
    /// # Errors
    /// If a number is out of bounds, both directions are wanted, or memory or the engine cannot be had.
    pub fn new(
        engine: Engine,
        workers: usize,
        load: Load,
        measured: Measured,
        sizes: &[usize],
    ) -> Result<CoresBench, RulerError> {
        let way = match measured {
            Measured::Seal => Way::Seal,
            Measured::Open => Way::Open,
            Measured::Both => {
                return Err(RulerError::Request("cores seal or open, not both at once".to_owned()));
            }
        };
        if !(1..=64).contains(&workers) {
            return Err(RulerError::Request(format!("between 1 and 64 workers, not {workers}")));
        }
        let receiving = if load == Load::Fat { 1 } else { workers };
        let (feed, mut view) = Feed::new(engine, receiving, load, way, sizes)?;
        let publisher = Publisher::new(std::mem::take::<View>(&mut view));
        let lending = match load {
            Load::Fat if workers > 1 => Lending::Always,
            _ => Lending::Never,
        };
        let clock = Clock;
        let mut lanes = Vec::new();
        for (id, mut member) in crew(workers, clock)?.into_iter().enumerate() {
            // Whatever the machine does to the threads meanwhile: a round loses nothing.
            member.set_pause(Duration::MAX);
            member.set_lending(if id == 0 || load != Load::Fat { lending } else { Lending::Never });
            lanes.push(Lane::new(id, feed.pool(id), &publisher, member)?);
        }
        Ok(CoresBench { workers: lanes, feed, way, load, publisher })
    }

    /// One round, on as many threads as there are workers, bound to CPUs 0, 1, … where those exist.
    ///
    /// # Errors
    /// If a packet was lost, came twice, or came out of its order.
    pub fn run(&mut self) -> Result<CoresSample, RulerError> {
        let bytes = self.feed.fill(&mut self.workers, self.way)?;
        let receiving = self.receiving();
        let workers: Vec<&mut Worker> =
            self.workers.iter_mut().map(|lane| &mut lane.worker).collect();
        let elapsed_ns = race(workers, receiving);
        self.feed.check(&mut self.workers, self.way, ROUND_PACKETS)?;
        Ok(CoresSample { packets: (receiving * ROUND_PACKETS) as u64, bytes, elapsed_ns })
    }

    /// Publishes the same view once more, as control does when something changes.
    pub fn publish(&mut self) {
        let view = self.publisher.reader().enter().clone();
        self.publisher.publish(view);
    }

    fn receiving(&self) -> usize {
        if self.load == Load::Fat { 1 } else { self.workers.len() }
    }
}

/// Runs the workers until the first `receiving` of them have sent a round of packets each; how long that
/// took the slowest.
fn race(workers: Vec<&mut Worker>, receiving: usize) -> u64 {
    let (ready, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let count = workers.len();
    let run = |worker: &mut Worker| {
        pin(worker.id());
        ready.fetch_add(1, SeqCst);
        while ready.load(SeqCst) < count {
            std::hint::spin_loop();
        }
        let began = Instant::now();
        if worker.id() < receiving {
            let mut received = 0;
            while received < ROUND_PACKETS || worker.waiting() != 0 {
                received += worker.turn();
            }
            done.fetch_add(1, SeqCst);
        }
        let ended = Instant::now();
        while done.load(SeqCst) < receiving {
            worker.turn();
        }
        (began, ended)
    };
    let run = &run;
    let times: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let threads: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(move || run(worker))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let first = times.iter().map(|(began, _)| *began).min();
    let last = times.iter().take(receiving).map(|(_, ended)| *ended).max();
    first.zip(last).map_or(0, |(first, last)| last.duration_since(first).as_nanos() as u64)
}

/// Binds the calling thread to a CPU, if there is such a one.
fn pin(cpu: usize) {
    if cpu < thread::available_parallelism().map_or(1, usize::from) {
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        // Where it may not be bound, it is only slower.
        let _ = sched_setaffinity(None, &cpus);
    }
}

/// The error of a round in which packets were lost.
fn lost(lanes: &[Lane], sent: usize, received: usize) -> RulerError {
    let cause = lanes.iter().find_map(|lane| {
        let counters = lane.worker.counters().snapshot();
        let is_cause = |v: &&Verdict| v.outcome() == Outcome::Dropped && counters.of(**v) != 0;
        Verdict::ALL.iter().find(is_cause).map(|verdict| verdict.name())
    });
    RulerError::Lost {
        sent: sent as u64,
        lost: sent.saturating_sub(received) as u64,
        verdict: cause.unwrap_or("none"),
    }
}

#[cfg(test)]
mod tests;
