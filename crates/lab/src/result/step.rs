//! One step of a ramp: rates, counts and latency, per direction and together.
//!
//! Plain figures; [`crate::sequence`] and [`crate::histogram`] produce them.

use serde::{Deserialize, Serialize};

/// A load or a receive rate in the three units that people mix up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Frames per second.
    pub pps: f64,
    /// Bits per second of frames with their 4-byte FCS, as TRex counts them.
    pub l2_bps: f64,
    /// The same plus 20 bytes of preamble and gap per frame: occupancy of an Ethernet link.
    pub l1_bps: f64,
}

/// The result of one step of the ramp, from the counters of the whole step after its drain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Number of the step, from 1.
    pub step: u32,
    /// Seconds during which frames were sent.
    pub duration_s: f64,
    /// The load asked for, per sending port: their mean, where each is asked for another.
    pub offered_per_port: Rate,
    /// Load frames received per second of sending, all receiving ports together.
    pub received_rate: Rate,
    /// Load frames of all directions together.
    pub frames: Counts,
    /// Lost over expected; the larger of the aggregate and the worst direction.
    pub loss_ratio: f64,
    /// Latency probes of all directions together.
    pub probes: Counts,
    /// Lost probes over expected probes.
    pub latency_loss_ratio: f64,
    /// Probe latency of all directions; absent when no probe came back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Less than 99.9 % of the expected frames were sent.
    pub generator_limited: bool,
    /// The same, direction by direction.
    #[serde(default)]
    pub directions: Vec<DirectionStep>,
}

impl Step {
    /// The load asked for of each sending port; their mean, where the file has no other.
    pub fn offered_by_port(&self) -> Vec<Rate> {
        let apart: Option<Vec<Rate>> = self.directions.iter().map(|one| one.offered).collect();
        apart.filter(|rates| !rates.is_empty()).unwrap_or_else(|| vec![self.offered_per_port])
    }
}

/// One direction of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DirectionStep {
    /// `P0→P1` or `P1→P0`.
    pub name: String,
    /// The load asked for; absent in files of programs that did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered: Option<Rate>,
    /// Load frames received per second of sending.
    pub received_rate: Rate,
    /// Load frames.
    pub frames: Counts,
    /// Latency probes.
    pub probes: Counts,
    /// Probe latency; absent when no probe came back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
}

/// Frames of one stream or of several, each frame under exactly the heading that fits.
///
/// `expected = received + lost` where frames that the generator failed to send count as lost.
/// Damaged, misdirected and late frames are lost *and* counted under their own name; duplicates
/// are extra.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Frames the load asked for: `ceil((duration − 10 µs) × rate)`.
    pub expected: u64,
    /// Frames that left the generator.
    pub sent: u64,
    /// Different frames that arrived whole, at the right port, in time.
    pub received: u64,
    /// `expected − received`.
    pub lost: u64,
    /// Of the received: arrived after a later frame of the same tunnel (RFC 4737 §3.3).
    pub reordered: u64,
    /// Copies beyond the first (RFC 5560).
    pub duplicated: u64,
    /// Ours by signature, but the checksum is wrong.
    pub corrupted: u64,
    /// Whole, but at a port where they do not belong.
    pub misrouted: u64,
    /// Arrived after they had been counted as lost.
    pub late: u64,
}

impl Counts {
    /// Lost over expected, 0 when nothing was expected.
    pub fn loss_ratio(&self) -> f64 {
        if self.expected == 0 { 0.0 } else { self.lost as f64 / self.expected as f64 }
    }

    /// What was counted after `start` was taken of the same books.
    pub fn since(&self, start: &Counts) -> Counts {
        Counts {
            expected: self.expected.saturating_sub(start.expected),
            sent: self.sent.saturating_sub(start.sent),
            received: self.received.saturating_sub(start.received),
            lost: self.lost.saturating_sub(start.lost),
            reordered: self.reordered.saturating_sub(start.reordered),
            duplicated: self.duplicated.saturating_sub(start.duplicated),
            corrupted: self.corrupted.saturating_sub(start.corrupted),
            misrouted: self.misrouted.saturating_sub(start.misrouted),
            late: self.late.saturating_sub(start.late),
        }
    }

    /// Adds another stream's counts.
    pub fn add(&mut self, other: &Counts) {
        self.expected += other.expected;
        self.sent += other.sent;
        self.received += other.received;
        self.lost += other.lost;
        self.reordered += other.reordered;
        self.duplicated += other.duplicated;
        self.corrupted += other.corrupted;
        self.misrouted += other.misrouted;
        self.late += other.late;
    }
}

/// A latency distribution, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Smallest.
    pub min_us: f64,
    /// Mean.
    pub avg_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p99_9_us: f64,
    /// Largest.
    pub max_us: f64,
    /// Number of probes behind the figures.
    pub samples: u64,
}
