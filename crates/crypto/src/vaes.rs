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
