//! GHASH (SP 800-38D §6.4) over two blocks at once: carry-less products, summed, reduced late.
//!
//! How products are put right and reduced is told where one block is hashed, in `vaes/ghash.rs`.

use std::arch::x86_64::*;

use super::lanes::{load, pin};
use crate::vaes::Schedule;
use crate::vaes::ghash::POLYNOMIAL;

/// Sums of unreduced products, one in each lane: 256 bits in three overlapping parts.
#[derive(Clone, Copy)]
pub struct Products {
    low: __m256i,
    middle: __m256i,
    high: __m256i,
}

impl Products {
    /// Nothing summed yet.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn zero() -> Products {
        let zero = _mm256_setzero_si256();
        Products { low: zero, middle: zero, high: zero }
    }

    /// Adds the products of both lanes.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn add(&mut self, blocks: __m256i, powers: __m256i) {
        let low = _mm256_clmulepi64_epi128::<0x00>(blocks, powers);
        let high = _mm256_clmulepi64_epi128::<0x11>(blocks, powers);
        let middle = _mm256_xor_si256(
            _mm256_clmulepi64_epi128::<0x01>(blocks, powers),
            _mm256_clmulepi64_epi128::<0x10>(blocks, powers),
        );
        self.low = _mm256_xor_si256(self.low, low);
        self.middle = _mm256_xor_si256(self.middle, middle);
        self.high = _mm256_xor_si256(self.high, high);
    }

    /// The sum of both lanes, modulo the polynomial.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn reduced(&self) -> __m128i {
        let middle = _mm256_xor_si256(self.middle, fold(self.low));
        let lanes = _mm256_xor_si256(self.high, fold(middle));
        _mm_xor_si128(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes))
    }

    /// See [`super::lanes::pin`].
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn pin(&mut self) {
        pin(&mut self.low);
        pin(&mut self.middle);
        pin(&mut self.high);
    }
}

/// What becomes of the lower half of each lane, 64 bits higher: itself, and what the polynomial makes of it.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn fold(sum: __m256i) -> __m256i {
    let (high, low) = ((POLYNOMIAL >> 64) as i64, POLYNOMIAL as i64);
    let polynomial = _mm256_set_epi64x(high, low, high, low);
    let product = _mm256_clmulepi64_epi128::<0x10>(sum, polynomial);
    _mm256_xor_si256(product, _mm256_shuffle_epi32::<0x4e>(sum))
}

/// Reverses the bytes of both blocks.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn reverse(blocks: __m256i) -> __m256i {
    let order = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm256_shuffle_epi8(blocks, _mm256_broadcastsi128_si256(order))
}

/// Reverses the bytes of a block.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn reverse_block(block: __m128i) -> __m128i {
    let order = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm_shuffle_epi8(block, order)
}

/// H to the power of `exponent` for the first lane, which is 2 to 16, and of `exponent` − 1 for the other.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn powers(schedule: &Schedule, exponent: usize) -> __m256i {
    let powers = schedule.powers_from(exponent).as_flattened();
    load(powers.first_chunk().expect("two blocks"))
}
