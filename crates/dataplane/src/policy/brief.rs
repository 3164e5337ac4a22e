//! What a policy selects in 20 bytes for IPv4, so that it lies beside what decides.

use std::net::Ipv4Addr;

use super::PolicyConfig;
use super::fields::{Address, Fields, Shape};
use crate::prefix::{Family, Prefix};
use crate::selector::{PortMatch, Selector};

/// A [`Shape`] of which each port counts whole or not at all, as nearly always; and what else lies in the same
/// bytes.
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
    whole: Whole,
}

/// Which ports count.
#[derive(Clone, Copy, Debug)]
enum Whole {
    Neither,
    Destination,
    Source,
    Both,
}

impl Whole {
    #[inline]
    fn mask(self) -> u32 {
        static MASKS: [u32; 4] = [0, 0x0000_ffff, 0xffff_0000, 0xffff_ffff];
        MASKS[self as usize]
    }
}

impl<A: Address> Brief<A> {
    /// A shape, if it can be told so briefly.
    pub(crate) fn of(shape: &Shape<A>) -> Option<Brief<A>> {
        let brief = Brief::with(shape, ());
        (brief.whole.mask() == shape.port_mask).then_some(brief)
    }
}

impl<A: Address, T> Brief<A, T> {
    /// All of a shape but its ports, which count whole where all of their bits do, and else not at all.
    pub(crate) fn with(shape: &Shape<A>, beside: T) -> Brief<A, T> {
        let whole = [Whole::Both, Whole::Source, Whole::Destination];
        let is_whole = |whole: &Whole| shape.port_mask & whole.mask() == whole.mask();
        Brief {
            source: shape.source,
            destination: shape.destination,
            ports: shape.ports,
            if_id: shape.if_id,
            beside,
            source_len: shape.source_len,
            destination_len: shape.destination_len,
            protocol: shape.protocol,
            whole: whole.into_iter().find(is_whole).unwrap_or(Whole::Neither),
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
            port_mask: self.whole.mask(),
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
            mask: (self.whole.mask() >> shift) as u16,
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
