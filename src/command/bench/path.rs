//! `peregrine bench path` and `bench scale`: the data path's own cost, without a kernel.

use std::path::PathBuf;
use std::process::ExitCode;

use crypto::{Cache, Engine};
use dataplane::cpu;
use dataplane::ruler::path::{Measured, Order, Selection};
use lab::aims::SIZES;

use super::machine::Machine;
use super::measuring::{Plan, Row, cache, direction, figures, inner_sizes, order, selection};
use super::output::{self, Table};
use crate::command::Unfit;

/// Cycles per packet of sealing and opening, beside the raw cipher in the same run
///
/// The ruler is the memory port: the worker's whole turn (14 stages, from receive to send; the second table
/// names them) from ring to ring in RAM, no kernel, no interface. Consecutive packets use different tunnels,
/// in random order unless it is asked for otherwise. Path and cipher with one key are measured in turn, in
/// many short batches, and the cipher with all keys after them; a figure is the median of the quickest
/// quarter of the batches (the 12.5th percentile), and in brackets is what lay between the 10th and the 90th
/// percentile of all of them. Cycles are those of the time stamp counter, whose rate is printed.
///
/// "beside" is what the path costs beside the cipher with one key; "share" is the cipher's part of
/// the path; "all keys" is the cipher alone with as many keys as SAs, nothing prefetched.
///
/// Each selection, number of SAs and direction has gateways of its own, one after the other. What those
/// before have left in the heap may cost up to 15 %: for a gateway's own figures ask for one at a time.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  peregrine bench path                                     one SA and 10000, all sizes
  peregrine bench path --sas 50000 --sizes imix1 --directions seal
  peregrine bench path --prefetch l1                       and again with l2: which is quicker here
  peregrine bench path --json | jq '.rows[] | select(.sas == 1) | .beside_ns'")]
pub struct Path {
    #[command(flatten)]
    asked: Asked,
    /// Packet sizes: bytes with Ethernet header and without checksum, or imix1 to imix4
    #[arg(long, value_delimiter = ',', default_value = SIZES)]
    sizes: Vec<String>,
    /// Numbers of SAs
    #[arg(long, value_delimiter = ',', default_value = "1,10000", value_name = "N,…")]
    sas: Vec<usize>,
}

/// How cycles per packet grow with the number of SAs
///
/// The same measurement as `bench path`, over more SAs and fewer sizes.
#[derive(clap::Args)]
pub struct Scale {
    #[command(flatten)]
    asked: Asked,
    /// Packet sizes: bytes with Ethernet header and without checksum, or imix1 to imix4
    #[arg(long, value_delimiter = ',', default_value = "114,1428,imix1")]
    sizes: Vec<String>,
    /// Numbers of SAs
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,10,100,1000,10000,50000",
        value_name = "N,…"
    )]
    sas: Vec<usize>,
}

/// What both take.
#[derive(clap::Args)]
struct Asked {
    /// What to measure: seal, open, both
    #[arg(long, value_delimiter = ',', default_value = "seal,open,both", value_parser = direction)]
    directions: Vec<Measured>,
    /// How packets find their tunnel: policy, policy-shapes (policies of two shapes, a bypass of a
    /// port, and one that drops the rest), policy-uncached (of eight shapes, each packet of a new flow), policy-cached
    /// (behind policies of many shapes, flows are remembered), policy-changing (the same, a policy changed every
    /// millisecond), policy-limited (SAs that have limits in packets and bytes, far away), policy-udp (ESP in UDP, as
    /// through NATs), policy-over-v6 (tunnels over IPv6), policy-v6 (IPv6 inside), policy-dual (both families inside, in
    /// turns), policy-split (each second packet is of no policy and goes on in clear), policy-marked (senders say ECT(1),
    /// and each sixteenth packet is marked on its way), policy-stray (each sixteenth packet to be opened is for an SA
    /// that is not there), policy-fragments (each sixteenth packet is a fragment from another host), policy-options (each
    /// sixteenth packet has IP options), policy-gre (GRE inside), p2p and p2mp (route mode), p2p-split (each second packet
    /// is led into no tunnel), p2p-vrf (ports in one VRF, tunnels in another), plain (there is none)
    #[arg(long, value_delimiter = ',', default_value = "policy", value_parser = selection)]
    selections: Vec<Selection>,
    /// In which order packets use the tunnels: random, turns (one after the other, as packet generators
    /// count)
    #[arg(long, value_delimiter = ',', default_value = "random", value_parser = order)]
    orders: Vec<Order>,
    /// Crypto engine (default: the best this CPU has)
    #[arg(long)]
    engine: Option<String>,
    /// Into which of a core's caches memory is asked for ahead of its use: l1, l2 (default: the one that this CPU is
    /// quicker with at that number of SAs)
    #[arg(long, value_name = "CACHE", value_parser = cache)]
    prefetch: Option<Cache>,
    /// Batches of each line
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(3..=10_000))]
    batches: u32,
    /// Print JSON, and no progress
    #[arg(long)]
    json: bool,
    /// Folder for charts, figures and their page
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Path {
    /// Measures and prints.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.asked.run(&self.sas, &self.sizes)
    }
}

impl Scale {
    /// Measures and prints.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.asked.run(&self.sas, &self.sizes)
    }
}

impl Asked {
    fn run(self, sas: &[usize], sizes: &[String]) -> anyhow::Result<ExitCode> {
        let engine = Engine::select(self.engine.as_deref()).map_err(|e| Unfit(e.to_string()))?;
        if let Some(cache) = self.prefetch {
            cpu::fix_cache(cache);
        }
        let plan = Plan {
            engine,
            selections: self.selections,
            orders: self.orders,
            directions: self.directions,
            sas: sas.to_vec(),
            sizes: inner_sizes(sizes)?,
            batches: self.batches,
            quiet: self.json,
        };
        let rows = plan.measure()?;
        let machine = Machine::of(engine);
        let measured = figures(&rows);
        if self.json {
            output::print_json(&machine, &rows, &measured)?;
        } else {
            println!("{}; {} batches", machine.line(), self.batches);
            println!("{}", table(&rows));
            println!("{}", stages(&rows));
        }
        if let Some(folder) = &self.out {
            output::write(folder, &machine, measured)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The lines as a table.
pub fn table(rows: &[Row]) -> Table {
    let mut table = output::table(&[
        "selection",
        "direction",
        "order",
        "SAs",
        "size",
        "path cycles",
        "path ns",
        "cipher",
        "all keys",
        "beside",
        "beside ns",
        "share",
        "Gbps",
    ]);
    for row in rows {
        table.add_row([
            row.selection.to_owned(),
            row.direction.to_owned(),
            row.order.to_owned(),
            row.sas.to_string(),
            row.size.clone(),
            output::spread(&row.path_cycles),
            format!("{:.1}", row.path_ns),
            output::spread(&row.cipher_cycles),
            output::spread(&row.cipher_all_keys_cycles),
            format!("{:.0}", row.beside_cycles),
            format!("{:.1}", row.beside_ns),
            format!("{:.0} %", 100.0 * row.cipher_share),
            format!("{:.2}", row.path_gbps),
        ]);
    }
    table
}

/// Where the cycles of each line went.
fn stages(rows: &[Row]) -> Table {
    let header =
        ["selection", "direction", "order", "SAs", "size", "cycles per packet, stage by stage"];
    let mut table = output::table(&header[..]);
    for row in rows {
        let stages = row.stages.iter().map(|cost| format!("{} {:.0}", cost.stage, cost.cycles));
        table.add_row([
            row.selection.to_owned(),
            row.direction.to_owned(),
            row.order.to_owned(),
            row.sas.to_string(),
            row.size.clone(),
            stages.collect::<Vec<_>>().join(", "),
        ]);
    }
    table
}
