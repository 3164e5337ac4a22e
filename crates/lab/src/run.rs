//! One run from the recipe to the folder: calibrate, then one ramp per curve, then the report.
//!
//! ```text
//!   1 wiring      three namespaces and their links, once
//!   2 calibrate   generator → sink without gateways: the ceiling
//!   3 per curve   addresses → gateways → tunnels → every tunnel proven → ramp → accounts → stop
//!   4 conclude    markers and labels
//!   5 write       result.json, samples.csv, env.json, plot, page
//! ```
//!
//! A run that is interrupted goes on with 4: what was measured is written, and says so. Whatever
//! happens, processes are stopped and namespaces removed by their owners.

mod curve;
pub(crate) mod load;
mod step;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::calibration::{CalibrationError, calibrate};
use crate::clock;
use crate::dut::DutError;
use crate::environment;
use crate::ike::{IkeError, Keying};
use crate::marker::conclude;
use crate::progress::{Display, bits};
use crate::recipe::{Recipe, RecipeError};
use crate::report::{self, Drawn, ReportError};
use crate::result::{self, Environment, Ruler, Run, RunResult, SCHEMA, Tool, WriteError};
use crate::station::{Station, StationError};
use crate::wiring::{Wiring, WiringError};

use curve::Rig;

/// What to run, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The test, with whatever the command line has changed in it.
    pub recipe: Recipe,
    /// The folder for the results; made if it is not there.
    pub out: PathBuf,
    /// The `peregrine` binary that the gateways are.
    pub binary: PathBuf,
    /// Becomes true when the run is to end early, with what it has.
    pub stop: Arc<AtomicBool>,
    /// Show nothing while running.
    pub quiet: bool,
    /// Who puts SAs into the gateways: an IKE daemon, or the lab with keys of its own.
    pub keying: Option<Keying>,
}

/// What a run left behind.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The data, as written.
    pub run: Run,
    /// The plot and the page.
    pub drawn: Drawn,
    /// It was stopped before its end.
    pub interrupted: bool,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The recipe, as changed by the options, is not possible.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// The network could not be built.
    #[error("building the lab's network: {0}")]
    Wiring(#[from] WiringError),
    /// The loop test failed.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// The generator or the sink failed.
    #[error(transparent)]
    Station(#[from] StationError),
    /// A gateway failed.
    #[error(transparent)]
    Dut(#[from] DutError),
    /// The tunnels were not negotiated.
    #[error(transparent)]
    Ike(Box<IkeError>),
    /// Some tunnels carry nothing.
    #[error(
        "{missing} of {frames} frames, one per tunnel, did not come through from {from} to {to} \
         even after {tries} tries\n{counters}\n{logs}"
    )]
    Path {
        /// The sending port.
        from: String,
        /// The receiving port.
        to: String,
        /// Frames that did not arrive in the last try.
        missing: u64,
        /// Frames sent in the last try.
        frames: u64,
        /// How often it was tried.
        tries: u32,
        /// What the gateways counted.
        counters: String,
        /// What the gateways wrote.
        logs: String,
    },
    /// A file for the gateways could not be made.
    #[error("making a folder for the gateways' files: {0}")]
    Scratch(std::io::Error),
    /// The folder could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The report could not be drawn.
    #[error(transparent)]
    Report(#[from] ReportError),
}

/// Boxed, because it would double the size of every result.
impl From<IkeError> for RunError {
    fn from(error: IkeError) -> RunError {
        RunError::Ike(Box::new(error))
    }
}

/// Runs a recipe and writes its folder.
pub fn run(options: &Options) -> Result<Outcome, RunError> {
    let mut recipe = options.recipe.clone();
    recipe.ramp.settle_s = load::settle_s(&recipe.ramp);
    recipe.check()?;
    let display = Display::new(options.quiet);
    let measured = measure(&recipe, options, &display);
    display.finish();
    let run = measured?;
    result::write(&options.out, &run)?;
    let drawn = report::draw(&options.out, &run)?;
    Ok(Outcome { run, drawn, interrupted: is_stopped(options) })
}

/// Steps 1 to 4.
fn measure(recipe: &Recipe, options: &Options, display: &Display) -> Result<Run, RunError> {
    let started_at = clock::utc_now();
    let mut environment = environment::probe(recipe, &started_at);
    let mut run_result = begin(recipe, &started_at);
    let scratch = Scratch::make().map_err(RunError::Scratch)?;

    // 1. Wiring.
    let wiring = Wiring::build(recipe)?;
    environment::add_links(&mut environment, &wiring, recipe);

    // 2. Calibration.
    display.say("calibrating: generator to sink, no gateway");
    if let Some((calibration, ceilings)) = calibrate(recipe, &wiring, &options.stop)? {
        display.say(&format!(
            "  the loop carries up to {} per port, {} without loss",
            bits(calibration.maximum.l2_bps),
            bits(calibration.zero_loss.l2_bps)
        ));
        if !calibration.clean {
            run_result.notes.push(
                "The calibration loop itself loses, doubles, reorders or damages frames: what the \
                 curves show of that is not the gateways' alone."
                    .to_owned(),
            );
        }
        run_result.calibration = Some(calibration);
        run_result.ceilings = ceilings;
    }

    // 3. Curves.
    let mut samples = Vec::new();
    if !is_stopped(options) {
        let tunnels = recipe.tunnels.iter().copied().max().unwrap_or(1);
        let ports = wiring.ports(recipe, tunnels)?;
        let station = Station::open(wiring.generator(), ports, Arc::clone(&options.stop))?;
        let mut rig = Rig::new(
            recipe,
            &wiring,
            station,
            display,
            options,
            &scratch.path,
            &run_result.ceilings,
        );
        for &direction in &recipe.directions {
            for &tunnels in &recipe.tunnels {
                if is_stopped(options) {
                    break;
                }
                let measured = rig.measure(tunnels, direction, &mut environment)?;
                samples.extend(measured.samples);
                run_result.curves.extend(measured.curve);
            }
        }
    }

    // 4. Conclusions.
    for curve in &mut run_result.curves {
        let own: Vec<_> = samples
            .iter()
            .filter(|sample: &&result::Sample| sample.curve == curve.name)
            .cloned()
            .collect();
        curve.conclusion =
            conclude(curve, &own, &recipe.thresholds, &run_result.ceilings, recipe.ramp.steps);
    }
    if is_stopped(options) {
        run_result
            .notes
            .push("The run was interrupted; what is missing was not measured.".to_owned());
    }
    Ok(finish(run_result, samples, environment))
}

fn begin(recipe: &Recipe, started_at: &str) -> RunResult {
    RunResult {
        schema: SCHEMA,
        recipe: recipe.id.clone(),
        title: recipe.title.clone(),
        started_at: started_at.to_owned(),
        tool: Tool { name: "peregrine".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() },
        ruler: Ruler::EndToEndVeth,
        thresholds: recipe.thresholds,
        ramp: recipe.ramp,
        curves: Vec::new(),
        calibration: None,
        ceilings: Vec::new(),
        notes: Vec::new(),
    }
}

fn finish(result: RunResult, samples: Vec<result::Sample>, mut environment: Environment) -> Run {
    environment.finished_at = clock::utc_now();
    Run { result, samples, environment }
}

fn is_stopped(options: &Options) -> bool {
    options.stop.load(Ordering::Relaxed)
}

/// A folder for the gateways' configurations and logs; gone when dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes it.
    pub(crate) fn make() -> std::io::Result<Scratch> {
        use std::os::unix::fs::DirBuilderExt;
        use std::sync::atomic::AtomicU32;
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("peregrine-lab-{}-{serial}", std::process::id());
        let path: PathBuf = std::env::temp_dir().join(name);
        // Fails if it exists: somebody else's folder must not be written to.
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Scratch { path })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
