//! `peregrine lab swanctl`: the published address plans as files for strongSwan and for `ip`.
//!
//! [`Plan`] is arithmetic: which tunnel has which endpoints, networks and identities, and which
//! daemon of how many it belongs to. [`files`] turns it into text, and [`write()`] puts that on disk.
//! It starts nothing and asks nobody; `lab run --keys ike` negotiates without files, from the same
//! [`crate::ike`] terms.

mod certificates;
mod files;
mod network;
mod plan;

pub use certificates::CertificateError;
pub use files::{File, WriteError, files, write};
pub use plan::{Kind, Layout, Plan, PlanError, Request};

#[cfg(test)]
mod tests;
