//! Bytes become types here, once. One file per protocol, and every file has the same skeleton:
//!
//! - `Header`: the fixed part, a `repr(C)` structure of big-endian fields laid over the bytes
//!   ([`Overlay`]), so one type serves to read a packet, to change it in place and to write it.
//!   Its accessors cannot fail.
//! - `Packet::parse(bytes)`: every length is checked here and nowhere else. What comes back is
//!   a header and slices that are in bounds.
//! - tests at the bottom of the file, on real bytes (`PACKET_BYTES`) and on random ones.
//!
//! [`flow`] is the one summary the data path takes of a packet. [`Malformed`] names every
//! reason to refuse one.
//!
//! This crate does no input or output, reads no clock, allocates nothing on the packet side and
//! cannot panic on input. It knows no policy: a packet that is odd but well formed is described,
//! not judged.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod malformed;
mod overlay;

pub mod checksum;
pub mod esp;
pub mod ethernet;
pub mod flow;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod ipv6_ext;
pub mod natt;
pub mod protocol;
pub mod tcp;
pub mod udp;
pub mod vlan;
pub mod xfrm;

pub use malformed::Malformed;
pub use overlay::Overlay;
