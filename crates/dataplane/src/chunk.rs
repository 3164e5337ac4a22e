//! Some packets of one worker's turn that another worker may do the heavy part of.
//!
//! Their slots refer into the view of the worker that lends them. Here, that reference outlives the
//! turn, and the compiler cannot follow it to the other worker and back; the rule that replaces it is
//! in [`Chunk::fill`].

#![allow(unsafe_code)]

use std::mem::transmute;

use crate::batch::{BATCH_PACKETS, SLOTS, Slot};
use crate::decrypt::decrypt;
use crate::encrypt::encrypt;

/// Packets of a chunk: a batch, so that a turn that lends everything hands its vector over and copies
/// nothing. At 100 ns each they last 6 µs: claiming and giving back costs 200 ns of that, and a packet
/// waits for no more than that behind one that was claimed before it.
pub(crate) const CHUNK_PACKETS: usize = BATCH_PACKETS;

/// Which work its packets lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// To be decrypted.
    Open,
    /// To be encrypted.
    Seal,
}

/// Packets under way between two workers.
pub(crate) struct Chunk {
    pub(crate) job: Job,
    slots: Vec<Slot<'static>>,
    /// How long somebody else worked on them.
    pub(crate) helped_ns: u64,
}

impl Chunk {
    /// An empty chunk with all the memory it will need.
    pub(crate) fn new() -> Chunk {
        // As a batch has: the two are exchanged. What lies beyond a chunk's packets is never touched.
        Chunk { job: Job::Seal, slots: Vec::with_capacity(SLOTS), helped_ns: 0 }
    }

    /// Fills the chunk with up to [`CHUNK_PACKETS`] packets.
    ///
    /// # Safety
    /// What the slots refer to must live until the chunk was emptied: the worker that calls this
    /// holds on to its view ([`Reader::hold`](crate::view::Reader::hold)) while any chunk is out.
    pub(crate) unsafe fn fill<'v>(&mut self, job: Job, slots: impl Iterator<Item = Slot<'v>>) {
        (self.job, self.helped_ns) = (job, 0);
        for slot in slots.take(CHUNK_PACKETS) {
            // SAFETY: the two types differ in the lifetime of shared references alone, and those
            // live as long as they are used, as the caller promises.
            self.slots.push(unsafe { transmute::<Slot<'v>, Slot<'static>>(slot) });
        }
    }

    /// Takes all packets of a batch, which are no more than [`CHUNK_PACKETS`], and leaves it an empty vector
    /// in exchange.
    ///
    /// # Safety
    /// As [`Chunk::fill`].
    pub(crate) unsafe fn take<'v>(&mut self, job: Job, slots: &mut Vec<Slot<'v>>) {
        (self.job, self.helped_ns) = (job, 0);
        // SAFETY: as in `fill`; a vector's layout does not depend on the lifetimes in it.
        let all = unsafe { transmute::<Vec<Slot<'v>>, Vec<Slot<'static>>>(std::mem::take(slots)) };
        *slots = std::mem::replace(&mut self.slots, all);
    }

    /// Does the heavy part: any worker may, at any time.
    pub(crate) fn work(&mut self) {
        match self.job {
            Job::Open => decrypt(&mut self.slots),
            Job::Seal => encrypt(&mut self.slots),
        }
    }

    /// The packets go back to the worker that lent them, in exchange for an empty vector.
    pub(crate) fn exchange(&mut self, empty: &mut Vec<Slot<'static>>) {
        if self.job == Job::Open {
            // `hop` changes the inner header, which is in the other core's cache.
            for slot in &self.slots {
                slot.frame.prefetch(0);
            }
        }
        std::mem::swap(&mut self.slots, empty);
    }

    /// Moves the packets out, for a worker that gives them up.
    pub(crate) fn empty(&mut self, into: &mut Vec<Slot<'static>>) {
        into.append(&mut self.slots);
    }
}
