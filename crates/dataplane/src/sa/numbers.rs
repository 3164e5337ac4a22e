//! How an SA gives numbers to seal with: each once. A worker takes those of many packets in one step.

use std::sync::atomic::Ordering::Relaxed;

use super::{Sa, SealRefusal};

/// Sequence numbers that were taken together and are not used yet, and their IVs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// The first of them.
    first: u64,
    count: u32,
    /// What goes in front of the lower half of each number to make its IV.
    block: u64,
}

impl Numbers {
    /// None.
    pub(crate) const NONE: Numbers = Numbers { first: 0, count: 0, block: 0 };

    /// How many there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    /// Takes the first of them out, so many; all if there are fewer.
    #[inline]
    pub(crate) fn take(&mut self, count: usize) -> Numbers {
        let count = count.min(self.len()) as u32;
        let taken = Numbers { count, ..*self };
        self.first = self.first.wrapping_add(count.into());
        self.count -= count;
        taken
    }

    /// The next sequence number and its IV.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(u64, u64)> {
        self.count = self.count.checked_sub(1)?;
        let sequence = self.first;
        self.first = sequence.wrapping_add(1);
        Some((sequence, iv(self.block, sequence)))
    }
}

/// The IV of a number that a block serves.
#[inline(always)]
fn iv(block: u64, sequence: u64) -> u64 {
    block | sequence & u64::from(u32::MAX)
}

impl Sa {
    /// Takes the numbers for one packet: sequence number and IV. Neither is ever given again, and
    /// the sequence stops at its end for good (RFC 4303 §3.3.3: no sender lets it cycle). Not for
    /// workers.
    ///
    /// # Errors
    ///
    /// [`SealRefusal`] when the last sequence number was sent or no IV can be had. Nothing is taken then.
    pub fn take_numbers(&self) -> Result<(u64, u64), SealRefusal> {
        self.share();
        self.take_run(1, false)?.next().ok_or(SealRefusal::SequenceExhausted)
    }

    /// Takes the numbers for up to `wanted` packets, at least one of them, in one step: `alone` if
    /// nobody else may.
    #[inline]
    pub(crate) fn take_run(&self, wanted: u32, alone: bool) -> Result<Numbers, SealRefusal> {
        let counter = self.words().sent();
        let mut sent = counter.load(Relaxed);
        // Not `fetch_add`, which past the end would wrap around after enough refused packets.
        loop {
            let numbers = self.numbers_behind(sent, wanted.max(1))?;
            let taken = sent + u64::from(numbers.count);
            if alone {
                counter.store(taken, Relaxed);
                return Ok(numbers);
            }
            match counter.compare_exchange_weak(sent, taken, Relaxed, Relaxed) {
                Ok(_) => return Ok(numbers),
                Err(seen) => sent = seen,
            }
        }
    }

    /// Takes the numbers for one packet: `alone` if nobody else may.
    #[inline(always)]
    pub(crate) fn take_one(&self, alone: bool) -> Result<(u64, u64), SealRefusal> {
        if !alone {
            return self.take_shared();
        }
        let counter = self.words().sent();
        let (sequence, block) = self.next_behind(counter.load(Relaxed))?;
        counter.store(sequence, Relaxed);
        Ok((sequence, iv(block, sequence)))
    }

    #[inline(never)]
    fn take_shared(&self) -> Result<(u64, u64), SealRefusal> {
        self.take_run(1, false)?.next().ok_or(SealRefusal::SequenceExhausted)
    }

    /// The next of the numbers that were taken, or of new ones, of which so many are wanted.
    #[inline]
    pub(crate) fn next_numbers(
        &self,
        numbers: &mut Numbers,
        wanted: u32,
        alone: bool,
    ) -> Result<(u64, u64), SealRefusal> {
        if let Some(next) = numbers.next() {
            return Ok(next);
        }
        *numbers = self.take_run(wanted, alone)?;
        numbers.next().ok_or(SealRefusal::SequenceExhausted)
    }

    /// Takes those numbers that `serve` takes out, for who has the SA's words for himself: what it leaves was not
    /// taken. It hands none on before it returns, as they are only then written to be taken.
    #[inline(always)]
    pub(crate) fn take_alone<R>(
        &self,
        serve: impl FnOnce(&mut Numbers) -> R,
    ) -> Result<R, SealRefusal> {
        let counter = self.words().sent();
        let mut numbers = self.numbers_behind(counter.load(Relaxed), u32::MAX)?;
        let served = serve(&mut numbers);
        counter.store(numbers.first.wrapping_sub(1), Relaxed);
        Ok(served)
    }

    /// The numbers behind the last that was sent, at least one and at most so many.
    #[inline(always)]
    fn numbers_behind(&self, sent: u64, most: u32) -> Result<Numbers, SealRefusal> {
        let (first, block) = self.next_behind(sent)?;
        // The numbers with one upper half share a block, so a run ends where that does; and with it those that are not extended.
        let room = u64::from(u32::MAX - first as u32) + 1;
        Ok(Numbers { first, count: room.min(most.into()) as u32, block })
    }

    /// The number behind the last that was sent, and its block.
    #[inline(always)]
    fn next_behind(&self, sent: u64) -> Result<(u64, u64), SealRefusal> {
        let last = if self.hot.replay.is_extended() { u64::MAX } else { u32::MAX.into() };
        if sent >= last {
            return Err(SealRefusal::SequenceExhausted);
        }
        let next = sent + 1;
        // Before anything is taken: without an IV, no number either.
        let block = match self.hot.block.of(next) {
            Some(block) => block,
            None => self.look_block_up(next).ok_or(SealRefusal::NonceExhausted)?,
        };
        Ok((next, block))
    }

    /// The runtime is in memory that packets do not touch otherwise, so it must not even be named where
    /// the copy of the block is at hand: the compiler would load its address for every packet.
    #[cold]
    #[inline(never)]
    fn look_block_up(&self, sequence: u64) -> Option<u64> {
        self.runtime.ivs.block_of(sequence, &self.hot.block)
    }
}
