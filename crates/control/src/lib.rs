//! The control plane of one gateway: what it is told (configuration, XFRM requests), what it learns
//! (routes, neighbours, links) and what it tells (`show`).
//!
//! Everything here may allocate, wait and take a lock; nothing here touches a packet. The data
//! plane sees only the immutable views that this crate publishes.
//!
//! | module | what it is |
//! |---|---|
//! | [`config`] | TOML text to a checked configuration |
//! | [`instance`] | run directory, lock, epoch of one instance |
//! | [`journal`] | SAs and policies in a file that outlives the process |
//! | [`route_feed`] | the kernel's links, addresses, routes and neighbours, live |
//! | [`api`] | the socket behind `peregrine show` |
//! | [`gateway`] | everything assembled, and the loop that keeps it |
//! | [`cpu`], [`signal`] | cores and stop signals |
//! | [`xfrm`] | the server behind the IKE daemon and `ip xfrm` |

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

pub mod api;
pub mod config;
pub mod cpu;
pub mod gateway;
pub mod instance;
pub mod journal;
mod netlink;
mod roster;
pub mod route_feed;
pub mod signal;
pub mod xfrm;
