//! The device under test: two gateways, each a process of its own in its own namespace.
//!
//! They are the real binary with a real configuration, driven the way an operator drives them:
//! tunnels through `peregrine exec -- ip -batch`, questions through `peregrine show --json`. The
//! lab knows nothing of their inside, and judges them by what they tell everybody.

mod facts;
mod percpu;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::recipe::Recipe;
use crate::topology::{Process, TopologyError, batch, command_apart};
use crate::usage::Usage;
use crate::wiring::{SIDES, Wiring};

pub use facts::{GatewayFacts, PortFacts, Verdict};

/// Where gateways keep their sockets.
const RUN_DIRECTORY: &str = "/run/peregrine";
/// How long a gateway may take to be ready. It takes a fraction of a second; a machine that
/// compiles something at the same time may need longer.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// How long counters may take to agree when nothing is sent: a turn of each worker, and seconds on a
/// machine that does other things.
const SETTLE_PATIENCE: Duration = Duration::from_secs(10);

/// What went wrong with a gateway.
#[derive(Debug, thiserror::Error)]
pub enum DutError {
    /// A process or command failed.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Tunnels could not be installed.
    #[error("installing {tunnels} tunnels on {gateway}: {source}\nits log ends with:\n{log}")]
    Install {
        /// The gateway.
        gateway: String,
        /// How many tunnels.
        tunnels: u32,
        /// What the command said.
        source: TopologyError,
        /// The end of the gateway's log.
        log: String,
    },
    /// An SA of a single CPU could not be installed.
    #[error("installing the SAs of single CPUs: {0}")]
    PerCpu(#[from] crate::rates::ProgramError),
    /// A question was not answered.
    #[error("`show {question}` of {gateway} failed: {reason}")]
    Show {
        /// The gateway.
        gateway: String,
        /// What was asked.
        question: &'static str,
        /// Why.
        reason: String,
    },
    /// A file could not be written.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

/// Both gateways of a curve. They are stopped when it is dropped.
#[derive(Debug)]
pub struct Dut {
    gateways: [Gateway; 2],
}

/// One running gateway.
#[derive(Debug)]
struct Gateway {
    /// The recipe's name for it.
    label: String,
    /// The name of the instance, unique on the machine.
    instance: String,
    binary: PathBuf,
    process: Process,
}

impl Dut {
    /// Starts both gateways of `binary` in the namespaces of `wiring`, with `scratch` for their
    /// files, and waits until they serve.
    ///
    /// # Errors
    ///
    /// [`DutError`]: a file, process or command failed, or a gateway does not serve, with the end of its
    /// log.
    pub fn start(
        wiring: &Wiring,
        recipe: &Recipe,
        binary: &Path,
        scratch: &Path,
    ) -> Result<Dut, DutError> {
        let cores = cores();
        let several = workers(recipe, &cores);
        let launch = |index: usize| {
            let site = recipe.site(SIDES[index]);
            let ports: Vec<&str> =
                std::iter::once(site.clear_link.as_str()).chain(site.black_links()).collect();
            // Gateways of one worker take turns at the cores.
            let one = [cores[index % cores.len()]];
            let cores = if several.len() == 1 { &one[..] } else { several };
            let shape = Shape { ports: &ports, cores, ring: recipe.ring };
            Gateway::launch(wiring, index, &site.gateway, shape, binary, scratch)
        };
        // Both are launched before either is waited for.
        let [near, far] = [launch(0), launch(1)];
        let mut gateways = [near?, far?];
        for gateway in &mut gateways {
            gateway.wait_until_ready()?;
        }
        Ok(Dut { gateways })
    }

    /// Installs the SAs and policies of `tunnels` tunnels on both gateways.
    ///
    /// # Errors
    ///
    /// [`DutError::Install`] with what the command said, or [`DutError::PerCpu`].
    pub fn install(&self, recipe: &Recipe, tunnels: u32) -> Result<(), DutError> {
        for (side, gateway) in SIDES.into_iter().zip(&self.gateways) {
            let text = recipe.xfrm_batch(side, tunnels);
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            let mut command = gateway.command();
            command.args(["exec", "--instance", &gateway.instance, "--", "ip"]);
            batch(command, &["-batch", "-"], &lines).map_err(|source| DutError::Install {
                gateway: gateway.label.clone(),
                tunnels,
                source,
                log: tail(&gateway.process.log()),
            })?;
            if recipe.esp.per_cpu {
                let path = Path::new(RUN_DIRECTORY).join(&gateway.instance).join("xfrm.sock");
                percpu::install(&path, recipe, side, tunnels, workers(recipe, &cores()))?;
            }
        }
        Ok(())
    }

    /// What both gateways count.
    ///
    /// # Errors
    ///
    /// [`DutError::Show`] when a gateway does not answer, or not in the form that is known.
    pub fn facts(&self) -> Result<[GatewayFacts; 2], DutError> {
        let [near, far] = &self.gateways;
        Ok([near.facts()?, far.facts()?])
    }

    /// The same once no packet is under way in either; after `SETTLE_PATIENCE` as it is, for the
    /// accounts to tell.
    ///
    /// # Errors
    ///
    /// As of [`Dut::facts`]; packets that stay under way are none.
    pub fn settled_facts(&self) -> Result<[GatewayFacts; 2], DutError> {
        let end = Instant::now() + SETTLE_PATIENCE;
        loop {
            let facts = self.facts()?;
            if facts.iter().all(GatewayFacts::is_settled) || Instant::now() > end {
                return Ok(facts);
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// The answer of the near gateway to `show status`: versions, engine, cores.
    ///
    /// # Errors
    ///
    /// As of [`Dut::facts`].
    pub fn status(&self) -> Result<Value, DutError> {
        self.status_of(0)
    }

    /// The same of either gateway: 0 near, 1 far.
    ///
    /// # Errors
    ///
    /// As of [`Dut::facts`].
    pub fn status_of(&self, index: usize) -> Result<Value, DutError> {
        self.gateways[index].show("status")
    }

    /// The answer of a gateway to `show sa`.
    ///
    /// # Errors
    ///
    /// As of [`Dut::facts`].
    pub fn sas(&self, index: usize) -> Result<Value, DutError> {
        self.gateways[index].show("sa")
    }

    /// What a gateway takes.
    pub fn usage(&self, index: usize) -> Usage {
        Usage::of(self.gateways[index].process.pid())
    }

    /// The program that the gateways are.
    pub fn binary(&self) -> &Path {
        &self.gateways[0].binary
    }

    /// Process ids, for whoever wants to watch or to end them.
    pub fn pids(&self) -> [u32; 2] {
        [0, 1].map(|index: usize| self.gateways[index].process.pid())
    }

    /// The name of a gateway's instance.
    pub fn instance(&self, index: usize) -> &str {
        &self.gateways[index].instance
    }

    /// Where a gateway keeps its sockets.
    pub fn directory(&self, index: usize) -> PathBuf {
        Path::new(RUN_DIRECTORY).join(self.instance(index))
    }

    /// The ends of both logs, for error messages.
    pub fn logs(&self) -> String {
        let one =
            |gateway: &Gateway| format!("{}:\n{}", gateway.label, tail(&gateway.process.log()));
        self.gateways.iter().map(one).collect::<Vec<_>>().join("\n")
    }

    /// Stops both and returns their exit codes (`None` for a signal).
    pub fn stop(&mut self) -> [Option<i32>; 2] {
        let [near, far] = &mut self.gateways;
        [near.process.stop(), far.process.stop()]
    }

    /// Stops one of them; how long that took, or `None` if it did not end well.
    pub fn stop_one(&mut self, index: usize) -> Option<Duration> {
        let begin = Instant::now();
        let code = self.gateways.get_mut(index)?.process.stop();
        (code == Some(0)).then(|| begin.elapsed())
    }
}

impl Gateway {
    fn launch(
        wiring: &Wiring,
        index: usize,
        label: &str,
        shape: Shape<'_>,
        binary: &Path,
        scratch: &Path,
    ) -> Result<Gateway, DutError> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let instance = format!("lab-{}-{serial}-{label}", std::process::id());
        let config = scratch.join(format!("{instance}.toml"));
        let text = configuration(&instance, shape, &scratch.join("state"));
        fs::write(&config, text).map_err(|source| DutError::Io {
            what: format!("writing {}", config.display()),
            source,
        })?;
        let mut command = wiring.gateway(index).command_bound(binary);
        command.arg("run").arg("--config").arg(&config);
        let log = scratch.join(format!("{instance}.log"));
        let process = Process::start(label, command, log)?;
        Ok(Gateway { label: label.to_owned(), instance, binary: binary.to_owned(), process })
    }

    fn wait_until_ready(&mut self) -> Result<(), TopologyError> {
        let directory = Path::new(RUN_DIRECTORY).join(&self.instance);
        self.process.wait_until(READY_PATIENCE, |process| {
            let sockets = ["xfrm.sock", "control.sock"];
            process.log().contains("ready")
                && sockets.iter().all(|socket| directory.join(socket).exists())
        })
    }

    fn command(&self) -> Command {
        command_apart(&self.binary)
    }

    fn facts(&self) -> Result<GatewayFacts, DutError> {
        let (ports, drops) = (self.show("ports")?, self.show("drops")?);
        GatewayFacts::read(&self.label, &ports, &drops)
            .ok_or_else(|| self.show_error("ports", "it lacks fields that the lab needs"))
    }

    fn show(&self, question: &'static str) -> Result<Value, DutError> {
        let output = self
            .command()
            .args(["show", question, "--json", "--instance", &self.instance])
            .output()
            .map_err(|error| self.show_error(question, error))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            return Err(self.show_error(question, reason.trim()));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| self.show_error(question, error))
    }

    fn show_error(&self, question: &'static str, reason: impl ToString) -> DutError {
        DutError::Show { gateway: self.label.clone(), question, reason: reason.to_string() }
    }
}

/// The cores of gateways with several workers: as many as the recipe asks for and the machine has.
fn workers<'a>(recipe: &Recipe, cores: &'a [usize]) -> &'a [usize] {
    &cores[..cores.len().min(recipe.cores as usize)]
}

/// What a gateway's configuration says of the machine.
#[derive(Clone, Copy)]
struct Shape<'a> {
    ports: &'a [&'a str],
    cores: &'a [usize],
    ring: Option<u32>,
}

/// A gateway's configuration: a worker for each core, and nothing left behind outside `state`.
fn configuration(name: &str, shape: Shape<'_>, state: &Path) -> String {
    let Shape { ports, cores, ring } = shape;
    let ports: String =
        ports.iter().map(|port| format!("\n[[port]]\ninterface = \"{port}\"\n")).collect();
    let ring = ring.map_or_else(String::new, |ring| format!("ring = {ring}\n"));
    let state = state.display();
    format!(
        "name = \"{name}\"\ncores = {cores:?}\n{ring}{ports}\n[control]\nstate_dir = \"{state}\"\n"
    )
}

/// The cores that this process may use, lowest first; the gateways take turns at them.
pub fn cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    let cores: Vec<usize> = set
        .map(|set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
        .unwrap_or_default();
    if cores.is_empty() { vec![0] } else { cores }
}

/// The last lines of a log.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_names_what_the_gateway_needs() {
        let shape = Shape { ports: &["p1", "p0"], cores: &[3], ring: Some(4096) };
        let text = configuration("lab-1-0-gw0", shape, Path::new("/tmp/x/state"));
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["name"].as_str(), Some("lab-1-0-gw0"));
        assert_eq!(table["cores"].as_array().unwrap()[0].as_integer(), Some(3));
        assert_eq!(table["ring"].as_integer(), Some(4096));
        let ports: Vec<_> = table["port"].as_array().unwrap().iter().collect();
        assert_eq!(ports[0]["interface"].as_str(), Some("p1"));
        assert_eq!(ports[1]["interface"].as_str(), Some("p0"));
        assert_eq!(table["control"]["state_dir"].as_str(), Some("/tmp/x/state"));
    }

    #[test]
    fn the_tail_of_a_log_is_its_end() {
        let log: String = (0..30).map(|n| format!("line {n}\n")).collect();
        assert_eq!(tail(&log).lines().count(), 20);
        assert!(tail(&log).ends_with("line 29"));
        assert_eq!(tail("short"), "short");
    }
}
