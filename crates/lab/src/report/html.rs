//! The report as one HTML page that needs nothing but itself: no network, no other file.
//!
//! Figures and tables are complete without scripts; the script only adds a read-out under the
//! pointer. The raw files are embedded as downloads.

pub(super) mod parts;
mod tables;

use self::parts::{Table, data_url, list, section};
use self::tables::{accounting, environment, limits, negotiations};
use super::number;
use super::reference::{OTHER_HARDWARE, published};
use super::svg::{EDGES, LEFT, RIGHT, WIDTH, escape};
use super::text::{remarks, rule};
use crate::marker::zero_loss_bps;
use crate::plot::Plot;
use crate::result::{Curve, Marker, Rate, Run, RunResult, Step, write_samples};

pub(super) const STYLE: &str = include_str!("html/style.css");
const SCRIPT: &str = include_str!("html/readout.js");
/// Points per curve in the read-out; beyond it they are thinned, a pixel has no more.
const READOUT_POINTS_MAX: usize = 1200;

/// The page for one run; `svg` is its plot.
pub fn page(run: &Run, plot: &Plot, svg: &str) -> String {
    let result = &run.result;
    let mut body = header(result);
    body.push_str(&section("summary", "Summary", &summary(result)));
    body.push_str(&section("plot", "Plot", &figure(plot, svg)));
    body.push_str(&section("published", "Beside the published figures", &beside(result)));
    body.push_str(&section("steps", "Step by step", &steps(result)));
    let negotiated = negotiations(result);
    if !negotiated.is_empty() {
        body.push_str(&section("negotiation", "Negotiated tunnels", &negotiated));
    }
    body.push_str(&section("accounting", "Where every packet went", &accounting(result)));
    body.push_str(&section("limits", "Ceilings and calibration", &limits(result)));
    body.push_str(&section("environment", "Environment", &environment(run)));
    body.push_str(&section("data", "Raw data", &downloads(run)));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n\
         <script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        escape(&result.title)
    )
}

fn header(result: &RunResult) -> String {
    let mut html = format!(
        "<header>\n<h1>{}</h1>\n<p class=\"meta\">recipe <b>{}</b> · ruler <b>{}</b> · {} · {} {}\
         </p>\n",
        escape(&result.title),
        escape(&result.recipe),
        result.ruler.as_str(),
        escape(&result.started_at),
        escape(&result.tool.name),
        escape(&result.tool.version),
    );
    let mut warnings: Vec<String> = result.notes.clone();
    for curve in &result.curves {
        warnings.extend(remarks(curve).iter().map(|remark| format!("{}: {remark}", curve.name)));
    }
    if !warnings.is_empty() {
        html.push_str(&list("warnings", &warnings));
    }
    html.push_str("</header>\n");
    html
}

fn summary(result: &RunResult) -> String {
    let mut table = Table::new(
        "Figures of merit of every curve",
        &[
            "curve",
            "tunnels",
            "direction",
            "marker",
            "latency",
            "RX loss",
            "latency loss",
            "zero loss",
            "last clean step",
            "last step ≤ 0.5 %",
        ],
    );
    for curve in &result.curves {
        let found = &curve.conclusion;
        let figure = |value: fn(&Marker) -> String| found.marker.as_ref().map_or("–".into(), value);
        table.row(&[
            curve.name.clone(),
            curve.tunnels.to_string(),
            curve.direction.as_str().into(),
            figure(|m| number::bps(m.rx_bps)),
            figure(|m| number::latency(m.latency_us)),
            figure(|m| number::percent(m.rx_loss_percent)),
            figure(|m| number::percent(m.latency_loss_percent)),
            zero_loss_bps(curve).map_or("–".into(), number::bps),
            step_and_load(curve, found.last_clean_step),
            step_and_load(curve, found.last_half_percent_step),
        ]);
    }
    let lead = result
        .curves
        .iter()
        .filter_map(|curve| Some((curve, curve.conclusion.marker?)))
        .max_by(|(_, a), (_, b)| a.rx_bps.total_cmp(&b.rx_bps))
        .map(|(curve, marker)| {
            format!(
                "<p class=\"lead\"><b>{}</b> received at the marker of <b>{}</b></p>\n",
                number::bps(marker.rx_bps),
                escape(&curve.name)
            )
        })
        .unwrap_or_default();
    format!("{lead}{}<p class=\"small\">{}</p>\n", table.finish(), escape(&rule(result)))
}

/// A step with the load it stands for, because its number alone says nothing.
fn step_and_load(curve: &Curve, step: Option<u32>) -> String {
    let Some(step) = step else { return "none".into() };
    let load = curve.steps.iter().find(|entry| entry.step == step);
    load.map_or_else(
        || step.to_string(),
        |entry| {
            let offered =
                number::by_port(&entry.offered_by_port(), |rate| number::bps(rate.l2_bps));
            format!("{step} ({offered}/port)")
        },
    )
}

fn figure(plot: &Plot, svg: &str) -> String {
    // The page's own heading names the plot; the XML ids stay unique, the page has one plot.
    format!(
        "<figure>\n<div class=\"plot\" id=\"plot-area\">{svg}<div id=\"readout\" hidden></div>\
         </div>\n<figcaption>Boxes: figures at the marker. Red dashes: thresholds. Grey dots: \
         ceilings. Hatching: steps that the generator could not fill.</figcaption>\n</figure>\n\
         <script type=\"application/json\" id=\"plot-data\">{}</script>\n",
        readout(plot)
    )
}

/// What the script shows under the pointer: geometry and values, as JSON.
fn readout(plot: &Plot) -> String {
    let longest = plot.series.iter().map(|series| series.points.len()).max().unwrap_or(0);
    let every = longest.div_ceil(READOUT_POINTS_MAX).max(1);
    let series: Vec<serde_json::Value> = plot
        .series
        .iter()
        .map(|series| {
            let points: Vec<serde_json::Value> = series
                .points
                .iter()
                .step_by(every)
                .map(|point| {
                    serde_json::json!([
                        point.step,
                        number::bps(point.rx_bps),
                        number::latency(point.latency_us),
                        number::percent(point.rx_loss_percent),
                        number::percent(point.latency_loss_percent),
                    ])
                })
                .collect();
            serde_json::json!({ "label": series.label, "points": points })
        })
        .collect();
    let data = serde_json::json!({
        "width": WIDTH, "left": LEFT, "right": RIGHT, "top": EDGES[0], "bottom": EDGES[4],
        "last": longest.saturating_sub(1), "every": every, "series": series,
    });
    // `</script>` inside a label would end the element; JSON may write the slash's angle escaped.
    data.to_string().replace('<', "\\u003c")
}

fn beside(result: &RunResult) -> String {
    let mut table = Table::new(
        OTHER_HARDWARE,
        &[
            "curve",
            "here",
            "published figure",
            "published curve",
            "by",
            "published",
            "latency",
            "RX loss",
            "latency loss",
        ],
    );
    for curve in &result.curves {
        for figure in published(&result.recipe, curve) {
            let here = curve.conclusion.marker.map_or("–".into(), |m| number::bps(m.rx_bps));
            table.row(&[
                curve.name.clone(),
                here,
                figure.figure,
                figure.curve,
                figure.engine.to_owned(),
                number::bps(figure.rx_gbps * 1e9),
                number::microseconds(figure.latency_us),
                number::percent(figure.rx_loss_percent),
                number::percent(figure.latency_loss_percent),
            ]);
        }
    }
    if table.is_empty() {
        return "<p>No published figure corresponds to this recipe.</p>\n".into();
    }
    table.finish()
}

fn steps(result: &RunResult) -> String {
    let mut html = String::new();
    for curve in &result.curves {
        let mut table = Table::new(
            &format!("{}, {}", curve.name, curve.direction.as_str()),
            &[
                "step",
                "direction",
                "offered per port",
                "pps",
                "L1",
                "sent",
                "received",
                "received rate",
                "loss",
                "reordered",
                "duplicated",
                "corrupted",
                "misrouted",
                "late",
                "latency min",
                "avg",
                "p50",
                "p90",
                "p99",
                "p99.9",
                "max",
                "probe loss",
            ],
        );
        for step in &curve.steps {
            step_rows(&mut table, step);
        }
        html.push_str(&format!(
            "<details{}>\n<summary>{}</summary>\n{}</details>\n",
            if result.curves.len() == 1 { " open" } else { "" },
            escape(&curve.name),
            table.finish()
        ));
    }
    html
}

/// One row for all directions together, and one for each if there are several.
fn step_rows(table: &mut Table, step: &Step) {
    let mut row = |name: &str,
                   asked: &[Rate],
                   rate: &Rate,
                   frames,
                   loss_ratio,
                   latency,
                   probe_loss: f64| {
        let frames: &crate::result::Counts = frames;
        let latency: Option<crate::result::Latency> = latency;
        let mut cells = vec![
            step.step.to_string(),
            name.to_owned(),
            number::by_port(asked, |rate| number::bps(rate.l2_bps)),
            number::by_port(asked, |rate| number::pps(rate.pps)),
            number::by_port(asked, |rate| number::bps(rate.l1_bps)),
            number::count(frames.sent),
            number::count(frames.received),
            number::bps(rate.l2_bps),
            number::percent(loss_ratio),
        ];
        cells.extend(
            [frames.reordered, frames.duplicated, frames.corrupted, frames.misrouted, frames.late]
                .map(number::count),
        );
        let figures = latency.map(|l| {
            [l.min_us, l.avg_us, l.p50_us, l.p90_us, l.p99_us, l.p99_9_us, l.max_us]
                .map(number::microseconds)
        });
        cells.extend(figures.unwrap_or_else(|| std::array::from_fn(|_| "–".into())));
        cells.push(number::percent(probe_loss));
        table.row(&cells);
    };
    let all = if step.generator_limited { "all (generator-limited)" } else { "all" };
    row(
        all,
        &step.offered_by_port(),
        &step.received_rate,
        &step.frames,
        step.loss_ratio * 100.0,
        step.latency,
        step.latency_loss_ratio * 100.0,
    );
    if step.directions.len() > 1 {
        for direction in &step.directions {
            row(
                &direction.name,
                direction.offered.as_slice(),
                &direction.received_rate,
                &direction.frames,
                direction.frames.loss_ratio() * 100.0,
                direction.latency,
                direction.probes.loss_ratio() * 100.0,
            );
        }
    }
}

fn downloads(run: &Run) -> String {
    // A run that was read or is about to be written has only what JSON can hold.
    let json = |value: serde_json::Result<String>| value.unwrap_or_else(|e| e.to_string());
    let files = [
        ("result.json", "application/json", json(serde_json::to_string_pretty(&run.result))),
        ("samples.csv", "text/csv", write_samples(&run.samples)),
        ("env.json", "application/json", json(serde_json::to_string_pretty(&run.environment))),
    ];
    let mut html = String::from("<p>The page carries the files it was made from:</p>\n<ul>\n");
    for (name, kind, content) in files {
        html.push_str(&format!(
            "<li><a download=\"{name}\" href=\"{}\">{name}</a> ({} kB)</li>\n",
            data_url(kind, &content),
            content.len().div_ceil(1000)
        ));
    }
    html + "</ul>\n"
}

#[cfg(test)]
mod tests;
