//! Where the time of a turn goes: one reading of the cycle counter after each stage.
//!
//! A turn is generic over who wants to know. Nobody does on the ordinary path, and nothing of this is
//! compiled into it; a bench runs the same stages through [`StageCycles`]. Nothing here prints.

use crate::cpu::cycles;

/// The parts of a turn, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Packets from the ports.
    Receive,
    /// Packets that become what those before them became, all of it.
    Follow,
    /// Link and IP headers.
    Parse,
    /// ESP for this host: the SA.
    Classify,
    /// The replay window is asked.
    Open,
    /// ESP is decrypted, the inner packet appears.
    Decrypt,
    /// The replay window moves.
    Accept,
    /// The policy that a packet came in by.
    Inspect,
    /// TTL, and packets that waited.
    Hop,
    /// The outbound policy and its SA.
    Choose,
    /// Sequence numbers and IVs.
    Seal,
    /// ESP and outer headers; ESP is encrypted.
    Encrypt,
    /// Next hop and link header.
    Route,
    /// Packets to the ports.
    Send,
}

impl Stage {
    /// How many there are.
    pub const COUNT: usize = Stage::ALL.len();

    /// All of them, in the order of a turn.
    pub const ALL: [Stage; 14] = [
        Stage::Receive,
        Stage::Follow,
        Stage::Parse,
        Stage::Classify,
        Stage::Open,
        Stage::Decrypt,
        Stage::Accept,
        Stage::Inspect,
        Stage::Hop,
        Stage::Choose,
        Stage::Seal,
        Stage::Encrypt,
        Stage::Route,
        Stage::Send,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Receive => "receive",
            Stage::Follow => "follow",
            Stage::Parse => "parse",
            Stage::Classify => "classify",
            Stage::Open => "open",
            Stage::Decrypt => "decrypt",
            Stage::Accept => "accept",
            Stage::Inspect => "inspect",
            Stage::Hop => "hop",
            Stage::Choose => "choose",
            Stage::Seal => "seal",
            Stage::Encrypt => "encrypt",
            Stage::Route => "route",
            Stage::Send => "send",
        }
    }
}

/// Whoever is told when a stage is over.
pub trait Laps {
    /// A turn begins.
    fn begin(&mut self);

    /// It is settled what the turn may receive; it has not received anything yet.
    #[inline(always)]
    fn receiving(&mut self) {}

    /// A stage is over.
    fn lap(&mut self, stage: Stage);
}

/// Nobody.
impl Laps for () {
    #[inline(always)]
    fn begin(&mut self) {}

    #[inline(always)]
    fn lap(&mut self, _: Stage) {}
}

/// Cycles of each stage, over as many turns as ran. A reading costs some 20 cycles for each stage and
/// turn, which a full batch of 64 packets hides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageCycles {
    cycles: [u64; Stage::COUNT],
    last: u64,
}

impl StageCycles {
    /// Cycles spent in a stage so far.
    pub fn of(&self, stage: Stage) -> u64 {
        self.cycles[stage as usize]
    }
}

impl Laps for StageCycles {
    #[inline]
    fn begin(&mut self) {
        self.last = cycles();
    }

    #[inline]
    fn lap(&mut self, stage: Stage) {
        let now = cycles();
        self.cycles[stage as usize] += now.wrapping_sub(self.last);
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_listed_in_their_order_and_by_name() {
        for (index, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, index);
            assert_eq!(stage.name(), format!("{stage:?}").to_lowercase());
        }
    }

    #[test]
    fn time_is_that_of_the_stage_that_ended() {
        let mut laps = StageCycles::default();
        laps.begin();
        laps.lap(Stage::Receive);
        let start = std::time::Instant::now();
        while start.elapsed().as_micros() < 200 {}
        laps.lap(Stage::Parse);
        assert!(laps.of(Stage::Parse) > laps.of(Stage::Receive));
        assert_eq!(laps.of(Stage::Send), 0);
    }
}
