//! The page of the benches: the table of the aims, charts with VPP's figures and the cipher as
//! lines, and every figure with its spread.
//!
//! It is drawn from figures alone; what was not measured is left out of the charts and named in the
//! table.

mod charts;

use std::path::{Path, PathBuf};

use super::chart;
use super::html::STYLE;
use super::html::parts::{Table, data_url, list, section};
use super::png;
use super::svg::escape;
use super::{Drawn, ReportError};
use crate::aims::{Judged, judge};
use crate::figure::Figures;
use crate::result::{WriteError, write_whole};
use crate::vpp;

pub use charts::charts;

/// Name of the page in a bench's folder.
pub const PAGE_FILE: &str = "bench.html";
/// Name of the figures.
pub const FIGURES_FILE: &str = "figures.json";
/// The version of the figures' JSON. 2: cycles, and figures by name.
pub const SCHEMA: u64 = 2;

/// What was measured, where and when.
#[derive(Debug, Clone, PartialEq)]
pub struct Bench {
    /// Lines of what the figures belong to: processor, engine, counter, date.
    pub machine: Vec<(String, String)>,
    /// The figures, those of this run only.
    pub figures: Figures,
    /// Sentences for the reader: what could not be measured, and why.
    pub notes: Vec<String>,
}

impl Bench {
    /// Its figures with VPP's beside them: what aims and charts refer to.
    pub fn with_vpp(&self) -> Figures {
        let mut all = vpp::cycles();
        all.extend(self.figures.clone());
        all
    }

    /// The verdict on every aim.
    pub fn judged(&self) -> Vec<Judged> {
        judge(&self.with_vpp())
    }
}

/// Writes figures, charts and page into a folder, which is made.
///
/// # Errors
/// [`ReportError`] if a file cannot be written.
pub fn write(folder: &Path, bench: &Bench) -> Result<Drawn, ReportError> {
    std::fs::create_dir_all(folder)
        .map_err(|source| WriteError::Io { path: folder.to_owned(), source })?;
    let mut drawn = Drawn { files: vec![], warnings: vec![] };
    let put = |name: &str, bytes: &[u8]| -> Result<PathBuf, WriteError> {
        let path = folder.join(name);
        write_whole(&path, bytes)?;
        Ok(path)
    };
    drawn.files.push(put(FIGURES_FILE, json(bench).as_bytes())?);
    let mut pictures = Vec::new();
    for (name, chart) in charts(&bench.with_vpp()) {
        let svg = chart::draw(&chart);
        drawn.files.push(put(&format!("{name}.svg"), svg.as_bytes())?);
        match png::render(&svg) {
            Ok(bytes) => drawn.files.push(put(&format!("{name}.png"), &bytes)?),
            Err(error) => drawn.warnings.push(format!("{name}.png was not drawn: {error}")),
        }
        pictures.push((name, svg));
    }
    drawn.files.push(put(PAGE_FILE, page(bench, &pictures).as_bytes())?);
    Ok(drawn)
}

fn json(bench: &Bench) -> String {
    let machine: serde_json::Map<String, serde_json::Value> =
        bench.machine.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    let value = serde_json::json!({
        "schema": SCHEMA, "machine": machine, "notes": bench.notes, "figures": bench.figures,
    });
    format!("{value:#}\n")
}

/// The page; `pictures` are names and SVG texts.
fn page(bench: &Bench, pictures: &[(String, String)]) -> String {
    let title = "Peregrine beside the silicon";
    let mut body = format!("<header>\n<h1>{title}</h1>\n");
    if !bench.notes.is_empty() {
        body.push_str(&list("warnings", &bench.notes));
    }
    body.push_str("</header>\n");
    body.push_str(&section("aims", "Aims", &aims(&bench.judged())));
    for (name, svg) in pictures {
        // One document holds many pictures: their XML ids get the picture's name in front.
        let svg = svg.replace("plot-title", &format!("{name}-title"));
        let svg = svg.replace("plot-description", &format!("{name}-description"));
        let svg = svg.replace("\"panel", &format!("\"{name}-panel"));
        let svg = svg.replace("#panel", &format!("#{name}-panel"));
        let svg = svg.replace("\"hatch\"", &format!("\"{name}-hatch\""));
        body.push_str(&format!("<figure>\n<div class=\"plot\">{svg}</div>\n</figure>\n"));
    }
    body.push_str(&section("figures", "Every figure", &figures(bench)));
    let mut machine = Table::new("What the figures belong to", &["what", "value"]).plain();
    for (key, value) in &bench.machine {
        machine.row(&[key.clone(), value.clone()]);
    }
    machine.row(&["VPP, cycles".to_owned(), vpp::CYCLES_CONDITIONS.to_owned()]);
    machine.row(&["VPP, rates".to_owned(), vpp::CORES_CONDITIONS.to_owned()]);
    body.push_str(&section("machine", "Machine", &machine.finish()));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// The cells of one aim: what, where the worst was, value, bound, ratio, mark.
pub fn aim_cells(judged: &Judged) -> [String; 6] {
    let unit = match judged.aim.unit.as_str() {
        "" => String::new(),
        unit => format!(" {unit}"),
    };
    let bound = match (judged.aim.at_most, judged.aim.at_least) {
        (Some(bound), _) => format!("≤ {}{unit}", number(bound)),
        (None, Some(bound)) => format!("≥ {}{unit}", number(bound)),
        (None, None) => String::new(),
    };
    let mark = match judged.is_met() {
        Some(true) => "met".to_owned(),
        Some(false) => "NOT MET".to_owned(),
        None if judged.value.is_none() => "not measured".to_owned(),
        None => format!("not measured: {}", judged.missing.join(", ")),
    };
    let mut value =
        judged.value.map_or("–".to_owned(), |value| format!("{}{unit}", number(value)));
    if let (Some(part), Some(measured)) = (&judged.aim.part, judged.part) {
        value.push_str(&format!(", {} of it {}", number(measured), part.text));
    }
    [
        judged.aim.text.clone(),
        judged.at.clone().unwrap_or_default(),
        value,
        bound,
        judged.ratio().map_or("–".to_owned(), |ratio| format!("{ratio:.2}")),
        mark,
    ]
}

/// The head of [`aim_cells`].
pub const AIM_HEADER: [&str; 6] = ["aim", "worst at", "measured", "bound", "ratio", ""];

fn aims(judged: &[Judged]) -> String {
    let met = judged.iter().filter(|judged| judged.is_met() == Some(true)).count();
    let mut html = format!(
        "<p class=\"lead\"><b>{met} of {}</b> aims are met</p>\n<p class=\"small\">The ratio is how \
         far from its bound a value is, on the good side above 1. Quotients with VPP's cycles \
         compare two machines: {}.</p>\n",
        judged.len(),
        escape(vpp::CYCLES_CONDITIONS)
    );
    let mut groups: Vec<&str> = judged.iter().map(|judged| judged.aim.group.as_str()).collect();
    groups.dedup();
    for group in groups {
        let mut table = Table::new(group, &AIM_HEADER);
        for judged in judged.iter().filter(|judged| judged.aim.group == group) {
            table.row(&aim_cells(judged));
        }
        html.push_str(&table.finish());
    }
    html
}

fn figures(bench: &Bench) -> String {
    let mut table =
        Table::new("With the 10th and the 90th percentile", &["figure", "value", "spread", "unit"]);
    for (name, figure) in bench.figures.iter() {
        let spread = figure.spread.map(|(p10, p90)| format!("{}–{}", number(p10), number(p90)));
        table.row(&[
            name.to_owned(),
            number(figure.value),
            spread.unwrap_or_default(),
            figure.unit.clone(),
        ]);
    }
    let text = json(bench);
    format!(
        "<details>\n<summary>{} figures</summary>\n{}</details>\n<p><a download=\"{FIGURES_FILE}\" \
         href=\"{}\">{FIGURES_FILE}</a></p>\n",
        bench.figures.iter().count(),
        table.finish(),
        data_url("application/json", &text)
    )
}

/// Three digits, or whole where there are more: what is not zero never reads as zero.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 => 2,
        v => (2.0 - v.log10().floor()).min(300.0) as usize,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests;
