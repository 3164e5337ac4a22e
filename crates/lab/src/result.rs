//! What one run leaves behind: `result.json`, `samples.csv` and `env.json`, as Rust types.
//!
//! The JSON names are the field names here and are documented in `docs/results.md`; a change that
//! an old reader would misunderstand raises [`SCHEMA`]. This module computes nothing: markers and
//! labels are filled in by [`crate::marker`], rates by whoever measured them.

mod accounting;
mod environment;
mod folder;
mod negotiation;
mod sample;
mod step;

pub use accounting::{AccountingRow, Imbalance, Side, balance};
pub use environment::{Cpu, Environment};
pub(crate) use folder::write_whole;
pub use folder::{
    ENVIRONMENT_FILE, RESULT_FILE, ReadError, Run, SAMPLES_FILE, WriteError, read, write,
};
pub use negotiation::{HandshakeTime, Negotiation, NegotiationSide};
pub use sample::{Sample, SampleError, read_samples, write_samples};
pub use step::{Counts, DirectionStep, Latency, Rate, Step};

use serde::{Deserialize, Serialize};

/// The version of the three files. Readers refuse a newer one.
pub const SCHEMA: u32 = 1;

/// `result.json`: everything a reader needs to redraw and to judge a run, except the samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`SCHEMA`] of the program that wrote the file.
    pub schema: u32,
    /// The recipe's id, for example `bf3-test1`.
    pub recipe: String,
    /// One line for the top of the plot.
    pub title: String,
    /// Start of the run, RFC 3339 in UTC.
    pub started_at: String,
    /// Who measured.
    pub tool: Tool,
    /// Which way of measuring the numbers come from; figures of two rulers never compare.
    pub ruler: Ruler,
    /// The limits behind the marker and the red lines of the plot.
    pub thresholds: Thresholds,
    /// The ramp that every curve was driven with.
    pub ramp: RampShape,
    /// One curve per variant: a number of tunnels and a direction.
    pub curves: Vec<Curve>,
    /// What the generator and the sink manage without a gateway between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
    /// The limits that the run could not exceed whatever the gateway does.
    #[serde(default)]
    pub ceilings: Vec<Ceiling>,
    /// Sentences for the reader: interrupted runs, missing parts, anything unusual.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Name and version of the measuring program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// `peregrine`.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// The way a figure was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ruler {
    /// Frames cross real (virtual) links and the kernel's AF_XDP on both sides.
    #[serde(rename = "end to end over veth")]
    EndToEndVeth,
}

impl Ruler {
    /// The words used in every report.
    pub fn as_str(self) -> &'static str {
        match self {
            Ruler::EndToEndVeth => "end to end over veth",
        }
    }
}

/// The published limits: the marker is the last sample before the first one above any of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Average probe latency, microseconds.
    pub latency_us_max: f64,
    /// Loss of load frames, percent.
    pub rx_loss_percent_max: f64,
    /// Loss of latency probes, percent.
    pub latency_loss_percent_max: f64,
}

/// A linear ramp: step `k` of `steps` offers `k/steps` of the maximum, for `step_time_s`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RampShape {
    /// Number of steps.
    pub steps: u32,
    /// Seconds per step.
    pub step_time_s: f64,
    /// Silence after the last frame of a step before its counters are read, milliseconds.
    pub drain_ms: u32,
    /// Seconds at the start of a step that its averages leave out.
    pub settle_s: f64,
}

/// Whether one generator port sends, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Only the first port sends.
    Unidirectional,
    /// Both ports send at the same load per port, in bits per second or in frames per second.
    Bidirectional,
}

impl Direction {
    /// The number of ports that send.
    pub fn senders(self) -> u32 {
        match self {
            Direction::Unidirectional => 1,
            Direction::Bidirectional => 2,
        }
    }

    /// The word used in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Direction::Unidirectional => "unidirectional",
            Direction::Bidirectional => "bidirectional",
        }
    }
}

/// One variant of the sweep, measured over the whole ramp.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// The name in legends, for example `500 tunnels`. Unique within a result.
    pub name: String,
    /// Number of tunnels.
    pub tunnels: u32,
    /// Which ports send.
    pub direction: Direction,
    /// L2 bits per second (with FCS) offered per sending port at the last step, their mean.
    pub max_l2_bps_per_port: f64,
    /// How the tunnels were negotiated; absent where their keys are static.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub negotiation: Option<Negotiation>,
    /// One entry per step that was run, in order.
    pub steps: Vec<Step>,
    /// Conclusions; see [`crate::marker::conclude`].
    #[serde(default)]
    pub conclusion: Conclusion,
    /// Where every packet of this curve went; see [`balance`].
    #[serde(default)]
    pub accounting: Vec<AccountingRow>,
}

/// The figures of merit of one curve.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Conclusion {
    /// Last sample before any published threshold is exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marker: Option<Marker>,
    /// Last sample before load frames are lost at all (up to [`crate::marker::ZERO_LOSS_RATIO`]); the
    /// rest of its step may lose some, see [`crate::marker::zero_loss_bps`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zero_loss_marker: Option<Marker>,
    /// Number of the last whole step before the first one that lost a load frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_clean_step: Option<u32>,
    /// Number of the last whole step before the first one that lost more than 0.5 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_half_percent_step: Option<u32>,
    /// What the reader must know before believing the figures.
    #[serde(default)]
    pub labels: Vec<Label>,
}

/// One sample that a figure of merit points at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Marker {
    /// Index among this curve's rows of `samples.csv`, from 0.
    pub sample: usize,
    /// The step the sample belongs to, from 1.
    pub step: u32,
    /// L2 bits per second received, all receiving ports together.
    pub rx_bps: f64,
    /// Mean probe latency, microseconds; absent when no probe came back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<f64>,
    /// Loss of load frames in the step so far, percent.
    pub rx_loss_percent: f64,
    /// Loss of probes in the step so far, percent.
    pub latency_loss_percent: f64,
}

/// A condition under which a figure was obtained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Label {
    /// The generator, not the gateway, stopped the ramp at or before the marker.
    GeneratorLimited {
        /// First step the generator could not fill.
        from_step: u32,
    },
    /// The marker lies within 1 % of a ceiling: the ceiling was measured, not the gateway.
    NearCeiling {
        /// The ceiling's name.
        ceiling: String,
    },
    /// The run was stopped before its last step.
    Interrupted,
    /// The accounting of this curve does not close.
    Unaccounted,
}

impl Label {
    /// The label as a reader sees it.
    pub fn text(&self) -> String {
        match self {
            Label::GeneratorLimited { from_step } => {
                format!("generator-limited from step {from_step}")
            }
            Label::NearCeiling { ceiling } => format!("within 1 % of a ceiling: {ceiling}"),
            Label::Interrupted => "interrupted".to_owned(),
            Label::Unaccounted => "accounting does not close".to_owned(),
        }
    }
}

/// The loop test: generator straight into sink, same frames, same links, no gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// When, RFC 3339 in UTC.
    pub measured_at: String,
    /// The highest rate received without loss, per sending port.
    pub zero_loss: Rate,
    /// The highest rate received at all, per sending port.
    pub maximum: Rate,
    /// Latency of the loop at low load: the bias in every other latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Whether the loop lost, duplicated, reordered or damaged frames at `zero_loss`.
    pub clean: bool,
    /// The rates tried: offered and received, for the curve in the report.
    #[serde(default)]
    pub points: Vec<CalibrationPoint>,
}

/// One rate of the loop test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CalibrationPoint {
    /// Asked for, per sending port.
    pub offered: Rate,
    /// Received, per sending port.
    pub received: Rate,
    /// Lost over expected.
    pub loss_ratio: f64,
}

/// A limit that has nothing to do with the gateway under test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// For example `generator loop` or `plaintext path`.
    pub name: String,
    /// Aggregate L2 bits per second; comparable with a curve's `rx_bps`.
    pub l2_bps: f64,
    /// Frames per second, where the limit is one of packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pps: Option<f64>,
    /// The directions it applies to; absent means both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
}

#[cfg(test)]
pub(crate) mod example;
