//! Why tunnels were not negotiated.

use std::io;

use thiserror::Error;

use crate::dut::DutError;
use crate::recipe::RecipeError;
use crate::topology::TopologyError;
use crate::vici::ViciError;

/// What went wrong; says which daemon, and what its log ends with.
#[derive(Debug, Error)]
pub enum IkeError {
    /// The recipe cannot be negotiated.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// A process did not start.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A gateway did not answer.
    #[error(transparent)]
    Dut(#[from] Box<DutError>),
    /// A daemon's control socket.
    #[error(transparent)]
    Vici(#[from] ViciError),
    /// A daemon refused, or did not manage.
    #[error("{daemon}: {reason}\nits log ends with:\n{log}")]
    Daemon {
        /// Which.
        daemon: String,
        /// Its words.
        reason: String,
        /// The last lines of its log.
        log: String,
    },
    /// The daemons say that all is well and a gateway lacks SAs.
    #[error("{gateway} holds {found} SAs after all handshakes, expected {expected}")]
    Missing {
        /// The gateway.
        gateway: String,
        /// SAs it has.
        found: u64,
        /// SAs of all tunnels.
        expected: u64,
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
