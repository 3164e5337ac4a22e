//! What control takes with tens of thousands of tunnels: installing them, rekeying, listing, deleting, flushing,
//! stopping.
//!
//! ```text
//!   1 rig        two gateways of this program in namespaces; half of what they carry without loss is found out
//!   2 install    all tunnels by one client, some of them under way at a time, under that traffic
//!   3 memory     what the gateway grew by
//!   4 rekey      at an even pace, under traffic
//!   5 list       all SAs, and what the gateway grew by meanwhile
//!   6 delete     all tunnels, each by requests of its own; another client asks all the while
//!   7 flush      everything, when all are installed again; so asks the other client
//!   8 install    again, idle, then the gateway is stopped
//! ```
//!
//! The client is the one that [`super::run`] measures single requests with.

mod bystander;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use report::{Install, Listing, Rekeying, Report, Size, Streaming, table};

use super::driver::{Done, Driver, Operation, Order};
use super::program::Program;
use super::rig::{Rig, Traffic};
use super::{RatesError, shimmed::Client};
use crate::clock;
use crate::progress::Display;
use crate::run::Scratch;
use bystander::Bystander;

/// Most tunnels under way at a time: more than this and the answers to their ALLOCSPIs do not fit into
/// the queue that a gateway keeps for a program (64 KiB).
pub const IN_FLIGHT_MAX: u32 = 128;

/// Most tunnels whose requests share a datagram: 48 KiB.
pub const PER_DATAGRAM_MAX: u32 = 32;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Tunnels: two SAs and three policies each.
    pub tunnels: u32,
    /// Tunnels whose requests are under way at a time, up to [`IN_FLIGHT_MAX`].
    pub in_flight: u32,
    /// Tunnels whose requests share a datagram, up to [`PER_DATAGRAM_MAX`]; 0: every request has one
    /// of its own, and its own acknowledgement.
    pub per_datagram: u32,
    /// Rekeyings per second; 0 for none.
    pub rekeys_per_second: u32,
    /// For how long they are kept up, in seconds.
    pub rekey_s: u32,
    /// Half of the load that the workers carry without loss goes on meanwhile.
    pub busy: bool,
    /// The `peregrine` binary that the gateways are.
    pub binary: PathBuf,
    /// Becomes true when it is to end early, with what it has.
    pub stop: Arc<AtomicBool>,
    /// Show nothing while measuring.
    pub quiet: bool,
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
    if options.busy {
        display.say("searching for the highest rate without loss");
        rig.under_traffic(|| ())?;
    }
    let driver = Driver::new(Program::connect(&rig.socket())?, Arc::clone(&options.stop));
    let client = Client::Direct(Box::new(driver));
    let mut bench = Bench { options, display, rig, client, report: Report::new(options) };
    bench.measure()?;
    let Bench { mut rig, mut report, client, .. } = bench;
    client.close();
    report.interrupted = options.stop.load(Ordering::Relaxed);
    if !report.interrupted {
        report.stop_s = rig.stop_near().map(|took| took.as_secs_f64());
    }
    rig.stop();
    Ok(report)
}

struct Bench<'a> {
    options: &'a Options,
    display: Display,
    rig: Rig,
    client: Client,
    report: Report,
}

impl Bench<'_> {
    fn measure(&mut self) -> Result<(), RatesError> {
        let Options { tunnels, in_flight, per_datagram, rekeys_per_second, rekey_s, .. } =
            *self.options;
        let fill = Order::Fill { tunnels, in_flight, per_datagram };
        self.display.say(&format!("installing {tunnels} tunnels"));
        let empty = self.size();
        let (done, traffic) = self.obey(fill)?;
        if self.is_stopped() {
            // Some of them: neither the time nor the memory of all.
            return Ok(());
        }
        self.report.install.push(Install::new(&done, traffic));
        let full = self.size();
        self.report.memory = Some(report::Growth { empty, full });
        if rekeys_per_second > 0 {
            self.display.say(&format!("{rekeys_per_second} rekeyings per second"));
            let count = rekeys_per_second.saturating_mul(rekey_s);
            let order = Order::Rekey { per_second: rekeys_per_second, count };
            let (done, traffic) = self.obey(order)?;
            let latency = done.latencies.get(&Operation::Rekey).copied();
            // Nothing where it was stopped before the first.
            self.report.rekeying =
                latency.map(|latency| Rekeying::new(rekeys_per_second, &done, latency, traffic));
        }
        if self.is_stopped() {
            return Ok(());
        }
        self.display.say("listing");
        self.report.listing = Some(self.beside(Order::List)?);
        self.display.say("deleting");
        let deletion = self.beside(Order::Delete { in_flight, per_datagram })?;
        if self.is_stopped() {
            return Ok(());
        }
        self.report.deletion = Some(deletion);
        self.display.say("installing again");
        self.client.obey(fill)?;
        self.display.say("flushing");
        self.report.flush = Some(self.beside(Order::Flush)?);
        self.display.say("installing again, idle");
        let done = self.client.obey(fill)?;
        if !self.is_stopped() {
            self.report.install.push(Install::new(&done, None));
        }
        self.display.say("stopping");
        Ok(())
    }

    /// Carries out an order, under traffic if that is wanted.
    fn obey(&mut self, order: Order) -> Result<(Done, Option<Traffic>), RatesError> {
        let client = &mut self.client;
        if !self.options.busy {
            return Ok((client.obey(order)?, None));
        }
        let (done, traffic) = self.rig.under_traffic(|| client.obey(order))?;
        Ok((done?, Some(traffic)))
    }

    /// Carries out an order while another client goes on asking.
    fn beside(&mut self, order: Order) -> Result<Streaming, RatesError> {
        let before = self.size();
        let bystander = Bystander::start(Program::connect(&self.rig.socket())?);
        let done = self.client.obey(order)?;
        let waited = bystander.end()?;
        Ok(Streaming::new(&done, waited, before, self.size()))
    }

    fn size(&self) -> Size {
        Size {
            resident_bytes: self.rig.resident_bytes(),
            peak_bytes: self.rig.peak_bytes(),
            journal_bytes: self.rig.journal_bytes(),
        }
    }

    fn is_stopped(&self) -> bool {
        self.options.stop.load(Ordering::Relaxed)
    }
}

impl Report {
    fn new(options: &Options) -> Report {
        Report {
            schema: report::SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            cpu: crate::environment::cpu_model(),
            measured_at: clock::utc_now(),
            tunnels: options.tunnels,
            in_flight: options.in_flight,
            per_datagram: options.per_datagram,
            interrupted: false,
            install: Vec::new(),
            memory: None,
            rekeying: None,
            listing: None,
            deletion: None,
            flush: None,
            stop_s: None,
        }
    }
}
