//! The hash of a packet (SP 800-38D §7.1, step 5): AAD, ciphertext, and both lengths.

use std::arch::x86_64::*;

use super::ends::{EMPTY, Ends, FULL, LAST_LANE};
use super::ghash::{Products, multiply, multiply_add, product, reduce, reverse, sum_of_lanes};
use super::lanes::blocks;
use crate::vaes::Schedule;
use crate::vaes::block::block;

/// Units whose products are summed before they are reduced: as many blocks as there are powers.
pub const GROUP_UNITS: usize = 4;

/// What was hashed, and products that are still to be reduced. Units are hashed one by one, beside the rounds of AES.
#[derive(Clone, Copy)]
pub struct Hash {
    value: __m128i,
    sum: Products,
}

/// What is hashed beside a round of AES.
enum Step {
    /// A unit's products are added.
    Add(usize),
    /// What was added is reduced.
    Reduce,
    Nothing,
}

/// What of `units` units, up to eight, is hashed beside round `round` of AES, of which the first nine are the same for all key sizes.
///
/// More than [`GROUP_UNITS`] take a round each, and the first of them are reduced on their own. Fewer take every other
/// round. Of what is reduced together the first unit comes last, as it takes the hash of all that is before.
const fn step(units: usize, round: usize) -> Step {
    if units <= GROUP_UNITS {
        let step = round.wrapping_sub(3) / 2;
        return if round % 2 == 1 && step < units {
            Step::Add((step + 1) % units)
        } else {
            Step::Nothing
        };
    }
    match round - 1 {
        step if step < GROUP_UNITS => Step::Add((step + 1) % GROUP_UNITS),
        GROUP_UNITS => Step::Reduce,
        step if step <= units => {
            Step::Add(GROUP_UNITS + (step - GROUP_UNITS) % (units - GROUP_UNITS))
        }
        _ => Step::Nothing,
    }
}

impl Hash {
    /// `value` is the hash of what is before.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn new(value: __m128i) -> Hash {
        Hash { value, sum: Products::zero() }
    }

    /// Hashes what of `UNITS` units is to be hashed beside round `ROUND`, if anything is; unit number `unit` has the blocks and powers
    /// `operands(unit)`. After all nine rounds, [`Hash::reduced`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn beside_round<const UNITS: usize, const ROUND: usize>(
        &mut self,
        operands: &impl Fn(usize) -> (__m512i, __m512i),
    ) -> bool {
        match const { step(UNITS, ROUND) } {
            Step::Add(unit) => {
                let (mut blocks, powers) = operands(unit);
                if unit % GROUP_UNITS == 0 {
                    blocks = _mm512_xor_si512(blocks, _mm512_zextsi128_si512(self.value));
                }
                self.sum = multiply_add(self.sum, blocks, powers);
                true
            }
            Step::Reduce => {
                self.reduce();
                true
            }
            Step::Nothing => false,
        }
    }

    /// Goes on from the hash of all units so far.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn reduce(&mut self) {
        *self = Hash::new(self.reduced());
    }

    /// The hash of all units.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn reduced(&self) -> __m128i {
        sum_of_lanes(reduce(self.sum))
    }

    /// See [`super::lanes::pin`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
    pub fn pin(&mut self) {
        self.sum.pin();
    }
}

/// The hash of a packet's AAD, as ESP has it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn of_aad(schedule: &Schedule, ends: Ends) -> __m128i {
    product(_mm512_castsi512_si128(ends.aad()), block(schedule.power(1)))
}

/// The products of all `UNITS` units of a packet in a straight line, the tail of which has `tail_blocks` blocks before
/// that of the lengths. In a `WHOLE` packet the AAD is hashed with them; `before` is its hash in another.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn of_line<const UNITS: usize, const TAIL: u8, const WHOLE: bool>(
    schedule: &Schedule,
    before: __m128i,
    ciphers: &[__m512i; UNITS],
    tail_blocks: usize,
    ends: Ends,
) -> Products {
    let tail = UNITS - 1;
    let aad_power = if WHOLE { 4 * tail + tail_blocks + 2 } else { 1 };
    let aad_power = block(schedule.power(aad_power));
    let apart = WHOLE && TAIL == FULL;
    let mut sum = if apart {
        multiply(ends.aad(), _mm512_zextsi128_si512(aad_power))
    } else {
        Products::zero()
    };
    for (unit, cipher) in ciphers.iter().enumerate() {
        let mut powers = powers(schedule, 4 * (tail - unit) + tail_blocks + 1);
        let mut blocks = reverse(*cipher);
        if unit == tail {
            let ends = ends.in_tail::<WHOLE>(tail_blocks);
            blocks = if TAIL == EMPTY { ends } else { _mm512_xor_si512(blocks, ends) };
            if WHOLE && !apart {
                powers = _mm512_mask_broadcast_i32x4(powers, LAST_LANE, aad_power);
            }
        }
        if unit == 0 && !WHOLE {
            blocks = _mm512_xor_si512(blocks, _mm512_zextsi128_si512(before));
        }
        let first = unit == 0 && !apart;
        sum = if first { multiply(blocks, powers) } else { multiply_add(sum, blocks, powers) };
    }
    sum
}

/// H to the power of `exponent` for the first lane, of `exponent` − 1 for the next, and so on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2,vaes,vpclmulqdq")]
pub fn powers(schedule: &Schedule, exponent: usize) -> __m512i {
    blocks(schedule.powers_from(exponent))
}
