//! Receive-side accounting of one stream: received, lost, duplicated, reordered, late, damaged and
//! misrouted are told apart, in memory that does not grow with the run.
//!
//! Definitions: *lost* RFC 2680 (never arrived within the window), *duplicated* RFC 5560 §3
//! (arrived again), *reordered* RFC 4737 §3.3 (Type-P-Reordered: smaller than the next expected).
//! Order is judged per lane. A gateway promises order within an SA, not between SAs, so the lab
//! uses as many lanes as tunnels, or as flows where a tunnel has an SA for each CPU; frame `n`
//! belongs to lane `n mod lanes`, as in [`crate::traffic::Cycle`].
//!
//! Latencies and rates are not kept here.

use crate::result::Counts;

/// Sequence numbers that can still arrive: behind the newest one, a frame this old is late. At
/// 1 Mpps it is a quarter of a second; a path that holds frames longer shows them as late.
pub const WINDOW_FRAMES: u64 = 1 << 18;
/// A sequence number this far beyond the newest one cannot be real (days at any rate the lab
/// reaches); the frame counts as damaged, so that one bad number does not void the books.
const LEAP_FRAMES_MAX: u64 = 1 << 36;
const WORD_BITS: u64 = 64;

/// The books of one stream.
#[derive(Debug, Clone)]
pub struct Tracker {
    /// One bit per sequence number of the window, at `number mod window`; set when received.
    seen: Vec<u64>,
    window: u64,
    /// Everything below is settled: received or lost, for good.
    floor: u64,
    /// One more than the newest number seen, never below `floor`.
    next: u64,
    /// Per lane: one more than the newest number seen.
    lanes: Vec<u64>,
    received: u64,
    lost_below_floor: u64,
    reordered: u64,
    duplicated: u64,
    corrupted: u64,
    misrouted: u64,
    late: u64,
}

/// What became of one received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// First copy, in order within its lane.
    InOrder,
    /// First copy, after a later frame of its lane.
    Reordered,
    /// A copy of a frame that was here before.
    Duplicate,
    /// Its number was settled already: a lost frame after all, or a very old copy.
    Late,
    /// The number cannot be right.
    Implausible,
}

impl Tracker {
    /// Books for a stream whose order is judged in `lanes` lanes, with the usual window.
    pub fn new(lanes: u32) -> Tracker {
        Tracker::with_window(lanes, WINDOW_FRAMES)
    }

    /// The same with another window, rounded up to whole 64-bit words.
    pub fn with_window(lanes: u32, window_frames: u64) -> Tracker {
        let words = window_frames.div_ceil(WORD_BITS).max(1);
        Tracker {
            seen: vec![0; words as usize],
            window: words * WORD_BITS,
            floor: 0,
            next: 0,
            lanes: vec![0; lanes.max(1) as usize],
            received: 0,
            lost_below_floor: 0,
            reordered: 0,
            duplicated: 0,
            corrupted: 0,
            misrouted: 0,
            late: 0,
        }
    }

    /// Books one intact frame at the right port.
    pub fn receive(&mut self, sequence: u64) -> Fate {
        if sequence < self.floor {
            self.late += 1;
            return Fate::Late;
        }
        if sequence - self.floor >= LEAP_FRAMES_MAX {
            self.corrupted += 1;
            return Fate::Implausible;
        }
        if sequence >= self.floor + self.window {
            self.settle(sequence + 1 - self.window);
        }
        let (word, bit) = self.place(sequence);
        if self.seen[word] & bit != 0 {
            self.duplicated += 1;
            return Fate::Duplicate;
        }
        self.seen[word] |= bit;
        self.received += 1;
        self.next = self.next.max(sequence + 1);
        let lane = (sequence % self.lanes.len() as u64) as usize;
        if sequence < self.lanes[lane] {
            self.reordered += 1;
            return Fate::Reordered;
        }
        self.lanes[lane] = sequence + 1;
        Fate::InOrder
    }

    /// Books a frame with a test signature whose checksum or filler is wrong.
    pub fn corrupt(&mut self) {
        self.corrupted += 1;
    }

    /// Books an intact frame of this stream at a port where it does not belong.
    pub fn misroute(&mut self) {
        self.misrouted += 1;
    }

    /// Ends a step after its drain: the sender sent all numbers below `sent_end`; what has not
    /// arrived by now is lost, and late if it still comes.
    pub fn close(&mut self, sent_end: u64) {
        self.settle(sent_end.max(self.next));
    }

    /// Frames known to be missing now: the lost ones and the gaps before the newest frame. Frames
    /// in flight behind the newest one are not in it, so it is meaningful while sending.
    pub fn missing(&self) -> u64 {
        self.next - self.received
    }

    /// Frames received so far, each counted once.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The books so far; those of a step are what [`Counts::since`] its start.
    /// `expected` and `sent` are the sender's to fill in; here both are what is settled.
    pub fn counts(&self) -> Counts {
        Counts {
            expected: self.received + self.lost_below_floor,
            sent: self.received + self.lost_below_floor,
            received: self.received,
            lost: self.lost_below_floor,
            reordered: self.reordered,
            duplicated: self.duplicated,
            corrupted: self.corrupted,
            misrouted: self.misrouted,
            late: self.late,
        }
    }

    /// Moves the floor up to `floor`; unset numbers below it become lost.
    fn settle(&mut self, floor: u64) {
        if floor <= self.floor {
            return;
        }
        // Numbers a whole window above the old floor were never entered.
        let entered_end = floor.min(self.floor + self.window);
        self.lost_below_floor += floor - entered_end;
        let mut at = self.floor;
        while at < entered_end {
            let (word, bit) = self.place(at);
            if bit == 1 && entered_end - at >= WORD_BITS {
                self.lost_below_floor += u64::from(self.seen[word].count_zeros());
                self.seen[word] = 0;
                at += WORD_BITS;
            } else {
                self.lost_below_floor += u64::from(self.seen[word] & bit == 0);
                self.seen[word] &= !bit;
                at += 1;
            }
        }
        self.floor = floor;
        self.next = self.next.max(floor);
    }

    fn place(&self, sequence: u64) -> (usize, u64) {
        let index = sequence % self.window;
        ((index / WORD_BITS) as usize, 1 << (index % WORD_BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The stupid twin: remembers every number for ever.
    struct Twin {
        window: u64,
        lanes: u64,
        seen: BTreeSet<u64>,
        order: Vec<u64>,
        floor: u64,
        counts: Counts,
    }

    impl Twin {
        fn new(lanes: u32, window: u64) -> Twin {
            Twin {
                window,
                lanes: lanes.into(),
                seen: BTreeSet::new(),
                order: Vec::new(),
                floor: 0,
                counts: Counts::default(),
            }
        }

        fn receive(&mut self, sequence: u64) {
            if sequence < self.floor {
                self.counts.late += 1;
                return;
            }
            self.floor = self.floor.max((sequence + 1).saturating_sub(self.window));
            if !self.seen.insert(sequence) {
                self.counts.duplicated += 1;
                return;
            }
            let later = self
                .order
                .iter()
                .any(|&other| other % self.lanes == sequence % self.lanes && other > sequence);
            self.counts.reordered += u64::from(later);
            self.order.push(sequence);
            self.counts.received += 1;
        }

        fn close(&mut self, sent_end: u64) {
            let newest = self.seen.last().map_or(0, |last| last + 1);
            self.floor = self.floor.max(sent_end).max(newest);
        }

        fn counts(&self) -> Counts {
            let lost = self.floor - self.seen.range(..self.floor).count() as u64;
            let settled = self.counts.received + lost;
            Counts { lost, expected: settled, sent: settled, ..self.counts }
        }
    }

    #[test]
    fn each_fate_has_its_own_count() {
        let mut books = Tracker::with_window(1, 64);
        assert_eq!(books.receive(0), Fate::InOrder);
        assert_eq!(books.receive(2), Fate::InOrder);
        assert_eq!(books.missing(), 1);
        assert_eq!(books.receive(1), Fate::Reordered);
        assert_eq!(books.receive(1), Fate::Duplicate);
        assert_eq!(books.missing(), 0);
        assert_eq!(books.receive(100), Fate::InOrder);
        assert_eq!(books.receive(36), Fate::Late);
        assert_eq!(books.receive(u64::MAX), Fate::Implausible);
        books.corrupt();
        books.misroute();
        books.close(110);
        let expected = Counts {
            expected: 110,
            sent: 110,
            received: 4,
            lost: 106,
            reordered: 1,
            duplicated: 1,
            corrupted: 2,
            misrouted: 1,
            late: 1,
        };
        assert_eq!(books.counts(), expected);
        assert_eq!(books.receive(109), Fate::Late);
    }

    #[test]
    fn order_is_judged_within_a_lane_only() {
        let mut one = Tracker::new(1);
        let mut two = Tracker::new(2);
        for sequence in [1, 0, 3, 2, 5, 4] {
            one.receive(sequence);
            two.receive(sequence);
        }
        assert_eq!((one.counts().reordered, two.counts().reordered), (3, 0));
    }

    #[derive(Debug, Clone)]
    enum Event {
        Receive(u64),
        Close(u64),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            20 => (0u64..600).prop_map(Event::Receive),
            1 => (0u64..700).prop_map(Event::Close),
        ];
        // Mostly ascending with disturbances: sort in chunks so that windows really move.
        prop::collection::vec(event, 0..400).prop_map(|mut events| {
            for chunk in events.chunks_mut(37) {
                chunk.sort_by_key(|event| match event {
                    Event::Receive(n) => *n / 8,
                    Event::Close(n) => *n / 8,
                });
            }
            events
        })
    }

    proptest! {
        #[test]
        fn equals_the_twin(
            events in events(),
            lanes in 1u32..5,
            words in 1u64..5,
        ) {
            let window = words * 64;
            let mut books = Tracker::with_window(lanes, window);
            let mut twin = Twin::new(lanes, window);
            for event in events {
                match event {
                    Event::Receive(n) => {
                        books.receive(n);
                        twin.receive(n);
                    }
                    Event::Close(n) => {
                        books.close(n);
                        twin.close(n);
                    }
                }
                // Settled losses agree at every moment, not only in the end.
                let (a, b) = (books.counts(), twin.counts());
                prop_assert_eq!(a, b);
            }
            books.close(1000);
            twin.close(1000);
            prop_assert_eq!(books.counts(), twin.counts());
            prop_assert_eq!(books.counts().expected, 1000);
        }

        /// A perfect path loses nothing, whatever the window and however far the numbers go.
        #[test]
        fn a_perfect_path_is_clean(start in 0u64..1 << 30, length in 1u64..500) {
            let mut books = Tracker::with_window(3, 64);
            books.close(start);
            for n in start..start + length {
                prop_assert_eq!(books.receive(n), Fate::InOrder);
            }
            books.close(start + length);
            prop_assert_eq!(books.counts().lost, start);
            prop_assert_eq!(books.missing(), start);
        }
    }
}
