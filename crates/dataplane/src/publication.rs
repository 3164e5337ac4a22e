//! How a version replaces another under the feet of those who read it.
//!
//! Control publishes a version with one pointer store. A worker takes the current one once per turn
//! and keeps nothing of it beyond; taking the next one is its word that it has let go of all before.
//! An old version is freed by control, and only after every worker gave that word (quiescent-state-
//! based reclamation). Nobody ever waits: a worker that stalls merely keeps its version alive, and one
//! that goes to sleep says before that it holds none. A worker that lent parts of its version to
//! others holds on to it until they gave them back.
//!
//! ```text
//!  publish: swap pointer ──► epoch E ──► old version retired at E
//!  enter:   read epoch e ──► "seen e" ──► load pointer ──► one turn on that version
//!  reclaim: free what was retired at E, once every reader has seen E or later
//! ```
//!
//! What a version means is not its business (`view.rs`). `interleavings` tries every order of steps.

#![allow(unsafe_code)]

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::sync::{Arc, AtomicPtr, AtomicU64, Mutex, MutexGuard, fence};

/// What publisher and readers share.
struct Shared<T> {
    current: AtomicPtr<T>,
    /// Publications so far.
    epoch: AtomicU64,
    readers: Mutex<Vec<Arc<Seen>>>,
    retired: Mutex<Vec<Retired<T>>>,
}

/// What a reader declares while it holds no version and is about to hold none for a while.
const RESTING: u64 = u64::MAX - 1;

/// The epoch a reader last declared; `u64::MAX` once it is gone. On its own cache lines, as it is
/// written every turn.
#[repr(align(128))]
struct Seen(AtomicU64);

/// A version that was replaced by the publication of `epoch`.
struct Retired<T> {
    epoch: u64,
    version: *mut T,
}

// SAFETY: the pointer came from `Box::into_raw` and is owned by this object alone, so it may be
// dropped on any thread if a `T` may.
unsafe impl<T: Send> Send for Retired<T> {}

/// Control's end: publishes versions, and frees old ones.
pub struct Publisher<T> {
    shared: Arc<Shared<T>>,
}

/// A worker's end: takes the current version, once per turn.
pub struct Reader<T> {
    shared: Arc<Shared<T>>,
    seen: Arc<Seen>,
    /// What `enter` gave last; null before the first. Another's while `is_resting`, or nobody's.
    held: *const T,
    /// The epoch declared with it.
    epoch: u64,
    /// Counts the versions that it gave.
    number: u64,
    /// Nothing is held, and nothing has to be kept: before the first `enter`, and between `rest` and the next one.
    is_resting: bool,
    holding: bool,
}

// SAFETY: `held` is but a shared reference to a version, kept alive by what `seen` declares.
unsafe impl<T: Send + Sync> Send for Reader<T> {}

impl<T: Send + Sync> Publisher<T> {
    /// Begins with a first version.
    pub fn new(version: T) -> Publisher<T> {
        let shared = Shared {
            current: AtomicPtr::new(Box::into_raw(Box::new(version))),
            epoch: AtomicU64::new(0),
            readers: Mutex::new(Vec::new()),
            retired: Mutex::new(Vec::new()),
        };
        Publisher { shared: Arc::new(shared) }
    }

    /// A new reader, for one worker.
    pub fn reader(&self) -> Reader<T> {
        let mut readers = lock(&self.shared.readers);
        // It holds no version yet; this epoch is a safe understatement.
        let epoch = self.shared.epoch.load(Acquire);
        let seen = Arc::new(Seen(AtomicU64::new(epoch)));
        readers.push(seen.clone());
        let (shared, held) = (self.shared.clone(), std::ptr::null());
        Reader { shared, seen, held, epoch, number: 0, is_resting: true, holding: false }
    }

    /// Makes a version the current one. Workers take it at their next turn.
    pub fn publish(&mut self, version: T) {
        let version = self.shared.current.swap(Box::into_raw(Box::new(version)), AcqRel);
        // `Release`: whoever reads the new epoch also sees the swap before it.
        let epoch = self.shared.epoch.fetch_add(1, Release) + 1;
        lock(&self.shared.retired).push(Retired { epoch, version });
        self.reclaim();
    }

    /// Frees the old versions that no worker can still hold; the number that must wait. Control calls
    /// this now and then; [`publish`](Publisher::publish) does too.
    pub fn reclaim(&mut self) -> usize {
        // Pairs with the one in `enter`: a reader that we see resting below sees our last swap.
        fence(SeqCst);
        let seen_by_all = {
            let mut readers = lock(&self.shared.readers);
            // `Acquire`: what a reader did with its old version happened before we free it.
            readers.retain(|seen| seen.0.load(Acquire) != u64::MAX);
            readers.iter().map(|seen| seen.0.load(Acquire)).min().unwrap_or(u64::MAX)
        };
        let mut retired = lock(&self.shared.retired);
        retired.retain(|old| {
            let keep = old.epoch > seen_by_all;
            if !keep {
                // SAFETY: the version was swapped out before `old.epoch` was stored. Every reader has
                // since read that epoch or a later one, so each load of the pointer after that
                // gave a newer version, and by `Reader::enter` no reference to an older one is left.
                drop(unsafe { Box::from_raw(old.version) });
            }
            keep
        });
        retired.len()
    }

    /// Publications since the start.
    pub fn epoch(&self) -> u64 {
        self.shared.epoch.load(Relaxed)
    }

    /// Whether every worker has begun a turn with the current version.
    pub fn settled(&self) -> bool {
        let epoch = self.epoch();
        lock(&self.shared.readers).iter().all(|seen| seen.0.load(Acquire) >= epoch)
    }
}

impl<T> Reader<T> {
    /// The current version, for one turn; or, while [held](Reader::hold), the one of the last turn.
    /// The borrow of `self` ends all borrows from turns before.
    #[inline]
    pub fn enter(&mut self) -> &T {
        self.enter_numbered().0
    }

    /// The same, and a number that another version has never had, nor has it another as long as it is current, whether the
    /// reader rests or not: what was found out by it need not be asked again while that is the number.
    #[inline]
    pub fn enter_numbered(&mut self) -> (&T, u64) {
        if !self.holding {
            let (held, declared) = (self.held, self.epoch);
            self.epoch = self.shared.epoch.load(Acquire);
            // `Release`: our use of the last version happened before this word is read.
            self.seen.0.store(self.epoch, Release);
            let was_resting = std::mem::take(&mut self.is_resting);
            if was_resting {
                // The word above must be out before the pointer is loaded: either `reclaim` reads it,
                // or we load what it published last.
                fence(SeqCst);
            }
            self.held = self.shared.current.load(Acquire);
            // After a rest what was held may have been freed, and another version may be where it was. Then the
            // publication that replaced it was counted before that one was swapped in.
            let epoch = if was_resting { self.shared.epoch.load(Acquire) } else { self.epoch };
            // The pointer alone may lead to another version where a freed one was; but none is freed that was
            // held all the while that this epoch was declared. The epoch alone is counted a moment later
            // than the pointer is swapped.
            self.number += u64::from(self.held != held || epoch != declared);
        }
        // SAFETY: the pointer is not null and came from `Box::into_raw`. The version it names is
        // freed only after this reader has seen a later epoch than the one stored above, which
        // happens in the next `enter` without a hold (or in `rest` or `drop`), when `&mut self`
        // proves this borrow over. After a rest, the fences order that word before the load.
        (unsafe { &*self.held }, self.number)
    }

    /// Whether [`enter`](Reader::enter) stays with the version it gave last, for the sake of those
    /// who were lent parts of it. Without effect before the first `enter` and after a rest.
    #[inline]
    pub fn hold(&mut self, on: bool) {
        self.holding = on && !self.is_resting;
    }

    /// Whether something was published since the version that is held.
    #[inline]
    pub fn is_outdated(&self) -> bool {
        self.shared.epoch.load(Relaxed) != self.epoch
    }

    /// Whether the next [`enter`](Reader::enter) will give a version that has been replaced, as it is [held](Reader::hold).
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.holding && self.is_outdated()
    }

    /// Lets go of the version until the next [`enter`](Reader::enter), however long that takes: what
    /// is replaced meanwhile need not wait for this reader. Not while it is held.
    pub fn rest(&mut self) {
        if !self.holding {
            self.is_resting = true;
            self.seen.0.store(RESTING, Release);
        }
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        self.seen.0.store(u64::MAX, Release);
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let retired = std::mem::take(&mut *lock(&self.retired));
        let current = Retired { epoch: 0, version: self.current.load(Acquire) };
        for old in retired.into_iter().chain([current]) {
            // SAFETY: publisher and readers all held this object and are gone, so nobody has a
            // reference into any version, and each is in exactly one place.
            drop(unsafe { Box::from_raw(old.version) });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
