//! Headers as nearly all are, of either family: what asks no more of packets than what these show is written once for both.

use wire::ethernet::EtherType;
use wire::flow::{self, Flow};
use wire::{esp, ipv4, ipv6, protocol};

use crate::envelope::InnerHeader;
use crate::policy::{Address, Fields};
use crate::prefix::Family;
use crate::spd::Side;

/// The longest of them, in bytes.
pub(crate) const HEADER_LEN_MAX: usize = ipv6::HEADER_LEN;

/// The header of a whole packet without options or extension headers, of a protocol that most packets have, and the four bytes
/// behind it.
pub(crate) trait PlainHeader: Copy {
    const FAMILY: Family;
    /// What says so in front of it on a link.
    const ETHERTYPE: EtherType;

    /// The bits of an address.
    type Bits: Address;
    /// What tells packets of different flows apart, as it stands in the header.
    type Ends: Copy + AsRef<[u64]>;

    /// The header of a packet, if it is so plain and sound.
    #[inline(always)]
    fn read(packet: &[u8]) -> Option<Self> {
        Self::read_any(packet, || false)
    }

    /// The same also of a fragment that is as plain but for that, if any of the family is and `may_be` says so.
    fn read_any(packet: &[u8], may_be: impl FnOnce() -> bool) -> Option<Self>;

    /// The same of one that was found to be so before.
    fn reread(packet: &[u8]) -> Option<Self>;

    /// The packet that is in a plaintext with the least padding there can be, if it is of the family.
    fn within(plaintext: &[u8]) -> Option<&[u8]>;

    /// The summary of the packet, which is whole.
    fn flow(&self) -> Flow;

    /// The summary of a packet that may be a fragment, if [`read_any`](PlainHeader::read_any) reads such.
    #[inline(always)]
    fn any_flow(&self) -> Flow {
        self.flow()
    }

    /// Length of the packet in bytes.
    fn total_len(&self) -> u16;

    fn protocol(&self) -> u8;

    /// Time to live, or hop limit.
    fn hops(&self) -> u8;

    /// Where the packet goes.
    fn destination(&self) -> Self::Bits;

    /// Every bit that policies of a side, outside of route mode, look at in flows of the family.
    fn seen<'a>(side: &Side<'a>) -> &'a Fields<Self::Bits>;

    /// What of a flow, or of a mask over it, stands where in a header.
    fn ends_of(fields: &Fields<Self::Bits>) -> Self::Ends;

    /// Its ends under a mask.
    fn ends_under(&self, mask: &Self::Ends) -> Self::Ends;

    /// Whether it has other ends under a mask.
    fn differs(&self, ends: &Self::Ends, mask: &Self::Ends) -> bool;

    /// What an envelope takes over from it.
    fn inner(&self) -> InnerHeader;

    /// Takes a hop from the packet that begins with this header. `None`, and no change, if it has none left.
    #[must_use = "a packet without a hop left is not forwarded"]
    fn take_hop_of(&self, packet: &mut [u8]) -> Option<()>;
}

impl PlainHeader for ipv4::Plain {
    const FAMILY: Family = Family::V4;
    const ETHERTYPE: EtherType = EtherType::IPV4;

    type Bits = u32;
    type Ends = [u64; 2];

    #[inline(always)]
    fn read_any(packet: &[u8], may_be: impl FnOnce() -> bool) -> Option<ipv4::Plain> {
        flow::any_header_v4(packet, may_be)
    }

    #[inline(always)]
    fn reread(packet: &[u8]) -> Option<ipv4::Plain> {
        packet.first_chunk().map(ipv4::Plain::reread)
    }

    #[inline(always)]
    fn within(plaintext: &[u8]) -> Option<&[u8]> {
        esp::short_payload::<{ protocol::IPV4 }>(plaintext)
    }

    #[inline(always)]
    fn flow(&self) -> Flow {
        flow::of_plain_v4(self)
    }

    #[inline(always)]
    fn any_flow(&self) -> Flow {
        flow::of_any_v4(self)
    }

    #[inline(always)]
    fn total_len(&self) -> u16 {
        self.total_len()
    }

    #[inline(always)]
    fn protocol(&self) -> u8 {
        self.protocol()
    }

    #[inline(always)]
    fn hops(&self) -> u8 {
        self.ttl()
    }

    #[inline(always)]
    fn destination(&self) -> u32 {
        self.destination().to_bits()
    }

    fn seen<'a>(side: &Side<'a>) -> &'a Fields<u32> {
        side.seen_v4()
    }

    fn ends_of(fields: &Fields<u32>) -> [u64; 2] {
        let (source, destination) = (fields.source, fields.destination);
        ipv4::Plain::ends_of(fields.protocol, source, destination, fields.ports)
    }

    #[inline(always)]
    fn ends_under(&self, mask: &[u64; 2]) -> [u64; 2] {
        let [second, third] = self.ends();
        [second & mask[0], third & mask[1]]
    }

    #[inline(always)]
    fn differs(&self, ends: &[u64; 2], mask: &[u64; 2]) -> bool {
        let [second, third] = self.ends();
        (second ^ ends[0]) & mask[0] | (third ^ ends[1]) & mask[1] != 0
    }

    #[inline(always)]
    fn inner(&self) -> InnerHeader {
        InnerHeader::of_v4(self)
    }

    #[inline(always)]
    fn take_hop_of(&self, packet: &mut [u8]) -> Option<()> {
        self.take_hop(packet.first_chunk_mut()?)
    }
}

impl PlainHeader for ipv6::Plain {
    const FAMILY: Family = Family::V6;
    const ETHERTYPE: EtherType = EtherType::IPV6;

    type Bits = u128;
    type Ends = [u64; 6];

    /// Fragments have an extension header.
    #[inline(always)]
    fn read_any(packet: &[u8], _: impl FnOnce() -> bool) -> Option<ipv6::Plain> {
        flow::plain_header_v6(packet)
    }

    #[inline(always)]
    fn reread(packet: &[u8]) -> Option<ipv6::Plain> {
        packet.first_chunk().map(ipv6::Plain::reread)
    }

    #[inline(always)]
    fn within(plaintext: &[u8]) -> Option<&[u8]> {
        esp::short_payload::<{ protocol::IPV6 }>(plaintext)
    }

    #[inline(always)]
    fn flow(&self) -> Flow {
        flow::of_plain_v6(self)
    }

    #[inline(always)]
    fn total_len(&self) -> u16 {
        ipv6::HEADER_LEN as u16 + self.payload_len()
    }

    #[inline(always)]
    fn protocol(&self) -> u8 {
        self.next_header()
    }

    #[inline(always)]
    fn hops(&self) -> u8 {
        self.hop_limit()
    }

    #[inline(always)]
    fn destination(&self) -> u128 {
        self.destination().to_bits()
    }

    fn seen<'a>(side: &Side<'a>) -> &'a Fields<u128> {
        side.seen_v6()
    }

    fn ends_of(fields: &Fields<u128>) -> [u64; 6] {
        let (source, destination) = (fields.source, fields.destination);
        ipv6::Plain::ends_of(fields.protocol, source, destination, fields.ports)
    }

    #[inline(always)]
    fn ends_under(&self, mask: &[u64; 6]) -> [u64; 6] {
        let own = self.ends();
        std::array::from_fn(|at| own[at] & mask[at])
    }

    #[inline(always)]
    fn differs(&self, ends: &[u64; 6], mask: &[u64; 6]) -> bool {
        let own = self.ends();
        (0..own.len()).fold(0, |differ, at| differ | (own[at] ^ ends[at]) & mask[at]) != 0
    }

    #[inline(always)]
    fn inner(&self) -> InnerHeader {
        InnerHeader::of_v6(self)
    }

    #[inline(always)]
    fn take_hop_of(&self, packet: &mut [u8]) -> Option<()> {
        self.take_hop(packet.first_chunk_mut()?)
    }
}
