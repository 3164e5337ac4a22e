//! Some packets of one worker's turn that another worker may do the heavy part of.
//!
//! Their slots refer into the view of the worker that lends them. Here, that reference outlives the
//! turn, and the compiler cannot follow it to the other worker and back; the rule that replaces it is
//! in [`Chunk::fill`].

#![allow(unsafe_code)]

use std::mem::transmute;

use crate::batch::{BATCH_PACKETS, SLOTS, Slot, is_same, relabel};
use crate::cpu::{self, Cache, LINE};
use crate::decrypt::decrypt;
use crate::encrypt::encrypt;
use crate::follow::lent;
use crate::sa::Sa;

/// Packets of a chunk: a batch, so that a turn that lends everything hands its vector over and copies
/// nothing. At 100 ns each they last 6 µs: claiming and giving back costs 200 ns of that, and a packet
/// waits for no more than that behind one that was claimed before it.
pub(crate) const CHUNK_PACKETS: usize = BATCH_PACKETS;

/// Which work its packets lack.
// A box would have to be allocated for each chunk.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Job<'v> {
    /// To be decrypted.
    Open,
    /// To be encrypted.
    Seal,
    /// To be sealed as those before, and nothing else.
    SealAs(lent::Sealing),
    /// To be opened as those before, and nothing else but to have their numbers accepted.
    OpenAs(lent::Opening<'v>),
}

/// The memory of batches and chunks that have no packets, of which what was used last is used next, as it is in the caches.
pub(crate) struct Spare(Vec<Vec<Slot<'static>>>);

impl Spare {
    /// Memory for so many.
    pub(crate) fn new(count: usize) -> Spare {
        Spare((0..count).map(|_| Vec::with_capacity(SLOTS)).collect())
    }

    fn take<'v>(&mut self) -> Vec<Slot<'v>> {
        self.0.pop().map_or_else(|| Vec::with_capacity(SLOTS), relabel)
    }

    /// Takes memory back, the packets of which have gone.
    pub(crate) fn give(&mut self, slots: Vec<Slot<'_>>) {
        self.0.push(relabel(slots));
    }
}

/// Packets under way between two workers.
pub(crate) struct Chunk {
    pub(crate) job: Job<'static>,
    slots: Vec<Slot<'static>>,
    /// How long somebody else worked on them.
    pub(crate) helped_ns: u64,
}

impl Chunk {
    /// An empty chunk, which has no memory either.
    pub(crate) fn new() -> Chunk {
        Chunk { job: Job::Seal, slots: Vec::new(), helped_ns: 0 }
    }

    /// Fills the chunk with up to [`CHUNK_PACKETS`] packets.
    ///
    /// # Safety
    /// What the slots and the job refer to must live until the chunk was emptied: the worker that calls this
    /// holds on to its view ([`Reader::hold`](crate::view::Reader::hold)) while any chunk is out.
    pub(crate) unsafe fn fill<'v>(
        &mut self,
        job: Job<'v>,
        slots: impl Iterator<Item = Slot<'v>>,
        spare: &mut Spare,
    ) {
        // SAFETY: as below.
        self.job = unsafe { transmute::<Job<'v>, Job<'static>>(job) };
        (self.slots, self.helped_ns) = (spare.take(), 0);
        for slot in slots.take(CHUNK_PACKETS) {
            // SAFETY: the two types differ in the lifetime of shared references alone, and those
            // live as long as they are used, as the caller promises.
            self.slots.push(unsafe { transmute::<Slot<'v>, Slot<'static>>(slot) });
        }
    }

    /// Takes all packets of a batch, which are no more than [`CHUNK_PACKETS`], and leaves it an empty vector.
    ///
    /// # Safety
    /// As [`Chunk::fill`].
    pub(crate) unsafe fn take<'v>(
        &mut self,
        job: Job<'v>,
        slots: &mut Vec<Slot<'v>>,
        spare: &mut Spare,
    ) {
        // SAFETY: as in `fill`.
        self.job = unsafe { transmute::<Job<'v>, Job<'static>>(job) };
        self.helped_ns = 0;
        let all = std::mem::replace(slots, spare.take());
        // SAFETY: as in `fill`; a vector's layout does not depend on the lifetimes in it.
        self.slots = unsafe { transmute::<Vec<Slot<'v>>, Vec<Slot<'static>>>(all) };
    }

    /// Does the heavy part: any worker may, at any time.
    pub(crate) fn work(&mut self) {
        self.fetch();
        match &mut self.job {
            Job::Open => decrypt(&mut self.slots),
            Job::Seal => encrypt(&mut self.slots),
            Job::SealAs(sealing) => sealing.work(&mut self.slots),
            Job::OpenAs(opening) => opening.work(&mut self.slots),
        }
    }

    /// Asks for what the work begins with: mostly it is in another core's cache, or in none, and all together comes in the time of one.
    fn fetch(&self) {
        self.slots.iter().for_each(|slot| cpu::prefetch(slot, Cache::First));
        let mut asked: Option<&Sa> = None;
        for slot in &self.slots {
            if let Some(sa) = slot.outbound.or(slot.inbound).filter(|sa| !is_same(asked, sa)) {
                sa.prefetch(Cache::First);
                asked = Some(sa);
            }
            slot.frame.prefetch(0);
            slot.frame.prefetch(0usize.wrapping_sub(LINE));
            slot.frame.prefetch(slot.frame.len());
        }
    }

    /// Whether the packets, of which the work is done, still need a stage before `send`.
    pub(crate) fn needs_stages(&self) -> bool {
        match &self.job {
            Job::Open | Job::Seal => true,
            Job::SealAs(_) => false,
            Job::OpenAs(opening) => opening.followers() < self.slots.len(),
        }
    }

    /// The packets go back to the worker that lent them, and with them what was to be done.
    pub(crate) fn give_back(&mut self) -> (Job<'static>, Vec<Slot<'static>>) {
        self.slots.iter().for_each(|slot| cpu::prefetch(slot, Cache::First));
        if matches!(self.job, Job::Open) {
            // `hop` changes the inner header, which is in the other core's cache.
            for slot in &self.slots {
                slot.frame.prefetch(0);
            }
        }
        (std::mem::replace(&mut self.job, Job::Seal), std::mem::take(&mut self.slots))
    }

    /// Moves the packets out, for a worker that gives them up.
    pub(crate) fn empty(&mut self, into: &mut Vec<Slot<'static>>) {
        into.append(&mut self.slots);
        self.job = Job::Seal;
    }
}
