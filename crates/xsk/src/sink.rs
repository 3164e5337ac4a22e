//! Loads `bpf/sink.bpf.c`, the lab's receiving end, for one interface.
//!
//! Frames with the run's signature arrive at the sockets with the time of their arrival in front
//! of them ([`Frame::metadata_u64`](crate::Frame::metadata_u64): nanoseconds of CLOCK_MONOTONIC).
//! Does not detach when dropped; see `program`.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::error::XskError;
use crate::program::{self, AttachMode, AttachWish, Interface, VerdictCount};

/// Generated from the C program.
#[allow(unsafe_code, missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/sink.skel.rs"));
}

/// Names and meanings of the program's counters, in the order of `enum verdict` in sink.bpf.c.
const VERDICTS: [(&str, &str); 5] = [
    ("to_socket", "To the socket: a frame with the run's signature."),
    ("pass", "To the kernel: any other frame."),
    ("drop_no_socket", "Dropped: ours, and no socket on this queue."),
    ("drop_no_metadata", "Dropped: ours, and the driver has no room for the time."),
    ("drop_oversize", "Dropped: ours, and longer than one receive buffer."),
];

/// The sink program of one interface.
pub struct Sink {
    skeleton: skeleton::SinkSkel<'static>,
    interface: Interface,
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("interface", &self.interface).finish_non_exhaustive()
    }
}

impl Sink {
    /// Loads the program for `interface`, of the calling thread's network namespace. UDP payloads
    /// that begin with `signature` will be taken.
    ///
    /// # Errors
    ///
    /// When there is no such interface, or the kernel does not load the program.
    pub fn load(interface: &str, signature: [u8; 8]) -> Result<Sink, XskError> {
        let interface = Interface::find(interface)?;
        let load_error = program::capture_loader_messages("peregrine_sink");
        // As in `Steer::load`.
        let place = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = skeleton::SinkSkelBuilder::default().open(place).map_err(&load_error)?;
        if let Some(constants) = &mut open.maps.rodata_data {
            constants.signature = u64::from_ne_bytes(signature);
        }
        let skeleton = open.load().map_err(&load_error)?;
        Ok(Sink { skeleton, interface })
    }

    /// Gives the frames of a queue to a socket.
    ///
    /// # Errors
    ///
    /// When the kernel refuses, or the queue is not below 256.
    pub fn register(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), XskError> {
        program::register(&self.skeleton.maps.xsks, self.interface.name(), queue, socket)
    }

    /// Puts the program on the interface, in place of an older one of ours.
    ///
    /// # Errors
    ///
    /// As [`Steer::attach`](crate::Steer::attach).
    pub fn attach(&mut self) -> Result<AttachMode, XskError> {
        self.interface.attach(self.skeleton.progs.peregrine_sink.as_fd(), AttachWish::Any)
    }

    /// Takes the program off, if it still is on the interface. Returns whether it was.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn detach(&mut self) -> Result<bool, XskError> {
        self.interface.detach(self.skeleton.progs.peregrine_sink.as_fd())
    }

    /// What became of the frames since loading; the counts add up to the frames seen.
    pub fn counters(&self) -> [VerdictCount; VERDICTS.len()] {
        program::read_counters(&self.skeleton.maps.counters, VERDICTS)
    }
}
