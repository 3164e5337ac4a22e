//! `peregrine bench xfrm`: how fast a gateway answers its IKE daemon.

use std::io::{self, BufReader};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use lab::rates::{self, Options, TUNNELS_MAX};

use crate::command::Unfit;
use crate::command::lab::{EXIT_INTERRUPTED, check_machine, watch_signals};

/// Requests per second and latencies of the XFRM interface, as an IKE daemon meets it
///
/// Starts two gateways of this very program in network namespaces of its own, and asks one of them
/// the way an IKE daemon does: behind the preload library of `peregrine exec`, one socket, one request
/// at a time, each sent when the one before is answered. An answer means that the change is in force.
/// Measured are ALLOCSPI, UPDSA, NEWSA,
/// NEWPOLICY, UPDPOLICY, GETSA, DELSA and DELPOLICY for themselves, the six requests of a new tunnel
/// (handshake) and the eight of a rekeying; with tables of each size, while the workers idle and
/// while they forward half of what they carry without loss. Requests carry what strongSwan's do (AES-256-GCM, ESN).
///
/// Rates count requests; latencies of sequences are those of the whole sequence. Tunnels in the
/// tables have two SAs and three policies each, so 100000 SAs are 50000 tunnels with 150000 policies.
/// The gateway's memory per SA is what its resident set grew by, policies included.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes:
  0    measured
  1    failed
  2    not started: an option or the machine is not fit
  130  interrupted; what was measured is printed

Examples:
  peregrine bench xfrm                                 the tables of docs/measurements.md, 2 minutes
  peregrine bench xfrm --sas 0,100000 --workers idle   only the ends, without traffic
  peregrine bench xfrm --direct                        without the preload library: the client sleeps for each answer
  peregrine bench xfrm --json | jq '.rows[] | select(.operation == \"rekey\")'")]
pub struct Xfrm {
    /// Numbers of SAs installed beside those that come and go; two for each tunnel
    #[arg(long, value_delimiter = ',', default_value = "0,10000,50000,100000", value_name = "N,…")]
    sas: Vec<u32>,
    /// What the workers do meanwhile
    #[arg(long, value_delimiter = ',', default_value = "idle,half", value_name = "LIST",
        value_parser = clap::builder::PossibleValuesParser::new(["idle", "half"]))]
    workers: Vec<String>,
    /// Rounds of 500 tunnels for each line of the table
    #[arg(long, default_value_t = 10, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Ask straight at the gateway's socket, not through the preload library as unmodified programs do
    #[arg(long)]
    direct: bool,
    /// Print JSON, and no progress
    #[arg(long)]
    json: bool,
}

impl Xfrm {
    /// Measures and prints.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let sas = sizes(self.sas)?;
        check_machine()?;
        let stop = Arc::new(AtomicBool::new(false));
        watch_signals(Arc::clone(&stop), "printed")?;
        let does = |what: &str| self.workers.iter().any(|word| word == what);
        let report = rates::run(&Options {
            sas,
            rounds: self.rounds,
            idle: does("idle"),
            busy: does("half"),
            through_shim: !self.direct,
            binary: std::env::current_exe().context("finding this program's own file")?,
            stop,
            quiet: self.json,
        })?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{}", rates::table(&report));
        }
        Ok(if report.interrupted { ExitCode::from(EXIT_INTERRUPTED) } else { ExitCode::SUCCESS })
    }
}

/// The sizes in ascending order, for tables are filled and not emptied.
fn sizes(mut sas: Vec<u32>) -> Result<Vec<u32>, Unfit> {
    sas.sort_unstable();
    sas.dedup();
    match sas.iter().find(|sas| **sas % 2 == 1 || **sas / 2 > TUNNELS_MAX) {
        Some(wrong) => Err(Unfit(format!(
            "--sas {wrong}: write even numbers (a tunnel has two SAs) up to {}",
            2 * TUNNELS_MAX
        ))),
        None => Ok(sas),
    }
}

/// The client behind the preload library: orders come and answers go by its standard streams.
pub fn client() -> anyhow::Result<ExitCode> {
    rates::serve(BufReader::new(io::stdin()), io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_even_and_ascend() {
        assert_eq!(sizes(vec![10, 0, 4, 10]).unwrap(), [0, 4, 10]);
        assert!(sizes(vec![3]).unwrap_err().to_string().contains("--sas 3"));
        assert!(sizes(vec![2 * TUNNELS_MAX + 2]).is_err());
    }
}
