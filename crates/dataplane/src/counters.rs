//! What is counted, and where it lies.
//!
//! A worker's counters have one writer, so they are plain loads and stores of atomics that control
//! may read at any time. The counters of SAs and policies may have several writers. Nothing here
//! is ever reset: readers subtract.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::verdict::Verdict;

/// The counters of one worker. Aligned to two cache lines, as adjacent-line prefetch fetches pairs.
#[repr(align(128))]
#[derive(Debug)]
pub struct Counters {
    verdicts: [AtomicU64; Verdict::COUNT],
    received: AtomicU64,
    received_bytes: AtomicU64,
    turns: AtomicU64,
    busy_turns: AtomicU64,
    sleeps: AtomicU64,
    events_dropped: AtomicU64,
    own_sa: AtomicU64,
    fallback_sa: AtomicU64,
    followed: AtomicU64,
}

/// A reading of [`Counters`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterSnapshot {
    /// Packets by [`Verdict::index`].
    pub verdicts: [u64; Verdict::COUNT],
    /// Packets taken from the ports.
    pub received: u64,
    /// Their bytes, link layer headers included.
    pub received_bytes: u64,
    /// Turns of the loop.
    pub turns: u64,
    /// Turns that found packets.
    pub busy_turns: u64,
    /// How often the worker slept for want of packets.
    pub sleeps: u64,
    /// Events for control that found the channel full.
    pub events_dropped: u64,
    /// Packets for which the worker chose an outbound SA of its own (RFC 9611).
    pub own_sa: u64,
    /// Packets for which it chose the SA for all, having none of its own where it should.
    pub fallback_sa: u64,
    /// Packets that became just what those before them became, or were sealed in the lane (`follow.rs`).
    pub followed: u64,
}

impl Counters {
    /// All zero.
    pub fn new() -> Counters {
        Counters {
            verdicts: std::array::from_fn(|_| AtomicU64::new(0)),
            received: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            busy_turns: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            events_dropped: AtomicU64::new(0),
            own_sa: AtomicU64::new(0),
            fallback_sa: AtomicU64::new(0),
            followed: AtomicU64::new(0),
        }
    }

    /// Counts packets that ended so. For the owning worker alone.
    #[inline]
    pub(crate) fn count(&self, verdict: Verdict, packets: u64) {
        bump(&self.verdicts[verdict.index()], packets);
    }

    /// Counts packets taken from a port. For the owning worker alone.
    #[inline]
    pub(crate) fn count_received(&self, packets: u64, bytes: u64) {
        bump(&self.received, packets);
        bump(&self.received_bytes, bytes);
    }

    /// Counts a turn of the loop. For the owning worker alone.
    #[inline]
    pub(crate) fn count_turn(&self, packets: usize) {
        bump(&self.turns, 1);
        bump(&self.busy_turns, u64::from(packets != 0));
    }

    pub(crate) fn count_sleep(&self) {
        bump(&self.sleeps, 1);
    }

    pub(crate) fn count_event_dropped(&self) {
        bump(&self.events_dropped, 1);
    }

    pub(crate) fn count_own_sa(&self, packets: u64) {
        bump(&self.own_sa, packets);
    }

    pub(crate) fn count_fallback_sa(&self) {
        bump(&self.fallback_sa, 1);
    }

    pub(crate) fn count_followed(&self, packets: u64) {
        bump(&self.followed, packets);
    }

    /// Reads everything. Not one instant: the worker goes on counting meanwhile.
    pub fn snapshot(&self) -> CounterSnapshot {
        CounterSnapshot {
            verdicts: std::array::from_fn(|index| self.verdicts[index].load(Relaxed)),
            received: self.received.load(Relaxed),
            received_bytes: self.received_bytes.load(Relaxed),
            turns: self.turns.load(Relaxed),
            busy_turns: self.busy_turns.load(Relaxed),
            sleeps: self.sleeps.load(Relaxed),
            events_dropped: self.events_dropped.load(Relaxed),
            own_sa: self.own_sa.load(Relaxed),
            fallback_sa: self.fallback_sa.load(Relaxed),
            followed: self.followed.load(Relaxed),
        }
    }
}

impl Default for Counters {
    fn default() -> Self {
        Counters::new()
    }
}

impl CounterSnapshot {
    /// Packets that ended with a verdict.
    pub fn of(&self, verdict: Verdict) -> u64 {
        self.verdicts[verdict.index()]
    }

    /// Packets with any verdict: those received, less those waiting in a transmit queue.
    pub fn decided(&self) -> u64 {
        self.verdicts.iter().sum()
    }
}

/// Adds to a counter that nobody else changes; what it was.
#[inline]
pub(crate) fn bump(counter: &AtomicU64, by: u64) -> u64 {
    let before = counter.load(Relaxed);
    counter.store(before + by, Relaxed);
    before
}

/// Takes back what [`bump`] added.
pub(crate) fn unbump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_sub(by), Relaxed);
}

/// What a policy or an SA was used for. How a policy counts `policy.rs` says, and an SA the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageSnapshot {
    /// Packets.
    pub packets: u64,
    /// Bytes of the inner packets, their IP headers included, as the kernel counts.
    pub bytes: u64,
    /// First use on the data plane's [`Clock`](crate::clock::Clock), of an SA to a quarter of a second; 0 means never.
    pub first_use_ns: u64,
    /// Last use on the same clock; 0 means never.
    pub last_use_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_sums() {
        let counters = Counters::new();
        counters.count(Verdict::Sealed, 3);
        counters.count(Verdict::NoRoute, 2);
        counters.count_received(6, 600);
        counters.count_turn(6);
        counters.count_turn(0);
        let snapshot = counters.snapshot();
        assert_eq!(snapshot.of(Verdict::Sealed), 3);
        assert_eq!(snapshot.decided(), 5);
        assert_eq!((snapshot.received, snapshot.received_bytes), (6, 600));
        assert_eq!((snapshot.turns, snapshot.busy_turns), (2, 1));
    }
}
