//! One packet as ESP has it, sealed or opened in place: AES in counter mode and GHASH (SP 800-38D §7).
//!
//! 1. The AAD, one block in ESP. A packet of up to 224 bytes gives it a power of the hash key of its own; a longer one
//!    hashes it first;
//! 2. groups of 16 blocks, from 241 bytes on (`groups.rs`);
//! 3. what remains, in a straight line (`line.rs`).
//!
//! Constant time by construction: the only branches are on lengths, which travel in the clear, and
//! no address depends on anything but lengths.

use std::arch::x86_64::*;

use super::groups;
use super::lanes::{PAIR_LEN, lanes_of, load};
use super::line::{self, Places, Rest};
use crate::vaes::block::{BLOCK_LEN, block, store_block};
use crate::vaes::ghash::product;
use crate::vaes::head::Head;
use crate::vaes::{POWERS, Schedule};

/// The longest packet whose AAD and lengths have powers as well: all but two blocks of as many as there are powers.
const WHOLE_LEN: usize = (POWERS - 2) * BLOCK_LEN;

/// The counter of the first block of data: number 1 encrypts the tag (SP 800-38D §7.1, steps 2 and 3).
pub const FIRST_COUNTER: u32 = 2;

/// Seals `data` in place and writes its tag.
#[inline(never)]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn seal<const ROUNDS: usize>(
    schedule: &Schedule,
    head: &Head,
    data: &mut [u8],
    tag: &mut [u8; BLOCK_LEN],
) {
    process::<ROUNDS, true>(schedule, head, data, |computed| {
        store_block(tag, computed);
        true
    });
}

/// Opens `data` in place, and says whether its tag is right: all 16 bytes are compared before
/// anything is decided.
#[inline(never)]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn open<const ROUNDS: usize>(
    schedule: &Schedule,
    head: &Head,
    data: &mut [u8],
    tag: &[u8; BLOCK_LEN],
) -> bool {
    process::<ROUNDS, false>(schedule, head, data, |computed| is_equal(computed, tag))
}

#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn process<const ROUNDS: usize, const SEALING: bool>(
    schedule: &Schedule,
    head: &Head,
    data: &mut [u8],
    with_tag: impl FnOnce(__m128i) -> bool,
) -> bool {
    if data.len() <= WHOLE_LEN {
        let before = _mm_setzero_si128();
        let rest = Rest {
            schedule,
            head,
            places: &AAD_AND_LENGTHS,
            counter: FIRST_COUNTER,
            ahead: 2,
            before,
        };
        return line::process::<ROUNDS, SEALING, 0>(&rest, data, &[], with_tag);
    }
    let aad = _mm256_shuffle_epi8(lanes_of(&head.ends), load(&AAD_AND_LENGTHS));
    let before = product(_mm256_castsi256_si128(aad), block(schedule.power(1)));
    let mut rest =
        Rest { schedule, head, places: &LENGTHS, counter: FIRST_COUNTER, ahead: 1, before };
    groups::process::<ROUNDS, SEALING>(&mut rest, data, with_tag)
}

/// See [`Head::ends`].
static AAD_AND_LENGTHS: Places = {
    let mut places = LENGTHS;
    let mut at = 4;
    while at < BLOCK_LEN {
        places[at] = at as u8;
        at += 1;
    }
    places
};

/// The lengths alone: three bytes and one.
static LENGTHS: Places = {
    let mut places = [0x80; PAIR_LEN];
    [places[16], places[17], places[18], places[24]] = [0, 1, 2, 3];
    places
};

/// Whether all bytes of a tag are what was computed.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn is_equal(computed: __m128i, tag: &[u8; BLOCK_LEN]) -> bool {
    let difference = _mm_xor_si128(computed, block(tag));
    _mm_testz_si128(difference, difference) == 1
}
