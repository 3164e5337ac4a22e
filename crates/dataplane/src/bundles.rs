//! The slots through which policies find their outbound SAs.
//!
//! A protect policy names a slot by number. When an SA is rekeyed, control fills the slot with the
//! new one; the policy database is not touched. A slot may be empty, and several policies may share
//! one. Which slot belongs to whom is control's to know.

use std::sync::Arc;

use crate::sa::Sa;

/// Slots per chunk, the unit that a change copies.
const CHUNK: usize = 256;

/// Highest number of slots: sixteen times the tunnels that the gateway is designed for.
pub const BUNDLES_MAX: u32 = 1 << 20;

type Chunk = [Option<Arc<Sa>>; CHUNK];

/// A version of all slots. Cloning is cheap; versions share what did not change.
#[derive(Clone, Default)]
pub struct Bundles {
    chunks: Arc<Vec<Arc<Chunk>>>,
}

impl Bundles {
    /// No slot is filled.
    pub fn new() -> Bundles {
        Bundles::default()
    }

    /// The SA in a slot.
    #[inline]
    pub fn get(&self, slot: u32) -> Option<&Arc<Sa>> {
        let chunk = self.chunks.get(slot as usize / CHUNK)?;
        chunk[slot as usize % CHUNK].as_ref()
    }

    /// Fills or empties a slot. Returns whether the slot exists, which all below [`BUNDLES_MAX`]
    /// do.
    pub fn set(&mut self, slot: u32, sa: Option<Arc<Sa>>) -> bool {
        if slot >= BUNDLES_MAX {
            return false;
        }
        let (chunk, place) = (slot as usize / CHUNK, slot as usize % CHUNK);
        let chunks = Arc::make_mut(&mut self.chunks);
        while chunks.len() <= chunk {
            chunks.push(Arc::new(std::array::from_fn(|_| None)));
        }
        Arc::make_mut(&mut chunks[chunk])[place] = sa;
        true
    }
}
