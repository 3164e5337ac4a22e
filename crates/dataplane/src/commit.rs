//! A ring of work that any thread may do and one thread takes back, in the order in which it gave it.
//!
//! ```text
//!             committed            claimed              published
//!                 │  done · working · done │ waiting · waiting │  free
//!   slots:  ──────┼────────────────────────┼───────────────────┼──────►
//!      owner: commit                 anyone: work         owner: publish
//! ```
//!
//! The owner publishes work, whoever has time claims the oldest piece and does it in its slot, and the
//! owner commits the pieces that are done from the oldest on. Who does a piece and how long that
//! takes changes nothing in their order. Nobody waits for anybody: a full ring refuses work, an empty
//! one gives none, and the owner may do what nobody has claimed yet.
//!
//! Does not know what the work is (`crew.rs`). `interleavings` tries every order of steps.

#![allow(unsafe_code)]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sync::{Arc, AtomicU64, UnsafeCell};

/// An index on cache lines of its own; adjacent-line prefetch fetches pairs.
#[repr(align(128))]
struct Line(AtomicU64);

struct Slot<T> {
    /// One more than the index of the last piece of work done in this slot.
    done: AtomicU64,
    work: UnsafeCell<T>,
}

/// What all threads see of a ring.
pub struct Ring<T> {
    slots: Box<[Slot<T>]>,
    /// Pieces published so far; below it every slot is filled. Written by the owner alone.
    published: Line,
    /// Pieces claimed so far.
    claimed: Line,
}

// SAFETY: a piece of work moves between threads with its slot, and at any moment one thread alone may
// touch it: the owner from the commit to the publication, then the one whose compare-and-swap claimed
// it, until it stores `done`.
unsafe impl<T: Send> Sync for Ring<T> {}

// SAFETY: as above; nothing else in it is bound to a thread.
unsafe impl<T: Send> Send for Ring<T> {}

/// The one who publishes and commits.
pub struct Owner<T> {
    ring: Arc<Ring<T>>,
    published: u64,
    committed: u64,
}

impl<T> Ring<T> {
    #[inline]
    fn slot(&self, index: u64) -> &Slot<T> {
        &self.slots[index as usize & (self.slots.len() - 1)]
    }

    /// Does the oldest piece of work that nobody has claimed; `false` if there is none.
    #[inline]
    pub fn work(&self, how: impl FnOnce(&mut T)) -> bool {
        let mut index = self.claimed.0.load(Relaxed);
        loop {
            // `Acquire`: what the owner put into the slot.
            if index >= self.published.0.load(Acquire) {
                return false;
            }
            match self.claimed.0.compare_exchange_weak(index, index + 1, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(seen) => index = seen,
            }
        }
        let slot = self.slot(index);
        // SAFETY: the slot is published, and the compare-and-swap gave this index to nobody else; the
        // owner comes back to it only once it has read the `done` that is stored below.
        slot.work.with_mut(|work| how(unsafe { &mut *work }));
        // `Release`: what was done to it.
        slot.done.store(index + 1, Release);
        true
    }

    /// Pieces that nobody has claimed, as far as this thread can tell.
    #[inline]
    pub fn unclaimed(&self) -> u64 {
        self.published.0.load(Relaxed).saturating_sub(self.claimed.0.load(Relaxed))
    }
}

impl<T> Owner<T> {
    /// A ring whose slots hold what `make` makes.
    ///
    /// # Panics
    /// If `slots` is no power of two.
    pub fn new(slots: usize, make: impl FnMut() -> T) -> Owner<T> {
        assert!(slots.is_power_of_two(), "a ring of {slots} slots");
        let mut make = make;
        let mut slot = |_| Slot { done: AtomicU64::new(0), work: UnsafeCell::new(make()) };
        let ring = Ring {
            slots: (0..slots).map(&mut slot).collect(),
            published: Line(AtomicU64::new(0)),
            claimed: Line(AtomicU64::new(0)),
        };
        Owner { ring: Arc::new(ring), published: 0, committed: 0 }
    }

    /// The ring, for those who help.
    pub fn ring(&self) -> &Arc<Ring<T>> {
        &self.ring
    }

    /// Pieces of work that are published and not committed.
    #[inline]
    pub fn pending(&self) -> usize {
        (self.published - self.committed) as usize
    }

    /// Pieces of work that can be published now.
    #[inline]
    pub fn room(&self) -> usize {
        self.ring.slots.len() - self.pending()
    }

    /// Fills a free slot and publishes it; `false` if there is none.
    #[inline]
    pub fn publish(&mut self, fill: impl FnOnce(&mut T)) -> bool {
        if self.room() == 0 {
            return false;
        }
        // SAFETY: the slot is not published: its last piece of work was committed, so whoever did it
        // has stored `done`, which `commit` read, and none claims an index that is not published.
        self.ring.slot(self.published).work.with_mut(|work| fill(unsafe { &mut *work }));
        self.published += 1;
        self.ring.published.0.store(self.published, Release);
        true
    }

    /// Takes back the oldest piece of work, if it is done.
    #[inline]
    pub fn commit(&mut self, take: impl FnOnce(&mut T)) -> bool {
        self.commit_if(|work| {
            take(work);
            true
        })
    }

    /// The same if it is to be taken, as `take` says, which leaves it as it is otherwise.
    #[inline]
    pub fn commit_if(&mut self, take: impl FnOnce(&mut T) -> bool) -> bool {
        if self.pending() == 0 {
            return false;
        }
        let slot = self.ring.slot(self.committed);
        // `Acquire`: what was done to it.
        if slot.done.load(Acquire) != self.committed + 1 {
            return false;
        }
        // SAFETY: who did it has let go of it, by the `done` just read, and nobody claims it again.
        let taken = slot.work.with_mut(|work| take(unsafe { &mut *work }));
        self.committed += u64::from(taken);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Publish,
        Work,
        Commit,
        /// The oldest piece is looked at and left.
        Leave,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![Just(Step::Publish), Just(Step::Work), Just(Step::Commit), Just(Step::Leave),]
    }

    proptest! {
        /// One thread, every order of calls, against two queues.
        #[test]
        fn a_ring_behaves_like_two_queues(
            steps in prop::collection::vec(step(), 1..300),
            slots in 0u32..4,
        ) {
            let slots = 1 << slots;
            let mut owner = Owner::new(slots, || 0u64);
            let ring = owner.ring().clone();
            let (mut waiting, mut done) = (VecDeque::new(), VecDeque::new());
            let mut next = 0u64;
            for step in steps {
                match step {
                    Step::Publish => {
                        let fits = waiting.len() + done.len() < slots;
                        prop_assert_eq!(owner.publish(|work| *work = next), fits);
                        if fits {
                            waiting.push_back(next);
                            next += 1;
                        }
                    }
                    Step::Work => {
                        let expected = waiting.pop_front();
                        prop_assert_eq!(
                            ring.work(|work| {
                                assert_eq!(Some(*work), expected);
                                *work += 1000;
                            }),
                            expected.is_some()
                        );
                        done.extend(expected.map(|work| work + 1000));
                    }
                    Step::Commit => {
                        let mut taken = None;
                        owner.commit(|work| taken = Some(*work));
                        prop_assert_eq!(taken, done.pop_front());
                    }
                    Step::Leave => {
                        let mut seen = None;
                        let committed = owner.commit_if(|work| {
                            seen = Some(*work);
                            false
                        });
                        prop_assert_eq!((committed, seen), (false, done.front().copied()));
                    }
                }
                prop_assert_eq!(ring.unclaimed(), waiting.len() as u64);
                prop_assert_eq!(owner.pending(), waiting.len() + done.len());
                prop_assert_eq!(owner.room(), slots - owner.pending());
            }
        }
    }

    #[test]
    fn work_comes_back_once_and_in_order_whoever_does_it() {
        const PIECES: u64 = 100_000;
        let mut owner = Owner::new(8, || (0u64, 0u64));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (ring, stop) = (owner.ring().clone(), &stop);
                scope.spawn(move || {
                    while !stop.load(Relaxed) {
                        if !ring.work(|work| work.1 = work.0 * 3) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let (mut published, mut committed) = (0, 0);
            while committed < PIECES {
                if published < PIECES && owner.publish(|work| *work = (published, 0)) {
                    published += 1;
                } else if owner.ring().unclaimed() > 4 {
                    owner.ring().clone().work(|work| work.1 = work.0 * 3);
                }
                while owner.commit(|work| assert_eq!(*work, (committed, committed * 3))) {
                    committed += 1;
                }
            }
            stop.store(true, Relaxed);
        });
        assert_eq!((owner.pending(), owner.ring().unclaimed()), (0, 0));
    }
}
