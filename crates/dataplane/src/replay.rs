//! The anti-replay window of one inbound SA (RFC 4303 §3.4.3 and Appendix A).
//!
//! A receiver asks twice: [`Replay::check`] before decryption, which changes nothing, and
//! [`Replay::commit`] after the integrity check, which accepts the number or refuses it. Two
//! workers may do so at once: the window is a ring of 64-bit words, each `epoch (32) ‖ bits (32)`,
//! changed by compare-and-swap. A word only ever moves to a newer epoch, and a number is accepted
//! only by setting its own bit in its own epoch, so no interleaving accepts a number twice.
//!
//! The ring has at least one word more than the window needs (RFC 6479), so that moving on never
//! erases what is still inside. Nothing here authenticates: a caller commits only what it verified.

// By its path, as this file is also compiled elsewhere, by its own (`interleavings`).
#[path = "replay/run.rs"]
pub(crate) mod run;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::cpu::{Cache, prefetch};
use crate::ledger::Words;
use crate::sync::AtomicU64;

/// The widest window, in packets. 4096 is the kernel's own limit (`XFRMA_REPLAY_ESN_VAL_MAX`).
pub const WINDOW_MAX: u32 = 4096;

/// With the window off, how far back a number may lie and still belong to the current high half of
/// an extended sequence number. A quarter of the subspace: far wider than any reordering, and far
/// narrower than half, where the guess would become ambiguous.
const PSEUDO_WINDOW: u32 = 1 << 30;

/// Why a sequence number is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Number zero, which is never sent.
    Zero,
    /// Left of the window.
    Old,
    /// Received before.
    Duplicate,
}

/// Words of the ring of a window: a power of two, none when the window is off. Windows above
/// [`WINDOW_MAX`] are lowered to it.
pub(crate) const fn ring_words(window: u32) -> usize {
    let window = if window > WINDOW_MAX { WINDOW_MAX } else { window };
    match window {
        0 => 0,
        _ => (window.div_ceil(32) as usize + 1).next_power_of_two(),
    }
}

/// The window of one SA, in the words of its entry.
#[derive(Clone, Copy)]
pub struct Replay {
    /// The entry: the highest number accepted, which is the right edge of the window, and the ring, a
    /// power of two of words; none when the window is off.
    entry: Words,
    /// The window in packets, and [`EXTENDED`].
    kind: u16,
}

/// Sequence numbers are extended (RFC 4303 §2.2.1).
const EXTENDED: u16 = 1 << 15;

const _: () = assert!(WINDOW_MAX < EXTENDED as u32);

impl Replay {
    /// A window of `window` packets (0 switches the check off, values above [`WINDOW_MAX`] are
    /// lowered to it) that goes on as its entry is: with what an earlier process received.
    pub(crate) fn resumed(words: Words, window: u32, extended: bool) -> Replay {
        let window = window.min(WINDOW_MAX) as u16;
        Replay { entry: words, kind: if extended { window | EXTENDED } else { window } }
    }

    /// The same in an entry that is new. Everything up to and including `top` counts as received
    /// before.
    pub(crate) fn begun(words: Words, window: u32, extended: bool, top: u64) -> Replay {
        let replay = Replay::resumed(words, window, extended);
        replay.entry.top().store(top, Relaxed);
        if replay.window() != 0 {
            replay.mark_up_to(top);
        }
        replay
    }

    /// As [`Replay::begun`], but of the numbers in the window only those count as received before
    /// that a bitmap laid out as [`Replay::bitmap`] says.
    pub(crate) fn begun_with(
        words: Words,
        window: u32,
        extended: bool,
        top: u64,
        received: &[u32],
    ) -> Replay {
        let replay = Replay::begun(words, window, extended, top);
        for back in 0..u64::from(replay.window()).min(top) {
            let position = (top - back - 1) % u64::from(replay.window());
            let word = received.get((position / 32) as usize).copied().unwrap_or(0);
            if word >> (position % 32) & 1 == 0 {
                let (word, _, bit) = replay.place(top - back);
                word.fetch_and(!bit, Relaxed);
            }
        }
        replay
    }

    /// The full sequence number of a received one, if it may be accepted as things stand. Changes
    /// nothing. Of two with one number, higher than all before, both may pass, as long as none is committed.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: the packet is to be dropped, and counted by this reason.
    #[inline]
    pub fn check(&self, received: u32) -> Result<u64, Refusal> {
        let top = self.entry.top().load(Relaxed);
        // Nearly every number is higher than all before, and not as many higher as one of the subspace before would be.
        let higher = received.wrapping_sub(top as u32);
        if received > top as u32 && higher <= self.window().wrapping_neg() {
            return Ok(top & !u64::from(u32::MAX) | u64::from(received));
        }
        self.check_other(received, top)
    }

    #[inline(never)]
    fn check_other(&self, received: u32, top: u64) -> Result<u64, Refusal> {
        let sequence = self.infer(received, top)?;
        if sequence == 0 {
            return Err(Refusal::Zero);
        }
        if self.window() == 0 {
            return Ok(sequence);
        }
        self.inside(sequence, top)?;
        let (word, epoch, bit) = self.place(sequence);
        let word = word.load(Relaxed);
        match age(word, epoch) {
            Age::Same if word & bit != 0 => Err(Refusal::Duplicate),
            Age::Newer => Err(Refusal::Old),
            Age::Same | Age::Older => Ok(sequence),
        }
    }

    /// Accepts a number that [`check`](Replay::check) returned and whose packet proved authentic.
    ///
    /// # Errors
    ///
    /// [`Refusal::Duplicate`] or [`Refusal::Old`], if another packet was accepted meanwhile that is the
    /// same, or moved the window past this one: the packet is a replay, although it is authentic.
    #[inline]
    pub fn commit(&self, sequence: u64) -> Result<(), Refusal> {
        if self.window() != 0 {
            self.inside(sequence, self.entry.top().load(Acquire))?;
            let (slot, epoch, bit) = self.place(sequence);
            let mut word = slot.load(Relaxed);
            loop {
                let next = match age(word, epoch) {
                    Age::Same if word & bit != 0 => return Err(Refusal::Duplicate),
                    Age::Newer => return Err(Refusal::Old),
                    Age::Same => word | bit,
                    Age::Older => u64::from(epoch) << 32 | bit,
                };
                match slot.compare_exchange_weak(word, next, Relaxed, Relaxed) {
                    Ok(_) => break,
                    Err(seen) => word = seen,
                }
            }
        }
        self.entry.top().fetch_max(sequence, Release);
        Ok(())
    }

    /// Either of the two: `alone` for a caller beside whom nobody writes.
    #[inline(always)]
    pub(crate) fn commit_as(&self, sequence: u64, alone: bool) -> Result<(), Refusal> {
        if alone { self.commit_alone(sequence) } else { self.commit(sequence) }
    }

    /// As [`commit`](Replay::commit), for a caller beside whom nobody writes.
    #[inline]
    pub(crate) fn commit_alone(&self, sequence: u64) -> Result<(), Refusal> {
        let top = self.entry.top().load(Relaxed);
        if self.window() != 0 {
            self.inside(sequence, top)?;
            let (slot, epoch, bit) = self.place(sequence);
            let word = slot.load(Relaxed);
            let next = match age(word, epoch) {
                Age::Same if word & bit != 0 => return Err(Refusal::Duplicate),
                Age::Newer => return Err(Refusal::Old),
                Age::Same => word | bit,
                Age::Older => u64::from(epoch) << 32 | bit,
            };
            slot.store(next, Relaxed);
        }
        if sequence > top {
            // `Release`: the bit before the window's move, whenever this process dies.
            self.entry.top().store(sequence, Release);
        }
        Ok(())
    }

    /// Counts as received what another window of this size received, laid out as [`Replay::bitmap`]
    /// says. Workers may go on meanwhile: a number is only ever added.
    pub fn unite(&self, top: u64, received: &[u32]) {
        for back in (0..u64::from(self.window()).min(top)).rev() {
            let position = (top - back - 1) % u64::from(self.window());
            let word = received.get((position / 32) as usize).copied().unwrap_or(0);
            if word >> (position % 32) & 1 != 0 {
                // Refused is what is known already, or lies left of the window.
                let _ = self.commit(top - back);
            }
        }
        self.entry.top().fetch_max(top, Release);
    }

    /// The entry that the window is in.
    #[inline(always)]
    pub(crate) fn entry(&self) -> Words {
        self.entry
    }

    /// Asks for the word that a received number will be looked for in.
    #[inline]
    pub(crate) fn prefetch(&self, received: u32, cache: Cache) {
        // The ring has far fewer than 2^27 words, so the number's lower half says which.
        prefetch(self.entry.ring_word(u64::from(received / 32)), cache);
    }

    /// The highest number accepted.
    pub fn top(&self) -> u64 {
        self.entry.top().load(Relaxed)
    }

    /// Whether sequence numbers are extended (RFC 4303 §2.2.1).
    #[inline(always)]
    pub(crate) fn is_extended(&self) -> bool {
        self.kind & EXTENDED != 0
    }

    /// The window in packets; 0 means off.
    #[inline(always)]
    pub fn window(&self) -> u32 {
        (self.kind & !EXTENDED).into()
    }

    /// Which numbers of the window were received, as the kernel lays out `xfrm_replay_state_esn`:
    /// number *n* is bit (*n* − 1) mod window. Read while workers change it, so a snapshot only.
    pub fn bitmap(&self) -> Vec<u32> {
        let mut bitmap = vec![0u32; self.window().div_ceil(32) as usize];
        let top = self.top();
        for back in 0..u64::from(self.window()).min(top) {
            let (word, epoch, bit) = self.place(top - back);
            let word = word.load(Relaxed);
            if matches!(age(word, epoch), Age::Same) && word & bit != 0 {
                let position = (top - back - 1) % u64::from(self.window());
                bitmap[(position / 32) as usize] |= 1 << (position % 32);
            }
        }
        bitmap
    }

    /// RFC 4303 Appendix A2.2: which 2^32 numbers the received half belongs to.
    ///
    /// ```text
    /// case A: the window lies in one subspace       case B: it straddles two
    ///    0        Bl====Tl          2^32               =====Tl              Bl====
    ///    +--------+------+------------+                +----+---------------+----+
    ///    | Th + 1 |  Th  |     Th     |                | Th |      Th       |Th-1|
    /// ```
    #[inline]
    fn infer(&self, received: u32, top: u64) -> Result<u64, Refusal> {
        if !self.is_extended() {
            return Ok(u64::from(received));
        }
        let window = if self.window() == 0 { PSEUDO_WINDOW } else { self.window() };
        let (top_high, top_low) = ((top >> 32) as u32, top as u32);
        let bottom_low = top_low.wrapping_sub(window - 1);
        let high = if top_low >= window - 1 {
            if received >= bottom_low { Some(top_high) } else { top_high.checked_add(1) }
        } else if received >= bottom_low {
            top_high.checked_sub(1)
        } else {
            Some(top_high)
        };
        // Below the first subspace, or beyond the last: no such number exists.
        let high = high.ok_or(Refusal::Old)?;
        Ok(u64::from(high) << 32 | u64::from(received))
    }

    #[inline]
    fn inside(&self, sequence: u64, top: u64) -> Result<(), Refusal> {
        // `top - sequence` cannot wrap where it matters; `sequence + window` could.
        if sequence <= top && top - sequence >= u64::from(self.window()) {
            return Err(Refusal::Old);
        }
        Ok(())
    }

    /// Word, epoch and bit of a number, in a window that is on.
    #[inline(always)]
    fn place(&self, sequence: u64) -> (&'static AtomicU64, u32, u64) {
        let block = sequence / 32;
        let epoch = (block >> self.entry.ring_bits()) as u32;
        (self.entry.ring_word(block), epoch, 1 << (sequence % 32))
    }

    /// Marks the part of the ring that the window up to `top` covers as received.
    fn mark_up_to(&self, top: u64) {
        // Whatever lies outside the window is of an older epoch than whatever comes.
        let before = self.place(top).1.wrapping_sub(1);
        for word in self.entry.ring() {
            word.store(u64::from(before) << 32, Relaxed);
        }
        for back in 0..u64::from(self.window()).min(top) {
            let (slot, epoch, bit) = self.place(top - back);
            let word = slot.load(Relaxed);
            let bits = if matches!(age(word, epoch), Age::Same) { word & 0xffff_ffff } else { 0 };
            slot.store(u64::from(epoch) << 32 | bits | bit, Relaxed);
        }
    }
}

enum Age {
    Same,
    Older,
    Newer,
}

/// How a word's epoch stands to another. Epochs may wrap: with the smallest ring that takes 2^38
/// packets, and every word is visited each 64.
#[inline]
fn age(word: u64, epoch: u32) -> Age {
    match ((word >> 32) as u32).wrapping_sub(epoch) as i32 {
        0 => Age::Same,
        ..0 => Age::Older,
        1.. => Age::Newer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Entry;

    /// A window in an entry of its own, which stays for the test's life.
    fn begun(window: u32, extended: bool, top: u64) -> Replay {
        let entry = Entry::in_memory(window).unwrap();
        let replay = Replay::begun(entry.words(), window, extended, top);
        std::mem::forget(entry);
        replay
    }

    #[test]
    fn a_window_is_resumed_as_it_was_left() {
        for window in [0, 1, 32, 64, 480, 481, 1024, WINDOW_MAX] {
            let entry = Entry::in_memory(window).unwrap();
            let before = Replay::begun(entry.words(), window, false, 70);
            for sequence in [75, 71, 6000, 5999, 3000, 6100] {
                let _ = before.check(sequence).and_then(|sequence| before.commit(sequence));
            }
            let after = Replay::resumed(entry.words(), window, false);
            assert_eq!((after.top(), after.bitmap()), (6100, before.bitmap()), "{window}");
            for sequence in 1..7000 {
                assert_eq!(after.check(sequence), before.check(sequence), "{window} {sequence}");
            }
        }
    }

    #[test]
    fn a_process_that_dies_between_bit_and_top_accepts_nothing_twice() {
        let entry = Entry::in_memory(64).unwrap();
        let before = Replay::begun(entry.words(), 64, true, 100);
        // The kill hits `commit` after its compare-and-swap: 150 has its bit, the top is at 100 still.
        before.commit(150).unwrap();
        entry.words().top().store(100, Relaxed);
        let after = Replay::resumed(entry.words(), 64, true);
        assert_eq!(receive(&after, 150), Err(Refusal::Duplicate));
        assert_eq!(receive(&after, 151), Ok(151));
        assert_eq!(after.check(150), Err(Refusal::Duplicate));
        assert_eq!(receive(&after, 140), Ok(140), "others in the window are as they were");
        entry.words().top().store(100, Relaxed);
        let after = Replay::resumed(entry.words(), 64, true);
        let mut run = super::run::Run::new(&after);
        assert_eq!(run.commit(129), Ok(()));
        assert_eq!(run.commit(150), Err(Refusal::Duplicate), "nor one after the other");
        assert_eq!(run.commit(152), Ok(()));
    }

    #[test]
    fn a_restored_window_accepts_what_its_bitmap_lacks() {
        let before = begun(64, true, 0);
        for sequence in [1, 2, 70, 100, 99, 64] {
            let checked = before.check(sequence).unwrap();
            before.commit(checked).unwrap();
        }
        let entry = Entry::in_memory(64).unwrap();
        let (top, bitmap) = (before.top(), before.bitmap());
        let after = Replay::begun_with(entry.words(), 64, true, top, &bitmap);
        assert_eq!((after.top(), after.bitmap()), (before.top(), before.bitmap()));
        for sequence in 30..130 {
            assert_eq!(after.check(sequence), before.check(sequence), "{sequence}");
        }
        let entry = Entry::in_memory(64).unwrap();
        let empty = Replay::begun_with(entry.words(), 64, false, 100, &[]);
        assert_eq!(empty.bitmap(), [0, 0]);
        assert_eq!(empty.check(100), Ok(100));
        assert!(empty.check(36).is_err(), "left of the window");
    }

    #[test]
    fn a_united_window_refuses_what_either_refuses() {
        let received = |numbers: &[u32]| {
            let replay = begun(64, false, 0);
            for number in numbers {
                let checked = replay.check(*number).unwrap();
                replay.commit(checked).unwrap();
            }
            replay
        };
        for (ours, theirs) in [
            (vec![1, 5, 70], vec![1, 2, 69]),
            (vec![3], vec![60, 64, 100]),
            (vec![1, 2, 300], vec![4, 100]),
            (vec![], vec![7, 8]),
            (vec![7, 8], vec![]),
        ] {
            let (one, other) = (received(&ours), received(&theirs));
            let united = received(&ours);
            united.unite(other.top(), &other.bitmap());
            assert_eq!(united.top(), one.top().max(other.top()));
            for number in 1..400 {
                let refused = one.check(number).is_err() || other.check(number).is_err();
                assert_eq!(united.check(number).is_err(), refused, "{ours:?} {theirs:?} {number}");
            }
        }
        let off = begun(0, true, 4);
        off.unite(9, &[]);
        assert_eq!(off.top(), 9);
    }

    use proptest::prelude::*;
    use std::collections::HashSet;
    use std::sync::atomic::AtomicU32;

    /// The stupid twin: remembers every number and looks up RFC 4303's rules in 128-bit numbers.
    struct Twin {
        seen: HashSet<u64>,
        top: u64,
        window: u32,
        extended: bool,
    }

    impl Twin {
        fn new(window: u32, extended: bool, top: u64) -> Twin {
            let low = top.saturating_sub(8192);
            Twin { seen: (low..=top).collect(), top, window, extended }
        }

        /// The full number nearest the window: the only candidate not left of it, closest to top.
        fn full(&self, received: u32) -> Option<u64> {
            if !self.extended {
                return Some(u64::from(received));
            }
            let window = if self.window == 0 { 1 << 30 } else { i128::from(self.window) };
            let lowest = i128::from(self.top) - window + 1;
            let mut candidate = i128::from(received) - (1 << 32);
            while candidate < lowest {
                candidate += 1 << 32;
            }
            u64::try_from(candidate).ok()
        }

        fn receive(&mut self, received: u32) -> Result<u64, Refusal> {
            let sequence = self.full(received).ok_or(Refusal::Old)?;
            if sequence == 0 {
                return Err(Refusal::Zero);
            }
            if self.window != 0 {
                if u128::from(sequence) + u128::from(self.window) <= u128::from(self.top) {
                    return Err(Refusal::Old);
                }
                if !self.seen.insert(sequence) {
                    return Err(Refusal::Duplicate);
                }
            }
            self.top = self.top.max(sequence);
            Ok(sequence)
        }
    }

    fn receive(replay: &Replay, received: u32) -> Result<u64, Refusal> {
        let sequence = replay.check(received)?;
        assert_eq!(replay.check(received), Ok(sequence), "check changes nothing");
        replay.commit(sequence)?;
        Ok(sequence)
    }

    fn windows() -> impl Strategy<Value = u32> {
        prop_oneof![Just(0), Just(32), Just(33), Just(64), Just(100), Just(1024), Just(4096)]
    }

    fn tops() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(0u64),
            0..5000u64,
            (1u64 << 32) - 5000..(1 << 32) - 1,
            (1u64 << 32)..(1 << 32) + 5000,
            (7u64 << 32) - 5000..(7 << 32) + 5000,
            u64::MAX - 9000..u64::MAX - 8000,
        ]
    }

    proptest! {
        #[test]
        fn equals_the_twin_with_extended_numbers(
            window in windows(), top in tops(), steps in prop::collection::vec(-5000..6000i64, 1..400)
        ) {
            let replay = begun(window, true, top);
            let mut twin = Twin::new(window, true, top);
            for step in steps {
                // Steps are relative to the moving top, mostly near it.
                let received = twin.top.wrapping_add_signed(step / 7) as u32;
                prop_assert_eq!(receive(&replay, received), twin.receive(received));
                prop_assert_eq!(replay.top(), twin.top);
            }
        }

        #[test]
        fn equals_the_twin_with_short_numbers(
            window in windows(), top in 0..10_000u64, steps in prop::collection::vec(-5000..6000i64, 1..400)
        ) {
            let replay = begun(window, false, top);
            let mut twin = Twin::new(window, false, top);
            for step in steps {
                let received = twin.top.saturating_add_signed(step / 7).min(u32::MAX.into()) as u32;
                prop_assert_eq!(receive(&replay, received), twin.receive(received));
            }
        }

        #[test]
        fn any_number_at_all_equals_the_twin(
            window in windows(), extended: bool, numbers in prop::collection::vec(any::<u32>(), 1..60)
        ) {
            let replay = begun(window, extended, 0);
            let mut twin = Twin::new(window, extended, 0);
            for received in numbers {
                prop_assert_eq!(receive(&replay, received), twin.receive(received));
            }
        }
    }

    #[test]
    fn window_edges_are_exact() {
        let replay = begun(64, false, 0);
        assert_eq!(replay.check(0), Err(Refusal::Zero));
        assert_eq!(receive(&replay, 100), Ok(100));
        assert_eq!(receive(&replay, 36), Err(Refusal::Old));
        assert_eq!(receive(&replay, 37), Ok(37));
        assert_eq!(receive(&replay, 37), Err(Refusal::Duplicate));
        assert_eq!(receive(&replay, u32::MAX), Ok(u32::MAX.into()));
        assert_eq!(receive(&replay, u32::MAX), Err(Refusal::Duplicate));
        assert_eq!(receive(&replay, 101), Err(Refusal::Old));
    }

    #[test]
    fn extended_numbers_pass_over_the_boundary() {
        let replay = begun(64, true, (1 << 32) - 3);
        assert_eq!(receive(&replay, u32::MAX), Ok(u32::MAX.into()));
        assert_eq!(receive(&replay, 0), Ok(1 << 32), "zero exists in later subspaces");
        assert_eq!(receive(&replay, u32::MAX - 1), Ok((1 << 32) - 2), "case B, Th - 1");
        assert_eq!(receive(&replay, u32::MAX - 1), Err(Refusal::Duplicate));
        assert_eq!(receive(&replay, 200), Ok((1 << 32) + 200));
        assert_eq!(replay.check(100), Ok((2 << 32) + 100), "case A, below the window: Th + 1");
        let replay = begun(64, true, (1 << 32) + 10);
        let ahead = u32::MAX - 53;
        assert_eq!(replay.check(ahead), Ok((1 << 32) + u64::from(ahead)), "case B, Th to its end");
        assert_eq!(replay.check(ahead + 1), Err(Refusal::Duplicate), "case B, Th - 1, received");
    }

    #[test]
    fn no_number_before_the_first_or_after_the_last_subspace() {
        let replay = begun(64, true, 10);
        assert_eq!(replay.check(u32::MAX), Err(Refusal::Old), "Th - 1 of Th = 0");
        let replay = begun(64, true, u64::MAX - 1);
        assert_eq!(receive(&replay, u32::MAX), Ok(u64::MAX));
        assert_eq!(replay.check(5), Err(Refusal::Old), "Th + 1 of the last");
    }

    #[test]
    fn bitmap_is_laid_out_as_the_kernel_does() {
        let replay = begun(64, false, 0);
        for sequence in [1, 2, 5, 64] {
            receive(&replay, sequence).unwrap();
        }
        assert_eq!(replay.bitmap(), [0b1_0011, 1 << 31]);
        receive(&replay, 66).unwrap();
        assert_eq!(replay.bitmap(), [0b1_0010, 1 << 31], "66 took the bit of 2; 1 and 2 slid out");
    }

    #[test]
    fn two_workers_accept_no_number_twice() {
        const COUNT: u32 = 60_000;
        for (window, start) in [(32, 0u64), (64, (1 << 32) - 30_000), (1024, 0)] {
            let replay = begun(window, true, start);
            let accepted: Vec<AtomicU32> = (0..COUNT).map(|_| AtomicU32::new(0)).collect();
            let work = |stride: u32| {
                for number in 0..COUNT {
                    // Both visit every number, with different local disorder.
                    let number = number ^ ((number / 7 * stride) & 15);
                    let sequence = start + 1 + u64::from(number.min(COUNT - 1));
                    if let Ok(full) = replay.check(sequence as u32)
                        && full == sequence
                        && replay.commit(full).is_ok()
                    {
                        accepted[(full - start - 1) as usize].fetch_add(1, Relaxed);
                    }
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| work(3));
                scope.spawn(|| work(5));
            });
            assert!(accepted.iter().all(|count| count.load(Relaxed) <= 1));
            let total: u32 = accepted.iter().map(|count| count.load(Relaxed)).sum();
            assert!(total > COUNT / 4, "the threads did meet: {total}");
        }
    }
}
