//! A load as people type it: `4gbps`, `250mbps`, `100kpps`, `auto`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The load of the last step per sending port.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Speed {
    /// Measure first, then choose the ramp so that its knee lies inside.
    Auto,
    /// L2 bits per second.
    L2Bps(f64),
    /// Frames per second, in the sizes that each port sends.
    Pps(f64),
}

/// Why a text is not a [`Speed`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "`{0}` is not a load; write `auto` or a rate above zero such as `4gbps`, `250mbps` or `100kpps`"
)]
pub struct SpeedError(String);

/// Decimal units of bits, longest first because `bps` ends them all.
const UNITS: [(&str, f64); 4] = [("gbps", 1e9), ("mbps", 1e6), ("kbps", 1e3), ("bps", 1.0)];
/// The same of frames.
const FRAME_UNITS: [(&str, f64); 3] = [("mpps", 1e6), ("kpps", 1e3), ("pps", 1.0)];
/// Far above any link, far below what loses precision.
const L2_BPS_MAX: f64 = 1e15;
/// The same of frames.
const PPS_MAX: f64 = 1e12;

impl FromStr for Speed {
    type Err = SpeedError;

    fn from_str(text: &str) -> Result<Speed, SpeedError> {
        let lower = text.trim().to_ascii_lowercase();
        if lower == "auto" {
            return Ok(Speed::Auto);
        }
        let frames = read(&lower, &FRAME_UNITS, PPS_MAX).map(Speed::Pps);
        frames
            .or_else(|| read(&lower, &UNITS, L2_BPS_MAX).map(Speed::L2Bps))
            .ok_or_else(|| SpeedError(text.to_owned()))
    }
}

/// A number above zero with one of these units, if it is one.
fn read(text: &str, units: &[(&str, f64)], max: f64) -> Option<f64> {
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    let value = number.trim().parse::<f64>().ok()? * factor;
    (value > 0.0 && value <= max).then_some(value)
}

/// The same in the largest unit of which it is one or more.
fn write(f: &mut fmt::Formatter<'_>, value: f64, units: &[(&str, f64)]) -> fmt::Result {
    let fitting = units.iter().find(|(_, factor)| value >= *factor).or(units.last());
    let (unit, factor) = fitting.unwrap_or(&("", 1.0));
    write!(f, "{}{unit}", value / factor)
}

impl TryFrom<String> for Speed {
    type Error = SpeedError;

    fn try_from(text: String) -> Result<Speed, SpeedError> {
        text.parse()
    }
}

impl From<Speed> for String {
    fn from(speed: Speed) -> String {
        speed.to_string()
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Speed::Auto => f.write_str("auto"),
            Speed::L2Bps(bps) => write(f, bps, &UNITS),
            Speed::Pps(pps) => write(f, pps, &FRAME_UNITS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_auto() {
        for (text, speed) in [
            ("4gbps", Speed::L2Bps(4e9)),
            ("2.5 Gbps", Speed::L2Bps(2.5e9)),
            ("250mbps", Speed::L2Bps(2.5e8)),
            ("64kbps", Speed::L2Bps(64e3)),
            ("9bps", Speed::L2Bps(9.0)),
            ("20kpps", Speed::Pps(2e4)),
            ("1.5 Mpps", Speed::Pps(1.5e6)),
            ("0.5pps", Speed::Pps(0.5)),
            ("AUTO", Speed::Auto),
        ] {
            assert_eq!(text.parse(), Ok(speed));
            assert_eq!(speed.to_string().parse(), Ok(speed));
        }
        for text in [
            "", "4", "gbps", "-1gbps", "0bps", "nangbps", "infgbps", "1tbps", "pps", "0pps",
            "1xpps",
        ] {
            assert_eq!(text.parse::<Speed>(), Err(SpeedError(text.into())));
        }
    }
}
