//! A packet that ESP does not have: AAD of any length, or more than 4064 bytes of data (jumbo frames).

use std::arch::x86_64::*;

use super::ghash::product;
use super::hash::{Ends, Hash};
use super::lanes::{block, store_block, words};
use super::packet::{LINE_LEN, finish_any, groups, is_equal, nonce_words};
use super::schedule::Schedule;
use super::stream::Stream;
use crate::NONCE_LEN;

const BLOCK_LEN: usize = 16;

/// Seals `data` in place and writes its tag.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn seal<const ROUNDS: usize>(
    schedule: &Schedule,
    nonce: &[u8; NONCE_LEN],
    aad: &[u8],
    data: &mut [u8],
    tag: &mut [u8; BLOCK_LEN],
) {
    store_block(tag, process::<ROUNDS, true>(schedule, nonce, aad, data));
}

/// Opens `data` in place, and says whether its tag is right.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn open<const ROUNDS: usize>(
    schedule: &Schedule,
    nonce: &[u8; NONCE_LEN],
    aad: &[u8],
    data: &mut [u8],
    tag: &[u8; BLOCK_LEN],
) -> bool {
    is_equal(process::<ROUNDS, false>(schedule, nonce, aad, data), tag)
}

/// Seals or opens `data` in place; the answer is the tag it has or should have had.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn process<const ROUNDS: usize, const SEALING: bool>(
    schedule: &Schedule,
    nonce: &[u8; NONCE_LEN],
    aad: &[u8],
    data: &mut [u8],
) -> __m128i {
    let ends = Ends::lengths(data.len(), aad.len());
    let stream = Stream::<true>::new(schedule, &nonce_words(nonce));
    let hash = Hash { value: hash_of_aad(schedule, aad), ..Hash::new(schedule) };
    if data.len() <= LINE_LEN {
        finish_any::<ROUNDS, SEALING, false, true>(&stream, data, hash, ends)
    } else {
        groups::<ROUNDS, SEALING, true>(stream, data, hash, ends)
    }
}

/// The hash of all blocks of `aad`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn hash_of_aad(schedule: &Schedule, aad: &[u8]) -> __m128i {
    let mut hash = _mm_setzero_si128();
    for next in aad.chunks(BLOCK_LEN) {
        let mut padded = [0; BLOCK_LEN];
        padded[..next.len()].copy_from_slice(next);
        let sum = _mm_xor_si128(hash, words(u128::from_be_bytes(padded)));
        hash = product(sum, block(schedule.power(1)));
    }
    hash
}
