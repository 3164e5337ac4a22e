//! Unmodified IKE daemons under test: as Debian ships them, in roots and namespaces of their own.
//!
//! ```text
//!   left ── red0 [gateway] black0 ── wan ── black0 [gateway] red0 ── right
//!                 IKE daemon                    IKE daemon
//! ```
//!
//! [`root`] finds (or has made) the daemon's root, [`cell`] runs programs in it under
//! `peregrine exec`, [`charon`] speaks to strongSwan, [`listing`] reads what it lists, [`pair`]
//! builds the picture above, [`swanctl`] writes configurations for it, [`numbered`] sends counted
//! packets through it, [`stream`] a TCP stream, [`wire`] and [`recording`] look at them on their way, and [`table`] holds docs/interop.md to the tests.
#![allow(dead_code, reason = "each test binary uses its own part of this module")]

pub mod cell;
pub mod charon;
pub mod iproute;
pub mod listing;
pub mod numbered;
pub mod pair;
pub mod pluto;
pub mod recording;
pub mod root;
pub mod router;
pub mod stream;
pub mod swanctl;
pub mod table;
pub mod wire;
