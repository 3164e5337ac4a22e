//! What a person sees while a run goes on: a bar on a terminal, one line per step elsewhere.
//!
//! It writes to standard error, so that standard output stays the result's, and it measures nothing.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::result::{Sample, Step};

/// One line of the bar. What may be cut off on a narrow terminal comes last.
const TEMPLATE: &str = "{prefix} {bar:12} {percent:>3} % ends in {eta}  {msg}";

/// Without a bar, a count is shown this often: enough to see that it moves.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// The display of one run.
#[derive(Debug)]
pub struct Display {
    bar: Option<ProgressBar>,
    is_quiet: bool,
    counted: Cell<Option<Instant>>,
}

impl Display {
    /// A bar if standard error is a terminal, lines if not, nothing at all if `quiet`.
    pub fn new(quiet: bool) -> Display {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            // Hidden until there is a curve to show.
            let bar = ProgressBar::hidden();
            // A constant template: it cannot be wrong at run time without being wrong in the tests.
            if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
                bar.set_style(style);
            }
            bar
        });
        Display { bar, is_quiet: quiet, counted: Cell::new(None) }
    }

    /// Says what is being done now.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None if !self.is_quiet => eprintln!("{text}"),
            None => {}
        }
    }

    /// Begins a curve of so many quarters of a second.
    pub fn begin(&self, curve: &str, samples: u64) {
        if !self.begin_bar(curve, samples) {
            self.say(&format!("{curve}:"));
        }
    }

    /// Begins to count to `total`.
    pub fn begin_count(&self, what: &str, total: u64) {
        self.begin_bar(what, total);
        self.counted.set(Some(Instant::now()));
    }

    /// Shows a count and what it means.
    pub fn count(&self, done: u64, meaning: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(format!("{done} {meaning}"));
            return;
        }
        if self.counted.get().is_none_or(|last| last.elapsed() >= COUNT_EVERY) {
            self.counted.set(Some(Instant::now()));
            self.say(&format!("  {done} {meaning}"));
        }
    }

    fn begin_bar(&self, what: &str, length: u64) -> bool {
        let Some(bar) = &self.bar else { return false };
        bar.set_length(length);
        bar.set_position(0);
        bar.reset_eta();
        bar.set_prefix(what.to_owned());
        bar.set_message(String::new());
        bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(4));
        true
    }

    /// Shows one sample.
    pub fn sample(&self, sample: &Sample, steps: u32) {
        let Some(bar) = &self.bar else { return };
        bar.inc(1);
        bar.set_message(format!(
            "step {}/{steps}  {} → {}  loss {:.2} %  {}",
            sample.step,
            bits(sample.offered_bps),
            bits(sample.rx_bps),
            sample.rx_loss_percent,
            latency(sample.latency_us, sample.latency_p99_us, "mean", "p99"),
        ));
    }

    /// Shows a finished step; only as a line, for the bar has shown it.
    pub fn step(&self, step: &Step, senders: u32, steps: u32) {
        if self.bar.is_none() {
            self.say(&step_line(step, senders, steps));
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn step_line(step: &Step, senders: u32, steps: u32) -> String {
    let (p50, p99) =
        (step.latency.map(|latency| latency.p50_us), step.latency.map(|latency| latency.p99_us));
    let limited = if step.generator_limited { "  (generator-limited)" } else { "" };
    format!(
        "  step {:>3}/{steps}  offered {:>10}  received {:>10}  loss {:>8.4} %  latency {}{limited}",
        step.step,
        bits(step.offered_per_port.l2_bps * f64::from(senders)),
        bits(step.received_rate.l2_bps),
        step.loss_ratio * 100.0,
        latency(p50, p99, "p50", "p99"),
    )
}

fn latency(one: Option<f64>, other: Option<f64>, names: &str, other_name: &str) -> String {
    match (one, other) {
        (Some(one), Some(other)) => format!("{names} {one:.0} µs {other_name} {other:.0} µs"),
        _ => "unknown".to_owned(),
    }
}

/// A rate in the unit that leaves one to three digits before the point.
pub fn bits(bps: f64) -> String {
    let units = [(1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps")];
    let fitting = units.into_iter().find(|(size, _)| bps >= *size);
    let (size, unit) = fitting.unwrap_or((1.0, "bps"));
    format!("{:.2} {unit}", bps / size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Counts, Latency, Rate};

    #[test]
    fn the_template_of_the_bar_is_right() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }

    #[test]
    fn a_step_is_one_line() {
        let step = Step {
            step: 3,
            duration_s: 5.0,
            offered_per_port: Rate { pps: 1e5, l2_bps: 5e8, l1_bps: 6e8 },
            received_rate: Rate { pps: 2e5, l2_bps: 9.9e8, l1_bps: 1.1e9 },
            frames: Counts::default(),
            loss_ratio: 0.01,
            probes: Counts::default(),
            latency_loss_ratio: 0.0,
            latency: Some(Latency {
                min_us: 1.0,
                avg_us: 60.0,
                p50_us: 50.0,
                p90_us: 80.0,
                p99_us: 140.4,
                p99_9_us: 200.0,
                max_us: 210.0,
                samples: 1000,
            }),
            generator_limited: true,
            directions: Vec::new(),
        };
        let line = step_line(&step, 2, 20);
        for part in ["3/20", "1.00 Gbps", "990.00 Mbps", "1.0000 %", "p50 50 µs p99 140 µs"] {
            assert!(line.contains(part), "{line}");
        }
        assert!(line.ends_with("(generator-limited)"));
    }

    #[test]
    fn rates_have_the_unit_that_fits() {
        assert_eq!(bits(0.0), "0.00 bps");
        assert_eq!(bits(1.5e4), "15.00 kbps");
        assert_eq!(bits(2.345e9), "2.35 Gbps");
    }
}
