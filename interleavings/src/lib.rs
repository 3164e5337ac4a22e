//! The data plane's shared structures over the types of loom, which runs threads in every order in
//! which their steps can fall, and shows each load every value that the memory model allows it.
//!
//! The files are the data plane's own, compiled a second time: only `crate::sync` is another. So
//! neither a flag nor a feature of the data plane is needed, and nothing can be checked that does not
//! run. The models are in `tests/`: few steps each, as their orders grow without mercy. Built for tests of
//! its own this crate is empty, as those of the borrowed files need what only the data plane has.

#![allow(dead_code, reason = "the models take a part of what each borrowed file has")]

#[cfg(not(test))]
#[path = "../../crates/dataplane/src/claim.rs"]
pub mod claim;
#[cfg(not(test))]
#[path = "../../crates/dataplane/src/commit.rs"]
pub mod commit;
#[cfg(not(test))]
#[path = "../../crates/dataplane/src/publication.rs"]
pub mod publication;
#[cfg(not(test))]
#[path = "../../crates/dataplane/src/replay.rs"]
pub mod replay;

/// What the structures are made of here.
#[cfg(not(test))]
mod sync {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU64, fence};
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
}

/// The processor has no part in this.
#[cfg(not(test))]
mod cpu {
    pub(crate) struct Cache;

    pub(crate) fn prefetch<T: ?Sized>(_: &T, _: Cache) {}
}

/// The words of an SA, which in the data plane lie in a mapping.
#[cfg(not(test))]
mod ledger {
    use crate::sync::AtomicU64;

    #[derive(Clone, Copy)]
    pub(crate) struct Words {
        pub(crate) top: &'static AtomicU64,
        pub(crate) ring: &'static [AtomicU64],
    }

    impl Words {
        pub(crate) fn top(self) -> &'static AtomicU64 {
            self.top
        }

        pub(crate) fn ring(self) -> impl Iterator<Item = &'static AtomicU64> {
            self.ring.iter()
        }

        pub(crate) fn ring_word(self, count: u64) -> &'static AtomicU64 {
            &self.ring[count as usize & (self.ring.len() - 1)]
        }

        pub(crate) fn ring_bits(self) -> u32 {
            self.ring.len().trailing_zeros()
        }
    }
}

/// A new replay window, which accepted everything up to `top`. It lives as long as the process: a model
/// runs it a few thousand times, at a few hundred bytes each.
#[cfg(not(test))]
pub fn replay_window(window: u32, top: u64) -> replay::Replay {
    let ring = (0..replay::ring_words(window)).map(|_| sync::AtomicU64::new(0)).collect();
    let ring: &'static [sync::AtomicU64] = Box::leak::<'static>(ring);
    let words = ledger::Words { top: Box::leak(Box::new(sync::AtomicU64::new(0))), ring };
    replay::Replay::begun(words, window, false, top)
}
