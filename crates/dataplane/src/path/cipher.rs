//! The bare cipher, as the ceiling of the path: no headers, no tables, no rings.

use crypto::{Engine, Key};
use wire::esp;

use super::gateways::{SPI_FIRST, key_bytes, order};
use super::{Measured, PathError, Sample, check_sizes, check_tunnels};
use crate::batch::BATCH_PACKETS;
use crate::cpu::cycles;

/// The cipher alone: the same lengths and keys, a batch of buffers, nothing else.
pub struct CipherBench {
    keys: Vec<Key>,
    /// Which key each packet uses, over and over.
    order: Vec<u32>,
    next: usize,
    measured: Measured,
    buffers: Vec<Vec<u8>>,
    tags: Vec<[u8; esp::ICV_LEN]>,
    bytes: u64,
    iv: u64,
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
    ) -> Result<CipherBench, PathError> {
        check_sizes(sizes)?;
        check_tunnels(keys)?;
        // Whole passes over the sizes, so that their mix is right; at least a batch.
        let count = sizes.len() * BATCH_PACKETS.div_ceil(sizes.len());
        let sizes = sizes.iter().cycle().take(count);
        let plaintext_len = |size: &usize| size + esp::pad_len(*size) + esp::TRAILER_LEN;
        let made = (0..keys).map(|n| Ok(Key::new(engine, &key_bytes(n))?));
        Ok(CipherBench {
            keys: made.collect::<Result<_, PathError>>()?,
            order: order(keys),
            next: 0,
            measured,
            buffers: sizes.clone().map(|size| vec![0; plaintext_len(size)]).collect(),
            tags: vec![[0; esp::ICV_LEN]; count],
            bytes: sizes.map(|size| *size as u64).sum(),
            iv: 0,
        })
    }

    /// Seals all buffers `rounds` times, opens them if that was asked for, and measures the part
    /// that was.
    pub fn run(&mut self, rounds: usize) -> Sample {
        let mut sample = Sample::default();
        for _ in 0..rounds {
            let (first_key, first_iv) = (self.next, self.iv);
            let seal = self.sealing_calls();
            sample.packets += self.buffers.len() as u64;
            sample.bytes += self.bytes;
            if self.measured == Measured::Seal {
                sample.cycles += seal;
                continue;
            }
            (self.next, self.iv) = (first_key, first_iv);
            let (open, genuine) = self.opening_calls();
            debug_assert!(genuine);
            sample.cycles += if self.measured == Measured::Open { open } else { seal + open };
        }
        sample
    }

    /// Cycles of sealing every buffer once. A function of its own for the same reason as a turn.
    #[inline(never)]
    fn sealing_calls(&mut self) -> u64 {
        let CipherBench { keys, order, next, buffers, tags, iv, .. } = self;
        let start = cycles();
        for (buffer, tag) in buffers.iter_mut().zip(tags) {
            let nonce = esp::gcm_nonce([0; 4], iv.to_be_bytes());
            keys[order[*next] as usize].seal(&nonce, &esp::aad_esn(SPI_FIRST, *iv), buffer, tag);
            *iv += 1;
            *next = if *next + 1 == order.len() { 0 } else { *next + 1 };
        }
        cycles().wrapping_sub(start)
    }

    /// Cycles of opening every buffer once, and whether all were what was sealed.
    #[inline(never)]
    fn opening_calls(&mut self) -> (u64, bool) {
        let CipherBench { keys, order, next, buffers, tags, iv, .. } = self;
        let start = cycles();
        let mut genuine = true;
        for (buffer, tag) in buffers.iter_mut().zip(tags) {
            let nonce = esp::gcm_nonce([0; 4], iv.to_be_bytes());
            genuine &= keys[order[*next] as usize].open(
                &nonce,
                &esp::aad_esn(SPI_FIRST, *iv),
                buffer,
                tag,
            );
            *iv += 1;
            *next = if *next + 1 == order.len() { 0 } else { *next + 1 };
        }
        (cycles().wrapping_sub(start), genuine)
    }
}
