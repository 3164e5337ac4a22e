//! Packets that are set aside while others take their places.

use arrayvec::ArrayVec;
use wire::ethernet::{EtherType, HEADER_LEN};
use xsk::Frame;

use crate::batch::{BATCH_PACKETS, Slot};

/// All that there is to know of a packet that no stage knows yet, and may be read by a lane: the port by which it came, and the
/// bytes that its SA is to count.
pub(super) struct Packet {
    frame: Frame,
    ingress: u16,
    counted: u16,
}

/// As many as a batch has.
pub(super) type Packets = ArrayVec<Packet, BATCH_PACKETS>;

impl Packet {
    /// Takes the packet out of a slot.
    #[inline(always)]
    pub(super) fn take(slot: &mut Slot<'_>) -> Packet {
        Packet { frame: slot.frame.take(), ingress: slot.ingress, counted: slot.counted }
    }

    /// Puts it into one from which the packet was taken.
    #[inline(always)]
    pub(super) fn put(self, slot: &mut Slot<'_>) {
        (slot.frame, slot.ingress, slot.counted) = (self.frame, self.ingress, self.counted);
    }
}

/// Puts packets first of which `find` finds something, but for those that come behind another between the same hosts; what it found
/// of each that is first. They, and the others, stay in their order.
#[inline(always)]
pub(super) fn gather<T>(
    slots: &mut [Slot<'_>],
    mut find: impl FnMut(usize, &Slot<'_>) -> Option<T>,
) -> ArrayVec<T, BATCH_PACKETS> {
    let (mut hosts, mut others) = (Hosts::none(), Packets::new());
    let mut gathered = ArrayVec::new();
    for at in 0..slots.len().min(BATCH_PACKETS) {
        let slot = &mut slots[at];
        let found = find(at, slot).filter(|_| !hosts.has(&slot.frame));
        let Some(found) = found else {
            hosts.note(&slot.frame);
            others.push(Packet::take(slot));
            continue;
        };
        if gathered.len() != at {
            Packet::take(slot).put(&mut slots[gathered.len()]);
        }
        gathered.push(found);
    }
    let rest = slots[gathered.len()..].iter_mut();
    rest.zip(others).for_each(|(slot, packet)| packet.put(slot));
    gathered
}

/// Pairs of hosts between which packets are: a bit for each, or for several.
pub(super) struct Hosts([u64; WORDS]);

/// Of so many bits, as many pairs as a batch has packets leave one in eight set at most.
const WORDS: usize = 8;

/// Odd, and with bits as if drawn: 2⁶⁴ over the golden ratio.
const MIXER: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hosts {
    pub(super) fn none() -> Hosts {
        Hosts([0; WORDS])
    }

    /// Takes note of a packet.
    pub(super) fn note(&mut self, frame: &Frame) {
        let (word, bit) = bit_of(frame);
        self.0[word] |= bit;
    }

    /// Whether one of which note was taken may be between the same hosts as a packet.
    #[inline(always)]
    pub(super) fn has(&self, frame: &Frame) -> bool {
        if self.0 == [0; WORDS] {
            return false;
        }
        let (word, bit) = bit_of(frame);
        self.0[word] & bit != 0
    }
}

/// The bit of the pair of hosts that a packet is between, and the word in which it is.
fn bit_of(frame: &Frame) -> (usize, u64) {
    let bytes = frame.bytes();
    // Source and destination lie side by side, and are whole words.
    let ends = match bytes.get(12..HEADER_LEN) {
        Some(ethertype) if ethertype == EtherType::IPV6.0.to_be_bytes() => 22..54,
        _ => 26..34,
    };
    let words =
        bytes.get(ends).unwrap_or(&[]).chunks_exact(8).filter_map(|word| word.first_chunk());
    let words = words.map(|word| u64::from_ne_bytes(*word));
    let mixed =
        words.fold(0, |mixed: u64, word| (mixed.rotate_left(29) ^ word).wrapping_mul(MIXER));
    // The highest bits depend on all.
    let bit = mixed >> (u64::BITS - (64 * WORDS).ilog2());
    ((bit / 64) as usize, 1 << (bit % 64))
}
