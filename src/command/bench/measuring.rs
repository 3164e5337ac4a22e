//! Path and cipher in turn: the loop behind `bench path` and `bench scale`.

use std::time::Duration;

use crypto::{Cache, Engine};
use dataplane::laps::Stage;
use dataplane::ruler::RulerError;
use dataplane::ruler::path::{CipherBench, Measured, Order, PathBench, Sample, Selection};
use indicatif::{ProgressBar, ProgressStyle};
use lab::figure::{Figures, Spread};
use lab::traffic::Mix;
use serde::Serialize;

use crate::command::Unfit;

/// Bytes of an Ethernet header: sizes are given with it, the bench sends what is behind it.
const LINK_LEN: usize = 14;

/// Rounds of 64 packets in one batch. At 100 ns a packet one takes half a millisecond: long against
/// what the other bench left in the caches, short against what else the machine does, so that many
/// batches pass undisturbed.
pub const ROUNDS: usize = 64;

/// Rounds where something happens every millisecond of them: so many that it happens several times in each
/// batch, also in the quickest.
const ROUNDS_OF_CHANGES: usize = 8 * ROUNDS;

/// Passes over all SAs in one batch of a path that is measured in turn with another.
const PASSES_OF_PAIR: usize = 4;

/// What to measure.
pub struct Plan {
    pub engine: Engine,
    pub selections: Vec<Selection>,
    pub orders: Vec<Order>,
    pub directions: Vec<Measured>,
    pub sas: Vec<usize>,
    /// Names, and the lengths of the inner packets behind each.
    pub sizes: Vec<(String, Vec<usize>)>,
    pub batches: u32,
    pub quiet: bool,
}

/// A path, and another one that it is compared with.
struct Pair {
    path: PathBench,
    against: Option<PathBench>,
}

impl Pair {
    fn each(
        &mut self,
        mut what: impl FnMut(&mut PathBench) -> Result<(), RulerError>,
    ) -> Result<(), RulerError> {
        what(&mut self.path)?;
        self.against.as_mut().map_or(Ok(()), what)
    }

    /// A batch of what the path is compared with, if it is.
    fn against(
        &mut self,
        selection: Selection,
        rounds: usize,
    ) -> Result<Option<Sample>, RulerError> {
        if selection == Selection::PolicyChanging {
            self.path.set_changing(false);
            let sample = self.path.run(rounds);
            self.path.set_changing(true);
            return sample.map(Some);
        }
        self.against.as_mut().map(|path| path.run(rounds)).transpose()
    }
}

/// What a stage took in a line of the table.
#[derive(Serialize)]
pub struct StageCost {
    pub stage: &'static str,
    pub cycles: f64,
}

/// One line of the table. Cycles are those of the time stamp counter, per packet.
#[derive(Serialize)]
pub struct Row {
    pub selection: &'static str,
    pub direction: &'static str,
    /// Of the tunnels, from packet to packet.
    pub order: &'static str,
    pub sas: usize,
    pub size: String,
    /// The worker's whole turn.
    pub path_cycles: Spread,
    pub path_ns: f64,
    /// What a selection is compared with, in turn with it: one whose policies change every millisecond with
    /// itself while they do not, and one whose flows no cache knows with route mode.
    pub against_cycles: Option<Spread>,
    /// The cipher alone with one key.
    pub cipher_cycles: Spread,
    /// The cipher alone with as many keys as there are SAs, in random order, nothing prefetched; after the
    /// others.
    pub cipher_all_keys_cycles: Spread,
    pub beside_cycles: f64,
    pub beside_ns: f64,
    /// The cipher's part of the path: 1 would be no path at all.
    pub cipher_share: f64,
    /// Inner IP packets.
    pub path_gbps: f64,
    /// Where the turn's cycles went, in its order; measured apart, with a reading between stages.
    pub stages: Vec<StageCost>,
}

impl Plan {
    /// Measures everything, the benches of a line in turn, so that all see the same machine.
    pub fn measure(&self) -> anyhow::Result<Vec<Row>> {
        let ways = self.selections.len() * self.orders.len() * self.directions.len();
        let lines = ways * self.sas.len() * self.sizes.len();
        let bar = progress(lines as u64, self.quiet)?;
        let mut rows = Vec::new();
        for &selection in &self.selections {
            for &sas in &self.sas {
                for &direction in &self.directions {
                    self.lines((selection, sas, direction), &bar, &mut rows)?;
                }
            }
        }
        bar.finish_and_clear();
        Ok(rows)
    }

    /// Builds a pair of gateways and measures it in all orders and sizes.
    fn lines(
        &self,
        (selection, sas, direction): (Selection, usize, Measured),
        bar: &ProgressBar,
        rows: &mut Vec<Row>,
    ) -> anyhow::Result<()> {
        // In clear there is one direction, and nothing to open.
        if selection == Selection::Plain && direction != Measured::Seal {
            bar.inc((self.orders.len() * self.sizes.len()) as u64);
            return Ok(());
        }
        let first = &self.sizes[0].1;
        // Building 50 000 tunnels takes longer than measuring them: once for all lines.
        let bench = |selection| {
            PathBench::new(self.engine, selection, sas, direction, first).map_err(unfit)
        };
        let against = selection == Selection::PolicyUncached;
        let against = against.then(|| bench(Selection::P2p)).transpose()?;
        let pair = &mut Pair { path: bench(selection)?, against };
        for &order in &self.orders {
            pair.each(|path| {
                path.set_order(order);
                Ok(())
            })?;
            for (name, sizes) in &self.sizes {
                let (way, to) = (selection.name(), direction_name(direction));
                bar.set_message(format!("{way}, {to}, {sas} SAs, {name}"));
                pair.each(|path| path.set_sizes(sizes)).map_err(unfit)?;
                let kind = (selection, order, direction, sas);
                rows.push(self.line(pair, kind, name, sizes)?);
                bar.inc(1);
            }
        }
        Ok(())
    }

    fn line(
        &self,
        pair: &mut Pair,
        (selection, order, direction, sas): (Selection, Order, Measured, usize),
        name: &str,
        sizes: &[usize],
    ) -> anyhow::Result<Row> {
        let cipher = |keys| CipherBench::new(self.engine, keys, direction, sizes).map_err(unfit);
        let (mut one_key, mut all_keys) = (cipher(1)?, cipher(sas)?);
        // Once to warm up: page faults, branch history, every SA twice.
        let warm = ROUNDS.max(2 * sas / 64);
        pair.each(|path| path.run(warm).map(drop))?;
        one_key.run(ROUNDS);
        let (mut paths, mut ones) = (Vec::new(), Vec::new());
        let mut againsts = Vec::new();
        let mut total = Sample::default();
        // Beside another path, several times over all SAs: else each would find again and again what the other has
        // put out of the cache.
        let rounds = match selection {
            Selection::PolicyChanging => ROUNDS_OF_CHANGES,
            Selection::PolicyUncached => ROUNDS.max(PASSES_OF_PAIR * sas / 64),
            _ => ROUNDS,
        };
        for _ in 0..self.batches {
            againsts.extend(pair.against(selection, rounds)?.map(|one| one.cycles_per_packet()));
            let sample = pair.path.run(rounds)?;
            (total.packets, total.bytes) =
                (total.packets + sample.packets, total.bytes + sample.bytes);
            paths.push(sample.cycles_per_packet());
            if selection == Selection::Plain {
                continue;
            }
            ones.push(one_key.run(ROUNDS).cycles_per_packet());
        }
        let stages = self.stages(&mut pair.path)?;
        // After the path and its stages: so many keys put the path's own out of the cache, as nothing does in
        // a gateway.
        let mut alls = Vec::new();
        if selection != Selection::Plain {
            all_keys.run(warm);
            alls.extend((0..self.batches).map(|_| all_keys.run(ROUNDS).cycles_per_packet()));
        }
        let path_cycles = Spread::of_times(paths);
        let cipher_cycles = Spread::of_times(ones);
        let hz = dataplane::cycles::hz();
        let beside_cycles = path_cycles.quiet - cipher_cycles.quiet;
        Ok(Row {
            selection: selection.name(),
            direction: direction_name(direction),
            order: order.name(),
            sas,
            size: name.to_owned(),
            path_cycles,
            path_ns: path_cycles.quiet * 1e9 / hz,
            against_cycles: (!againsts.is_empty()).then(|| Spread::of_times(againsts)),
            cipher_cycles,
            cipher_all_keys_cycles: Spread::of_times(alls),
            beside_cycles,
            beside_ns: beside_cycles * 1e9 / hz,
            cipher_share: cipher_cycles.quiet / path_cycles.quiet,
            path_gbps: 8.0 * total.bytes as f64 / total.packets.max(1) as f64 * hz
                / path_cycles.quiet
                / 1e9,
            stages,
        })
    }

    /// Each stage's quiet figure, over as many batches as the whole path had.
    fn stages(&self, path: &mut PathBench) -> anyhow::Result<Vec<StageCost>> {
        let batches: Vec<_> =
            (0..self.batches).map(|_| path.stages(ROUNDS)).collect::<Result<_, _>>()?;
        let cost = |stage: Stage| {
            let cycles = Spread::of_times(batches.iter().map(|b| b[stage as usize].1).collect());
            StageCost { stage: stage.name(), cycles: cycles.quiet }
        };
        Ok(Stage::ALL.into_iter().map(cost).filter(|cost| cost.cycles >= 0.5).collect())
    }
}

/// The lines as figures, by name: those of tunnels that take turns begin with `path-turns`.
pub fn figures(rows: &[Row]) -> Figures {
    let mut figures = Figures::default();
    for row in rows {
        let Row { selection, direction, order, sas, size, .. } = row;
        let above = if *order == Order::Turns.name() { "path-turns" } else { "path" };
        let name = |what: &str| format!("{above}/{selection}/{direction}/{sas}/{size}/{what}");
        figures.add_spread(name("cycles"), &row.path_cycles, "cycles");
        figures.add(name("ns"), row.path_ns, "ns");
        if let Some(against) = &row.against_cycles {
            figures.add_spread(name("against_cycles"), against, "cycles");
        }
        figures.add(name("gbps"), row.path_gbps, "Gbps");
        for StageCost { stage, cycles } in &row.stages {
            figures.add(name(&format!("stage/{stage}")), *cycles, "cycles");
        }
        if *selection == Selection::Plain.name() {
            continue;
        }
        figures.add(name("beside_cycles"), row.beside_cycles, "cycles");
        figures.add(name("beside_ns"), row.beside_ns, "ns");
        figures.add(name("share"), row.cipher_share, "1");
        let name = |keys: usize| format!("cipher/{direction}/{keys}/{size}/cycles");
        figures.add_spread(name(*sas), &row.cipher_all_keys_cycles, "cycles");
        figures.add_spread(name(1), &row.cipher_cycles, "cycles");
        let gbps = row.path_gbps * row.path_cycles.quiet / row.cipher_cycles.quiet;
        figures.add(format!("cipher/{direction}/1/{size}/gbps"), gbps, "Gbps");
    }
    figures
}

/// `seal`, `open`, `both`.
pub fn direction_name(direction: Measured) -> &'static str {
    match direction {
        Measured::Seal => "seal",
        Measured::Open => "open",
        Measured::Both => "both",
    }
}

/// The other way round.
pub fn direction(name: &str) -> Result<Measured, String> {
    let all = [Measured::Seal, Measured::Open, Measured::Both];
    let found = all.into_iter().find(|direction| direction_name(*direction) == name);
    found.ok_or_else(|| "write seal, open or both".to_owned())
}

/// `policy` and the other ways.
pub fn selection(name: &str) -> Result<Selection, String> {
    let names = || Selection::ALL.map(Selection::name).join(", ");
    let found = Selection::ALL.into_iter().find(|selection| selection.name() == name);
    found.ok_or_else(|| format!("write one of: {}", names()))
}

/// `random`, `turns`.
pub fn order(name: &str) -> Result<Order, String> {
    let found = Order::ALL.into_iter().find(|order| order.name() == name);
    found.ok_or_else(|| "write random or turns".to_owned())
}

/// The cache of a name.
pub fn cache(name: &str) -> Result<Cache, String> {
    let found = Cache::ALL.into_iter().find(|cache| cache.name() == name);
    found.ok_or_else(|| "write l1 or l2".to_owned())
}

/// The inner lengths of each size given on the command line.
pub fn inner_sizes(names: &[String]) -> Result<Vec<(String, Vec<usize>)>, Unfit> {
    let inner = |name: &String| {
        if let Ok(size) = name.parse::<usize>() {
            return match size.checked_sub(LINK_LEN) {
                Some(inner) => Ok((name.clone(), vec![inner])),
                None => Err(Unfit(format!("a packet of {size} bytes has no room for Ethernet"))),
            };
        }
        let mix = Mix::from_names(&[name]).map_err(|error| Unfit(error.to_string()))?;
        let sizes = (0..mix.period() as u64).map(|n| usize::from(mix.size(n)) - LINK_LEN);
        Ok((name.clone(), sizes.collect()))
    };
    names.iter().map(inner).collect()
}

/// Jobs done, unless nobody looks.
pub fn progress(jobs: u64, quiet: bool) -> anyhow::Result<ProgressBar> {
    if quiet {
        return Ok(ProgressBar::hidden());
    }
    let bar = ProgressBar::new(jobs);
    bar.set_style(ProgressStyle::with_template("{msg:<40} {bar:40} {pos}/{len}  {eta} left")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    Ok(bar)
}

/// What cannot be measured: of building and asking only. Packets that are lost while it runs are a failure.
pub fn unfit(error: RulerError) -> Unfit {
    Unfit(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_lose_their_link_header() {
        let sizes = inner_sizes(&["64".to_owned(), "imix1".to_owned()]).unwrap();
        assert_eq!(sizes[0], ("64".to_owned(), vec![50]));
        assert!(sizes[1].1.len() > 1);
        assert!(inner_sizes(&["13".to_owned()]).is_err());
        assert!(inner_sizes(&["imix9".to_owned()]).is_err());
    }

    #[test]
    fn packets_lost_in_the_warm_up_are_a_failure_and_not_an_unfit_machine() {
        let path = PathBench::new(Engine::AwsLc, Selection::Policy, 1, Measured::Seal, &[100]);
        let pair = &mut Pair { path: path.unwrap(), against: None };
        let lose = |_: &mut PathBench| Err(RulerError::Lost { sent: 64, lost: 1, verdict: "none" });
        let error = anyhow::Error::from(pair.each(lose).unwrap_err());
        assert!(error.downcast_ref::<Unfit>().is_none(), "{error}");
    }

    #[test]
    fn a_small_plan_gives_a_line_for_each_combination() {
        let plan = Plan {
            engine: Engine::AwsLc,
            selections: vec![Selection::Plain, Selection::Policy],
            orders: vec![Order::Random],
            directions: vec![Measured::Seal, Measured::Both],
            sas: vec![1, 5],
            sizes: inner_sizes(&["114".to_owned()]).unwrap(),
            batches: 3,
            quiet: true,
        };
        let rows = plan.measure().unwrap();
        let (plain, policy) = rows.split_at(2);
        assert!(plain.iter().all(|row| (row.selection, row.direction) == ("plain", "seal")));
        let named: Vec<_> = policy.iter().map(|row| (row.sas, row.direction)).collect();
        assert_eq!(named, [(1, "seal"), (1, "both"), (5, "seal"), (5, "both")]);
        let figures = figures(&rows);
        assert!(figures.value("path/plain/seal/5/114/cycles").unwrap() > 0.0);
        assert!(figures.value("path/plain/seal/5/114/ns").unwrap() > 0.0);
        assert_eq!(figures.value("path/plain/seal/5/114/share"), None);
        assert!(figures.value("path/policy/both/5/114/cycles").unwrap() > 0.0);
        assert!(figures.value("cipher/seal/1/114/cycles").unwrap() > 0.0);
        for name in ["seal", "open", "both"] {
            assert_eq!(direction_name(direction(name).unwrap()), name);
        }
        assert!(direction("up").is_err() && selection("guess").unwrap_err().contains("policy"));
    }
}
