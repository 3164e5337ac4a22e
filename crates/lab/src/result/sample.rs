//! `samples.csv`: four rows per second and curve, the raw material of plots and markers.
//!
//! Columns are named in the first line and found by name, so columns may be added without a new
//! schema. An empty cell means "nothing was measured", never zero.

use std::fmt::Write as _;

use thiserror::Error;

/// One row: rates over the last interval, losses since the start of the step.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Seconds since the curve's first step began.
    pub t_s: f64,
    /// The curve's name.
    pub curve: String,
    /// Step number, from 1.
    pub step: u32,
    /// L2 bits per second asked for, all sending ports together.
    pub offered_bps: f64,
    /// L2 bits per second sent in the interval, all ports.
    pub tx_bps: f64,
    /// L2 bits per second received in the interval, all ports.
    pub rx_bps: f64,
    /// Load frames per second received in the interval, all ports.
    pub rx_pps: f64,
    /// Mean latency of the interval's probes, microseconds.
    pub latency_us: Option<f64>,
    /// 99th percentile of the interval's probes, microseconds.
    pub latency_p99_us: Option<f64>,
    /// Load frames known to be missing in this step, percent.
    pub rx_loss_percent: f64,
    /// Probes known to be missing in this step, percent.
    pub latency_loss_percent: f64,
    /// Load frames reordered in this step.
    pub reordered: u64,
    /// Load frames duplicated in this step.
    pub duplicated: u64,
    /// Load frames damaged in this step.
    pub corrupted: u64,
}

/// The columns, in the order they are written.
const COLUMNS: [&str; 14] = [
    "t_s",
    "curve",
    "step",
    "offered_bps",
    "tx_bps",
    "rx_bps",
    "rx_pps",
    "latency_us",
    "latency_p99_us",
    "rx_loss_percent",
    "latency_loss_percent",
    "reordered",
    "duplicated",
    "corrupted",
];

/// Why `samples.csv` could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SampleError {
    /// A column that every version has is absent.
    #[error("column `{0}` is missing; the first line has to name the columns")]
    MissingColumn(&'static str),
    /// A row with too few or too many cells.
    #[error("line {line}: expected {expected} cells, found {found}")]
    CellCount {
        /// Line number, from 1.
        line: usize,
        /// Cells in the first line.
        expected: usize,
        /// Cells in this one.
        found: usize,
    },
    /// A cell that is not the number it should be.
    #[error("line {line}: column `{column}` holds `{cell}`, expected a number")]
    NotANumber {
        /// Line number, from 1.
        line: usize,
        /// Column name.
        column: &'static str,
        /// What stands there.
        cell: String,
    },
}

/// The samples as CSV text (RFC 4180, line feeds only).
pub fn write_samples(samples: &[Sample]) -> String {
    let mut text = COLUMNS.join(",");
    text.push('\n');
    for s in samples {
        let cell = |value: Option<f64>| value.map(|v| format!("{v:.3}")).unwrap_or_default();
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "{:.3},{},{},{:.0},{:.0},{:.0},{:.0},{},{},{:.6},{:.6},{},{},{}",
            s.t_s,
            quoted(&s.curve),
            s.step,
            s.offered_bps,
            s.tx_bps,
            s.rx_bps,
            s.rx_pps,
            cell(s.latency_us),
            cell(s.latency_p99_us),
            s.rx_loss_percent,
            s.latency_loss_percent,
            s.reordered,
            s.duplicated,
            s.corrupted,
        );
    }
    text
}

/// Reads what [`write_samples`] wrote, or a file with more columns in another order.
///
/// # Errors
/// [`SampleError`] with the column that is missing, or the line and what is wrong with it.
pub fn read_samples(text: &str) -> Result<Vec<Sample>, SampleError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let header = lines.next().map(|(_, line)| cells(line)).unwrap_or_default();
    let mut places = [0usize; COLUMNS.len()];
    for (place, column) in places.iter_mut().zip(COLUMNS) {
        *place = header
            .iter()
            .position(|cell| cell.trim() == column)
            .ok_or(SampleError::MissingColumn(column))?;
    }
    lines
        .map(|(index, line)| {
            let cells = cells(line);
            let row = Row { line: index + 1, cells: &cells, places: &places };
            if cells.len() != header.len() {
                return Err(SampleError::CellCount {
                    line: index + 1,
                    expected: header.len(),
                    found: cells.len(),
                });
            }
            row.sample()
        })
        .collect()
}

/// One row being read.
struct Row<'a> {
    line: usize,
    cells: &'a [String],
    places: &'a [usize; COLUMNS.len()],
}

impl Row<'_> {
    fn sample(&self) -> Result<Sample, SampleError> {
        Ok(Sample {
            t_s: self.number(0)?,
            curve: self.cells[self.places[1]].clone(),
            step: self.number(2)?,
            offered_bps: self.number(3)?,
            tx_bps: self.number(4)?,
            rx_bps: self.number(5)?,
            rx_pps: self.number(6)?,
            latency_us: self.optional(7)?,
            latency_p99_us: self.optional(8)?,
            rx_loss_percent: self.number(9)?,
            latency_loss_percent: self.number(10)?,
            reordered: self.number(11)?,
            duplicated: self.number(12)?,
            corrupted: self.number(13)?,
        })
    }

    fn number<T: std::str::FromStr>(&self, column: usize) -> Result<T, SampleError> {
        let cell = self.cells[self.places[column]].trim();
        cell.parse().map_err(|_| SampleError::NotANumber {
            line: self.line,
            column: COLUMNS[column],
            cell: cell.to_owned(),
        })
    }

    fn optional(&self, column: usize) -> Result<Option<f64>, SampleError> {
        if self.cells[self.places[column]].trim().is_empty() {
            Ok(None)
        } else {
            self.number(column).map(Some)
        }
    }
}

/// RFC 4180 §2: cells with commas or quotes are quoted, quotes inside are doubled. Line breaks in
/// a curve's name become spaces, because a row is one line.
fn quoted(text: &str) -> String {
    let text = text.replace(['\n', '\r'], " ");
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

/// Splits one line into cells.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut inside_quotes = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let cell = cells.last_mut().expect("the vector starts with one cell and only grows");
        match c {
            '"' if inside_quotes && chars.peek() == Some(&'"') => {
                cell.push('"');
                chars.next();
            }
            '"' => inside_quotes = !inside_quotes,
            ',' if !inside_quotes => cells.push(String::new()),
            c => cell.push(c),
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(curve: &str) -> Sample {
        Sample {
            t_s: 1.25,
            curve: curve.into(),
            step: 3,
            offered_bps: 3e9,
            tx_bps: 2.9e9,
            rx_bps: 2.8e9,
            rx_pps: 900_000.0,
            latency_us: Some(41.5),
            latency_p99_us: None,
            rx_loss_percent: 0.125,
            latency_loss_percent: 0.0,
            reordered: 1,
            duplicated: 2,
            corrupted: 0,
        }
    }

    #[test]
    fn a_file_reads_back_as_it_was_written() {
        let samples = vec![sample("500 tunnels"), sample("odd, \"quoted\" name")];
        assert_eq!(read_samples(&write_samples(&samples)), Ok(samples));
    }

    #[test]
    fn columns_are_found_by_name() {
        let text = write_samples(&[sample("a")]);
        let swapped: String = text
            .lines()
            .map(|line| {
                let mut cells: Vec<&str> = line.split(',').collect();
                cells.reverse();
                format!("extra,{}\n", cells.join(","))
            })
            .collect();
        assert_eq!(read_samples(&swapped), Ok(vec![sample("a")]));
    }

    #[test]
    fn mistakes_name_their_place() {
        assert_eq!(read_samples(""), Err(SampleError::MissingColumn("t_s")));
        let mut text = write_samples(&[sample("a")]);
        text.push_str("1,2\n");
        assert_eq!(
            read_samples(&text),
            Err(SampleError::CellCount { line: 3, expected: 14, found: 2 })
        );
        let text = write_samples(&[sample("a")]).replace("1.250,", "soon,");
        assert_eq!(
            read_samples(&text).unwrap_err().to_string(),
            "line 2: column `t_s` holds `soon`, expected a number"
        );
    }
}
