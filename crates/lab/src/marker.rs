//! Figures of merit: the published marker, the zero-loss marker, the last clean step, labels.
//!
//! The published rule takes the last sample before anything exceeds a threshold, so a "maximum"
//! may include a few percent of loss; the stricter figures stand beside it. A rate without loss is
//! that of a whole step: of the rest of a step a sample knows nothing. Reads samples and steps,
//! measures nothing.

use crate::result::{Ceiling, Conclusion, Curve, Label, Marker, Sample, Step, Thresholds, balance};

/// Up to this ratio of lost frames counts as no loss: one in 100 000, which is what a 10 s step
/// can show while frames overtake each other between tunnels.
pub const ZERO_LOSS_RATIO: f64 = 1e-5;
/// The loss that a partial drop rate (PDR) commonly allows.
const HALF_PERCENT: f64 = 0.005;
/// Nearer to a ceiling than this, the ceiling was measured and not the gateway.
const NEAR_CEILING_RATIO: f64 = 0.01;

/// The published marker: the index of the last sample before the first one that exceeds any
/// threshold; the last sample when none does; nothing when the first one does.
pub fn marker(samples: &[Sample], thresholds: &Thresholds) -> Option<usize> {
    last_before(samples, |sample| {
        sample.latency_us.is_some_and(|latency| latency > thresholds.latency_us_max)
            || sample.rx_loss_percent > thresholds.rx_loss_percent_max
            || sample.latency_loss_percent > thresholds.latency_loss_percent_max
    })
}

/// The index of the last sample before load frames are lost. The rest of its step may lose some:
/// what goes without loss is [`zero_loss_bps`].
pub fn zero_loss_marker(samples: &[Sample]) -> Option<usize> {
    last_before(samples, |sample| sample.rx_loss_percent > ZERO_LOSS_RATIO * 100.0)
}

/// The number of the last whole step before the first one that lost a load frame.
pub fn last_clean_step(steps: &[Step]) -> Option<u32> {
    last_before(steps, |step| step.loss_ratio > 0.0).map(|index| steps[index].step)
}

/// L2 bits per second received without loss, all receiving ports together: in the last whole step
/// before the first one that lost a load frame. Nothing where the first one did.
pub fn zero_loss_bps(curve: &Curve) -> Option<f64> {
    let number = last_clean_step(&curve.steps)?;
    let step = curve.steps.iter().find(|step| step.step == number)?;
    let offered_bps = step.offered_per_port.l2_bps * f64::from(curve.direction.senders());
    // As in a marker: what a generator owed and sent late is no rate that was sustained.
    Some(step.received_rate.l2_bps.min(offered_bps))
}

/// The number of the last whole step before the first one that lost more than 0.5 %.
pub fn last_half_percent_step(steps: &[Step]) -> Option<u32> {
    last_before(steps, |step| step.loss_ratio > HALF_PERCENT).map(|index| steps[index].step)
}

/// Works out all figures and labels of a curve. `samples` are the curve's own, in order;
/// `steps_planned` is the ramp's length.
pub fn conclude(
    curve: &Curve,
    samples: &[Sample],
    thresholds: &Thresholds,
    ceilings: &[Ceiling],
    steps_planned: u32,
) -> Conclusion {
    let marker = marker(samples, thresholds).map(|index| at(samples, index));
    let mut labels = Vec::new();
    if let Some(from_step) = generator_limit(curve, marker.as_ref()) {
        labels.push(Label::GeneratorLimited { from_step });
    }
    let near = |ceiling: &&Ceiling| {
        ceiling.direction.is_none_or(|direction| direction == curve.direction)
            && marker.is_some_and(|m| m.rx_bps >= ceiling.l2_bps * (1.0 - NEAR_CEILING_RATIO))
    };
    labels.extend(
        ceilings
            .iter()
            .filter(near)
            .map(|ceiling| Label::NearCeiling { ceiling: ceiling.name.clone() }),
    );
    if curve.steps.len() < steps_planned as usize {
        labels.push(Label::Interrupted);
    }
    if !balance(&curve.accounting).is_empty() {
        labels.push(Label::Unaccounted);
    }
    Conclusion {
        marker,
        zero_loss_marker: zero_loss_marker(samples).map(|index| at(samples, index)),
        last_clean_step: last_clean_step(&curve.steps),
        last_half_percent_step: last_half_percent_step(&curve.steps),
        labels,
    }
}

/// The first step that the generator could not fill, if that bears on the marker: a marker in an
/// earlier step was found by the gateway's own limit. The step after the marker's is included,
/// because there a missing load may have been what exceeded the threshold.
fn generator_limit(curve: &Curve, marker: Option<&Marker>) -> Option<u32> {
    let from_step = curve.steps.iter().find(|step| step.generator_limited)?.step;
    let reach = marker.map_or(u32::MAX, |marker| marker.step + 1);
    (from_step <= reach).then_some(from_step)
}

fn last_before<T>(items: &[T], bad: impl Fn(&T) -> bool) -> Option<usize> {
    items.iter().position(bad).unwrap_or(items.len()).checked_sub(1)
}

fn at(samples: &[Sample], index: usize) -> Marker {
    let sample = &samples[index];
    Marker {
        sample: index,
        step: sample.step,
        // A generator that was held up sends what it owes: more than was asked for, in a sample or two, is no rate that was sustained.
        rx_bps: sample.rx_bps.min(sample.offered_bps),
        latency_us: sample.latency_us,
        rx_loss_percent: sample.rx_loss_percent,
        latency_loss_percent: sample.latency_loss_percent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{AccountingRow, Direction, Side, example};

    /// Samples with the given receive loss, percent.
    fn losing(losses: &[f64]) -> Vec<Sample> {
        let (_, samples) = example::curve("x", 1, 1.0, &[1.0]);
        losses
            .iter()
            .map(|&rx_loss_percent| Sample {
                rx_loss_percent,
                latency_loss_percent: 0.0,
                latency_us: Some(50.0),
                ..samples[0].clone()
            })
            .collect()
    }

    #[test]
    fn the_rule_stops_at_the_first_excess_of_any_threshold() {
        let limits = &example::THRESHOLDS;
        assert_eq!(marker(&[], limits), None);
        assert_eq!(marker(&losing(&[6.0, 0.0]), limits), None);
        assert_eq!(marker(&losing(&[0.0, 5.0, 5.1, 0.0, 0.0]), limits), Some(1));
        assert_eq!(marker(&losing(&[0.0, 1.0, 2.0]), limits), Some(2));
        let mut slow = losing(&[0.0; 4]);
        slow[2].latency_us = Some(1000.5);
        assert_eq!(marker(&slow, limits), Some(1));
        slow[2].latency_us = None;
        assert_eq!(marker(&slow, limits), Some(3));
        slow[3].latency_loss_percent = 8.5;
        assert_eq!(marker(&slow, limits), Some(2));
    }

    #[test]
    fn stricter_figures_stop_earlier() {
        assert_eq!(zero_loss_marker(&losing(&[0.0, 0.0009, 0.0011, 0.0])), Some(1));
        let (curve, _) = example::curve("x", 1, 10.0, &[2.5, 5.0, 7.3, 8.0]);
        assert_eq!(
            (last_clean_step(&curve.steps), last_half_percent_step(&curve.steps)),
            (Some(2), Some(2))
        );
        let (mut curve, _) = example::curve("x", 1, 4.0, &[0.5, 2.0]);
        assert_eq!(last_clean_step(&curve.steps), None);
        curve.steps[0].loss_ratio = 0.005;
        curve.steps[1].loss_ratio = 0.0051;
        assert_eq!(
            (last_clean_step(&curve.steps), last_half_percent_step(&curve.steps)),
            (None, Some(1))
        );
    }

    /// A step whose first samples were clean, and whose books are not, has no rate without loss.
    #[test]
    fn what_goes_without_loss_is_a_whole_step() {
        let (mut curve, samples) = example::curve("x", 1, 4.0, &[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(zero_loss_marker(&samples), Some(samples.len() - 1));
        curve.steps[2].loss_ratio = 0.3;
        assert!((zero_loss_bps(&curve).unwrap() - 2e9).abs() < 1.0);
        curve.steps[1].received_rate.l2_bps = 2.5e9;
        assert!((zero_loss_bps(&curve).unwrap() - 2e9).abs() < 1.0);
        curve.steps[0].loss_ratio = 1e-6;
        assert_eq!(zero_loss_bps(&curve), None);
        curve.steps.clear();
        assert_eq!(zero_loss_bps(&curve), None);
    }

    /// The published figure's markers follow from its own digitised curves and the top of its
    /// ramp, wherever loss alone decided.
    #[test]
    fn the_published_markers_come_out_of_the_published_ramps() {
        for (ramp, top_gbps, published_gbps) in [
            ("T1 uni lpm+fib", 86.0, 72.23),
            ("T1 bi lpm+fib", 141.0, 115.27),
            ("T2 120K", 131.0, 114.75),
            ("T3 2000T", 131.0, 114.61),
        ] {
            let rx = example::published_ramp(ramp);
            let mut samples = losing(&vec![0.0; rx.len()]);
            for (index, sample) in samples.iter_mut().enumerate() {
                let offered = top_gbps * (index + 1) as f64 / rx.len() as f64;
                (sample.rx_bps, sample.offered_bps) = (rx[index] * 1e9, offered * 1e9);
                sample.rx_loss_percent = (1.0 - rx[index] / offered) * 100.0;
            }
            let found = at(&samples, marker(&samples, &example::THRESHOLDS).unwrap()).rx_bps / 1e9;
            assert!((found / published_gbps - 1.0).abs() < 0.01, "{ramp}: {found}");
        }
    }

    /// What a generator that was held up sends afterwards is more than was asked for.
    #[test]
    fn no_marker_is_above_what_was_offered() {
        let mut samples = losing(&[0.0, 0.0]);
        samples[1].offered_bps = 60e6;
        samples[1].rx_bps = 240e6;
        assert_eq!(at(&samples, 1).rx_bps, 60e6);
    }

    #[test]
    fn labels_say_under_which_conditions() {
        let (mut curve, samples) = example::curve("x", 1, 4.0, &[1.0, 2.0, 3.0, 3.85]);
        let limits = &example::THRESHOLDS;
        let ceiling =
            |name: &str, l2_bps| Ceiling { name: name.into(), l2_bps, pps: None, direction: None };
        let mut ceilings = vec![ceiling("link", 5e9)];
        assert_eq!(conclude(&curve, &samples, limits, &ceilings, 4).labels, vec![]);

        ceilings.push(ceiling("loop", 3.02e9));
        ceilings.push(Ceiling { direction: Some(Direction::Bidirectional), ..ceiling("b", 3e9) });
        let found = conclude(&curve, &samples, limits, &ceilings, 4);
        assert_eq!(found.marker.unwrap().step, 4);
        assert_eq!(found.last_clean_step, Some(3));
        assert_eq!(found.labels, [Label::NearCeiling { ceiling: "loop".into() }]);
        assert_eq!(found.labels[0].text(), "within 1 % of a ceiling: loop");

        curve.steps[3].generator_limited = true;
        curve.accounting.push(AccountingRow {
            place: "gw0".into(),
            side: Side::In,
            name: "more".into(),
            packets: 1,
        });
        assert_eq!(
            conclude(&curve, &samples, limits, &[], 5).labels,
            [Label::GeneratorLimited { from_step: 4 }, Label::Interrupted, Label::Unaccounted]
        );
    }

    #[test]
    fn a_generator_limit_far_beyond_the_marker_is_no_label() {
        let (mut curve, samples) = example::curve("x", 1, 4.0, &[1.0, 1.1, 1.2, 1.3]);
        curve.steps[3].generator_limited = true;
        let found = conclude(&curve, &samples, &example::THRESHOLDS, &[], 4);
        assert_eq!((found.marker.unwrap().step, found.labels), (1, vec![]));
    }
}
