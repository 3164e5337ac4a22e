//! What a plot shows, put together from one run or from several, before any pixel is known.
//!
//! Chooses labels, ceilings and the stretches where the generator was the limit. Drawing is
//! [`crate::report::svg`]'s.

use crate::result::{Ceiling, Curve, Marker, RampShape, Run, Thresholds};

/// A figure: curves over a common ramp.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// The line on top.
    pub title: String,
    /// The red lines.
    pub thresholds: Thresholds,
    /// The ramp of the first run, for the caption of the x axis.
    pub ramp: RampShape,
    /// The curves, in legend order.
    pub series: Vec<Series>,
    /// The grey lines, without repetitions.
    pub ceilings: Vec<Ceiling>,
    /// Sentences for the bottom of the figure.
    pub footer: Vec<String>,
}

/// One curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub label: String,
    /// The samples.
    pub points: Vec<Point>,
    /// The published marker, as concluded: its rate is at most what its step offered, which its sample's may exceed.
    pub marker: Option<Marker>,
    /// Stretches of samples, first to last, in which the generator fell short.
    pub limited: Vec<(usize, usize)>,
}

/// One sample of one curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Step number, from 1.
    pub step: u32,
    /// Received L2 bits per second.
    pub rx_bps: f64,
    /// Mean probe latency, microseconds.
    pub latency_us: Option<f64>,
    /// Loss of load frames, percent.
    pub rx_loss_percent: f64,
    /// Loss of probes, percent.
    pub latency_loss_percent: f64,
}

/// A run with the name it goes by in an overlay, usually its folder's.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// The name.
    pub name: &'a str,
    /// The run.
    pub run: &'a Run,
}

/// The figure of one run, or the overlay of several. The first run gives title and thresholds;
/// nothing when there is no run.
pub fn assemble(runs: &[Named<'_>]) -> Option<Plot> {
    let first = runs.first()?;
    let overlay = runs.len() > 1;
    let mut series = Vec::new();
    let mut ceilings: Vec<Ceiling> = Vec::new();
    let mut footer = Vec::new();
    for named in runs {
        let result = &named.run.result;
        for curve in &result.curves {
            let label = if overlay {
                format!("{}: {}", named.name, curve.name)
            } else {
                curve.name.clone()
            };
            series.push(one_series(named.run, curve, label));
        }
        for ceiling in &result.ceilings {
            let concerned = ceiling.direction.is_none_or(|direction| {
                result.curves.iter().any(|curve| curve.direction == direction)
            });
            if concerned && !ceilings.iter().any(|known| is_same(known, ceiling)) {
                ceilings.push(ceiling.clone());
            }
        }
        let line = format!(
            "{}{} · {} · {} {} · {}",
            if overlay { format!("{}: ", named.name) } else { String::new() },
            result.recipe,
            result.ruler.as_str(),
            result.tool.name,
            result.tool.version,
            result.started_at,
        );
        footer.push(line);
        if result.thresholds != first.run.result.thresholds {
            footer.push(format!("{} has other thresholds; its marker follows them", named.name));
        }
    }
    Some(Plot {
        title: first.run.result.title.clone(),
        thresholds: first.run.result.thresholds,
        ramp: first.run.result.ramp,
        series,
        ceilings,
        footer,
    })
}

/// Two ceilings that a reader could not tell apart.
fn is_same(a: &Ceiling, b: &Ceiling) -> bool {
    a.name == b.name && (a.l2_bps - b.l2_bps).abs() <= a.l2_bps.abs() * 0.01
}

fn one_series(run: &Run, curve: &Curve, label: String) -> Series {
    let points: Vec<Point> = run
        .samples_of(&curve.name)
        .map(|sample| Point {
            step: sample.step,
            rx_bps: sample.rx_bps,
            latency_us: sample.latency_us,
            rx_loss_percent: sample.rx_loss_percent,
            latency_loss_percent: sample.latency_loss_percent,
        })
        .collect();
    let is_limited =
        |step: u32| curve.steps.iter().any(|entry| entry.step == step && entry.generator_limited);
    let mut limited: Vec<(usize, usize)> = Vec::new();
    for (index, _) in points.iter().enumerate().filter(|(_, point)| is_limited(point.step)) {
        match limited.last_mut() {
            Some((_, end)) if *end + 1 == index => *end = index,
            _ => limited.push((index, index)),
        }
    }
    // A file from elsewhere may name a sample that does not exist.
    let marker = curve.conclusion.marker.filter(|marker| marker.sample < points.len());
    Series { label, points, marker, limited }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Direction, example};

    #[test]
    fn one_run_keeps_its_names_and_two_runs_are_told_apart() {
        let run = example::run();
        let one = assemble(&[Named { name: "a", run: &run }]).unwrap();
        assert_eq!(one.series[0].label, "500 tunnels");
        assert_eq!(one.series[0].points.len(), 800);
        let both = Named { name: "b", run: &run };
        let two = assemble(&[Named { name: "a", run: &run }, both]).unwrap();
        let labels: Vec<_> = two.series.iter().map(|series| series.label.as_str()).collect();
        assert_eq!(labels, ["a: 500 tunnels", "b: 500 tunnels"]);
        assert_eq!(assemble(&[]), None);
    }

    #[test]
    fn limited_steps_become_stretches_of_samples() {
        let mut run = example::run();
        for step in [3, 4, 19] {
            run.result.curves[0].steps[step].generator_limited = true;
        }
        let plot = assemble(&[Named { name: "a", run: &run }]).unwrap();
        assert_eq!(plot.series[0].limited, [(120, 199), (760, 799)]);
    }

    #[test]
    fn ceilings_are_shown_once_and_only_where_they_apply() {
        let mut run = example::run();
        let ceiling =
            |l2_bps, direction| Ceiling { name: "loop".into(), l2_bps, pps: None, direction };
        run.result.ceilings = vec![
            ceiling(5e9, None),
            ceiling(5.01e9, None),
            ceiling(9e9, Some(Direction::Bidirectional)),
            ceiling(7e9, Some(Direction::Unidirectional)),
        ];
        let plot = assemble(&[Named { name: "a", run: &run }]).unwrap();
        assert_eq!(plot.ceilings.iter().map(|c| c.l2_bps).collect::<Vec<_>>(), [5e9, 7e9]);
    }
}
