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
//! The counter in the block is the lower half of the packet's sequence number, which an SA takes once
//! (`sa.rs`); each upper half has a block of its own. A gateway that starts again, or an SA that is
//! installed again, has other blocks, so its numbers need not be known.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Blocks of one epoch: what 16 bits count.
const BLOCKS_PER_EPOCH: u64 = 1 << 16;

/// Bits of the counter inside a block.
const COUNTER_BITS: u32 = 32;

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
    ///
    /// # Errors
    ///
    /// The one of `claim`.
    pub fn new(
        mut claim: impl FnMut() -> io::Result<u16> + Send + 'static,
    ) -> io::Result<Arc<NonceSpace>> {
        let epoch = claim()?;
        let claim = Mutex::new(Box::new(claim) as Claim);
        Ok(Arc::new(NonceSpace { current: AtomicU64::new(u64::from(epoch) << 32), claim }))
    }

    /// A block that nobody had before, claiming a new epoch if this one is used up. For control.
    ///
    /// # Errors
    ///
    /// The one of the claim; the epoch before stays used up.
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
    ///
    /// # Errors
    ///
    /// The one of the claim; what is left of the epoch before can still be had.
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

/// Where one SA's IVs come from: the IV of a sequence number is the number's lower half in a block
/// that serves the SA's numbers with one upper half, and nothing else. As the SA gives no number
/// twice, it gives no IV twice, and takes both in one step.
pub(crate) struct IvSource {
    /// The upper half of the numbers that are served in bits 32–63, their block in bits 0–31.
    current: AtomicU64,
    space: OnceLock<Arc<NonceSpace>>,
}

/// No block yet. The last upper half of all is never served by a block that is kept.
const UNARMED: u64 = u64::MAX;

impl IvSource {
    /// A source with no IV yet.
    pub(crate) fn unarmed() -> IvSource {
        IvSource { current: AtomicU64::new(UNARMED), space: OnceLock::new() }
    }

    /// Gives the source its first block, for the numbers after `sent`. Does nothing if it has one. If none can be
    /// had now, workers take one with the first number for which there is one again.
    pub(crate) fn arm(&self, space: &Arc<NonceSpace>, sent: u64) -> io::Result<()> {
        if self.space.get().is_some() {
            return Ok(());
        }
        let block = space.claim_block().inspect_err(|_| drop(self.space.set(space.clone())))?;
        let upper = sent.saturating_add(1) >> 32;
        if self.space.set(space.clone()).is_ok() && upper != UNARMED >> 32 {
            let word = upper << 32 | block.first_iv() >> COUNTER_BITS;
            // Fails only if a worker saw the space first and took a block by itself.
            let _ = self.current.compare_exchange(UNARMED, word, Relaxed, Relaxed);
        }
        Ok(())
    }

    /// What goes in front of the lower half of `sequence` to make its IV; `None` if no block can be
    /// had. It serves all numbers with that upper half, but must be asked for anew with each run.
    /// `copy`, which the caller keeps near its other words, says it the next time.
    pub(crate) fn block_of(&self, sequence: u64, copy: &BlockCopy) -> Option<u64> {
        let word = self.current.load(Relaxed);
        if !serves(word, sequence) {
            return self.renew(sequence >> 32);
        }
        copy.0.store(word, Relaxed);
        Some(word << 32)
    }

    #[cold]
    fn renew(&self, upper: u64) -> Option<u64> {
        let block = self.space.get()?.take_block()?.first_iv();
        let mut seen = self.current.load(Relaxed);
        loop {
            if seen != UNARMED && seen >> 32 == upper {
                // Another worker was faster, and our block goes unused; blocks are cheap.
                return Some(seen << 32);
            }
            // Numbers are behind that others have left behind already, or the last of all: a block
            // for them alone, which nobody else has.
            if seen != UNARMED && seen >> 32 > upper || upper == UNARMED >> 32 {
                return Some(block);
            }
            let word = upper << 32 | block >> COUNTER_BITS;
            match self.current.compare_exchange_weak(seen, word, Relaxed, Relaxed) {
                Ok(_) => return Some(block),
                Err(now) => seen = now,
            }
        }
    }
}

/// Whether a source's word has the block of a number.
#[inline]
fn serves(word: u64, sequence: u64) -> bool {
    word >> 32 == sequence >> 32 && word >> 32 != UNARMED >> 32
}

/// A copy of the word that says which block serves which numbers. It may be older than the source's:
/// then its block still serves the numbers with its upper half.
pub(crate) struct BlockCopy(AtomicU64);

impl BlockCopy {
    /// A copy of nothing yet.
    pub(crate) fn empty() -> BlockCopy {
        BlockCopy(AtomicU64::new(UNARMED))
    }

    /// What [`IvSource::block_of`] says of a number, if it is known here.
    #[inline]
    pub(crate) fn of(&self, sequence: u64) -> Option<u64> {
        let word = self.0.load(Relaxed);
        serves(word, sequence).then_some(word << 32)
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

    /// The IV of a number, as `sa.rs` makes it.
    fn iv(source: &IvSource, sequence: u64) -> Option<u64> {
        source.block_of(sequence, &BlockCopy::empty()).map(|block| block | sequence & 0xffff_ffff)
    }

    #[test]
    fn layout_is_epoch_block_counter() {
        let space = counting_space(0xabcd);
        space.take_block();
        let source = IvSource::unarmed();
        source.arm(&space, 0).unwrap();
        assert_eq!(iv(&source, 1), Some(0xabcd_0001_0000_0001));
        assert_eq!(iv(&source, 0xffff_ffff), Some(0xabcd_0001_ffff_ffff));
    }

    #[test]
    fn unarmed_source_has_no_iv() {
        for sequence in [1, 1 << 32, u64::MAX] {
            assert_eq!(iv(&IvSource::unarmed(), sequence), None);
        }
    }

    #[test]
    fn arming_twice_keeps_the_block() {
        let space = counting_space(1);
        let source = IvSource::unarmed();
        source.arm(&space, 6).unwrap();
        let first = iv(&source, 7).unwrap();
        source.arm(&space, 7).unwrap();
        assert_eq!(iv(&source, 8), Some(first + 1));
        assert_eq!(space.blocks_left(), BLOCKS_PER_EPOCH - 1);
    }

    #[test]
    fn each_upper_half_has_a_block_and_never_the_neighbours() {
        let space = counting_space(1);
        let (ours, other) = (IvSource::unarmed(), IvSource::unarmed());
        ours.arm(&space, 0xffff_fffd).unwrap();
        other.arm(&space, 0).unwrap();
        let block = |number: u64| 1u64 << 48 | number << 32;
        let ivs: Vec<u64> = (0xffff_fffe..0x1_0000_0002).map(|n| iv(&ours, n).unwrap()).collect();
        assert_eq!(ivs, [block(0) | 0xffff_fffe, block(0) | 0xffff_ffff, block(2), block(2) + 1]);
        assert_eq!(iv(&other, 1), Some(block(1) + 1));
        // With a copy that is kept, the same.
        let (copy, source) = (BlockCopy::empty(), &other);
        for number in [7, 8, 9] {
            assert_eq!(source.block_of(number, &copy), Some(block(1)));
        }
        // A worker that took its number before the others went on gets a block that is nobody's.
        assert_eq!(iv(&ours, 0xffff_fffe), Some(block(3) | 0xffff_fffe));
        assert_eq!(iv(&ours, 0x1_0000_0002), Some(block(2) + 2));
        // The last upper half of all.
        assert_eq!(iv(&ours, u64::MAX), Some(block(4) | 0xffff_ffff));
    }

    #[test]
    fn exhausted_epoch_stops_workers_until_control_claims_another() {
        let space = counting_space(7);
        let source = IvSource::unarmed();
        source.arm(&space, 0).unwrap();
        let mut seen = HashSet::from([Block { epoch: 7, number: 0 }]);
        while let Some(block) = space.take_block() {
            assert!(seen.insert(block));
        }
        assert_eq!(seen.len() as u64, BLOCKS_PER_EPOCH);
        assert!(iv(&source, 0xffff_ffff).is_some());
        assert_eq!((iv(&source, 1 << 32), iv(&source, 1 << 32)), (None, None));
        space.replenish(10).unwrap();
        assert_eq!(iv(&source, 1 << 32), Some(8u64 << 48));
        assert_eq!(space.claim_block().unwrap(), Block { epoch: 8, number: 1 });
    }

    #[test]
    fn a_failed_claim_hands_out_nothing() {
        assert!(NonceSpace::new(|| Err(io::Error::other("disk full"))).is_err());
        let mut claims = 0;
        let space = NonceSpace::new(move || {
            claims += 1;
            if claims % 5 == 1 { Ok(claims) } else { Err(io::Error::other("disk full")) }
        })
        .unwrap();
        while space.take_block().is_some() {}
        assert!(space.claim_block().is_err());
        let source = IvSource::unarmed();
        assert!(source.arm(&space, 0).is_err());
        assert_eq!(iv(&source, 1), None);
        // It is armed from then on, and has IVs once there are some.
        assert!(source.arm(&space, 1).is_ok() && space.replenish(1).is_err());
        assert_eq!(iv(&source, 2), None);
        assert!(space.replenish(1).is_err() && space.replenish(1).is_ok());
        assert_eq!(iv(&source, 3), Some(6 << 48 | 3));
        assert_eq!(space.claim_block().unwrap(), Block { epoch: 6, number: 1 });
    }

    #[test]
    fn workers_racing_over_block_ends_share_no_iv() {
        let space = counting_space(3);
        let mut seen = HashSet::new();
        for round in 0..200u64 {
            let source = IvSource::unarmed();
            source.arm(&space, 0).unwrap();
            let counter = AtomicU64::new((round << 32) - u64::from(round != 0) * 5);
            let take = || {
                let next = || counter.fetch_add(1, Relaxed) + 1;
                (0..10).map(|_| iv(&source, next()).unwrap()).collect::<Vec<_>>()
            };
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
