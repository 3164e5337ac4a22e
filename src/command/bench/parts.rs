//! The benches as processes: each is asked for JSON, and its figures get their names.
//!
//! A process of its own: its memory, its caches and its failure do not touch the next one's figures.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use lab::figure::{Figures, LOAD_PPS, LOADED, LOST};
use lab::report::bench;
use serde_json::Value;

use crate::command::Unfit;

/// What every verb ends with where the command line or the machine is not fit.
const EXIT_UNFIT: i32 = 2;

/// What another bench found out, as figures. `arguments` are those of `peregrine bench`.
///
/// # Errors
/// If it fails, or its JSON cannot be read; [`Unfit`] if it is not for this machine or this build.
pub fn measure<S: AsRef<str>>(binary: &Path, arguments: &[S]) -> anyhow::Result<Figures> {
    let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
    eprintln!("peregrine bench {}", arguments.join(" "));
    measure_silently(binary, &arguments)
}

/// The same without saying which bench runs.
///
/// # Errors
/// As [`measure`].
pub fn measure_silently(binary: &Path, arguments: &[&str]) -> anyhow::Result<Figures> {
    let asked = Command::new(binary)
        .arg("bench")
        .args(arguments)
        .arg("--json")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting it")?;
    if asked.status.code() == Some(EXIT_UNFIT) {
        return Err(Unfit("not for this machine or this build".to_owned()).into());
    }
    anyhow::ensure!(asked.status.success(), "it ended with {}", asked.status);
    let report = serde_json::from_slice(&asked.stdout).context("reading its JSON")?;
    say_losses(&report);
    figures(arguments.first().copied().unwrap_or_default(), &report)
}

/// The figures in a report of the bench `name`.
fn figures(name: &str, report: &Value) -> anyhow::Result<Figures> {
    Ok(match name {
        "tables" => tables(report),
        "control" => control(report),
        "xfrm" => xfrm(report),
        _ => figures_of(report)?,
    })
}

/// The figures that stand in a file, or in a report, by their names.
///
/// # Errors
/// If it has another schema, or they cannot be read.
pub fn figures_of(report: &Value) -> anyhow::Result<Figures> {
    let schema = &report["schema"];
    anyhow::ensure!(
        schema.as_u64() == Some(bench::SCHEMA),
        "schema {schema}, but this program reads {}",
        bench::SCHEMA
    );
    serde_json::from_value(report["figures"].clone()).context("reading its figures")
}

/// `bench tables`: rows of table, content, figure, value, unit.
fn tables(report: &Value) -> Figures {
    let mut figures = Figures::default();
    for row in report.as_array().into_iter().flatten() {
        let text = |key: &str| row[key].as_str().unwrap_or_default();
        let Some(value) = row["value"].as_f64() else { continue };
        let count = text("content").split(' ').next().unwrap_or_default();
        match (text("table"), text("figure")) {
            ("VRFs", "memory") => {
                figures.add(format!("fib/vrfs/{count}/bytes"), value * 1e6, "bytes")
            }
            ("routes", "look-up, 64 together") => {
                figures.add(format!("fib/{count}/batch_ns"), value, "ns");
            }
            ("routes", "look-up, one after the other") => {
                figures.add(format!("fib/{count}/single_ns"), value, "ns");
            }
            // Of policies the mixed ones are the harder case, and the one that is aimed at.
            ("policies", figure) if text("content").ends_with("mixed") => {
                let kind = match figure {
                    "look-up" => "classifier",
                    "look-up, 64 together" => "batch",
                    "look-up through the cache" => "cache",
                    "linear search" => "linear",
                    _ => continue,
                };
                figures.add(format!("policy/{kind}/{count}/ns"), value, "ns");
            }
            _ => {}
        }
    }
    figures
}

/// Says where packets were lost, of which the figures only tell how many: it may not happen again.
fn say_losses(report: &Value) {
    for (while_what, traffic) in [
        ("installing", &report["install"][0]["traffic"]),
        ("rekeying", &report["rekeying"]["traffic"]),
    ] {
        for loss in traffic["losses"].as_array().into_iter().flatten() {
            let (place, packets) = (loss["name"].as_str().unwrap_or_default(), &loss["packets"]);
            eprintln!("  while {while_what} {packets} packets were lost: {place}");
        }
    }
}

/// `bench control`: one report.
fn control(report: &Value) -> Figures {
    let mut figures = Figures::default();
    let tunnels = report["tunnels"].as_u64().unwrap_or(0);
    let of = if report["per_datagram"] == 0 { "control/singly" } else { "control" };
    for install in report["install"].as_array().into_iter().flatten() {
        let (traffic, seconds) = (&install["traffic"], install["seconds"].as_f64());
        let under = if traffic.is_null() { "idle" } else { "busy" };
        if let Some(seconds) = seconds {
            figures.add(format!("{of}/install-{under}/{tunnels}/s"), seconds, "s");
        }
        beside(&format!("{of}/install-{under}/{tunnels}/"), traffic, &mut figures);
    }
    for (bytes, figure) in
        [("resident_bytes", "bytes_per_sa"), ("journal_bytes", "journal_bytes_per_sa")]
    {
        let size = |when: &str| report["memory"][when][bytes].as_f64();
        if let (Some(empty), Some(full), true) = (size("empty"), size("full"), tunnels > 0) {
            let per_sa = (full - empty) / (2 * tunnels) as f64;
            figures.add(format!("{of}/{figure}"), per_sa, "bytes");
        }
    }
    let rekeying = &report["rekeying"];
    if let Some(rate) = rekeying["per_second"].as_f64() {
        figures.add(format!("{of}/rekeys_per_s"), rate, "1/s");
    }
    if let Some(late) = rekeying["latency"]["p99_us"].as_f64() {
        figures.add(format!("{of}/rekeys_p99_us"), late, "µs");
    }
    beside(&format!("{of}/rekeys_"), &rekeying["traffic"], &mut figures);
    for (done, name) in [("listing", "list"), ("deletion", "delete"), ("flush", "flush")] {
        let (done, of) = (&report[done], format!("{of}/{name}/{tunnels}"));
        if let Some(seconds) = done["seconds"].as_f64() {
            figures.add(format!("{of}/s"), seconds, "s");
        }
        if let Some(waited) = done["others"]["max_us"].as_f64() {
            figures.add(format!("{of}/others_max_us"), waited, "µs");
        }
    }
    if let Some(seconds) = report["stop_s"].as_f64() {
        figures.add(format!("{of}/stop_s"), seconds, "s");
    }
    figures
}

/// What was forwarded meanwhile: the load, what it is of what is carried without loss, and what was lost of it.
fn beside(before: &str, traffic: &Value, figures: &mut Figures) {
    let value = |key: &str| traffic[key].as_f64();
    let load = value("l2_bps").zip(value("lossless_l2_bps")).map(|(bps, most)| bps / most);
    for (name, value, unit) in [
        ("pps", value("pps"), LOAD_PPS),
        ("load", load, LOADED),
        ("loss", value("loss_ratio"), LOST),
    ] {
        if let Some(value) = value {
            figures.add(format!("{before}{name}"), value, unit);
        }
    }
}

/// `bench xfrm`: rows of operations; those of idle workers and one request.
fn xfrm(report: &Value) -> Figures {
    let mut figures = Figures::default();
    for row in report["rows"].as_array().into_iter().flatten() {
        let single = row["requests"].as_u64() == Some(1) && row["traffic"].is_null();
        let operation = row["operation"].as_str().filter(|_| single);
        let (Some(operation), Some(sas)) = (operation, row["sas"].as_u64()) else { continue };
        let mut add = |what: &str, value: &Value, unit: &str| {
            if let Some(value) = value.as_f64() {
                figures.add(format!("control/xfrm/{sas}/{operation}/{what}"), value, unit);
            }
        };
        add("requests_per_s", &row["requests_per_second"], "1/s");
        add("p99_us", &row["latency"]["p99_us"], "µs");
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_are_named_by_their_size() {
        let row = |table: &str, content: &str, figure: &str, value: f64| {
            json!({ "table": table, "content": content, "figure": figure, "value": value,
                    "unit": "" })
        };
        let report = json!([
            row("VRFs", "1000 × 10 routes", "memory", 7.5),
            row("routes", "1000000 routes", "look-up, 64 together", 15.0),
            row("routes", "1000000 routes", "look-up, one after the other", 35.0),
            row("routes", "1000000 routes", "building", 2.0),
            row("policies", "50000 of one shape", "look-up", 10.0),
            row("policies", "50000 mixed", "look-up", 60.0),
            row("policies", "50000 mixed", "look-up, 64 together", 40.0),
            row("policies", "50000 mixed", "linear search", 90_000.0),
        ]);
        let figures = figures("tables", &report).unwrap();
        assert_eq!(figures.value("fib/vrfs/1000/bytes"), Some(7.5e6));
        assert_eq!(figures.value("fib/1000000/batch_ns"), Some(15.0));
        assert_eq!(figures.value("fib/1000000/single_ns"), Some(35.0));
        assert_eq!(figures.value("policy/classifier/50000/ns"), Some(60.0));
        assert_eq!(figures.value("policy/batch/50000/ns"), Some(40.0));
        assert_eq!(figures.iter().count(), 6);
    }

    #[test]
    fn a_report_of_control_gives_what_is_aimed_at() {
        let mut report = json!({
            "tunnels": 50_000,
            "per_datagram": 4,
            "install": [
                { "seconds": 2.5, "requests": 300_000,
                  "traffic": { "pps": 50_000.0, "l2_bps": 4e8, "lossless_l2_bps": 8e8, "loss_ratio": 0.0 } },
                { "seconds": 2.0, "requests": 300_000, "traffic": null },
            ],
            "memory": { "empty": { "resident_bytes": 50_000_000_u64, "journal_bytes": 0 },
                        "full": { "resident_bytes": 250_000_000_u64, "journal_bytes": 90_000_000 } },
            "rekeying": { "per_second": 499.0, "latency": { "p99_us": 3000.0 },
                          "traffic": { "pps": 49_000.0, "l2_bps": 4e8, "lossless_l2_bps": null,
                                       "loss_ratio": 0.001 } },
            "listing": { "seconds": 0.2, "others": { "max_us": 900.0 } },
            "deletion": { "seconds": 1.5, "others": { "max_us": 300.0 } },
            "flush": { "seconds": 1.1, "others": null },
            "stop_s": 0.3,
        });
        let packed = figures("control", &report).unwrap();
        assert_eq!(packed.value("control/install-busy/50000/s"), Some(2.5));
        assert_eq!(packed.value("control/install-busy/50000/loss"), Some(0.0));
        assert_eq!(packed.value("control/install-busy/50000/pps"), Some(50_000.0));
        assert_eq!(packed.value("control/install-busy/50000/load"), Some(0.5));
        assert_eq!(packed.value("control/install-idle/50000/s"), Some(2.0));
        assert_eq!(packed.value("control/install-idle/50000/load"), None);
        assert_eq!(packed.value("control/bytes_per_sa"), Some(2000.0));
        assert_eq!(packed.value("control/journal_bytes_per_sa"), Some(900.0));
        assert_eq!(packed.value("control/rekeys_per_s"), Some(499.0));
        assert_eq!(packed.value("control/rekeys_p99_us"), Some(3000.0));
        assert_eq!(packed.value("control/rekeys_loss"), Some(0.001));
        // Where no rate was without loss, nobody knows what half of it is.
        assert_eq!(packed.value("control/rekeys_pps"), Some(49_000.0));
        assert_eq!(packed.value("control/rekeys_load"), None);
        assert_eq!(packed.value("control/list/50000/s"), Some(0.2));
        assert_eq!(packed.value("control/list/50000/others_max_us"), Some(900.0));
        assert_eq!(packed.value("control/delete/50000/s"), Some(1.5));
        assert_eq!(packed.value("control/flush/50000/s"), Some(1.1));
        assert_eq!(packed.value("control/flush/50000/others_max_us"), None);
        report["per_datagram"] = 0.into();
        let singly = figures("control", &report).unwrap();
        assert_eq!(singly.value("control/singly/install-busy/50000/s"), Some(2.5));
        assert_eq!(singly.value("control/install-busy/50000/s"), None);
    }

    #[test]
    fn requests_count_one_by_one_and_idle() {
        let row = |operation: &str, requests: u32, traffic: Value| {
            json!({ "operation": operation, "requests": requests, "sas": 50_000,
                    "traffic": traffic, "requests_per_second": 30_000.0,
                    "latency": { "p99_us": 80.0 } })
        };
        let rows = [
            row("new_sa", 1, Value::Null),
            row("rekey", 8, Value::Null),
            row("del_sa", 1, json!({ "pps": 1.0 })),
        ];
        let figures = figures("xfrm", &json!({ "rows": rows })).unwrap();
        assert_eq!(figures.value("control/xfrm/50000/new_sa/p99_us"), Some(80.0));
        assert_eq!(figures.iter().count(), 2);
    }
}
