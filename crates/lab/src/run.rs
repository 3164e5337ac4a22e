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
//! A run that is interrupted, or whose later curve fails, goes on with 4: what was measured is written, and
//! says so. Whatever happens, processes are stopped and namespaces removed by their owners.

mod curve;
pub(crate) mod load;
mod step;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

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

/// What is said where calibration lost something.
const UNCLEAN_LOOP: &str = "The calibration loop itself loses, doubles, reorders or damages frames: what the curves \
                            show of that is not the gateways' alone.";

/// What is said of a run that was stopped.
pub const INTERRUPTED: &str = "The run was interrupted; what is missing was not measured.";

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
    /// A curve failed that was not the first.
    #[error("{cause}; the curves before it are in {}", folder.display())]
    Early {
        /// What failed.
        cause: Box<RunError>,
        /// Where the others are.
        folder: PathBuf,
    },
}

/// Boxed, because it would double the size of every result.
impl From<IkeError> for RunError {
    fn from(error: IkeError) -> RunError {
        RunError::Ike(Box::new(error))
    }
}

/// Runs a recipe and writes its folder.
///
/// # Errors
/// [`RunError`]: what was impossible, with the folder of the curves before it, if there are some.
pub fn run(options: &Options) -> Result<Outcome, RunError> {
    let mut recipe = options.recipe.clone();
    recipe.ramp.settle_s = load::settle_s(&recipe.ramp);
    recipe.check()?;
    let display = Display::new(options.quiet);
    let measured = measure(&recipe, options, &display);
    display.finish();
    let (run, failure) = measured?;
    result::write(&options.out, &run)?;
    let drawn = report::draw(&options.out, &run)?;
    match failure {
        Some(cause) => Err(RunError::Early { cause: Box::new(cause), folder: options.out.clone() }),
        None => Ok(Outcome { run, drawn, interrupted: is_stopped(options) }),
    }
}

/// Steps 1 to 4; with what was measured the error that ended it, if one did.
fn measure(
    recipe: &Recipe,
    options: &Options,
    display: &Display,
) -> Result<(Run, Option<RunError>), RunError> {
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
            run_result.notes.push(UNCLEAN_LOOP.to_owned());
        }
        run_result.calibration = Some(calibration);
        run_result.ceilings = ceilings;
    }

    // 3. Curves.
    let mut samples = Vec::new();
    let mut failure = None;
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
        let each = recipe
            .directions
            .iter()
            .flat_map(|&direction| recipe.tunnels.iter().map(move |&tunnels| (tunnels, direction)));
        let measure = |(tunnels, direction)| rig.measure(tunnels, direction, &mut environment);
        let measured = each.take_while(|_| !is_stopped(options)).map(measure);
        let (measured, error) =
            until_failure(measured.take_while(|one| one.is_ok() || !was_stopped(&options.stop)))?;
        for measured in measured {
            samples.extend(measured.samples);
            run_result.curves.extend(measured.curve);
        }
        if let Some(error) = &error {
            run_result.notes.push(format!("The run ended early: {error}"));
        }
        failure = error;
    }

    // 4. Conclusions.
    conclude_all(&mut run_result, &samples, recipe);
    if is_stopped(options) {
        run_result.notes.push(INTERRUPTED.to_owned());
    }
    Ok((finish(run_result, samples, environment), failure))
}

fn conclude_all(result: &mut RunResult, samples: &[result::Sample], recipe: &Recipe) {
    for curve in &mut result.curves {
        let own = samples.iter().filter(|sample| sample.curve == curve.name);
        let own: Vec<_> = own.cloned().collect();
        curve.conclusion =
            conclude(curve, &own, &recipe.thresholds, &result.ceilings, recipe.ramp.steps);
    }
}

/// All that succeed up to the first that does not, and its error; that error alone if it is the first of all.
fn until_failure<T, E>(all: impl Iterator<Item = Result<T, E>>) -> Result<(Vec<T>, Option<E>), E> {
    let mut done = Vec::new();
    for one in all {
        match one {
            Ok(one) => done.push(one),
            Err(error) if done.is_empty() => return Err(error),
            Err(error) => return Ok((done, Some(error))),
        }
    }
    Ok((done, None))
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

/// As long a signal may take until the lab hears of it.
const HEARD: Duration = Duration::from_millis(250);

/// Whether what has just failed may have failed of what stops the run. Programs are in groups of their own, but for the moment
/// before they are, and but for those that are to hear a Ctrl-C: it ends them at once, and who began them hears of it a little later.
pub fn was_stopped(stop: &AtomicBool) -> bool {
    if !stop.load(Ordering::Relaxed) {
        thread::sleep(HEARD);
    }
    stop.load(Ordering::Relaxed)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_before_a_failure_stays() {
        let all = |results: &[Result<u8, &'static str>]| until_failure(results.iter().copied());
        assert_eq!(all(&[Ok(1), Ok(2)]), Ok((vec![1, 2], None)));
        assert_eq!(all(&[Ok(1), Err("path"), Ok(3)]), Ok((vec![1], Some("path"))));
        assert_eq!(all(&[Err("path"), Ok(3)]), Err("path"));
        let folder = PathBuf::from("out");
        let cause = Box::new(RunError::Scratch(std::io::ErrorKind::NotFound.into()));
        let told = RunError::Early { cause, folder }.to_string();
        assert!(told.ends_with("the curves before it are in out"), "{told}");
    }
}
