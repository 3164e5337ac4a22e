//! The state that workers forward by, as immutable versions, and how a version replaces another.
//!
//! Control builds a [`View`] and publishes it with one pointer store. A worker takes the current
//! view once per turn and keeps nothing of it beyond; taking the next one is its word that it has
//! let go of all before. An old view is freed by control, and only after every worker gave that
//! word (quiescent-state-based reclamation). Nobody ever waits: a worker that stalls merely keeps
//! its view alive, and one that goes to sleep says before that it holds none.
//!
//! ```text
//!  publish: swap pointer ──► epoch E ──► old view retired at E
//!  enter:   read epoch e ──► "seen e" ──► load pointer ──► one turn on that view
//!  reclaim: free what was retired at E, once every reader has seen E or later
//! ```
//!
//! This is the crate's only file with unsafe code. What the tables mean is not its business.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wire::ethernet::MacAddr;

use crate::bundles::Bundles;
use crate::encapsulation::PortSet;
use crate::fib::Fib;
use crate::local::Locals;
use crate::neighbour::Neighbours;
use crate::sad::Sad;
use crate::spd::Spd;
use crate::transport::TransportSlots;
use crate::tunnel::Tunnels;

/// One interface that the gateway forwards through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The kernel's interface index.
    pub ifindex: u32,
    /// The interface's name.
    pub name: String,
    /// Its link-layer address.
    pub mac: MacAddr,
    /// Its MTU in bytes, without link layer headers.
    pub mtu: u32,
    /// Whether it is administratively up and has a carrier.
    pub up: bool,
}

/// Everything that forwarding depends on, at one moment.
#[derive(Clone, Default)]
pub struct View {
    /// Counts publications. For people, and for packets that wait until something changes.
    pub generation: u64,
    /// SAs that open.
    pub sad: Sad,
    /// Policies.
    pub spd: Spd,
    /// SAs that seal, by the slots that policies name.
    pub bundles: Bundles,
    /// The slots of SAs in transport mode, by whom they are between.
    pub transport: TransportSlots,
    /// Tunnels that routes lead into.
    pub tunnels: Tunnels,
    /// Routes.
    pub fib: Fib,
    /// Link-layer addresses.
    pub neighbours: Neighbours,
    /// Somebody listens for ACQUIRE, so that a missing SA may come.
    pub acquire_is_heard: bool,
    /// The ports, in the order in which every worker holds them.
    pub ports: Arc<[PortInfo]>,
    /// The port of the host's own packets, beyond those of `ports`; it has no link layer.
    pub host: Option<u16>,
    /// More such ports, each the host's way into a group of tunnels.
    pub tunnel_devices: Range<u16>,
    /// The addresses of this host.
    pub local: Locals,
    /// The UDP ports of this host on which ESP arrives.
    pub encapsulation_ports: PortSet,
}

impl View {
    /// Brings the tables into the shape in which look-ups are fastest, which many small changes leave
    /// (see [`Table::settle`](crate::table::Table::settle)). Whether anything was to do; what the tables hold is the same.
    pub fn settle(&mut self) -> bool {
        self.sad.settle()
            | self.spd.settle()
            | self.fib.settle()
            | self.neighbours.settle()
            | self.local.settle()
            | self.transport.settle()
            | self.tunnels.settle()
    }
}

/// What publisher and readers share.
struct Shared {
    current: AtomicPtr<View>,
    /// Publications so far.
    epoch: AtomicU64,
    readers: Mutex<Vec<Arc<Seen>>>,
    retired: Mutex<Vec<Retired>>,
}

/// What a reader declares while it holds no view and is about to hold none for a while.
const RESTING: u64 = u64::MAX - 1;

/// The epoch a reader last declared; `u64::MAX` once it is gone. On its own cache lines, as it is
/// written every turn.
#[repr(align(128))]
struct Seen(AtomicU64);

/// A view that was replaced by the publication of `epoch`.
struct Retired {
    epoch: u64,
    view: *mut View,
}

// SAFETY: the pointer came from `Box::into_raw` and is owned by this object alone, so it may be
// dropped on any thread: `View` is `Send` (checked below).
unsafe impl Send for Retired {}

const _: () = {
    const fn shareable<T: Send + Sync>() {}
    shareable::<View>();
};

/// Control's end: publishes views, and frees old ones.
pub struct Publisher {
    shared: Arc<Shared>,
}

/// A worker's end: takes the current view, once per turn.
pub struct Reader {
    shared: Arc<Shared>,
    seen: Arc<Seen>,
    resting: bool,
}

impl Publisher {
    /// Begins with a first view.
    pub fn new(view: View) -> Publisher {
        let shared = Shared {
            current: AtomicPtr::new(Box::into_raw(Box::new(view))),
            epoch: AtomicU64::new(0),
            readers: Mutex::new(Vec::new()),
            retired: Mutex::new(Vec::new()),
        };
        Publisher { shared: Arc::new(shared) }
    }

    /// A new reader, for one worker.
    pub fn reader(&self) -> Reader {
        let mut readers = lock(&self.shared.readers);
        // It holds no view yet; this epoch is a safe understatement.
        let seen = Arc::new(Seen(AtomicU64::new(self.shared.epoch.load(Acquire))));
        readers.push(seen.clone());
        Reader { shared: self.shared.clone(), seen, resting: false }
    }

    /// Makes a view the current one. Workers take it at their next turn.
    pub fn publish(&mut self, view: View) {
        let view = self.shared.current.swap(Box::into_raw(Box::new(view)), AcqRel);
        // `Release`: whoever reads the new epoch also sees the swap before it.
        let epoch = self.shared.epoch.fetch_add(1, Release) + 1;
        lock(&self.shared.retired).push(Retired { epoch, view });
        self.reclaim();
    }

    /// Frees the old views that no worker can still hold; the number that must wait. Control calls
    /// this now and then; [`publish`](Publisher::publish) does too.
    pub fn reclaim(&mut self) -> usize {
        // Pairs with the one in `enter`: a reader that we see resting below sees our last swap.
        fence(SeqCst);
        let seen_by_all = {
            let mut readers = lock(&self.shared.readers);
            // `Acquire`: what a reader did with its old view happened before we free it.
            readers.retain(|seen| seen.0.load(Acquire) != u64::MAX);
            readers.iter().map(|seen| seen.0.load(Acquire)).min().unwrap_or(u64::MAX)
        };
        let mut retired = lock(&self.shared.retired);
        retired.retain(|old| {
            let keep = old.epoch > seen_by_all;
            if !keep {
                // SAFETY: the view was swapped out before `old.epoch` was stored. Every reader has
                // since read that epoch or a later one, so each load of the pointer after that
                // gave a newer view, and by `Reader::enter` no reference to an older one is left.
                drop(unsafe { Box::from_raw(old.view) });
            }
            keep
        });
        retired.len()
    }

    /// Publications since the start.
    pub fn epoch(&self) -> u64 {
        self.shared.epoch.load(Relaxed)
    }

    /// Whether every worker has begun a turn with the current view.
    pub fn settled(&self) -> bool {
        let epoch = self.epoch();
        lock(&self.shared.readers).iter().all(|seen| seen.0.load(Acquire) >= epoch)
    }
}

impl Reader {
    /// The current view, for one turn. The borrow of `self` ends all borrows from turns before.
    #[inline]
    pub fn enter(&mut self) -> &View {
        let epoch = self.shared.epoch.load(Acquire);
        // `Release`: our use of the last view happened before this word is read.
        self.seen.0.store(epoch, Release);
        if self.resting {
            self.resting = false;
            // The word above must be out before the pointer is loaded: either `reclaim` reads it, or
            // we load what it published last.
            fence(SeqCst);
        }
        // SAFETY: the pointer is never null and came from `Box::into_raw`. The view it names is
        // freed only after this reader has seen a later epoch than the one stored above, which
        // happens in the next `enter` (or in `rest` or `drop`), when `&mut self` proves this borrow
        // over. After a rest, the fences order that word before the load.
        unsafe { &*self.shared.current.load(Acquire) }
    }

    /// Lets go of the view until the next [`enter`](Reader::enter), however long that takes: what is
    /// replaced meanwhile need not wait for this reader.
    pub fn rest(&mut self) {
        self.resting = true;
        self.seen.0.store(RESTING, Release);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.seen.0.store(u64::MAX, Release);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let retired = std::mem::take(&mut *lock(&self.retired));
        let current = Retired { epoch: 0, view: *self.current.get_mut() };
        for old in retired.into_iter().chain([current]) {
            // SAFETY: publisher and readers all held this object and are gone, so nobody has a
            // reference into any view, and each is in exactly one place.
            drop(unsafe { Box::from_raw(old.view) });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    fn view(generation: u64) -> View {
        View { generation, ..View::default() }
    }

    /// A view whose `ports` can be watched from outside.
    fn watched(generation: u64) -> (View, std::sync::Weak<[PortInfo]>) {
        let port = PortInfo {
            ifindex: generation as u32,
            name: format!("port{generation}"),
            mac: MacAddr::ZERO,
            mtu: 1500,
            up: true,
        };
        let ports: Arc<[PortInfo]> = Arc::new([port]);
        let weak = Arc::downgrade(&ports);
        (View { generation, ports, ..View::default() }, weak)
    }

    #[test]
    fn readers_take_the_newest_view() {
        let mut publisher = Publisher::new(view(1));
        let mut reader = publisher.reader();
        assert_eq!(reader.enter().generation, 1);
        publisher.publish(view(2));
        assert!(!publisher.settled());
        assert_eq!(reader.enter().generation, 2);
        assert!(publisher.settled());
    }

    #[test]
    fn a_stalled_reader_keeps_its_view_alive() {
        let (first, watch) = watched(1);
        let mut publisher = Publisher::new(first);
        let (mut stalled, mut lively) = (publisher.reader(), publisher.reader());
        let held = stalled.enter();
        for generation in 2..10 {
            publisher.publish(view(generation));
            lively.enter();
            assert_eq!(publisher.reclaim(), generation as usize - 1);
        }
        assert!(watch.upgrade().is_some());
        assert_eq!(held.ports[0].name, "port1");
        stalled.enter();
        assert_eq!(publisher.reclaim(), 0);
        assert!(watch.upgrade().is_none());
    }

    #[test]
    fn a_reader_that_is_gone_keeps_nothing() {
        let (first, watch) = watched(1);
        let mut publisher = Publisher::new(first);
        let mut reader = publisher.reader();
        reader.enter();
        drop(reader);
        publisher.publish(view(2));
        assert_eq!(publisher.reclaim(), 0);
        assert!(watch.upgrade().is_none());
    }

    #[test]
    fn a_reader_that_rests_keeps_nothing_and_wakes_to_the_newest() {
        let (first, watch) = watched(1);
        let mut publisher = Publisher::new(first);
        let mut reader = publisher.reader();
        reader.enter();
        reader.rest();
        publisher.publish(view(2));
        assert!(watch.upgrade().is_none() && publisher.settled());
        assert_eq!(reader.enter().generation, 2);
        publisher.publish(view(3));
        assert_eq!(publisher.reclaim(), 1, "awake again, it keeps what it holds");
    }

    #[test]
    fn all_views_are_freed_at_the_end_whoever_goes_last() {
        for publisher_first in [true, false] {
            let (first, watch_first) = watched(1);
            let (second, watch_second) = watched(2);
            let mut publisher = Publisher::new(first);
            let mut reader = publisher.reader();
            reader.enter();
            publisher.publish(second);
            if publisher_first {
                drop(publisher);
                assert_eq!(reader.enter().generation, 2);
                drop(reader);
            } else {
                drop(reader);
                drop(publisher);
            }
            assert!(watch_first.upgrade().is_none() && watch_second.upgrade().is_none());
        }
    }

    #[test]
    fn readers_on_threads_never_see_a_freed_view() {
        let mut publisher = Publisher::new(watched(1).0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let mut reader = publisher.reader();
                let stop = &stop;
                scope.spawn(move || {
                    let mut last = 0;
                    while !stop.load(Relaxed) {
                        let view = reader.enter();
                        assert!(view.generation >= last, "views only get newer");
                        last = view.generation;
                        // Reads through the pointer: a freed view would show another name.
                        assert_eq!(view.ports[0].name, format!("port{last}"));
                        assert_eq!(view.ports[0].ifindex, last as u32);
                        if last % 3 == 0 {
                            reader.rest();
                        }
                    }
                });
            }
            let until = Instant::now() + Duration::from_millis(300);
            let mut generation = 1;
            while Instant::now() < until {
                generation += 1;
                publisher.publish(watched(generation).0);
            }
            stop.store(true, Relaxed);
            assert!(generation > 100);
        });
        assert_eq!(publisher.reclaim(), 0);
    }
}
