//! From the station's books to the result's types: one step, one sample.
//!
//! Arithmetic only.

use super::load::Offered;
use crate::calibration::{steady_rate, total_rate};
use crate::histogram::LatencyHistogram;
use crate::result::{Counts, Direction, DirectionStep, Sample, Step};
use crate::sink::running_loss_percent;
use crate::station::{DirectionBooks, Progress, Snapshot, StepBooks};
use crate::traffic::{GENERATOR_LIMITED_RATIO, rate};
use crate::wiring::senders;

/// A closed step as `result.json` has it.
pub fn step(
    number: u32,
    offered: &Offered,
    direction: Direction,
    ports: [&str; 2],
    books: &StepBooks,
) -> Step {
    let sends = senders(direction);
    let directions: Vec<(usize, &DirectionBooks)> =
        books.directions.iter().enumerate().filter(|(port, _)| sends[*port]).collect();
    let (mut frames, mut probes) = (Counts::default(), Counts::default());
    let mut latency = LatencyHistogram::new();
    let mut worst: f64 = 0.0;
    for (_, one) in &directions {
        frames.add(&one.load);
        probes.add(&one.probes);
        latency.add(&one.latency);
        worst = worst.max(one.load.loss_ratio());
    }
    Step {
        step: number,
        duration_s: books.duration.as_secs_f64(),
        offered_per_port: offered.per_port,
        received_rate: total_rate(books),
        frames,
        loss_ratio: worst.max(frames.loss_ratio()),
        probes,
        latency_loss_ratio: probes.loss_ratio(),
        latency: latency.latency(),
        generator_limited: (frames.sent as f64) < frames.expected as f64 * GENERATOR_LIMITED_RATIO,
        directions: directions
            .into_iter()
            .map(|(port, one)| DirectionStep {
                name: format!("{}→{}", ports[port], ports[1 - port]),
                offered: Some(offered.by_port[port]),
                received_rate: steady_rate(&one.steady),
                frames: one.load,
                probes: one.probes,
                latency: one.latency.latency(),
            })
            .collect(),
    }
}

/// Makes the samples of one step from its snapshots, each from the one before.
#[derive(Debug, Clone)]
pub struct Sampler {
    curve: String,
    step: u32,
    /// Seconds between the beginning of the curve and that of the step.
    begin_s: f64,
    offered_bps: f64,
    last: Option<Snapshot>,
}

impl Sampler {
    /// For step `step` of `curve`, which offers `offered_bps` in all and began at `begin_s`.
    pub fn new(curve: &str, step: u32, begin_s: f64, offered_bps: f64) -> Sampler {
        Sampler { curve: curve.to_owned(), step, begin_s, offered_bps, last: None }
    }

    /// The sample of the time since the last snapshot.
    pub fn sample(&mut self, snapshot: &Snapshot) -> Sample {
        let (before, then_s) = match &self.last {
            Some(last) => (last.directions, last.elapsed.as_secs_f64()),
            None => ([Progress::default(); 2], 0.0),
        };
        let elapsed_s = snapshot.elapsed.as_secs_f64();
        // Two snapshots are a turn apart at least; a clock that stands still must not divide by 0.
        let seconds = (elapsed_s - then_s).max(1e-6);
        let (mut sent, mut received) = ((0, 0), (0, 0));
        let (mut load, mut probes) = (Counts::default(), Counts::default());
        let (mut sent_before, mut probes_before) = (0, 0);
        for (now, before) in snapshot.directions.iter().zip(before) {
            let old = before.arrived;
            sent.0 += now.sent - before.sent;
            sent.1 += now.sent_bytes - before.sent_bytes;
            received.0 += now.arrived.load.received - old.load.received;
            received.1 += now.arrived.load_bytes - old.load_bytes;
            load.add(&now.arrived.load);
            probes.add(&now.arrived.probes);
            sent_before += before.sent;
            probes_before += before.probes_sent;
        }
        self.last = Some(snapshot.clone());
        Sample {
            t_s: self.begin_s + elapsed_s,
            curve: self.curve.clone(),
            step: self.step,
            offered_bps: self.offered_bps,
            tx_bps: bps(sent, seconds),
            rx_bps: bps(received, seconds),
            rx_pps: received.0 as f64 / seconds,
            latency_us: snapshot.latency_us.map(|(mean, _)| mean),
            latency_p99_us: snapshot.latency_us.map(|(_, p99)| p99),
            rx_loss_percent: running_loss_percent(&load, sent_before),
            latency_loss_percent: running_loss_percent(&probes, probes_before),
            reordered: load.reordered,
            duplicated: load.duplicated,
            corrupted: load.corrupted,
        }
    }
}

/// L2 bits per second of frames and their bytes without FCS.
fn bps((frames, bytes): (u64, u64), seconds: f64) -> f64 {
    if frames == 0 {
        return 0.0;
    }
    rate(frames as f64 / seconds, bytes as f64 / frames as f64).l2_bps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::Arrived;
    use crate::station::Steady;
    use std::time::Duration;

    fn progress(sent: u64, received: u64, lost: u64) -> Progress {
        Progress {
            sent,
            sent_bytes: sent * 96,
            probes_sent: sent / 100,
            arrived: Arrived {
                load: Counts { received, lost, ..Counts::default() },
                load_bytes: received * 96,
                probes: Counts { received: sent / 100, ..Counts::default() },
            },
        }
    }

    fn snapshot(ms: u64, one: Progress, two: Progress) -> Snapshot {
        Snapshot {
            elapsed: Duration::from_millis(ms),
            directions: [one, two],
            latency_us: (ms > 250).then_some((50.0, 90.0)),
        }
    }

    #[test]
    fn samples_are_differences_with_the_fcs() {
        let mut sampler = Sampler::new("500 tunnels", 3, 20.0, 1e6);
        let first = sampler.sample(&snapshot(250, progress(250, 240, 0), progress(0, 0, 0)));
        assert_eq!((first.t_s, first.step, first.latency_us), (20.25, 3, None));
        assert!((first.tx_bps - 1000.0 * 800.0).abs() < 1e-6, "{}", first.tx_bps);
        assert!((first.rx_pps - 960.0).abs() < 1e-6);
        assert_eq!(first.rx_loss_percent, 0.0);
        let second = sampler.sample(&snapshot(500, progress(500, 440, 50), progress(0, 0, 0)));
        assert!((second.rx_pps - 800.0).abs() < 1e-6);
        assert!((second.rx_loss_percent - 50.0 * 100.0 / 490.0).abs() < 1e-9);
        assert_eq!(second.latency_p99_us, Some(90.0));
    }

    #[test]
    fn a_dead_path_shows_as_loss_although_nothing_newer_arrives() {
        let mut sampler = Sampler::new("x", 1, 0.0, 1e6);
        sampler.sample(&snapshot(250, progress(250, 0, 0), progress(0, 0, 0)));
        let second = sampler.sample(&snapshot(500, progress(500, 0, 0), progress(0, 0, 0)));
        assert_eq!(second.rx_loss_percent, 100.0);
    }

    fn books(expected: u64, sent: u64, received: u64) -> DirectionBooks {
        let load =
            Counts { expected, sent, received, lost: expected - received, ..Counts::default() };
        let mut latency = LatencyHistogram::new();
        latency.record(received * 1000);
        DirectionBooks {
            load,
            probes: Counts { expected: 10, sent: 10, received: 9, lost: 1, ..Counts::default() },
            load_bytes: received * 96,
            steady: Steady {
                duration: Duration::from_secs(1),
                frames: received,
                bytes: received * 96,
            },
            latency,
        }
    }

    fn offered(direction: Direction) -> Offered {
        crate::run::load::of_bps(8e6, [996.0, 121.0], direction)
    }

    #[test]
    fn the_loss_of_a_step_is_the_worse_of_sum_and_direction() {
        let both = StepBooks {
            duration: Duration::from_secs(1),
            interrupted: false,
            directions: [books(1000, 1000, 1000), books(1000, 1000, 900)],
        };
        let step_of = |direction| step(4, &offered(direction), direction, ["P0", "P1"], &both);
        let step = step_of(Direction::Bidirectional);
        assert_eq!((step.loss_ratio, step.frames.lost), (0.1, 100));
        assert_eq!(step.latency_loss_ratio, 0.1);
        assert!((step.received_rate.l2_bps - 1900.0 * 800.0).abs() < 1e-6);
        let names: Vec<_> = step.directions.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["P0→P1", "P1→P0"]);
        let asked = |port: usize| step.directions[port].offered.map(|rate| rate.pps);
        assert_eq!((asked(0), asked(1)), (Some(1000.0), Some(8000.0)));
        assert_eq!(step.offered_per_port.pps, 4500.0);
        let one_way = step_of(Direction::Unidirectional);
        assert_eq!((one_way.loss_ratio, one_way.directions.len()), (0.0, 1));
    }

    #[test]
    fn a_generator_that_sends_too_little_is_named() {
        let with = |sent| StepBooks {
            duration: Duration::from_secs(1),
            interrupted: false,
            directions: [books(10_000, sent, 9_000), books(0, 0, 0)],
        };
        let limited = |sent| {
            let one_way = Direction::Unidirectional;
            step(1, &offered(one_way), one_way, ["P0", "P1"], &with(sent)).generator_limited
        };
        assert!(limited(9_989));
        assert!(!limited(9_990));
    }
}
