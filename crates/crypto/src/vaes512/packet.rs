//! One packet, sealed or opened in place: AES in counter mode and GHASH (SP 800-38D §7).
//!
//! The packet is cut into units of 64 bytes, four blocks, which fill a register:
//!
//! 1. the AAD, one block in ESP. A packet of up to 224 bytes gives it a power of the hash key of its own; a longer one
//!    hashes it first;
//! 2. groups of units, from 241 bytes on: four that are sealed, eight that are opened, and one reduction for every 16 blocks. AES and
//!    carry-less multiplication are interleaved (`groups.rs`); one after the other they took 1.4 times as long (Sapphire
//!    Rapids);
//! 3. what remains: units, the last of which may lack some bytes,
//!    and the tail. The tail has at most three blocks, so that its first free lane takes the block
//!    of lengths, and its fourth the counter block that encrypts the tag; in the hash, that lane takes the AAD
//!    if it is free.
//!
//! A packet of 96 bytes thus takes 28 AES instructions and 10 multiplications, and nothing in it
//! waits for the packet before it. Where a short packet is whole, each kind of length has a function of its own: what
//! has all its bytes needs no mask, and what has none no instruction at all.
//!
//! Constant time by construction: the only branches are on lengths, which travel in the clear, and
//! no address depends on anything but lengths.

use std::arch::x86_64::*;

use super::ends::{EMPTY, Ends, FULL, ROOMY};
use super::ghash::{Products, reduce, reverse, sum_of_lanes};
use super::lanes::{LANES_LEN, keep, load, load_whole, pin, store, store_whole};
use super::stream::Stream;
use super::{groups, hash};
use crate::vaes::block::{BLOCK_LEN, block, store_block};
use crate::vaes::head::Head;
use crate::vaes::{POWERS, Schedule};

/// The longest packet whose AAD and lengths have powers as well: all but two blocks of as many as there are powers.
const WHOLE_LEN: usize = (POWERS - 2) * BLOCK_LEN;

/// The longest that is done in a straight line: three units and a tail.
pub const LINE_LEN: usize = 4 * LANES_LEN - BLOCK_LEN;

/// Seals `data` in place and writes its tag.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn open<const ROUNDS: usize>(
    schedule: &Schedule,
    head: &Head,
    data: &mut [u8],
    tag: &[u8; BLOCK_LEN],
) -> bool {
    process::<ROUNDS, false>(schedule, head, data, |computed| is_equal(computed, tag))
}

/// Seals or opens `data` in place: whether the tag is right, as `with_tag` says. There is one function for each kind of length,
/// in which all that depends on the length is settled.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn process<const ROUNDS: usize, const SEALING: bool>(
    schedule: &Schedule,
    head: &Head,
    data: &mut [u8],
    with_tag: impl FnOnce(__m128i) -> bool,
) -> bool {
    macro_rules! line {
        ($units:literal, $tail:ident, $whole:literal) => {
            process_line::<ROUNDS, SEALING, $units, $tail, $whole>(schedule, head, data, with_tag)
        };
    }
    match data.len() {
        0 => line!(1, EMPTY, true),
        1..=32 => line!(1, ROOMY, true),
        33..=48 => line!(1, FULL, true),
        49..=64 => line!(2, EMPTY, true),
        65..=96 => line!(2, ROOMY, true),
        97..=112 => line!(2, FULL, true),
        113..=128 => line!(3, EMPTY, true),
        129..=160 => line!(3, ROOMY, true),
        161..=176 => line!(3, FULL, true),
        177..=192 => line!(4, EMPTY, true),
        193..=WHOLE_LEN => line!(4, ROOMY, true),
        225..=LINE_LEN => line!(4, FULL, false),
        _ => process_groups::<ROUNDS, SEALING>(schedule, head, data, with_tag),
    }
}

/// A packet of at most 240 bytes in a straight line. One of at most 224 is `WHOLE`: it has so few blocks that the AAD has a power
/// of its own. There are `UNITS` − 1 units, of which only the last may lack bytes, fewer than a block, and only if the
/// tail is empty; then the tail.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn process_line<
    const ROUNDS: usize,
    const SEALING: bool,
    const UNITS: usize,
    const TAIL: u8,
    const WHOLE: bool,
>(
    schedule: &Schedule,
    head: &Head,
    data: &mut [u8],
    with_tag: impl FnOnce(__m128i) -> bool,
) -> bool {
    let ends = Ends::of_esp(&head.ends);
    let stream = Stream::<false>::new(schedule, &head.nonce);
    let before = if WHOLE { _mm_setzero_si128() } else { hash::of_aad(schedule, ends) };
    let tail = UNITS - 1;
    let mut states = [_mm512_setzero_si512(); UNITS];
    let mut texts = states;
    // What is known to have all its bytes is read and written without a mask.
    let filled = if TAIL == EMPTY { tail } else { UNITS };
    for unit in 0..filled {
        let data = &data[unit * LANES_LEN..];
        texts[unit] = match data.first_chunk() {
            Some(whole) if unit + 1 < filled => load_whole(whole),
            _ => load(data),
        };
        states[unit] = stream.counter_blocks(unit);
    }
    states[tail] = stream.tail_counter_blocks(tail);
    let tail_len = data.len().saturating_sub(tail * LANES_LEN);
    let tail_blocks = if TAIL == EMPTY { 0 } else { tail_len.div_ceil(BLOCK_LEN) & 3 };
    let mut sum = Products::zero();
    if !SEALING {
        sum = hash::of_line::<UNITS, TAIL, WHOLE>(schedule, before, &texts, tail_blocks, ends);
    }
    stream.rounds(&mut states, 1..ROUNDS);
    if !SEALING {
        // The compiler would put all rounds of the block that encrypts the tag behind all else.
        states.iter_mut().for_each(|state| pin(state));
    }
    stream.last_round::<ROUNDS, UNITS>(&mut states, &texts);
    for unit in 0..filled {
        let data = &mut data[unit * LANES_LEN..];
        texts[unit] = match data.first_chunk_mut() {
            Some(whole) if unit + 1 < filled => {
                store_whole(whole, states[unit]);
                states[unit]
            }
            _ => {
                store(data, states[unit]);
                keep(states[unit], data.len())
            }
        };
    }
    if SEALING {
        sum = hash::of_line::<UNITS, TAIL, WHOLE>(schedule, before, &texts, tail_blocks, ends);
    }
    with_tag(tag(sum_of_lanes(reduce(sum)), states[tail]))
}

/// A longer packet, but so short that its counters fit into a byte.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn process_groups<const ROUNDS: usize, const SEALING: bool>(
    schedule: &Schedule,
    head: &Head,
    data: &mut [u8],
    with_tag: impl FnOnce(__m128i) -> bool,
) -> bool {
    let ends = Ends::of_esp(&head.ends);
    let stream = Stream::<false>::new(schedule, &head.nonce);
    let before = hash::of_aad(schedule, ends);
    with_tag(if SEALING {
        groups::seal::<ROUNDS, false>(stream, data, before, ends)
    } else {
        groups::open::<ROUNDS, false>(stream, data, before, ends)
    })
}

/// The tag of a packet with this hash; the tail's last lane is the counter block that encrypts it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn tag(hash: __m128i, tail: __m512i) -> __m128i {
    let hash = _mm512_castsi512_si128(reverse(_mm512_castsi128_si512(hash)));
    _mm_xor_si128(hash, _mm512_extracti32x4_epi32::<3>(tail))
}

/// Whether all bytes of a tag are what was computed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn is_equal(computed: __m128i, tag: &[u8; BLOCK_LEN]) -> bool {
    let difference = _mm_xor_si128(computed, block(tag));
    _mm_test_epi64_mask(difference, difference) == 0
}
