//! Bytes into 256-bit registers and back: two AES blocks at a time, and the last block of a packet, which may lack bytes.
//!
//! The only memory that the kernel touches but for blocks is touched here, and every function takes references that cover it.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::vaes::block::{BLOCK_LEN, block, store_block};

/// Bytes of a register: two blocks.
pub const PAIR_LEN: usize = 2 * BLOCK_LEN;

/// Two blocks.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn load(pair: &[u8; PAIR_LEN]) -> __m256i {
    // SAFETY: as many bytes as are read; any alignment will do.
    unsafe { _mm256_loadu_si256(pair.as_ptr().cast()) }
}

/// Writes two blocks.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn store(pair: &mut [u8; PAIR_LEN], lanes: __m256i) {
    // SAFETY: as many bytes as are written; any alignment will do.
    unsafe { _mm256_storeu_si256(pair.as_mut_ptr().cast(), lanes) }
}

/// One block in both lanes.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn broadcast(block: &[u8; BLOCK_LEN]) -> __m256i {
    _mm256_broadcastsi128_si256(self::block(block))
}

/// One block in both lanes, out of memory that was only just written word by word: a load of both at once would wait
/// until both words have reached the cache, which is after all that went before has retired. (The compiler makes one load
/// of two.)
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn lanes_of(words: &[u64; 2]) -> __m256i {
    let (low, high): (__m256i, __m256i);
    // SAFETY: as many bytes are read as there are.
    unsafe {
        asm!(
            "vpbroadcastq {low}, [{words}]",
            "vpbroadcastq {high}, [{words} + 8]",
            low = out(ymm_reg) low,
            high = lateout(ymm_reg) high,
            words = in(reg) words,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    _mm256_blend_epi32::<0b1100_1100>(low, high)
}

/// Bytes of the last block of so many, of which there is at least one: 1 to 16.
#[inline]
fn last_len(data: &[u8]) -> usize {
    (data.len() - 1) % BLOCK_LEN + 1
}

/// A window of 16 bytes: what moves bytes towards the end of a block, and zeros before them, at its own length; towards
/// the start, and zeros after them, at 32 less the length. A byte with the highest bit gives zero.
static MOVES: [u8; 3 * BLOCK_LEN] = {
    let mut moves = [0x80; 3 * BLOCK_LEN];
    let mut at = 0;
    while at < BLOCK_LEN {
        moves[BLOCK_LEN + at] = at as u8;
        at += 1;
    }
    moves
};

/// Ones where a pair has bytes: a window at 32 less their number.
static BYTES: [u8; 2 * PAIR_LEN] = {
    let mut bytes = [0; 2 * PAIR_LEN];
    let mut at = 0;
    while at < PAIR_LEN {
        bytes[at] = 0xff;
        at += 1;
    }
    bytes
};

#[inline]
fn window<const LEN: usize>(table: &[u8], at: usize) -> &[u8; LEN] {
    table[at..].first_chunk().expect("a window within the table")
}

/// The last block of `data`, zeros after its end.
///
/// # Panics
/// If there is no data.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn load_last(data: &[u8]) -> __m128i {
    let Some(end) = data.last_chunk() else {
        let mut padded = [0; BLOCK_LEN];
        padded[..data.len()].copy_from_slice(data);
        return block(&padded);
    };
    let to_the_start = window(&MOVES, 2 * BLOCK_LEN - last_len(data));
    _mm_shuffle_epi8(block(end), block(to_the_start))
}

/// Writes the last block of `data`. What is before it, if it lacks bytes, is not what it was: whoever calls writes that
/// afterwards. One store, which may lie across the blocks' border, instead of several that are shorter.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn store_last(data: &mut [u8], lane: __m128i) {
    let len = last_len(data);
    let Some(end) = data.last_chunk_mut() else {
        let mut whole = [0; BLOCK_LEN];
        store_block(&mut whole, lane);
        return data.copy_from_slice(&whole[..len]);
    };
    let to_the_end = window(&MOVES, len);
    store_block(end, _mm_shuffle_epi8(lane, block(to_the_end)));
}

/// The first `len` bytes of a pair; zeros after them.
///
/// # Panics
/// If it does not have as many.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn keep(lanes: __m256i, len: usize) -> __m256i {
    _mm256_and_si256(lanes, load(window(&BYTES, PAIR_LEN - len)))
}

/// No instruction, but a place that the compiler keeps: what `lanes` are made of comes before it, what is made of them after it,
/// and no place is exchanged with another. So work for two execution units stays interleaved as it is written.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn pin(lanes: &mut __m256i) {
    // SAFETY: no instruction; the register stays what it was.
    unsafe { asm!("/* {0} */", inout(ymm_reg) * lanes, options(nomem, nostack, preserves_flags)) };
}
