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

use crate::vaes::head::Head;
use crate::vaes::{self, Schedule};
use crate::{NONCE_LEN, TAG_LEN};

/// Proof that this CPU has the instructions.
#[derive(Clone, Copy)]
pub struct Supported(());

/// The proof that this CPU can run the engine, or what it lacks.
pub fn supported() -> Result<Supported, String> {
    let features = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("vaes", is_x86_feature_detected!("vaes")),
        ("vpclmulqdq", is_x86_feature_detected!("vpclmulqdq")),
    ];
    vaes::lacking(&features).map(|()| Supported(()))
}

impl Supported {
    /// Expands `key`, which has 16, 24 or 32 bytes.
    pub fn expand(self, key: &[u8], schedule: &mut Schedule) {
        debug_assert!(matches!(key.len(), 16 | 24 | 32));
        // SAFETY: `supported` has found every instruction that is used.
        unsafe { schedule.expand(key) };
    }

    /// Encrypts `data` in place and writes its tag.
    // Inlined, nonce and AAD are put into words before they reach memory.
    #[inline(always)]
    pub fn seal(
        self,
        bits: u16,
        schedule: &Schedule,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
        tag: &mut [u8; TAG_LEN],
    ) {
        let Some(head) = Head::new(nonce, aad, data.len()) else {
            // SAFETY: `supported` has found every instruction that is used.
            return unsafe { general::seal(bits, schedule, nonce, aad, data, tag) };
        };
        // SAFETY: `supported` has found every instruction that is used.
        unsafe {
            match bits {
                128 => packet::seal::<10>(schedule, &head, data, tag),
                192 => packet::seal::<12>(schedule, &head, data, tag),
                _ => packet::seal::<14>(schedule, &head, data, tag),
            }
        }
    }

    /// Decrypts `data` in place, and says whether its tag was right. On `false` the data holds
    /// plaintext that nobody vouches for: the caller wipes it.
    #[inline(always)]
    pub fn open_unwiped(
        self,
        bits: u16,
        schedule: &Schedule,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> bool {
        let Some(head) = Head::new(nonce, aad, data.len()) else {
            // SAFETY: `supported` has found every instruction that is used.
            return unsafe { general::open(bits, schedule, nonce, aad, data, tag) };
        };
        // SAFETY: `supported` has found every instruction that is used.
        unsafe {
            match bits {
                128 => packet::open::<10>(schedule, &head, data, tag),
                192 => packet::open::<12>(schedule, &head, data, tag),
                _ => packet::open::<14>(schedule, &head, data, tag),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroize;

    use super::*;

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
