//! What comes back from the crew, until its stage takes it.

use crate::batch::{SLOTS, Slot, relabel};
use crate::chunk::Chunk;
use crate::crew::COMMIT_CHUNKS;

/// Packets that came back and wait for their stage, in chunks: one is exchanged for an empty one, so that
/// a packet is copied once on its way back, or not at all.
pub(super) struct Returned {
    chunks: Vec<Vec<Slot<'static>>>,
    full: usize,
}

impl Returned {
    /// Nothing yet.
    pub(super) fn new() -> Returned {
        let chunks = (0..COMMIT_CHUNKS).map(|_| Vec::with_capacity(SLOTS)).collect();
        Returned { chunks, full: 0 }
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.full == 0
    }

    /// Takes a chunk's packets.
    pub(super) fn take(&mut self, chunk: &mut Chunk) {
        if let Some(empty) = self.chunks.get_mut(self.full) {
            chunk.exchange(empty);
            self.full += 1;
        }
    }

    /// Moves all packets to the end of a batch; how many.
    pub(super) fn join<'v>(&mut self, slots: &mut Vec<Slot<'v>>) -> usize {
        let before = slots.len();
        for chunk in &mut self.chunks[..self.full] {
            if slots.is_empty() {
                // Nothing else is in the batch: it takes the vector as it is.
                let empty = relabel(std::mem::take(slots));
                *slots = std::mem::replace(chunk, empty);
                continue;
            }
            // A slot of a longer life is one of a shorter, too; `append` would want the same.
            #[allow(clippy::extend_with_drain)]
            slots.extend(chunk.drain(..));
        }
        self.full = 0;
        slots.len() - before
    }
}
