//! AES-GCM for ESP (RFC 4106): sealing and opening packets in place, with one of four engines.
//!
//! An [`Engine`] is a library or a kernel of our own, a [`Key`] is expanded for one engine; that is all a caller needs.
//! All engines must give the same bytes for the same input, and the tests hold each as the others'
//! oracle.
//!
//! There is no form for many packets at once. Out-of-order execution overlaps calls for independent
//! packets as long as nothing makes one wait for another (see `vaes/head.rs`), and ipsec-mb's burst
//! interface costs 16–20 ns a packet more than its direct one. What a caller can do for the next
//! packet is to fetch its key: [`Key::prefetch_for`].
//!
//! What this crate does **not** do: choose nonces or count packets, know ESP's layout, hold key
//! material beyond a `Key`, lock pages or forbid core dumps (the process decides that once, for all
//! its memory).

#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod aws_lc;
#[allow(unsafe_code)] // a hint
mod cache;
mod engine;
#[cfg(ipsec_mb)]
#[allow(unsafe_code)] // the foreign calls
mod ipsec_mb;
#[cfg(not(ipsec_mb))]
#[path = "ipsec_mb_absent.rs"]
mod ipsec_mb;
mod key;
#[allow(unsafe_code)] // a key that lives as long as its owners
mod shared;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // loads and stores, and calls that need a proof of the CPU's instructions
mod vaes;
#[cfg(not(target_arch = "x86_64"))]
#[path = "vaes_absent.rs"]
mod vaes;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // loads, stores, and calls that need a proof of the CPU's instructions
mod vaes256;
#[cfg(not(target_arch = "x86_64"))]
#[path = "kernel_absent.rs"]
mod vaes256;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // loads, stores, and calls that need a proof of the CPU's instructions
mod vaes512;
#[cfg(not(target_arch = "x86_64"))]
#[path = "kernel_absent.rs"]
mod vaes512;

pub use cache::Cache;
pub use engine::{Engine, EngineError};
pub use key::{AAD_LEN_MAX, DATA_LEN_MAX, Key, KeyError, NONCE_LEN, TAG_LEN};
pub use shared::SharedKey;
