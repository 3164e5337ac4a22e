//! Both ends of what is hashed: the AAD, and the lengths (SP 800-38D §7.1, step 5); and where the last units have room for them.

use std::arch::x86_64::*;

use super::lanes::{blocks, lanes_of};
use crate::vaes::block::BLOCK_LEN;

/// The tail has no data.
pub const EMPTY: u8 = 0;

/// It has one or two blocks, so that its last lane is free.
pub const ROOMY: u8 = 1;

/// It has three.
pub const FULL: u8 = 2;

/// The words of a tail's last lane.
pub const LAST_LANE: __mmask16 = 0xf000;

/// AAD and lengths, which are hashed first and last, in every lane.
#[derive(Clone, Copy)]
pub struct Ends {
    lanes: __m512i,
    long: bool,
}

impl Ends {
    /// Of a packet as ESP has them: AAD has at most 12 bytes, so that the lengths have room in its block. The first three bytes
    /// have the data's length in bits, the fourth the AAD's.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn of_esp(words: &[u64; 2]) -> Ends {
        Ends { lanes: lanes_of(words), long: false }
    }

    /// Of any packet: the lengths alone. The data's takes 40 bits, within the limits that `general.rs` holds to.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn lengths(data_len: usize, aad_len: usize) -> Ends {
        let lengths = (data_len as i64 * 8) | ((aad_len as i64 * 8) << 40);
        Ends { lanes: _mm512_set1_epi64(lengths), long: true }
    }

    /// The AAD as GHASH takes it, in the first lane.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn aad(self) -> __m512i {
        _mm512_maskz_mov_epi32(0b1110, self.lanes)
    }

    /// The block of lengths (SP 800-38D §7.1, step 5), bytes reversed, in lane number `lane`; if the packet is `WHOLE`, its AAD
    /// in the last lane, as long as that is another.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn in_tail<const WHOLE: bool>(self, lane: usize) -> __m512i {
        let places = match (WHOLE, self.long) {
            (true, _) => &LENGTHS_AND_AAD,
            (false, false) => &LENGTHS,
            (false, true) => &LONG_LENGTHS,
        };
        _mm512_shuffle_epi8(self.lanes, blocks(&places[lane]))
    }
}

/// For each lane of a tail, which byte of the ends goes where; bytes with the highest bit become zero.
type Places = [[u8; BLOCK_LEN]; 4];

/// By lane of the lengths.
static LENGTHS_AND_AAD: [Places; 4] = places(SHORT, AAD);
static LENGTHS: [Places; 4] = places(SHORT, NOTHING);
static LONG_LENGTHS: [Places; 4] = places(LONG, NOTHING);

const NOTHING: [u8; BLOCK_LEN] = [0x80; BLOCK_LEN];

const AAD: [u8; BLOCK_LEN] = [0x80, 0x80, 0x80, 0x80, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Lengths of three bytes and one.
const SHORT: [u8; BLOCK_LEN] =
    [0, 1, 2, 0x80, 0x80, 0x80, 0x80, 0x80, 3, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80];

/// Lengths of five bytes and three.
const LONG: [u8; BLOCK_LEN] =
    [0, 1, 2, 3, 4, 0x80, 0x80, 0x80, 5, 6, 7, 0x80, 0x80, 0x80, 0x80, 0x80];

const fn places(lengths: [u8; BLOCK_LEN], last: [u8; BLOCK_LEN]) -> [Places; 4] {
    [
        [lengths, NOTHING, NOTHING, last],
        [NOTHING, lengths, NOTHING, last],
        [NOTHING, NOTHING, lengths, last],
        [NOTHING, NOTHING, NOTHING, lengths],
    ]
}
