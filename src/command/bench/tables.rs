//! `peregrine bench tables`: routes, VRFs and policies, each table alone.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use comfy_table::CellAlignment;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use control::gateway::ruler::{Following, following};
use dataplane::prefix::Family;
use dataplane::ruler::tables::{Mix, PolicyBench, RouteBench, vrfs};
use lab::figure::Spread;
use lab::usage::status_bytes;
use serde::Serialize;

use super::output;

/// Time and memory of the tables alone: routes, VRFs, policies against a linear search
///
/// Look-ups of random addresses in the prefixes of a table like the Internet's, and of flows that meet
/// random policies: 64 together, as the data path looks up the packets of a turn, and one after the other;
/// each time is the median of the quickest quarter of many short runs. Memory is what the process grew by.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  peregrine bench tables
  peregrine bench tables --routes 100000 --policies 10000 --json")]
pub struct Tables {
    /// Routes of the large table
    #[arg(long, default_value_t = 1_000_000, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=ROUTES_MAX))]
    routes: u32,
    /// VRFs, of ten routes each
    #[arg(long, default_value_t = 1000, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=VRFS_MAX))]
    vrfs: u32,
    /// Policies
    #[arg(long, default_value_t = 50_000, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=POLICIES_MAX))]
    policies: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One figure.
#[derive(Serialize)]
struct Row {
    table: &'static str,
    content: String,
    figure: &'static str,
    value: f64,
    unit: &'static str,
    /// The same in cycles of the time stamp counter, of what takes nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles: Option<f64>,
}

/// Most routes: four times the Internet's. Of many more there would be no prefixes left to draw.
const ROUTES_MAX: i64 = 4_000_000;

/// Most VRFs: they have a million routes together.
const VRFS_MAX: i64 = 100_000;

/// Most policies: of a million a linear search takes some milliseconds, and there are hundreds of them.
const POLICIES_MAX: i64 = 1_000_000;

/// Runs of which the median of the quickest quarter counts.
const RUNS: usize = 400;

/// The same of linear searches, which take a thousand times as long.
const LINEAR_RUNS: usize = 40;

/// Flows of the cached look-ups: fewer than the cache has room for.
const CACHED_FLOWS: usize = 10_000;

impl Tables {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut rows = Vec::new();
        // Memory first: what is freed later would hide what the next takes.
        self.vrfs(&mut rows)?;
        self.routes(&mut rows)?;
        for mix in [Mix::Uniform, Mix::Mixed, Mix::Nested] {
            self.policies(mix, &mut rows);
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&rows)?);
        } else {
            print(&rows);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn vrfs(&self, rows: &mut Vec<Row>) -> anyhow::Result<()> {
        let before = resident_bytes()?;
        let fib = vrfs(self.vrfs, 10);
        let grown = resident_bytes()?.saturating_sub(before);
        drop(fib);
        let content = format!("{} × 10 routes", self.vrfs);
        rows.push(row("VRFs", &content, "memory", grown as f64 / 1e6, "MB"));
        Ok(())
    }

    fn routes(&self, rows: &mut Vec<Row>) -> anyhow::Result<()> {
        let (before, start) = (resident_bytes()?, Instant::now());
        let mut bench = RouteBench::new(self.routes as usize);
        let built = start.elapsed();
        let grown = resident_bytes()?.saturating_sub(before);
        let content = format!("{} routes", self.routes);
        let mut put = |figure, value, unit| rows.push(row("routes", &content, figure, value, unit));
        put("look-up, 64 together", quiet(bench.lookup_many_ns(RUNS)), "ns");
        put("look-up, one after the other", quiet(bench.lookup_ns(RUNS)), "ns");
        put("change", bench.update_ns(2000), "ns");
        put("building", built.as_secs_f64(), "s");
        put("memory", grown as f64 / 1e6, "MB");
        drop(bench);
        let Following { all_s, one_ns } = following(self.routes, 2000);
        let mut put = |figure, value, unit| {
            rows.push(row("kernel's routes", &content, figure, value, unit));
        };
        put("all into the view", all_s, "s");
        put("one change into the view", one_ns / 1e3, "µs");
        Ok(())
    }

    fn policies(&self, mix: Mix, rows: &mut Vec<Row>) {
        let mut bench = PolicyBench::new(self.policies as usize, mix);
        let kind = match mix {
            Mix::Uniform => "of one shape",
            Mix::Mixed => "mixed",
            Mix::Nested => "nested around one pair",
        };
        let content = format!("{} {kind}", self.policies);
        let (found, linear) = (quiet(bench.lookup_ns(RUNS)), quiet(bench.linear_ns(LINEAR_RUNS)));
        let cached = quiet(bench.cached_ns(RUNS, CACHED_FLOWS));
        let mut put =
            |figure, value, unit| rows.push(row("policies", &content, figure, value, unit));
        put("hash tables, IPv4", bench.tables(Family::V4) as f64, "");
        put("look-up", found, "ns");
        put("look-up, 64 together", quiet(bench.lookup_many_ns(RUNS)), "ns");
        put("look-up through the cache", cached, "ns");
        put("linear search", linear, "ns");
        put("linear search against look-up", linear / found.max(1e-9), "×");
        put("disagreements", bench.disagreements(500) as f64, "");
        put("change", bench.update_ns(2000), "ns");
    }
}

fn quiet(times: Vec<f64>) -> f64 {
    Spread::of_times(times).quiet
}

fn row(
    table: &'static str,
    content: &str,
    figure: &'static str,
    value: f64,
    unit: &'static str,
) -> Row {
    let cycles = (unit == "ns").then(|| output::cycles(value));
    Row { table, content: content.to_owned(), figure, value, unit, cycles }
}

fn print(rows: &[Row]) {
    let mut table = comfy_table::Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["table", "content", "figure", "value", "unit", "cycles"]);
    for row in rows {
        let value = match row.value {
            value if value < 100.0 && value.fract() != 0.0 => format!("{value:.1}"),
            value => format!("{value:.0}"),
        };
        let cycles = row.cycles.map_or(String::new(), |cycles| format!("{cycles:.0}"));
        table.add_row([row.table, &row.content, row.figure, &value, row.unit, &cycles]);
    }
    for column in [3, 5] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
}

/// Bytes of memory that the process has now.
fn resident_bytes() -> anyhow::Result<u64> {
    status_bytes(std::process::id(), "VmRSS").context("no VmRSS in /proc/self/status")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        tables: Tables,
    }

    #[test]
    fn counts_that_no_table_can_have_are_refused() {
        let parsed =
            |words: &str| Line::try_parse_from(["tables"].into_iter().chain(words.split(' ')));
        for words in ["--routes 0", "--routes 5000000000", "--vrfs 0", "--policies 0"] {
            assert!(parsed(words).is_err(), "{words}");
        }
        let least = parsed("--routes 1 --vrfs 1 --policies 1").unwrap().tables;
        assert_eq!((least.routes, least.vrfs, least.policies), (1, 1, 1));
        let mut rows = Vec::new();
        least.routes(&mut rows).unwrap();
        let mixes = [Mix::Uniform, Mix::Mixed, Mix::Nested];
        mixes.into_iter().for_each(|mix| least.policies(mix, &mut rows));
        assert!(rows.iter().all(|row| row.value >= 0.0));
        let has_cycles = |row: &Row| row.cycles.is_some() == (row.unit == "ns");
        assert!(rows.iter().all(has_cycles));
    }
}
