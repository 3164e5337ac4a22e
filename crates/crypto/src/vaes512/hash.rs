//! The hash of a packet (SP 800-38D §7.1, step 5): AAD, ciphertext, and both lengths.

use std::arch::x86_64::*;

use super::ghash::{Products, multiply, multiply_add, reverse};
use super::lanes::{block, blocks};
use super::schedule::Schedule;

const BLOCK_LEN: usize = 16;

/// What was hashed, and a group that is still to be: it waits for other work to be done between
/// its multiplications.
pub struct Hash<'a> {
    pub schedule: &'a Schedule,
    pub value: __m128i,
    pub group: [__m512i; 4],
}

impl Hash<'_> {
    /// Nothing is pending.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn new(schedule: &Schedule, value: __m128i) -> Hash<'_> {
        Hash { schedule, value, group: [_mm512_setzero_si512(); 4] }
    }

    /// A unit of the pending group times its powers.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn add(&self, sum: Products, unit: usize) -> Products {
        let powers = powers(self.schedule, 4 * (4 - unit));
        if unit == 0 {
            let first = _mm512_xor_si512(self.group[0], _mm512_zextsi128_si512(self.value));
            multiply(first, powers)
        } else {
            multiply_add(sum, self.group[unit], powers)
        }
    }

    /// The products of the last `UNITS` units, the tail of which has `tail_blocks` blocks before
    /// that of the lengths.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn finish<const UNITS: usize, const WHOLE: bool>(
        &self,
        ciphers: &[__m512i; UNITS],
        tail_blocks: usize,
        lengths: u64,
    ) -> Products {
        let tail = UNITS - 1;
        let value = _mm512_zextsi128_si512(self.value);
        let mut sum = Products::zero();
        if WHOLE {
            let power = block(self.schedule.power(4 * tail + tail_blocks + 2));
            sum = multiply(value, _mm512_zextsi128_si512(power));
        }
        for (unit, cipher) in ciphers.iter().enumerate() {
            let mut blocks = reverse(*cipher);
            if unit == tail {
                blocks = _mm512_xor_si512(blocks, length_block(lengths, tail_blocks));
            }
            let powers = powers(self.schedule, 4 * (tail - unit) + tail_blocks + 1);
            if unit == 0 && !WHOLE {
                sum = multiply(_mm512_xor_si512(blocks, value), powers);
            } else {
                sum = multiply_add(sum, blocks, powers);
            }
        }
        sum
    }
}

/// H to the power of `exponent` for the first lane, of `exponent` − 1 for the next, and so on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn powers(schedule: &Schedule, exponent: usize) -> __m512i {
    blocks(schedule.powers_from(exponent))
}

/// Both lengths in bits, of which the data's takes 40: `key.rs` has seen to it that they fit.
#[must_use]
pub fn length_word(data_len: usize, aad_bits: u64) -> u64 {
    (data_len as u64 * 8) | (aad_bits << 40)
}

/// The block of lengths (SP 800-38D §7.1, step 5), bytes reversed, in lane number `lane`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn length_block(lengths: u64, lane: usize) -> __m512i {
    _mm512_shuffle_epi8(_mm512_set1_epi64(lengths as i64), blocks(&LENGTHS_IN_LANE[lane]))
}

/// For each lane, which byte of the two lengths goes where; bytes with the highest bit become zero.
static LENGTHS_IN_LANE: [[[u8; BLOCK_LEN]; 4]; 4] = {
    const NOTHING: [u8; BLOCK_LEN] = [0x80; BLOCK_LEN];
    const LENGTHS: [u8; BLOCK_LEN] =
        [0, 1, 2, 3, 4, 0x80, 0x80, 0x80, 5, 6, 7, 0x80, 0x80, 0x80, 0x80, 0x80];
    [
        [LENGTHS, NOTHING, NOTHING, NOTHING],
        [NOTHING, LENGTHS, NOTHING, NOTHING],
        [NOTHING, NOTHING, LENGTHS, NOTHING],
        [NOTHING, NOTHING, NOTHING, LENGTHS],
    ]
};
