//! Scales and ticks: values to the unit interval, sample indices to pixels.

use super::{LEFT, RIGHT};

/// Free space beside the first and the last sample, as a share of the ramp's width.
const MARGIN: f64 = 0.05;

/// The x axis: sample indices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct X {
    last: f64,
}

impl X {
    /// An axis for `samples` samples, of which the first and the last stand 5 % from the edges.
    pub fn new(samples: usize) -> X {
        X { last: samples.saturating_sub(1).max(1) as f64 }
    }

    /// The x of a sample.
    pub fn at(&self, index: usize) -> f64 {
        let share = (index as f64 / self.last + MARGIN) / (1.0 + 2.0 * MARGIN);
        LEFT + share * (RIGHT - LEFT)
    }
}

/// One tick: its value and its label.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    pub value: f64,
    pub label: String,
}

/// A y axis: from values to the share of the panel's height, 0 at the bottom.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    pub ticks: Vec<Tick>,
}

impl Scale {
    /// Bits per second from 0 to `top`.
    pub fn rate(top: f64) -> Scale {
        let (factor, unit) = [(1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps")]
            .into_iter()
            .find(|(factor, _)| top >= *factor)
            .unwrap_or((1.0, "bps"));
        let ticks = round_steps(top, 7)
            .map(|value| {
                let label = if value == 0.0 {
                    "0".into()
                } else {
                    format!("{} {unit}", plain(value / factor))
                };
                Tick { value, label }
            })
            .collect();
        Scale { low: 0.0, high: top, logarithmic: false, ticks }
    }

    /// Percent from 0 to `top`, with some room for the lines at both ends.
    pub fn percent(top: f64) -> Scale {
        let ticks = round_steps(top, 3)
            .map(|value| Tick { value, label: format!("{} %", plain(value)) })
            .collect();
        Scale { low: -0.1 * top, high: 1.14 * top, logarithmic: false, ticks }
    }

    /// Microseconds, logarithmic, wide enough for all latencies and the threshold.
    pub fn latency(latencies: impl Iterator<Item = f64>, limit: f64) -> Scale {
        let (mut low, mut high) = (limit, limit);
        for latency in latencies.filter(|latency| *latency > 0.0) {
            low = low.min(latency);
            high = high.max(latency);
        }
        // A third of a decade of room at both ends, and never less than a whole decade in all.
        let (low, high) = (low.max(0.01).log10() - 0.3, high.max(0.01).log10() + 0.3);
        let high = high.max(low + 1.0);
        let (first, last) = (low.ceil() as i32, high.floor() as i32);
        // Five labels fit into 100 pixels without touching.
        let every = ((last - first + 1).max(1) as usize).div_ceil(5);
        let ticks = (first..=last)
            .step_by(every)
            .map(|exponent| Tick { value: 10f64.powi(exponent), label: decade(exponent) })
            .collect();
        Scale { low, high, logarithmic: true, ticks }
    }

    /// The share of the panel's height at which a value stands.
    pub fn share(&self, value: f64) -> f64 {
        let value = if self.logarithmic { value.max(1e-3).log10() } else { value };
        (value - self.low) / (self.high - self.low)
    }
}

/// Multiples of 1, 2 or 5 times a power of ten from 0 to `top`, at most `count` beside zero.
pub(crate) fn round_steps(top: f64, count: u32) -> impl Iterator<Item = f64> {
    let raw = top / f64::from(count);
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= raw * 0.999_999)
        .unwrap_or(10.0 * power);
    let steps = (top / step * 1.000_001).floor() as u32;
    (0..=steps).map(move |index| f64::from(index) * step)
}

/// Without needless zeros.
pub(crate) fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A power of ten microseconds.
fn decade(exponent: i32) -> String {
    let (unit, base) = match exponent {
        ..=-1 => ("ns", -3),
        0..=2 => ("µs", 0),
        3..=5 => ("ms", 3),
        _ => ("s", 6),
    };
    format!("{} {unit}", plain(10f64.powi(exponent - base)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<&str> {
        scale.ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn a_ramp_spans_the_width_with_five_percent_beside_it() {
        let x = X::new(800);
        let margin = (RIGHT - LEFT) * 0.05 / 1.1;
        assert!((x.at(0) - LEFT - margin).abs() < 1e-9);
        assert!((RIGHT - x.at(799) - margin).abs() < 1e-9);
        assert!(X::new(1).at(0).is_finite() && X::new(0).at(0).is_finite());
    }

    #[test]
    fn ticks_are_round() {
        let rate = Scale::rate(124e9);
        assert_eq!(
            labels(&rate),
            ["0", "20 Gbps", "40 Gbps", "60 Gbps", "80 Gbps", "100 Gbps", "120 Gbps"]
        );
        assert_eq!(labels(&Scale::rate(3.2e9))[1], "0.5 Gbps");
        assert_eq!(labels(&Scale::percent(6.5)), ["0 %", "5 %"]);
        assert_eq!(labels(&Scale::percent(50.0)), ["0 %", "20 %", "40 %"]);
        let latency = Scale::latency([40.0, 5000.0].into_iter(), 1000.0);
        assert_eq!(labels(&latency), ["100 µs", "1 ms"]);
        let latency = Scale::latency([4.0].into_iter(), 1e6);
        assert_eq!(labels(&latency), ["10 µs", "1 ms", "100 ms"]);
    }

    #[test]
    fn shares_run_from_bottom_to_top() {
        let scale = Scale::rate(10.0);
        assert_eq!((scale.share(0.0), scale.share(10.0)), (0.0, 1.0));
        let scale = Scale::latency([10.0].into_iter(), 1000.0);
        assert!(scale.share(10.0) > 0.0 && scale.share(1000.0) < 1.0);
        assert!(scale.share(0.0).is_finite());
    }
}
