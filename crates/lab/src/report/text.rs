//! Tables for terminals: the steps of a curve, and a summary beside the published figures.
//!
//! Plain text without colours; whoever prints it may add some.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

use super::negotiation;
use super::number;
use super::reference::{OTHER_HARDWARE, published};
use crate::marker::zero_loss_bps;
use crate::result::{Curve, Label, Marker, RunResult, Step, balance};

/// Rules above, below and under the header; one line per row.
const LOOK: TableStyle = UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none());

/// The steps of one curve.
pub fn steps(curve: &Curve) -> String {
    let mut table = table(&[
        "step",
        "offered/port",
        "offered/port",
        "received",
        "loss",
        "reord.",
        "dup.",
        "corrupt",
        "p50",
        "p99",
        "max",
        "probe loss",
        "",
    ]);
    for step in &curve.steps {
        table.add_row(step_cells(step));
    }
    format!("{} ({})\n{table}\n", curve.name, curve.direction.as_str())
}

fn step_cells(step: &Step) -> Vec<String> {
    let latency = |value: fn(&crate::result::Latency) -> f64| {
        number::latency(step.latency.as_ref().map(value))
    };
    let offered = step.offered_by_port();
    vec![
        step.step.to_string(),
        number::by_port(&offered, |rate| number::bps(rate.l2_bps)),
        number::by_port(&offered, |rate| number::pps(rate.pps)),
        number::bps(step.received_rate.l2_bps),
        number::percent(step.loss_ratio * 100.0),
        number::count(step.frames.reordered),
        number::count(step.frames.duplicated),
        number::count(step.frames.corrupted),
        latency(|l| l.p50_us),
        latency(|l| l.p99_us),
        latency(|l| l.max_us),
        number::percent(step.latency_loss_ratio * 100.0),
        if step.generator_limited { "generator-limited".into() } else { String::new() },
    ]
}

/// The figures of merit of every curve, what bears on them, and the published figures.
pub fn summary(result: &RunResult) -> String {
    let mut text = format!("{}\n{} · {}\n", result.title, result.recipe, result.ruler.as_str());
    let mut table = table(&[
        "curve",
        "marker",
        "latency",
        "RX loss",
        "lat. loss",
        "zero loss",
        "clean step",
        "≤ 0.5 %",
    ]);
    for curve in &result.curves {
        table.add_row(summary_cells(curve));
    }
    text.push_str(&format!("{table}\n{}\n", rule(result)));
    text.push_str(&negotiations(result));
    for curve in &result.curves {
        for sentence in remarks(curve) {
            text.push_str(&format!("{}: {sentence}\n", curve.name));
        }
    }
    for ceiling in &result.ceilings {
        text.push_str(&format!("ceiling {}: {}\n", ceiling.name, number::bps(ceiling.l2_bps)));
    }
    text.push_str(&beside_published(result));
    for note in &result.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

fn summary_cells(curve: &Curve) -> Vec<String> {
    let found = &curve.conclusion;
    let figure = |value: fn(&Marker) -> String| found.marker.as_ref().map_or("–".into(), value);
    let step = |step: Option<u32>| step.map_or("none".into(), |step| step.to_string());
    vec![
        curve.name.clone(),
        figure(|m| number::bps(m.rx_bps)),
        figure(|m| number::latency(m.latency_us)),
        figure(|m| number::percent(m.rx_loss_percent)),
        figure(|m| number::percent(m.latency_loss_percent)),
        zero_loss_bps(curve).map_or("–".into(), number::bps),
        step(found.last_clean_step),
        step(found.last_half_percent_step),
    ]
}

/// Tunnels that were negotiated, or nothing.
fn negotiations(result: &RunResult) -> String {
    let mut table = table(&negotiation::HEADER);
    negotiation::rows(result).into_iter().for_each(|row| {
        table.add_row(row);
    });
    if table.is_empty() {
        return String::new();
    }
    let sentences = negotiation::sentences(result).join("\n");
    format!("\n{}\n{table}\n{sentences}\n", negotiation::CAPTION)
}

/// What the columns of rates mean.
pub(super) fn rule(result: &RunResult) -> String {
    let limits = &result.thresholds;
    format!(
        "Marker: last sample before latency exceeds {}, RX loss {} % or latency loss {} %; \
         zero loss: received in the last clean step; rates are L2 with FCS, all ports",
        number::round_microseconds(limits.latency_us_max),
        limits.rx_loss_percent_max,
        limits.latency_loss_percent_max,
    )
}

/// Labels and open books of a curve, as sentences.
pub(super) fn remarks(curve: &Curve) -> Vec<String> {
    let mut remarks: Vec<String> = curve.conclusion.labels.iter().map(Label::text).collect();
    remarks.extend(balance(&curve.accounting).iter().map(|book| {
        format!(
            "at {}, {} packets came in and {} are accounted for",
            book.place,
            number::count(book.entered),
            number::count(book.named)
        )
    }));
    remarks
}

/// The published figures, or nothing where there are none.
fn beside_published(result: &RunResult) -> String {
    let mut table = table(&["curve", "published figure", "curve", "by", "marker", "latency"]);
    for curve in &result.curves {
        for figure in published(&result.recipe, curve) {
            table.add_row(vec![
                curve.name.clone(),
                figure.figure,
                figure.curve,
                figure.engine.to_owned(),
                number::bps(figure.rx_gbps * 1e9),
                number::microseconds(figure.latency_us),
            ]);
        }
    }
    if table.is_empty() { String::new() } else { format!("\n{OTHER_HARDWARE}\n{table}\n") }
}

/// A table whose columns after the first are right-aligned, because they hold figures.
fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(LOOK).set_header(header.to_vec());
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marker::conclude;
    use crate::result::{Direction, example};

    fn concluded() -> RunResult {
        let mut run = example::run();
        run.result.recipe = "bf3-test1".into();
        let curve = &mut run.result.curves[0];
        curve.direction = Direction::Bidirectional;
        curve.conclusion = conclude(curve, &run.samples, &example::THRESHOLDS, &[], 20);
        run.result
    }

    #[test]
    fn the_summary_names_the_published_figure_as_other_hardware() {
        let text = summary(&concluded());
        assert!(text.contains("115.27 Gbps"), "{text}");
        assert!(text.contains(OTHER_HARDWARE));
        assert!(text.contains("end to end over veth"));
        assert!(text.contains("latency exceeds 1 ms, RX loss 5 % or latency loss 8 %"));
        let mut other = concluded();
        other.recipe = "mine".into();
        assert!(!summary(&other).contains("BlueField"));
    }

    #[test]
    fn open_books_and_labels_are_said() {
        let mut result = concluded();
        result.curves[0].accounting[0].packets += 1000;
        result.curves[0].conclusion.labels = vec![Label::GeneratorLimited { from_step: 3 }];
        let text = summary(&result);
        assert!(text.contains("500 tunnels: generator-limited from step 3\n"), "{text}");
        assert!(text.contains("500 tunnels: at path, "), "{text}");
    }

    /// Ports with other sizes are asked for as many bits and not for as many frames.
    #[test]
    fn what_ports_are_asked_for_is_told_of_each() {
        let mut result = concluded();
        let step = &mut result.curves[0].steps[0];
        let mut other = step.directions[0].clone();
        other.offered = Some(crate::traffic::rate_of_bits(2e8, 121.0));
        step.directions.push(other);
        let rows = steps(&result.curves[0]);
        assert!(rows.contains(" 200.00 Mbps "), "{rows}");
        assert!(rows.contains("23.54 kpps / 200.00 kpps"), "{rows}");
        // A file that has them not apart.
        result.curves[0].steps[0].directions.iter_mut().for_each(|one| one.offered = None);
        assert!(!steps(&result.curves[0]).contains(" / "));
    }

    #[test]
    fn every_step_is_a_row() {
        let mut result = concluded();
        result.curves[0].steps[2].generator_limited = true;
        let text = steps(&result.curves[0]);
        assert!(text.starts_with("500 tunnels (bidirectional)\n"));
        // Name, header, rules above, between and below, and 20 steps.
        assert_eq!(text.lines().count(), 25, "{text}");
        assert_eq!(text.matches("generator-limited").count(), 1);
        assert!(text.contains("1.00 Gbps"), "{text}");
    }
}
