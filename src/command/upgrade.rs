//! `peregrine upgrade`: another binary in the place of a running gateway's.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use control::api::{self, Reply, Show, Status};

use super::Instance;

/// How long the new binary may take to serve: 50 000 tunnels on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two questions whether it does.
const STEP: Duration = Duration::from_millis(10);

/// Replace a running gateway's binary; its tunnels go on
///
/// The gateway asks the new binary whether it takes the configuration and the journal, and whether it
/// would look for that where it is (`name` and [control] must be as they were), lets packets
/// under way leave, and becomes the new binary: the same process for systemd, the same SAs, policies,
/// sequence numbers and windows, without a word to the IKE daemon. Its XDP programs stay meanwhile
/// and drop. How long no packet was served is measured and printed.
///
/// If the new binary refuses, the old one goes on. If it fails once it has taken over, the gateway
/// fails closed, as after a crash: start it again.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes:
  0  the new binary serves
  1  it took over and does not serve; if its process is gone, the interfaces are closed
  2  nothing was changed

Examples:
  peregrine upgrade                                   # the binary at the same path is a new one
  peregrine upgrade --binary /opt/peregrine-2/peregrine")]
pub struct Upgrade {
    #[command(flatten)]
    instance: Instance,
    /// The new binary (default: what is now at the path that the gateway was started from)
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

impl Upgrade {
    /// Asks, and waits until the new binary serves.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let socket = self.instance.directory()?.join(control::instance::CONTROL_SOCKET);
        let unfit = |error: api::AskError| super::Unfit(error.to_string());
        let old = status(&socket).map_err(unfit)?;
        let binary = self.binary.map(std::path::absolute).transpose()?;
        let wanted = api::Upgrade { binary };
        let Reply::Upgrade(path) = api::upgrade(&socket, wanted).map_err(unfit)?.reply else {
            return Err(super::Unfit("the gateway answered something else".to_owned()).into());
        };
        let end = Instant::now() + PATIENCE;
        loop {
            std::thread::sleep(STEP);
            match status(&socket) {
                // An exec that failed leaves the old one, under its old epoch.
                Ok(new) if new.epoch != old.epoch => {
                    report(&old, &new);
                    return Ok(ExitCode::SUCCESS);
                }
                Ok(new) if new.upgrade_refused.is_some() => {
                    return Err(super::Unfit(new.upgrade_refused.unwrap_or_default()).into());
                }
                _ if !is_alive(old.pid) => anyhow::bail!(
                    "{path} took over and does not serve; the interfaces stay closed: see the \
                     gateway's log, and start it again"
                ),
                _ if Instant::now() < end => {}
                // It may forward: that is not known here.
                _ => anyhow::bail!(
                    "process {} does not answer at {} for {} s: see the gateway's log, and what it is \
                     doing, before you start it again",
                    old.pid,
                    socket.display(),
                    PATIENCE.as_secs()
                ),
            }
        }
    }
}

fn status(socket: &std::path::Path) -> Result<Status, api::AskError> {
    match api::ask(socket, Show::Status)?.reply {
        Reply::Status(status) => Ok(*status),
        _ => Err(api::AskError::Refused("no status".to_owned())),
    }
}

/// Whether a process runs; one that ended and was not waited for does not.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which is in brackets and may have any.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

fn report(old: &Status, new: &Status) {
    let outage_ms = new.restored.outage_us.unwrap_or_default() as f64 / 1000.0;
    println!(
        "gateway {}: peregrine {} to {}, {} SAs and {} policies go on; no packet was served for \
         {outage_ms:.1} ms",
        new.name, old.version, new.version, new.restored.sas, new.restored.policies
    );
    if new.restored.lost != 0 {
        println!("lost: {} SAs and policies", new.restored.lost);
    }
}
