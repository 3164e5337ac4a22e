//! Packets that are set aside while others take their places.

use arrayvec::ArrayVec;
use wire::ethernet::{EtherType, HEADER_LEN};
use wire::{ipv6, protocol, udp};
use xsk::Frame;

use super::several::MIXER;
use crate::batch::{BATCH_PACKETS, Slot};
use crate::encapsulation::PortSet;

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
/// of each that is first. It is asked of none that stays behind. They, and the others, stay in their order. ESP of one SA does, too, where
/// there are `ports` in whose datagrams it may come.
#[inline(always)]
pub(super) fn gather<T>(
    slots: &mut [Slot<'_>],
    ports: Option<&PortSet>,
    mut find: impl FnMut(usize, &mut Slot<'_>) -> Option<T>,
) -> ArrayVec<T, BATCH_PACKETS> {
    let (mut hosts, mut others) = (Hosts::none(ports), Packets::new());
    let mut gathered = ArrayVec::new();
    for at in 0..slots.len().min(BATCH_PACKETS) {
        let slot = &mut slots[at];
        let found = if hosts.has(&slot.frame) { None } else { find(at, slot) };
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

/// Pairs of hosts between which packets are, and the SAs of those that are ESP, which may come from elsewhere.
pub(super) struct Hosts<'v> {
    pairs: Bits,
    sas: Bits,
    /// Whether note was taken of any packet, and of any that is ESP.
    any: bool,
    any_esp: bool,
    /// In whose datagrams ESP comes; `None` where no ESP is set aside or put first.
    ports: Option<&'v PortSet>,
}

/// A bit for each of some, or for several of them.
struct Bits([u64; WORDS]);

/// Of so many bits, as many pairs as a batch has packets leave one in eight set at most.
const WORDS: usize = 8;

impl Hosts<'_> {
    pub(super) fn none(ports: Option<&PortSet>) -> Hosts<'_> {
        let [pairs, sas] = [Bits([0; WORDS]), Bits([0; WORDS])];
        Hosts { pairs, sas, any: false, any_esp: false, ports }
    }

    /// Takes note of a packet.
    pub(super) fn note(&mut self, frame: &Frame) {
        self.pairs.set(pair(frame));
        self.any = true;
        if let Some(sa) = self.sa(frame) {
            self.sas.set(sa);
            self.any_esp = true;
        }
    }

    #[inline(always)]
    fn sa(&self, frame: &Frame) -> Option<u64> {
        sa(frame, self.ports?)
    }

    /// Whether one of which note was taken may be between the same hosts as a packet, or of the same SA.
    #[inline(always)]
    pub(super) fn has(&self, frame: &Frame) -> bool {
        self.any
            && (self.pairs.has(pair(frame))
                || self.any_esp && self.sa(frame).is_some_and(|sa| self.sas.has(sa)))
    }
}

impl Bits {
    fn set(&mut self, mixed: u64) {
        let (word, bit) = Bits::place(mixed);
        self.0[word] |= bit;
    }

    #[inline(always)]
    fn has(&self, mixed: u64) -> bool {
        let (word, bit) = Bits::place(mixed);
        self.0[word] & bit != 0
    }

    /// The highest bits depend on all.
    #[inline(always)]
    fn place(mixed: u64) -> (usize, u64) {
        let bit = mixed >> (u64::BITS - (64 * WORDS).ilog2());
        ((bit / 64) as usize, 1 << (bit % 64))
    }
}

/// What the pair of hosts comes to that a packet is between.
#[inline(always)]
fn pair(frame: &Frame) -> u64 {
    // Source and destination lie side by side, and are whole words.
    let ends = if is_v6(frame) { 22..54 } else { 26..34 };
    let words = frame.bytes().get(ends).unwrap_or(&[]).chunks_exact(8);
    let words = words.filter_map(|word| word.first_chunk());
    mix(words.map(|word| u64::from_ne_bytes(*word)))
}

/// What the SA comes to whose packet it is, or would be.
#[inline(never)]
fn sa(frame: &Frame, ports: &PortSet) -> Option<u64> {
    let bytes = frame.bytes();
    let (destination, protocol_at, payload_at) = match is_v6(frame) {
        true => (38..54, 20, HEADER_LEN + ipv6::HEADER_LEN),
        false => (30..34, 23, HEADER_LEN + usize::from(bytes.get(HEADER_LEN)? & 0xf) * 4),
    };
    let word = |at: usize| bytes.get(at..)?.first_chunk().map(|word| u32::from_be_bytes(*word));
    let spi = match *bytes.get(protocol_at)? {
        protocol::ESP => word(payload_at)?,
        protocol::UDP if ports.contains(word(payload_at)? as u16) => {
            word(payload_at + udp::HEADER_LEN)?
        }
        _ => return None,
    };
    let words = destination.step_by(4).filter_map(word).chain([spi]);
    Some(mix(words.map(u64::from)))
}

#[inline(always)]
fn is_v6(frame: &Frame) -> bool {
    frame.bytes().get(12..HEADER_LEN).is_some_and(|one| one == EtherType::IPV6.0.to_be_bytes())
}

#[inline(always)]
fn mix(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0, |mixed: u64, word| (mixed.rotate_left(29) ^ word).wrapping_mul(MIXER))
}
