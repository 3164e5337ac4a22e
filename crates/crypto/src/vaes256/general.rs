//! A packet that ESP does not have: AAD of any length, or more than 4064 bytes of data (jumbo frames).

use std::arch::x86_64::*;

use super::groups;
use super::lanes::PAIR_LEN;
use super::line::{Places, Rest};
use super::packet::{FIRST_COUNTER, is_equal};
use crate::key::is_within_limits;
use crate::vaes::Schedule;
use crate::vaes::block::store_block;
use crate::vaes::ghash;
use crate::vaes::head::{Head, nonce_words};
use crate::{NONCE_LEN, TAG_LEN};

/// Seals `data` in place and writes its tag.
///
/// # Panics
/// If there is more of it, or of `aad`, than can be sealed.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn seal(
    bits: u16,
    schedule: &Schedule,
    nonce: &[u8; NONCE_LEN],
    aad: &[u8],
    data: &mut [u8],
    tag: &mut [u8; TAG_LEN],
) {
    assert!(is_within_limits(aad, data), "data or AAD beyond what can be sealed");
    process::<true>(bits, schedule, nonce, aad, data, |computed| {
        store_block(tag, computed);
        true
    });
}

/// Opens `data` in place, and says whether its tag is right.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn open(
    bits: u16,
    schedule: &Schedule,
    nonce: &[u8; NONCE_LEN],
    aad: &[u8],
    data: &mut [u8],
    tag: &[u8; TAG_LEN],
) -> bool {
    let with_tag = |computed| is_equal(computed, tag);
    is_within_limits(aad, data) && process::<false>(bits, schedule, nonce, aad, data, with_tag)
}

/// Seals or opens `data` in place with a key of so many bits, and asks `with_tag` about the tag that it has or should have.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn process<const SEALING: bool>(
    bits: u16,
    schedule: &Schedule,
    nonce: &[u8; NONCE_LEN],
    aad: &[u8],
    data: &mut [u8],
    with_tag: impl FnOnce(__m128i) -> bool,
) -> bool {
    let lengths = (data.len() as u64 * 8) | ((aad.len() as u64 * 8) << 40);
    let head = Head { nonce: nonce_words(nonce), ends: [lengths; 2] };
    let before = ghash::of_aad(schedule, aad);
    let mut rest =
        Rest { schedule, head: &head, places: &LENGTHS, counter: FIRST_COUNTER, ahead: 1, before };
    match bits {
        128 => groups::process::<10, SEALING>(&mut rest, data, with_tag),
        192 => groups::process::<12, SEALING>(&mut rest, data, with_tag),
        _ => groups::process::<14, SEALING>(&mut rest, data, with_tag),
    }
}

/// The lengths take a word: five bytes of it are the data's, three the AAD's, within the limits that are asserted above.
static LENGTHS: Places = {
    let mut places = [0x80; PAIR_LEN];
    [places[16], places[17], places[18], places[19], places[20]] = [0, 1, 2, 3, 4];
    [places[24], places[25], places[26]] = [5, 6, 7];
    places
};
