//! What a policy selects in 20 bytes for IPv4, so that it lies beside what decides.

use std::net::Ipv4Addr;

use super::PolicyConfig;
use super::fields::{Address, Fields, Shape};
use crate::prefix::{Family, Prefix};
use crate::selector::{PortMatch, Selector};

/// A [`Shape`] whose ports can be told in a byte, as nearly always; and what else lies in the same bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brief<A, T = ()> {
    source: A,
    destination: A,
    ports: u32,
    if_id: u32,
    pub(crate) beside: T,
    source_len: u8,
    destination_len: u8,
    protocol: u8,
    ports_counted: PortBits,
}

/// Which bits of the ports count: the place in [`PORT_MASKS`] of a mask over both.
#[derive(Clone, Copy, Debug)]
struct PortBits(u8);

/// Masks over both ports in which one port is in a range that a prefix can say, and the other is anything or a certain
/// one. What is behind those is none, so that every byte is a place.
static PORT_MASKS: [u32; 256] = port_masks();

/// So many masks are told: one port's prefix has none to all of its 16 bits, the other's none or all.
const TOLD: usize = 64;

const fn port_masks() -> [u32; 256] {
    let (mut masks, mut told, mut lens) = ([0; 256], 0, 0);
    while lens < 17 * 17 {
        let (source, destination) = (lens / 17, lens % 17);
        if source % 16 == 0 || destination % 16 == 0 {
            masks[told] =
                (0xffff_0000 >> source & 0xffff) << 16 | 0xffff_0000 >> destination & 0xffff;
            told += 1;
        }
        lens += 1;
    }
    assert!(told == TOLD);
    masks
}

impl PortBits {
    /// None.
    const NONE: PortBits = PortBits(0);

    /// Those of a mask over both, if it can be told.
    fn of(mask: u32) -> Option<PortBits> {
        let place = PORT_MASKS[..TOLD].iter().position(|told| *told == mask)?;
        Some(PortBits(place as u8))
    }

    #[inline(always)]
    fn mask(self) -> u32 {
        PORT_MASKS[usize::from(self.0)]
    }
}

impl<A: Address> Brief<A> {
    /// A shape, if it can be told so briefly.
    pub(crate) fn of(shape: &Shape<A>) -> Option<Brief<A>> {
        PortBits::of(shape.port_mask).map(|_| Brief::with(shape, ()))
    }
}

impl<A: Address, T> Brief<A, T> {
    /// All of a shape but, where they cannot be told, which bits of its ports count: then none do.
    pub(crate) fn with(shape: &Shape<A>, beside: T) -> Brief<A, T> {
        Brief {
            source: shape.source,
            destination: shape.destination,
            ports: shape.ports,
            if_id: shape.if_id,
            beside,
            source_len: shape.source_len,
            destination_len: shape.destination_len,
            protocol: shape.protocol,
            ports_counted: PortBits::of(shape.port_mask).unwrap_or(PortBits::NONE),
        }
    }

    /// Whether a flow is selected.
    #[inline(always)]
    pub(crate) fn selects(&self, flow: &Fields<A>) -> bool {
        self.shape().selects(flow)
    }

    /// The shape.
    #[inline(always)]
    pub(crate) fn shape(&self) -> Shape<A> {
        Shape {
            source: self.source,
            destination: self.destination,
            ports: self.ports,
            port_mask: self.ports_counted.mask(),
            if_id: self.if_id,
            source_len: self.source_len,
            destination_len: self.destination_len,
            protocol: self.protocol,
        }
    }
}

impl Brief<u32> {
    /// What a policy selects, if it is of IPv4 and can be told so briefly.
    pub(super) fn of_config(config: &PolicyConfig) -> Option<Brief<u32>> {
        let is_v4 = config.selector.family() == Family::V4;
        Brief::of(&Shape::of(config)).filter(|_| is_v4)
    }

    /// The `if_id`.
    pub(super) fn if_id(&self) -> u32 {
        self.if_id
    }

    /// The selector, without bits of ports that do not count.
    pub(super) fn selector(&self) -> Selector {
        let prefix = |bits, len| {
            let address = Ipv4Addr::from_bits(bits).into();
            Prefix::new(address, len).unwrap_or(Prefix::host(address))
        };
        let [source_port, destination_port] = [16, 0].map(|shift| PortMatch {
            port: (self.ports >> shift) as u16,
            mask: (self.ports_counted.mask() >> shift) as u16,
        });
        Selector {
            source: prefix(self.source, self.source_len),
            destination: prefix(self.destination, self.destination_len),
            protocol: self.protocol,
            source_port,
            destination_port,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The masks over a port that a prefix says, none and all bits among them.
    fn prefixes() -> impl Iterator<Item = u16> {
        (0..=16).map(|len| (0xffff_0000_u32 >> len) as u16)
    }

    #[test]
    fn one_range_of_ports_is_told_and_two_are_not() {
        let is_range = |mask: u16| !matches!(mask, 0 | u16::MAX);
        for (source, destination) in
            prefixes().flat_map(|one| prefixes().map(move |two| (one, two)))
        {
            let mask = u32::from(source) << 16 | u32::from(destination);
            let told = PortBits::of(mask).map(PortBits::mask);
            assert_eq!(told, (!is_range(source) || !is_range(destination)).then_some(mask));
        }
        // What no prefix says, though it selects a range now and then.
        for mask in [0x0000_0001, 0x7fff_0000, 0xffff_fffd] {
            assert!(PortBits::of(mask).is_none());
        }
    }
}
