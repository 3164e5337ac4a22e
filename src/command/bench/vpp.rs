//! `peregrine bench vpp`: FD.io VPP beside the data path, on this machine and in turn.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::Context;
use crypto::Engine;
use lab::figure::{Figures, Spread};
use lab::report::bench;
use lab::run::was_stopped;
use lab::vpp::gateway::Gateway;
use lab::vpp::instance::VppError;
use lab::vpp::script::{Direction, Order, Selection, Setup, TUNNELS_MAX};
use serde::Serialize;

use super::machine::Machine;
use super::{output, parts};
use crate::command::Unfit;
use crate::command::lab::{EXIT_INTERRUPTED, watch_signals};

/// How often VPP is looked at for each line and round.
const TIMES: usize = 20;

/// FD.io VPP's cycles per packet beside ours, on one machine and in turn
///
/// Runs a VPP that is on this machine, with one worker on the second core and its own packet generator as source and
/// sink, and `bench path` in turn with it, VPP halted meanwhile: IPv4 in IPv4 tunnels, AES-256-GCM, memory in and out.
///
/// VPP's cycles are those of its nodes together, without its generator's, which make packets and take them away. Ours
/// are those of a worker's whole turn, from ring to ring; what of it takes packets and gives them away stands under
/// "ports" beside it, as VPP's have nothing of the kind. Of each, the median of the quickest quarter counts, and of all
/// rounds the quickest. VPP has neither extended sequence numbers nor protection against replay, as in the figures that
/// were measured elsewhere; ours has both.
///
/// Debian has no VPP: take FD.io's packages, or a build of your own with its engine for libipsec-mb.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes:
  0    measured
  1    failed
  2    not started: an option is not fit, there is no VPP, or nobody is root
  130  interrupted; what was measured is printed

Examples:
  peregrine bench vpp                                        one tunnel and 10 000, by routes and by policies
  peregrine bench vpp --vpp ~/vpp/build-root/install-vpp-native/vpp/bin/vpp --tunnels 10000 --sizes 1428
  peregrine bench vpp --rounds 12                            on a machine that others use
  peregrine bench vpp --json | jq '.rows[] | {selection, tunnels, size, quotient}'")]
pub struct Vpp {
    /// VPP's own program; vppctl is looked for beside it
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/vpp")]
    vpp: PathBuf,
    /// How packets find their tunnel: p2p and p2mp (route mode), policy (VPP's fast path), plain (there is none)
    #[arg(long, value_delimiter = ',', default_value = "p2p,p2mp,policy", value_parser = selection)]
    selections: Vec<Selection>,
    /// What is measured: seal, open
    #[arg(long, value_delimiter = ',', default_value = "seal,open", value_parser = direction)]
    directions: Vec<Direction>,
    /// In which order packets use the tunnels: turns (one after the other), random
    #[arg(long, value_delimiter = ',', default_value = "turns,random", value_parser = order)]
    orders: Vec<Order>,
    /// Numbers of tunnels
    #[arg(long, value_delimiter = ',', default_value = "1,10000", value_name = "N,…",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(TUNNELS_MAX)))]
    tunnels: Vec<u32>,
    /// Packet sizes: bytes with Ethernet header and without checksum
    #[arg(long, value_delimiter = ',', default_value = "64,114,1428", value_name = "BYTES,…",
        value_parser = clap::value_parser!(u32).range(64..=1428))]
    sizes: Vec<u32>,
    /// How often each is measured
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Print JSON, and no progress
    #[arg(long)]
    json: bool,
}

/// What was measured so far.
#[derive(Default)]
struct Found {
    /// VPP's figures below `vpp-here` and `vpp-here-random`, and those of `bench path`.
    figures: Figures,
    /// What VPP it was.
    peer: String,
}

/// One line: the same packets through both.
#[derive(Debug, Serialize)]
struct Row {
    direction: &'static str,
    selection: &'static str,
    order: &'static str,
    tunnels: u32,
    size: u32,
    vpp_cycles: f64,
    path_cycles: f64,
    /// What of ours is `receive` and `send`, by the stages' own count: VPP's has nothing like them.
    port_cycles: f64,
    /// VPP's cycles over ours.
    quotient: f64,
}

/// All that is printed, for programs.
#[derive(Serialize)]
struct Report<'a> {
    schema: u64,
    machine: &'a Machine,
    /// Which VPP, and with which engine.
    peer: &'a str,
    rows: &'a [Row],
    figures: &'a Figures,
}

fn selection(name: &str) -> Result<Selection, String> {
    Selection::ALL
        .into_iter()
        .find(|one| one.own_name() == name)
        .ok_or_else(|| "one of p2p, p2mp, policy, plain".to_owned())
}

fn direction(name: &str) -> Result<Direction, String> {
    Direction::ALL
        .into_iter()
        .find(|one| one.name() == name)
        .ok_or_else(|| "one of seal, open".to_owned())
}

fn order(name: &str) -> Result<Order, String> {
    Order::ALL
        .into_iter()
        .find(|one| one.name() == name)
        .ok_or_else(|| "one of turns, random".to_owned())
}

impl Vpp {
    /// Measures and prints.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if !rustix::process::geteuid().is_root() {
            return Err(Unfit("VPP needs root; run it with sudo".to_owned()).into());
        }
        let engine = Engine::select(None).map_err(|error| Unfit(error.to_string()))?;
        let stop = Arc::new(AtomicBool::new(false));
        watch_signals(Arc::clone(&stop), "printed")?;
        let mut found = Found::default();
        let outcome = self.measure(&stop, &mut found);
        // Whoever interrupts this interrupts VPP and `bench path`, which fail then, before this hears of it.
        let interrupted = if outcome.is_err() { was_stopped(&stop) } else { stop.load(Relaxed) };
        if !interrupted {
            outcome?;
        }
        let (machine, rows) = (Machine::of(engine), self.rows(&found.figures));
        if self.json {
            let Found { figures, peer } = &found;
            let (schema, machine, rows) = (bench::SCHEMA, &machine, &rows[..]);
            let report = Report { schema, machine, peer, rows, figures };
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            println!("{}\n{}\n{}", machine.line(), found.peer, table(&rows));
        }
        Ok(if interrupted { ExitCode::from(EXIT_INTERRUPTED) } else { ExitCode::SUCCESS })
    }

    fn measure(&self, stop: &AtomicBool, found: &mut Found) -> anyhow::Result<()> {
        let sizes: Vec<usize> = self.sizes.iter().map(|size| *size as usize).collect();
        for setup in self.setups() {
            let vpp =
                Gateway::start(&self.vpp, &std::env::temp_dir(), setup, &sizes).map_err(unfit)?;
            found.peer = format!("{}, engine {}", vpp.instance.version()?, vpp.instance.engine()?);
            for round in 1..=self.rounds {
                if stop.load(Relaxed) {
                    return Ok(());
                }
                if !self.json {
                    let (name, direction) = (setup.selection.own_name(), setup.direction.name());
                    let of = format!("{direction}, {name}, {} tunnels", setup.tunnels);
                    eprintln!("{of}: round {round} of {}", self.rounds);
                }
                found.figures.extend_by_quicker(self.measure_vpp(&vpp, setup)?);
                vpp.instance.pause()?;
                found.figures.extend_by_quicker(self.measure_path(setup)?);
                vpp.instance.resume()?;
            }
        }
        Ok(())
    }

    /// What both are measured with; what is in clear, nobody opens.
    fn setups(&self) -> Vec<Setup> {
        let mut setups = vec![];
        for direction in self.directions.iter().copied() {
            for selection in self.selections.iter().copied() {
                let of = |tunnels: &u32| Setup { selection, tunnels: *tunnels, direction };
                setups.extend(self.tunnels.iter().map(of));
            }
        }
        setups.retain(|one| one.selection != Selection::Plain || one.direction == Direction::Seal);
        setups
    }

    fn measure_vpp(&self, vpp: &Gateway, setup: Setup) -> anyhow::Result<Figures> {
        let mut figures = Figures::default();
        for order in self.orders(setup.tunnels) {
            for size in &self.sizes {
                let cycles = vpp.measure(order, *size as usize, TIMES)?;
                let name = vpp_figure(setup, order, *size);
                figures.add_spread(name, &Spread::of_times(cycles), "cycles");
            }
        }
        Ok(figures)
    }

    fn measure_path(&self, setup: Setup) -> anyhow::Result<Figures> {
        let binary = std::env::current_exe().context("finding this program's own file")?;
        let list = |words: Vec<String>| words.join(",");
        let orders = self.orders(setup.tunnels);
        let orders = list(orders.iter().map(|order| order.name().to_owned()).collect());
        let sizes = list(self.sizes.iter().map(u32::to_string).collect());
        let tunnels = setup.tunnels.to_string();
        let arguments = [
            "path",
            "--directions",
            setup.direction.name(),
            "--selections",
            setup.selection.own_name(),
            "--sas",
            &tunnels,
            "--orders",
            &orders,
            "--sizes",
            &sizes,
        ];
        parts::measure_silently(&binary, &arguments)
    }

    /// One tunnel has but one order.
    fn orders(&self, tunnels: u32) -> Vec<Order> {
        let mut orders = self.orders.clone();
        orders.truncate(if tunnels == 1 { 1 } else { orders.len() });
        orders
    }

    fn rows(&self, figures: &Figures) -> Vec<Row> {
        let mut rows = vec![];
        for setup in self.setups() {
            for order in self.orders(setup.tunnels) {
                rows.extend(self.sizes.iter().filter_map(|size| row(figures, setup, order, *size)));
            }
        }
        rows
    }
}

/// What both took for the same packets.
fn row(figures: &Figures, setup: Setup, order: Order, size: u32) -> Option<Row> {
    let Setup { selection, tunnels, direction } = setup;
    let above = if order == Order::Random { "path" } else { "path-turns" };
    let (selection, direction) = (selection.own_name(), direction.name());
    let of = format!("{above}/{selection}/{direction}/{tunnels}/{size}");
    let path = |what: &str| figures.value(&format!("{of}/{what}"));
    let vpp_cycles = figures.value(&vpp_figure(setup, order, size))?;
    let path_cycles = path("cycles")?;
    Some(Row {
        direction,
        selection,
        order: order.name(),
        tunnels,
        size,
        vpp_cycles,
        path_cycles,
        port_cycles: ["stage/receive", "stage/send"].into_iter().filter_map(path).sum(),
        quotient: vpp_cycles / path_cycles,
    })
}

/// As in [`lab::vpp::cycles`], which has those that were measured elsewhere.
fn vpp_figure(setup: Setup, order: Order, size: u32) -> String {
    let Setup { selection, tunnels, direction } = setup;
    let above = if order == Order::Random { "vpp-here-random" } else { "vpp-here" };
    format!("{above}/{}/{}/{tunnels}/{size}/cycles", direction.name(), selection.name())
}

fn table(rows: &[Row]) -> output::Table {
    let mut table = output::table(&[
        "direction",
        "selection",
        "order",
        "tunnels",
        "size",
        "VPP",
        "Peregrine",
        "ports",
        "VPP's over ours",
    ]);
    for row in rows {
        let order = if row.tunnels == 1 { "–" } else { row.order };
        table.add_row([
            row.direction.to_owned(),
            row.selection.to_owned(),
            order.to_owned(),
            row.tunnels.to_string(),
            row.size.to_string(),
            format!("{:.0}", row.vpp_cycles),
            format!("{:.0}", row.path_cycles),
            format!("{:.0}", row.port_cycles),
            format!("{:.2} ×", row.quotient),
        ]);
    }
    table
}

/// Without VPP there is nothing to measure, which is no failure of the bench.
fn unfit(error: VppError) -> anyhow::Error {
    match error {
        VppError::Absent { ref source, .. } if source.kind() == io::ErrorKind::NotFound => {
            Unfit(error.to_string()).into()
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_compares_the_same_packets() {
        let mut figures = Figures::default();
        figures.add("vpp-here/seal/policy-fastpath/10000/64/cycles", 644.0, "cycles");
        figures.add("path/policy/seal/10000/64/cycles", 7.0, "cycles");
        let (selection, direction) = (Selection::Policies, Direction::Seal);
        let setup = Setup { selection, tunnels: 10_000, direction };
        let row_of = |figures: &Figures| row(figures, setup, Order::Turns, 64);
        assert!(row_of(&figures).is_none(), "ours at random is another order");
        figures.add("path-turns/policy/seal/10000/64/cycles", 161.0, "cycles");
        figures.add("path-turns/policy/seal/10000/64/stage/receive", 20.0, "cycles");
        figures.add("path-turns/policy/seal/10000/64/stage/send", 8.0, "cycles");
        let row = row_of(&figures).unwrap();
        assert_eq!((row.vpp_cycles, row.path_cycles, row.quotient), (644.0, 161.0, 4.0));
        assert!((row.port_cycles - 28.0).abs() < 1e-9);
        assert!(table(&[row]).to_string().contains("4.00 ×"));
    }

    #[test]
    fn selections_and_orders_have_the_names_of_the_path_bench() {
        for one in Selection::ALL {
            assert_eq!(selection(one.own_name()), Ok(one));
        }
        for one in Order::ALL {
            assert_eq!(order(one.name()), Ok(one));
        }
        assert!(selection("policy-fastpath").is_err() && order("").is_err());
    }
}
