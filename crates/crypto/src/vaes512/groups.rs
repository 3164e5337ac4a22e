//! A packet that is longer than a straight line, and what is left of it with the tail.
//!
//! AES and carry-less multiplication take turns round by round, each with units that do not wait for the other's: where a packet is
//! opened, eight units are decrypted and hashed at once; where it is sealed, four are encrypted while the four before
//! them are hashed. The order is the one written here ([`pin`]): without that, the compiler put all products behind
//! all rounds, and packets of 1416 bytes took 14 % longer (Zen 4).

use std::arch::x86_64::*;

use super::ends::Ends;
use super::ghash::reverse;
use super::hash::{GROUP_UNITS, Hash, powers};
use super::lanes::{LANES_LEN, keep, load, load_units, pin, store, store_units};
use super::packet::{LINE_LEN, tag};
use super::stream::Stream;
use crate::vaes::block::BLOCK_LEN;
use crate::vaes::opaque::afresh;
use crate::vaes::{Schedule, for_each_round};

/// Bytes that are sealed together.
const SEALED_LEN: usize = GROUP_UNITS * LANES_LEN;

/// Units that are opened together.
const OPENED_UNITS: usize = 2 * GROUP_UNITS;
const OPENED_LEN: usize = OPENED_UNITS * LANES_LEN;

/// The most that is opened with the tail: seven units and three blocks.
const OPENED_LAST_LEN: usize = OPENED_LEN - BLOCK_LEN;

/// Seals `data`, before which AAD was hashed to `before`; the answer is the tag. Shorter data than 241 bytes is
/// for `general.rs`, whose counters are `LONG`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn seal<const ROUNDS: usize, const LONG: bool>(
    mut stream: Stream<'_, LONG>,
    data: &mut [u8],
    before: __m128i,
    ends: Ends,
) -> __m128i {
    let mut hash = Hash::new(before);
    let mut pending = [_mm512_setzero_si512(); GROUP_UNITS];
    macro_rules! last {
        ($rest:ident, $hashed:literal) => {
            match last_units($rest.len()) {
                1 => seal_last::<ROUNDS, 1, $hashed, LONG>(stream, $rest, hash, &pending, ends),
                2 => seal_last::<ROUNDS, 2, $hashed, LONG>(stream, $rest, hash, &pending, ends),
                3 => seal_last::<ROUNDS, 3, $hashed, LONG>(stream, $rest, hash, &pending, ends),
                _ => seal_last::<ROUNDS, 4, $hashed, LONG>(stream, $rest, hash, &pending, ends),
            }
        };
    }
    if LONG && data.len() <= LINE_LEN {
        return last!(data, 0);
    }
    let (group, mut rest) = data.split_at_mut(data.len().min(SEALED_LEN));
    seal_group::<ROUNDS, 0, LONG>(&mut stream, group, &mut hash, &mut pending);
    while rest.len() > LINE_LEN {
        let (group, after) = rest.split_at_mut(rest.len().min(SEALED_LEN));
        seal_group::<ROUNDS, GROUP_UNITS, LONG>(&mut stream, group, &mut hash, &mut pending);
        rest = after;
    }
    last!(rest, 4)
}

/// Opens `data`, before which AAD was hashed to `before`; the answer is the tag that it should have had.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn open<const ROUNDS: usize, const LONG: bool>(
    mut stream: Stream<'_, LONG>,
    data: &mut [u8],
    before: __m128i,
    ends: Ends,
) -> __m128i {
    let mut hash = Hash::new(before);
    let mut rest = data;
    while rest.len() > OPENED_LAST_LEN {
        let (group, after) = rest.split_at_mut(rest.len().min(OPENED_LEN));
        open_group::<ROUNDS, LONG>(&mut stream, group, &mut hash);
        rest = after;
    }
    match last_units(rest.len()) {
        1 => open_last::<ROUNDS, 1, LONG>(stream, rest, hash, ends),
        2 => open_last::<ROUNDS, 2, LONG>(stream, rest, hash, ends),
        3 => open_last::<ROUNDS, 3, LONG>(stream, rest, hash, ends),
        4 => open_last::<ROUNDS, 4, LONG>(stream, rest, hash, ends),
        5 => open_last::<ROUNDS, 5, LONG>(stream, rest, hash, ends),
        6 => open_last::<ROUNDS, 6, LONG>(stream, rest, hash, ends),
        7 => open_last::<ROUNDS, 7, LONG>(stream, rest, hash, ends),
        _ => open_last::<ROUNDS, 8, LONG>(stream, rest, hash, ends),
    }
}

/// How many units [`Last`] has of so many bytes.
#[inline]
fn last_units(len: usize) -> usize {
    (len + BLOCK_LEN - 1) / LANES_LEN + 1
}

/// All rounds but the last for `UNITS` units; beside them `HASHED` units are hashed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn encrypt<const ROUNDS: usize, const UNITS: usize, const HASHED: usize, const LONG: bool>(
    stream: &Stream<'_, LONG>,
    states: &mut [__m512i; UNITS],
    hash: &mut Hash,
    operands: impl Fn(usize) -> (__m512i, __m512i),
) {
    for_each_round!(ROUND => {
        stream.rounds(states, ROUND..ROUND + 1);
        if hash.beside_round::<HASHED, ROUND>(&operands) {
            states.iter_mut().for_each(|state| pin(state));
            hash.pin();
        }
    });
    stream.rounds(states, 10..ROUNDS);
}

/// Four units, of which only the last may lack bytes, and fewer than a block. Hashes the group that is pending, if `HASHED` is
/// 4 and not 0, and leaves its own pending.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn seal_group<const ROUNDS: usize, const HASHED: usize, const LONG: bool>(
    stream: &mut Stream<'_, LONG>,
    group: &mut [u8],
    hash: &mut Hash,
    pending: &mut [__m512i; GROUP_UNITS],
) {
    let mut states = [_mm512_setzero_si512(); GROUP_UNITS];
    for (unit, state) in states.iter_mut().enumerate() {
        *state = stream.counter_blocks(unit);
    }
    let schedule = stream.schedule;
    let operands = |unit| (pending[unit], powers_in_group(schedule, unit));
    encrypt::<ROUNDS, GROUP_UNITS, HASHED, LONG>(stream, &mut states, hash, operands);
    if HASHED > 0 {
        hash.reduce();
    }
    let mut texts = [_mm512_setzero_si512(); GROUP_UNITS];
    load_units(&mut texts, group);
    stream.last_round::<ROUNDS, GROUP_UNITS>(&mut states, &texts);
    stream.advance(GROUP_UNITS);
    store_units(&states, group);
    let last = GROUP_UNITS - 1;
    states[last] = keep(states[last], group.len() - last * LANES_LEN);
    *pending = states.map(|state| reverse(state));
}

/// Eight units, of which only the last may lack bytes, and fewer than a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn open_group<const ROUNDS: usize, const LONG: bool>(
    stream: &mut Stream<'_, LONG>,
    group: &mut [u8],
    hash: &mut Hash,
) {
    stream.schedule = afresh(stream.schedule); // not where groups are sealed: with half as many units, what is kept saves 6 %
    let mut states = [_mm512_setzero_si512(); OPENED_UNITS];
    for (unit, state) in states.iter_mut().enumerate() {
        *state = stream.counter_blocks(unit);
    }
    let mut texts = states;
    load_units(&mut texts, group);
    let schedule = stream.schedule;
    let operands = |unit| (reverse(texts[unit]), powers_in_group(schedule, unit));
    encrypt::<ROUNDS, OPENED_UNITS, OPENED_UNITS, LONG>(stream, &mut states, hash, operands);
    stream.last_round::<ROUNDS, OPENED_UNITS>(&mut states, &texts);
    hash.reduce();
    stream.advance(OPENED_UNITS);
    store_units(&states, group);
}

/// The last units, as [`Last`] has them, and the tag; the group that is pending is hashed beside them if there is one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn seal_last<const ROUNDS: usize, const UNITS: usize, const HASHED: usize, const LONG: bool>(
    stream: Stream<'_, LONG>,
    rest: &mut [u8],
    mut hash: Hash,
    pending: &[__m512i; GROUP_UNITS],
    ends: Ends,
) -> __m128i {
    let last = Last::<UNITS>::new(rest.len(), ends);
    let mut states = last.counter_blocks(&stream);
    let operands = |unit| (pending[unit], powers_in_group(stream.schedule, unit));
    encrypt::<ROUNDS, UNITS, HASHED, LONG>(&stream, &mut states, &mut hash, operands);
    if HASHED > 0 {
        hash.reduce();
    }
    stream.last_round::<ROUNDS, UNITS>(&mut states, &last.load(rest));
    last.store(rest, &states);
    let kept = last.kept(&states);
    let operands = |unit| last.operands(stream.schedule, &kept, unit);
    for_each_round!(ROUND => {
        hash.beside_round::<UNITS, ROUND>(&operands);
    });
    tag(hash.reduced(), states[UNITS - 1])
}

/// The same where data is opened: it is hashed meanwhile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn open_last<const ROUNDS: usize, const UNITS: usize, const LONG: bool>(
    stream: Stream<'_, LONG>,
    rest: &mut [u8],
    mut hash: Hash,
    ends: Ends,
) -> __m128i {
    let last = Last::<UNITS>::new(rest.len(), ends);
    let mut states = last.counter_blocks(&stream);
    let texts = last.load(rest);
    let operands = |unit| last.operands(stream.schedule, &texts, unit);
    encrypt::<ROUNDS, UNITS, UNITS, LONG>(&stream, &mut states, &mut hash, operands);
    stream.last_round::<ROUNDS, UNITS>(&mut states, &texts);
    last.store(rest, &states);
    tag(hash.reduced(), states[UNITS - 1])
}

/// The powers for a unit of a group that is reduced on its own.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn powers_in_group(schedule: &Schedule, unit: usize) -> __m512i {
    powers(schedule, 4 * (GROUP_UNITS - unit % GROUP_UNITS))
}

/// `UNITS` − 1 units, of which only the last may lack bytes, fewer than a block, and only if the tail is empty; then the tail.
struct Last<const UNITS: usize> {
    len: usize,
    /// Where the tail begins, or the end.
    tail_start: usize,
    /// Blocks of the tail: up to three.
    tail_blocks: usize,
    ends: Ends,
}

impl<const UNITS: usize> Last<UNITS> {
    const TAIL: usize = UNITS - 1;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    fn new(len: usize, ends: Ends) -> Last<UNITS> {
        let tail_start = len.min(Self::TAIL * LANES_LEN);
        let tail_blocks = (len - tail_start).div_ceil(BLOCK_LEN) & 3;
        Last { len, tail_start, tail_blocks, ends }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    fn counter_blocks<const LONG: bool>(&self, stream: &Stream<'_, LONG>) -> [__m512i; UNITS] {
        let mut states = [stream.tail_counter_blocks(Self::TAIL); UNITS];
        for (unit, state) in states[..Self::TAIL].iter_mut().enumerate() {
            *state = stream.counter_blocks(unit);
        }
        states
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    fn load(&self, rest: &[u8]) -> [__m512i; UNITS] {
        let mut texts = [_mm512_setzero_si512(); UNITS];
        load_units(&mut texts[..Self::TAIL], rest);
        texts[Self::TAIL] = load(&rest[self.tail_start..]);
        texts
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    fn store(&self, rest: &mut [u8], states: &[__m512i; UNITS]) {
        store_units(&states[..Self::TAIL], rest);
        store(&mut rest[self.tail_start..], states[Self::TAIL]);
    }

    /// The bytes that are data, and zeros.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    fn kept(&self, states: &[__m512i; UNITS]) -> [__m512i; UNITS] {
        let mut kept = *states;
        if let Some(last) = Self::TAIL.checked_sub(1) {
            kept[last] = keep(states[last], (self.len - last * LANES_LEN).min(LANES_LEN));
        }
        kept[Self::TAIL] = keep(states[Self::TAIL], self.len - self.tail_start);
        kept
    }

    /// What is hashed of a unit, and its powers: the first four of more are a group that is reduced on its own.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    fn operands(
        &self,
        schedule: &Schedule,
        ciphers: &[__m512i; UNITS],
        unit: usize,
    ) -> (__m512i, __m512i) {
        let blocks = reverse(ciphers[unit]);
        if UNITS > GROUP_UNITS && unit < GROUP_UNITS {
            return (blocks, powers_in_group(schedule, unit));
        }
        let powers = powers(schedule, 4 * (Self::TAIL - unit) + self.tail_blocks + 1);
        if unit < Self::TAIL {
            return (blocks, powers);
        }
        (_mm512_xor_si512(blocks, self.ends.in_tail::<false>(self.tail_blocks)), powers)
    }
}
