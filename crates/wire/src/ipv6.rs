//! IPv6 (RFC 8200): the fixed header. Extension headers are in [`ipv6_ext`](crate::ipv6_ext).
//! Jumbograms (RFC 2675) are not supported.

mod plain;

use core::net::Ipv6Addr;

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Malformed, Overlay};

pub use plain::Plain;

/// Length in bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

const _: () = assert!(size_of::<Header>() == HEADER_LEN);

const CLASS_SHIFT: u32 = 20;
const FLOW_LABEL_MASK: u32 = 0x000f_ffff;

/// The fixed header.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Header {
    version_class_flow: U32,
    payload_len: U16,
    next_header: u8,
    hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

impl Overlay for Header {}

impl Header {
    /// The version field; 6 in any header that [`Packet::parse`] accepted.
    #[inline]
    pub fn version(&self) -> u8 {
        (self.version_class_flow.get() >> 28) as u8
    }

    /// DSCP (RFC 2474) and ECN (RFC 3168): what IPv4 calls type of service.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.version_class_flow.get() >> CLASS_SHIFT) as u8
    }

    /// The flow label, 20 bits (RFC 6437).
    #[inline]
    pub fn flow_label(&self) -> u32 {
        self.version_class_flow.get() & FLOW_LABEL_MASK
    }

    /// Length in bytes of all that follows this header, extension headers included.
    #[inline]
    pub fn payload_len(&self) -> u16 {
        self.payload_len.get()
    }

    /// What follows this header: an extension header or a protocol.
    #[inline]
    pub const fn next_header(&self) -> u8 {
        self.next_header
    }

    /// Hops left.
    #[inline]
    pub const fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// The address the packet comes from.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.source)
    }

    /// The address the packet goes to.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.destination)
    }

    /// Takes one from the hop limit. `false`, and nothing changed, if the packet has no hop left
    /// (RFC 8200 §3: it is discarded when the limit was zero or becomes zero).
    #[inline]
    #[must_use = "a packet without hops left must not be forwarded"]
    pub fn decrement_hop_limit(&mut self) -> bool {
        if self.hop_limit <= 1 {
            return false;
        }
        self.hop_limit -= 1;
        true
    }

    /// Changes the length of what follows the fixed header.
    #[inline]
    pub fn set_payload_len(&mut self, payload_len: u16) {
        self.payload_len = U16::new(payload_len);
    }

    /// Changes the traffic class. There is no checksum to mend.
    #[inline]
    pub fn set_traffic_class(&mut self, class: u8) {
        let rest = self.version_class_flow.get() & !(0xff << CLASS_SHIFT);
        self.version_class_flow = U32::new(rest | u32::from(class) << CLASS_SHIFT);
    }
}

/// Takes one from the hop limit of the packet in `bytes`. `false`, and nothing changed, if there
/// is no hop left or no whole header.
#[inline]
#[must_use = "a packet without hops left must not be forwarded"]
pub fn decrement_hop_limit(bytes: &mut [u8]) -> bool {
    Header::over_mut(bytes).is_ok_and(|(header, _)| header.decrement_hop_limit())
}

/// A packet whose lengths hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The fixed header.
    pub header: &'a Header,
    /// What the packet carries, extension headers included, without the bytes that may follow
    /// its payload length.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks version and payload length; bytes after it are link padding and are ignored.
    ///
    /// # Errors
    ///
    /// [`Malformed::BadVersion`], or [`Malformed::Truncated`] if the header or any of the payload is
    /// missing.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let (header, rest) = Header::over(bytes)?;
        if header.version() != 6 {
            return Err(Malformed::BadVersion);
        }
        let payload_len = usize::from(header.payload_len());
        let payload = rest.get(..payload_len).ok_or(Malformed::Truncated)?;
        Ok(Packet { header, payload })
    }
}

/// A header in which only length, traffic class and flow label are open: the outer header of a
/// tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    header: Header,
}

impl Template {
    /// The address that packets come from.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        self.header.source()
    }

    /// The address that packets go to.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        self.header.destination()
    }

    /// A template for packets from `source` to `destination`.
    pub fn new(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        next_header: u8,
        hop_limit: u8,
    ) -> Template {
        let header = Header {
            version_class_flow: U32::ZERO,
            payload_len: U16::ZERO,
            next_header,
            hop_limit,
            source: source.octets(),
            destination: destination.octets(),
        };
        Template { header }
    }

    /// The header of one packet. `payload_len` does not count the header; of `flow_label` the
    /// lower 20 bits are used.
    #[inline]
    pub fn stamp(&self, payload_len: u16, traffic_class: u8, flow_label: u32) -> Header {
        let class = u32::from(traffic_class) << CLASS_SHIFT;
        Header {
            version_class_flow: U32::new(6 << 28 | class | flow_label & FLOW_LABEL_MASK),
            payload_len: U16::new(payload_len),
            ..self.header
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A router solicitation, followed by two bytes of link padding.
    const PACKET_BYTES: [u8; 50] = [
        0x6b, 0x80, 0x12, 0x34, 0x00, 0x08, 0x3a, 0xff, 0xfe, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x42, 0xac, 0xff, 0xfe, 0x11, 0x00, 0x02, 0xff, 0x02, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x85, 0x00, 0x7d, 0x38, 0x00,
        0x00, 0x00, 0x00, 0xaa, 0xaa,
    ];

    #[test]
    fn packet_bytes() {
        let packet = Packet::parse(&PACKET_BYTES).unwrap();
        let header = packet.header;
        assert_eq!((header.version(), header.traffic_class()), (6, 0xb8));
        assert_eq!((header.flow_label(), header.payload_len()), (0x01234, 8));
        assert_eq!((header.next_header(), header.hop_limit()), (58, 255));
        assert_eq!(header.source(), "fe80::42:acff:fe11:2".parse::<Ipv6Addr>().unwrap());
        assert_eq!(header.destination(), "ff02::2".parse::<Ipv6Addr>().unwrap());
        assert_eq!(packet.payload, &PACKET_BYTES[40..48], "padding is not payload");
    }

    #[test]
    fn malformed_packets() {
        assert_eq!(Packet::parse(&PACKET_BYTES[..39]), Err(Malformed::Truncated));
        assert_eq!(Packet::parse(&PACKET_BYTES[..47]), Err(Malformed::Truncated));
        let mut bytes = PACKET_BYTES;
        bytes[0] = 0x4b;
        assert_eq!(Packet::parse(&bytes), Err(Malformed::BadVersion));
    }

    #[test]
    fn hop_limit_stops_at_one() {
        for (before, after) in [(0, None), (1, None), (2, Some(1)), (255, Some(254))] {
            let mut bytes = PACKET_BYTES;
            bytes[7] = before;
            assert_eq!(decrement_hop_limit(&mut bytes), after.is_some());
            assert_eq!(bytes[7], after.unwrap_or(before));
        }
        assert!(!decrement_hop_limit(&mut [0x60; 39]));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Packet::parse(&bytes);
        }

        #[test]
        fn plain_headers_are_what_they_are_field_by_field(mut bytes: [u8; Plain::LEN]) {
            prop_assert_eq!(Plain::read(&bytes).is_some(), bytes[0] >> 4 == 6);
            bytes[0] = 0x60 | bytes[0] & 0xf;
            let (plain, again) = (Plain::read(&bytes).unwrap(), Plain::reread(&bytes));
            prop_assert_eq!(plain.ends(), again.ends());
            let (header, carried) = Header::over(&bytes).unwrap();
            prop_assert_eq!(plain.traffic_class(), header.traffic_class());
            prop_assert_eq!(plain.flow_label(), header.flow_label());
            prop_assert_eq!(plain.payload_len(), header.payload_len());
            prop_assert_eq!(plain.next_header(), header.next_header());
            prop_assert_eq!(plain.hop_limit(), header.hop_limit());
            prop_assert_eq!(plain.source(), header.source());
            prop_assert_eq!(plain.destination(), header.destination());
            let ports = u32::from_be_bytes(carried.try_into().unwrap());
            let (source_port, destination_port) = plain.ports();
            let pair = u32::from(source_port) << 16 | u32::from(destination_port);
            prop_assert_eq!(pair, ports);
            let mask = Plain::ends_of(u8::MAX, u128::MAX, u128::MAX, u32::MAX);
            let [source, destination] = [header.source(), header.destination()].map(u128::from);
            let ends = Plain::ends_of(header.next_header(), source, destination, ports);
            let own = plain.ends();
            prop_assert_eq!(std::array::from_fn(|at| own[at] & mask[at]), ends);
            let mut forwarded = bytes;
            let has_hops = decrement_hop_limit(&mut forwarded);
            let taken = plain.take_hop(bytes.first_chunk_mut().unwrap());
            prop_assert_eq!(taken.is_some(), has_hops);
            prop_assert_eq!(bytes, forwarded);
        }

        #[test]
        fn stamped_headers_parse_back(
            source: u128, destination: u128, next_header: u8, hop_limit: u8,
            payload_len in 0u16..1500, class: u8, new_class: u8, label in 0u32..1 << 20,
        ) {
            let (source, destination) = (Ipv6Addr::from(source), Ipv6Addr::from(destination));
            let template = Template::new(source, destination, next_header, hop_limit);
            let header = template.stamp(payload_len, class, label | 0xfff0_0000);
            let mut bytes = vec![0; usize::from(payload_len) + HEADER_LEN];
            header.emit(&mut bytes).unwrap();
            let packet = Packet::parse(&bytes).unwrap();
            prop_assert_eq!(packet.header, &header);
            prop_assert_eq!((header.source(), header.destination()), (source, destination));
            prop_assert_eq!((header.next_header(), header.hop_limit()), (next_header, hop_limit));
            prop_assert_eq!((header.traffic_class(), header.flow_label()), (class, label));
            prop_assert_eq!(packet.payload.len(), usize::from(payload_len));
            Header::over_mut(&mut bytes).unwrap().0.set_traffic_class(new_class);
            let twin = template.stamp(payload_len, new_class, label);
            prop_assert_eq!(Packet::parse(&bytes).unwrap().header, &twin);
        }
    }
}
