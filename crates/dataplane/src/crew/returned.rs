//! What comes back from the crew, until its stage takes it.

use arrayvec::ArrayVec;

use crate::batch::Slot;
use crate::chunk::{Chunk, Job, Spare};
use crate::crew::COMMIT_CHUNKS;
use crate::follow::lent;

/// Packets that came back and wait for their stage, and what was to be done with them.
#[derive(Default)]
pub(super) struct Returned {
    chunks: ArrayVec<(Job<'static>, Vec<Slot<'static>>), COMMIT_CHUNKS>,
    needs_stages: bool,
}

impl Returned {
    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Whether any that waits needs a stage before `send`.
    pub(super) fn needs_stages(&self) -> bool {
        self.needs_stages
    }

    /// Takes a chunk's packets.
    pub(super) fn take(&mut self, chunk: &mut Chunk) {
        self.needs_stages |= chunk.needs_stages();
        self.chunks.push(chunk.give_back());
    }

    /// Packets that were opened as those before, and how.
    pub(super) fn openings(
        &mut self,
    ) -> impl Iterator<Item = (&lent::Opening<'static>, &mut [Slot<'static>])> {
        self.chunks.iter_mut().filter_map(|(job, slots)| match job {
            Job::OpenAs(opening) => Some((&*opening, &mut slots[..])),
            _ => None,
        })
    }

    /// Moves all packets to the end of a batch; how many. A packet is copied once on its way back, or not at all.
    pub(super) fn join<'v>(&mut self, slots: &mut Vec<Slot<'v>>, spare: &mut Spare) -> usize {
        let before = slots.len();
        for (_, mut chunk) in self.chunks.drain(..) {
            if slots.is_empty() {
                // Nothing else is in the batch: it takes the vector as it is.
                spare.give(std::mem::replace(slots, chunk));
                continue;
            }
            // A slot of a longer life is one of a shorter, too; `append` would want the same.
            #[allow(clippy::extend_with_drain)]
            slots.extend(chunk.drain(..));
            spare.give(chunk);
        }
        self.needs_stages = false;
        slots.len() - before
    }
}
