//! Tunnels whose keys strongSwan negotiates.
//!
//! [`Connection`] says what the two daemons have to agree on, as `swanctl.conf` text and as VICI
//! message, pure. [`Daemon`] is one `charon-systemd`, unmodified, under `peregrine exec` in a
//! gateway's namespace; [`negotiate`] loads the connections, initiates every tunnel and waits until
//! both gateways hold all SAs.
//!
//! It knows nothing of IKE itself and touches no key: those go from the daemon to its gateway.

mod connection;
mod settings;
mod terms;

pub use connection::{Child, Connection, Party, Secret, Text};
pub use settings::Settings;
pub use terms::{Ends, Responder, Terms};
