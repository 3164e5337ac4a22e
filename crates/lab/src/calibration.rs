//! The loop test: generator straight into sink over one link, with the test's own frames.
//!
//! It comes before every run, and what it finds is the ceiling of everything measured after it:
//! no gateway can show more than the generator offers and the sink takes. It loads the ports in the
//! proportion in which the ramp does. Its latency is the bias in every other latency; nothing is
//! subtracted, both are published.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::clock;
use crate::generator::Load;
use crate::recipe::Recipe;
use crate::result::{Calibration, CalibrationPoint, Ceiling, Direction, Rate};
use crate::run::load::{Offered, Shape};
use crate::station::{Order, Station, StationError, Steady, StepBooks};
use crate::topology::{Namespace, Veth};
use crate::traffic::rate;
use crate::wiring::{Wiring, WiringError, mac, senders};

/// How the ceilings' names begin in reports; the direction follows.
pub const CEILING: &str = "generator loop";
/// Long enough for a mean over ten thousands of frames, short enough to be run every time.
const FLAT_OUT_TIME: Duration = Duration::from_millis(400);
/// The best of so many trials is the ceiling: a moment in which the machine did something else
/// must not make it too low, and nothing can make it too high.
const FLAT_OUT_TRIALS: u32 = 3;
/// One point of the curve.
const POINT_TIME: Duration = Duration::from_millis(500);
/// Points of the curve: tenths of the flat-out rate.
const POINTS: u32 = 10;
/// The rate of the latency measurement, frames per second beside the probes: low enough that no
/// frame ever waits for another.
const LATENCY_PPS: f64 = 1000.0;
/// 100 probes per second and port, so that the 99th percentile rests on two of them.
const LATENCY_TIME: Duration = Duration::from_secs(2);
/// Silence after each trial, enough for a veth.
const DRAIN: Duration = Duration::from_millis(100);

/// Why the lab could not be calibrated.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The loop could not be built.
    #[error("building the calibration loop: {0}")]
    Wiring(#[from] WiringError),
    /// The station does not work.
    #[error("calibrating: {0}")]
    Station(#[from] StationError),
    /// Nothing came back.
    #[error(
        "the calibration loop lost everything: {sent} frames sent over a veth pair, none received; \
         does this kernel support AF_XDP on veth?"
    )]
    Dead {
        /// Frames sent.
        sent: u64,
    },
}

/// Measures the loop with the frames of `recipe` and `wiring`, for each direction of the recipe.
/// `None` when stopped before it was complete.
///
/// # Errors
/// [`CalibrationError`]: the loop cannot be built, its generator failed, or no frame came back.
pub fn calibrate(
    recipe: &Recipe,
    wiring: &Wiring,
    stop: &Arc<AtomicBool>,
) -> Result<Option<(Calibration, Vec<Ceiling>)>, CalibrationError> {
    let namespace = Namespace::new("loop").map_err(WiringError::from)?;
    let mut station = open(&namespace, recipe, wiring, stop)?;
    let mut trial = |load, duration, settle| {
        let order = Order { load, duration, settle, drain: DRAIN };
        station.step(order, |_| {})
    };
    let low = [Load::Paced(LATENCY_PPS), Load::Silent];
    let quiet = trial(low, LATENCY_TIME, Duration::ZERO)?;
    let sent = quiet.directions[0].load.sent;
    if sent > 0 && quiet.directions[0].load.received == 0 && !quiet.interrupted {
        return Err(CalibrationError::Dead { sent });
    }
    let average_bytes = wiring_average(recipe, wiring)?;
    let shape = |direction| Shape::new(recipe.max, average_bytes, direction);
    let mut ceilings = Vec::new();
    for &direction in &recipe.directions {
        let load = senders(direction).map(|sends| if sends { Load::FlatOut } else { Load::Silent });
        let mut total = Rate::default();
        for _ in 0..FLAT_OUT_TRIALS {
            total = faster(total, total_rate(&trial(load, FLAT_OUT_TIME, FLAT_OUT_TIME / 10)?));
        }
        ceilings.push(ceiling(&shape(direction), total.pps, direction));
    }
    let direction = recipe.directions[0];
    let shape = shape(direction);
    let top = shape.units(ceilings[0].pps.unwrap_or_default());
    let mut points = Vec::new();
    let mut clean = true;
    for tenth in 1..=POINTS {
        let offered = shape.load(top * f64::from(tenth) / f64::from(POINTS));
        let books = trial(offered.loads, POINT_TIME, Duration::ZERO)?;
        if books.interrupted {
            return Ok(None);
        }
        clean &= is_clean(&books);
        points.push(point(&books, &offered, direction));
    }
    let lossless = points.iter().rfind(|point| point.loss_ratio == 0.0);
    Ok(Some((
        Calibration {
            measured_at: clock::utc_now(),
            zero_loss: lossless.map(|point| point.received).unwrap_or_default(),
            maximum: points
                .iter()
                .map(|point| point.received)
                .fold(shape.load(top).per_port, faster),
            latency: quiet.directions[0].latency.latency(),
            clean: clean && lossless.is_some(),
            points,
        },
        ceilings,
    )))
}

/// A station on the two ends of one link, with the sources of the recipe.
fn open(
    namespace: &Namespace,
    recipe: &Recipe,
    wiring: &Wiring,
    stop: &Arc<AtomicBool>,
) -> Result<Station, CalibrationError> {
    let links = ["c0", "c1"];
    Veth::new((namespace, links[0]), (namespace, links[1]), 1).map_err(WiringError::from)?;
    let tunnels = recipe.tunnels.iter().copied().max().unwrap_or(1);
    let mut ports = wiring.ports(recipe, tunnels)?;
    let macs = [mac(namespace, links[0])?, mac(namespace, links[1])?];
    for (index, port) in ports.iter_mut().enumerate() {
        port.interface = links[index].to_owned();
        port.source.source_mac = macs[index];
        port.source.destination_mac = macs[1 - index];
    }
    Ok(Station::open(namespace, ports, Arc::clone(stop))?)
}

/// The mean L2 bytes (without FCS) of the frames that both ports of the recipe send.
fn wiring_average(recipe: &Recipe, wiring: &Wiring) -> Result<[f64; 2], CalibrationError> {
    let ports = wiring.ports(recipe, 1)?;
    Ok(ports.map(|port| port.source.mix.average_bytes()))
}

/// What a ramp of this shape could reach at most where the loop takes so many frames per second: flat out, each port sends as
/// many as the other, and those of one are longer.
fn ceiling(shape: &Shape, pps: f64, direction: Direction) -> Ceiling {
    let per_port = shape.load(shape.units(pps)).per_port;
    Ceiling {
        name: format!("{CEILING}, {}", direction.as_str()),
        l2_bps: per_port.l2_bps * f64::from(direction.senders()),
        pps: Some(pps),
        direction: Some(direction),
    }
}

fn point(books: &StepBooks, offered: &Offered, direction: Direction) -> CalibrationPoint {
    let (mut expected, mut lost) = (0, 0);
    for direction in &books.directions {
        expected += direction.load.expected + direction.probes.expected;
        lost += direction.load.lost + direction.probes.lost;
    }
    CalibrationPoint {
        offered: offered.per_port,
        received: per_port(total_rate(books), direction),
        loss_ratio: lost as f64 / expected.max(1) as f64,
    }
}

/// No frame was damaged, misdirected, doubled or out of order.
fn is_clean(books: &StepBooks) -> bool {
    books.directions.iter().all(|direction| {
        let load = direction.load;
        load.duplicated + load.reordered + load.corrupted + load.misrouted == 0
    })
}

/// The load received per second, all ports together.
pub fn total_rate(books: &StepBooks) -> Rate {
    let rates = books.directions.iter().map(|direction| steady_rate(&direction.steady));
    rates.fold(Rate::default(), add)
}

/// The load received per second in the steady part of a step.
pub fn steady_rate(steady: &Steady) -> Rate {
    if steady.frames == 0 || steady.duration.is_zero() {
        return Rate::default();
    }
    let pps = steady.frames as f64 / steady.duration.as_secs_f64();
    rate(pps, steady.bytes as f64 / steady.frames as f64)
}

fn add(a: Rate, b: Rate) -> Rate {
    Rate { pps: a.pps + b.pps, l2_bps: a.l2_bps + b.l2_bps, l1_bps: a.l1_bps + b.l1_bps }
}

fn faster(a: Rate, b: Rate) -> Rate {
    if b.l2_bps > a.l2_bps { b } else { a }
}

fn per_port(total: Rate, direction: Direction) -> Rate {
    let ports = f64::from(direction.senders());
    Rate { pps: total.pps / ports, l2_bps: total.l2_bps / ports, l1_bps: total.l1_bps / ports }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Speed;

    /// 9000 frames a second flat out, 4500 from either port: a ramp has 1000 long ones among them and 8000 short ones.
    #[test]
    fn the_ceiling_is_of_the_traffic_that_a_ramp_has() {
        let both = Direction::Bidirectional;
        let of = |max, direction| {
            let shape = Shape::new(max, [996.0, 121.0], direction);
            let found = ceiling(&shape, 9000.0, direction);
            assert_eq!((found.pps, found.direction), (Some(9000.0), Some(direction)));
            found.l2_bps
        };
        assert!((of(Speed::Auto, both) - 16e6).abs() < 1.0);
        assert!((of(Speed::L2Bps(1e9), both) - 16e6).abs() < 1.0);
        assert!((of(Speed::Pps(1e5), both) - 40.5e6).abs() < 1.0);
        assert!((of(Speed::Auto, Direction::Unidirectional) - 72e6).abs() < 1.0);
    }
}
