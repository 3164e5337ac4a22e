//! What is counted, and where it lies.
//!
//! A worker's counters have one writer, so they are plain loads and stores of atomics that control
//! may read at any time. The counters of SAs and policies may have several writers. Nothing here
//! is ever reset: readers subtract.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::verdict::{Outcome, Verdict};

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

    pub(crate) fn count_own_sa(&self) {
        bump(&self.own_sa, 1);
    }

    pub(crate) fn count_fallback_sa(&self) {
        bump(&self.fallback_sa, 1);
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

    /// Packets with a verdict of one outcome.
    pub fn with_outcome(&self, outcome: Outcome) -> u64 {
        Verdict::ALL.iter().filter(|v| v.outcome() == outcome).map(|v| self.of(*v)).sum()
    }
}

#[inline]
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed) + by, Relaxed);
}

/// Packets, bytes and time of last use of a policy; any worker may write. An SA's are in the ledger.
///
/// Most policies are one worker's. The first to count claims half of the words, and adds to them
/// without an atomic operation; all others share the other half. What is read is their sum.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Usage {
    /// The seat of the worker that has the next two words for itself; 0 if none has yet.
    claimed_by: AtomicU64,
    own_packets: AtomicU64,
    own_bytes: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
    first_use_ns: AtomicU64,
    last_use_ns: AtomicU64,
}

/// A reading of [`Usage`], or of an SA's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageSnapshot {
    /// Packets.
    pub packets: u64,
    /// Bytes of the inner packets, their IP headers included, as the kernel counts.
    pub bytes: u64,
    /// First use on the data plane's [`Clock`](crate::clock::Clock); 0 means never.
    pub first_use_ns: u64,
    /// Last use on the same clock; 0 means never.
    pub last_use_ns: u64,
}

impl Usage {
    /// Counts packets, for the worker of a seat.
    #[inline]
    pub(crate) fn count(&self, seat: u16, packets: u64, bytes: u64, now_ns: u64) {
        if self.is_own(seat) {
            bump(&self.own_packets, packets);
            bump(&self.own_bytes, bytes);
        } else {
            self.packets.fetch_add(packets, Relaxed);
            self.bytes.fetch_add(bytes, Relaxed);
        }
        // The clock is read once per turn, so most packets find their own time here already.
        if self.last_use_ns.load(Relaxed) != now_ns {
            self.last_use_ns.store(now_ns, Relaxed);
            if self.first_use_ns.load(Relaxed) == 0 {
                let _ = self.first_use_ns.compare_exchange(0, now_ns, Relaxed, Relaxed);
            }
        }
    }

    /// Whether the claimed words are this worker's.
    #[inline]
    fn is_own(&self, seat: u16) -> bool {
        let claimed_by = self.claimed_by.load(Relaxed);
        claimed_by == u64::from(seat) && seat != 0 || claimed_by == 0 && self.claim(seat)
    }

    #[cold]
    fn claim(&self, seat: u16) -> bool {
        seat != 0 && self.claimed_by.compare_exchange(0, seat.into(), Relaxed, Relaxed).is_ok()
    }

    /// Packets counted so far.
    #[inline]
    pub fn packets(&self) -> u64 {
        self.own_packets.load(Relaxed) + self.packets.load(Relaxed)
    }

    /// Bytes counted so far.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.own_bytes.load(Relaxed) + self.bytes.load(Relaxed)
    }

    /// Reads everything.
    pub fn snapshot(&self) -> UsageSnapshot {
        UsageSnapshot {
            packets: self.packets(),
            bytes: self.bytes(),
            first_use_ns: self.first_use_ns.load(Relaxed),
            last_use_ns: self.last_use_ns.load(Relaxed),
        }
    }
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
        assert_eq!(snapshot.with_outcome(Outcome::Dropped), 2);
        assert_eq!((snapshot.received, snapshot.received_bytes), (6, 600));
        assert_eq!((snapshot.turns, snapshot.busy_turns), (2, 1));
    }

    #[test]
    fn usage_keeps_first_and_last_time() {
        let usage = Usage::default();
        usage.count(1, 2, 150, 5);
        usage.count(1, 1, 1, 9);
        let expected = UsageSnapshot { packets: 3, bytes: 151, first_use_ns: 5, last_use_ns: 9 };
        assert_eq!(usage.snapshot(), expected);
    }

    #[test]
    fn usage_is_the_sum_of_all_workers() {
        let usage = Usage::default();
        std::thread::scope(|scope| {
            for seat in [1, 2, 0, 3] {
                let usage = &usage;
                scope.spawn(move || (0..5000).for_each(|n| usage.count(seat, 1, 10, n + 1)));
            }
        });
        assert_eq!((usage.packets(), usage.bytes()), (20_000, 200_000));
    }
}
