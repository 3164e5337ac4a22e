//! Where an instance keeps what is its own.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where the instance keeps its sockets and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// The directory above the instance's own run directory (sockets, pid).
    #[serde(default = "default_run_dir")]
    pub run_dir: PathBuf,
    /// The directory above the instance's own state directory (what must outlive a reboot).
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// Whether SAs and policies outlive the process, in a journal that holds keys.
    #[serde(default = "default_journal")]
    pub journal: bool,
    /// The directory above the instance's journal; by default the run directory if it is in memory,
    /// else `/dev/shm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal_dir: Option<PathBuf>,
}

impl Default for Control {
    fn default() -> Self {
        Self {
            run_dir: default_run_dir(),
            state_dir: default_state_dir(),
            journal: default_journal(),
            journal_dir: None,
        }
    }
}

fn default_run_dir() -> PathBuf {
    PathBuf::from(crate::instance::RUN_DIR)
}

fn default_state_dir() -> PathBuf {
    PathBuf::from(crate::instance::STATE_DIR)
}

fn default_journal() -> bool {
    true
}
