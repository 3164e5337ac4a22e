//! The hash of a packet (SP 800-38D §7.1, step 5): AAD, ciphertext, and both lengths.

use std::arch::x86_64::*;

use super::ghash::{Products, multiply, multiply_add, product, reverse};
use super::lanes::{block, blocks, lanes_of};
use super::schedule::Schedule;

const BLOCK_LEN: usize = 16;

/// What was hashed, and a group that is still to be: it waits for other work to be done between
/// its multiplications.
pub struct Hash<'a> {
    pub schedule: &'a Schedule,
    pub value: __m128i,
    pub group: [__m512i; 4],
}

impl Hash<'_> {
    /// Nothing was hashed, and nothing is pending.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn new(schedule: &Schedule) -> Hash<'_> {
        Hash { schedule, value: _mm_setzero_si128(), group: [_mm512_setzero_si512(); 4] }
    }

    /// The AAD of a packet as ESP has them was hashed.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn of_aad(schedule: &Schedule, ends: Ends) -> Hash<'_> {
        let aad = _mm512_castsi512_si128(ends.aad());
        Hash { value: product(aad, block(schedule.power(1))), ..Hash::new(schedule) }
    }

    /// A unit of the pending group times its powers.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn add(&self, sum: Products, unit: usize) -> Products {
        let powers = powers(self.schedule, 4 * (4 - unit));
        if unit == 0 {
            let first = _mm512_xor_si512(self.group[0], _mm512_zextsi128_si512(self.value));
            multiply(first, powers)
        } else {
            multiply_add(sum, self.group[unit], powers)
        }
    }

    /// The products of the last `UNITS` units, the tail of which has `tail_blocks` blocks before
    /// that of the lengths. In a `WHOLE` packet nothing was hashed before, and the AAD is hashed here.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn finish<const UNITS: usize, const TAIL: u8, const WHOLE: bool>(
        &self,
        ciphers: &[__m512i; UNITS],
        tail_blocks: usize,
        ends: Ends,
    ) -> Products {
        let tail = UNITS - 1;
        let aad_power = if WHOLE { 4 * tail + tail_blocks + 2 } else { 1 };
        let aad_power = block(self.schedule.power(aad_power));
        let apart = WHOLE && TAIL == FULL;
        let mut sum = if apart {
            multiply(ends.aad(), _mm512_zextsi128_si512(aad_power))
        } else {
            Products::zero()
        };
        for (unit, cipher) in ciphers.iter().enumerate() {
            let mut powers = powers(self.schedule, 4 * (tail - unit) + tail_blocks + 1);
            let mut blocks = reverse(*cipher);
            if unit == tail {
                let ends = ends.in_tail::<WHOLE>(tail_blocks);
                blocks = if TAIL == EMPTY { ends } else { _mm512_xor_si512(blocks, ends) };
                if WHOLE && !apart {
                    powers = _mm512_mask_broadcast_i32x4(powers, LAST_LANE, aad_power);
                }
            }
            if unit == 0 && !WHOLE {
                blocks = _mm512_xor_si512(blocks, _mm512_zextsi128_si512(self.value));
            }
            let first = unit == 0 && !apart;
            sum = if first { multiply(blocks, powers) } else { multiply_add(sum, blocks, powers) };
        }
        sum
    }
}

/// H to the power of `exponent` for the first lane, of `exponent` − 1 for the next, and so on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
fn powers(schedule: &Schedule, exponent: usize) -> __m512i {
    blocks(schedule.powers_from(exponent))
}

/// The tail has no data.
pub const EMPTY: u8 = 0;

/// It has one or two blocks, so that its last lane is free.
pub const ROOMY: u8 = 1;

/// It has three; in a packet whose AAD has no place here, one to three.
pub const FULL: u8 = 2;

/// It has up to three.
pub const ANY: u8 = 3;

/// The words of a tail's last lane.
const LAST_LANE: __mmask16 = 0xf000;

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
    fn in_tail<const WHOLE: bool>(self, lane: usize) -> __m512i {
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
