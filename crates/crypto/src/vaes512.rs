//! The engine of our own: AES-GCM for CPUs with AVX-512, VAES and VPCLMULQDQ.
//!
//! Four blocks fill a register, of which there are 32, and masks leave out what a packet does not have.

mod ends;
mod general;
mod ghash;
mod groups;
mod hash;
mod lanes;
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
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512vl", is_x86_feature_detected!("avx512vl")),
        ("bmi2", is_x86_feature_detected!("bmi2")),
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
    // Inlined, AAD of one length is not asked for its length.
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
