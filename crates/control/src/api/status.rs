//! The instance itself: how it is, what an earlier run left, and what is to take over.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::host::HostDevice;
use crate::route_feed::FeedCounters;

/// What is to take over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// The binary; by default what is now at the path that the gateway was started from.
    #[serde(default)]
    pub binary: Option<PathBuf>,
}

/// The instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// The program's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// The epoch in its nonces.
    pub epoch: u16,
    /// Who does the cryptography, with version.
    pub engine: String,
    /// The cores with workers.
    pub cores: Vec<u32>,
    /// Ports served.
    pub ports: u32,
    /// SAs installed.
    pub sas: u64,
    /// Policies installed.
    pub policies: u64,
    /// What happens to packets that no policy is for.
    #[serde(default)]
    pub default_actions: DefaultActions,
    /// Routes followed.
    pub routes: u64,
    /// Neighbours known.
    pub neighbours: u64,
    /// How following the kernel's links, addresses, routes and neighbours goes.
    #[serde(default)]
    pub route_feed: FeedCounters,
    /// Packets received by all workers.
    pub received_packets: u64,
    /// Packets whose end has been counted; equals `received_packets` but for those under way.
    pub accounted_packets: u64,
    /// What stands in for the gateway when it dies, in words.
    pub guard: String,
    /// The way of the host's own traffic; `None` when that is the kernel's alone.
    #[serde(default)]
    pub host: Option<Box<HostDevice>>,
    /// Where SAs and policies outlive the process, in words; or why they do not.
    #[serde(default)]
    pub journal: String,
    /// What an earlier run left, and how long it took to bring back.
    #[serde(default)]
    pub restored: Restored,
    /// Why the last upgrade did not happen after all.
    #[serde(default)]
    pub upgrade_refused: Option<String>,
}

/// What happens to packets that no policy is for (`ip xfrm policy setdefault`): "accept" or "block".
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultActions {
    /// To those for this host.
    pub input: String,
    /// To those in transit.
    pub forward: String,
    /// To those that leave.
    pub output: String,
}

/// What an earlier run left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// SAs that go on.
    pub sas: u64,
    /// Policies that are back.
    pub policies: u64,
    /// SAs and policies that could not be brought back.
    pub lost: u64,
    /// Microseconds for SAs, policies and the tables.
    pub tables_us: u64,
    /// Microseconds for the whole start, until packets came.
    pub ready_us: u64,
    /// Microseconds without service, where an upgrade was the reason.
    pub outage_us: Option<u64>,
    /// What was wrong with the journal.
    pub problem: Option<String>,
    /// Where the part of it is that could not be used.
    pub set_aside: Option<String>,
    /// Why there is no journal.
    pub off: Option<String>,
}
