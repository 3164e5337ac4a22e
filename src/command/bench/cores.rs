//! `peregrine bench cores`: two workers against one, and what more would do.

use std::process::ExitCode;

use crypto::Engine;
use dataplane::ruler::RulerError;
use dataplane::ruler::cores::{Ceiling, CoresBench, Costs, Load, packets_per_second};
use dataplane::ruler::path::Measured;
use lab::figure::{Figures, Spread};
use serde::Serialize;

use super::machine::Machine;
use super::measuring::{direction_name, inner_sizes};
use super::output;
use crate::command::Unfit;

/// Cores that the model is asked about. Not one: that is measured, and what a lone worker does is nothing to calculate from.
const MODELLED: [usize; 8] = [2, 3, 4, 8, 16, 32, 48, 64];

/// Two workers against one, for many tunnels and for one fat tunnel in order
///
/// Whole workers on memory ports, one thread each; of every packet it is checked that it came out once
/// and in its order, and that a receiver with a window of 64 accepts it. One worker and two are
/// measured in turn, many rounds of 4096 packets per worker; a figure is the median of the quickest
/// quarter of the rounds. What the machine itself gives two cores stands beside: the cipher alone, on one
/// thread and on two, each in memory of its own, measured in the same rounds. For more cores than two there is a model, fed with the costs measured
/// here; beside the measured figures stands what it says of two.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  peregrine bench cores                          seal, large packets
  peregrine bench cores --size imix1 --direction open")]
pub struct Cores {
    /// Packet size: bytes with Ethernet header and without checksum, or imix1 to imix4
    #[arg(long, default_value = "1428")]
    size: String,
    /// Tunnels of the case with many
    #[arg(long, default_value_t = 10_000, value_name = "N",
        value_parser = clap::value_parser!(u32).range(2..=50_000))]
    tunnels: u32,
    /// What to measure: seal or open
    #[arg(long, default_value = "seal", value_parser = ["seal", "open"])]
    direction: String,
    /// Crypto engine (default: the best this CPU has)
    #[arg(long)]
    engine: Option<String>,
    /// Rounds of each case
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(3..=10_000))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One case: many tunnels, or a fat one.
#[derive(Serialize)]
struct Row {
    case: &'static str,
    direction: &'static str,
    size: String,
    one_ns: Spread,
    two_ns: Spread,
    /// One worker's time over two workers'.
    ratio: f64,
    /// The same of the cipher alone, which shares nothing: what the machine gives.
    machine_ratio: f64,
    /// What the model says of two workers, over one that was measured.
    modelled_ratio: f64,
    /// How far the model's rate of two workers is from the one that was measured, as a share of that.
    model_error: f64,
    /// The owner's part of a packet, and what others can do for it; of a fat tunnel.
    serial_ns: Option<f64>,
    heavy_ns: Option<f64>,
    moved_ns: Option<f64>,
    /// Cores, and Gbps of inner packets by the model.
    model_gbps: Vec<(usize, f64)>,
    bytes_per_packet: f64,
}

impl Cores {
    /// Measures and prints.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let engine = Engine::select(self.engine.as_deref()).map_err(|e| Unfit(e.to_string()))?;
        let sizes = inner_sizes(std::slice::from_ref(&self.size))?;
        let mut rows = Vec::new();
        for (case, load) in [("many", Load::Many(self.tunnels as usize)), ("fat", Load::Fat)] {
            rows.push(self.measure(engine, case, load, &sizes[0].1)?);
        }
        let machine = Machine::of(engine);
        if self.json {
            output::print_json(&machine, &rows, &figures(&rows))?;
        } else {
            println!("{}; {} rounds", machine.line(), self.rounds);
            println!("{}", table(&rows));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// One worker and two in turn, so that both see the same machine.
    fn measure(
        &self,
        engine: Engine,
        case: &'static str,
        load: Load,
        sizes: &[usize],
    ) -> anyhow::Result<Row> {
        let measured = if self.direction == "open" { Measured::Open } else { Measured::Seal };
        let unfit = |error: RulerError| Unfit(error.to_string());
        let build = |workers| CoresBench::new(engine, workers, load, measured, sizes);
        let (mut one, mut two) = (build(1).map_err(unfit)?, build(2).map_err(unfit)?);
        let mut ceiling = Ceiling::new(engine, 2, sizes).map_err(unfit)?;
        let (mut ones, mut twos) = (Vec::new(), Vec::new());
        let (mut ciphers, mut pairs) = (Vec::new(), Vec::new());
        let (mut serials, mut heavies, mut dispatched) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes_per_packet = 0.0;
        for _ in 0..self.rounds {
            let sample = one.run()?;
            bytes_per_packet = sample.bytes as f64 / sample.packets.max(1) as f64;
            ones.push(sample.ns_per_packet());
            twos.push(two.run()?.ns_per_packet());
            ciphers.push(ceiling.run(1));
            pairs.push(ceiling.run(2));
            if load == Load::Fat {
                let costs = two.run_stages()?;
                serials.push(costs.serial_ns);
                heavies.push(costs.heavy_ns);
                dispatched.push(two.run_dispatched()?);
            }
        }
        let (one_ns, two_ns) = (Spread::of_times(ones), Spread::of_times(twos));
        let quiet = |values: Vec<f64>| Spread::of_times(values).quiet;
        let (serial, heavy) = (quiet(serials), quiet(heavies));
        // What a helper takes on a core of its own beyond the work itself: fetching the packet.
        let moved = (quiet(dispatched) - heavy).max(0.0);
        let costs =
            Costs { alone_ns: one_ns.quiet, serial_ns: serial, heavy_ns: heavy, moved_ns: moved };
        let model = |cores| packets_per_second(costs, load, cores);
        let (ratio, modelled_ratio) = (one_ns.quiet / two_ns.quiet, model(2) * one_ns.quiet / 1e9);
        let of_fat = |value: f64| (load == Load::Fat).then_some(value);
        Ok(Row {
            case,
            direction: direction_name(measured),
            size: self.size.clone(),
            one_ns,
            two_ns,
            ratio,
            machine_ratio: quiet(ciphers) / quiet(pairs),
            modelled_ratio,
            model_error: (modelled_ratio / ratio - 1.0).abs(),
            serial_ns: of_fat(serial),
            heavy_ns: of_fat(heavy),
            moved_ns: of_fat(moved),
            model_gbps: MODELLED
                .map(|cores| (cores, model(cores) * bytes_per_packet * 8.0 / 1e9))
                .into(),
            bytes_per_packet,
        })
    }
}

/// The rows as figures. Those of opening stand apart: what is drawn is sealing.
fn figures(rows: &[Row]) -> Figures {
    let mut figures = Figures::default();
    for row in rows {
        let top = if row.direction == "seal" { "cores" } else { "cores-open" };
        let case = format!("{top}/{}", row.case);
        // What all figures of a case go by: of several passes those count in which two workers were quickest.
        figures.add(format!("{case}/cycles"), output::cycles(row.two_ns.quiet), "cycles");
        figures.add(format!("{case}/ratio"), row.ratio, "×");
        figures.add(format!("{case}/machine_ratio"), row.machine_ratio, "×");
        for (cores, ns) in [(1, &row.one_ns), (2, &row.two_ns)] {
            figures.add_spread(format!("{case}/{cores}/ns"), ns, "ns");
            figures.add(format!("{case}/{cores}/cycles"), output::cycles(ns.quiet), "cycles");
            figures.add(format!("{case}/{cores}/mpps"), 1e3 / ns.quiet, "Mpps");
            let gbps = row.bytes_per_packet * 8.0 / ns.quiet;
            figures.add(format!("{case}/{cores}/gbps"), gbps, "Gbps");
        }
        let parts =
            [("serial_ns", row.serial_ns), ("heavy_ns", row.heavy_ns), ("moved_ns", row.moved_ns)];
        for (name, value) in parts {
            if let Some(value) = value {
                figures.add(format!("{case}/{name}"), value, "ns");
            }
        }
        // Below the case, so that all of it is of one pass: costs of different ones make no machine that there was.
        figures.add(format!("{case}/model/ratio"), row.modelled_ratio, "×");
        figures.add(format!("{case}/model/error"), row.model_error, "1");
        for (cores, gbps) in &row.model_gbps {
            figures.add(format!("{case}/model/{cores}/gbps"), *gbps, "Gbps");
        }
    }
    figures
}

fn table(rows: &[Row]) -> output::Table {
    let header = [
        "case",
        "direction",
        "size",
        "1 worker ns",
        "cycles",
        "2 workers ns",
        "cycles",
        "ratio",
        "machine",
        "model",
        "serial ns",
        "heavy ns",
        "moved ns",
        "Gbps by the model: cores",
    ];
    let mut table = output::table(&header);
    let ns = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.1}"));
    let cycles = |ns: &Spread| format!("{:.0}", output::cycles(ns.quiet));
    for row in rows {
        let model = row.model_gbps.iter().map(|(cores, gbps)| format!("{cores}: {gbps:.0}"));
        table.add_row([
            row.case.to_owned(),
            row.direction.to_owned(),
            row.size.clone(),
            output::spread(&row.one_ns),
            cycles(&row.one_ns),
            output::spread(&row.two_ns),
            cycles(&row.two_ns),
            format!("{:.2}", row.ratio),
            format!("{:.2}", row.machine_ratio),
            format!("{:.2}", row.modelled_ratio),
            ns(row.serial_ns),
            ns(row.heavy_ns),
            ns(row.moved_ns),
            model.collect::<Vec<_>>().join(", "),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pass whose costs are `slow` times as large.
    fn row(slow: f64) -> Row {
        let ns = |ns: f64| Spread::of_times(vec![ns * slow]);
        Row {
            case: "fat",
            direction: "seal",
            size: "1428".to_owned(),
            one_ns: ns(200.0),
            two_ns: ns(100.0),
            ratio: 2.0,
            machine_ratio: 1.9,
            modelled_ratio: 2.5 / slow,
            model_error: 0.25,
            serial_ns: Some(20.0 * slow),
            heavy_ns: Some(150.0 * slow),
            moved_ns: Some(1.0),
            model_gbps: vec![(2, 140.0 * slow), (64, 500.0 / slow)],
            bytes_per_packet: 1414.0,
        }
    }

    #[test]
    fn what_the_model_says_is_of_the_pass_that_it_was_fed_by() {
        let quick = figures(&[row(1.0)]);
        for passes in [[1.0, 1.3], [1.3, 1.0]] {
            let mut all = Figures::default();
            passes.into_iter().for_each(|slow| all.extend_by_quicker(figures(&[row(slow)])));
            assert_eq!(all, quick, "{passes:?}");
        }
        assert_eq!(quick.value("cores/fat/model/ratio"), Some(2.5));
        assert_eq!(quick.value("cores/fat/model/64/gbps"), Some(500.0));
    }
}
