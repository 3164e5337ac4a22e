//! The key stream: AES in counter mode (SP 800-38D §6.5), four blocks to a unit.
//!
//! While it encrypts, a pending group is hashed; this file does not know what is in it.

use std::arch::x86_64::*;
use std::ops::Range;

use super::ghash::{Products, reduce, sum_of_lanes};
use super::hash::Hash;
use super::lanes::{broadcast, words};
use super::schedule::Schedule;

/// What is the same for all of a packet's units.
pub struct Stream<'a> {
    pub schedule: &'a Schedule,
    /// The nonce with zeros for a counter, plus the first round key: in every lane.
    start: __m512i,
    /// The counters of the next unit's lanes, each in a lane's last word, in the machine's order.
    counters: __m512i,
}

impl Stream<'_> {
    /// At the start: counter 1 is the tag's, so the first unit has 2 to 5.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn new(schedule: &Schedule, nonce: u128) -> Stream<'_> {
        let nonce = _mm512_broadcast_i32x4(words(nonce));
        Stream {
            schedule,
            start: _mm512_xor_si512(nonce, broadcast(schedule.round_key(0))),
            counters: _mm512_set_epi32(5, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0),
        }
    }

    /// The counter blocks of the unit that is `units` ahead, plus the first round key.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn counter_blocks(&self, units: usize) -> __m512i {
        let ahead = _mm512_set1_epi32(4 * units as i32);
        let counters = _mm512_add_epi32(self.counters, ahead);
        _mm512_xor_si512(self.start, big_endian_words(counters))
    }

    /// As [`Stream::counter_blocks`], but for the tail: its last lane has the counter block that
    /// encrypts the tag (SP 800-38D §7.1, step 2).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn tail_counter_blocks(&self, units: usize) -> __m512i {
        let ahead = _mm512_set1_epi32(4 * units as i32);
        let counters = _mm512_add_epi32(self.counters, ahead);
        let counters = _mm512_mask_set1_epi32(counters, 1 << 15, 1);
        _mm512_xor_si512(self.start, big_endian_words(counters))
    }

    /// Leaves `units` behind.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn advance(&mut self, units: usize) {
        self.counters = _mm512_add_epi32(self.counters, _mm512_set1_epi32(4 * units as i32));
    }

    /// All rounds of AES; the last one adds `text` as well. Meanwhile, the pending group is hashed
    /// if there is one: a quarter after every other round, so that neither has to wait for the
    /// other's instructions to leave the scheduler.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn encrypt<const ROUNDS: usize, const UNITS: usize, const PENDING: bool>(
        &self,
        states: &mut [__m512i; UNITS],
        texts: &[__m512i; UNITS],
        hash: &mut Hash<'_>,
    ) {
        let mut sum = Products::zero();
        self.rounds(states, 1..3);
        if PENDING {
            sum = hash.add(sum, 0);
        }
        self.rounds(states, 3..5);
        if PENDING {
            sum = hash.add(sum, 1);
        }
        self.rounds(states, 5..7);
        if PENDING {
            sum = hash.add(sum, 2);
        }
        self.rounds(states, 7..9);
        if PENDING {
            sum = hash.add(sum, 3);
        }
        self.rounds(states, 9..ROUNDS);
        let key = broadcast(self.schedule.round_key(ROUNDS));
        for unit in 0..UNITS {
            let key = _mm512_xor_si512(key, texts[unit]);
            states[unit] = _mm512_aesenclast_epi128(states[unit], key);
        }
        if PENDING {
            hash.value = sum_of_lanes(reduce(sum));
        }
    }

    /// Some of the rounds between the first and the last.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    fn rounds<const UNITS: usize>(&self, states: &mut [__m512i; UNITS], rounds: Range<usize>) {
        for round in rounds {
            let key = broadcast(self.schedule.round_key(round));
            for state in states.iter_mut() {
                *state = _mm512_aesenc_epi128(*state, key);
            }
        }
    }
}

/// The last word of every lane in network order; the other bytes become zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn big_endian_words(counters: __m512i) -> __m512i {
    let order = _mm_set_epi8(12, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    _mm512_shuffle_epi8(counters, _mm512_broadcast_i32x4(order))
}
