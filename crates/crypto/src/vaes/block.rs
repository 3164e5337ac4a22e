//! One AES block, 16 bytes, in a register and in memory.

use std::arch::x86_64::*;

/// Bytes of a block.
pub const BLOCK_LEN: usize = 16;

/// One block.
#[inline]
pub fn block(block: &[u8; BLOCK_LEN]) -> __m128i {
    // SAFETY: as many bytes as are read; any alignment will do.
    unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
}

/// Writes one block.
#[inline]
pub fn store_block(block: &mut [u8; BLOCK_LEN], lane: __m128i) {
    // SAFETY: as many bytes as are written; any alignment will do.
    unsafe { _mm_storeu_si128(block.as_mut_ptr().cast(), lane) }
}

/// A block out of general registers.
#[inline]
#[target_feature(enable = "sse2")]
pub fn words(block: u128) -> __m128i {
    _mm_set_epi64x((block >> 64) as i64, block as i64)
}
