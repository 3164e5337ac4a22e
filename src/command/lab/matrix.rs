//! `peregrine lab run` of a table: benches on memory ports, then the same tunnels over veth.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use crypto::Engine;
use lab::figure::Figures;
use lab::matrix::Matrix;
use lab::recipe::Recipe;
use lab::report::matrix::{self, Measured, Veth};
use lab::run::{INTERRUPTED, Options, was_stopped};

use super::{EXIT_INTERRUPTED, check_machine, exit_code, watch_signals};
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

/// Measures, prints and writes, whatever of it fails or is interrupted.
pub fn run(asked: &Asked) -> anyhow::Result<ExitCode> {
    let binary = std::env::current_exe().context("finding this program's own file")?;
    // Before the first bench, which a Ctrl-C ends with this.
    let stop = Arc::new(AtomicBool::new(false));
    watch_signals(Arc::clone(&stop), "written")?;
    std::fs::create_dir_all(&asked.out)
        .with_context(|| format!("making {}", asked.out.display()))?;
    let mut notes = Vec::new();
    let (figures, mut failed) = on_memory_ports(&asked.matrix, &binary, &stop, &mut notes);
    let (veth, code) = match end_to_end(asked, &binary, &stop, &mut notes) {
        Ok(found) => found,
        Err(error) => {
            let sentence = format!("the run over veth failed: {error:#}");
            eprintln!("peregrine: {sentence}");
            notes.push(sentence);
            failed = true;
            (Veth::Unmeasured, ExitCode::SUCCESS)
        }
    };
    let machine = Machine::of(Engine::select(None).map_err(|e| Unfit(e.to_string()))?);
    let measured = Measured {
        machine: machine.facts(),
        cells: asked.matrix.cells(&figures),
        limits: asked.matrix.limits(&figures),
        veth,
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
    Ok(match code {
        ExitCode::SUCCESS if failed => ExitCode::FAILURE,
        code => code,
    })
}

/// What the table's benches measure, and whether one failed that is for this machine. One that fails leaves its
/// cells empty and says so.
fn on_memory_ports(
    matrix: &Matrix,
    binary: &Path,
    stop: &AtomicBool,
    notes: &mut Vec<String>,
) -> (Figures, bool) {
    let (mut figures, mut failed) = (Figures::default(), false);
    for bench in &matrix.benches {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let arguments: Vec<String> = bench.iter().map(|word| matrix.fill(word, 1)).collect();
        match parts::measure(binary, &arguments) {
            Ok(found) => figures.extend(found),
            Err(_) if was_stopped(stop) => break,
            Err(error) => {
                failed |= error.downcast_ref::<Unfit>().is_none();
                notes.push(format!("bench {} failed: {error:#}", arguments[0]));
            }
        }
    }
    (figures, failed)
}

/// What was found over veth, and the exit code of that.
fn end_to_end(
    asked: &Asked,
    binary: &Path,
    stop: &Arc<AtomicBool>,
    notes: &mut Vec<String>,
) -> anyhow::Result<(Veth, ExitCode)> {
    let interrupted = (Veth::Unmeasured, ExitCode::from(EXIT_INTERRUPTED));
    if stop.load(Ordering::Relaxed) {
        notes.push(INTERRUPTED.to_owned());
        return Ok(interrupted);
    }
    if let Err(unfit) = check_machine() {
        notes.push(format!("not measured over veth: {unfit}"));
        return Ok((Veth::Unmeasured, ExitCode::SUCCESS));
    }
    let options = Options {
        recipe: asked.recipe.clone(),
        out: asked.out.join(VETH_DIR),
        binary: binary.to_owned(),
        stop: Arc::clone(stop),
        quiet: asked.json,
        keying: None,
    };
    match lab::run::run(&options) {
        Ok(outcome) => {
            let (veth, found) = Veth::of(&outcome.run);
            notes.extend(found);
            Ok((veth, exit_code(&outcome)))
        }
        Err(_) if was_stopped(stop) => {
            notes.push(INTERRUPTED.to_owned());
            Ok(interrupted)
        }
        Err(error) => Err(error.into()),
    }
}
