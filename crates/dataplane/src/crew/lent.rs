//! What goes out to the crew.

#![allow(unsafe_code)]

use super::Member;
use crate::batch::{Batch, Slot};
use crate::chunk::{CHUNK_PACKETS, Job};
use crate::verdict::Verdict;

impl Member {
    /// Lends the first packets of a batch, so many, with the room that there is; they leave the batch.
    pub(crate) fn lend_first<'v>(&mut self, job: Job<'v>, batch: &mut Batch<'v>, packets: usize) {
        let (slots, spare) = (&mut batch.slots, &mut self.spare);
        // SAFETY: `Worker::begin_crew` holds on to the view while anything is out.
        self.owner.publish(|chunk| unsafe {
            match packets == slots.len() && packets <= CHUNK_PACKETS {
                true => chunk.take(job, slots, spare),
                false => chunk.fill(job, slots.drain(..packets), spare),
            }
        });
    }

    /// Lends the packets of the batch for which `which` says so; those for which there is no room are
    /// decided.
    ///
    /// # Safety
    /// The caller holds on to its view until nothing is out any more.
    pub(super) unsafe fn lend<'v>(
        &mut self,
        job: fn() -> Job<'v>,
        batch: &mut Batch<'v>,
        which: impl Fn(&Slot<'v>) -> bool,
    ) {
        let is_lent = |slot: &Slot<'v>| slot.verdict.is_none() && which(slot);
        let mut count = batch.slots.iter().filter(|slot| is_lent(slot)).count();
        // The ordinary case of one fat tunnel: nothing else is in the batch.
        let is_all = count == batch.slots.len();
        while count != 0 && self.owner.room() != 0 {
            let lent = count.min(CHUNK_PACKETS);
            if is_all {
                self.lend_first(job(), batch, lent);
            } else {
                let lent = batch.slots.extract_if(.., |slot| is_lent(slot));
                // SAFETY: as the caller promises.
                self.owner.publish(|chunk| unsafe { chunk.fill(job(), lent, &mut self.spare) });
            }
            count -= lent;
        }
        if count != 0 {
            batch.slots.iter_mut().filter(|slot| is_lent(slot)).for_each(|slot| {
                slot.decide(Verdict::PipelineFull);
            });
        }
    }
}
