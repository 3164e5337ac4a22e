//! What wakes a worker that sleeps when another needs help. Rung when help begins, not per packet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that becomes readable when it is rung.
#[derive(Debug)]
pub(crate) struct Doorbell(OwnedFd);

impl Doorbell {
    pub(crate) fn new() -> io::Result<Doorbell> {
        Ok(Doorbell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes who sleeps on it, now or the next time.
    pub(crate) fn ring(&self) {
        // Refused only when it was rung 2^64 times and never heard.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Has heard it: readable again only when it is rung again.
    pub(crate) fn hear(&self) {
        // Refused when it was not rung.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
