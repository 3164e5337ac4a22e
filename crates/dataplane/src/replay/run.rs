//! Numbers that are accepted one after the other.
//!
//! Nearly every packet has the number behind the one before, and the bits of 32 such are in one word. That word, and
//! the window's edge, stay in registers and are written when another word is needed, or the run ends.

use std::sync::atomic::Ordering::{Relaxed, Release};

use super::{Age, Refusal, Replay, age};

/// Numbers that a caller accepts beside whom nobody writes. None of their packets may be handed on before this is dropped.
pub(crate) struct Run<'r> {
    replay: &'r Replay,
    /// The highest number accepted.
    top: u64,
    /// Which 32 numbers the word has the bits of, by what they are divided by 32; none are of the last.
    block: u64,
    word: u64,
    /// Some of what was accepted is not written yet.
    is_ahead: bool,
}

/// No block: numbers end before.
const NO_BLOCK: u64 = u64::MAX;

impl<'r> Run<'r> {
    /// A run that has accepted nothing yet.
    #[inline]
    pub(crate) fn new(replay: &'r Replay) -> Run<'r> {
        Run { replay, top: 0, block: NO_BLOCK, word: 0, is_ahead: false }
    }

    /// What [`Replay::commit_alone`] does.
    ///
    /// # Errors
    ///
    /// As of [`Replay::commit`].
    #[inline(always)]
    pub(crate) fn commit(&mut self, sequence: u64) -> Result<(), Refusal> {
        let bit = 1 << (sequence % 32);
        // A process that died between a number's bit and the window's edge left the bit of one that is ahead.
        if sequence > self.top && sequence / 32 == self.block && self.word & bit == 0 {
            (self.top, self.is_ahead) = (sequence, true);
            self.word |= bit;
            return Ok(());
        }
        self.commit_other(sequence)
    }

    /// A number that is not behind the ones before, or has another word.
    #[inline(never)]
    fn commit_other(&mut self, sequence: u64) -> Result<(), Refusal> {
        self.write();
        let committed = self.replay.commit_alone(sequence);
        self.top = self.replay.top();
        self.block = NO_BLOCK;
        if self.replay.window() != 0 {
            let (word, epoch, _) = self.replay.place(self.top);
            let word = word.load(Relaxed);
            if matches!(age(word, epoch), Age::Same) {
                (self.block, self.word) = (self.top / 32, word);
            }
        }
        committed
    }

    #[inline(always)]
    fn write(&mut self) {
        if self.is_ahead {
            let (word, ..) = self.replay.place(self.top);
            word.store(self.word, Relaxed);
            // `Release`: the bits before the window's move, whenever this process dies.
            self.replay.entry.top().store(self.top, Release);
            self.is_ahead = false;
        }
    }
}

impl Drop for Run<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.write();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ledger::Entry;

    /// A step from the highest number: mostly by one.
    fn step() -> impl Strategy<Value = i64> {
        prop_oneof![6 => Just(1i64), 1 => 2i64..5, 1 => -70i64..70, 1 => -5000i64..5000]
    }

    proptest! {
        #[test]
        fn a_run_accepts_what_is_accepted_one_by_one(
            window in prop::sample::select(vec![0, 1, 32, 64, 100, 1024]),
            top in prop_oneof![0u64..200, (1u64 << 32) - 100..(1 << 32) + 100, u64::MAX - 300..u64::MAX - 200],
            runs in prop::collection::vec(prop::collection::vec(step(), 1..40), 1..8),
        ) {
            let entries = [(); 2].map(|()| Entry::in_memory(window).unwrap());
            let [one, other] = entries.each_ref().map(|entry| Replay::begun(entry.words(), window, true, top));
            for steps in runs {
                let mut run = Run::new(&one);
                for step in steps {
                    let sequence = other.top().saturating_add_signed(step).max(1);
                    prop_assert_eq!(run.commit(sequence), other.commit_alone(sequence));
                }
                drop(run);
                prop_assert_eq!(one.top(), other.top());
                prop_assert_eq!(one.bitmap(), other.bitmap());
            }
        }
    }
}
