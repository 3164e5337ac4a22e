//! FD.io VPP: its figures, measured on this machine class and published, and itself, where it can be run.
//!
//! The figures are facts about other software, with their conditions in the heads of the files. Nothing
//! here judges.

mod capture;
pub mod gateway;
pub mod instance;
pub mod runtime;
pub mod script;

use crate::figure::Figures;

/// Cycles per packet, measured.
const CYCLES_CSV: &str = include_str!("../reference/vpp.csv");
/// Gbps against cores, published.
const CORES_CSV: &str = include_str!("../reference/vpp-cores.csv");

/// What has to stand beside the measured ones.
pub const CYCLES_CONDITIONS: &str = "VPP 26.10-rc, libipsec-mb 2.0.2, AMD Zen 4 at 2.596 GHz, no ESN, \
     anti-replay off; consecutive packets use consecutive tunnels";
/// What has to stand beside the published ones.
pub const CORES_CONDITIONS: &str = "published for VPP: FD.io CSIT on Intel Ice Lake (10 000 tunnels) and \
     Emerald Rapids (one tunnel), network cards, loss below 0.5 %";

/// One published rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// `10k` or `fat`.
    pub table: &'static str,
    /// `policy`, `policy+cache`, `p2p`, `sync`, `async`.
    pub mode: &'static str,
    /// Cores.
    pub cores: u32,
    /// Gigabits per second.
    pub gbps: f64,
}

/// The measured cycles as figures: `vpp/seal/p2p/10000/imix1/cycles`; those with tunnels in random
/// order begin with `vpp-random`.
pub fn cycles() -> Figures {
    let mut figures = Figures::default();
    for cells in rows(CYCLES_CSV) {
        let [direction, selection, tunnels, order, size, cycles] = cells[..] else { continue };
        let Ok(cycles) = cycles.parse() else { continue };
        let above = if order == "random" { "vpp-random" } else { "vpp" };
        let name = format!("{above}/{direction}/{selection}/{tunnels}/{size}/cycles");
        figures.add(name, cycles, "cycles");
    }
    figures
}

/// The published rates, in the order of the tables.
pub fn rates() -> Vec<Rate> {
    let rate = |cells: Vec<&'static str>| {
        let [table, mode, cores, gbps] = cells[..] else { return None };
        Some(Rate { table, mode, cores: cores.parse().ok()?, gbps: gbps.parse().ok()? })
    };
    rows(CORES_CSV).filter_map(rate).collect()
}

/// The cells of every line but comments and the header.
fn rows(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.skip(1).map(|line| line.split(',').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measured_line_becomes_a_figure() {
        let figures = cycles();
        assert_eq!(figures.iter().count(), rows(CYCLES_CSV).count());
        assert_eq!(figures.value("vpp/seal/p2p/1/114/cycles"), Some(191.0));
        assert_eq!(figures.value("vpp/seal/p2p/10000/imix1/cycles"), Some(1093.0));
        assert_eq!(figures.value("vpp-random/open/p2p/10000/1428/cycles"), Some(2593.0));
        assert_eq!(figures.value("vpp/seal/policy-flowcache/10000/1428/cycles"), Some(3012.0));
    }

    #[test]
    fn every_published_line_is_a_rate() {
        let rates = rates();
        assert_eq!(rates.len(), rows(CORES_CSV).count());
        let found = rates.iter().find(|rate| rate.mode == "async" && rate.cores == 4).unwrap();
        assert_eq!((found.table, found.gbps), ("fat", 70.0));
    }
}
