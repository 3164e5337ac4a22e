//! Latency of probes: an HDR histogram for the step, a running mean for the 4 Hz samples.
//!
//! Takes nanoseconds, reports microseconds. It does not read clocks and does not subtract the
//! loop's own latency; the calibration is published beside the result instead.

use hdrhistogram::Histogram;

use crate::result::Latency;

/// Resolution at the bottom: below 1 µs the clocks of two cores disagree more than that.
const LOWEST_NS: u64 = 1_000;
/// Anything slower than this is counted as this.
const HIGHEST_NS: u64 = 10_000_000_000;
/// Three digits keep a histogram at about 200 kB.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Probe latencies of one direction and step.
#[derive(Debug, Clone)]
pub struct LatencyHistogram {
    histogram: Histogram<u64>,
    /// The exact sum, because the histogram's own mean is that of its buckets.
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
    interval: Interval,
}

/// What one sample interval saw.
#[derive(Debug, Clone, Default, PartialEq)]
struct Interval {
    latencies_ns: Vec<u64>,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

impl LatencyHistogram {
    /// An empty histogram.
    pub fn new() -> LatencyHistogram {
        LatencyHistogram {
            histogram: Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, SIGNIFICANT_DIGITS)
                .expect("the bounds are constants that the tests construct"),
            sum_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
            interval: Interval::default(),
        }
    }

    /// Adds one probe.
    pub fn record(&mut self, latency_ns: u64) {
        let latency_ns = latency_ns.min(HIGHEST_NS);
        self.histogram.saturating_record(latency_ns);
        self.sum_ns += u128::from(latency_ns);
        self.min_ns = self.min_ns.min(latency_ns);
        self.max_ns = self.max_ns.max(latency_ns);
        self.interval.latencies_ns.push(latency_ns);
    }

    /// Adds everything another histogram holds, for example the other direction's.
    pub fn add(&mut self, other: &LatencyHistogram) {
        self.histogram.add(&other.histogram).expect("all histograms have the same bounds");
        self.sum_ns += other.sum_ns;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.interval.latencies_ns.extend_from_slice(&other.interval.latencies_ns);
    }

    /// Number of probes.
    pub fn len(&self) -> u64 {
        self.histogram.len()
    }

    /// Whether no probe came.
    pub fn is_empty(&self) -> bool {
        self.histogram.is_empty()
    }

    /// The distribution, or nothing when no probe came.
    pub fn latency(&self) -> Option<Latency> {
        if self.is_empty() {
            return None;
        }
        let us = |ns: u64| ns as f64 / 1e3;
        // A bucket's upper edge can lie above the largest value that was really seen.
        let quantile =
            |q: f64| us(self.histogram.value_at_quantile(q).clamp(self.min_ns, self.max_ns));
        Some(Latency {
            min_us: us(self.min_ns),
            avg_us: self.sum_ns as f64 / self.len() as f64 / 1e3,
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p99_9_us: quantile(0.999),
            max_us: us(self.max_ns),
            samples: self.len(),
        })
    }

    /// Mean and 99th percentile, microseconds, of the probes since the last call; nothing when
    /// none came.
    pub fn take_interval(&mut self) -> Option<(f64, f64)> {
        let latencies = &mut self.interval.latencies_ns;
        if latencies.is_empty() {
            return None;
        }
        latencies.sort_unstable();
        let sum: u128 = latencies.iter().map(|&ns| u128::from(ns)).sum();
        let mean_us = sum as f64 / latencies.len() as f64 / 1e3;
        let p99_us = latencies[(latencies.len() * 99).div_ceil(100) - 1] as f64 / 1e3;
        latencies.clear();
        Some((mean_us, p99_us))
    }

    /// Forgets everything, for the next step.
    pub fn clear(&mut self) {
        self.histogram.reset();
        self.sum_ns = 0;
        self.min_ns = u64::MAX;
        self.max_ns = 0;
        self.interval.latencies_ns.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_histogram_has_no_latency() {
        let mut histogram = LatencyHistogram::new();
        assert_eq!((histogram.latency(), histogram.take_interval()), (None, None));
        histogram.record(50_000);
        assert!(histogram.latency().is_some());
        histogram.clear();
        assert_eq!((histogram.latency(), histogram.take_interval()), (None, None));
    }

    #[test]
    fn extremes_are_kept_within_bounds() {
        let mut histogram = LatencyHistogram::new();
        histogram.record(0);
        histogram.record(u64::MAX);
        let latency = histogram.latency().unwrap();
        assert_eq!((latency.min_us, latency.max_us, latency.samples), (0.0, 1e7, 2));
    }

    #[test]
    fn intervals_are_taken_once() {
        let mut histogram = LatencyHistogram::new();
        (1..=100).for_each(|us| histogram.record(us * 1000));
        assert_eq!(histogram.take_interval(), Some((50.5, 99.0)));
        assert_eq!(histogram.take_interval(), None);
        assert_eq!(histogram.len(), 100);
    }

    proptest! {
        /// Against sorting all values, within three significant digits.
        #[test]
        fn percentiles_are_right(values in prop::collection::vec(1_000u64..5_000_000_000, 1..300)) {
            let (mut one, mut two) = (LatencyHistogram::new(), LatencyHistogram::new());
            for (i, &value) in values.iter().enumerate() {
                if i % 2 == 0 { one.record(value) } else { two.record(value) }
            }
            one.add(&two);
            let latency = one.latency().unwrap();
            let mut sorted = values.clone();
            sorted.sort_unstable();
            for (q, found) in [(0.5, latency.p50_us), (0.9, latency.p90_us), (0.999, latency.p99_9_us)] {
                let rank = ((q * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
                let exact = sorted[rank - 1] as f64 / 1e3;
                prop_assert!((found - exact).abs() <= exact * 2e-3 + 1.0, "{q}: {found} {exact}");
            }
            let mean = values.iter().map(|&v| v as f64).sum::<f64>() / values.len() as f64 / 1e3;
            prop_assert!((latency.avg_us - mean).abs() <= mean * 1e-9);
            prop_assert_eq!(latency.samples, values.len() as u64);
        }
    }
}
