//! The bare cipher, as the ceiling of the path: no headers, no tables, no rings.

use std::hint::black_box;

use crypto::{Engine, Key};
use wire::esp;

use super::gateways::{SPI_FIRST, key_bytes, random_order};
use super::{Measured, RulerError, Sample, check_sizes, check_tunnels};
use crate::batch::BATCH_PACKETS;
use crate::cpu::{cycles, suit_cache};
use crate::keys::{AHEAD, LIBRARY_AHEAD};

/// So many keys are more than a core's own caches hold.
const OTHERS_MAX: usize = 8192;

/// The cipher alone: the same lengths and keys, a batch of buffers, nothing else.
pub struct CipherBench {
    keys: Vec<Key>,
    /// Which key each packet uses, over and over; and the first ones again, for who looks ahead.
    order: Vec<u32>,
    next: usize,
    fetched: bool,
    chained: bool,
    measured: Measured,
    /// Each as long as the longest packet.
    buffers: Vec<Vec<u8>>,
    tags: Vec<[u8; esp::ICV_LEN]>,
    /// Lengths of the inner packets, in the order in which they are used, over and over.
    sizes: Vec<usize>,
    /// Packets so far; the explicit IV of the next.
    sent: u64,
}

impl CipherBench {
    /// Buffers for 64 packets at a time, as long as ESP makes inner packets of `sizes`. With one
    /// key it is the raw cipher; with `keys` of them in random order, each call finds another one,
    /// and nobody has fetched it.
    ///
    /// # Errors
    /// If a number is out of bounds or the engine cannot be had.
    pub fn new(
        engine: Engine,
        keys: usize,
        measured: Measured,
        sizes: &[usize],
    ) -> Result<CipherBench, RulerError> {
        check_sizes(sizes)?;
        check_tunnels(keys)?;
        let longest = sizes.iter().map(|size| plaintext_len(*size)).max().unwrap_or(0);
        let made = (0..keys).map(|n| Ok(Key::new(engine, &key_bytes(n))?));
        Ok(CipherBench {
            keys: made.collect::<Result<_, RulerError>>()?,
            order: random_order(keys).into_iter().cycle().take(keys + AHEAD).collect(),
            next: 0,
            fetched: false,
            chained: false,
            measured,
            buffers: vec![vec![0; longest]; BATCH_PACKETS],
            tags: vec![[0; esp::ICV_LEN]; BATCH_PACKETS],
            sizes: sizes.to_vec(),
            sent: 0,
        })
    }

    /// The same with every key fetched a few packets ahead, as the path does it. (The length asked
    /// for is that of the packet at hand and not of the one to come; with one size it is the same.)
    #[must_use]
    pub fn fetching(mut self) -> CipherBench {
        self.fetched = true;
        self
    }

    /// The same with every packet's nonce made of the tag, or the plaintext, of the packet before, so that none
    /// begins before that is there: what one takes alone. Without, a processor works on as many at a time as
    /// it holds.
    #[must_use]
    pub fn chained(mut self) -> CipherBench {
        self.chained = true;
        self
    }

    /// Seals `rounds` batches of 64 packets, opens them if that was asked for, and measures the part
    /// that was.
    pub fn run(&mut self, rounds: usize) -> Sample {
        let mut sample = Sample::default();
        for _ in 0..rounds {
            let (first_key, first) = (self.next, self.sent);
            let seal = match self.chained {
                false => self.sealing_calls::<false>(),
                true => self.sealing_calls::<true>(),
            };
            sample.packets += BATCH_PACKETS as u64;
            sample.bytes += (first..self.sent).map(|packet| self.size(packet) as u64).sum::<u64>();
            if self.measured == Measured::Seal {
                sample.cycles += seal;
                continue;
            }
            self.use_others();
            (self.next, self.sent) = (first_key, first);
            let (open, genuine) = match self.chained {
                false => self.opening_calls::<false>(),
                true => self.opening_calls::<true>(),
            };
            debug_assert!(genuine);
            sample.cycles += if self.measured == Measured::Open { open } else { seal + open };
        }
        sample
    }

    /// Asks for the keys of the packets to come, so that those that were just used for sealing lie where they would if a pass
    /// over all tunnels had come between.
    fn use_others(&self) {
        let (len, cache) = (self.buffers[0].len(), suit_cache(self.keys.len()));
        let others = self.keys.len().saturating_sub(BATCH_PACKETS).min(OTHERS_MAX);
        for key in self.order.iter().cycle().skip(self.next).take(others) {
            self.keys[*key as usize].prefetch_for(len, cache);
        }
    }

    fn size(&self, packet: u64) -> usize {
        self.sizes[(packet % self.sizes.len() as u64) as usize]
    }

    /// Cycles of sealing every buffer once. A function of its own for the same reason as a turn.
    #[inline(never)]
    fn sealing_calls<const CHAINED: bool>(&mut self) -> u64 {
        let CipherBench { keys, order, next, fetched, buffers, tags, sizes, sent, .. } = self;
        let mut at = (*sent % sizes.len() as u64) as usize;
        let mut link = Link::<CHAINED>::new();
        let cache = suit_cache(keys.len());
        let start = cycles();
        for (buffer, tag) in buffers.iter_mut().zip(tags) {
            let nonce = esp::gcm_nonce([0; 4], link.after(*sent).to_be_bytes());
            let data = &mut buffer[..plaintext_len(sizes[at])];
            if *fetched {
                keys[order[*next + AHEAD] as usize].prefetch_for(data.len(), cache);
                keys[order[*next + LIBRARY_AHEAD] as usize].prefetch_library(cache);
            }
            keys[order[*next] as usize].seal(&nonce, &esp::aad_esn(SPI_FIRST, *sent), data, tag);
            link.end(u64::from(tag[0]));
            *sent += 1;
            at = if at + 1 == sizes.len() { 0 } else { at + 1 };
            *next = if *next + 1 == keys.len() { 0 } else { *next + 1 };
        }
        cycles().wrapping_sub(start)
    }

    /// Cycles of opening every buffer once, and whether all were what was sealed.
    #[inline(never)]
    fn opening_calls<const CHAINED: bool>(&mut self) -> (u64, bool) {
        let CipherBench { keys, order, next, fetched, buffers, tags, sizes, sent, .. } = self;
        let mut at = (*sent % sizes.len() as u64) as usize;
        let mut link = Link::<CHAINED>::new();
        let cache = suit_cache(keys.len());
        let start = cycles();
        let mut genuine = true;
        for (buffer, tag) in buffers.iter_mut().zip(tags) {
            let nonce = esp::gcm_nonce([0; 4], link.after(*sent).to_be_bytes());
            let data = &mut buffer[..plaintext_len(sizes[at])];
            if *fetched {
                keys[order[*next + AHEAD] as usize].prefetch_for(data.len(), cache);
                keys[order[*next + LIBRARY_AHEAD] as usize].prefetch_library(cache);
            }
            let key = &keys[order[*next] as usize];
            genuine &= key.open(&nonce, &esp::aad_esn(SPI_FIRST, *sent), data, tag);
            link.end(u64::from(data[0]));
            *sent += 1;
            at = if at + 1 == sizes.len() { 0 } else { at + 1 };
            *next = if *next + 1 == keys.len() { 0 } else { *next + 1 };
        }
        (cycles().wrapping_sub(start), genuine)
    }
}

/// What makes a number wait for the packet before, if packets are chained: it adds nothing, but only who reads this
/// file knows.
struct Link<const CHAINED: bool> {
    before: u64,
    nothing: u64,
}

impl<const CHAINED: bool> Link<CHAINED> {
    fn new() -> Link<CHAINED> {
        Link { before: 0, nothing: if CHAINED { black_box(0) } else { 0 } }
    }

    #[inline(always)]
    fn after(&self, number: u64) -> u64 {
        number | self.before & self.nothing
    }

    #[inline(always)]
    fn end(&mut self, result: u64) {
        if CHAINED {
            self.before = result;
        }
    }
}

/// What ESP encrypts of an inner packet: with padding and trailer.
pub(crate) fn plaintext_len(size: usize) -> usize {
    size + esp::pad_len(size) + esp::TRAILER_LEN
}
