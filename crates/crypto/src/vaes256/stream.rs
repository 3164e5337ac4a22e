//! The key stream: AES in counter mode (SP 800-38D §6.5), two blocks to a register.

use std::arch::x86_64::*;

use super::groups::HALF_BLOCKS;
use super::lanes::{broadcast, lanes_of};
use super::packet::FIRST_COUNTER;
use crate::vaes::Schedule;

/// Where a packet's key stream stands.
pub struct Stream<'a> {
    pub schedule: &'a Schedule,
    /// The nonce with zeros for a counter, plus the first round key: in both lanes.
    start: __m256i,
    /// The next block's counter less [`FIRST_COUNTER`], in the last words of the lanes, in the machine's order.
    done: __m256i,
}

impl<'a> Stream<'a> {
    /// The next block has this counter, before which halves of groups were. `nonce` has zeros for it.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn new(schedule: &'a Schedule, nonce: &[u64; 2], counter: u32) -> Stream<'a> {
        let start = _mm256_xor_si256(lanes_of(nonce), broadcast(schedule.round_key(0)));
        let done = counter.wrapping_sub(FIRST_COUNTER);
        debug_assert!(done.is_multiple_of(HALF_BLOCKS as u32));
        let done = _mm256_and_si256(_mm256_set1_epi32(done as i32), counters(-1, -1));
        Stream { schedule, start, done }
    }

    /// The counter blocks of the next pairs, plus the first round key. The blocks before are a multiple of `ALIGNED`, a power of
    /// two up to 256: so many counters differ in low bits alone, for which one addition does.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn pairs<const PAIRS: usize, const ALIGNED: usize>(&self) -> [__m256i; PAIRS] {
        let mut pairs = [_mm256_setzero_si256(); PAIRS];
        let mut aligned = self.counter_blocks(0);
        for (pair, blocks) in pairs.iter_mut().enumerate() {
            let counter = FIRST_COUNTER as usize + 2 * pair;
            let low = (counter % ALIGNED) as i32;
            if low == 0 {
                aligned = self.counter_blocks(counter as i32);
            }
            *blocks = _mm256_xor_si256(aligned, low_counters(low, low + 1));
        }
        pairs
    }

    /// The same for the block that encrypts the tag (SP 800-38D §7.1, step 2), in both lanes.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn tag(&self) -> __m256i {
        _mm256_xor_si256(self.start, low_counters(1, 1))
    }

    /// Leaves `pairs` behind.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn advance(&mut self, pairs: usize) {
        let ahead = 2 * pairs as i32;
        self.done = _mm256_add_epi32(self.done, counters(ahead, ahead));
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

    /// The key of the last round.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    pub fn last_key<const ROUNDS: usize>(&self) -> __m256i {
        broadcast(self.schedule.round_key(ROUNDS))
    }

    /// The counter that is `ahead` more than the blocks before, in both lanes: in network order, as AES takes it, with all that is the
    /// same for a packet's blocks.
    #[inline]
    #[target_feature(enable = "avx2,vaes,vpclmulqdq")]
    fn counter_blocks(&self, ahead: i32) -> __m256i {
        let order = _mm_set_epi8(12, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
        let order = _mm256_broadcastsi128_si256(order);
        let counter = _mm256_add_epi32(self.done, counters(ahead, ahead));
        _mm256_xor_si256(self.start, _mm256_shuffle_epi8(counter, order))
    }
}

/// The last round with [its key](Stream::last_key), which adds the text as well.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
pub fn last_round(key: __m256i, state: __m256i, text: __m256i) -> __m256i {
    _mm256_aesenclast_epi128(state, _mm256_xor_si256(key, text))
}

/// A counter for each lane, in its last word.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn counters(first: i32, second: i32) -> __m256i {
    _mm256_set_epi32(second, 0, 0, 0, first, 0, 0, 0)
}

/// The lowest bytes of counters, in network order.
#[inline]
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
fn low_counters(first: i32, second: i32) -> __m256i {
    counters(first << 24, second << 24)
}
