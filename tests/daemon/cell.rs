//! One program in a daemon's root, and in the namespace of a gateway, under `peregrine exec`.
//!
//! The command is what an operator types, `peregrine exec -- charon-systemd`; between the two stands
//! `enter`, which puts the root together. The preload library and the gateways' sockets are seen
//! inside under their own names, so that what `peregrine exec` puts into the environment holds there.
//! It knows no daemon.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lab::topology::{Namespace, Process};

use super::root::Root;
use crate::gateway::left::scratch;
use crate::gateway::{Gateway, PEREGRINE, preload};

/// The gateways' sockets.
const SOCKETS: &str = "/run/peregrine";

/// A directory that a daemon takes for its machine.
pub struct Cell {
    root: Root,
    own: tempfile::TempDir,
    namespace: PathBuf,
    instance: Option<String>,
    process: Option<Process>,
}

impl Cell {
    /// A place of its own with fresh `/etc` and `/var`, in `namespace`; its XFRM is `gateway`'s, or
    /// the kernel's without one.
    pub fn new(root: &Root, namespace: &Namespace, gateway: Option<&Gateway>) -> Cell {
        let own = scratch();
        for name in ["root", "run", "tmp"] {
            std::fs::create_dir(own.path().join(name)).expect("a directory");
        }
        for name in ["etc", "var"] {
            let copied = Command::new("cp")
                .arg("-a")
                .args([root.path.join(name), own.path().join(name)])
                .status()
                .expect("cp runs");
            assert!(copied.success(), "{name} of {} is copied", root.name);
        }
        let instance = gateway.map(|gateway| gateway.name.clone());
        Cell { root: root.clone(), own, namespace: namespace.path(), instance, process: None }
    }

    /// A file of the daemon's, `etc/swanctl/swanctl.conf` for one, as it is named outside.
    pub fn file(&self, path: &str) -> PathBuf {
        self.own.path().join(path)
    }

    /// Writes a file of the daemon's.
    pub fn write(&self, path: &str, text: &str) {
        std::fs::write(self.file(path), text).unwrap_or_else(|e| panic!("{path}: {e}"));
    }

    /// Starts the program that the place is for.
    pub fn start(&mut self, program: &str, args: &[&str], environment: &[(&str, &str)]) {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "nsenter"]);
        command.arg(format!("--net={}", self.namespace.display())).arg("--");
        if let Some(instance) = &self.instance {
            command.args([PEREGRINE, "exec", "--instance", instance, "--"]);
            command.env("PEREGRINE_PRELOAD", preload());
        }
        command.envs(environment.iter().copied());
        command.args(["unshare", "--mount", "--"]);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemon/enter"));
        command.arg(&self.root.path).arg(self.own.path());
        if self.instance.is_some() {
            command.arg(preload()).arg(SOCKETS);
        }
        command.arg("--").arg(program).args(args);
        let log = self.file("log");
        self.process = Some(Process::start(program, command, log).expect("the daemon starts"));
    }

    /// Waits until `ready` holds; panics with the daemon's log if it ends or takes too long.
    pub fn wait_ready(&mut self, patience: Duration, mut ready: impl FnMut(&Cell) -> bool) {
        let end = Instant::now() + patience;
        while !ready(self) {
            assert!(self.is_running(), "the daemon ended early:\n{}", self.log());
            assert!(Instant::now() < end, "the daemon is not ready:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A command beside the running program: in its root, its namespaces and with its sockets, but
    /// without the preload library.
    pub fn command(&self, program: &str) -> Command {
        let pid = self.pid().to_string();
        let mut command = Command::new("nsenter");
        command.args(["--target", &pid, "--mount", "--net", "--root", "--wd", "--", program]);
        command
    }

    /// Runs a command beside the program, which must succeed; returns what it printed.
    #[track_caller]
    pub fn run(&self, program: &str, args: &[&str]) -> String {
        let out = self.command(program).args(args).output().expect("the command runs");
        let printed = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(
            out.status.success(),
            "{program} {args:?}: {printed}{}\nthe daemon's log:\n{}",
            String::from_utf8_lossy(&out.stderr),
            self.log_tail(60)
        );
        printed
    }

    /// The running program's process id.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("a running daemon").pid()
    }

    /// Whether the program still runs.
    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(Process::is_running)
    }

    /// What the program printed since it was started last.
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }

    /// The end of its log, for the message of a test that fails.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// SIGTERM; returns the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.process.take().and_then(|mut process| process.stop())
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// The root that it runs in.
    pub fn root(&self) -> &Root {
        &self.root
    }
}
