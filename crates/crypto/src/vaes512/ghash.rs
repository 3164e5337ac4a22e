//! GHASH (SP 800-38D §6.4) over four blocks at once: carry-less products, summed, reduced late.
//!
//! How products are put right and reduced is told where one block is hashed, in `vaes/ghash.rs`.

use std::arch::x86_64::*;

use super::lanes::pin;
use crate::vaes::ghash::POLYNOMIAL;

/// Sums of unreduced products, one in each lane: 256 bits in three overlapping parts.
#[derive(Clone, Copy)]
pub struct Products {
    low: __m512i,
    middle: __m512i,
    high: __m512i,
}

impl Products {
    /// Nothing summed yet.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn zero() -> Products {
        let zero = _mm512_setzero_si512();
        Products { low: zero, middle: zero, high: zero }
    }

    /// See [`super::lanes::pin`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn pin(&mut self) {
        pin(&mut self.low);
        pin(&mut self.middle);
        pin(&mut self.high);
    }
}

/// Exclusive or of three.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn xor3(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi64::<0x96>(a, b, c)
}

/// Reverses the bytes of every block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn reverse(blocks: __m512i) -> __m512i {
    _mm512_shuffle_epi8(blocks, reversal())
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn reversal() -> __m512i {
    _mm512_broadcast_i32x4(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
}

/// The products of the four lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn multiply(blocks: __m512i, powers: __m512i) -> Products {
    let middle = _mm512_clmulepi64_epi128::<0x01>(blocks, powers);
    Products {
        low: _mm512_clmulepi64_epi128::<0x00>(blocks, powers),
        middle: _mm512_xor_si512(middle, _mm512_clmulepi64_epi128::<0x10>(blocks, powers)),
        high: _mm512_clmulepi64_epi128::<0x11>(blocks, powers),
    }
}

/// The products of the four lanes, added to what was there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn multiply_add(sum: Products, blocks: __m512i, powers: __m512i) -> Products {
    let middle = _mm512_clmulepi64_epi128::<0x01>(blocks, powers);
    let other = _mm512_clmulepi64_epi128::<0x10>(blocks, powers);
    Products {
        low: _mm512_xor_si512(sum.low, _mm512_clmulepi64_epi128::<0x00>(blocks, powers)),
        middle: xor3(sum.middle, middle, other),
        high: _mm512_xor_si512(sum.high, _mm512_clmulepi64_epi128::<0x11>(blocks, powers)),
    }
}

/// Every lane modulo the polynomial: two folds of 64 bits each, from the low end.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn reduce(sum: Products) -> __m512i {
    let polynomial = _mm512_set4_epi64(
        (POLYNOMIAL >> 64) as i64,
        POLYNOMIAL as i64,
        (POLYNOMIAL >> 64) as i64,
        POLYNOMIAL as i64,
    );
    let fold = _mm512_clmulepi64_epi128::<0x10>(sum.low, polynomial);
    let middle = xor3(sum.middle, fold, _mm512_shuffle_epi32::<0x4e>(sum.low));
    let fold = _mm512_clmulepi64_epi128::<0x10>(middle, polynomial);
    xor3(sum.high, fold, _mm512_shuffle_epi32::<0x4e>(middle))
}

/// The sum of the four lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn sum_of_lanes(lanes: __m512i) -> __m128i {
    let halves =
        _mm256_xor_si256(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64::<1>(lanes));
    _mm_xor_si128(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves))
}

/// One block times one power.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn product(block: __m128i, power: __m128i) -> __m128i {
    let (block, power) = (_mm512_zextsi128_si512(block), _mm512_zextsi128_si512(power));
    _mm512_castsi512_si128(reduce(multiply(block, power)))
}
