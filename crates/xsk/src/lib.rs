//! Packets in and out of the kernel: packet memory, AF_XDP sockets, XDP programs, and the ports
//! that the data plane's workers receive from and send to.
//!
//! The only crate with raw system calls. All ports share one [`Umem`], so a [`Frame`] received on
//! one interface is sent on another without a copy. Does not look into packets (`wire`), decides
//! nothing about them (`dataplane`, and `bpf/steer.bpf.c` in the kernel) and has no threads.
//!
//! Read [`port`] first; `umem`, `frame` and `ring` are what it stands on, `program` is what brings
//! packets to it.

#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

pub mod depot;
mod error;
#[allow(unsafe_code)]
pub mod frame;
#[allow(unsafe_code)]
pub mod heap;
pub mod memory;
pub mod pcap;
pub mod port;
pub mod program;
#[allow(unsafe_code)]
pub mod region;
#[allow(unsafe_code)]
pub mod ring;
pub mod sink;
mod socket;
pub mod steer;
#[allow(unsafe_code)]
mod sys;
pub mod tun;
#[allow(unsafe_code)]
pub mod umem;
pub mod xdp;

pub use error::XskError;
pub use frame::{Frame, HEADROOM};
pub use memory::{MemoryEnd, MemoryPort};
pub use pcap::PcapPort;
pub use port::{CounterKind, Port, PortCounter, PortCounters};
pub use program::{AttachMode, AttachWish, VerdictCount, remove_left, remove_stale};
pub use region::Region;
pub use sink::Sink;
pub use steer::Steer;
pub use tun::TunPort;
pub use umem::{Pool, Umem};
pub use xdp::{CopyMode, Lane, XdpOptions, XdpPort, receive_queues, transmit_queues};

// Ports are opened by one thread and used by another.
const _: () = {
    const fn may_move_to_another_thread<T: Send>() {}
    may_move_to_another_thread::<Port>();
    may_move_to_another_thread::<Pool>();
    may_move_to_another_thread::<MemoryEnd>();
    may_move_to_another_thread::<Steer>();
    may_move_to_another_thread::<Sink>();
};
