//! GHASH (SP 800-38D §6.4) of one block: a carry-less product, reduced.
//!
//! A block's bytes are reversed on loading. Its bits are then in order, with the polynomial's lowest
//! coefficient in the highest bit, and the product of two such numbers comes out one bit too low.
//! The powers of the hash key are therefore kept multiplied by x (`schedule.rs`), which puts the
//! product where it belongs (Gueron, Kounavis: Intel Carry-Less Multiplication Instruction and its
//! Usage for Computing the GCM Mode). A product is reduced by two folds of 64 bits each, from the low end.

use std::arch::x86_64::*;

use super::Schedule;
use super::block::{BLOCK_LEN, block, words};

/// x^128 = x^7 + x^2 + x + 1 in the reversed order of bits, multiplied by x.
pub const POLYNOMIAL: u128 = 0xc200_0000_0000_0000_0000_0000_0000_0001;

/// One block times one power.
#[inline]
#[target_feature(enable = "avx,aes,pclmulqdq")]
pub fn product(block: __m128i, power: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128::<0x00>(block, power);
    let middle = _mm_xor_si128(
        _mm_clmulepi64_si128::<0x01>(block, power),
        _mm_clmulepi64_si128::<0x10>(block, power),
    );
    let high = _mm_clmulepi64_si128::<0x11>(block, power);
    let middle = _mm_xor_si128(middle, fold(low));
    _mm_xor_si128(high, fold(middle))
}

/// What becomes of the lower half of `sum`, 64 bits higher: itself, and what the polynomial makes of it.
#[inline]
#[target_feature(enable = "avx,aes,pclmulqdq")]
fn fold(sum: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128::<0x10>(sum, words(POLYNOMIAL));
    _mm_xor_si128(low, _mm_shuffle_epi32::<0x4e>(sum))
}

/// The hash of all blocks of `aad`.
#[inline]
#[target_feature(enable = "avx,aes,pclmulqdq")]
pub fn of_aad(schedule: &Schedule, aad: &[u8]) -> __m128i {
    let mut hash = _mm_setzero_si128();
    for next in aad.chunks(BLOCK_LEN) {
        let mut padded = [0; BLOCK_LEN];
        padded[..next.len()].copy_from_slice(next);
        let sum = _mm_xor_si128(hash, words(u128::from_be_bytes(padded)));
        hash = product(sum, block(schedule.power(1)));
    }
    hash
}
