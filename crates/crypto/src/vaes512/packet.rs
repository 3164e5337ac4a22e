//! One packet, sealed or opened in place: AES in counter mode and GHASH (SP 800-38D §7).
//!
//! The packet is cut into units of 64 bytes, four blocks, which fill a register:
//!
//! 1. the AAD is hashed while the first counters are being encrypted;
//! 2. groups of four whole units, while there are any: 16 blocks, one reduction;
//! 3. what remains in a straight line: up to three units, the last of which may lack some bytes,
//!    and the tail. The tail has at most three blocks, so that its first free lane takes the block
//!    of lengths, and its fourth the counter block that encrypts the tag. All their products are
//!    summed and reduced once.
//!
//! Constant time by construction: the only branches are on lengths, which travel in the clear, and
//! no address depends on anything but lengths.

use std::arch::x86_64::*;

use super::ghash::{Products, multiply_add, product, reduce, reverse, sum_of_lanes};
use super::lanes::{LANES_LEN, block, blocks, broadcast, load, mask, store, store_block};
use super::schedule::Schedule;

const BLOCK_LEN: usize = 16;

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

/// What is the same for all of a packet's units.
struct Stream<'a> {
    schedule: &'a Schedule,
    /// The nonce with zeros for a counter, plus the first round key: in every lane.
    start: __m512i,
    /// The counters of the next unit's lanes, each in a lane's last word, in the machine's order.
    counters: __m512i,
}

impl Stream<'_> {
    /// The counter blocks of the unit that is `units` ahead, plus the first round key.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn counter_blocks(&self, units: usize) -> __m512i {
        let ahead = _mm512_set1_epi32(4 * units as i32);
        let counters = _mm512_add_epi32(self.counters, ahead);
        _mm512_xor_si512(self.start, big_endian_words(counters))
    }

    /// As [`Stream::counter_blocks`], but for the tail: its last lane has the counter block that
    /// encrypts the tag (SP 800-38D §7.1, step 2).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn tail_counter_blocks(&self, units: usize) -> __m512i {
        let ahead = _mm512_set1_epi32(4 * units as i32);
        let counters = _mm512_add_epi32(self.counters, ahead);
        let counters = _mm512_mask_set1_epi32(counters, 1 << 15, 1);
        _mm512_xor_si512(self.start, big_endian_words(counters))
    }

    /// Leaves `units` behind.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn advance(&mut self, units: usize) {
        self.counters = _mm512_add_epi32(self.counters, _mm512_set1_epi32(4 * units as i32));
    }

    /// All rounds of AES; the last one adds `text` as well.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes")]
    fn encrypt<const ROUNDS: usize, const UNITS: usize>(
        &self,
        states: &mut [__m512i; UNITS],
        texts: &[__m512i; UNITS],
    ) {
        for round in 1..ROUNDS {
            let key = broadcast(self.schedule.round_key(round));
            for state in states.iter_mut() {
                *state = _mm512_aesenc_epi128(*state, key);
            }
        }
        let key = broadcast(self.schedule.round_key(ROUNDS));
        for unit in 0..UNITS {
            let key = _mm512_xor_si512(key, texts[unit]);
            states[unit] = _mm512_aesenclast_epi128(states[unit], key);
        }
    }
}

/// The last word of every lane in network order; the other bytes become zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn big_endian_words(counters: __m512i) -> __m512i {
    let order = _mm_set_epi8(12, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    _mm512_shuffle_epi8(counters, _mm512_broadcast_i32x4(order))
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
    let lengths = [data.len() as u64 * 8, aad.bits];
    let nonce = _mm512_broadcast_i32x4(words(nonce));
    let mut stream = Stream {
        schedule,
        start: _mm512_xor_si512(nonce, broadcast(schedule.round_key(0))),
        counters: _mm512_set_epi32(5, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0),
    };
    let mut hash = product(words(aad.last), block(schedule.power(1)));
    let (groups, mut rest) = data.as_chunks_mut::<GROUP_LEN>();
    for group in groups {
        hash = process_group::<ROUNDS, SEALING>(&mut stream, group, hash);
    }
    if rest.len() > GROUP_LEN - BLOCK_LEN {
        hash = process_group::<ROUNDS, SEALING>(&mut stream, rest, hash);
        rest = &mut [];
    }
    match (rest.len() + BLOCK_LEN - 1) / LANES_LEN {
        0 => process_rest::<ROUNDS, SEALING, 1>(&stream, rest, hash, lengths),
        1 => process_rest::<ROUNDS, SEALING, 2>(&stream, rest, hash, lengths),
        2 => process_rest::<ROUNDS, SEALING, 3>(&stream, rest, hash, lengths),
        _ => process_rest::<ROUNDS, SEALING, 4>(&stream, rest, hash, lengths),
    }
}

/// A block out of general registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn words(block: u128) -> __m128i {
    _mm_set_epi64x((block >> 64) as i64, block as i64)
}

/// The hash of all blocks of `aad` but the last, plus the last.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vpclmulqdq")]
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

/// Four units, of which only the last may lack bytes, and fewer than a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn process_group<const ROUNDS: usize, const SEALING: bool>(
    stream: &mut Stream<'_>,
    group: &mut [u8],
    hash: __m128i,
) -> __m128i {
    let mut states = [_mm512_setzero_si512(); 4];
    let mut texts = states;
    for (unit, data) in group.chunks(LANES_LEN).enumerate() {
        texts[unit] = load(data);
        states[unit] = stream.counter_blocks(unit);
    }
    stream.encrypt::<ROUNDS, 4>(&mut states, &texts);
    stream.advance(4);
    let mut sum = Products::zero();
    for (unit, data) in group.chunks_mut(LANES_LEN).enumerate() {
        store(data, states[unit]);
        let cipher = if SEALING { keep(states[unit], data.len()) } else { texts[unit] };
        let mut blocks = reverse(cipher);
        if unit == 0 {
            blocks = _mm512_xor_si512(blocks, _mm512_zextsi128_si512(hash));
        }
        let exponent = 4 * (4 - unit);
        sum = multiply_add(sum, blocks, powers(stream.schedule, exponent));
    }
    sum_of_lanes(reduce(sum))
}

/// What is left after the groups, at most 240 bytes, and the tag: `UNITS` − 1 units, of which only
/// the last may lack bytes, and fewer than a block; then the tail.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn process_rest<const ROUNDS: usize, const SEALING: bool, const UNITS: usize>(
    stream: &Stream<'_>,
    rest: &mut [u8],
    hash: __m128i,
    lengths: [u64; 2],
) -> __m128i {
    let tail = UNITS - 1;
    let mut states = [_mm512_setzero_si512(); UNITS];
    let mut texts = states;
    for unit in 0..UNITS {
        texts[unit] = load(rest.get(unit * LANES_LEN..).unwrap_or(&[]));
        states[unit] = stream.counter_blocks(unit);
    }
    states[tail] = stream.tail_counter_blocks(tail);
    stream.encrypt::<ROUNDS, UNITS>(&mut states, &texts);
    let tail_len = rest.len().saturating_sub(tail * LANES_LEN);
    let tail_blocks = tail_len.div_ceil(BLOCK_LEN) & 3;
    let mut sum = Products::zero();
    let mut hash = _mm512_zextsi128_si512(hash);
    for unit in 0..UNITS {
        let data = rest.get_mut(unit * LANES_LEN..).unwrap_or(&mut []);
        store(data, states[unit]);
        let cipher = if SEALING { keep(states[unit], data.len()) } else { texts[unit] };
        let mut blocks = _mm512_xor_si512(reverse(cipher), hash);
        hash = _mm512_setzero_si512();
        if unit == tail {
            blocks = _mm512_xor_si512(blocks, length_block(lengths, tail_blocks));
        }
        let exponent = 4 * (tail - unit) + tail_blocks + 1;
        sum = multiply_add(sum, blocks, powers(stream.schedule, exponent));
    }
    let hash = _mm512_castsi512_si128(reverse(_mm512_castsi128_si512(sum_of_lanes(reduce(sum)))));
    _mm_xor_si128(hash, _mm512_extracti32x4_epi32::<3>(states[tail]))
}

/// The first `len` bytes; zeros after them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
fn keep(lanes: __m512i, len: usize) -> __m512i {
    _mm512_maskz_mov_epi8(mask(len), lanes)
}

/// H to the power of `exponent` for the first lane, of `exponent` − 1 for the next, and so on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn powers(schedule: &Schedule, exponent: usize) -> __m512i {
    blocks(schedule.powers_from(exponent))
}

/// Bits of data and bits of AAD, bytes reversed, in lane number `lane`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn length_block([data, aad]: [u64; 2], lane: usize) -> __m512i {
    let data = _mm512_maskz_set1_epi64(1 << (2 * lane), data as i64);
    _mm512_mask_set1_epi64(data, 2 << (2 * lane), aad as i64)
}
