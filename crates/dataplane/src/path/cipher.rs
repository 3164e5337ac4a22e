//! The bare cipher, as the ceiling of the path: no headers, no tables, no rings.

use std::time::Instant;

use crypto::{Engine, Key};
use wire::esp;

use super::gateways::{SPI_FIRST, key_bytes};
use super::{Measured, PathError, Sample, check_sizes};
use crate::batch::BATCH_PACKETS;

/// The cipher alone: the same lengths, one key, a batch of buffers, nothing else.
pub struct CipherBench {
    key: Key,
    measured: Measured,
    buffers: Vec<Vec<u8>>,
    bytes: u64,
    iv: u64,
}

impl CipherBench {
    /// Buffers for 64 packets at a time, as long as ESP makes inner packets of `sizes`.
    ///
    /// # Errors
    /// If a size is out of bounds or the engine cannot be had.
    pub fn new(
        engine: Engine,
        measured: Measured,
        sizes: &[usize],
    ) -> Result<CipherBench, PathError> {
        check_sizes(sizes)?;
        // Whole passes over the sizes, so that their mix is right; at least a batch.
        let count = sizes.len() * BATCH_PACKETS.div_ceil(sizes.len());
        let sizes = sizes.iter().cycle().take(count);
        let plaintext_len = |size: &usize| size + esp::pad_len(*size) + esp::TRAILER_LEN;
        Ok(CipherBench {
            key: Key::new(engine, &key_bytes(0))?,
            measured,
            buffers: sizes.clone().map(|size| vec![0; plaintext_len(size)]).collect(),
            bytes: sizes.map(|size| *size as u64).sum(),
            iv: 0,
        })
    }

    /// Seals and opens all buffers `rounds` times, and measures what was asked for.
    pub fn run(&mut self, rounds: usize) -> Sample {
        let mut sample = Sample::default();
        let mut tags = vec![[0; esp::ICV_LEN]; self.buffers.len()];
        for _ in 0..rounds {
            let first_iv = self.iv;
            self.iv += self.buffers.len() as u64;
            let start = Instant::now();
            for ((buffer, tag), iv) in self.buffers.iter_mut().zip(&mut tags).zip(first_iv..) {
                let nonce = esp::gcm_nonce([0; 4], iv.to_be_bytes());
                self.key.seal(&nonce, &esp::aad_esn(SPI_FIRST, iv), buffer, tag);
            }
            let seal_ns = start.elapsed().as_nanos() as u64;
            let start = Instant::now();
            let mut genuine = true;
            for ((buffer, tag), iv) in self.buffers.iter_mut().zip(&tags).zip(first_iv..) {
                let nonce = esp::gcm_nonce([0; 4], iv.to_be_bytes());
                genuine &= self.key.open(&nonce, &esp::aad_esn(SPI_FIRST, iv), buffer, tag);
            }
            let open_ns = start.elapsed().as_nanos() as u64;
            debug_assert!(genuine);
            sample.packets += self.buffers.len() as u64;
            sample.bytes += self.bytes;
            sample.elapsed_ns += match self.measured {
                Measured::Seal => seal_ns,
                Measured::Open => open_ns,
                Measured::Both => seal_ns + open_ns,
            };
        }
        sample
    }
}
