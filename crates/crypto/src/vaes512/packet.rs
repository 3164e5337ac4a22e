//! One packet, sealed or opened in place: AES in counter mode and GHASH (SP 800-38D §7).
//!
//! The packet is cut into units of 64 bytes, four blocks, which fill a register:
//!
//! 1. the AAD, one block in ESP, comes in registers. A packet of up to 176 bytes gives it a power of
//!    the hash key of its own; a longer one hashes it first;
//! 2. groups of four units, while there are any: 16 blocks, one reduction. What a group's encryption
//!    makes is hashed during the next one's, because AES and carry-less multiplication have an
//!    execution unit each; one after the other they took 1.4 times as long (Sapphire Rapids);
//! 3. what remains in a straight line: up to three units, the last of which may lack some bytes,
//!    and the tail. The tail has at most three blocks, so that its first free lane takes the block
//!    of lengths, and its fourth the counter block that encrypts the tag. All their products are
//!    summed and reduced once.
//!
//! A packet of 96 bytes thus takes 28 AES instructions and 14 multiplications, and nothing in it
//! waits for the packet before it.
//!
//! Constant time by construction: the only branches are on lengths, which travel in the clear, and
//! no address depends on anything but lengths.

use std::arch::x86_64::*;

use super::ghash::{Products, product, reduce, reverse, sum_of_lanes};
use super::hash::{Hash, length_word};
use super::lanes::{LANES_LEN, afresh, block, load, mask, store, store_block, words};
use super::schedule::Schedule;
use super::stream::Stream;

const BLOCK_LEN: usize = 16;

/// The longest packet that is done in a straight line: two units and a tail.
const SHORT_LEN: usize = 2 * LANES_LEN + 3 * BLOCK_LEN;

/// Four units: as many blocks as there are powers.
const GROUP_LEN: usize = 4 * LANES_LEN;

/// The AAD as GHASH takes it. In ESP it has one block, 8 or 12 bytes.
#[derive(Clone, Copy)]
pub struct Aad {
    /// Its last block, filled up with zeros, as a number in network order, plus the hash of those
    /// before.
    pub last: u128,
    /// Its length in bits.
    pub bits: u64,
}

/// Seals `data` in place and writes its tag.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn seal<const ROUNDS: usize>(
    schedule: &Schedule,
    nonce: u128,
    aad: Aad,
    data: &mut [u8],
    tag: &mut [u8; BLOCK_LEN],
) {
    let computed = process::<ROUNDS, true>(schedule, nonce, aad, data);
    store_block(tag, computed);
}

/// Opens `data` in place, and says whether its tag is right: all 16 bytes are compared before
/// anything is decided.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn open<const ROUNDS: usize>(
    schedule: &Schedule,
    nonce: u128,
    aad: Aad,
    data: &mut [u8],
    tag: &[u8; BLOCK_LEN],
) -> bool {
    let computed = process::<ROUNDS, false>(schedule, nonce, aad, data);
    let difference = _mm_xor_si128(computed, block(tag));
    _mm_test_epi64_mask(difference, difference) == 0
}

/// Seals or opens `data` in place; the answer is the tag it has or should have had.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn process<const ROUNDS: usize, const SEALING: bool>(
    schedule: &Schedule,
    nonce: u128,
    aad: Aad,
    data: &mut [u8],
) -> __m128i {
    let lengths = length_word(data.len(), aad.bits);
    let mut stream = Stream::new(schedule, nonce);
    let aad = words(aad.last);
    if data.len() <= SHORT_LEN {
        let hash = Hash::new(schedule, aad);
        return match (data.len() + BLOCK_LEN - 1) / LANES_LEN {
            0 => finish::<ROUNDS, SEALING, 1, true, false>(&stream, data, hash, lengths),
            1 => finish::<ROUNDS, SEALING, 2, true, false>(&stream, data, hash, lengths),
            _ => finish::<ROUNDS, SEALING, 3, true, false>(&stream, data, hash, lengths),
        };
    }
    let mut hash = Hash::new(schedule, product(aad, block(schedule.power(1))));
    // Opening does the same further down, where nothing is pending either: what is called from two places
    // becomes a function of its own, for which stream and hash have to be in memory.
    if SEALING && data.len() <= GROUP_LEN - BLOCK_LEN {
        return finish::<ROUNDS, SEALING, 4, false, false>(&stream, data, hash, lengths);
    }
    let (groups, mut rest) = data.as_chunks_mut::<GROUP_LEN>();
    let whole_groups = groups.len();
    let mut groups = groups.iter_mut();
    if SEALING && let Some(first) = groups.next() {
        process_group::<ROUNDS, SEALING, false>(&mut stream, first, &mut hash);
    }
    for group in groups {
        process_group::<ROUNDS, SEALING, true>(&mut stream, group, &mut hash);
    }
    if rest.len() > GROUP_LEN - BLOCK_LEN {
        if SEALING && whole_groups == 0 {
            process_group::<ROUNDS, SEALING, false>(&mut stream, rest, &mut hash);
        } else {
            process_group::<ROUNDS, SEALING, true>(&mut stream, rest, &mut hash);
        }
        rest = rest.split_at_mut(rest.len()).1;
    }
    match (rest.len() + BLOCK_LEN - 1) / LANES_LEN {
        0 => finish::<ROUNDS, SEALING, 1, false, SEALING>(&stream, rest, hash, lengths),
        1 => finish::<ROUNDS, SEALING, 2, false, SEALING>(&stream, rest, hash, lengths),
        2 => finish::<ROUNDS, SEALING, 3, false, SEALING>(&stream, rest, hash, lengths),
        _ => finish::<ROUNDS, SEALING, 4, false, SEALING>(&stream, rest, hash, lengths),
    }
}

/// The hash of all blocks of `aad` but the last, plus the last.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn hash_long_aad(schedule: &Schedule, aad: &[u8]) -> u128 {
    let mut last = 0;
    for next in aad.chunks(BLOCK_LEN) {
        let mut hash = [0; BLOCK_LEN];
        store_block(&mut hash, product(words(last), block(schedule.power(1))));
        let mut padded = [0; BLOCK_LEN];
        padded[..next.len()].copy_from_slice(next);
        last = u128::from_le_bytes(hash) ^ u128::from_be_bytes(padded);
    }
    last
}

/// Four units, of which only the last may lack bytes, and fewer than a block. Hashes the group that
/// is pending, and leaves its own pending; when opening, it hashes its own.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn process_group<const ROUNDS: usize, const SEALING: bool, const PENDING: bool>(
    stream: &mut Stream<'_>,
    group: &mut [u8],
    hash: &mut Hash<'_>,
) {
    if !SEALING {
        (stream.schedule, hash.schedule) = (afresh(stream.schedule), afresh(hash.schedule));
    }
    let mut states = [_mm512_setzero_si512(); 4];
    let mut texts = states;
    for (unit, data) in group.chunks(LANES_LEN).enumerate() {
        texts[unit] = load(data);
        states[unit] = stream.counter_blocks(unit);
        if !SEALING {
            hash.group[unit] = reverse(texts[unit]);
        }
    }
    stream.encrypt::<ROUNDS, 4, PENDING>(&mut states, &texts, hash);
    stream.advance(4);
    for (unit, data) in group.chunks_mut(LANES_LEN).enumerate() {
        store(data, states[unit]);
        if SEALING {
            hash.group[unit] = reverse(keep(states[unit], data.len()));
        }
    }
}

/// A packet of at most 176 bytes, or what is left of a longer one after the groups, at most 240
/// bytes; and the tag. There are `UNITS` − 1 units, of which only the last may lack bytes, and fewer
/// than a block; then the tail.
///
/// `hash` is what was hashed so far. If the packet is `WHOLE`, that is the AAD before it is
/// multiplied by H: it has a power of its own then.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn finish<
    const ROUNDS: usize,
    const SEALING: bool,
    const UNITS: usize,
    const WHOLE: bool,
    const PENDING: bool,
>(
    stream: &Stream<'_>,
    rest: &mut [u8],
    mut hash: Hash<'_>,
    lengths: u64,
) -> __m128i {
    let tail = UNITS - 1;
    let mut states = [_mm512_setzero_si512(); UNITS];
    let mut texts = states;
    // What has no bytes begins where the data ends, and not at an empty slice of nowhere: a masked
    // load or store of no bytes at an address without memory costs 250 cycles (a microcode assist).
    for unit in 0..UNITS {
        texts[unit] = load(&rest[rest.len().min(unit * LANES_LEN)..]);
        states[unit] = stream.counter_blocks(unit);
    }
    states[tail] = stream.tail_counter_blocks(tail);
    let tail_len = rest.len().saturating_sub(tail * LANES_LEN);
    let tail_blocks = tail_len.div_ceil(BLOCK_LEN) & 3;
    let mut sum = Products::zero();
    if !SEALING {
        sum = hash.finish::<UNITS, WHOLE>(&texts, tail_blocks, lengths);
    }
    stream.encrypt::<ROUNDS, UNITS, PENDING>(&mut states, &texts, &mut hash);
    for unit in 0..UNITS {
        let start = rest.len().min(unit * LANES_LEN);
        let data = &mut rest[start..];
        store(data, states[unit]);
        texts[unit] = keep(states[unit], data.len());
    }
    if SEALING {
        sum = hash.finish::<UNITS, WHOLE>(&texts, tail_blocks, lengths);
    }
    let hash = _mm512_castsi512_si128(reverse(_mm512_castsi128_si512(sum_of_lanes(reduce(sum)))));
    _mm_xor_si128(hash, _mm512_extracti32x4_epi32::<3>(states[tail]))
}

/// The first `len` bytes; zeros after them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn keep(lanes: __m512i, len: usize) -> __m512i {
    _mm512_maskz_mov_epi8(mask(len), lanes)
}
