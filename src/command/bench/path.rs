//! `peregrine bench path`: the data path's own cost, without a kernel.

use std::process::ExitCode;
use std::time::Duration;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use crypto::Engine;
use dataplane::path::{CipherBench, Measured, PathBench, Sample};
use indicatif::{ProgressBar, ProgressStyle};
use lab::traffic::Mix;
use serde::Serialize;

use crate::command::Unfit;

/// Bytes of an Ethernet header: sizes are given with it, the bench sends what is behind it.
const LINK_LEN: usize = 14;

/// Rounds of 64 packets in one measurement. At 100 ns a packet one takes 3 ms: long against the
/// clock's reading, short against what else the machine does, so that the median is of quiet ones.
const ROUNDS: usize = 512;

/// Nanoseconds per packet of sealing and opening, beside the raw cipher in the same run
///
/// The ruler is the memory port: the worker's whole turn (receive, parse, classify, open, inspect,
/// seal, route, send) from ring to ring in RAM, no kernel, no interface. Path and cipher are
/// measured in turn, many times; the table shows medians, and the spread from the 10th to the 90th
/// percentile. "beside" is what the path costs beside the cipher; "share" is the cipher's time as a
/// part of the path's. Consecutive packets use different tunnels in random order.
#[derive(clap::Args)]
pub struct Path {
    /// Packet sizes: bytes with Ethernet header and without checksum, or imix1 to imix4
    #[arg(long, value_delimiter = ',', default_value = "64,114,200,491,1000,1428,imix1")]
    sizes: Vec<String>,
    /// Numbers of SAs
    #[arg(long, value_delimiter = ',', default_value = "1,10000", value_name = "N")]
    sas: Vec<usize>,
    /// What to measure: seal, open, both
    #[arg(long, value_delimiter = ',', default_value = "seal,open,both",
        value_parser = clap::builder::PossibleValuesParser::new(["seal", "open", "both"]))]
    directions: Vec<String>,
    /// Crypto engine (default: the best this CPU has)
    #[arg(long)]
    engine: Option<String>,
    /// Pairs of measurements
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(3..=1000))]
    pairs: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One line of the table.
#[derive(Serialize)]
struct Row {
    direction: String,
    sas: usize,
    size: String,
    path_ns: Spread,
    cipher_ns: Spread,
    beside_ns: f64,
    cipher_share: f64,
    path_gbps: f64,
}

/// A median and how far the measurements spread.
#[derive(Clone, Copy, Serialize)]
struct Spread {
    median: f64,
    p10: f64,
    p90: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
        Spread { median: at(0.5), p10: at(0.1), p90: at(0.9) }
    }
}

/// Everything that was measured, and where.
#[derive(Serialize)]
struct Report {
    schema: u32,
    ruler: &'static str,
    version: &'static str,
    engine: String,
    cpu: String,
    pairs: u32,
    rows: Vec<Row>,
}

impl Path {
    /// Measures and prints.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let engine = Engine::select(self.engine.as_deref()).map_err(|e| Unfit(e.to_string()))?;
        let sizes: Vec<(String, Vec<usize>)> = self
            .sizes
            .iter()
            .map(|name| Ok((name.clone(), inner_sizes(name)?)))
            .collect::<Result<_, Unfit>>()?;
        let jobs = self.directions.len() * self.sas.len() * sizes.len();
        let bar = ProgressBar::new(jobs as u64);
        bar.set_style(ProgressStyle::with_template("{msg:<36} {bar:40} {pos}/{len}  {eta} left")?);
        bar.enable_steady_tick(Duration::from_millis(200));
        let mut rows = Vec::new();
        for direction in &self.directions {
            for sas in &self.sas {
                for (name, sizes) in &sizes {
                    bar.set_message(format!("{direction}, {sas} SAs, {name}"));
                    rows.push(self.measure(engine, direction, *sas, name, sizes)?);
                    bar.inc(1);
                }
            }
        }
        bar.finish_and_clear();
        let report = Report {
            schema: 1,
            ruler: "memory port",
            version: env!("CARGO_PKG_VERSION"),
            engine: engine.version(),
            cpu: cpu_model(),
            pairs: self.pairs,
            rows,
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print(&report);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Measures path and cipher in turn, so that both see the same machine.
    fn measure(
        &self,
        engine: Engine,
        direction: &str,
        sas: usize,
        name: &str,
        sizes: &[usize],
    ) -> anyhow::Result<Row> {
        let measured = match direction {
            "seal" => Measured::Seal,
            "open" => Measured::Open,
            _ => Measured::Both,
        };
        let unfit = |error: dataplane::path::PathError| Unfit(error.to_string());
        let mut path = PathBench::new(engine, sas, measured, sizes).map_err(unfit)?;
        let mut cipher = CipherBench::new(engine, measured, sizes).map_err(unfit)?;
        // Once to warm up: page faults, branch history, every SA once.
        path.run(ROUNDS.max(2 * sas / 64))?;
        cipher.run(ROUNDS);
        let (mut paths, mut ciphers): (Vec<Sample>, Vec<Sample>) = (Vec::new(), Vec::new());
        for _ in 0..self.pairs {
            paths.push(path.run(ROUNDS)?);
            ciphers.push(cipher.run(ROUNDS));
        }
        let ns =
            |samples: &[Sample]| Spread::of(samples.iter().map(Sample::ns_per_packet).collect());
        let (path_ns, cipher_ns) = (ns(&paths), ns(&ciphers));
        let bytes = paths[0].bytes as f64 / paths[0].packets as f64;
        Ok(Row {
            direction: direction.to_owned(),
            sas,
            size: name.to_owned(),
            path_ns,
            cipher_ns,
            beside_ns: path_ns.median - cipher_ns.median,
            cipher_share: cipher_ns.median / path_ns.median,
            path_gbps: 8.0 * bytes / path_ns.median,
        })
    }
}

/// The inner lengths of a size given on the command line.
fn inner_sizes(name: &str) -> Result<Vec<usize>, Unfit> {
    if let Ok(size) = name.parse::<usize>() {
        return match size.checked_sub(LINK_LEN) {
            Some(inner) => Ok(vec![inner]),
            None => Err(Unfit(format!("a packet of {size} bytes has no room for Ethernet"))),
        };
    }
    let mix = Mix::from_names(&[name]).map_err(|error| Unfit(error.to_string()))?;
    Ok((0..mix.period() as u64).map(|n| usize::from(mix.size(n)) - LINK_LEN).collect())
}

fn print(report: &Report) {
    println!(
        "Memory port, one core; {}; {}; medians of {} pairs (10th to 90th percentile)",
        report.engine, report.cpu, report.pairs
    );
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header([
        "direction",
        "SAs",
        "size",
        "path ns/packet",
        "cipher ns/packet",
        "beside ns",
        "share",
        "Gbps",
    ]);
    for column in 1..8 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let spread = |s: &Spread| format!("{:.1} ({:.1}–{:.1})", s.median, s.p10, s.p90);
    for row in &report.rows {
        table.add_row([
            row.direction.clone(),
            row.sas.to_string(),
            row.size.clone(),
            spread(&row.path_ns),
            spread(&row.cipher_ns),
            format!("{:.1}", row.beside_ns),
            format!("{:.0} %", 100.0 * row.cipher_share),
            format!("{:.2}", row.path_gbps),
        ]);
    }
    println!("{table}");
}

fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name"));
    model.map_or_else(|| "unknown CPU".to_owned(), |m| m.trim_matches([' ', '\t', ':']).to_owned())
}
