//! `env.json`: the machine and the software that the figures belong to.
//!
//! Plain data; the run collects it. Keys and other secrets have no place here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `env.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// [`crate::result::SCHEMA`] of the program that wrote the file.
    pub schema: u32,
    /// `uname -r` and `-v`.
    pub kernel: String,
    /// `/proc/cmdline`.
    pub cmdline: String,
    /// The processor.
    pub cpu: Cpu,
    /// Versions by component: `peregrine`, `iproute2`, `crypto engine`.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// Link name → offload → state, for every link of the lab.
    #[serde(default)]
    pub offloads: BTreeMap<String, BTreeMap<String, String>>,
    /// The kernel settings that bear on forwarding.
    #[serde(default)]
    pub sysctl: BTreeMap<String, String>,
    /// [`crate::recipe::Recipe::hash`] of the recipe as it was run.
    pub recipe_hash: String,
    /// Seed of the lab's test keys and of anything pseudo-random.
    pub seed: u64,
    /// Start of the run, RFC 3339 in UTC.
    pub started_at: String,
    /// End of the run, RFC 3339 in UTC.
    pub finished_at: String,
    /// Anything else worth keeping, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other: BTreeMap<String, String>,
}

/// The processor of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Model name as the kernel gives it.
    pub model: String,
    /// Cores that this process may use.
    pub cores: u32,
    /// Frequency governor, or `none` where the machine has no cpufreq.
    pub governor: String,
    /// Vulnerability → mitigation in force.
    #[serde(default)]
    pub mitigations: BTreeMap<String, String>,
}
