//! `peregrine bench cipher`: the engines beside each other, without a path.

use std::process::ExitCode;

use crypto::Engine;
use dataplane::ruler::path::{CipherBench, Measured};
use lab::figure::{Figures, Spread};
use serde::Serialize;

use super::machine::Machine;
use super::measuring::{ROUNDS, direction, direction_name, inner_sizes, progress, unfit};
use super::output::{self, Table};
use crate::command::Unfit;

/// Cycles per packet of the bare cipher, engine by engine
///
/// One core, AES-256-GCM in place, 12 bytes of AAD, as many bytes as ESP makes of each size; no
/// headers, no tables, no rings. Keys are used in random order. "fetched" asks for each key a few
/// packets ahead, as the data path does it; without, each call waits for its key's memory. "alone" is what
/// a packet takes of which the next one's nonce is made: how long the chain through one packet is, where the
/// other columns say what a packet adds while a processor works on several. The engines are measured in turn, in many short batches; figures are as those of `bench path`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  peregrine bench cipher                                   every engine that works here
  peregrine bench cipher --engines ipsec-mb --keys 1 --directions seal,open")]
pub struct Cipher {
    /// Engines: vaes512, vaes256, ipsec-mb, aws-lc (default: all that work here)
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    engines: Vec<String>,
    /// Packet sizes: bytes with Ethernet header and without checksum, or imix1 to imix4
    #[arg(long, value_delimiter = ',', default_value = "64,114,200,491,1000,1428,imix1")]
    sizes: Vec<String>,
    /// Numbers of keys
    #[arg(long, value_delimiter = ',', default_value = "1,10000,50000", value_name = "N,…")]
    keys: Vec<usize>,
    /// What to measure: seal, open, both
    #[arg(long, value_delimiter = ',', default_value = "seal", value_parser = direction)]
    directions: Vec<Measured>,
    /// Batches of each line
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(3..=10_000))]
    batches: u32,
    /// Print JSON, and no progress
    #[arg(long)]
    json: bool,
}

/// One line of the table. Cycles are those of the time stamp counter, per packet.
#[derive(Serialize)]
struct Row {
    engine: &'static str,
    direction: &'static str,
    keys: usize,
    size: String,
    cycles: Spread,
    fetched_cycles: Spread,
    fetched_ns: f64,
    alone_cycles: Spread,
}

impl Cipher {
    /// Measures and prints.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let engines = self.engines()?;
        let rows = self.measure(&engines)?;
        if self.json {
            output::print_json(&Machine::of(engines[0]), &rows, &figures(&rows))?;
        } else {
            let versions: Vec<String> = engines.iter().map(|engine| engine.version()).collect();
            let hz = dataplane::cycles::hz();
            println!("{}; counter at {:.0} MHz", versions.join(", "), hz / 1e6);
            println!("{}", table(&rows));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn engines(&self) -> Result<Vec<Engine>, Unfit> {
        let select = |name: &str| Engine::select(Some(name)).map_err(|e| Unfit(e.to_string()));
        if self.engines.is_empty() {
            let all = Engine::ALL.into_iter();
            return Ok(all.filter(|engine| select(engine.name()).is_ok()).collect());
        }
        self.engines.iter().map(|name| select(name)).collect()
    }

    fn measure(&self, engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
        let sizes = inner_sizes(&self.sizes)?;
        let lines = self.directions.len() * self.keys.len() * sizes.len();
        let bar = progress(lines as u64, self.json)?;
        let mut rows = Vec::new();
        for &direction in &self.directions {
            for &keys in &self.keys {
                for (size, lengths) in &sizes {
                    bar.set_message(format!("{keys} keys, {size}"));
                    rows.extend(self.lines(engines, direction, keys, (size, lengths))?);
                    bar.inc(1);
                }
            }
        }
        bar.finish_and_clear();
        Ok(rows)
    }

    /// One line for each engine, which take turns.
    fn lines(
        &self,
        engines: &[Engine],
        direction: Measured,
        keys: usize,
        (size, lengths): (&String, &[usize]),
    ) -> anyhow::Result<Vec<Row>> {
        let mut benches = Vec::new();
        for &engine in engines {
            let bench = || CipherBench::new(engine, keys, direction, lengths).map_err(unfit);
            let ways = [bench()?, bench()?.fetching(), bench()?.fetching().chained()];
            benches.push(ways.map(|bench| (bench, Vec::new())));
        }
        for _ in 0..self.batches {
            for (bench, cycles) in benches.iter_mut().flatten() {
                cycles.push(bench.run(ROUNDS).cycles_per_packet());
            }
        }
        let row = |(engine, [plain, fetched, alone]): (&Engine, [(CipherBench, Vec<f64>); 3])| {
            let fetched_cycles = Spread::of_times(fetched.1);
            Row {
                engine: engine.name(),
                direction: direction_name(direction),
                keys,
                size: size.clone(),
                cycles: Spread::of_times(plain.1),
                fetched_cycles,
                fetched_ns: fetched_cycles.quiet * 1e9 / dataplane::cycles::hz(),
                alone_cycles: Spread::of_times(alone.1),
            }
        };
        Ok(engines.iter().zip(benches).map(row).collect())
    }
}

fn table(rows: &[Row]) -> Table {
    let header =
        ["direction", "engine", "keys", "size", "cycles", "fetched", "fetched ns", "alone"];
    let mut table = output::table(&header);
    for row in rows {
        table.add_row([
            row.direction.to_owned(),
            row.engine.to_owned(),
            row.keys.to_string(),
            row.size.clone(),
            output::spread(&row.cycles),
            output::spread(&row.fetched_cycles),
            format!("{:.1}", row.fetched_ns),
            output::spread(&row.alone_cycles),
        ]);
    }
    table
}

/// The lines as figures, by name.
fn figures(rows: &[Row]) -> Figures {
    let mut figures = Figures::default();
    for row in rows {
        let Row { engine, direction, keys, size, .. } = row;
        let name = |what: &str| format!("engine/{engine}/{direction}/{keys}/{size}/{what}");
        figures.add_spread(name("cycles"), &row.cycles, "cycles");
        figures.add_spread(name("fetched"), &row.fetched_cycles, "cycles");
        figures.add_spread(name("alone"), &row.alone_cycles, "cycles");
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_gets_a_line_for_each_combination() {
        let cipher = Cipher {
            engines: vec!["aws-lc".to_owned()],
            sizes: vec!["114".to_owned(), "imix1".to_owned()],
            keys: vec![1, 7],
            directions: vec![Measured::Seal, Measured::Open],
            batches: 3,
            json: true,
        };
        let rows = cipher.measure(&cipher.engines().unwrap()).unwrap();
        assert_eq!(rows.len(), 8);
        assert!(rows.iter().all(|row| row.cycles.quiet > 0.0 && row.fetched_ns > 0.0));
        let figure =
            |way: &str| figures(&rows).value(&format!("engine/aws-lc/open/7/imix1/{way}")).unwrap();
        assert!(figure("fetched") > 0.0 && figure("alone") > 0.0);
        let unknown = Cipher { engines: vec!["openssl".to_owned()], ..cipher };
        assert!(unknown.engines().unwrap_err().to_string().contains("vaes512"));
    }
}
