//! An SA's sequence numbers and replay window, in the two forms that XFRM has for them.

use wire::xfrm::Builder;
use wire::xfrm::number::attr;
use wire::xfrm::replay::{ReplayState, ReplayStateEsn};
use zerocopy::IntoBytes;

use super::counters::SaCounters;

/// Sequence numbers and window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayValue {
    /// 32-bit numbers, window of at most 32 packets.
    Legacy(ReplayState),
    /// 64-bit numbers when the SA uses ESN, window of at most 4096 packets.
    Wide {
        /// Numbers and sizes.
        head: ReplayStateEsn,
        /// `head.bmp_len` words. Bit `n` stands for the numbers that are `n + 1` modulo the window.
        bitmap: Box<[u32]>,
    },
}

impl Default for ReplayValue {
    fn default() -> Self {
        Self::Legacy(ReplayState::default())
    }
}

impl ReplayValue {
    /// Last sequence number sent.
    pub fn output_sequence(&self) -> u64 {
        match self {
            Self::Legacy(state) => state.oseq.into(),
            Self::Wide { head, .. } => u64::from(head.oseq_hi) << 32 | u64::from(head.oseq),
        }
    }

    /// Highest sequence number received.
    pub fn input_sequence(&self) -> u64 {
        match self {
            Self::Legacy(state) => state.seq.into(),
            Self::Wide { head, .. } => u64::from(head.seq_hi) << 32 | u64::from(head.seq),
        }
    }

    /// Whether number `input_sequence - back` was received.
    pub fn was_received(&self, back: u32) -> bool {
        match self {
            Self::Legacy(state) => back < 32 && state.bitmap >> back & 1 != 0,
            Self::Wide { head, bitmap } => {
                slot(head, back).is_some_and(|bit| bitmap[bit / 32] >> (bit % 32) & 1 != 0)
            }
        }
    }

    /// The same window with the data plane's numbers.
    pub(super) fn with_live(&self, live: &SaCounters) -> Self {
        let received = |back: u32| {
            let word = live.received.get(back as usize / 64).copied().unwrap_or(0);
            word >> (back % 64) & 1 != 0
        };
        match self {
            Self::Legacy(_) => Self::Legacy(ReplayState {
                oseq: live.output_sequence as u32,
                seq: live.input_sequence as u32,
                bitmap: (0..32).filter(|&back| received(back)).fold(0, |map, n| map | 1 << n),
            }),
            Self::Wide { head, bitmap } => {
                let head = ReplayStateEsn {
                    oseq: live.output_sequence as u32,
                    oseq_hi: (live.output_sequence >> 32) as u32,
                    seq: live.input_sequence as u32,
                    seq_hi: (live.input_sequence >> 32) as u32,
                    ..*head
                };
                let mut bitmap = vec![0; bitmap.len()].into_boxed_slice();
                for back in (0..head.replay_window).filter(|&back| received(back)) {
                    if let Some(bit) = slot(&head, back) {
                        bitmap[bit / 32] |= 1 << (bit % 32);
                    }
                }
                Self::Wide { head, bitmap }
            }
        }
    }

    /// Adds it to a message.
    pub(super) fn write<'a>(&self, message: Builder<'a>) -> Builder<'a> {
        match self {
            Self::Legacy(state) => message.attribute(attr::REPLAY_VAL, state),
            Self::Wide { head, bitmap } => message
                .attribute_parts(attr::REPLAY_ESN_VAL, &[head.as_bytes(), bitmap[..].as_bytes()]),
        }
    }
}

/// The bit of number `seq - back`. The window is a ring in which number `s` has bit `(s - 1) mod
/// window`, so that moving it forward clears bits and shifts none (RFC 6479 has the idea).
fn slot(head: &ReplayStateEsn, back: u32) -> Option<usize> {
    let window = head.replay_window.min(head.bmp_len.saturating_mul(32));
    if back >= window {
        return None;
    }
    let newest = head.seq.wrapping_sub(1) % window;
    Some(((newest + window - back) % window) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(window: u32) -> ReplayValue {
        let words = window.div_ceil(32);
        let head =
            ReplayStateEsn { bmp_len: words, replay_window: window, ..ReplayStateEsn::default() };
        ReplayValue::Wide { head, bitmap: vec![0; words as usize].into() }
    }

    #[test]
    fn live_numbers_keep_the_form_and_every_bit() {
        for (value, window) in [(ReplayValue::default(), 32), (wide(32), 32), (wide(100), 100)] {
            for sequence in [1u64, 31, 32, 33, 100, 101, 12_345] {
                let live = SaCounters {
                    input_sequence: sequence,
                    output_sequence: 7,
                    received: vec![0x8000_0001_0000_0005, 0x1],
                    ..SaCounters::default()
                };
                let shown = value.with_live(&live);
                assert_eq!(shown.output_sequence(), 7);
                assert_eq!(shown.input_sequence(), sequence);
                for back in 0..window {
                    let sent = live.received[back as usize / 64] >> (back % 64) & 1 != 0;
                    assert_eq!(shown.was_received(back), sent, "{window} {sequence} {back}");
                }
                assert!(!shown.was_received(window));
            }
        }
    }

    #[test]
    fn the_ring_is_the_kernels() {
        // Number 1 received, window 64: bit 0 of word 0.
        let live = SaCounters { input_sequence: 1, received: vec![1], ..SaCounters::default() };
        let ReplayValue::Wide { bitmap, .. } = wide(64).with_live(&live) else { panic!() };
        assert_eq!(&bitmap[..], [1, 0]);
        // Number 33 as well: bit 0 of word 1.
        let live = SaCounters { input_sequence: 33, received: vec![1 | 1 << 32], ..live };
        let ReplayValue::Wide { bitmap, .. } = wide(64).with_live(&live) else { panic!() };
        assert_eq!(&bitmap[..], [1, 1]);
    }

    #[test]
    fn a_window_larger_than_its_bitmap_is_cut() {
        let head = ReplayStateEsn { bmp_len: 0, replay_window: 9, ..ReplayStateEsn::default() };
        let value = ReplayValue::Wide { head, bitmap: Box::default() };
        assert!(!value.was_received(0));
        let live = SaCounters { received: vec![u64::MAX], ..SaCounters::default() };
        assert!(!value.with_live(&live).was_received(0));
    }
}
