//! How fast a gateway answers its IKE daemon: requests per second and latencies of the XFRM interface.
//!
//! ```text
//!   1 rig        two gateways of this program in namespaces, the near one is asked
//!   2 fill       tunnels through its XFRM socket, by the same client that is measured afterwards
//!   3 measure    one synchronous client, one request at a time: rounds, first idle, then
//!                while the workers forward half of what they carry without loss
//!   4 repeat     2 and 3 for every size of the tables
//! ```
//!
//! What tens of thousands of tunnels take as a whole is measured by [`control`], with the same parts.
//!
//! It measures what a program sees, socket to socket; where the time goes inside is a profiler's work.

pub mod control;
mod driver;
mod program;
mod report;
mod rig;
mod search;
mod shimmed;
mod tunnel;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use driver::{Done, Driver, Operation, Order};
pub use program::{Program, ProgramError};
pub use report::{Cost, Filling, Memory, Report, Row, table};
pub use rig::Traffic;
pub use shimmed::serve;
pub use tunnel::TUNNELS_MAX;

use crate::clock;
use crate::dut::DutError;
use crate::progress::Display;
use crate::recipe::RecipeError;
use crate::run::Scratch;
use crate::station::StationError;
use crate::wiring::WiringError;
use rig::Rig;
use shimmed::Client;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Sizes of the tables, in SAs (two per tunnel), ascending.
    pub sas: Vec<u32>,
    /// Rounds per size; each has 500 requests of a kind or more.
    pub rounds: u32,
    /// Measure idle workers.
    pub idle: bool,
    /// Measure workers under half of their load.
    pub busy: bool,
    /// Ask through the preload library.
    pub through_shim: bool,
    /// The `peregrine` binary that the gateways are.
    pub binary: PathBuf,
    /// Becomes true when it is to end early, with what it has.
    pub stop: Arc<AtomicBool>,
    /// Show nothing while measuring.
    pub quiet: bool,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum RatesError {
    /// The built-in recipe is not possible.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// The network could not be built.
    #[error("building the bench's network: {0}")]
    Wiring(#[from] WiringError),
    /// A gateway failed.
    #[error(transparent)]
    Dut(#[from] DutError),
    /// The traffic's source failed.
    #[error(transparent)]
    Station(#[from] StationError),
    /// The folder for the gateways' files.
    #[error("making a folder for the gateways' files: {0}")]
    Scratch(std::io::Error),
    /// A request failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// Frames do not come through.
    #[error("the bench's own traffic does not come through the gateways")]
    NoTraffic,
    /// The client behind the preload library failed.
    #[error("the client behind the preload library: {0}")]
    Shimmed(String),
}

/// Measures.
///
/// # Errors
/// [`RatesError`]: the gateways cannot be built, the traffic does not come through them, or a request was refused.
pub fn run(options: &Options) -> Result<Report, RatesError> {
    let display = Display::new(options.quiet);
    let scratch = Scratch::make().map_err(RatesError::Scratch)?;
    display.say("starting two gateways");
    let mut rig = Rig::build(&options.binary, scratch.path(), &options.stop)?;
    let stop = Arc::clone(&options.stop);
    let mut client = if options.through_shim {
        Client::behind_shim(&options.binary, rig.instance(), stop)?
    } else {
        Client::Direct(Box::new(Driver::new(Program::connect(&rig.socket())?, stop)))
    };
    let mut report = Report {
        schema: report::SCHEMA,
        ruler: report::RULER,
        version: env!("CARGO_PKG_VERSION"),
        cpu: crate::environment::cpu_model(),
        measured_at: clock::utc_now(),
        through_shim: options.through_shim,
        rounds: options.rounds,
        interrupted: false,
        rows: Vec::new(),
        filling: Vec::new(),
        costs: Vec::new(),
        memory: None,
    };
    let empty_bytes = rig.resident_bytes();
    for &sas in &options.sas {
        if is_stopped(options) {
            break;
        }
        if sas > 0 {
            display.say(&format!("{sas} SAs: installing"));
            let done = client.obey(Order::Install(sas / 2))?;
            if is_stopped(options) {
                // Some of them: neither the time nor the memory of so many.
                break;
            }
            report.filling.push(Filling::new(sas, &done));
            report.memory = Memory::between(empty_bytes, rig.resident_bytes(), sas);
        }
        measure(options, sas, &mut rig, &mut client, &mut report, &display)?;
    }
    report.interrupted = is_stopped(options);
    client.close();
    rig.stop();
    Ok(report)
}

/// One size of the tables, idle and busy.
fn measure(
    options: &Options,
    sas: u32,
    rig: &mut Rig,
    client: &mut Client,
    report: &mut Report,
    display: &Display,
) -> Result<(), RatesError> {
    let order = Order::Measure(options.rounds);
    let clock = rig.control_clock();
    if options.idle {
        display.say(&format!("{sas} SAs: {} rounds, idle workers", options.rounds));
        let before = clock.cpu_ns();
        let done = client.obey(order)?;
        if done.latencies.is_empty() {
            // Stopped before the first round that counts.
            return Ok(());
        }
        report.costs.push(Cost::between(before, clock.cpu_ns(), sas, false, &done));
        report.add(sas, None, &done);
    }
    if options.busy && !is_stopped(options) {
        display.say(&format!("{sas} SAs: {} rounds, workers under half load", options.rounds));
        let measured = || {
            let before = clock.cpu_ns();
            let done = client.obey(order)?;
            Ok::<_, RatesError>((Cost::between(before, clock.cpu_ns(), sas, true, &done), done))
        };
        let (measured, traffic) = rig.under_traffic(measured)?;
        let (cost, done) = measured?;
        if done.latencies.is_empty() {
            return Ok(());
        }
        report.costs.push(cost);
        report.add(sas, Some(traffic), &done);
    }
    Ok(())
}

fn is_stopped(options: &Options) -> bool {
    options.stop.load(Ordering::Relaxed)
}
