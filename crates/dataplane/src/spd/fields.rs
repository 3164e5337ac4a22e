//! What policies look at in a flow, as bits and masks over them.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use wire::flow::Flow;

use crate::policy::PolicyConfig;
use crate::prefix::{address_bits, prefix_mask};
use crate::selector::Selector;

/// Address bits, in the width of their family.
pub(super) trait Address: Copy + Eq + std::fmt::Debug {
    /// To what multiple of bits a prefix is cut in a merged tuple.
    const MERGED_BITS: u8;

    fn of(bits: u128) -> Self;

    /// The bits of an address; of one of the other family some bits.
    fn of_address(address: IpAddr) -> Self;
    fn and(self, mask: Self) -> Self;
    fn or(self, mask: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn hash_pair<H: Hasher>(self, other: Self, state: &mut H);
}

impl Address for u32 {
    const MERGED_BITS: u8 = 8;

    #[inline]
    fn of(bits: u128) -> u32 {
        bits as u32
    }

    #[inline]
    fn of_address(address: IpAddr) -> u32 {
        match address {
            IpAddr::V4(v4) => v4.to_bits(),
            IpAddr::V6(_) => 0,
        }
    }

    #[inline]
    fn and(self, mask: u32) -> u32 {
        self & mask
    }

    #[inline]
    fn or(self, mask: u32) -> u32 {
        self | mask
    }

    #[inline]
    fn xor(self, other: u32) -> u32 {
        self ^ other
    }

    #[inline]
    fn hash_pair<H: Hasher>(self, other: u32, state: &mut H) {
        state.write_u64(u64::from(self) << 32 | u64::from(other));
    }
}

impl Address for u128 {
    const MERGED_BITS: u8 = 16;

    #[inline]
    fn of(bits: u128) -> u128 {
        bits
    }

    #[inline]
    fn of_address(address: IpAddr) -> u128 {
        address_bits(address)
    }

    #[inline]
    fn and(self, mask: u128) -> u128 {
        self & mask
    }

    #[inline]
    fn or(self, mask: u128) -> u128 {
        self | mask
    }

    #[inline]
    fn xor(self, other: u128) -> u128 {
        self ^ other
    }

    #[inline]
    fn hash_pair<H: Hasher>(self, other: u128, state: &mut H) {
        state.write_u128(self);
        state.write_u128(other);
    }
}

/// The fields of a flow, or a mask over them. In a mask, ones are the bits that are looked at; those of
/// `if_id` always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields<A> {
    source: A,
    destination: A,
    /// Source port, then destination port.
    pub(super) ports: u32,
    if_id: u32,
    protocol: u8,
}

impl<A: Address> Hash for Fields<A> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.source.hash_pair(self.destination, state);
        // The protocol disturbs the ports; that two keys hash alike is rare, and costs a comparison.
        let rest = u64::from(self.ports) << 32 | u64::from(self.if_id);
        state.write_u64(rest ^ u64::from(self.protocol) << 24);
    }
}

impl<A: Address> Fields<A> {
    /// The mask that looks at nothing.
    pub(super) fn none() -> Fields<A> {
        Fields { source: A::of(0), destination: A::of(0), ports: 0, if_id: 0, protocol: 0 }
    }

    /// The mask that looks at all that two masks look at.
    pub(super) fn with(&self, other: &Fields<A>) -> Fields<A> {
        Fields {
            source: self.source.or(other.source),
            destination: self.destination.or(other.destination),
            ports: self.ports | other.ports,
            if_id: self.if_id | other.if_id,
            protocol: self.protocol | other.protocol,
        }
    }

    /// Whether two flows differ in nothing that this mask looks at.
    #[inline]
    pub(super) fn same(&self, one: &Fields<A>, other: &Fields<A>) -> bool {
        let addresses = one.source.xor(other.source).and(self.source);
        let addresses = addresses.or(one.destination.xor(other.destination).and(self.destination));
        let rest = (one.ports ^ other.ports) & self.ports
            | u32::from((one.protocol ^ other.protocol) & self.protocol);
        addresses == A::of(0) && rest == 0
    }

    #[inline]
    pub(super) fn of(flow: &Flow, if_id: u32) -> Fields<A> {
        Fields {
            source: A::of_address(flow.src),
            destination: A::of_address(flow.dst),
            ports: u32::from(flow.src_port) << 16 | u32::from(flow.dst_port),
            if_id,
            protocol: flow.protocol,
        }
    }

    fn of_selector(selector: &Selector, if_id: u32) -> Fields<A> {
        Fields {
            source: A::of(address_bits(selector.source.address())),
            destination: A::of(address_bits(selector.destination.address())),
            ports: u32::from(selector.source_port.port) << 16
                | u32::from(selector.destination_port.port),
            if_id,
            protocol: selector.protocol,
        }
    }

    /// The mask of prefixes of two lengths and of a selector's other fields.
    fn mask_of(selector: &Selector, source: u8, destination: u8) -> Fields<A> {
        let family = selector.family();
        Fields {
            source: A::of(prefix_mask(family, source)),
            destination: A::of(prefix_mask(family, destination)),
            ports: u32::from(selector.source_port.mask) << 16
                | u32::from(selector.destination_port.mask),
            if_id: u32::MAX,
            protocol: if selector.protocol == 0 { 0 } else { u8::MAX },
        }
    }

    #[inline]
    pub(super) fn under(&self, mask: &Fields<A>) -> Fields<A> {
        Fields {
            source: self.source.and(mask.source),
            destination: self.destination.and(mask.destination),
            ports: self.ports & mask.ports,
            if_id: self.if_id & mask.if_id,
            protocol: self.protocol & mask.protocol,
        }
    }
}

/// What a policy selects, as bits, and which of its ports count: none in the index for fragments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<A> {
    pub(super) value: Fields<A>,
    pub(super) mask: Fields<A>,
    /// The mask of a merged tuple for it.
    pub(super) merged: Fields<A>,
}

impl<A: Address> Shape<A> {
    pub(super) fn of(config: &PolicyConfig) -> Shape<A> {
        let selector = &config.selector;
        let (source, destination) = (selector.source.len(), selector.destination.len());
        let mask = Fields::mask_of(selector, source, destination);
        let cut = |len: u8| len - len % A::MERGED_BITS;
        let merged = Fields {
            ports: whole_ports(mask.ports),
            ..Fields::mask_of(selector, cut(source), cut(destination))
        };
        let value = Fields::of_selector(selector, config.if_id).under(&mask);
        Shape { value, mask, merged }
    }

    pub(super) fn has_ports(&self) -> bool {
        self.mask.ports != 0
    }

    /// The same for packets whose ports are not known.
    pub(super) fn without_ports(mut self) -> Shape<A> {
        for fields in [&mut self.value, &mut self.mask, &mut self.merged] {
            fields.ports = 0;
        }
        self
    }
}

/// A mask of ports with those left out of which only some bits count.
fn whole_ports(mask: u32) -> u32 {
    [0xffff_0000, 0x0000_ffff].into_iter().filter(|whole| mask & whole == *whole).sum()
}
