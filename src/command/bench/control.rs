//! `peregrine bench control`: a gateway with tens of thousands of tunnels.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use lab::rates::TUNNELS_MAX;
use lab::rates::control::{self, IN_FLIGHT_MAX, Options, PER_DATAGRAM_MAX};

use crate::command::lab::{EXIT_INTERRUPTED, check_machine, watch_signals};

/// Tens of thousands of tunnels: installing, memory, rekeying, listing, deleting, flushing, stopping
///
/// Starts two gateways of this very program in network namespaces of its own. The highest rate is searched for
/// that they carry without loss. While the workers of one forward half of that, a client installs tunnels
/// through its XFRM socket, two SAs and three policies each, with requests of strongSwan's shape (AES-256-GCM,
/// ESN), then rekeys tunnels at random at an even pace. Then it lists all SAs, deletes all tunnels and, when they
/// are there again, flushes everything, while another client asks small questions; installs once more on idle
/// workers; and stops the gateway.
///
/// Netlink lets a datagram hold several requests, of which the last is acknowledged for all. Who installs
/// many tunnels sends them so (libmnl's batches are 8 KiB, which is five tunnels); an IKE daemon sends each
/// for itself.
///
/// Memory is what the gateway's resident set grew by, divided by the SAs: control plane, data plane,
/// ledger and policies. The journal's file is told beside it.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes:
  0    measured
  1    failed
  2    not started: an option or the machine is not fit
  130  interrupted; what was measured is printed

Examples:
  peregrine bench control                            50 000 tunnels, 500 rekeyings per second
  peregrine bench control --install 1000 --idle      small, without traffic
  peregrine bench control --in-flight 1              one tunnel after the other
  peregrine bench control --per-datagram 0           as IKE daemons send
  peregrine bench control --json | jq .install[0].seconds")]
pub struct Control {
    /// Tunnels to install: two SAs and three policies each
    #[arg(long, default_value_t = 50_000, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(TUNNELS_MAX)))]
    install: u32,
    /// Tunnels whose requests are under way at a time
    #[arg(long, default_value_t = 64, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(IN_FLIGHT_MAX)))]
    in_flight: u32,
    /// Tunnels whose requests share a datagram; 0: every request has one of its own, and its own
    /// acknowledgement
    #[arg(long, default_value_t = 4, value_name = "N",
        value_parser = clap::value_parser!(u32).range(..=i64::from(PER_DATAGRAM_MAX)))]
    per_datagram: u32,
    /// Rekeyings per second; 0 for none
    #[arg(long, default_value_t = 500, value_name = "N",
        value_parser = clap::value_parser!(u32).range(..=100_000))]
    rekeys: u32,
    /// Seconds for which they are kept up
    #[arg(long, default_value_t = 5, value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(1..=3600))]
    rekey_time: u32,
    /// Without traffic
    #[arg(long)]
    idle: bool,
    /// Print JSON, and no progress
    #[arg(long)]
    json: bool,
}

impl Control {
    /// Measures and prints.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        check_machine()?;
        let stop = Arc::new(AtomicBool::new(false));
        watch_signals(Arc::clone(&stop), "printed")?;
        let report = control::run(&Options {
            tunnels: self.install,
            in_flight: self.in_flight,
            per_datagram: self.per_datagram,
            rekeys_per_second: self.rekeys,
            rekey_s: self.rekey_time,
            busy: !self.idle,
            binary: std::env::current_exe().context("finding this program's own file")?,
            stop,
            quiet: self.json,
        })?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{}", control::table(&report));
        }
        Ok(if report.interrupted { ExitCode::from(EXIT_INTERRUPTED) } else { ExitCode::SUCCESS })
    }
}
