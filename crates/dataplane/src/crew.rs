//! Workers that help one another: the heavy part of one worker's packets on any core, in order.
//!
//! ```text
//!   owner's turn ─► lend ─► ring: │ done · working · waiting │ ─► commit ─► owner's turn
//!                                      ▲        ▲
//!                       another's turn ┘        └ the owner itself, when the ring grows long
//! ```
//!
//! A worker carries its packets alone until it is at its limit while another is idle (`gauge.rs`).
//! From then on it lends what costs most, encrypting and decrypting, through a ring of its own
//! (`commit.rs`), which gives everything back in the order in which it was lent: whatever needs that
//! order (sequence numbers, replay windows, counters, sending) it does itself, before and after. So
//! one tunnel may use every core and its packets keep their order, at the beginning and the end too: the
//! worker returns to doing all by itself only when nothing is out.
//!
//! Of packets that follow others (`follow/lent.rs`), or go by the lane for many tunnels, it does nothing else: they come back to be sent.
//!
//! Nobody waits. Who has no packets of its own looks for others' work. A worker whose ring is full,
//! because who claimed its oldest work does not run, leaves packets in its ports for a while, and then
//! drops by name what it cannot lend.

#![allow(unsafe_code)]

mod lent;
mod returned;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use xsk::Pool;

use self::returned::Returned;
use crate::batch::{BATCH_PACKETS, Batch, Slot};
use crate::chunk::{CHUNK_PACKETS, Chunk, Job, Spare};
use crate::clock::Clock;
use crate::commit::{Owner, Ring};
use crate::counters::Counters;
use crate::doorbell::Doorbell;
use crate::follow::lent::Opening;
use crate::gauge::{Gauge, IDLE_PERMILLE, Wish};
use crate::verdict::Verdict;

/// Chunks of a ring. 32 of them are 2048 packets, 0.4 ms of one core's work: as long as the receive ring
/// lasts. A helper that is interrupted for longer costs packets, here or there.
pub(crate) const RING_CHUNKS: usize = 32;

/// Chunks that come back in a turn at most: twice what a turn lends, so that what was late catches up,
/// and far below what a port's queue holds.
pub(crate) const COMMIT_CHUNKS: usize = 2 * BATCH_PACKETS / CHUNK_PACKETS;

/// Chunks that a turn may need: of what it receives and of what comes back to be sealed again.
pub(crate) const TURN_CHUNKS: usize = COMMIT_CHUNKS + 2 * BATCH_PACKETS / CHUNK_PACKETS + 2;

/// How long a worker leaves packets in its ports because its ring is full. A receive ring of 2048 holds
/// what comes in that time at a million packets per second. From then on it is better that packets
/// for the ring die, and all others go on.
const PAUSE: Duration = Duration::from_millis(2);

/// Unclaimed chunks that the owner leaves to each helper. One less and a helper that comes back finds
/// nothing; more only make packets wait.
pub(crate) const CHUNKS_PER_HELPER: u64 = 2;

/// When a worker lends its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lending {
    /// While it is at its limit and others are idle.
    #[default]
    AtLimit,
    /// Always, for benches and tests.
    Always,
    /// Always, and it does none of it itself: for benches and tests.
    Dispatch,
    /// Never.
    Never,
}

/// What the others see of a worker.
struct Place {
    ring: Arc<Ring<Chunk>>,
    doorbell: Doorbell,
    /// It lends.
    lends: AtomicBool,
    /// Thousandths of the last millisecond that it was busy.
    load: AtomicU64,
}

/// A worker's part in the crew.
pub struct Member {
    id: usize,
    places: Arc<[Place]>,
    owner: Owner<Chunk>,
    lending: Lending,
    lends: bool,
    /// It is to lend no more, once nothing is out.
    leaves: bool,
    /// Since when its ring has had no room for a turn; 0 if it has.
    short_since_ns: u64,
    pause_ns: u64,
    helpers: u64,
    gauge: Gauge,
    clock: Clock,
    opened: Returned,
    sealed: Returned,
    spare: Spare,
}

/// Stage `decrypt`, here or elsewhere: decrypts every packet that `open` let pass.
pub(crate) fn decrypt(batch: &mut Batch<'_>, crew: &mut Option<Member>) {
    let crew = crew.as_mut().filter(|crew| crew.is_in_use());
    let lends = crew.as_ref().is_some_and(|crew| crew.lends);
    // Most turns of most workers bring nothing to open.
    if !lends && !batch.named.is_empty() {
        crate::decrypt::decrypt(&mut batch.slots);
    }
    let Some(crew) = crew else { return };
    if lends && !batch.named.is_empty() {
        // SAFETY: `Worker::begin_crew` holds on to the view while anything is out.
        unsafe { crew.lend(|| Job::Open, batch, |slot| slot.inbound.is_some()) };
    }
    batch.returned = crew.opened.join(&mut batch.slots, &mut crew.spare);
}

/// Stage `encrypt`, here or elsewhere: encrypts every packet that `seal` numbered.
pub(crate) fn encrypt(batch: &mut Batch<'_>, crew: &mut Option<Member>) {
    let crew = crew.as_mut().filter(|crew| crew.is_in_use());
    let lends = crew.as_ref().is_some_and(|crew| crew.lends);
    // As many turns of as many workers bring nothing to seal.
    if !lends && batch.seals {
        crate::encrypt::encrypt(&mut batch.slots);
    }
    let Some(crew) = crew else { return };
    if lends && batch.seals {
        // SAFETY: as above.
        unsafe { crew.lend(|| Job::Seal, batch, |slot| slot.outbound.is_some()) };
    }
    crew.sealed.join(&mut batch.slots, &mut crew.spare);
}

/// A crew of `workers` workers: each one's part.
///
/// # Errors
/// If the kernel has no descriptor for a doorbell.
pub fn crew(workers: usize, clock: Clock) -> io::Result<Vec<Member>> {
    let owners: Vec<_> = (0..workers).map(|_| Owner::new(RING_CHUNKS, Chunk::new)).collect();
    let place = |owner: &Owner<Chunk>| {
        Ok(Place {
            ring: owner.ring().clone(),
            doorbell: Doorbell::new()?,
            lends: AtomicBool::new(false),
            load: AtomicU64::new(0),
        })
    };
    let places: Arc<[Place]> = owners.iter().map(place).collect::<io::Result<_>>()?;
    let member = |(id, owner)| Member {
        id,
        places: places.clone(),
        owner,
        lending: Lending::default(),
        lends: false,
        leaves: false,
        short_since_ns: 0,
        pause_ns: PAUSE.as_nanos() as u64,
        helpers: 0,
        gauge: Gauge::default(),
        clock,
        opened: Returned::default(),
        sealed: Returned::default(),
        spare: Spare::new(RING_CHUNKS + COMMIT_CHUNKS),
    };
    Ok(owners.into_iter().enumerate().map(member).collect())
}

impl Member {
    /// Chooses when it lends.
    pub fn set_lending(&mut self, lending: Lending) {
        self.lending = lending;
        // Not at the end of the window, but with the next turn.
        self.gauge.cut_window();
    }

    /// Chooses how long it leaves packets in its ports when its ring is full, before it drops any.
    pub fn set_pause(&mut self, pause: Duration) {
        self.pause_ns = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Whether packets of this worker are out.
    pub(crate) fn is_waiting(&self) -> bool {
        self.owner.pending() != 0
    }

    /// Packets of this worker that are out, at most.
    pub(crate) fn lent(&self) -> usize {
        self.owner.pending() * CHUNK_PACKETS
    }

    /// Whether the worker does everything by itself: nothing is lent, out, or has come back.
    #[inline]
    pub(crate) fn is_aside(&self) -> bool {
        !self.is_in_use() && !self.is_waiting()
    }

    /// Whether anything is to be lent or has come back.
    #[inline]
    fn is_in_use(&self) -> bool {
        self.lends || !self.opened.is_empty() || !self.sealed.is_empty()
    }

    /// Whether it lends its work.
    #[inline]
    pub(crate) fn lends(&self) -> bool {
        self.lends
    }

    /// Whether it can lend packets now that follow.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.owner.room() != 0
    }

    /// Whether all that has come back needs no stage but `send`.
    #[inline]
    pub(crate) fn brings_done(&self) -> bool {
        !self.opened.needs_stages() && !self.sealed.needs_stages()
    }

    /// Packets that have come back opened as those before, and how.
    #[inline]
    pub(crate) fn openings(
        &mut self,
    ) -> impl Iterator<Item = (&Opening<'static>, &mut [Slot<'static>])> {
        self.opened.openings()
    }

    /// Moves what has come back and needs no stage but `send` to the end of a batch.
    #[inline]
    pub(crate) fn rejoin(&mut self, batch: &mut Batch<'_>) {
        self.opened.join(&mut batch.slots, &mut self.spare);
        self.sealed.join(&mut batch.slots, &mut self.spare);
    }

    /// Whether it should receive nothing now, as what it would have to lend may find no room.
    pub(crate) fn is_short(&mut self, now_ns: u64) -> bool {
        if self.owner.room() >= TURN_CHUNKS {
            self.short_since_ns = 0;
            return false;
        }
        if self.short_since_ns == 0 {
            self.short_since_ns = now_ns;
        }
        now_ns.saturating_sub(self.short_since_ns) < self.pause_ns
    }

    /// Whether it waits for what is out, to do everything by itself from then on.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaves
    }

    /// Begins a turn: judges the load, and takes back what is done.
    #[inline]
    pub(crate) fn begin_turn(&mut self, now_ns: u64) {
        if self.gauge.begin_turn(now_ns) {
            self.judge(now_ns);
        }
        // Not in the turn in which the last packets come back: they join it behind those that it receives.
        if self.leaves && !self.is_waiting() {
            self.set_lends(false);
        }
        let (opened, sealed, gauge) = (&mut self.opened, &mut self.sealed, &mut self.gauge);
        for _ in 0..COMMIT_CHUNKS {
            let committed = self.owner.commit_if(|chunk| {
                match chunk.job {
                    Job::Open => opened.take(chunk),
                    // Their numbers are accepted before the stages accept any: those of packets before them have to be by then.
                    Job::OpenAs(_) if opened.needs_stages() => return false,
                    Job::OpenAs(_) => opened.take(chunk),
                    Job::Seal | Job::SealAs(_) => sealed.take(chunk),
                }
                gauge.add_help(chunk.helped_ns);
                true
            });
            if !committed {
                break;
            }
        }
    }

    /// Ends a turn in which `received` packets came: does some of its own work if more is out than the
    /// others can do, else some of theirs. Whether there was anything to do.
    #[inline]
    pub(crate) fn end_turn(&mut self, received: usize) -> bool {
        let mut worked = false;
        if self.owner.pending() != 0 && self.lending != Lending::Dispatch {
            worked = self.work_own(received);
        }
        let mut helped = false;
        if !self.lends && received < BATCH_PACKETS {
            helped = self.help();
        }
        self.gauge.end_turn(received, worked);
        worked || helped || self.owner.pending() != 0
    }

    /// The owner's share of its own work.
    fn work_own(&mut self, received: usize) -> bool {
        // Without packets there is nothing better to do; with a ring that is nearly full, room is needed.
        let keep = if received == 0 || self.leaves { 0 } else { self.helpers * CHUNKS_PER_HELPER };
        let mut worked = false;
        while self.owner.ring().unclaimed() > keep || self.owner.room() < TURN_CHUNKS {
            if !self.owner.ring().work(Chunk::work) {
                break;
            }
            worked = true;
            if keep == 0 {
                break;
            }
        }
        worked
    }

    /// Does a chunk of another worker's.
    fn help(&mut self) -> bool {
        let count = self.places.len();
        for step in 1..count {
            let place = &self.places[(self.id + step) % count];
            if place.ring.unclaimed() == 0 {
                continue;
            }
            let clock = self.clock;
            let worked = place.ring.work(|chunk| {
                let began_ns = clock.now_ns();
                chunk.work();
                chunk.helped_ns = clock.now_ns().saturating_sub(began_ns);
            });
            if worked {
                return true;
            }
        }
        false
    }

    /// The end of a window: shows the load, and begins or ends lending.
    #[cold]
    fn judge(&mut self, now_ns: u64) {
        let own = &self.places[self.id];
        let others = || (0..self.places.len()).filter(|id| *id != self.id);
        let idle = |id: &usize| self.places[*id].load.load(Relaxed) < IDLE_PERMILLE;
        let helpers = others().filter(idle).count();
        let wish = self.gauge.close(now_ns, self.lends, helpers != 0);
        own.load.store(self.gauge.load(), Relaxed);
        let lends = match (self.lending, wish) {
            (Lending::Always | Lending::Dispatch, _) | (Lending::AtLimit, Wish::Help) => true,
            (Lending::Never, _) | (Lending::AtLimit, Wish::Alone) => false,
            (Lending::AtLimit, Wish::Stay) => self.lends,
        };
        self.helpers = helpers.max(1) as u64;
        self.leaves = self.lends && !lends;
        if lends && !self.lends {
            self.set_lends(true);
        }
    }

    fn set_lends(&mut self, lends: bool) {
        (self.lends, self.leaves) = (lends, false);
        self.places[self.id].lends.store(lends, Relaxed);
        if lends {
            let others = (0..self.places.len()).filter(|id| *id != self.id);
            others.for_each(|id| self.places[id].doorbell.ring());
        }
    }

    /// Whether another worker lends, so that this one must not sleep.
    pub(crate) fn is_needed(&self) -> bool {
        self.places.iter().any(|place| place.lends.load(Relaxed))
    }

    /// Is about to sleep: the others may count on it.
    pub(crate) fn rest(&self) {
        self.places[self.id].load.store(0, Relaxed);
    }

    /// What wakes it when another needs it.
    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.places[self.id].doorbell
    }

    /// Takes back all that is out, done or not, and gives it up. For a worker that stops.
    pub(crate) fn discard(&mut self, pool: &mut Pool, counters: &Counters) {
        let mut slots = Vec::new();
        self.set_lends(false);
        while self.owner.pending() != 0 {
            // What nobody has claimed is claimed here and left as it is.
            self.owner.ring().work(|_| ());
            // What somebody works on is done in a few microseconds of that thread.
            if !self.owner.commit(|chunk| chunk.empty(&mut slots)) {
                std::thread::yield_now();
            }
        }
        self.opened.join(&mut slots, &mut self.spare);
        self.sealed.join(&mut slots, &mut self.spare);
        counters.count(Verdict::Stopped, slots.len() as u64);
        slots.into_iter().for_each(|slot| pool.give(slot.frame));
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // What is out refers to the worker's view, which goes next.
        while self.owner.pending() != 0 {
            self.owner.ring().work(|_| ());
            if !self.owner.commit(|chunk| chunk.empty(&mut Vec::new())) {
                std::thread::yield_now();
            }
        }
    }
}
