//! How every bench tells what it measured: a table, JSON, a folder.

use std::path::Path;

use comfy_table::CellAlignment;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use lab::figure::{Figures, Spread};
use lab::report::bench::{self, Bench};
use serde::Serialize;

use super::machine::Machine;

pub use comfy_table::Table;

/// A table whose first columns are words and whose others are numbers.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(header.iter().copied());
    for column in 2..header.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A figure with its spread: `412 (405–431)`.
pub fn spread(spread: &Spread) -> String {
    format!("{:.0} ({:.0}–{:.0})", spread.quiet, spread.p10, spread.p90)
}

/// Cycles of the time stamp counter in so many nanoseconds.
pub fn cycles(ns: f64) -> f64 {
    ns * dataplane::cycles::hz() / 1e9
}

/// Rows and figures, with what they belong to.
pub fn print_json<R: Serialize>(
    machine: &Machine,
    rows: &[R],
    figures: &Figures,
) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Report<'a, R> {
        schema: u64,
        machine: &'a Machine,
        rows: &'a [R],
        figures: &'a Figures,
    }
    let report = Report { schema: bench::SCHEMA, machine, rows, figures };
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}

/// Writes charts, figures and their page.
pub fn write(folder: &Path, machine: &Machine, figures: Figures) -> anyhow::Result<()> {
    let bench = Bench { machine: machine.facts(), figures, notes: vec![] };
    let drawn = bench::write(folder, &bench)?;
    drawn.warnings.iter().for_each(|warning| eprintln!("peregrine: {warning}"));
    drawn.files.iter().for_each(|file| eprintln!("{}", file.display()));
    Ok(())
}
