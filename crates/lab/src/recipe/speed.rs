//! A load as people type it: `4gbps`, `250mbps`, `auto`.

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
}

/// Why a text is not a [`Speed`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not a load; write `auto` or a rate above zero such as `4gbps` or `250mbps`")]
pub struct SpeedError(String);

/// Decimal units, longest first because `bps` ends them all.
const UNITS: [(&str, f64); 4] = [("gbps", 1e9), ("mbps", 1e6), ("kbps", 1e3), ("bps", 1.0)];

impl FromStr for Speed {
    type Err = SpeedError;

    fn from_str(text: &str) -> Result<Speed, SpeedError> {
        let lower = text.trim().to_ascii_lowercase();
        if lower == "auto" {
            return Ok(Speed::Auto);
        }
        UNITS
            .iter()
            .find_map(|(unit, factor)| Some((lower.strip_suffix(unit)?, factor)))
            .and_then(|(number, factor)| Some(number.trim().parse::<f64>().ok()? * factor))
            // Far above any link, far below what loses precision.
            .filter(|bps| *bps > 0.0 && *bps <= 1e15)
            .map(Speed::L2Bps)
            .ok_or_else(|| SpeedError(text.to_owned()))
    }
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
        match self {
            Speed::Auto => f.write_str("auto"),
            Speed::L2Bps(bps) => {
                let (unit, factor) =
                    UNITS.iter().find(|(_, factor)| bps >= factor).unwrap_or(&("bps", 1.0));
                write!(f, "{}{unit}", bps / factor)
            }
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
            ("AUTO", Speed::Auto),
        ] {
            assert_eq!(text.parse(), Ok(speed));
            assert_eq!(speed.to_string().parse(), Ok(speed));
        }
        for text in ["", "4", "gbps", "-1gbps", "0bps", "nangbps", "infgbps", "1tbps"] {
            assert_eq!(text.parse::<Speed>(), Err(SpeedError(text.into())));
        }
    }
}
