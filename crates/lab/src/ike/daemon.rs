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
}

impl Daemon {
    /// Starts a daemon; `label` is unique among the run's. [`Daemon::wait_until_ready`] is next.
    pub fn start(place: Place<'_>, label: &str, settings: &Settings) -> Result<Daemon, IkeError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| IkeError::Io { what: format!("writing {}", path.display()), source }
        };
        let file = place.scratch.join(format!("{label}.conf"));
        fs::write(&file, settings.text()).map_err(failed(&file))?;
        let mut command = place.namespace.command_bound(place.dut.binary());
        command.args(["exec", "--instance", place.dut.instance(place.index), "--", PROGRAM]);
        command.env("STRONGSWAN_CONF", &file);
        let output = place.scratch.join(format!("{label}.out"));
        let process = Process::start(label, command, output.clone())?;
        let log = settings.log.clone().unwrap_or(output);
        Ok(Daemon { label: label.to_owned(), process, socket: settings.socket.clone(), log })
    }

    /// Waits until it answers on its control socket; returns its version.
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
    }
}
