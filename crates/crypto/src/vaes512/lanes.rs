//! Bytes into 512-bit registers and back: four AES blocks at a time, or as much of them as there is.
//!
//! The only memory that the kernel touches is touched here, and every function takes references
//! that cover it: masked loads and stores do not reach beyond the slice they are given.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::vaes::block;

/// Bytes of a register: four blocks.
pub const LANES_LEN: usize = 64;

/// Ones for the first `len` bytes of a register, for all of them if there are more, up to 255: the instruction looks at the
/// last byte of the length, and so never gives more ones than there are bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn mask(len: usize) -> __mmask64 {
    debug_assert!(len <= 255, "{len} bytes, of which the last unit is at most 240");
    _bzhi_u64(u64::MAX, len as u32)
}

/// The first 64 bytes of `data`, zeros after its end.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn load(data: &[u8]) -> __m512i {
    // SAFETY: only the bytes that the mask names are read, and they are in the slice.
    unsafe { _mm512_maskz_loadu_epi8(mask(data.len()), data.as_ptr().cast()) }
}

/// Writes the first 64 bytes of `data`, or all of it if it is shorter, and nothing else.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn store(data: &mut [u8], lanes: __m512i) {
    let mask = mask(data.len());
    // SAFETY: only the bytes that the mask names are written, and they are in the slice.
    unsafe { _mm512_mask_storeu_epi8(data.as_mut_ptr().cast(), mask, lanes) }
}

/// All of `data`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn load_whole(data: &[u8; LANES_LEN]) -> __m512i {
    // SAFETY: as many bytes as are read; any alignment will do.
    unsafe { _mm512_loadu_si512(data.as_ptr().cast()) }
}

/// Writes all of `data`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn store_whole(data: &mut [u8; LANES_LEN], lanes: __m512i) {
    // SAFETY: as many bytes as are written; any alignment will do.
    unsafe { _mm512_storeu_si512(data.as_mut_ptr().cast(), lanes) }
}

/// Four consecutive blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn blocks(blocks: &[[u8; 16]; 4]) -> __m512i {
    // SAFETY: as many bytes as are read; any alignment will do.
    unsafe { _mm512_loadu_si512(blocks.as_ptr().cast()) }
}

/// One block in all four lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn broadcast(block: &[u8; 16]) -> __m512i {
    _mm512_broadcast_i32x4(block::block(block))
}

/// The same by the load itself. Where there is other work between load and use, the compiler takes the unit that multiplies.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn load_broadcast(block: &[u8; 16]) -> __m512i {
    let lanes: __m512i;
    // SAFETY: as many bytes are read as there are.
    unsafe {
        asm!(
            "vbroadcasti32x4 {lanes}, [{block}]",
            lanes = lateout(zmm_reg) lanes,
            block = in(reg) block,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    lanes
}

/// As many units as `lanes` has, out of `data`. Only the last may lack bytes, and has zeros for them; only then there is a mask: a
/// masked store is not handed on to a load that comes soon after it.
///
/// # Panics
/// If the others lack bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn load_units(lanes: &mut [__m512i], data: &[u8]) {
    let Some((last, before)) = lanes.split_last_mut() else { return };
    let (whole, rest) = data.split_at(before.len() * LANES_LEN);
    for (unit, whole) in before.iter_mut().zip(whole.as_chunks().0) {
        *unit = load_whole(whole);
    }
    *last = match rest.first_chunk() {
        Some(whole) => load_whole(whole),
        None => load(rest),
    };
}

/// Writes them to `data`, and nothing after its end.
///
/// # Panics
/// As [`load_units`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn store_units(lanes: &[__m512i], data: &mut [u8]) {
    let Some((last, before)) = lanes.split_last() else { return };
    let (whole, rest) = data.split_at_mut(before.len() * LANES_LEN);
    for (unit, whole) in before.iter().zip(whole.as_chunks_mut().0) {
        store_whole(whole, *unit);
    }
    match rest.first_chunk_mut() {
        Some(whole) => store_whole(whole, *last),
        None => store(rest, *last),
    }
}

/// The first `len` bytes, at most 64; zeros after them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn keep(lanes: __m512i, len: usize) -> __m512i {
    _mm512_maskz_mov_epi8(mask(len), lanes)
}

/// No instruction, but a place that the compiler keeps: what `lanes` are made of comes before it, what is made of them after it,
/// and no place is exchanged with another. So work for two execution units stays interleaved as it is written, where the compiler would
/// put all of the one behind all of the other, too far away for a CPU to find both at once.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn pin(lanes: &mut __m512i) {
    // SAFETY: no instruction; the register stays what it was.
    unsafe { asm!("/* {0} */", inout(zmm_reg) * lanes, options(nomem, nostack, preserves_flags)) };
}

/// One block in all four lanes, out of memory that was only just written word by word: a load of both at once would wait
/// until both words have reached the cache, which is after all that went before has retired. (The compiler makes one load
/// of two, and of those of neighbours.) From general registers it would take three instructions of the unit that multiplies.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn lanes_of(block: &[u64; 2]) -> __m512i {
    let (low, high): (__m512i, __m512i);
    // SAFETY: as many bytes are read as there are.
    unsafe {
        asm!(
            "vpbroadcastq {low}, [{block}]",
            "vpbroadcastq {high}, [{block} + 8]",
            low = out(zmm_reg) low,
            high = lateout(zmm_reg) high,
            block = in(reg) block,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    let high_words = _mm512_set_epi64(-1, 0, -1, 0, -1, 0, -1, 0);
    _mm512_ternarylogic_epi64::<0xca>(high_words, high, low)
}
