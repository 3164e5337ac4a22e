//! The receiving half of the lab: whose frame is it, has it been here before, how long did it take.
//!
//! Only frames with the test signature count, so ARP or IKE never mask loss. A frame is judged by
//! where it arrived: whole and at the other port with the addresses of its number, or under the
//! name of what is wrong with it. This file does not receive; [`crate::station`] hands frames in.

use crate::histogram::LatencyHistogram;
use crate::result::Counts;
use crate::sequence::{Fate, Tracker};
use crate::traffic::{Cycle, Kind, Stamp, parse_frame};

/// The books of both directions.
#[derive(Debug)]
pub struct Sink {
    directions: [Direction; 2],
    /// Probes of both directions since the last sample.
    recent: LatencyHistogram,
    /// Frames without the test signature, since the start.
    foreign: u64,
}

/// The frames that one port sent, as they arrive at the other.
#[derive(Debug)]
struct Direction {
    cycle: Cycle,
    load: Tracker,
    probes: Tracker,
    latency: LatencyHistogram,
    received_bytes: u64,
    /// The books when the step began.
    step: Start,
}

#[derive(Debug, Clone, Copy, Default)]
struct Start {
    load: Counts,
    probes: Counts,
    missing: u64,
    probes_missing: u64,
    received_bytes: u64,
}

/// What one direction received since the step began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrived {
    /// The load; losses are those already certain.
    pub load: Counts,
    /// L2 bytes (without FCS) of the received load.
    pub load_bytes: u64,
    /// The probes.
    pub probes: Counts,
}

impl Sink {
    /// Books for the frames of both ports' cycles.
    pub fn new(cycles: [Cycle; 2]) -> Sink {
        Sink { directions: cycles.map(Direction::new), recent: LatencyHistogram::new(), foreign: 0 }
    }

    /// Books a frame that arrived at port `at` (0 or 1) at `received_ns` of the senders' clock.
    pub fn receive(&mut self, at: usize, frame: &[u8], received_ns: u64) {
        let Some(stamp) = parse_frame(frame) else {
            self.foreign += 1;
            return;
        };
        // Frames cross: what arrives at one port was sent by the other.
        let sender = 1 - at;
        if !stamp.intact {
            self.directions[sender].of_kind(stamp.kind).corrupt();
            return;
        }
        let claimed = usize::from(stamp.port());
        let Some(direction) = self.directions.get_mut(claimed) else {
            self.foreign += 1;
            return;
        };
        if claimed != sender || !direction.owns(&stamp) {
            direction.of_kind(stamp.kind).misroute();
            return;
        }
        let fate = direction.of_kind(stamp.kind).receive(stamp.sequence);
        if !matches!(fate, Fate::InOrder | Fate::Reordered) {
            return;
        }
        match stamp.kind {
            Kind::Load => direction.received_bytes += u64::from(stamp.size),
            Kind::Probe => {
                let latency_ns = received_ns.saturating_sub(stamp.sent_ns);
                direction.latency.record(latency_ns);
                self.recent.record(latency_ns);
            }
        }
    }

    /// Begins a step: what arrives from now on is the step's.
    pub fn begin(&mut self) {
        for direction in &mut self.directions {
            direction.step = direction.start();
            direction.latency.clear();
        }
        self.recent.clear();
    }

    /// Forgets the latencies of the step so far: it has settled only now.
    pub fn settle(&mut self) {
        self.directions.iter_mut().for_each(|direction| direction.latency.clear());
    }

    /// What the step has received so far, by sending port.
    pub fn arrived(&self) -> [Arrived; 2] {
        [0, 1].map(|port| {
            let direction: &Direction = &self.directions[port];
            direction.arrived()
        })
    }

    /// Ends a step after its drain: `sequences` are the numbers (load, probes) that each port has
    /// given out; what has not arrived by now is lost.
    pub fn close(&mut self, sequences: [(u64, u64); 2]) {
        for (direction, (load, probes)) in self.directions.iter_mut().zip(sequences) {
            direction.load.close(load);
            direction.probes.close(probes);
        }
    }

    /// Probe latencies of the step, by sending port.
    pub fn latencies(&self) -> [LatencyHistogram; 2] {
        [0, 1].map(|port: usize| self.directions[port].latency.clone())
    }

    /// Mean and 99th percentile, microseconds, of the probes since the last call.
    pub fn recent_latency(&mut self) -> Option<(f64, f64)> {
        self.recent.take_interval()
    }

    /// Frames without the test signature that reached the sockets since the start.
    pub fn foreign(&self) -> u64 {
        self.foreign
    }
}

impl Direction {
    fn new(cycle: Cycle) -> Direction {
        let lanes = cycle.lanes();
        Direction {
            cycle,
            load: Tracker::new(lanes),
            probes: Tracker::new(lanes),
            latency: LatencyHistogram::new(),
            received_bytes: 0,
            step: Start::default(),
        }
    }

    fn of_kind(&mut self, kind: Kind) -> &mut Tracker {
        match kind {
            Kind::Load => &mut self.load,
            Kind::Probe => &mut self.probes,
        }
    }

    /// Whether the addresses are those that the frame's number was sent with.
    fn owns(&self, stamp: &Stamp) -> bool {
        let addresses = self.cycle.addresses(stamp.sequence);
        addresses.src == stamp.src && addresses.dst == stamp.dst
    }

    fn start(&self) -> Start {
        Start {
            load: self.load.counts(),
            probes: self.probes.counts(),
            missing: self.load.missing(),
            probes_missing: self.probes.missing(),
            received_bytes: self.received_bytes,
        }
    }

    fn arrived(&self) -> Arrived {
        let since = |tracker: &Tracker, start: &Counts, missing: u64| Counts {
            // A hole in the numbers before the newest is a loss, unless the frame still comes.
            lost: tracker.missing().saturating_sub(missing),
            ..tracker.counts().since(start)
        };
        Arrived {
            load: since(&self.load, &self.step.load, self.step.missing),
            load_bytes: self.received_bytes - self.step.received_bytes,
            probes: since(&self.probes, &self.step.probes, self.step.probes_missing),
        }
    }
}

/// Loss in percent while a step runs: the frames known to be missing, or, when nothing newer
/// arrives that would show the hole, the frames sent at least one sample ago that have not come.
pub fn running_loss_percent(arrived: &Counts, sent_before: u64) -> f64 {
    let overdue = sent_before.saturating_sub(arrived.received);
    let missing = arrived.lost.max(overdue);
    let known = arrived.received + missing;
    if known == 0 { 0.0 } else { missing as f64 * 100.0 / known as f64 }
}
