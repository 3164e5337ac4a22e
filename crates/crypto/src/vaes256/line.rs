//! Up to 15 blocks of data in a straight line, and the tag: a short packet, or what is left of a longer one.
//!
//! There is a function for each number of blocks, in which everything else is settled. The counter block that encrypts the tag
//! follows the last of data, in the lane that is free or in a register of its own.

use std::arch::x86_64::*;

use super::ghash::{Products, powers, reverse, reverse_block};
use super::groups::{GROUP_PAIRS, HALF_BLOCKS, hash_beside, pin_all};
use super::lanes::{PAIR_LEN, keep, lanes_of, load, load_last, pin, store, store_last};
use super::stream::{Stream, last_round};
use crate::vaes::block::{BLOCK_LEN, block, store_block};
use crate::vaes::head::Head;
use crate::vaes::{Schedule, for_each_round};

/// The longest data.
pub const LINE_LEN: usize = 15 * BLOCK_LEN;

/// A packet, or what remains of it, without its data.
///
/// It is never moved: a CPU hands a store on to a later load only if the load lies within it, and a copy is made of longer loads
/// than what was written word by word.
pub struct Rest<'a> {
    pub schedule: &'a Schedule,
    pub head: &'a Head,
    /// Where in the head AAD and lengths are.
    pub places: &'static Places,
    /// The counter of the first block of data.
    pub counter: u32,
    /// By how much the power that belongs to what is hashed before the data is above the number of blocks of data: 1 for
    /// a hash, 2 for the AAD itself.
    pub ahead: usize,
    /// The hash of all before, zero if that is the AAD itself.
    pub before: __m128i,
}

/// Which byte of a head's ends goes where: the AAD into the first lane, the lengths into the other (SP 800-38D §7.1, step 5).
/// Bytes with the highest bit become zero.
pub type Places = [u8; PAIR_LEN];

/// Seals or opens `data` in place, and asks `with_tag` about the tag that it has or should have. Meanwhile what is `pending`,
/// 16 blocks before `data` or nothing, is hashed.
///
/// # Panics
/// If there is more than [`LINE_LEN`].
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn process<const ROUNDS: usize, const SEALING: bool, const PENDING: usize>(
    rest: &Rest<'_>,
    data: &mut [u8],
    pending: &[[u8; PAIR_LEN]; PENDING],
    with_tag: impl FnOnce(__m128i) -> bool,
) -> bool {
    macro_rules! line {
        ($blocks:literal, $pairs:literal) => {
            line::<ROUNDS, SEALING, PENDING, $blocks, $pairs>(rest, data, pending, with_tag)
        };
    }
    match data.len().div_ceil(BLOCK_LEN) {
        0 => line!(0, 1),
        1 => line!(1, 1),
        2 => line!(2, 2),
        3 => line!(3, 2),
        4 => line!(4, 3),
        5 => line!(5, 3),
        6 => line!(6, 4),
        7 => line!(7, 4),
        8 => line!(8, 5),
        9 => line!(9, 5),
        10 => line!(10, 6),
        11 => line!(11, 6),
        12 => line!(12, 7),
        13 => line!(13, 7),
        14 => line!(14, 8),
        15 => line!(15, 8),
        _ => panic!("{} bytes in a line", data.len()),
    }
}

/// The same for `BLOCKS` blocks, which with that for the tag fill `PAIRS` registers.
#[inline(never)]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn line<
    const ROUNDS: usize,
    const SEALING: bool,
    const PENDING: usize,
    const BLOCKS: usize,
    const PAIRS: usize,
>(
    rest: &Rest<'_>,
    data: &mut [u8],
    pending: &[[u8; PAIR_LEN]; PENDING],
    with_tag: impl FnOnce(__m128i) -> bool,
) -> bool {
    const { assert!(PAIRS == BLOCKS / 2 + 1) };
    let schedule = rest.schedule;
    let stream = Stream::new(schedule, &rest.head.nonce, rest.counter);
    let tag_pair = PAIRS - 1;
    let mut states = stream.pairs::<PAIRS, HALF_BLOCKS>();
    states[tag_pair] = match BLOCKS % 2 {
        0 => stream.tag(),
        _ => _mm256_blend_epi32::<0xf0>(states[tag_pair], stream.tag()),
    };
    // What is sealed is read late: a register that waits is one that AES lacks.
    let reads_late = SEALING && PAIRS > 2;
    let mut texts = [_mm256_setzero_si256(); PAIRS];
    if !reads_late {
        texts = load_pairs::<BLOCKS, PAIRS>(data);
    }
    let (mut before, mut group, mut sum) = (rest.before, Products::zero(), Products::zero());
    for_each_round!(ROUND => {
        stream.round(&mut states, ROUND);
        if PENDING > 0 {
            hash_beside::<GROUP_PAIRS, ROUND>(schedule, before, &mut group, |pair| load(&pending[pair]));
            pin_all(&mut states, &mut group);
        }
        if !SEALING && ROUND <= BLOCKS.div_ceil(2) {
            hash_pair::<BLOCKS>(schedule, ROUND - 1, &mut sum, texts[ROUND - 1]);
            pin_all(&mut states, &mut sum);
        }
    });
    if PENDING > 0 {
        before = group.reduced();
    }
    for round in 10..ROUNDS {
        stream.round(&mut states, round);
    }
    // Or the compiler puts the rounds of the tag's own register behind all else, and holds every round key until then.
    states.iter_mut().for_each(|state| pin(state));
    if reads_late {
        texts = load_pairs::<BLOCKS, PAIRS>(data);
    }
    let key = stream.last_key::<ROUNDS>();
    for (state, text) in states.iter_mut().zip(texts) {
        *state = last_round(key, *state, text);
    }
    store_pairs::<BLOCKS, PAIRS>(data, &states);
    let ends = _mm256_shuffle_epi8(lanes_of(&rest.head.ends), load(rest.places));
    let ends = _mm256_xor_si256(ends, _mm256_zextsi128_si256(before));
    let first_power = block(schedule.power(BLOCKS + rest.ahead));
    sum.add(ends, _mm256_set_m128i(block(schedule.power(1)), first_power));
    if SEALING {
        let mut ciphers = states;
        if BLOCKS > 0 {
            let last = const { whole_pairs(BLOCKS) };
            ciphers[last] = keep(ciphers[last], data.len() - last * PAIR_LEN);
        }
        for (pair, cipher) in ciphers[..BLOCKS.div_ceil(2)].iter().enumerate() {
            hash_pair::<BLOCKS>(schedule, pair, &mut sum, *cipher);
        }
    }
    let encryption = match BLOCKS % 2 {
        0 => _mm256_castsi256_si128(states[tag_pair]),
        _ => _mm256_extracti128_si256::<1>(states[tag_pair]),
    };
    with_tag(_mm_xor_si128(reverse_block(sum.reduced()), encryption))
}

/// Hashes one pair of `BLOCKS` blocks.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn hash_pair<const BLOCKS: usize>(
    schedule: &Schedule,
    pair: usize,
    sum: &mut Products,
    ciphers: __m256i,
) {
    sum.add(reverse(ciphers), powers(schedule, BLOCKS - 2 * pair + 1));
}

/// Pairs before the one that the last block is in.
const fn whole_pairs(blocks: usize) -> usize {
    blocks.div_ceil(2).saturating_sub(1)
}

/// All blocks, zeros after them.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn load_pairs<const BLOCKS: usize, const PAIRS: usize>(data: &[u8]) -> [__m256i; PAIRS] {
    let mut pairs = [_mm256_setzero_si256(); PAIRS];
    if BLOCKS == 0 {
        return pairs;
    }
    let last = const { whole_pairs(BLOCKS) };
    let (whole, rest) = data.split_at(last * PAIR_LEN);
    for (pair, whole) in pairs.iter_mut().zip(whole.as_chunks().0) {
        *pair = load(whole);
    }
    let last_block = load_last(data);
    pairs[last] = match rest.first_chunk() {
        Some(before) if BLOCKS.is_multiple_of(2) => _mm256_set_m128i(last_block, block(before)),
        _ => _mm256_zextsi128_si256(last_block),
    };
    pairs
}

/// Writes all blocks, the last of them first: see [`store_last`].
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn store_pairs<const BLOCKS: usize, const PAIRS: usize>(data: &mut [u8], pairs: &[__m256i; PAIRS]) {
    if BLOCKS == 0 {
        return;
    }
    let last = const { whole_pairs(BLOCKS) };
    let first_lane = _mm256_castsi256_si128(pairs[last]);
    if BLOCKS.is_multiple_of(2) {
        store_last(data, _mm256_extracti128_si256::<1>(pairs[last]));
    } else {
        store_last(data, first_lane);
    }
    let (whole, rest) = data.split_at_mut(last * PAIR_LEN);
    if let Some(before) = rest.first_chunk_mut().filter(|_| BLOCKS.is_multiple_of(2)) {
        store_block(before, first_lane);
    }
    for (pair, whole) in pairs.iter().zip(whole.as_chunks_mut().0) {
        store(whole, *pair);
    }
}
