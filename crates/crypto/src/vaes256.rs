//! The engine of our own for CPUs that have VAES and VPCLMULQDQ but not AVX-512: AES-GCM in registers of two blocks.
//!
//! There are 16 such registers and no masks: eight hold what is encrypted, three the sums of products. A block that is not whole
//! is read and written with bytes of the block before it (`lanes.rs`).

mod general;
mod ghash;
mod groups;
mod lanes;
mod line;
mod packet;
mod stream;

use crate::vaes::engine;

engine!("avx2", "vaes", "vpclmulqdq");

#[cfg(test)]
mod tests {
    use zeroize::Zeroize;

    use super::*;
    use crate::vaes::Schedule;

    /// `drop` runs this same `zeroize`. The schedule is that of `vaes512`, too, which needs these instructions and more. (Nothing
    /// to test where they are not.)
    #[test]
    fn a_schedule_is_filled_and_can_be_wiped_whole() {
        let Ok(cpu) = supported() else { return };
        for key_len in [16, 24, 32] {
            let mut schedule = Schedule::empty();
            cpu.expand(&vec![0x5a; key_len], &mut schedule);
            for block in (0..key_len / 4 + 7).map(|round| schedule.round_key(round)) {
                assert_ne!(*block, [0; 16]);
            }
            for block in (1..=16).map(|exponent| schedule.power(exponent)) {
                assert_ne!(*block, [0; 16]);
            }
            schedule.zeroize();
            for block in (0..15).map(|round| schedule.round_key(round)) {
                assert_eq!(*block, [0; 16]);
            }
            for block in (1..=16).map(|exponent| schedule.power(exponent)) {
                assert_eq!(*block, [0; 16]);
            }
        }
    }
}
