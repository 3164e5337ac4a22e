//! `peregrine bench all`: every bench in turn, and the verdict on every aim.
//!
//! The aims and their bounds are data of the lab's; which bench fills which figure is told by the
//! figures' names.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use crypto::Engine;
use lab::aims::Judged;
use lab::figure::Figures;
use lab::report::bench::{self, AIM_HEADER, Bench, aim_cells};
use serde_json::Value;

use super::machine::Machine;
use super::{output, parts};
use crate::command::Unfit;

/// Where a recorded table stands in a page of the docs.
const RECORD_BEGIN: &str = "<!-- aims: begin, written by `make record` -->";
const RECORD_END: &str = "<!-- aims: end -->";

/// Measure everything, and say which aims are met
///
/// Runs the other benches one after the other, prints the table of the aims with what was measured,
/// the bound, how far the value is from it (above 1 on the good side) and whether it is met, and
/// writes the page with the charts. What is judged is measured in several passes, minutes apart: of each line the
/// quickest counts, and of bytes and losses the most. What needs root is left out for others, and says so.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes:
  0    every bench measured; met or not met is in the table
  1    a bench failed; what the others measured is printed
  2    not started: an option is not fit

Examples:
  peregrine bench all --out bench                 everything, some twelve minutes
  peregrine bench all --out bench --passes 6      the same on a machine that others use, three times as long
  peregrine bench all --only path --out bench     one bench
  peregrine bench all --from bench                judge and draw again what was measured")]
pub struct All {
    /// Folder for figures, charts and page
    #[arg(long, value_name = "DIR", default_value = "bench")]
    out: PathBuf,
    /// Benches: path, tables, cores, control, xfrm
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Vec<String>,
    /// Times that everything is measured: a machine that others use may be slow for longer than a bench lasts
    #[arg(long, value_name = "N", default_value_t = 2, conflicts_with = "from",
          value_parser = clap::value_parser!(u32).range(1..=100))]
    passes: u32,
    /// Measure nothing: take the figures of an earlier run's folder
    #[arg(long, value_name = "DIR", conflicts_with = "only")]
    from: Option<PathBuf>,
    /// Page whose table of aims is written anew
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// One bench.
struct Part {
    /// What `peregrine bench` is called with.
    command: &'static str,
    needs_root: bool,
    /// Whether only the first pass has it.
    once: bool,
}

macro_rules! path {
    ($selection:literal, $direction:literal, $sas:literal) => {
        concat!("path --sas ", $sas, " --selections ", $selection, " --directions ", $direction)
    };
}

macro_rules! in_turns {
    ($selection:literal, $direction:literal) => {
        concat!(path!($selection, $direction, "10000"), " --orders turns")
    };
}

/// In the order in which they run. Ways to find a tunnel that are compared with somebody else's have a process for each direction, as
/// they have in a gateway: what one leaves behind in the heap (pages that are no huge ones) costs the next 5 to 15 %.
const PARTS: &[Part] = &[
    again("path --sas 1,1000,10000,50000 --selections plain"),
    again(path!("policy", "seal", "1,1000,10000,50000")),
    again(path!("policy", "open", "1,1000,10000,50000")),
    again(path!("policy", "both", "1,1000,10000,50000")),
    again(path!("p2p", "seal", "1,1000,10000,50000")),
    again(path!("p2p", "open", "1,1000,10000,50000")),
    again(path!("p2p", "both", "1,1000,10000,50000")),
    again(path!("p2mp", "seal", "1,10000,50000")),
    again(path!("p2mp", "open", "1,10000,50000")),
    again(path!("p2mp", "both", "1,10000,50000")),
    again("path --sas 1,10000 --selections policy-uncached,policy-cached"),
    // What policies that change cost: long batches, and so of one size.
    again("path --sas 10000 --selections policy-changing --directions seal,open --sizes imix1"),
    // The order in which VPP's tunnels were measured.
    again(in_turns!("policy", "seal")),
    again(in_turns!("policy", "open")),
    again(in_turns!("p2p", "seal")),
    again(in_turns!("p2p", "open")),
    again(in_turns!("p2p", "both")),
    again(in_turns!("p2mp", "seal")),
    again(in_turns!("p2mp", "open")),
    again("tables"),
    // What the look-ups among 50 000 policies are compared with is of the same minutes.
    again("tables --routes 1000 --vrfs 10 --policies 10"),
    once("tables --routes 10000 --vrfs 100 --policies 1000"),
    // Both cores have to be left alone at the same moments.
    again("cores --rounds 160"),
    again("cores --rounds 160 --direction open"),
    Part { needs_root: true, ..again("xfrm --sas 50000 --workers idle --rounds 4") },
    // More rekeyings are asked for than are aimed at: else the aim could only just be met, or just not.
    Part { needs_root: true, ..again("control --per-datagram 4 --rekeys 600") },
    // As IKE daemons send.
    Part { needs_root: true, ..once("control --per-datagram 0 --rekeys 0") },
];

const fn again(command: &'static str) -> Part {
    Part { command, needs_root: false, once: false }
}

const fn once(command: &'static str) -> Part {
    Part { once: true, ..again(command) }
}

impl Part {
    /// The bench's name, and its options.
    fn arguments(&self) -> Vec<&'static str> {
        self.command.split_whitespace().collect()
    }

    fn name(&self) -> &'static str {
        self.arguments()[0]
    }
}

impl All {
    /// Measures, judges, prints and writes.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (bench, failed) = match &self.from {
            Some(folder) => (read(folder)?, false),
            None => self.measure()?,
        };
        let judged = bench.judged();
        println!("{}", table(&judged));
        let met = judged.iter().filter(|judged| judged.is_met() == Some(true)).count();
        println!("{met} of {} aims are met", judged.len());
        bench.notes.iter().for_each(|note| println!("note: {note}"));
        let drawn = bench::write(&self.out, &bench)?;
        drawn.warnings.iter().for_each(|warning| eprintln!("peregrine: {warning}"));
        println!("The page is {}", self.out.join(bench::PAGE_FILE).display());
        if let Some(page) = &self.record {
            record(page, &markdown(&bench, &judged))?;
        }
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Every part that was asked for; whether one of them failed.
    fn measure(&self) -> anyhow::Result<(Bench, bool)> {
        let known = || PARTS.iter().map(Part::name);
        if let Some(name) = self.only.iter().find(|name| !known().any(|part| part == **name)) {
            let mut known: Vec<_> = known().collect();
            known.sort_unstable();
            known.dedup();
            return Err(Unfit(format!("bench {name} is none of: {}", known.join(", "))).into());
        }
        let binary = std::env::current_exe().context("finding this program's own file")?;
        let machine = Machine::of(Engine::select(None).map_err(|e| Unfit(e.to_string()))?);
        let mut facts = machine.facts();
        facts.push(("passes".to_owned(), self.passes.to_string()));
        let mut bench = Bench { machine: facts, figures: Figures::default(), notes: vec![] };
        let mut failed = false;
        let is_asked_for =
            |part: &&Part| self.only.is_empty() || self.only.iter().any(|name| name == part.name());
        let is_root = rustix::process::geteuid().is_root();
        for part in PARTS.iter().filter(is_asked_for).filter(|part| part.needs_root && !is_root) {
            bench.notes.push(format!("bench {} was left out: it needs root", part.name()));
        }
        for pass in 1..=self.passes {
            eprintln!("Pass {pass} of {}", self.passes);
            let is_due = |part: &&Part| (is_root || !part.needs_root) && (pass == 1 || !part.once);
            for part in PARTS.iter().filter(is_asked_for).filter(is_due) {
                match parts::measure(&binary, &part.arguments()) {
                    Ok(figures) => bench.figures.extend_by_quicker(figures),
                    Err(error) => {
                        failed |= error.downcast_ref::<Unfit>().is_none();
                        bench.notes.push(format!("bench {} failed: {error:#}", part.name()));
                    }
                }
            }
        }
        Ok((bench, failed))
    }
}

/// An earlier run's figures.
fn read(folder: &Path) -> anyhow::Result<Bench> {
    let path = folder.join(bench::FIGURES_FILE);
    let text = fs::read_to_string(&path)
        .map_err(|error| Unfit(format!("cannot read {}: {error}", path.display())))?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| Unfit(format!("{}: {error}", path.display())))?;
    let figures = parts::figures_of(&value).map_err(|error| {
        Unfit(format!("{}: {error}; measure again: make bench", path.display()))
    })?;
    let text_of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let machine = value["machine"].as_object().into_iter().flatten();
    let notes = value["notes"].as_array().into_iter().flatten();
    Ok(Bench {
        machine: machine.map(|(key, value)| (key.clone(), text_of(value))).collect(),
        figures,
        notes: notes.map(text_of).collect(),
    })
}

/// The aims for a terminal.
fn table(judged: &[Judged]) -> output::Table {
    let mut header = vec![""];
    header.extend(AIM_HEADER);
    let mut table = output::table(&header);
    let mut group = "";
    for judged in judged {
        let heading = if judged.aim.group == group { "" } else { judged.aim.group.as_str() };
        group = &judged.aim.group;
        table.add_row([heading.to_owned()].into_iter().chain(aim_cells(judged)));
    }
    table
}

/// The same for a page of the docs.
fn markdown(bench: &Bench, judged: &[Judged]) -> String {
    let machine: Vec<String> = bench.machine.iter().map(|(k, v)| format!("{k}: {v}")).collect();
    let mut text = format!("{}.\n\n", machine.join("; "));
    text.push_str("| aim | worst at | measured | bound | ratio | |\n|---|---|---|---|---|---|\n");
    for judged in judged {
        let cells = aim_cells(judged);
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    for note in &bench.notes {
        text.push_str(&format!("\n{note}.\n"));
    }
    text
}

/// Puts a text between the two marks of a page.
fn record(page: &Path, text: &str) -> anyhow::Result<()> {
    let old = fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let new = between_marks(&old, text)
        .ok_or_else(|| Unfit(format!("{} has no line `{RECORD_BEGIN}`", page.display())))?;
    fs::write(page, new).with_context(|| page.display().to_string())
}

fn between_marks(page: &str, text: &str) -> Option<String> {
    let (head, rest) = page.split_once(RECORD_BEGIN)?;
    let (_, tail) = rest.split_once(RECORD_END)?;
    Some(format!("{head}{RECORD_BEGIN}\n{text}\n{RECORD_END}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_table_replaces_the_one_before() {
        let page = format!("a\n{RECORD_BEGIN}\nold\n{RECORD_END}\nb\n");
        let once = between_marks(&page, "new").unwrap();
        assert_eq!(once, format!("a\n{RECORD_BEGIN}\nnew\n{RECORD_END}\nb\n"));
        assert_eq!(between_marks(&once, "new").unwrap(), once);
        assert_eq!(between_marks("a", "new"), None);
    }

    #[test]
    fn figures_survive_their_file() {
        let folder = std::env::temp_dir().join(format!("peregrine-all-{}", std::process::id()));
        let mut figures = Figures::default();
        figures.add("path/policy/seal/1/64/beside_ns", 12.5, "ns");
        let machine = vec![("processor".to_owned(), "one".to_owned())];
        let bench = Bench { machine, figures, notes: vec!["a note".to_owned()] };
        bench::write(&folder, &bench).unwrap();
        assert_eq!(read(&folder).unwrap(), bench);
        let path = folder.join(bench::FIGURES_FILE);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"schema\": 2", "\"schema\": 1")).unwrap();
        let refused = read(&folder).unwrap_err().to_string();
        assert!(refused.contains("schema 1") && refused.contains("figures.json"), "{refused}");
        fs::remove_dir_all(&folder).unwrap();
        assert!(read(&folder).is_err());
    }

    /// What stands before the size in the names of what a part of the path measures, or before the case of cores.
    fn lines(part: &Part) -> Vec<String> {
        let arguments = part.arguments();
        let value = |option: &str, default: &'static str| {
            let at = arguments.iter().position(|argument| *argument == option);
            at.map_or(default, |at| arguments[at + 1]).split(',')
        };
        if part.name() == "cores" {
            let sealing = value("--direction", "seal").eq(["seal"]);
            return vec![if sealing { "cores" } else { "cores-open" }.to_owned()];
        }
        let above = if value("--orders", "random").eq(["turns"]) { "path-turns" } else { "path" };
        let mut lines = Vec::new();
        for selection in value("--selections", "policy") {
            for direction in value("--directions", "seal,open,both") {
                let of = |sas: &str| format!("{above}/{selection}/{direction}/{sas}");
                lines.extend(value("--sas", "1,10000").map(of));
            }
        }
        lines
    }

    #[test]
    fn what_is_aimed_at_of_path_and_cores_is_measured() {
        let of_lines = PARTS.iter().filter(|part| ["path", "cores"].contains(&part.name()));
        let lines: Vec<String> = of_lines.flat_map(lines).collect();
        let mut asked = 0;
        for aim in lab::aims::aims() {
            for name in [Some(aim.figure), aim.over].into_iter().flatten() {
                if name.starts_with("path") || name.starts_with("cores") {
                    asked += 1;
                    let is_of = |line: &String| name.starts_with(&format!("{line}/"));
                    assert!(lines.iter().any(is_of), "{name}");
                }
            }
        }
        assert!(asked > 60, "{asked}");
    }

    #[test]
    fn every_aim_has_a_line_and_says_when_nothing_is_known() {
        let bench = Bench { machine: vec![], figures: Figures::default(), notes: vec![] };
        let judged = bench.judged();
        let text = markdown(&bench, &judged);
        assert_eq!(text.matches("not measured |").count(), judged.len());
        assert_eq!(table(&judged).to_string().matches("not measured").count(), judged.len());
    }
}
