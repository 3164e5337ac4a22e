//! A packet that ESP does not have: AAD of any length, or more than 4064 bytes of data (jumbo frames).

use std::arch::x86_64::*;

use super::ends::Ends;
use super::groups;
use super::packet::is_equal;
use super::stream::Stream;
use crate::key::is_within_limits;
use crate::vaes::Schedule;
use crate::vaes::block::store_block;
use crate::vaes::ghash;
use crate::vaes::head::nonce_words;
use crate::{NONCE_LEN, TAG_LEN};

/// Seals `data` in place and writes its tag.
///
/// # Panics
/// If there is more of it, or of `aad`, than can be sealed.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn seal(
    bits: u16,
    schedule: &Schedule,
    nonce: &[u8; NONCE_LEN],
    aad: &[u8],
    data: &mut [u8],
    tag: &mut [u8; TAG_LEN],
) {
    assert!(is_within_limits(aad, data), "data or AAD beyond what can be sealed");
    store_block(tag, process_keyed::<true>(bits, schedule, nonce, aad, data));
}

/// Opens `data` in place, and says whether its tag is right.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn open(
    bits: u16,
    schedule: &Schedule,
    nonce: &[u8; NONCE_LEN],
    aad: &[u8],
    data: &mut [u8],
    tag: &[u8; TAG_LEN],
) -> bool {
    is_within_limits(aad, data)
        && is_equal(process_keyed::<false>(bits, schedule, nonce, aad, data), tag)
}

/// Seals or opens `data` in place with a key of so many bits; the answer is the tag it has or should have had.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn process_keyed<const SEALING: bool>(
    bits: u16,
    schedule: &Schedule,
    nonce: &[u8; NONCE_LEN],
    aad: &[u8],
    data: &mut [u8],
) -> __m128i {
    match bits {
        128 => process::<10, SEALING>(schedule, nonce, aad, data),
        192 => process::<12, SEALING>(schedule, nonce, aad, data),
        _ => process::<14, SEALING>(schedule, nonce, aad, data),
    }
}

/// The same in so many rounds.
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
    let before = ghash::of_aad(schedule, aad);
    if SEALING {
        groups::seal::<ROUNDS, true>(stream, data, before, ends)
    } else {
        groups::open::<ROUNDS, true>(stream, data, before, ends)
    }
}
