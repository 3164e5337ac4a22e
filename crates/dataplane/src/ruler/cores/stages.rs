//! What the parts of the ordered pipeline cost, each by itself.
//!
//! On one thread, the owner's turns and the helper's are timed apart: nothing moves between cores, so the
//! sum is the work itself. What moving costs is the rest, of a round on two threads in which the owner
//! leaves all of it to the helper.

use std::time::Instant;

use super::{CoresBench, Load, ROUND_PACKETS, race};
use crate::crew::Lending;
use crate::ruler::RulerError;
use crate::worker::Worker;

/// Nanoseconds per packet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageCosts {
    /// The owner: from the ring in to the ring, and from the ring to the ring out.
    pub serial_ns: f64,
    /// The helper: encrypting or decrypting in place.
    pub heavy_ns: f64,
}

impl CoresBench {
    /// A round in which the owner of the fat tunnel does the serial part alone and one helper the rest,
    /// in turn on the calling thread.
    ///
    /// # Errors
    /// Without a fat tunnel and a helper, or as [`CoresBench::run`].
    pub fn run_stages(&mut self) -> Result<StageCosts, RulerError> {
        self.owner()?.set_lending(Lending::Dispatch);
        self.feed.fill(&mut self.workers, self.way)?;
        let [owner, helper, ..] = &mut self.workers[..] else { return Err(no_pair()) };
        let (mut serial_ns, mut heavy_ns, mut received) = (0, 0, 0);
        while received < ROUND_PACKETS || owner.worker.waiting() != 0 {
            let began = Instant::now();
            received += owner.worker.turn();
            let between = Instant::now();
            helper.worker.turn();
            while helper.worker.has_worked() {
                helper.worker.turn();
            }
            serial_ns += between.duration_since(began).as_nanos();
            heavy_ns += between.elapsed().as_nanos();
        }
        self.feed.check(&mut self.workers, self.way, ROUND_PACKETS)?;
        self.owner()?.set_lending(Lending::Always);
        let per_packet = |ns: u128| ns as f64 / ROUND_PACKETS as f64;
        Ok(StageCosts { serial_ns: per_packet(serial_ns), heavy_ns: per_packet(heavy_ns) })
    }

    /// A round on as many threads as there are workers, in which the owner does the serial part alone:
    /// nanoseconds per packet. Where the heavy part is the longer one, that is what it costs a helper.
    ///
    /// # Errors
    /// As [`CoresBench::run_stages`].
    pub fn run_dispatched(&mut self) -> Result<f64, RulerError> {
        self.owner()?.set_lending(Lending::Dispatch);
        self.feed.fill(&mut self.workers, self.way)?;
        let workers: Vec<&mut Worker> =
            self.workers.iter_mut().map(|lane| &mut lane.worker).collect();
        let elapsed_ns = race(workers, 1);
        self.feed.check(&mut self.workers, self.way, ROUND_PACKETS)?;
        self.owner()?.set_lending(Lending::Always);
        Ok(elapsed_ns as f64 / ROUND_PACKETS as f64)
    }

    fn owner(&mut self) -> Result<&mut Worker, RulerError> {
        if self.load != Load::Fat || self.workers.len() < 2 {
            return Err(no_pair());
        }
        Ok(&mut self.workers[0].worker)
    }
}

fn no_pair() -> RulerError {
    RulerError::Request("the parts of a pipeline need one fat tunnel and two workers".to_owned())
}
