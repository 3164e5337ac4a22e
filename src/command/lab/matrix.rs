//! `peregrine lab run` of a table: benches on memory ports, then the same tunnels over veth.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use crypto::Engine;
use lab::figure::Figures;
use lab::matrix::Matrix;
use lab::recipe::Recipe;
use lab::report::matrix::{self, Measured, Veth};
use lab::run::{Options, Outcome};

use super::{check_machine, exit_code, watch_signals};
use crate::command::Unfit;
use crate::command::bench::{machine::Machine, parts};

/// Folder of the run over veth, inside that of the table.
const VETH_DIR: &str = "veth";

/// What was asked for.
pub struct Asked {
    /// The table.
    pub matrix: Matrix,
    /// Its run over veth, with what the options change in it.
    pub recipe: Recipe,
    /// The folder.
    pub out: PathBuf,
    /// Print JSON instead of the table.
    pub json: bool,
}

/// Measures, prints and writes.
pub fn run(asked: &Asked) -> anyhow::Result<ExitCode> {
    let binary = std::env::current_exe().context("finding this program's own file")?;
    std::fs::create_dir_all(&asked.out)
        .with_context(|| format!("making {}", asked.out.display()))?;
    let mut notes = Vec::new();
    let (figures, failed) = on_memory_ports(&asked.matrix, &binary, &mut notes);
    let outcome = match check_machine() {
        Ok(()) => Some(over_veth(asked, &binary)?),
        Err(unfit) => {
            notes.push(format!("not measured over veth: {unfit}"));
            None
        }
    };
    let machine = Machine::of(Engine::select(None).map_err(|e| Unfit(e.to_string()))?);
    let measured = Measured {
        machine: machine.facts(),
        cells: asked.matrix.cells(&figures),
        limits: asked.matrix.limits(&figures),
        veth: outcome.as_ref().map_or(Veth::Unmeasured, rate),
        notes,
    };
    let drawn = matrix::write(&asked.out, &asked.matrix, &measured)?;
    drawn.warnings.iter().for_each(|warning| eprintln!("peregrine: {warning}"));
    if asked.json {
        print!("{}", std::fs::read_to_string(asked.out.join("matrix.json"))?);
    } else {
        print!("{}", matrix::text(&asked.matrix, &measured));
        println!("The page is {}", asked.out.join(matrix::PAGE_FILE).display());
    }
    match outcome.as_ref().map_or(ExitCode::SUCCESS, exit_code) {
        ExitCode::SUCCESS if failed => Ok(ExitCode::FAILURE),
        code => Ok(code),
    }
}

/// What the table's benches measure, and whether one failed that is for this machine. One that fails leaves its
/// cells empty and says so.
fn on_memory_ports(matrix: &Matrix, binary: &Path, notes: &mut Vec<String>) -> (Figures, bool) {
    let (mut figures, mut failed) = (Figures::default(), false);
    for bench in &matrix.benches {
        let arguments: Vec<String> = bench.iter().map(|word| matrix.fill(word, 1)).collect();
        match parts::measure(binary, &arguments) {
            Ok(found) => figures.extend(found),
            Err(error) => {
                failed |= error.downcast_ref::<Unfit>().is_none();
                notes.push(format!("bench {} failed: {error:#}", arguments[0]));
            }
        }
    }
    (figures, failed)
}

/// The run over veth.
fn over_veth(asked: &Asked, binary: &Path) -> anyhow::Result<Outcome> {
    let stop = Arc::new(AtomicBool::new(false));
    watch_signals(Arc::clone(&stop))?;
    Ok(lab::run::run(&Options {
        recipe: asked.recipe.clone(),
        out: asked.out.join(VETH_DIR),
        binary: binary.to_owned(),
        stop,
        quiet: asked.json,
        keying: None,
    })?)
}

/// The rate without loss.
fn rate(outcome: &Outcome) -> Veth {
    let Some(curve) = outcome.run.result.curves.first() else { return Veth::Unmeasured };
    let marker = curve.conclusion.zero_loss_marker;
    marker.map_or(Veth::Lossy, |marker| Veth::Clean(marker.rx_bps / 1e9))
}
