//! Figures: what a bench measured, each with a name, a unit and its spread.
//!
//! Names are paths: `path/policy/seal/10000/imix1/cycles`. What is judged or drawn asks for figures
//! by name and knows nothing of who measured them. Nothing here measures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The share of the batches that count: the quickest quarter. On a machine that others use, the
/// slow batches measure the others; the quickest one alone would be luck.
const QUIET_SHARE: f64 = 0.25;

/// The median of the quiet batches, and how far all of them spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median of the quickest quarter: the 12.5th percentile.
    pub quiet: f64,
    /// The 10th percentile of all.
    pub p10: f64,
    /// The median of all.
    pub median: f64,
    /// The 90th percentile of all.
    pub p90: f64,
}

impl Spread {
    /// Of times, where less is quieter; all zero if there are none.
    pub fn of_times(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1) as f64;
        let at = |share: f64| values.get((last * share).round() as usize).copied().unwrap_or(0.0);
        Spread { quiet: at(QUIET_SHARE / 2.0), p10: at(0.1), median: at(0.5), p90: at(0.9) }
    }
}

/// The unit of a share that was lost.
pub const LOST: &str = "lost";
/// The unit of packets that were forwarded while something else was measured.
pub const LOAD_PPS: &str = "pps";
/// The unit of the same as a share of what is carried without loss.
pub const LOADED: &str = "loaded";

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The number that counts.
    pub value: f64,
    /// `cycles`, `ns`, `Gbps`, `1`, …
    pub unit: String,
    /// How far the measurements behind it spread, from the 10th to the 90th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<(f64, f64)>,
}

impl Figure {
    /// Whether it counts, and not another measurement of the same. Of times the shorter does and of rates the higher, as
    /// others on the machine only make them worse; of bytes and losses the most, as nobody is spared those; of loads the
    /// least, as no more than that is sure to have been there.
    fn counts_over(&self, other: &Figure) -> bool {
        match self.unit.as_str() {
            "cycles" | "ns" | "µs" | "s" | LOAD_PPS | LOADED => self.value <= other.value,
            "Mpps" | "Gbps" | "1/s" | "bytes" | LOST => self.value >= other.value,
            _ => true,
        }
    }
}

/// Figures by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Figures(BTreeMap<String, Figure>);

impl Figures {
    /// Adds one; a later figure of a name replaces an earlier one.
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &str) {
        let figure = Figure { value, unit: unit.to_owned(), spread: None };
        self.0.insert(name.into(), figure);
    }

    /// Adds one that was measured many times.
    pub fn add_spread(&mut self, name: impl Into<String>, spread: &Spread, unit: &str) {
        let (value, spread) = (spread.quiet, Some((spread.p10, spread.p90)));
        self.0.insert(name.into(), Figure { value, unit: unit.to_owned(), spread });
    }

    /// Adds all of another collection.
    pub fn extend(&mut self, other: Figures) {
        self.0.extend(other.0);
    }

    /// Adds all of another collection, which measured the same at another time. A line is what stands before
    /// `/cycles` in a name: all figures of a line that both have are those of the time when it was quicker. Of
    /// other times the shorter counts, of rates the higher; of bytes and what was lost the most, of loads the least; of
    /// anything else the later.
    pub fn extend_by_quicker(&mut self, other: Figures) {
        let is_slower = |line: &str| {
            let cycles = format!("{line}/cycles");
            matches!((self.value(&cycles), other.value(&cycles)), (Some(a), Some(b)) if a <= b)
        };
        let counts = |name: &str, figure: &Figure| match other.line_of(name) {
            Some(line) => !is_slower(line),
            None => self.0.get(name).is_none_or(|known| figure.counts_over(known)),
        };
        let counting = other.0.iter().filter(|(name, figure)| counts(name, figure));
        let counting: Vec<_> = counting.map(|(name, one)| (name.clone(), one.clone())).collect();
        self.0.extend(counting);
    }

    /// The line that a name belongs to, if it belongs to one.
    fn line_of<'n>(&self, name: &'n str) -> Option<&'n str> {
        let mut beginnings = name.match_indices('/').map(|(end, _)| &name[..end]);
        beginnings.find(|line| self.0.contains_key(&format!("{line}/cycles")))
    }

    /// The value of a name.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.0.get(name).map(|figure| figure.value)
    }

    /// All, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Figure)> {
        self.0.iter().map(|(name, figure)| (name.as_str(), figure))
    }

    /// The values of all names that match a pattern, where `*` stands for one part of a path.
    pub fn matching<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.iter().filter(move |(name, _)| matches(pattern, name)).map(|(n, f)| (n, f.value))
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.split('/'), name.split('/'));
    loop {
        match (pattern.next(), name.next()) {
            (None, None) => return true,
            (Some(wanted), Some(part)) if wanted == "*" || wanted == part => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quiet_figure_is_the_median_of_the_quickest_quarter() {
        let spread = Spread::of_times((0..=80).rev().map(f64::from).collect());
        assert_eq!((spread.quiet, spread.p10), (10.0, 8.0));
        assert_eq!((spread.median, spread.p90), (40.0, 72.0));
        assert_eq!(Spread::of_times(vec![3.0]).quiet, 3.0);
        assert_eq!(Spread::of_times(vec![]).p90, 0.0);
    }

    #[test]
    fn a_line_has_the_figures_of_its_quicker_time() {
        let line = |line: &str, cycles, share| {
            let mut figures = Figures::default();
            figures.add(format!("{line}/cycles"), cycles, "cycles");
            figures.add(format!("{line}/share"), share, "1");
            figures
        };
        let mut figures = line("path/seal/1", 200.0, 0.3);
        figures.extend(line("path/seal/10", 300.0, 0.2));
        let mut again = line("path/seal/1", 210.0, 0.4);
        again.extend(line("path/seal/10", 290.0, 0.1));
        again.extend(line("path/open/1", 1.0, 1.0));
        figures.extend_by_quicker(again);
        let value = |name| figures.value(name).unwrap();
        assert_eq!((value("path/seal/1/cycles"), value("path/seal/1/share")), (200.0, 0.3));
        assert_eq!((value("path/seal/10/cycles"), value("path/seal/10/share")), (290.0, 0.1));
        assert_eq!(value("path/open/1/share"), 1.0);
    }

    #[test]
    fn of_two_times_the_shorter_counts_of_rates_the_higher_and_the_worse_of_losses_and_loads() {
        let measured = |time, rate, bytes| {
            let mut figures = Figures::default();
            figures.add("control/install-busy/10/loss", bytes / 1e6, LOST);
            figures.add("control/install-busy/10/pps", time * 1e3, LOAD_PPS);
            figures.add("control/install-busy/10/load", time / 40.0, LOADED);
            figures.add("fib/1000/single_ns", time, "ns");
            figures.add("cores/many/2/mpps", rate, "Mpps");
            figures.add("fib/vrfs/10/bytes", bytes, "bytes");
            figures
        };
        let mut figures = measured(20.0, 5.0, 1000.0);
        figures.extend_by_quicker(measured(13.0, 4.0, 900.0));
        assert_eq!(figures, measured(13.0, 5.0, 1000.0));
        figures.extend_by_quicker(measured(14.0, 6.0, 1100.0));
        assert_eq!(figures, measured(13.0, 6.0, 1100.0));
    }

    #[test]
    fn figures_are_found_by_name_and_by_pattern() {
        let mut figures = Figures::default();
        figures.add("path/seal/1/ns", 20.0, "ns");
        figures.add("path/seal/10000/ns", 40.0, "ns");
        figures.add("path/open/1/ns", 21.0, "ns");
        assert_eq!(figures.value("path/open/1/ns"), Some(21.0));
        assert_eq!(figures.value("path/open/2/ns"), None);
        let values: Vec<f64> = figures.matching("path/seal/*/ns").map(|(_, v)| v).collect();
        assert_eq!(values, [20.0, 40.0]);
        assert_eq!(figures.matching("path/*/ns").count(), 0);
    }
}
