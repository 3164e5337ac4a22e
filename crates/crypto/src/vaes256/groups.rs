//! A packet that is longer than a straight line: groups of 16 blocks, one reduction for each, and what is left in a line.
//!
//! AES and carry-less multiplication take turns round by round, each with units that do not wait for the other's: what is opened
//! is decrypted and hashed at once; where it is sealed, a group is encrypted while the one before
//! it is hashed. The order is the one written here ([`pin`]).

use std::arch::x86_64::*;

use super::ghash::{Products, powers, reverse};
use super::lanes::{PAIR_LEN, load, pin, store};
use super::line::{self, LINE_LEN, Rest};
use super::stream::{Stream, last_round};
use crate::vaes::block::BLOCK_LEN;
use crate::vaes::opaque::{afresh, afresh_mut};
use crate::vaes::{Schedule, for_each_round};

/// Pairs whose products are summed before they are reduced: as many blocks as there are powers.
pub const GROUP_PAIRS: usize = 8;
const GROUP_BLOCKS: usize = 2 * GROUP_PAIRS;
const GROUP_LEN: usize = GROUP_PAIRS * PAIR_LEN;

/// What is left of a packet may be too long for a line and too short for a group. Then half a group goes before it.
const HALF_PAIRS: usize = GROUP_PAIRS / 2;
/// Blocks of it: so often a line may begin.
pub const HALF_BLOCKS: usize = 2 * HALF_PAIRS;
const HALF_LEN: usize = HALF_PAIRS * PAIR_LEN;

/// Seals or opens `data` in place, and asks `with_tag` about the tag that it has or should have. `rest` is the packet before its
/// data, with a hash before it; its AAD is hashed.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn process<const ROUNDS: usize, const SEALING: bool>(
    rest: &mut Rest<'_>,
    data: &mut [u8],
    with_tag: impl FnOnce(__m128i) -> bool,
) -> bool {
    if data.len() <= LINE_LEN {
        return line::process::<ROUNDS, SEALING, 0>(rest, data, &[], with_tag);
    }
    if SEALING {
        seal::<ROUNDS>(rest, data, with_tag)
    } else {
        open::<ROUNDS>(rest, data, with_tag)
    }
}

#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn seal<const ROUNDS: usize>(
    rest: &mut Rest<'_>,
    data: &mut [u8],
    with_tag: impl FnOnce(__m128i) -> bool,
) -> bool {
    let mut stream = Stream::new(rest.schedule, &rest.head.nonce, rest.counter);
    let mut before = rest.before;
    let (len, mut left) = (data.len(), data);
    let mut pending: &[[u8; PAIR_LEN]] = &[];
    while left.len() >= GROUP_LEN {
        let (group, after) =
            seal_next::<ROUNDS, GROUP_PAIRS>(&mut stream, left, &mut before, pending);
        (pending, left) = (group, after);
    }
    if left.len() > LINE_LEN {
        let (group, after) =
            seal_next::<ROUNDS, HALF_PAIRS>(&mut stream, left, &mut before, pending);
        rest.before = hash(rest.schedule, before, group);
        rest.counter = rest.counter.wrapping_add(blocks(len - after.len()));
        return line::process::<ROUNDS, true, 0>(rest, after, &[], with_tag);
    }
    rest.before = before;
    rest.counter = rest.counter.wrapping_add(blocks(len - left.len()));
    let pending = pending.first_chunk().expect("a group");
    line::process::<ROUNDS, true, GROUP_PAIRS>(rest, left, pending, with_tag)
}

/// Seals the first `PAIRS` pairs of `data`, and hashes the group that is `pending`, if there is one. The answer is what was
/// sealed, and the rest.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn seal_next<'a, const ROUNDS: usize, const PAIRS: usize>(
    stream: &mut Stream<'_>,
    data: &'a mut [u8],
    before: &mut __m128i,
    pending: &[[u8; PAIR_LEN]],
) -> (&'a [[u8; PAIR_LEN]; PAIRS], &'a mut [u8]) {
    let (group, after) = data.split_at_mut(PAIRS * PAIR_LEN);
    let group = group.as_chunks_mut().0.first_chunk_mut().expect("as many pairs");
    match pending.first_chunk() {
        None => seal_group::<ROUNDS, PAIRS, 0>(stream, group, before, &[]),
        Some(pending) => {
            seal_group::<ROUNDS, PAIRS, GROUP_PAIRS>(stream, group, before, pending);
        }
    }
    (group, after)
}

/// Blocks of so many bytes.
#[inline]
fn blocks(len: usize) -> u32 {
    (len / BLOCK_LEN) as u32
}

#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn open<const ROUNDS: usize>(
    rest: &mut Rest<'_>,
    data: &mut [u8],
    with_tag: impl FnOnce(__m128i) -> bool,
) -> bool {
    let mut stream = Stream::new(rest.schedule, &rest.head.nonce, rest.counter);
    let mut before = rest.before;
    let (len, mut left) = (data.len(), data);
    while left.len() > LINE_LEN {
        let next = if left.len() >= GROUP_LEN { GROUP_LEN } else { HALF_LEN };
        let (group, after) = left.split_at_mut(next);
        let (pairs, _) = group.as_chunks_mut();
        match pairs.first_chunk_mut() {
            Some(group) => open_group::<ROUNDS, GROUP_PAIRS>(&mut stream, group, &mut before),
            None => {
                let group = pairs.first_chunk_mut().expect("half a group");
                open_group::<ROUNDS, HALF_PAIRS>(&mut stream, group, &mut before);
            }
        }
        left = after;
    }
    rest.before = before;
    rest.counter = rest.counter.wrapping_add(blocks(len - left.len()));
    line::process::<ROUNDS, false, 0>(rest, left, &[], with_tag)
}

/// Hashes one of `PAIRS` pairs beside round `ROUND` of AES, of which there are nine. The first pair comes last, as it takes
/// the hash of all before.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn hash_beside<const PAIRS: usize, const ROUND: usize>(
    schedule: &Schedule,
    before: __m128i,
    sum: &mut Products,
    ciphers: impl Fn(usize) -> __m256i,
) {
    if ROUND > PAIRS {
        return;
    }
    let pair = ROUND % PAIRS;
    let mut blocks = reverse(ciphers(pair));
    if pair == 0 {
        blocks = _mm256_xor_si256(blocks, _mm256_zextsi128_si256(before));
    }
    sum.add(blocks, powers(schedule, 2 * (PAIRS - pair)));
}

/// The hash of `PAIRS` pairs and all before.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn hash<const PAIRS: usize>(
    schedule: &Schedule,
    before: __m128i,
    ciphers: &[[u8; PAIR_LEN]; PAIRS],
) -> __m128i {
    let mut sum = Products::zero();
    for_each_round!(ROUND => {
        hash_beside::<PAIRS, ROUND>(schedule, before, &mut sum, |pair| load(&ciphers[pair]));
    });
    sum.reduced()
}

/// Seals `PAIRS` pairs, and hashes those that are `pending`.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn seal_group<const ROUNDS: usize, const PAIRS: usize, const PENDING: usize>(
    stream: &mut Stream<'_>,
    group: &mut [[u8; PAIR_LEN]; PAIRS],
    before: &mut __m128i,
    pending: &[[u8; PAIR_LEN]; PENDING],
) {
    let (mut states, schedule) = (counter_blocks(stream), stream.schedule);
    let mut sum = Products::zero();
    for_each_round!(ROUND => {
        stream.round::<PAIRS>(&mut states, ROUND);
        if PENDING > 0 {
            hash_beside::<GROUP_PAIRS, ROUND>(schedule, *before, &mut sum, |pair| load(&pending[pair]));
            pin_all(&mut states, &mut sum);
        }
    });
    if PENDING > 0 {
        *before = sum.reduced();
    }
    finish::<ROUNDS, PAIRS>(stream, states, group);
}

/// Opens `PAIRS` pairs, and hashes what they were.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn open_group<const ROUNDS: usize, const PAIRS: usize>(
    stream: &mut Stream<'_>,
    group: &mut [[u8; PAIR_LEN]; PAIRS],
    before: &mut __m128i,
) {
    let (mut states, schedule) = (counter_blocks(stream), stream.schedule);
    let mut sum = Products::zero();
    for_each_round!(ROUND => {
        stream.round::<PAIRS>(&mut states, ROUND);
        hash_beside::<PAIRS, ROUND>(schedule, *before, &mut sum, |pair| load(&group[pair]));
        pin_all(&mut states, &mut sum);
    });
    *before = sum.reduced();
    finish::<ROUNDS, PAIRS>(stream, states, group);
}

#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn counter_blocks<const PAIRS: usize>(stream: &mut Stream<'_>) -> [__m256i; PAIRS] {
    stream.schedule = afresh(stream.schedule);
    let states = stream.pairs::<PAIRS, GROUP_BLOCKS>();
    stream.advance(PAIRS);
    states
}

/// What was written for AES and for products so far stays before what comes.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn pin_all(states: &mut [__m256i], sum: &mut Products) {
    states.iter_mut().for_each(|state| pin(state));
    sum.pin();
}

/// The rounds from the tenth on, and the texts.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn finish<const ROUNDS: usize, const PAIRS: usize>(
    stream: &Stream<'_>,
    mut states: [__m256i; PAIRS],
    group: &mut [[u8; PAIR_LEN]; PAIRS],
) {
    for round in 10..ROUNDS {
        stream.round(&mut states, round);
    }
    let key = stream.last_key::<ROUNDS>();
    // Texts that were hashed and kept until here would go to the stack and back.
    for (state, pair) in states.into_iter().zip(afresh_mut(group)) {
        store(pair, last_round(key, state, load(pair)));
    }
}
