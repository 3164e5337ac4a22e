//! What was measured, as JSON and as a table.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::driver::{Done, Operation};
use super::rig::Traffic;
use crate::result::Latency;

/// The version of the JSON.
pub const SCHEMA: u32 = 1;
/// What was measured between.
pub const RULER: &str = "one synchronous client, socket to socket";

/// Everything that was measured, and where.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `SCHEMA`.
    pub schema: u32,
    /// `RULER`.
    pub ruler: &'static str,
    /// Of this program.
    pub version: &'static str,
    /// The CPU's name.
    pub cpu: String,
    /// When it began.
    pub measured_at: String,
    /// Whether the client was behind the preload library.
    pub through_shim: bool,
    /// Rounds per row.
    pub rounds: u32,
    /// It was ended early.
    pub interrupted: bool,
    /// The latencies.
    pub rows: Vec<Row>,
    /// What the gateway's control thread spent on a request.
    pub costs: Vec<Cost>,
    /// How fast the tables were filled.
    pub filling: Vec<Filling>,
    /// What an SA costs in memory; none when no SA was installed.
    pub memory: Option<Memory>,
}

/// One operation in one situation.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was done.
    pub operation: Operation,
    /// Requests that it consists of.
    pub requests: u32,
    /// SAs installed beside it.
    pub sas: u32,
    /// What the gateway forwarded meanwhile; none when its workers were idle.
    pub traffic: Option<Traffic>,
    /// Requests per second.
    pub requests_per_second: f64,
    /// From before the first request of one to after the last answer.
    pub latency: Latency,
}

/// Filling the tables to a size.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Filling {
    /// The size afterwards.
    pub sas: u32,
    /// Requests that it took from the size before.
    pub requests: u64,
    /// Their time.
    pub seconds: f64,
}

/// CPU time per request, which other programs on the machine do not change as they change latencies.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// SAs installed.
    pub sas: u32,
    /// Whether the workers had traffic.
    pub traffic: bool,
    /// Of the control thread, in microseconds, over all kinds of requests.
    pub cpu_us_per_request: f64,
}

impl Cost {
    /// Of what was done between two readings of the control thread's clock.
    pub fn between(before_ns: u64, after_ns: u64, sas: u32, traffic: bool, done: &Done) -> Cost {
        let microseconds = after_ns.saturating_sub(before_ns) as f64 / 1e3;
        Cost { sas, traffic, cpu_us_per_request: microseconds / done.requests.max(1) as f64 }
    }
}

/// The gateway's resident memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// SAs installed when it was read.
    pub sas: u32,
    /// Bytes without any SA.
    pub empty_bytes: u64,
    /// Bytes with all of them, and their policies (three for two SAs).
    pub full_bytes: u64,
    /// The growth divided by the SAs.
    pub bytes_per_sa: f64,
}

impl Filling {
    /// Of an order to install.
    pub fn new(sas: u32, done: &Done) -> Filling {
        Filling { sas, requests: done.requests, seconds: done.seconds }
    }
}

impl Memory {
    /// What `sas` SAs added; none for none.
    pub fn between(empty_bytes: u64, full_bytes: u64, sas: u32) -> Option<Memory> {
        let grown = full_bytes.saturating_sub(empty_bytes) as f64;
        (sas > 0).then(|| Memory {
            sas,
            empty_bytes,
            full_bytes,
            bytes_per_sa: grown / f64::from(sas),
        })
    }
}

impl Report {
    /// Adds the rows of a measurement.
    pub fn add(&mut self, sas: u32, traffic: Option<Traffic>, done: &Done) {
        for (&operation, &latency) in &done.latencies {
            let (_, requests) = operation.describe();
            let requests_per_second = f64::from(requests) * 1e6 / latency.avg_us;
            self.rows.push(Row {
                operation,
                requests,
                sas,
                traffic: traffic.clone(),
                requests_per_second,
                latency,
            });
        }
    }
}

/// The report for people.
pub fn table(report: &Report) -> String {
    let shim = if report.through_shim { ", through the preload library" } else { "" };
    let mut text = format!("{}{shim}; {}; {} rounds\n", RULER, report.cpu, report.rounds);
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header([
        "operation",
        "SAs",
        "workers",
        "requests/s",
        "p50 µs",
        "p90",
        "p99",
        "p99.9",
        "max",
    ]);
    for column in [1, 3, 4, 5, 6, 7, 8] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut rows: Vec<&Row> = report.rows.iter().collect();
    rows.sort_by_key(|row| (row.operation, row.traffic.is_some(), row.sas));
    for row in rows {
        let Latency { p50_us, p90_us, p99_us, p99_9_us, max_us, .. } = row.latency;
        let mut cells = vec![
            row.operation.describe().0.to_owned(),
            row.sas.to_string(),
            if row.traffic.is_some() { "half load" } else { "idle" }.to_owned(),
            format!("{:.0}", row.requests_per_second),
        ];
        cells.extend([p50_us, p90_us, p99_us, p99_9_us, max_us].map(|us| format!("{us:.1}")));
        table.add_row(cells);
    }
    text += &format!("{table}\n");
    text + &lines(report)
}

/// What the table has no place for.
fn lines(report: &Report) -> String {
    let mut text = String::new();
    for cost in &report.costs {
        text += &format!(
            "CPU time of the gateway's control thread, {} SAs, workers {}: {:.1} µs per request\n",
            cost.sas,
            if cost.traffic { "at half load" } else { "idle" },
            cost.cpu_us_per_request,
        );
    }
    for filling in &report.filling {
        text += &format!(
            "filled to {} SAs and {} policies: {} requests in {:.2} s, {:.0} requests/s\n",
            filling.sas,
            filling.sas / 2 * 3,
            filling.requests,
            filling.seconds,
            filling.requests as f64 / filling.seconds.max(1e-9),
        );
    }
    if let Some(memory) = &report.memory {
        let mebibytes = |bytes| bytes as f64 / f64::from(1 << 20);
        text += &format!(
            "memory of the gateway: {:.1} MiB empty, {:.1} MiB with {} SAs: {:.0} bytes per SA, \
             its policies included\n",
            mebibytes(memory.empty_bytes),
            mebibytes(memory.full_bytes),
            memory.sas,
            memory.bytes_per_sa,
        );
    }
    if let Some(traffic) = report.rows.iter().find_map(|row| row.traffic.as_ref()) {
        text += &format!("half load: {traffic}\n");
    }
    if report.interrupted {
        text += "interrupted; what is missing was not measured\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let latency = Latency {
            min_us: 10.0,
            avg_us: 20.0,
            p50_us: 19.0,
            p90_us: 25.0,
            p99_us: 40.0,
            p99_9_us: 50.0,
            max_us: 90.0,
            samples: 100,
        };
        let mut report = Report {
            schema: SCHEMA,
            ruler: RULER,
            version: "0",
            cpu: "a CPU".to_owned(),
            measured_at: String::new(),
            through_shim: true,
            rounds: 2,
            interrupted: true,
            rows: Vec::new(),
            costs: vec![Cost::between(
                1000,
                91_000,
                10_000,
                true,
                &Done { requests: 9, ..Done::default() },
            )],
            filling: vec![Filling { sas: 10_000, requests: 30_000, seconds: 1.5 }],
            memory: Memory::between(1 << 20, 2 << 20, 1024),
        };
        let latencies = [(Operation::GetSa, latency), (Operation::Rekey, latency)].into();
        let done = Done { requests: 9, seconds: 1.0, latencies, ..Done::default() };
        report.add(10_000, Some(Traffic::default()), &done);
        report.add(10_000, None, &done);
        report
    }

    #[test]
    fn rates_count_requests_and_not_sequences() {
        let rates: Vec<_> =
            report().rows.iter().map(|row| (row.requests, row.requests_per_second)).collect();
        assert_eq!(rates[..2], [(1, 50_000.0), (8, 400_000.0)]);
    }

    #[test]
    fn the_table_says_it_all() {
        let text = table(&report());
        for part in [
            "through the preload library",
            "half load",
            "│ GETSA     ┆ 10000 ┆ idle      ┆      50000 ┆   19.0",
            "15000 policies: 30000 requests in 1.50 s, 20000 requests/s",
            "10000 SAs, workers at half load: 10.0 µs per request",
            "1024 SAs: 1024 bytes per SA",
            "interrupted",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(Memory::between(2, 1, 0).is_none());
    }
}
