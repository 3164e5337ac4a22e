//! The XFRM server: answers the kernel's XFRM netlink interface for the IKE daemon and `ip xfrm`.
//!
//! [`Server`] is the pure core: requests in, replies and events out, the time and the data plane's
//! counters as parameters. It keeps the SAD and the SPD with the kernel's rules (order of checks,
//! error numbers, texts, events) and hands every change on as a [`Change`]. [`Clients`] is the thin
//! edge: the Unix socket, one connection per program.
//!
//! What is carried (anything else is refused as a kernel refuses it that lacks the module):
//!
//! | request | answer |
//! |---|---|
//! | ESP, tunnel or transport mode, `rfc4106(gcm(aes))` with 128-bit ICV | installed |
//! | ESP with any other AEAD, or with encryption and authentication | `ENOSYS`, "… not found" |
//! | ESP in BEET mode, AH, IPComp, Mobile IPv6 | `EPROTONOSUPPORT`, "… not found" |
//! | ESP in UDP (RFC 3948) | installed |
//! | ESP in TCP, or in UDP as drafts had it | `EINVAL`, "Unsupported encapsulation type for ESP" |
//! | keepalives to be sent by the kernel | `EOPNOTSUPP` |
//! | crypto offload to a device | accepted and done in software, as by a device that cannot |
//! | security contexts | accepted and forgotten, as without SELinux |
//!
//! It does not encrypt, does not route, and does not decide which SA a packet takes.

mod acquire;
mod aevent;
mod algorithm;
mod allocation;
mod client;
mod clock;
mod connection;
mod counters;
mod delivery;
mod dump;
mod expiry;
mod failure;
mod flush;
mod index;
mod info;
mod mapping;
mod migrate;
mod notice;
mod packed;
mod policy;
mod policy_request;
mod probe;
mod record;
mod replay;
mod request;
mod restore;
mod sa;
mod sa_check;
mod sa_request;
mod sad;
mod secret;
mod server;
mod socket;
mod spd;
mod stored;
#[cfg(test)]
mod tests;
mod touched;
mod wheel;

pub use client::Client;
pub use counters::{Backend, Counters, PolicyCounters, SaCounters};
pub use delivery::{Delivery, Event, Handled};
pub use dump::Dump;
pub use failure::Failure;
pub use flush::Flush;
pub use mapping::Mapping;
pub use policy::{Defaults, PolicyId, PolicyRecord};
pub use record::{Places, Walk};
pub use replay::ReplayValue;
pub use restore::{Entries, NoEntry, Restored};
pub use sa::{Aead, Direction, SaId, SaParameters, SaRecord};
pub use secret::{Bytes, Key};
pub use server::{Change, Flow, Server, Settings};
pub use socket::{Clients, SocketError};
