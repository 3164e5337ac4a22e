//! How long what a version no longer has must stay, for the sake of those before it.
//!
//! Versions come one after the other, and each is held by whoever cloned it. What a change takes out of
//! the newest one is handed to the version before, and ends with that; and no version ends before those
//! that came before it, each of which keeps the next:
//!
//! ```text
//!   held ─► version 7 ──► version 8 ──► version 9 ◄─ held, and changed
//!             │ gone        │ gone        │ gone
//!             ▼             ▼             ▼
//!        had by 7, not 8  by 8, not 9   what is in the last of all, once nobody holds it
//! ```
//!
//! So nothing has to be counted but holders, and what is shared may be copied bit by bit. Who goes on
//! from a version that another has gone on from already is told so, and has to make a copy of everything.
//!
//! It does not know what is handed to it.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// One version, for all who hold it and for the one before.
struct Node<G> {
    /// Counts versions, from 0.
    number: u64,
    holders: AtomicUsize,
    gone: Mutex<Vec<G>>,
    next: OnceLock<Arc<Node<G>>>,
}

/// A holder's word that a version is still there.
pub(super) struct Lineage<G> {
    node: Arc<Node<G>>,
    before: Weak<Node<G>>,
}

/// Another holder of the same version has changed it before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Forked;

impl<G> Node<G> {
    fn new(number: u64) -> Arc<Node<G>> {
        let (holders, gone) = (AtomicUsize::new(1), Mutex::new(Vec::new()));
        Arc::new(Node { number, holders, gone, next: OnceLock::new() })
    }

    fn keep(&self, gone: G) {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).push(gone);
    }
}

impl<G> Lineage<G> {
    /// The first version, with one holder.
    pub(super) fn new() -> Lineage<G> {
        Lineage { node: Node::new(0), before: Weak::new() }
    }

    /// The version's number: later ones of this lineage have higher ones.
    pub(super) fn number(&self) -> u64 {
        self.node.number
    }

    /// Another holder of this version.
    pub(super) fn join(&self) -> Lineage<G> {
        self.node.holders.fetch_add(1, Relaxed);
        Lineage { node: self.node.clone(), before: self.before.clone() }
    }

    /// Goes on to a version that nobody else holds, which is this one if nobody else does. To be done
    /// before any change.
    ///
    /// # Errors
    /// Another has gone on from this version; what is retired would be missed by the one who holds that.
    pub(super) fn advance(&mut self) -> Result<(), Forked> {
        // `Acquire`: what others read or made of it before they let go of it happened before we change it.
        let alone = self.node.holders.load(Acquire) == 1;
        if alone && self.node.next.get().is_none() {
            return Ok(());
        }
        let next = Node::new(self.node.number + 1);
        self.node.next.set(next.clone()).map_err(|_| Forked)?;
        self.before = Arc::downgrade(&self.node);
        let left = std::mem::replace(&mut self.node, next);
        left.holders.fetch_sub(1, Release);
        Ok(())
    }

    /// Takes what versions before this one may have, and this one has no more. It is dropped once they
    /// are gone.
    pub(super) fn retire(&self, gone: G) {
        // Without one before there is none at all, as each keeps the next.
        if let Some(before) = self.before.upgrade() {
            before.keep(gone);
        }
    }

    /// Whether nobody holds this version or a later one any more; what it has is to be
    /// [left](Lineage::leave) to it then. To be asked once, at the end.
    pub(super) fn ends(&self) -> bool {
        let is_last = self.node.holders.fetch_sub(1, AcqRel) == 1;
        is_last && self.node.next.get().is_none()
    }

    /// Takes everything that the last version of all has.
    pub(super) fn leave(&self, all: G) {
        self.node.keep(all);
    }
}

impl<G> Drop for Node<G> {
    /// One after the other: a thousand versions that end together must not end within each other.
    fn drop(&mut self) {
        self.gone.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        let mut next = self.next.take();
        while let Some(mut node) = next.and_then(Arc::into_inner) {
            next = node.next.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What says that it was dropped.
    struct Gone(&'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Drop for Gone {
        fn drop(&mut self) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[test]
    fn what_is_retired_ends_with_the_last_version_that_had_it() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let gone = |name| Gone(name, log.clone());
        let ended = || log.lock().unwrap().clone();
        let mut newest = Lineage::new();
        newest.advance().unwrap();
        assert_eq!(newest.number(), 0, "nobody else holds it");
        newest.retire(gone("at once"));
        let first = newest.join();
        newest.advance().unwrap();
        newest.retire(gone("first's"));
        let second = newest.join();
        newest.advance().unwrap();
        newest.retire(gone("second's"));
        assert_eq!((first.number(), second.number(), newest.number()), (0, 1, 2));
        assert_eq!(ended(), ["at once"]);
        // The one before still may have it.
        assert!(!second.ends());
        drop(second);
        assert_eq!(ended(), ["at once"]);
        assert!(newest.ends());
        newest.leave(gone("all"));
        drop(newest);
        assert_eq!(ended(), ["at once"]);
        assert!(!first.ends());
        drop(first);
        assert_eq!(ended(), ["at once", "first's", "second's", "all"]);
    }

    #[test]
    fn who_comes_second_is_told_so() {
        let mut one: Lineage<()> = Lineage::new();
        let mut two = one.join();
        let third = two.join();
        one.advance().unwrap();
        assert_eq!(two.advance(), Err(Forked));
        assert!(!third.ends() && !two.ends());
        drop(third);
        assert_eq!(two.advance(), Err(Forked), "also alone");
        assert!(one.ends());
    }

    #[test]
    fn very_many_versions_end_together() {
        let mut newest: Lineage<u8> = Lineage::new();
        let first = newest.join();
        for _ in 0..1_000_000 {
            let held = newest.join();
            newest.advance().unwrap();
            assert!(!held.ends());
        }
        assert!(!first.ends());
        drop((first, newest));
    }
}
