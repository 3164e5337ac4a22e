//! What our own engines have in common, `vaes512` and `vaes256`: the expanded key, and how a packet is handed to them.
//!
//! They exist for two things that no library offers: an expanded key of 496 bytes that stands in
//! consecutive cache lines, so that 50 000 tunnels can be fetched ahead and cost what one costs;
//! and short packets in a straight line. The libraries remain as fallback, and as oracles: the
//! tests hold every length against both.
//!
//! Constant time by construction: no table, no branch and no address depends on key or data. What
//! they do not do: wipe what was opened in vain; `key.rs` does that.

pub mod block;
pub mod ghash;
pub mod head;
pub mod opaque;
mod schedule;

pub use self::schedule::{POWERS, Schedule};

/// Names of what `features` lacks, in a sentence.
pub fn lacking(features: &[(&str, bool)]) -> Result<(), String> {
    let missing = features.iter().filter(|(_, present)| !present);
    let missing: Vec<_> = missing.map(|(name, _)| *name).collect();
    match &missing[..] {
        [] => Ok(()),
        _ => Err(format!("this CPU has no {}", missing.join(", "))),
    }
}

/// The same for each of the rounds before the last that keys of all sizes have, number `$round`.
macro_rules! for_each_round {
    ($round:ident => $body:block) => {
        $crate::vaes::for_each_round!($round => $body; 1 2 3 4 5 6 7 8 9)
    };
    ($round:ident => $body:block; $($number:literal)*) => {$({
        const $round: usize = $number;
        $body
    })*};
}
pub(crate) use for_each_round;

/// What an engine shows of itself, in the module that has its `packet` and its `general`, which need these features of a CPU. They
/// are named to the compiler function by function, so that no trait can have them.
macro_rules! engine {
    ($($feature:tt),+) => {
        /// Proof that this CPU has the instructions.
        #[derive(Clone, Copy)]
        pub struct Supported(());

        /// The proof that this CPU can run the engine, or what it lacks.
        pub fn supported() -> Result<Supported, String> {
            let features = [$(($feature, is_x86_feature_detected!($feature))),+];
            $crate::vaes::lacking(&features).map(|()| Supported(()))
        }

        impl Supported {
            /// Expands `key`, which has 16, 24 or 32 bytes.
            pub fn expand(self, key: &[u8], schedule: &mut $crate::vaes::Schedule) {
                debug_assert!(matches!(key.len(), 16 | 24 | 32));
                // SAFETY: `supported` has found every instruction that is used.
                unsafe { schedule.expand(key) };
            }

            /// Encrypts `data` in place and writes its tag.
            // Inlined, nonce and AAD are put into words before they reach memory, and AAD of one length is not asked for its length.
            #[inline(always)]
            pub fn seal(
                self,
                bits: u16,
                schedule: &$crate::vaes::Schedule,
                nonce: &[u8; $crate::NONCE_LEN],
                aad: &[u8],
                data: &mut [u8],
                tag: &mut [u8; $crate::TAG_LEN],
            ) {
                let Some(head) = $crate::vaes::head::Head::new(nonce, aad, data.len()) else {
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
                schedule: &$crate::vaes::Schedule,
                nonce: &[u8; $crate::NONCE_LEN],
                aad: &[u8],
                data: &mut [u8],
                tag: &[u8; $crate::TAG_LEN],
            ) -> bool {
                let Some(head) = $crate::vaes::head::Head::new(nonce, aad, data.len()) else {
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
    };
}
pub(crate) use engine;
