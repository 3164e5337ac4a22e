//! The key stream: AES in counter mode (SP 800-38D §6.5), two blocks to a register.

use std::arch::x86_64::*;

use super::lanes::{broadcast, lanes_of};
use crate::vaes::Schedule;

/// Where a packet's key stream stands.
pub struct Stream<'a> {
    pub schedule: &'a Schedule,
    /// The nonce with zeros for a counter, plus the first round key: in both lanes.
    start: __m256i,
    /// The counters of the next pair, in the last words of the lanes, in the machine's order.
    counters: __m256i,
}

impl<'a> Stream<'a> {
    /// The next block has this counter. `nonce` has zeros for it.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn new(schedule: &'a Schedule, nonce: &[u64; 2], counter: u32) -> Stream<'a> {
        let start = _mm256_xor_si256(lanes_of(nonce), broadcast(schedule.round_key(0)));
        let counters = _mm256_add_epi32(
            _mm256_and_si256(_mm256_set1_epi32(counter as i32), counters(-1, -1)),
            counters(0, 1),
        );
        Stream { schedule, start, counters }
    }

    /// The counter blocks of the pair that is `pairs` ahead, plus the first round key.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn pair(&self, pairs: usize) -> __m256i {
        let ahead = 2 * pairs as i32;
        self.counter_blocks(_mm256_add_epi32(self.counters, counters(ahead, ahead)))
    }

    /// The same for the block that encrypts the tag (SP 800-38D §7.1, step 2), in both lanes.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn tag(&self) -> __m256i {
        self.counter_blocks(counters(1, 1))
    }

    /// Leaves `pairs` behind.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn advance(&mut self, pairs: usize) {
        let ahead = 2 * pairs as i32;
        self.counters = _mm256_add_epi32(self.counters, counters(ahead, ahead));
    }

    /// Round number `round`, which is neither the first nor the last.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn round<const PAIRS: usize>(&self, states: &mut [__m256i; PAIRS], round: usize) {
        let key = broadcast(self.schedule.round_key(round));
        for state in states.iter_mut() {
            *state = _mm256_aesenc_epi128(*state, key);
        }
    }

    /// The last round, which adds the text as well.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn last_round<const ROUNDS: usize>(&self, state: __m256i, text: __m256i) -> __m256i {
        let key = broadcast(self.schedule.round_key(ROUNDS));
        _mm256_aesenclast_epi128(state, _mm256_xor_si256(key, text))
    }

    /// In network order, as AES takes them, with all that is the same for a packet's blocks.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    fn counter_blocks(&self, counters: __m256i) -> __m256i {
        let order = _mm_set_epi8(12, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
        let order = _mm256_broadcastsi128_si256(order);
        _mm256_xor_si256(self.start, _mm256_shuffle_epi8(counters, order))
    }
}

/// A counter for each lane, in its last word.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn counters(first: i32, second: i32) -> __m256i {
    _mm256_set_epi32(second, 0, 0, 0, first, 0, 0, 0)
}
