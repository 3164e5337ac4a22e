//! What policies look at in a flow, as bits and masks over them.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use wire::flow::Flow;

use super::{Policy, PolicyConfig, Words};
use crate::prefix::address_bits;

/// To what multiple of bits ranges of ports are cut in masks that others can share. Were they left out, all that differ in
/// nothing else would lie in one place.
const PORT_CUT: u32 = 4;

/// Address bits, in the width of their family.
pub(crate) trait Address: Copy + Eq + std::fmt::Debug {
    const BITS: u32;

    /// To what multiples of bits prefixes are cut in masks that others can share: the coarsest first.
    const CUTS: [u8; 3];

    /// Whether a policy has room for what it selects in the line that decides.
    const TELLS: bool;

    /// What a policy selects, if it tells.
    fn told_by(policy: &Policy) -> Option<Shape<Self>>;

    /// Whether a policy that tells what it selects selects a flow.
    fn is_told(policy: &Policy, flow: &Fields<Self>) -> bool;

    fn of(bits: u128) -> Self;

    /// The mask of a prefix.
    fn prefix(len: u8) -> Self;

    /// The first bits, so many, at the end; none is zero.
    fn first(self, len: u8) -> Self;

    /// The bits of an address; of one of the other family some bits.
    fn of_address(address: IpAddr) -> Self;

    /// The address of bits.
    fn address(self) -> IpAddr;
    fn and(self, mask: Self) -> Self;
    fn or(self, mask: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn hash_fields<H: Hasher>(fields: &Fields<Self>, state: &mut H);
}

impl Address for u32 {
    const BITS: u32 = u32::BITS;
    const CUTS: [u8; 3] = [16, 8, 4];
    const TELLS: bool = true;

    fn told_by(policy: &Policy) -> Option<Shape<u32>> {
        policy.shape()
    }

    #[inline(always)]
    fn is_told(policy: &Policy, flow: &Fields<u32>) -> bool {
        policy.selects_briefly(Words::of(flow), flow.if_id)
    }

    #[inline(always)]
    fn of(bits: u128) -> u32 {
        bits as u32
    }

    #[inline]
    fn prefix(len: u8) -> u32 {
        (u64::MAX << ((32 - len) & 63)) as u32
    }

    #[inline(always)]
    fn first(self, len: u8) -> u32 {
        (u64::from(self) >> ((32 - len) & 63)) as u32
    }

    #[inline(always)]
    fn of_address(address: IpAddr) -> u32 {
        match address {
            IpAddr::V4(v4) => v4.to_bits(),
            IpAddr::V6(_) => 0,
        }
    }

    #[inline(always)]
    fn address(self) -> IpAddr {
        IpAddr::V4(self.into())
    }

    #[inline(always)]
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

    #[inline(always)]
    fn hash_fields<H: Hasher>(fields: &Fields<u32>, state: &mut H) {
        // The number of a tunnel disturbs the ports; that two keys hash alike is rare, and costs a comparison.
        let Words([second, third]) = Words::of(fields);
        state.write_u64(second);
        state.write_u64(third ^ u64::from(fields.if_id) << 32);
    }
}

impl Address for u128 {
    const BITS: u32 = u128::BITS;
    const CUTS: [u8; 3] = [32, 16, 8];
    const TELLS: bool = false;

    fn told_by(_: &Policy) -> Option<Shape<u128>> {
        None
    }

    fn is_told(_: &Policy, _: &Fields<u128>) -> bool {
        false
    }

    #[inline]
    fn of(bits: u128) -> u128 {
        bits
    }

    #[inline]
    fn prefix(len: u8) -> u128 {
        if len == 0 { 0 } else { u128::MAX << ((128 - len) & 127) }
    }

    #[inline(always)]
    fn first(self, len: u8) -> u128 {
        if len == 0 { 0 } else { self >> ((128 - len) & 127) }
    }

    #[inline(always)]
    fn of_address(address: IpAddr) -> u128 {
        address_bits(address)
    }

    #[inline(always)]
    fn address(self) -> IpAddr {
        IpAddr::V6(self.into())
    }

    #[inline(always)]
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

    #[inline(always)]
    fn hash_fields<H: Hasher>(fields: &Fields<u128>, state: &mut H) {
        state.write_u128(fields.source);
        state.write_u128(fields.destination);
        // As above, of the protocol.
        let rest = u64::from(fields.ports) << 32 | u64::from(fields.if_id);
        state.write_u64(rest ^ u64::from(fields.protocol) << 24);
    }
}

/// The fields of a flow, or a mask over them. In a mask, ones are the bits that are looked at; those of
/// `if_id` always are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<A> {
    pub(crate) source: A,
    pub(crate) destination: A,
    /// Source port, then destination port.
    pub(crate) ports: u32,
    pub(super) if_id: u32,
    pub(crate) protocol: u8,
}

impl<A: Address> PartialEq for Fields<A> {
    /// Not one field after the other: a table compares keys of which nobody can foresee which is meant.
    #[inline(always)]
    fn eq(&self, other: &Fields<A>) -> bool {
        let addresses = self.source.xor(other.source).or(self.destination.xor(other.destination));
        let protocol = u32::from(self.protocol ^ other.protocol);
        let rest = (self.ports ^ other.ports) | (self.if_id ^ other.if_id) | protocol;
        (addresses == A::of(0)) & (rest == 0)
    }
}

impl<A: Address> Eq for Fields<A> {}

impl<A: Address> Hash for Fields<A> {
    #[inline(always)]
    fn hash<H: Hasher>(&self, state: &mut H) {
        A::hash_fields(self, state);
    }
}

impl<A: Address> Fields<A> {
    /// The mask that looks at nothing.
    pub(crate) fn none() -> Fields<A> {
        Fields { source: A::of(0), destination: A::of(0), ports: 0, if_id: 0, protocol: 0 }
    }

    /// The mask that looks at a destination's first bits, so many.
    pub(crate) fn of_destination(len: u32) -> Fields<A> {
        Fields { destination: A::prefix(len.min(A::BITS) as u8), ..Fields::none() }
    }

    /// The same of a source.
    pub(crate) fn of_source(len: u32) -> Fields<A> {
        Fields { source: A::prefix(len.min(A::BITS) as u8), ..Fields::none() }
    }

    /// Whether this mask looks at the first byte of both addresses.
    pub(crate) fn has_beginnings(&self) -> bool {
        let beginning = A::prefix(u8::BITS as u8);
        self.source.and(self.destination).and(beginning) == beginning
    }

    /// Whether a mask looks at nothing but whose tunnel it is.
    pub(crate) fn is_of_tunnels(&self) -> bool {
        *self == Fields { if_id: self.if_id, ..Fields::none() }
    }

    /// The mask that looks at all that two masks look at.
    pub(crate) fn with(&self, other: &Fields<A>) -> Fields<A> {
        Fields {
            source: self.source.or(other.source),
            destination: self.destination.or(other.destination),
            ports: self.ports | other.ports,
            if_id: self.if_id | other.if_id,
            protocol: self.protocol | other.protocol,
        }
    }

    /// Whether two flows of one family differ in nothing that this mask looks at. Where they are told apart it
    /// is mostly by their destinations.
    #[inline]
    pub(crate) fn same(&self, one: &Flow, other: &Flow) -> bool {
        let differ = |one, other, mask: A| {
            A::of_address(one).xor(A::of_address(other)).and(mask) != A::of(0)
        };
        if differ(one.dst, other.dst, self.destination) || differ(one.src, other.src, self.source) {
            return false;
        }
        let (one, other) = (Fields::<A>::of(one, 0), Fields::<A>::of(other, 0));
        let rest = (one.ports ^ other.ports) & self.ports
            | u32::from((one.protocol ^ other.protocol) & self.protocol);
        rest == 0
    }

    #[inline(always)]
    pub(crate) fn of(flow: &Flow, if_id: u32) -> Fields<A> {
        Fields {
            source: A::of_address(flow.src),
            destination: A::of_address(flow.dst),
            ports: u32::from(flow.src_port) << 16 | u32::from(flow.dst_port),
            if_id,
            protocol: flow.protocol,
        }
    }

    #[inline(always)]
    pub(crate) fn under(&self, mask: &Fields<A>) -> Fields<A> {
        Fields {
            source: self.source.and(mask.source),
            destination: self.destination.and(mask.destination),
            ports: self.ports & mask.ports,
            if_id: self.if_id & mask.if_id,
            protocol: self.protocol & mask.protocol,
        }
    }
}

/// What a policy selects, in as few bytes as can be: which bits of its fields count the lengths of its
/// prefixes say. A protocol of 0 is any, and an `if_id` always counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape<A> {
    pub(crate) source: A,
    pub(crate) destination: A,
    pub(crate) ports: u32,
    pub(crate) port_mask: u32,
    pub(crate) if_id: u32,
    pub(crate) source_len: u8,
    pub(crate) destination_len: u8,
    pub(crate) protocol: u8,
}

impl<A: Address> Hash for Shape<A> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.value().hash(state);
        state.write_u32(u32::from(self.source_len) << 8 | u32::from(self.destination_len));
        state.write_u32(self.port_mask);
    }
}

impl<A: Address> Shape<A> {
    pub(crate) fn of(config: &PolicyConfig) -> Shape<A> {
        let selector = &config.selector;
        let pair = |source, destination| u32::from(source) << 16 | u32::from(destination);
        let port_mask = pair(selector.source_port.mask, selector.destination_port.mask);
        Shape {
            source: A::of(address_bits(selector.source.address())),
            destination: A::of(address_bits(selector.destination.address())),
            ports: pair(selector.source_port.port, selector.destination_port.port) & port_mask,
            port_mask,
            if_id: config.if_id,
            source_len: selector.source.len(),
            destination_len: selector.destination.len(),
            protocol: selector.protocol,
        }
    }

    /// Whether a flow is selected.
    #[inline(always)]
    pub(crate) fn selects(&self, flow: &Fields<A>) -> bool {
        let source = self.source.xor(flow.source).first(self.source_len);
        let destination = self.destination.xor(flow.destination).first(self.destination_len);
        let protocol = self.protocol ^ if self.protocol == 0 { 0 } else { flow.protocol };
        let rest =
            (self.ports ^ flow.ports) & self.port_mask | self.if_id ^ flow.if_id | protocol as u32;
        source.or(destination) == A::of(0) && rest == 0
    }

    /// Its fields, of which the bits count that [`mask`](Shape::mask) says.
    pub(crate) fn value(&self) -> Fields<A> {
        Fields {
            source: self.source,
            destination: self.destination,
            ports: self.ports,
            if_id: self.if_id,
            protocol: self.protocol,
        }
    }

    /// The bits that count.
    pub(crate) fn mask(&self) -> Fields<A> {
        self.mask_of(self.source_len, self.destination_len)
    }

    /// Masks that see no more than it does, the coarsest first: at first only addresses count, and the last
    /// is its own.
    pub(crate) fn masks(&self) -> [Fields<A>; 5] {
        let [coarse, middle, fine] = A::CUTS.map(|bits| {
            let cut = |len: u8| len - len % bits;
            let mask = self.mask_of(cut(self.source_len), cut(self.destination_len));
            Fields { ports: cut_ports(mask.ports), ..mask }
        });
        let of_addresses = |mask: Fields<A>| Fields { ports: 0, protocol: 0, ..mask };
        [of_addresses(coarse), of_addresses(middle), middle, fine, self.mask()]
    }

    fn mask_of(&self, source_len: u8, destination_len: u8) -> Fields<A> {
        Fields {
            source: A::prefix(source_len),
            destination: A::prefix(destination_len),
            ports: self.port_mask,
            if_id: u32::MAX,
            protocol: if self.protocol == 0 { 0 } else { u8::MAX },
        }
    }

    pub(crate) fn has_ports(&self) -> bool {
        self.port_mask != 0
    }

    /// The same for packets whose ports are not known.
    pub(crate) fn without_ports(self) -> Shape<A> {
        Shape { ports: 0, port_mask: 0, ..self }
    }
}

/// A mask of ports with the first bits of each that count, cut to a multiple of [`PORT_CUT`].
fn cut_ports(mask: u32) -> u32 {
    let cut = |mask: u32| {
        let len = mask.leading_ones();
        (u64::MAX << (32 - (len - len % PORT_CUT))) as u32
    };
    cut(mask & 0xffff_0000) | cut(mask << 16) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_cut_to_ranges_that_others_have_too() {
        let cut = [
            (0, 0),
            (0xffff_ffff, 0xffff_ffff),
            (0xfffe_e000, 0xfff0_0000),
            (0x0000_fff0, 0x0000_fff0),
            (0xffc0_fe00, 0xff00_f000),
            // What no prefix says.
            (0x7fff_0001, 0),
            (0xf00f_0000, 0xf000_0000),
        ];
        assert_eq!(cut.map(|(mask, _)| cut_ports(mask)), cut.map(|(_, cut)| cut));
    }
}
