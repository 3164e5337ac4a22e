//! How much to offer: the loads of a step, and the search for a maximum when none is given.
//!
//! Arithmetic only; `curve` sends.

use std::time::Duration;

use crate::generator::Load;
use crate::recipe::Speed;
use crate::result::{Direction, RampShape, Rate};
use crate::traffic::{rate, rate_of_bits};
use crate::wiring::senders;

/// A ramp ends this far beyond the highest rate that the search saw forwarded, so that the knee
/// lies inside it.
const HEADROOM: f64 = 1.2;
/// Each trial of the search offers this much more than the one before: eight trials span a factor
/// of 17, and the knee is missed by less than half, which the headroom and the ramp put right.
const CLIMB_FACTOR: f64 = 1.5;
/// The first trial offers this share of what the loop carries: any gateway worth measuring has it.
const CLIMB_START: f64 = 0.04;
/// Below this share of the load forwarded, the knee is behind us.
const CLIMB_END: f64 = 0.8;

/// Tunnels tried per second at most: each may need an answer to an ARP request first, and a burst of
/// thousands would overflow the kernel's queue of requests.
const PRIME_PPS: u32 = 2000;
/// Few tunnels are not tried in no time: their frames would be a burst.
const PRIME_TIME_MIN: Duration = Duration::from_millis(300);

/// The part of a step that averages leave out: a fifth, at most what the recipe says.
pub fn settle_s(ramp: &RampShape) -> f64 {
    ramp.settle_s.min(ramp.step_time_s / 5.0)
}

/// What is asked of the ports in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offered {
    /// As the generator is told.
    pub loads: [Load; 2],
    /// The same by port; nothing of one that does not send.
    pub by_port: [Rate; 2],
    /// The mean of the sending ports.
    pub per_port: Rate,
}

/// In which proportion a ramp loads the ports, each in frames of its own sizes: in all its steps, and in what they are held against.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// As many frames per second on each port, and not as many L2 bits.
    is_by_frames: bool,
    average_bytes: [f64; 2],
    direction: Direction,
}

impl Shape {
    /// Of a ramp to `max`: its units are frames per second where it is given in them, L2 bits per second otherwise.
    pub fn new(max: Speed, average_bytes: [f64; 2], direction: Direction) -> Shape {
        Shape { is_by_frames: matches!(max, Speed::Pps(_)), average_bytes, direction }
    }

    /// So many units on each sending port.
    pub fn load(&self, units: f64) -> Offered {
        let sends = senders(self.direction);
        let by_port = [0, 1].map(|port: usize| match self.average_bytes[port] {
            _ if !sends[port] => Rate::default(),
            bytes if self.is_by_frames => rate(units, bytes),
            bytes => rate_of_bits(units, bytes),
        });
        let load = |port: usize| {
            if sends[port] { Load::Paced(by_port[port].pps) } else { Load::Silent }
        };
        let mean = |of: fn(&Rate) -> f64| {
            by_port.iter().map(of).sum::<f64>() / f64::from(self.direction.senders())
        };
        let per_port = Rate {
            pps: mean(|rate| rate.pps),
            l2_bps: mean(|rate| rate.l2_bps),
            l1_bps: mean(|rate| rate.l1_bps),
        };
        Offered { loads: [load(0), load(1)], by_port, per_port }
    }

    /// The units at which all ports together send `pps` frames per second.
    pub fn units(&self, pps: f64) -> f64 {
        pps / self.load(1.0).by_port.iter().map(|rate| rate.pps).sum::<f64>()
    }

    /// The load of a step (from 1) of a ramp whose last one has `top` units.
    pub fn step(&self, ramp: &RampShape, step: u32, top: f64) -> Offered {
        self.load(top * f64::from(step) / f64::from(ramp.steps.max(1)))
    }
}

/// The load of `l2_bps` per sending port.
pub fn of_bps(l2_bps: f64, average_bytes: [f64; 2], direction: Direction) -> Offered {
    Shape::new(Speed::L2Bps(l2_bps), average_bytes, direction).load(l2_bps)
}

/// The load that offers one frame per tunnel to each sending port, and for how long.
pub fn one_per_tunnel(tunnels: u32, direction: Direction) -> ([Load; 2], Duration) {
    let time = PRIME_TIME_MIN.max(Duration::from_secs(tunnels.into()) / PRIME_PPS);
    let pps = f64::from(tunnels) / time.as_secs_f64();
    let loads = senders(direction).map(|sends| if sends { Load::Paced(pps) } else { Load::Silent });
    (loads, time)
}

/// The search for the highest rate that is forwarded: ever larger trials until one overloads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Climb {
    next_bps: f64,
    best_bps: f64,
    ceiling_bps: f64,
    is_over: bool,
}

impl Climb {
    /// A search below `ceiling_bps`, the L2 rate per port that the generator loop carries.
    pub fn new(ceiling_bps: f64) -> Climb {
        Climb { next_bps: ceiling_bps * CLIMB_START, best_bps: 0.0, ceiling_bps, is_over: false }
    }

    /// L2 bits per second and port of the next trial; `None` when the search is over.
    pub fn next(&self) -> Option<f64> {
        (!self.is_over).then_some(self.next_bps)
    }

    /// Books a trial: `forwarded_bps` per port came through.
    pub fn book(&mut self, forwarded_bps: f64) {
        self.best_bps = self.best_bps.max(forwarded_bps);
        self.is_over =
            forwarded_bps < self.next_bps * CLIMB_END || self.next_bps >= self.ceiling_bps;
        self.next_bps = (self.next_bps * CLIMB_FACTOR).min(self.ceiling_bps);
    }

    /// The maximum for the ramp; the first trial's rate when nothing at all came through.
    pub fn maximum_bps(&self) -> f64 {
        let found =
            if self.best_bps > 0.0 { self.best_bps } else { self.ceiling_bps * CLIMB_START };
        found * HEADROOM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gateway that forwards up to `limit`, and less the more it is overloaded.
    fn climb(ceiling: f64, limit: f64) -> (f64, u32) {
        let mut climb = Climb::new(ceiling);
        let mut trials = 0;
        while let Some(load) = climb.next() {
            trials += 1;
            climb.book(if load <= limit { load } else { limit * limit / load });
        }
        (climb.maximum_bps(), trials)
    }

    #[test]
    fn the_search_ends_beyond_the_knee_wherever_it_is() {
        for limit in [0.05, 0.1, 0.3, 0.5, 0.99] {
            let (maximum, trials) = climb(1.0, limit);
            assert!(maximum > limit * 0.9, "{limit}: {maximum}");
            assert!(maximum < limit * 1.3, "{limit}: {maximum}");
            assert!(trials <= 10);
        }
    }

    #[test]
    fn a_dead_or_an_endless_gateway_ends_the_search() {
        assert_eq!(climb(1e9, 0.0).1, 1);
        let (maximum, trials) = climb(1e9, 1e12);
        assert!((maximum - 1.2e9).abs() < 1.0 && trials <= 10);
    }

    #[test]
    fn only_senders_are_given_a_load() {
        let uni = of_bps(8e6, [996.0, 121.0], Direction::Unidirectional);
        assert_eq!(uni.loads, [Load::Paced(1000.0), Load::Silent]);
        assert_eq!((uni.per_port.pps, uni.per_port.l2_bps), (1000.0, 8e6));
        assert_eq!(uni.by_port, [uni.per_port, Rate::default()]);
        let both = of_bps(8e6, [996.0, 121.0], Direction::Bidirectional);
        assert_eq!(both.loads, [Load::Paced(1000.0), Load::Paced(8000.0)]);
        assert_eq!((both.per_port.pps, both.per_port.l2_bps), (4500.0, 8e6));
        assert_eq!(both.by_port.map(|rate| rate.pps), [1000.0, 8000.0]);
    }

    #[test]
    fn frames_per_second_are_those_of_each_port() {
        let shape = Shape::new(Speed::Pps(2e4), [996.0, 121.0], Direction::Bidirectional);
        let both = shape.load(2e4);
        assert_eq!(both.loads, [Load::Paced(2e4), Load::Paced(2e4)]);
        assert_eq!(both.by_port.map(|rate| rate.l2_bps), [160e6, 20e6]);
        assert_eq!((both.per_port.pps, both.per_port.l2_bps), (2e4, 90e6));
    }

    #[test]
    fn steps_are_linear_and_end_at_the_maximum() {
        let ramp = RampShape { steps: 20, step_time_s: 10.0, drain_ms: 200, settle_s: 2.0 };
        let shape = Shape::new(Speed::Auto, [990.6, 60.0], Direction::Unidirectional);
        for step in 1..=20 {
            let load = shape.step(&ramp, step, 4e9).per_port;
            assert!((load.l2_bps - 2e8 * f64::from(step)).abs() < 1.0);
        }
    }

    #[test]
    fn every_tunnel_is_tried_once_at_a_gentle_rate() {
        for tunnels in [1, 10, 500, 10_000, 65_000] {
            let (load, time) = one_per_tunnel(tunnels, Direction::Unidirectional);
            let Load::Paced(pps) = load[0] else { panic!("{load:?}") };
            assert_eq!(load[1], Load::Silent);
            assert!(pps <= 2000.0);
            let frames = crate::traffic::expected_frames(time.as_secs_f64(), pps);
            assert_eq!(frames, u64::from(tunnels));
        }
    }

    #[test]
    fn short_steps_settle_for_a_fifth() {
        let ramp = |step_time_s| RampShape { steps: 20, step_time_s, drain_ms: 200, settle_s: 2.0 };
        assert_eq!(settle_s(&ramp(10.0)), 2.0);
        assert_eq!(settle_s(&ramp(5.0)), 1.0);
        assert_eq!(settle_s(&ramp(60.0)), 2.0);
    }
}
