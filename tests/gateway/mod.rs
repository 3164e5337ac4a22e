//! A gateway under test: the real binary in a namespace of its own, and the programs that drive it.
#![allow(dead_code, reason = "each test binary uses its own part of this module")]

pub mod left;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lab::topology::{Namespace, Process, batch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The binary that `cargo test` built.
pub const PEREGRINE: &str = env!("CARGO_BIN_EXE_peregrine");

/// How long a gateway may take to become ready on a busy two-core machine.
const READY: Duration = Duration::from_secs(20);

/// The preload library as its sources are now, beside the binary. `cargo test` does not build it for these tests: they would
/// meet what somebody built some time ago, or the machine's own kernel if nobody did.
pub fn preload() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    left::sweep_once();
    BUILT.get_or_init(build_preload).clone()
}

/// Quick where nothing changed; of test processes that run side by side one builds, and cargo lets the others wait.
fn build_preload() -> PathBuf {
    let folder = Path::new(PEREGRINE).parent().expect("the folder of a profile");
    let target = folder.parent().expect("the folder of all profiles");
    // The only profile whose folder has another name.
    let profile = folder.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "peregrine-preload", "--profile"]).arg(profile);
    cargo.arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(cargo.status().expect("cargo runs").success(), "the preload library does not build");
    let path = folder.join("libperegrine_xfrm.so");
    assert!(path.exists(), "cargo built the preload library, and not as {}", path.display());
    path
}

/// The binary as a program that runs gateways of its own: a lab. It gets a Ctrl-C when the test that starts it ends before it.
pub fn peregrine_bound() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "INT", "--", PEREGRINE]).env("PEREGRINE_PRELOAD", preload());
    command
}

/// The workers of a gateway under test.
#[derive(Clone, Copy, Debug)]
pub enum Cores<'a> {
    /// One, on this core. The test does not care how many there are: those of `PEREGRINE_TEST_CORES`
    /// if it is set, such as `0,1`, sharing one queue of each interface.
    Any(usize),
    /// One on each of these, whatever the tests are run with, with a queue for each.
    These(&'a [usize]),
}

impl Cores<'_> {
    fn list(self) -> Vec<usize> {
        match (self, std::env::var("PEREGRINE_TEST_CORES")) {
            (Cores::Any(_), Ok(list)) => {
                let core = |text: &str| text.trim().parse();
                let cores: Result<_, _> = list.split(',').map(core).collect();
                cores.expect("PEREGRINE_TEST_CORES is like 0,1")
            }
            (Cores::Any(core), Err(_)) => vec![core],
            (Cores::These(cores), _) => cores.to_vec(),
        }
    }

    /// Queues of an interface that these workers serve.
    pub fn queues(self) -> u32 {
        match self {
            Cores::Any(_) => 1,
            Cores::These(cores) => cores.len() as u32,
        }
    }
}

/// A running gateway.
pub struct Gateway {
    /// The instance name, unique among tests that run side by side.
    pub name: String,
    config: PathBuf,
    process: Process,
    directory: tempfile::TempDir,
}

impl Gateway {
    /// Starts a gateway on `interfaces` of `namespace` with the given cores; waits until it serves.
    pub fn start(namespace: &Namespace, interfaces: &[&str], cores: Cores<'_>) -> Gateway {
        Gateway::start_with(namespace, interfaces, cores, "")
    }

    /// The same with more lines for the configuration. `"red0:generic"` is a port with a mode.
    pub fn start_with(
        namespace: &Namespace,
        interfaces: &[&str],
        cores: Cores<'_>,
        lines: &str,
    ) -> Gateway {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("t{}-{serial}", std::process::id());
        let ports: String = interfaces
            .iter()
            .map(|port| {
                let (interface, mode) = port.split_once(':').unwrap_or((port, "auto"));
                format!("[[port]]\ninterface = \"{interface}\"\nmode = \"{mode}\"\n")
            })
            .collect();
        left::sweep_once();
        let directory = left::scratch();
        let config = directory.path().join("gateway.toml");
        let cores = cores.list();
        let text = format!(
            "name = \"{name}\"\ncores = {cores:?}\ncontrol.state_dir = {:?}\n{lines}\n{ports}",
            directory.path().join("state")
        );
        std::fs::write(&config, text).expect("the configuration is written");
        let process = launch(namespace, &name, &config, directory.path());
        Gateway { name, config, process, directory }
    }

    /// The file that it is configured by.
    pub fn configuration(&self) -> &Path {
        &self.config
    }

    /// Starts the same gateway again after it was killed or stopped.
    pub fn restart(&mut self, namespace: &Namespace) {
        self.process = launch(namespace, &self.name, &self.config, self.directory.path());
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Stops it without its knowing (SIGSTOP).
    pub fn pause(&self) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a process id");
        kill_process(pid, Signal::STOP).expect("it takes signals");
    }

    /// SIGTERM; returns the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.process.stop()
    }

    /// The gateway's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What the gateway printed.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// A command that runs under `peregrine exec` against this gateway.
    pub fn exec(&self, program: &str) -> Command {
        let mut command = Command::new(PEREGRINE);
        command.env("PEREGRINE_PRELOAD", preload());
        command.args(["exec", "--instance", &self.name, "--", program]);
        command
    }

    /// Runs `ip xfrm …` lines in one batch against this gateway.
    pub fn xfrm(&self, lines: &[String]) {
        batch(self.exec("ip"), &["-batch", "-"], lines)
            .unwrap_or_else(|e| panic!("{e}\ngateway log:\n{}", self.log()));
    }

    /// Runs one `ip` command line against this gateway.
    pub fn ip(&self, line: &str) -> Output {
        self.exec("ip").args(line.split_whitespace()).output().expect("ip runs")
    }

    /// `peregrine show WHAT --json`.
    pub fn show(&self, what: &str) -> Value {
        let out = Command::new(PEREGRINE)
            .args(["show", what, "--json", "--instance", &self.name])
            .output()
            .expect("show runs");
        assert!(out.status.success(), "show {what}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).expect("show prints JSON")
    }

    /// `peregrine upgrade …`, whatever comes of it.
    pub fn upgrade(&self, more: &[&str]) -> Output {
        let mut command = Command::new(PEREGRINE);
        command.args(["upgrade", "--instance", &self.name]).args(more);
        command.output().expect("peregrine runs")
    }

    /// Packets that ended with this verdict so far.
    pub fn verdict(&self, name: &str) -> u64 {
        let drops = self.show("drops");
        verdicts(&drops)
            .into_iter()
            .find(|(n, _)| n == name)
            .unwrap_or_else(|| panic!("no verdict named {name} in {drops}"))
            .1
    }

    /// Waits until `ready` holds; panics with the gateway's log when that takes too long.
    pub fn wait(&self, what: &str, mut ready: impl FnMut(&Gateway) -> bool) {
        let end = Instant::now() + READY;
        while !ready(self) {
            assert!(Instant::now() < end, "{what} did not happen; log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Gateway {
    /// A gateway that was killed left its run directory for the next one, which does not come.
    fn drop(&mut self) {
        self.process.stop();
        for above in ["/run/peregrine", "/dev/shm/peregrine"] {
            let _ = std::fs::remove_dir_all(PathBuf::from(above).join(&self.name));
        }
    }
}

/// Median, 99th percentile and largest, of milliseconds.
pub fn spread(mut values_ms: Vec<f64>) -> String {
    values_ms.sort_by(f64::total_cmp);
    let at = |share: f64| values_ms[((values_ms.len() - 1) as f64 * share).round() as usize];
    format!("median {:6.1}   p99 {:6.1}   max {:6.1}", at(0.5), at(0.99), at(1.0))
}

/// Every (verdict, packets) of a `show drops --json` answer.
pub fn verdicts(drops: &Value) -> Vec<(String, u64)> {
    drops
        .as_array()
        .expect("a list of verdicts")
        .iter()
        .map(|v| {
            (v["name"].as_str().expect("a name").to_string(), v["count"].as_u64().expect("a count"))
        })
        .collect()
}

fn launch(namespace: &Namespace, name: &str, config: &Path, directory: &Path) -> Process {
    // It ends with the thread that starts it, which is the test's own, and so with a test that is interrupted.
    let mut command = namespace.command_bound(Path::new(PEREGRINE));
    command.arg("run").arg("--config").arg(config);
    let mut process =
        Process::start(name, command, directory.join("log")).expect("the gateway starts");
    let sockets = PathBuf::from("/run/peregrine").join(name);
    process
        .wait_until(READY, |process| {
            process.log().contains("ready") && sockets.join("xfrm.sock").exists()
        })
        .unwrap_or_else(|e| panic!("{e}"));
    process
}
