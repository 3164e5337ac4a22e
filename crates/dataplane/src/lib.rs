//! The data plane: what happens to a packet between the port it came in by and the port it leaves
//! by.
//!
//! Read `worker.rs` first, then the stages in the order in which it names them:
//!
//! ```text
//! receive → follow → parse → classify → open → decrypt → accept → inspect → hop → choose → seal → encrypt → route → send
//! ```
//!
//! A stage is a free function over a batch of packets and the current [`view::View`]. A packet that
//! a stage decides gets a [`verdict::Verdict`], and later stages skip it. The tables that a view is
//! made of are one file each, and clever ones are tested against a stupid twin.
//!
//! The path takes no lock, allocates nothing once warm, and does no I/O but through `xsk` ports.
//! Configuration, netlink and persistence are `control`'s.

#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod accept;
mod array;
mod batch;
mod choose;
mod chunk;
mod claim;
mod classify;
mod commit;
mod content;
mod decrypt;
mod doorbell;
mod ecn;
mod encrypt;
mod envelope;
mod flows;
mod follow;
mod gauge;
mod hold;
mod hop;
mod inspect;
mod keys;
mod open;
mod pages;
mod parse;
mod plain;
mod punt;
mod receive;
mod route;
mod runs;
mod seal;
mod seat;
mod send;
mod sync;
mod trie;

pub mod alarm;
pub mod board;
pub mod bundles;
pub mod clock;
pub mod counters;
pub mod cpu;
pub mod crew;
pub mod cycles;
pub mod encapsulation;
pub mod event;
pub mod fib;
pub mod laps;
pub mod ledger;
pub mod local;
pub mod neighbour;
pub mod nonce;
pub mod policy;
pub mod prefix;
pub mod publication;
pub mod replay;
pub mod ruler;
pub mod sa;
pub mod sad;
pub mod selector;
pub mod spd;
pub mod table;
pub mod transport;
pub mod tunnel;
pub mod verdict;
pub mod view;
pub mod vrfs;
pub mod worker;
