//! One `charon-systemd`, unmodified, under `peregrine exec` in a gateway's network namespace.
//!
//! Nothing of the machine's own strongSwan is touched: settings, control socket and log are files
//! of the run, and only plugins without sockets in /run are loaded. A daemon is killed when it is
//! dropped: a clean stop would say goodbye to every peer, thousands of messages that nobody needs
//! when both ends go.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{IkeError, Settings};
use crate::dut::Dut;
use crate::topology::{Namespace, Process};
use crate::usage::Usage;
use crate::vici::{Client, Message};

/// The daemon; Debian's package charon-systemd has it.
pub const PROGRAM: &str = "charon-systemd";
/// Runs a daemon in a root of its own ($1), on the machine's own processes, devices, sockets and
/// temporary files; the preload library goes along ($2). Called in a fresh mount namespace.
const ENTER: &str = "set -e
for one in proc sys dev run tmp; do mount --rbind \"/$one\" \"$1/$one\"; done
cp \"$LD_PRELOAD\" \"$2\"
LD_PRELOAD=$2 exec chroot \"$1\" /usr/sbin/$3";
/// How long a daemon may take to answer. It takes a quarter of a second on a quiet machine.
const READY_PATIENCE: Duration = Duration::from_secs(60);
/// Lines of its log in an error message.
const TAIL_LINES: usize = 15;

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    label: String,
    process: Process,
    socket: PathBuf,
    log: PathBuf,
    /// Where the log stays, if that is elsewhere: a daemon in a root of its own sees only some places.
    kept_log: Option<PathBuf>,
}

/// Where and as what a daemon runs.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The gateway's namespace.
    pub namespace: &'a Namespace,
    /// Both gateways.
    pub dut: &'a Dut,
    /// Which of them: 0 near, 1 far.
    pub index: usize,
    /// Folder for its files.
    pub scratch: &'a Path,
    /// Where it is unpacked, if it is not the machine's own.
    pub root: Option<&'a Path>,
}

impl Daemon {
    /// Starts a daemon; `label` is unique among the run's. [`Daemon::wait_until_ready`] is next.
    ///
    /// # Errors
    /// [`IkeError`] if its files cannot be written or the program not started.
    pub fn start(place: Place<'_>, label: &str, settings: &Settings) -> Result<Daemon, IkeError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| IkeError::Io { what: format!("writing {}", path.display()), source }
        };
        let file = place.scratch.join(format!("{label}.conf"));
        let mut settings = settings.clone();
        let mut kept_log = None;
        if place.root.is_some() {
            let seen = place.scratch.join(format!("{label}.log"));
            kept_log = settings.log.replace(seen);
        }
        fs::write(&file, settings.text()).map_err(failed(&file))?;
        let mut command = place.namespace.command_bound(place.dut.binary());
        command.args(["exec", "--instance", place.dut.instance(place.index), "--"]);
        match place.root {
            None => command.arg(PROGRAM),
            Some(root) => command
                .args(["unshare", "--mount", "--", "sh", "-c", ENTER, "sh"])
                .args([root, &place.scratch.join(format!("{label}.so"))])
                .arg(PROGRAM),
        };
        command.env("STRONGSWAN_CONF", &file);
        let output = place.scratch.join(format!("{label}.out"));
        let process = Process::start(label, command, output.clone())?;
        let log = settings.log.clone().unwrap_or(output);
        Ok(Daemon { label: label.to_owned(), process, socket: settings.socket, log, kept_log })
    }

    /// Waits until it answers on its control socket; returns its version.
    ///
    /// # Errors
    /// [`IkeError`] with the end of its log, if it ends early or does not answer in time.
    pub fn wait_until_ready(&mut self) -> Result<String, IkeError> {
        let socket = self.socket.clone();
        let mut version = None;
        self.process.wait_until(READY_PATIENCE, |_| {
            let answer = Client::connect(&socket)
                .and_then(|mut client| client.ask("version", &Message::new()));
            version = answer.ok().and_then(|answer| Some(answer.text("version")?.to_owned()));
            version.is_some()
        })?;
        Ok(version.unwrap_or_default())
    }

    /// Its name in messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// A connection to its control socket.
    ///
    /// # Errors
    /// [`IkeError`] with the end of its log, if it does not accept the connection.
    pub fn client(&self) -> Result<Client, IkeError> {
        Client::connect(&self.socket).map_err(|error| self.error(error))
    }

    /// Its control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What it takes.
    pub fn usage(&self) -> Usage {
        Usage::of(self.process.pid())
    }

    /// An error of this daemon with the end of its log.
    pub fn error(&self, error: impl ToString) -> IkeError {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let log = if log.trim().is_empty() { self.process.log() } else { log };
        let lines: Vec<&str> = log.lines().collect();
        IkeError::Daemon {
            daemon: self.label.clone(),
            reason: error.to_string(),
            log: lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.process.kill();
        if let Some(kept) = &self.kept_log {
            // A log that cannot be kept is not worth a run.
            let _ = fs::copy(&self.log, kept);
        }
    }
}
