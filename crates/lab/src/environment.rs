//! Gathers what the figures depend on: `env.json`.
//!
//! It reads files and asks `ip`, `ethtool` and the gateway; it changes nothing. What cannot be
//! found out is left out or said to be `unknown`: a missing file is no reason to lose a run.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::dut;
use crate::recipe::Recipe;
use crate::result::{Cpu, Environment, SCHEMA};
use crate::wiring::Wiring;

/// The kernel settings that bear on receiving and forwarding.
const SYSCTL: [&str; 6] = [
    "net.core.netdev_budget",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.bpf_jit_enable",
    "net.ipv4.neigh.default.gc_thresh1",
    "net.ipv4.neigh.default.gc_thresh3",
];

/// The machine, before anything is measured.
pub fn probe(recipe: &Recipe, started_at: &str) -> Environment {
    Environment {
        schema: SCHEMA,
        kernel: [read("/proc/sys/kernel/osrelease"), read("/proc/sys/kernel/version")].join(" "),
        cmdline: read("/proc/cmdline"),
        cpu: cpu(),
        versions: versions(),
        offloads: BTreeMap::new(),
        sysctl: sysctl(),
        recipe_hash: recipe.hash(),
        seed: recipe.seed,
        started_at: started_at.to_owned(),
        finished_at: String::new(),
        other: BTreeMap::from([
            ("memory".to_owned(), field(&read("/proc/meminfo"), "MemTotal")),
            ("load average".to_owned(), read("/proc/loadavg")),
        ]),
    }
}

/// Adds the offloads of every link of the lab.
pub fn add_links(environment: &mut Environment, wiring: &Wiring, recipe: &Recipe) {
    for (name, namespace, interface) in wiring.links(recipe) {
        if let Ok(text) = namespace.run("ethtool", &["-k", &interface]) {
            environment.offloads.insert(name, offloads(&text));
        }
    }
}

/// Adds what a gateway says about itself.
pub fn add_gateway(environment: &mut Environment, status: &Value) {
    for (name, key) in [("crypto engine", "engine"), ("gateway", "version")] {
        if let Some(version) = status[key].as_str() {
            environment.versions.insert(name.to_owned(), version.to_owned());
        }
    }
}

/// The CPU's name.
pub fn cpu_model() -> String {
    field(&read("/proc/cpuinfo"), "model name")
}

fn cpu() -> Cpu {
    let governor = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    Cpu {
        model: cpu_model(),
        cores: dut::cores().len() as u32,
        governor: governor.map_or_else(|_| "none".to_owned(), |text| text.trim().to_owned()),
        mitigations: mitigations(),
    }
}

fn mitigations() -> BTreeMap<String, String> {
    let entries = fs::read_dir("/sys/devices/system/cpu/vulnerabilities");
    entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let state = fs::read_to_string(entry.path()).ok()?;
            Some((entry.file_name().into_string().ok()?, state.trim().to_owned()))
        })
        .collect()
}

fn versions() -> BTreeMap<String, String> {
    let first_line = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(text.lines().next()?.trim().to_owned())
    };
    [("iproute2", "ip", "-V"), ("ethtool", "ethtool", "--version")]
        .into_iter()
        .filter_map(|(name, program, argument)| {
            Some((name.to_owned(), first_line(program, argument)?))
        })
        .chain([("peregrine".to_owned(), env!("CARGO_PKG_VERSION").to_owned())])
        .collect()
}

fn sysctl() -> BTreeMap<String, String> {
    let path = |key: &str| format!("/proc/sys/{}", key.replace('.', "/"));
    SYSCTL
        .into_iter()
        .filter_map(|key| {
            let value = fs::read_to_string(path(key)).ok()?;
            Some((key.to_owned(), value.trim().to_owned()))
        })
        .collect()
}

/// `ethtool -k`: one `name: state` per line after the first.
fn offloads(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, state)| (name.trim().to_owned(), state.trim().to_owned()))
        .collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// The value of the first `name : value` line.
fn field(text: &str, name: &str) -> String {
    let value = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    });
    value.unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let recipe = Recipe::built_in("bf3-test0").unwrap();
        let environment = probe(&recipe, "2026-01-01T00:00:00Z");
        assert!(environment.cpu.cores >= 1);
        assert_ne!(environment.kernel, "unknown unknown");
        assert!(environment.versions["iproute2"].contains("iproute2"));
        assert_eq!(environment.recipe_hash, recipe.hash());
    }

    #[test]
    fn offloads_are_read_line_by_line() {
        let text = "Features for p0:\nrx-checksumming: on\nscatter-gather: on [fixed]\n";
        let offloads = offloads(text);
        assert_eq!(offloads["scatter-gather"], "on [fixed]");
        assert_eq!(offloads.len(), 2);
    }

    #[test]
    fn a_field_that_is_not_there_is_unknown() {
        assert_eq!(field("model name\t: X 1\n", "model name"), "X 1");
        assert_eq!(field("a: b", "model name"), "unknown");
    }
}
