//! Tunnels whose keys strongSwan negotiates.
//!
//! [`Connection`] says what the two daemons have to agree on, as `swanctl.conf` text and as VICI
//! message, pure. [`Daemon`] is one `charon-systemd`, unmodified, under `peregrine exec` in a
//! gateway's namespace; [`Daemons::negotiate`] loads the connections, initiates every tunnel and
//! waits until both gateways hold all SAs.
//!
//! It knows nothing of IKE itself and touches no key: those go from the daemon to its gateway.

use std::path::PathBuf;

mod connection;
mod daemon;
mod error;
mod listing;
mod negotiate;
mod settings;
mod shards;
mod terms;

pub use connection::{Child, Connection, Party, Secret, Text};
pub use daemon::{Daemon, PROGRAM, Place};
pub use error::IkeError;
pub use listing::{Seen, compare, list, shown};
pub use negotiate::{Daemons, Stage};
pub use settings::Settings;
pub use shards::{SHARDS_MAX, Shards};
pub use terms::{Auth, Ends, Responder, Terms};

/// How the tunnels of a run are negotiated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keying {
    /// Where the daemon is unpacked, if it is not the machine's own.
    pub root: Option<PathBuf>,
    /// Daemons per gateway; as many as keep each quick when nothing is said.
    pub shards: Option<u32>,
    /// How the answering side finds a tunnel.
    pub responder: Responder,
    /// Show both sides' lists of SAs before and after the ramp.
    pub lists_sas: bool,
}
