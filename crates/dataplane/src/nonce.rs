//! Where initialization vectors come from, so that none is ever used twice under one key.
//!
//! AES-GCM loses both secrecy and authenticity if a nonce repeats under a key (RFC 4106 §9). The
//! eight bytes of explicit IV are laid out as
//!
//! ```text
//!  63          48 47          32 31                            0
//! +--------------+--------------+-------------------------------+
//! |    epoch     |    block     |      counter in the block     |
//! +--------------+--------------+-------------------------------+
//! ```
//!
//! An *epoch* is claimed by control, which stores it on disk before it is used: no two runs of the
//! gateway share one. A *block* of 2^32 IVs is handed out once per epoch. Every SA that may seal
//! owns a block of its own, so a key that is installed twice, deleted and added again, or held by
//! two SAs at once never meets an IV twice. IVs are taken, never returned.
//!
//! The IV says nothing about ESP sequence numbers; those are in `sa.rs`.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Blocks of one epoch: what 16 bits count.
const BLOCKS_PER_EPOCH: u64 = 1 << 16;

/// Bits of the counter inside a block.
const COUNTER_BITS: u32 = 32;

/// The last counter value marks a block as used up and is itself never an IV.
const COUNTER_END: u64 = (1 << COUNTER_BITS) - 1;

/// A block of IVs that belongs to one SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// The epoch it is from.
    pub epoch: u16,
    /// Its number within the epoch.
    pub number: u16,
}

impl Block {
    /// The first IV.
    fn first_iv(self) -> u64 {
        u64::from(self.epoch) << 48 | u64::from(self.number) << COUNTER_BITS
    }
}

type Claim = Box<dyn FnMut() -> io::Result<u16> + Send>;

/// All IVs of this run of the gateway. Control owns it; SAs hold a reference.
pub struct NonceSpace {
    /// Epoch in bits 32–47, blocks handed out of it in bits 0–31.
    current: AtomicU64,
    claim: Mutex<Claim>,
}

impl NonceSpace {
    /// Claims the first epoch. `claim` must return a different number at every call in the life of
    /// every key, and must have stored that it did so before it returns.
    pub fn new(
        mut claim: impl FnMut() -> io::Result<u16> + Send + 'static,
    ) -> io::Result<Arc<NonceSpace>> {
        let epoch = claim()?;
        let claim = Mutex::new(Box::new(claim) as Claim);
        Ok(Arc::new(NonceSpace { current: AtomicU64::new(u64::from(epoch) << 32), claim }))
    }

    /// A block that nobody had before, claiming a new epoch if this one is used up. For control.
    pub fn claim_block(&self) -> io::Result<Block> {
        loop {
            match self.take_block() {
                Some(block) => return Ok(block),
                None => self.replenish(1)?,
            }
        }
    }

    /// A block that nobody had before, or `None` if the epoch is used up. For workers: no lock.
    pub fn take_block(&self) -> Option<Block> {
        let word = self
            .current
            .fetch_update(Relaxed, Relaxed, |word| {
                (taken(word) < BLOCKS_PER_EPOCH).then(|| word + 1)
            })
            .ok()?;
        Some(Block { epoch: (word >> 32) as u16, number: taken(word) as u16 })
    }

    /// Claims a new epoch if fewer than `blocks_min` blocks are left, so that workers do not run
    /// dry between two calls. What is left of the old epoch is given up. For control.
    pub fn replenish(&self, blocks_min: u64) -> io::Result<()> {
        let mut claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        if self.blocks_left() >= blocks_min.min(BLOCKS_PER_EPOCH) {
            return Ok(());
        }
        let epoch = claim()?;
        self.current.store(u64::from(epoch) << 32, Relaxed);
        Ok(())
    }

    /// The current epoch.
    pub fn epoch(&self) -> u16 {
        (self.current.load(Relaxed) >> 32) as u16
    }

    /// Blocks left in the current epoch.
    pub fn blocks_left(&self) -> u64 {
        BLOCKS_PER_EPOCH - taken(self.current.load(Relaxed))
    }
}

fn taken(word: u64) -> u64 {
    word & 0xffff_ffff
}

/// The IV counter of one SA.
pub(crate) struct IvCounter {
    /// The next IV to use. [`COUNTER_END`] in its low half means that a block is needed.
    next: AtomicU64,
    space: OnceLock<Arc<NonceSpace>>,
}

impl IvCounter {
    /// A counter with no IV yet.
    pub(crate) fn unarmed() -> IvCounter {
        IvCounter { next: AtomicU64::new(COUNTER_END), space: OnceLock::new() }
    }

    /// Gives the counter its first block. Does nothing if it has one.
    pub(crate) fn arm(&self, space: &Arc<NonceSpace>) -> io::Result<()> {
        if self.space.get().is_some() {
            return Ok(());
        }
        let block = space.claim_block()?;
        if self.space.set(space.clone()).is_ok() {
            // Fails only if a worker saw the space first and took a block by itself.
            let _ = self.next.compare_exchange(COUNTER_END, block.first_iv(), Relaxed, Relaxed);
        }
        Ok(())
    }

    /// An IV that nobody had before; `None` if no block can be had.
    ///
    /// A compare-and-swap and not `fetch_add`, which would run on into the next SA's block.
    #[inline]
    pub(crate) fn take(&self) -> Option<u64> {
        let mut next = self.next.load(Relaxed);
        loop {
            let (iv, following) = if next & COUNTER_END == COUNTER_END {
                // If another worker is faster, our block goes unused; blocks are cheap.
                let first = self.space.get()?.take_block()?.first_iv();
                (first, first + 1)
            } else {
                (next, next + 1)
            };
            match self.next.compare_exchange_weak(next, following, Relaxed, Relaxed) {
                Ok(_) => return Some(iv),
                Err(seen) => next = seen,
            }
        }
    }

    /// Moves the counter within its block, for tests that cannot count to 2^32.
    #[cfg(test)]
    pub(crate) fn skip_to(&self, counter: u32) {
        let next = self.next.load(Relaxed) & !COUNTER_END | u64::from(counter);
        self.next.store(next, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn counting_space(first: u16) -> Arc<NonceSpace> {
        let mut epoch = first;
        NonceSpace::new(move || {
            epoch += 1;
            Ok(epoch - 1)
        })
        .unwrap()
    }

    #[test]
    fn layout_is_epoch_block_counter() {
        let space = counting_space(0xabcd);
        space.take_block();
        let counter = IvCounter::unarmed();
        counter.arm(&space).unwrap();
        assert_eq!(counter.take(), Some(0xabcd_0001_0000_0000));
        assert_eq!(counter.take(), Some(0xabcd_0001_0000_0001));
    }

    #[test]
    fn unarmed_counter_has_no_iv() {
        assert_eq!(IvCounter::unarmed().take(), None);
    }

    #[test]
    fn arming_twice_keeps_the_block() {
        let space = counting_space(1);
        let counter = IvCounter::unarmed();
        counter.arm(&space).unwrap();
        let first = counter.take().unwrap();
        counter.arm(&space).unwrap();
        assert_eq!(counter.take(), Some(first + 1));
        assert_eq!(space.blocks_left(), BLOCKS_PER_EPOCH - 1);
    }

    #[test]
    fn end_of_a_block_takes_another_and_never_the_neighbours() {
        let space = counting_space(1);
        let (ours, other) = (IvCounter::unarmed(), IvCounter::unarmed());
        ours.arm(&space).unwrap();
        other.arm(&space).unwrap();
        ours.skip_to(u32::MAX - 2);
        let ivs: Vec<u64> = (0..4).map(|_| ours.take().unwrap()).collect();
        let block = |number: u64| 1u64 << 48 | number << 32;
        assert_eq!(ivs, [block(0) | 0xffff_fffd, block(0) | 0xffff_fffe, block(2), block(2) + 1]);
        assert_eq!(other.take(), Some(block(1)));
    }

    #[test]
    fn exhausted_epoch_stops_workers_until_control_claims_another() {
        let space = counting_space(7);
        let counter = IvCounter::unarmed();
        counter.arm(&space).unwrap();
        let mut seen = HashSet::from([Block { epoch: 7, number: 0 }]);
        while let Some(block) = space.take_block() {
            assert!(seen.insert(block));
        }
        assert_eq!(seen.len() as u64, BLOCKS_PER_EPOCH);
        counter.skip_to(u32::MAX - 1);
        assert!(counter.take().is_some());
        assert_eq!((counter.take(), counter.take()), (None, None));
        space.replenish(10).unwrap();
        assert_eq!(counter.take(), Some(8u64 << 48));
        assert_eq!(space.claim_block().unwrap(), Block { epoch: 8, number: 1 });
    }

    #[test]
    fn a_failed_claim_hands_out_nothing() {
        assert!(NonceSpace::new(|| Err(io::Error::other("disk full"))).is_err());
        let mut claims = 0;
        let space = NonceSpace::new(move || {
            claims += 1;
            if claims == 1 { Ok(1) } else { Err(io::Error::other("disk full")) }
        })
        .unwrap();
        while space.take_block().is_some() {}
        assert!(space.claim_block().is_err());
        assert!(IvCounter::unarmed().arm(&space).is_err());
    }

    #[test]
    fn workers_racing_over_block_ends_share_no_iv() {
        let space = counting_space(3);
        let counter = IvCounter::unarmed();
        counter.arm(&space).unwrap();
        let mut seen = HashSet::new();
        for _ in 0..200 {
            counter.skip_to(u32::MAX - 5);
            let take = || (0..10).map(|_| counter.take().unwrap()).collect::<Vec<_>>();
            let (mine, theirs) = std::thread::scope(|scope| {
                let other = scope.spawn(take);
                (take(), other.join().unwrap())
            });
            for iv in mine.into_iter().chain(theirs) {
                assert!(seen.insert(iv), "IV {iv:#x} twice");
            }
        }
    }
}
