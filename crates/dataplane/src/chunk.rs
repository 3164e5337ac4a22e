//! Some packets of one worker's turn that another worker may do the heavy part of.
//!
//! Their slots refer into the view of the worker that lends them. Here, that reference outlives the
//! turn, and the compiler cannot follow it to the other worker and back; the rule that replaces it is
//! in [`Chunk::fill`].

#![allow(unsafe_code)]

use std::mem::transmute;

use crate::batch::Slot;
use crate::decrypt::decrypt;
use crate::encrypt::encrypt;
use crate::seal::PREFIX_LEN;

/// Packets of a chunk. At 200 ns each they last 6 µs: claiming and giving back costs 200 ns of that, and
/// a packet waits for no more than that behind one that was claimed before it.
pub(crate) const CHUNK_PACKETS: usize = 32;

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
        Chunk { job: Job::Seal, slots: Vec::with_capacity(CHUNK_PACKETS), helped_ns: 0 }
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
            // `accept` reads both ends, which are in the other core's cache.
            for slot in &self.slots {
                slot.frame.prefetch(usize::from(slot.esp_at) + PREFIX_LEN);
                slot.frame.prefetch(slot.frame.len() - 1);
            }
        }
        std::mem::swap(&mut self.slots, empty);
    }

    /// Moves the packets out, for a worker that gives them up.
    pub(crate) fn empty(&mut self, into: &mut Vec<Slot<'static>>) {
        into.append(&mut self.slots);
    }
}
