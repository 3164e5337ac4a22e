//! A table of modes against cores: for a terminal, as a chart, as a page.

use std::collections::BTreeMap;
use std::path::Path;

use super::chart::{Axis, Chart, Line, Source};
use super::html::STYLE;
use super::html::parts::{Table, list, section};
use super::svg::escape;
use super::{Drawn, ReportError, chart, number, png};
use crate::marker::zero_loss_bps;
use crate::matrix::{Cell, Limit, Matrix};
use crate::result::{Label, Run, write_whole};
use crate::vpp;

/// Name of the page in the folder.
pub const PAGE_FILE: &str = "matrix.html";

/// Which bits all rates of ours are counted in.
const BITS: &str = "of the frames in clear, with Ethernet header and checksum (L2)";

/// Everything that was measured for one table.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Lines of what the figures belong to.
    pub machine: Vec<(String, String)>,
    /// The table.
    pub cells: Vec<Cell>,
    /// The ceilings.
    pub limits: Vec<Limit>,
    /// End to end over veth, one worker per gateway.
    pub veth: Veth,
    /// Sentences for the reader.
    pub notes: Vec<String>,
}

/// What was found over veth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Veth {
    /// Nothing: it was not measured.
    Unmeasured,
    /// Frames were lost at every rate.
    Lossy,
    /// Gbps without loss.
    Clean(f64),
}

impl Veth {
    /// What a run found, and what has to be known of it in sentences: under which conditions, and whether it went on to its end.
    pub fn of(run: &Run) -> (Veth, Vec<String>) {
        let mut notes = run.result.notes.clone();
        let Some(curve) = run.result.curves.first() else { return (Veth::Unmeasured, notes) };
        let told = |label: &Label| format!("End to end over veth: {}.", label.text());
        notes.extend(curve.conclusion.labels.iter().map(told));
        let veth = match zero_loss_bps(curve) {
            Some(bps) => Veth::Clean(bps / 1e9),
            // Stopped before the first step was over: nobody knows what would have been lost.
            None if curve.steps.is_empty() => Veth::Unmeasured,
            None => Veth::Lossy,
        };
        (veth, notes)
    }

    /// Gbps without loss, if there is such a rate.
    fn gbps(self) -> Option<f64> {
        if let Veth::Clean(gbps) = self { Some(gbps) } else { None }
    }

    /// The same in words.
    fn words(self) -> String {
        match self {
            Veth::Unmeasured => "not measured".to_owned(),
            Veth::Lossy => {
                "no rate without loss: frames were lost from the first step on".to_owned()
            }
            Veth::Clean(rate) => format!("{} without loss", gbps(rate)),
        }
    }
}

/// The table for a terminal.
pub fn text(matrix: &Matrix, measured: &Measured) -> String {
    let mut text = format!("{}\n", matrix.title);
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header(header(matrix));
    for row in rows(matrix, measured) {
        table.add_row(row);
    }
    text.push_str(&format!("{table}\n{}; {}\n", legend(matrix), vpp::CORES_CONDITIONS));
    text.push_str(&format!("{}\n", layer()));
    for limit in &measured.limits {
        let each = if limit.per_core { " per core" } else { "" };
        text.push_str(&format!("ceiling {}: {}{each}\n", limit.name, gbps(limit.gbps)));
    }
    let veth = measured.veth.words();
    text.push_str(&format!("end to end over veth, one worker per gateway: {veth}\n"));
    text.push_str(&format!("note: {}\n", matrix.note));
    measured.notes.iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
    text
}

/// Chart and page into a folder, which is there.
///
/// # Errors
/// [`ReportError`] if a file cannot be written.
pub fn write(folder: &Path, matrix: &Matrix, measured: &Measured) -> Result<Drawn, ReportError> {
    let svg = chart::draw(&draw(matrix, measured));
    let json = serde_json::json!({
        "schema": 1, "recipe": matrix.id, "title": matrix.title, "tunnels": matrix.tunnels,
        "size": matrix.size, "bits": BITS, "cells": measured.cells, "limits": measured.limits,
        "note": matrix.note, "veth_gbps": measured.veth.gbps(), "notes": measured.notes,
        "machine": measured.machine.iter().cloned().collect::<BTreeMap<_, _>>(),
    });
    let mut files = vec![
        ("matrix.json", format!("{json:#}\n").into_bytes()),
        ("matrix.svg", svg.clone().into_bytes()),
        (PAGE_FILE, page(matrix, measured, &svg).into_bytes()),
    ];
    let mut drawn = Drawn { files: vec![], warnings: vec![] };
    match png::render(&svg) {
        Ok(bytes) => files.push(("matrix.png", bytes)),
        Err(error) => drawn.warnings.push(format!("matrix.png was not drawn: {error}")),
    }
    for (name, bytes) in files {
        drawn.files.push(folder.join(name));
        write_whole(&folder.join(name), &bytes)?;
    }
    Ok(drawn)
}

fn header(matrix: &Matrix) -> Vec<String> {
    let cores = matrix.cores.iter().map(|cores| format!("{cores} core{}", number::plural(*cores)));
    ["mode".to_owned(), "who".to_owned()].into_iter().chain(cores).collect()
}

/// Two rows for each mode: ours, and VPP's.
fn rows(matrix: &Matrix, measured: &Measured) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for mode in &matrix.modes {
        let cells = || measured.cells.iter().filter(|cell| cell.mode == mode.name);
        let ours = cells().map(|cell| match (cell.measured, cell.modelled) {
            (Some(rate), _) => gbps(rate),
            (None, Some(rate)) => format!("({})", gbps(rate)),
            (None, None) => "–".to_owned(),
        });
        let theirs = cells().map(|cell| cell.published.map_or("–".to_owned(), gbps));
        let start = |who: String| [mode.name.clone(), who].into_iter();
        rows.push(start("Peregrine, memory ports".to_owned()).chain(ours).collect());
        rows.push(start(format!("VPP, published: {}", mode.published)).chain(theirs).collect());
    }
    rows
}

fn legend(matrix: &Matrix) -> String {
    format!(
        "{}, packets of {} bytes, sealing; in brackets: the model, where nothing is measured",
        number::tunnels(matrix.tunnels),
        matrix.size
    )
}

/// Which bits are counted, in words.
fn layer() -> String {
    format!("Rates of ours are bits {BITS}, VPP's as published.")
}

fn gbps(rate: f64) -> String {
    number::bps(rate * 1e9)
}

fn draw(matrix: &Matrix, measured: &Measured) -> Chart {
    let mut lines = Vec::new();
    for mode in &matrix.modes {
        let cells = || measured.cells.iter().filter(|cell| cell.mode == mode.name);
        for (source, who) in [
            (Source::Measured, "Peregrine, "),
            (Source::Modelled, "model, "),
            (Source::Published, "VPP, "),
        ] {
            let value = |cell: &Cell| match source {
                Source::Measured => cell.measured,
                Source::Modelled => cell.modelled,
                _ => cell.published,
            };
            let points = cells().filter_map(|cell| Some((f64::from(cell.cores), value(cell)?)));
            let points: Vec<(f64, f64)> = points.collect();
            if !points.is_empty() {
                let name = if source == Source::Published { &mode.published } else { &mode.name };
                lines.push(Line { label: format!("{who}{name}"), source, points });
            }
        }
    }
    let last = matrix.cores.iter().copied().max().unwrap_or(1);
    for limit in &measured.limits {
        let at = |cores: f64| if limit.per_core { cores * limit.gbps } else { limit.gbps };
        let points = vec![(1.0, at(1.0)), (f64::from(last), at(f64::from(last)))];
        lines.push(Line { label: limit.name.clone(), source: Source::Ceiling, points });
    }
    if let Some(rate) = measured.veth.gbps() {
        let label = "Peregrine, end to end over veth".to_owned();
        lines.push(Line { label, source: Source::Measured, points: vec![(1.0, rate)] });
    }
    Chart {
        title: matrix.title.clone(),
        x: Axis { title: "cores".to_owned(), logarithmic: false },
        y: Axis { title: "Gbps, L2".to_owned(), logarithmic: true },
        lines,
        footer: vec![
            format!("{}. Grey: what cores that do nothing else could carry.", legend(matrix)),
            layer(),
            format!("Rings: {}.", vpp::CORES_CONDITIONS),
        ],
    }
}

fn page(matrix: &Matrix, measured: &Measured, svg: &str) -> String {
    let title = escape(&matrix.title);
    let header = header(matrix);
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let caption = format!("{}; {}", legend(matrix), vpp::CORES_CONDITIONS);
    let mut table = Table::new(&caption, &header);
    rows(matrix, measured).iter().for_each(|row| table.row(row));
    let mut ceilings = Table::new("Ceilings", &["what", "rate"]);
    for limit in &measured.limits {
        let each = if limit.per_core { " per core" } else { "" };
        ceilings.row(&[limit.name.clone(), format!("{}{each}", gbps(limit.gbps))]);
    }
    let veth = match (measured.veth, measured.veth.words()) {
        (Veth::Unmeasured, _) => "<p class=\"bad\">Not measured.</p>\n".to_owned(),
        (_, words) => format!(
            "<p>Two gateways with one worker each, generator and kernel on the same cores: {words}; \
             <a href=\"veth/report.html\">the whole run</a>.</p>\n"
        ),
    };
    let mut machine = Table::new("What the figures belong to", &["what", "value"]).plain();
    measured.machine.iter().for_each(|(key, value)| machine.row(&[key.clone(), value.clone()]));
    let notes =
        if measured.notes.is_empty() { String::new() } else { list("warnings", &measured.notes) };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<header>\n<h1>{title}</h1>\n{notes}\
         </header>\n{}<figure>\n<div class=\"plot\">{svg}</div>\n</figure>\n{}{}{}</main>\n</body>\n\
         </html>\n",
        section(
            "memory",
            "Memory ports",
            &format!("{}<p>{} {}</p>\n", table.finish(), escape(&layer()), escape(&matrix.note))
        ),
        section("veth", "End to end over veth", &veth),
        section("ceilings", "Ceilings", &ceilings.finish()),
        section("machine", "Machine", &machine.finish()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Figures;
    use crate::result::example;

    #[test]
    fn a_rate_over_veth_is_told_with_the_conditions_that_it_was_found_under() {
        let (curve, samples) = example::curve("one", 1, 2.0, &[0.5, 1.0]);
        let mut run = example::run_of("One", example::THRESHOLDS, vec![(curve, samples)]);
        run.result.notes = vec!["It ended early.".to_owned()];
        let early = run.result.notes[0].clone();
        run.result.curves[0].conclusion.labels = vec![Label::Interrupted];
        let notes = vec![early.clone(), "End to end over veth: interrupted.".to_owned()];
        assert_eq!(Veth::of(&run), (Veth::Lossy, notes.clone()));
        // The first step is clean, and the second one is not, although its first samples are.
        run.result.curves[0].steps[0].loss_ratio = 0.0;
        let (veth, told) = Veth::of(&run);
        assert!(veth.gbps().is_some_and(|gbps| (gbps - 0.5).abs() < 1e-9), "{veth:?}");
        assert_eq!(told, notes);
        // Without a whole step there is neither a rate nor a loss.
        run.result.curves[0].steps.clear();
        assert_eq!(Veth::of(&run), (Veth::Unmeasured, notes));
        run.result.curves.clear();
        assert_eq!(Veth::of(&run), (Veth::Unmeasured, vec![early]));
    }

    #[test]
    fn what_is_missing_is_a_dash_and_what_is_modelled_is_in_brackets() {
        let matrix = Matrix::built_in("vpp-10k").unwrap();
        let mut figures = Figures::default();
        figures.add("cores/many/1/gbps", 30.0, "Gbps");
        figures.add("cores/many/model/4/gbps", 115.0, "Gbps");
        figures.add("path/plain/seal/10000/1428/gbps", 200.0, "Gbps");
        let mut measured = Measured {
            machine: vec![("processor".to_owned(), "<one>".to_owned())],
            cells: matrix.cells(&figures),
            limits: matrix.limits(&figures),
            veth: Veth::Unmeasured,
            notes: vec!["no veth".to_owned()],
        };
        let shown = text(&matrix, &measured);
        for part in [
            "30.38 Gbps",
            "(116.46 Gbps)",
            "checksum (L2)",
            "ceiling the path in clear: 202.55 Gbps per core",
            "–",
            "78.00 Gbps",
            "note: no veth",
            "veth, one worker per gateway: not measured",
        ] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
        measured.veth = Veth::Lossy;
        assert!(text(&matrix, &measured).contains("no rate without loss"));
        measured.veth = Veth::Clean(0.9);
        let folder = tempfile::tempdir().unwrap();
        let drawn = write(folder.path(), &matrix, &measured).unwrap();
        assert!(drawn.files.contains(&folder.path().join(PAGE_FILE)));
        let page = std::fs::read_to_string(folder.path().join(PAGE_FILE)).unwrap();
        assert!(page.contains("&lt;one&gt;") && page.contains("900.00 Mbps"));
        let svg = std::fs::read_to_string(folder.path().join("matrix.svg")).unwrap();
        for label in ["Peregrine, policy, known flows", "model, policy", "VPP, p2p", "in clear"] {
            assert!(svg.contains(label), "{label}");
        }
    }
}
