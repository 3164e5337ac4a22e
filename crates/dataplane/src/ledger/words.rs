//! The words of an entry: what packets change in an SA.
//!
//! ```text
//!  16 words, then the ring of a wide replay window (up to 256 words)
//!   0 claim  1 sent  2 top  3 packets  4 bytes  5 uses  6 … │ … 9 ring  10 tag  11 added  12 … 15 errors
//! ```
//!
//! What is read and written for every packet is in the first line. IKE daemons ask for windows of up to 32
//! packets unless told otherwise, whose ring is in it as well; up to 96 it ends in the second line.
//!
//! Of the first and the last use the *tick* is kept, a quarter of a second (XFRM tells the second): most packets
//! find their own there already, and the two are one word.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::counters::{UsageSnapshot, bump};
use crate::cpu::{Cache, prefetch};
use crate::replay::ring_words;

/// Words before the ring: two cache lines, the unit of adjacent-line prefetch.
pub(super) const HEAD_WORDS: usize = 16;

pub(super) mod word {
    pub(in crate::ledger) const CLAIM: usize = 0;
    pub(in crate::ledger) const SENT: usize = 1;
    pub(in crate::ledger) const TOP: usize = 2;
    pub(in crate::ledger) const PACKETS: usize = 3;
    pub(in crate::ledger) const BYTES: usize = 4;
    /// The ticks of the first use (upper half) and of the last, each plus one; 0 is never.
    pub(in crate::ledger) const USES: usize = 5;
    pub(super) const RING: std::ops::Range<usize> = 6..10;
    pub(in crate::ledger) const TAG: usize = 10;
    pub(in crate::ledger) const ADDED: usize = 11;
    pub(in crate::ledger) const ERRORS: std::ops::Range<usize> = 12..16;
}

/// A tick has so many bits of nanoseconds, 268 ms: half of a word counts them for 36 years.
pub(super) const TICK_SHIFT: u32 = 28;

/// Kinds of packets that an SA refused, as an entry counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The integrity check failed.
    Integrity,
    /// Received twice.
    Replayed,
    /// Left of the window, or zero.
    ReplayOld,
    /// Authentic, and died of something else.
    Other,
}

/// One SA's words: what a packet needs of an entry, without a look at who owns it.
///
/// Packed, as a line that has one has no room to spare.
#[derive(Clone, Copy)]
#[repr(Rust, packed(2))]
pub(crate) struct Words {
    /// The first of [`HEAD_WORDS`]; a ring that is not among them comes right behind them.
    first: NonNull<AtomicU64>,
    /// Where the ring begins, and how many words it has but for one, which is a power of two less one. Without a ring, one word
    /// that is none.
    ring_start: u8,
    ring_mask: u8,
}

// SAFETY: it leads to what shared references lead to.
unsafe impl Send for Words where &'static AtomicU64: Send {}
// SAFETY: as above.
unsafe impl Sync for Words where &'static AtomicU64: Sync {}

impl Words {
    /// Those of an entry for a window of so many packets. `None` if there are not enough.
    pub(super) fn of(words: &'static [AtomicU64], window: u32) -> Option<Words> {
        let first = NonNull::from(words.get(..words_for(window))?).cast();
        let ring = ring_for(window);
        let ring_mask = u8::try_from(ring.len().max(1) - 1).ok()?;
        Some(Words { first, ring_start: ring.start as u8, ring_mask })
    }

    #[inline(always)]
    pub(super) fn head(self) -> &'static [AtomicU64; HEAD_WORDS] {
        // SAFETY: there are so many words, as `of` saw, for ever.
        unsafe { self.first.cast().as_ref() }
    }

    /// The words of the replay window; none where that is off.
    pub(crate) fn ring(self) -> impl Iterator<Item = &'static AtomicU64> {
        let words = if self.ring_mask == 0 { 0 } else { u64::from(self.ring_mask) + 1 };
        (0..words).map(move |at| self.ring_word(at))
    }

    /// The word of the ring that a count arrives at which goes around it; one that is none where there is no ring.
    #[inline(always)]
    pub(crate) fn ring_word(self, count: u64) -> &'static AtomicU64 {
        let at = usize::from(self.ring_start) + (count as usize & usize::from(self.ring_mask));
        // SAFETY: there are so many words, as `of` saw, for ever.
        unsafe { self.first.add(at).as_ref() }
    }

    /// The lower bits of such a count, which say the word; those above say how often it went around.
    #[inline(always)]
    pub(crate) fn ring_bits(self) -> u32 {
        (u32::from(self.ring_mask) + 1).trailing_zeros()
    }

    /// The last sequence number sent.
    #[inline]
    pub(crate) fn sent(self) -> &'static AtomicU64 {
        &self.head()[word::SENT]
    }

    /// The highest sequence number received.
    #[inline]
    pub(crate) fn top(self) -> &'static AtomicU64 {
        &self.head()[word::TOP]
    }

    /// Packets counted so far.
    #[inline]
    pub(crate) fn packets(self) -> u64 {
        self.head()[word::PACKETS].load(Relaxed)
    }

    /// Bytes counted so far.
    #[inline]
    pub(crate) fn bytes(self) -> u64 {
        self.head()[word::BYTES].load(Relaxed)
    }

    /// Asks for the line that every packet needs.
    #[inline]
    pub(crate) fn prefetch(self, cache: Cache) {
        prefetch(self.head(), cache);
    }

    /// Who may change the words (`claim.rs`); not of the ledger's matters, but needed with them.
    #[inline]
    pub(crate) fn claim(self) -> &'static AtomicU64 {
        &self.head()[word::CLAIM]
    }

    /// Counts packets: `alone` if nobody else may. How many there were before.
    #[inline]
    pub(crate) fn count(self, packets: u64, bytes: u64, now_ns: u64, alone: bool) -> u64 {
        let before = if alone {
            bump(&self.head()[word::BYTES], bytes);
            bump(&self.head()[word::PACKETS], packets)
        } else {
            self.head()[word::BYTES].fetch_add(bytes, Relaxed);
            self.head()[word::PACKETS].fetch_add(packets, Relaxed)
        };
        let now = tick(now_ns);
        let uses = self.head()[word::USES].load(Relaxed);
        if u64::from(uses as u32) != now {
            let first = if uses == 0 { now } else { uses >> 32 };
            // Whoever was quicker wrote the same tick.
            let word = &self.head()[word::USES];
            let _ = word.compare_exchange(uses, first << 32 | now, Relaxed, Relaxed);
        }
        before
    }

    /// Counts a packet that was refused.
    pub(crate) fn count_error(self, kind: ErrorKind) {
        self.head()[word::ERRORS][kind as usize].fetch_add(1, Relaxed);
    }

    /// Packets refused.
    pub(crate) fn errors(self, kind: ErrorKind) -> u64 {
        self.head()[word::ERRORS][kind as usize].load(Relaxed)
    }

    /// Packets, bytes, and times of use to the tick.
    pub(crate) fn usage(self) -> UsageSnapshot {
        let uses = self.head()[word::USES].load(Relaxed);
        UsageSnapshot {
            packets: self.packets(),
            bytes: self.bytes(),
            first_use_ns: tick_ns(uses >> 32),
            last_use_ns: tick_ns(uses & u64::from(u32::MAX)),
        }
    }

    /// When the SA was added, on the data plane's clock.
    pub(crate) fn added_ns(self) -> u64 {
        self.head()[word::ADDED].load(Relaxed)
    }

    /// Sets when the SA was added.
    pub(crate) fn set_added_ns(self, added_ns: u64) {
        self.head()[word::ADDED].store(added_ns, Relaxed);
    }

    /// Goes on with the counters of the entry whose place this one takes.
    pub(crate) fn count_on(self, old: Words) {
        let counted = [word::PACKETS, word::BYTES, word::USES, word::ADDED];
        for index in counted.into_iter().chain(word::ERRORS) {
            self.head()[index].store(old.head()[index].load(Relaxed), Relaxed);
        }
    }
}

/// Where in an entry the ring of a window is.
fn ring_for(window: u32) -> Range<usize> {
    let len = ring_words(window);
    let start = if len <= word::RING.len() { word::RING.start } else { HEAD_WORDS };
    start..start + len
}

/// Words of an entry for a window of so many packets.
pub(super) fn words_for(window: u32) -> usize {
    HEAD_WORDS.max(ring_for(window).end)
}

/// A time as it is kept, its tick plus one: what has a time is never 0.
#[inline]
fn tick(ns: u64) -> u64 {
    u64::from(((ns >> TICK_SHIFT) as u32).saturating_add(1))
}

/// When a tick that is kept began, 0 for never. The first since the clock began is not never either.
fn tick_ns(kept: u64) -> u64 {
    kept.checked_sub(1).map_or(0, |tick| (tick << TICK_SHIFT).max(1))
}
