//! What came of the scenarios: a table for people, a file for programs.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use serde_json::json;

use crate::Outcome;

/// One scenario with one peer.
#[derive(Clone, Debug)]
pub struct Row {
    /// `Linux 6.1.0-50-amd64` and the like.
    pub peer: String,
    /// What was tried.
    pub scenario: String,
    /// Packets that both sides counted, or what went wrong.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

impl Row {
    /// A finished scenario.
    pub fn new(peer: &str, scenario: &str, outcome: Outcome, took: Duration) -> Row {
        Row { peer: peer.to_string(), scenario: scenario.to_string(), outcome, took }
    }

    /// In one line, as it happens.
    pub fn line(&self) -> String {
        let what = format!("interop {}: {}", self.peer, self.scenario);
        match &self.outcome {
            Ok(packets) => format!("{what} ... ok ({packets} packets, {:.1?})", self.took),
            Err(error) => format!("{what} ... FAILED: {error}"),
        }
    }
}

/// All rows.
pub struct Summary(Vec<Row>);

impl Summary {
    /// Rows in the order of their peers.
    pub fn new(mut rows: Vec<Row>) -> Summary {
        rows.sort_by(|a, b| a.peer.cmp(&b.peer));
        Summary(rows)
    }

    /// Writes the results as JSON; says whether the run as a whole succeeded.
    pub fn write(&self, path: &Path) -> ExitCode {
        let rows: Vec<_> = self
            .0
            .iter()
            .map(|row| {
                json!({
                    "peer": row.peer, "scenario": row.scenario,
                    "ok": row.outcome.is_ok(), "packets": row.outcome.as_ref().ok(),
                    "error": row.outcome.as_ref().err(), "seconds": row.took.as_secs_f64(),
                })
            })
            .collect();
        if let Err(error) = std::fs::write(path, format!("{:#}\n", json!(rows))) {
            eprintln!("interop: {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
        println!("interop: results are in {}", path.display());
        if self.0.iter().all(|row| row.outcome.is_ok()) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header(["peer", "scenario", "result", "packets", "seconds"]);
        for row in &self.0 {
            let (result, packets) = match &row.outcome {
                Ok(packets) => ("ok", packets.to_string()),
                Err(_) => ("FAILED", String::new()),
            };
            let seconds = format!("{:.1}", row.took.as_secs_f64());
            table.add_row([&row.peer, &row.scenario, result, &packets, &seconds]);
        }
        write!(f, "{table}")?;
        // Once more what went wrong, with its reason, where the eye is when the run ends.
        let mut failed = self.0.iter().filter(|row| row.outcome.is_err());
        failed.try_for_each(|row| write!(f, "\n{}", row.line()))
    }
}
