//! The key stream: AES in counter mode (SP 800-38D §6.5), four blocks to a unit.

use std::arch::x86_64::*;
use std::ops::Range;

use super::lanes::{broadcast, lanes_of, load_broadcast};
use crate::vaes::Schedule;

/// What is the same for all of a packet's units.
///
/// Counters stand in the last word of their blocks in network order. Below 256 they are a byte, and the next ones come of adding
/// to it. A `LONG` packet has more than [`BYTE_COUNTERS`](crate::vaes::head::BYTE_COUNTERS) blocks: its counters are kept in the machine's order
/// and turned round for each unit, which takes one of two execution units that hashing needs as well.
pub struct Stream<'a, const LONG: bool> {
    pub schedule: &'a Schedule,
    /// The nonce with zeros for a counter, plus the first round key: in every lane.
    start: __m512i,
    /// The counters of the next unit's lanes.
    counters: __m512i,
}

impl<const LONG: bool> Stream<'_, LONG> {
    /// At the start: counter 1 is the tag's, so the first unit has 2 to 5. `nonce` has zeros for a counter.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn new<'a>(schedule: &'a Schedule, nonce: &[u64; 2]) -> Stream<'a, LONG> {
        let start = _mm512_xor_si512(lanes_of(nonce), load_broadcast(schedule.round_key(0)));
        Stream { schedule, start, counters: counters::<LONG>([2, 3, 4, 5]) }
    }

    /// The counter blocks of the unit that is `units` ahead, plus the first round key.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn counter_blocks(&self, units: usize) -> __m512i {
        let counters = _mm512_add_epi32(self.counters, ahead::<LONG>(units));
        _mm512_xor_si512(self.start, in_network_order::<LONG>(counters))
    }

    /// As [`Stream::counter_blocks`], but for the tail: its last lane has the counter block that
    /// encrypts the tag (SP 800-38D §7.1, step 2).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn tail_counter_blocks(&self, units: usize) -> __m512i {
        let next = _mm512_add_epi32(self.counters, ahead::<LONG>(units));
        let counters = _mm512_mask_mov_epi32(next, 1 << 15, counters::<LONG>([1; 4]));
        _mm512_xor_si512(self.start, in_network_order::<LONG>(counters))
    }

    /// Leaves `units` behind.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn advance(&mut self, units: usize) {
        self.counters = _mm512_add_epi32(self.counters, ahead::<LONG>(units));
    }

    /// Some of the rounds between the first and the last.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn rounds<const UNITS: usize>(&self, states: &mut [__m512i; UNITS], rounds: Range<usize>) {
        for round in rounds {
            let key = broadcast(self.schedule.round_key(round));
            for state in states.iter_mut() {
                *state = _mm512_aesenc_epi128(*state, key);
            }
        }
    }

    /// The last round, which adds the texts as well.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn last_round<const ROUNDS: usize, const UNITS: usize>(
        &self,
        states: &mut [__m512i; UNITS],
        texts: &[__m512i; UNITS],
    ) {
        let key = broadcast(self.schedule.round_key(ROUNDS));
        for unit in 0..UNITS {
            let key = _mm512_xor_si512(key, texts[unit]);
            states[unit] = _mm512_aesenclast_epi128(states[unit], key);
        }
    }
}

/// A counter for each lane, in its last word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn counters<const LONG: bool>(counters: [u8; 4]) -> __m512i {
    let [a, b, c, d] = counters.map(|counter| {
        let counter = u32::from(counter);
        if LONG { counter as i32 } else { counter.to_be() as i32 }
    });
    _mm512_set_epi32(d, 0, 0, 0, c, 0, 0, 0, b, 0, 0, 0, a, 0, 0, 0)
}

/// What counters grow by in `units` units.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn ahead<const LONG: bool>(units: usize) -> __m512i {
    counters::<LONG>([4 * units as u8; 4])
}

/// Counters as AES takes them: in network order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn in_network_order<const LONG: bool>(counters: __m512i) -> __m512i {
    if LONG {
        let order = _mm_set_epi8(12, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
        _mm512_shuffle_epi8(counters, _mm512_broadcast_i32x4(order))
    } else {
        counters
    }
}
