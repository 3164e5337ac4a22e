//! Expansion of a key: AES round keys (FIPS 197 §5.2) and powers of the hash key (SP 800-38D §6.4).
//!
//! No table look-ups: the S-box is the AES unit's own. An expanded key is the same for all of our own engines.

use std::arch::x86_64::*;

use zeroize::Zeroize;

use super::block::{block, store_block};
use super::ghash::{POLYNOMIAL, product};
use crate::cache::Cache;

/// Blocks whose products are summed before they are reduced; so many powers are kept.
pub const POWERS: usize = 16;

/// Blocks of a cache line.
const BLOCKS_IN_LINE: usize = 4;

/// Round keys of AES-256, the key size with the most.
const ROUND_KEYS_MAX: usize = 15;

/// What a packet needs of a key, 496 bytes: H^16 … H^1 (times x, bytes reversed), then the round
/// keys. Short packets read the last powers and the first round keys, which are neighbours. Wiped
/// on drop.
#[repr(C)]
pub struct Schedule([[u8; 16]; POWERS + ROUND_KEYS_MAX]);

impl Schedule {
    /// Nothing yet.
    pub const fn empty() -> Schedule {
        Schedule([[0; 16]; POWERS + ROUND_KEYS_MAX])
    }

    /// Asks for what a packet with so much data needs: the round keys, and a power for each block, AAD and lengths included. With
    /// up to 96 bytes those are the last eight, and with each 64 bytes more there are four more of them, a line.
    #[inline(always)]
    pub fn prefetch(&self, data_len: usize, cache: Cache) {
        const FEWEST: usize = 8;
        for line in (POWERS - FEWEST..self.0.len()).step_by(BLOCKS_IN_LINE) {
            cache.ask(self.0[line].as_ptr());
        }
        for (line, most_without) in [(1, 96), (0, 160)] {
            if data_len > most_without {
                cache.ask(self.0[line * BLOCKS_IN_LINE].as_ptr());
            }
        }
    }

    /// Round key `round`, of which number 0 is added to the counter block.
    #[inline(always)]
    pub fn round_key(&self, round: usize) -> &[u8; 16] {
        &self.0[POWERS + round]
    }

    /// H to the power of `exponent`, which is 1 to 16.
    #[inline(always)]
    pub fn power(&self, exponent: usize) -> &[u8; 16] {
        &self.0[POWERS - exponent]
    }

    /// H to the powers of `exponent`, which is 1 to 16, and of the three below. Below the first
    /// power there is nothing, and what stands there must only meet zeros.
    #[inline(always)]
    pub fn powers_from(&self, exponent: usize) -> &[[u8; 16]; 4] {
        let at = POWERS - exponent;
        self.0[at..at + 4].first_chunk().expect("four blocks")
    }

    /// Fills the schedule for `key`, which has 16, 24 or 32 bytes.
    #[target_feature(enable = "avx,aes,pclmulqdq")]
    pub fn expand(&mut self, key: &[u8]) {
        let rounds = key.len() / 4 + 6;
        self.expand_round_keys(key, rounds);
        self.expand_powers(rounds);
    }

    /// FIPS 197 §5.2, with words in the machine's order, so that "rotate left" is to the right.
    #[target_feature(enable = "avx,aes,pclmulqdq")]
    fn expand_round_keys(&mut self, key: &[u8], rounds: usize) {
        let (words, _) = self.0[POWERS..].as_flattened_mut().as_chunks_mut::<4>();
        let key_words = key.len() / 4;
        words[..key_words].as_flattened_mut().copy_from_slice(key);
        let mut constant = 1_u8;
        let mut word = u32::from_le_bytes(words[key_words - 1]);
        for at in key_words..4 * (rounds + 1) {
            if at % key_words == 0 {
                word = substitute(word.rotate_right(8)) ^ u32::from(constant);
                constant = (constant << 1) ^ (0x1b & (constant >> 7).wrapping_neg());
            } else if key_words == 8 && at % 8 == 4 {
                word = substitute(word);
            }
            word ^= u32::from_le_bytes(words[at - key_words]);
            words[at] = word.to_le_bytes();
        }
    }

    /// H is the zero block, encrypted. Every power is the one before times H.
    #[target_feature(enable = "avx,aes,pclmulqdq")]
    fn expand_powers(&mut self, rounds: usize) {
        let mut state = block(self.round_key(0));
        for round in 1..rounds {
            state = _mm_aesenc_si128(state, block(self.round_key(round)));
        }
        state = _mm_aesenclast_si128(state, block(self.round_key(rounds)));
        let first = &mut self.0[POWERS - 1];
        store_block(first, state);
        let hash = u128::from_be_bytes(*first);
        let times_x = (hash << 1) ^ (POLYNOMIAL & (hash >> 127).wrapping_neg());
        *first = times_x.to_le_bytes();
        let hash = block(first);
        let mut power = hash;
        for exponent in 2..=POWERS {
            power = product(power, hash);
            store_block(&mut self.0[POWERS - exponent], power);
        }
    }
}

/// The S-box for the four bytes of a word: the last round of AES on four equal columns, which
/// shifting rows leaves as they are.
#[target_feature(enable = "avx,aes,pclmulqdq")]
fn substitute(word: u32) -> u32 {
    let columns = _mm_set1_epi32(word as i32);
    _mm_cvtsi128_si32(_mm_aesenclast_si128(columns, _mm_setzero_si128())) as u32
}

impl Zeroize for Schedule {
    fn zeroize(&mut self) {
        self.0.zeroize();
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        self.zeroize();
    }
}
