//! IPv4 (RFC 791): header, options, checksum. Reassembly and fragmenting are not done here, and
//! options are only checked for shape; what an option means for forwarding is the caller's
//! choice, except that [`Opt::source_route_left`] tells where the destination is not final.

mod plain;

use core::net::Ipv4Addr;

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::{self, Sum};
use crate::{Malformed, Overlay};

pub use plain::Plain;

/// Length in bytes of the header without options.
pub const HEADER_LEN: usize = 20;

const _: () = assert!(size_of::<Header>() == HEADER_LEN);

/// Version 4 and a header of five 32-bit words: the first byte of nearly every packet.
const VERSION_IHL_PLAIN: u8 = 0x45;

/// In the word of flags and offset: routers must not fragment.
pub const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

/// The fixed part of the header.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Header {
    version_ihl: u8,
    tos: u8,
    total_len: U16,
    id: U16,
    fragment: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    source: [u8; 4],
    destination: [u8; 4],
}

impl Overlay for Header {}

impl Header {
    /// The version field; 4 in any header that [`Packet::parse`] accepted.
    #[inline]
    pub const fn version(&self) -> u8 {
        self.version_ihl >> 4
    }

    /// Length of the header with its options, in bytes.
    #[inline]
    pub const fn header_len(&self) -> usize {
        (self.version_ihl & 0x0f) as usize * 4
    }

    /// The type of service byte: DSCP (RFC 2474) and ECN (RFC 3168).
    #[inline]
    pub const fn tos(&self) -> u8 {
        self.tos
    }

    /// Length of the packet, header included, in bytes.
    #[inline]
    pub fn total_len(&self) -> u16 {
        self.total_len.get()
    }

    /// The identification, which names the packet its fragments belong to.
    #[inline]
    pub fn id(&self) -> u16 {
        self.id.get()
    }

    /// Whether routers must not fragment the packet.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.fragment.get() & DONT_FRAGMENT != 0
    }

    /// Where the payload stands in the whole packet's payload, in bytes, at most 65 528.
    #[inline]
    pub fn fragment_offset(&self) -> u16 {
        (self.fragment.get() & OFFSET_MASK) << 3
    }

    /// Whether the packet is one fragment of several.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment.get() & (MORE_FRAGMENTS | OFFSET_MASK) != 0
    }

    /// Time to live.
    #[inline]
    pub const fn ttl(&self) -> u8 {
        self.ttl
    }

    /// The protocol of the payload.
    #[inline]
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The header checksum as it stands.
    #[inline]
    pub fn checksum(&self) -> u16 {
        self.checksum.get()
    }

    /// The address the packet comes from.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.source)
    }

    /// The address the packet goes to.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.destination)
    }

    /// Takes one from the time to live and mends the checksum. `false`, and nothing changed, if
    /// the packet has no hop left (RFC 1812 §5.3.1: a TTL of 0 or 1 is not forwarded).
    #[inline]
    #[must_use = "a packet without hops left must not be forwarded"]
    pub fn decrement_ttl(&mut self) -> bool {
        if self.ttl <= 1 {
            return false;
        }
        // TTL is the upper half of its word, so the word falls by 0x100 whatever the protocol, and its
        // checksum rises by that, with one carry at most; all ones and zero add alike, and zero is what is
        // sent. The sum is the same in either byte order (RFC 1071 §2.B), so nothing is swapped.
        let sum = u16::from_ne_bytes(self.checksum.to_bytes());
        let sum = u32::from(sum) + u32::from(0x100u16.to_be());
        let sum = (sum + u32::from(sum >= 0xffff)) as u16;
        self.checksum = U16::from_bytes(sum.to_ne_bytes());
        self.ttl -= 1;
        true
    }

    /// Changes what the packet carries, and its length, and mends the checksum.
    #[inline]
    pub fn set_payload(&mut self, protocol: u8, total_len: u16) {
        let word = |protocol| u16::from_be_bytes([self.ttl, protocol]);
        let (old, new) = (word(self.protocol), word(protocol));
        let sum = checksum::update(self.checksum.get(), old, new);
        let sum = checksum::update(sum, self.total_len.get(), total_len);
        self.checksum = U16::new(sum);
        self.protocol = protocol;
        self.total_len = U16::new(total_len);
    }

    /// Changes the type of service byte and mends the checksum.
    #[inline]
    pub fn set_tos(&mut self, tos: u8) {
        let word = |tos| u16::from_be_bytes([self.version_ihl, tos]);
        let (old, new) = (word(self.tos), word(tos));
        self.checksum = U16::new(checksum::update(self.checksum.get(), old, new));
        self.tos = tos;
    }
}

/// Takes one from the time to live of the packet in `bytes` and mends its checksum. `false`, and
/// nothing changed, if there is no hop left or no whole header.
#[inline]
#[must_use = "a packet without hops left must not be forwarded"]
pub fn decrement_ttl(bytes: &mut [u8]) -> bool {
    Header::over_mut(bytes).is_ok_and(|(header, _)| header.decrement_ttl())
}

/// Puts the right checksum into the header of the packet in `bytes`, whatever else of it is wrong. `false`, and
/// nothing changed, if there is no whole header of version 4, options included.
///
/// For who changes more than the methods of [`Header`] do, and has the time to sum it all: benches and tests.
///
/// ```
/// let mut bytes = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
/// assert!(wire::ipv4::Packet::parse(&bytes).is_err());
/// assert!(wire::ipv4::mend_checksum(&mut bytes));
/// assert!(wire::ipv4::Packet::parse(&bytes).is_ok());
/// assert!(!wire::ipv4::mend_checksum(&mut bytes[..19]));
/// ```
pub fn mend_checksum(bytes: &mut [u8]) -> bool {
    let Some(first) = bytes.first() else { return false };
    let (version, header_len) = (first >> 4, usize::from(first & 0x0f) * 4);
    match bytes.get_mut(..header_len) {
        Some(header) if version == 4 && header_len >= HEADER_LEN => {
            header[10..12].fill(0);
            let sum = checksum::of(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            true
        }
        _ => false,
    }
}

/// A packet whose lengths and header checksum hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The fixed part of the header.
    pub header: &'a Header,
    /// The options, zero to 40 bytes, not yet checked: see [`Packet::options`].
    pub option_bytes: &'a [u8],
    /// What the packet carries, without the bytes that may follow its total length.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks what RFC 1812 §5.2.2 asks of a router: enough bytes for a header, checksum,
    /// version 4, header length at least five words, total length at least the header's. The
    /// total length must be there; bytes after it are link padding and are ignored.
    ///
    /// # Errors
    ///
    /// Of each of these its own: [`Malformed::Truncated`], [`Malformed::BadChecksum`],
    /// [`Malformed::BadVersion`], [`Malformed::BadHeaderLength`], [`Malformed::BadTotalLength`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let (header, _) = Header::over(bytes)?;
        if header.version() != 4 {
            return Err(Malformed::BadVersion);
        }
        let header_len = header.header_len();
        let total_len = usize::from(header.total_len());
        if header_len < HEADER_LEN {
            return Err(Malformed::BadHeaderLength);
        }
        if total_len < header_len {
            return Err(Malformed::BadTotalLength);
        }
        let packet = bytes.get(..total_len).ok_or(Malformed::Truncated)?;
        let (head, payload) = packet.split_at(header_len);
        let option_bytes = &head[HEADER_LEN..];
        if Sum::ZERO.bytes(head).checksum() != 0 {
            return Err(Malformed::BadChecksum);
        }
        Ok(Packet { header, option_bytes, payload })
    }

    /// The options one by one.
    #[inline]
    pub const fn options(&self) -> Options<'a> {
        Options { rest: self.option_bytes }
    }
}

/// One option that is not padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opt<'a> {
    /// The type byte: copied flag, class and number.
    pub kind: u8,
    /// What follows the type and length bytes.
    pub data: &'a [u8],
}

impl Opt<'_> {
    /// Loose source route.
    pub const LOOSE_SOURCE_ROUTE: u8 = 131;
    /// Strict source route.
    pub const STRICT_SOURCE_ROUTE: u8 = 137;

    /// Whether the option is a source route whose pointer is not yet past its end (RFC 791
    /// §3.1): the destination address is then only the next stop.
    #[inline]
    pub fn source_route_left(&self) -> bool {
        let is_route = matches!(self.kind, Opt::LOOSE_SOURCE_ROUTE | Opt::STRICT_SOURCE_ROUTE);
        // The pointer counts from the type byte, from one; the data start at the third byte.
        is_route && self.data.first().is_some_and(|at| usize::from(*at) <= self.data.len() + 2)
    }
}

/// Iterator over the options of a packet. After an error it ends.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<Opt<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        const END: u8 = 0;
        const NO_OPERATION: u8 = 1;
        while let [NO_OPERATION, rest @ ..] = self.rest {
            self.rest = rest;
        }
        let (kind, len) = match *self.rest {
            [] | [END, ..] => return None,
            [_] => (0, 0),
            [kind, len, ..] => (kind, usize::from(len)),
        };
        let option = self.rest.get(2..len);
        self.rest = self.rest.get(len..).unwrap_or(&[]);
        match option {
            Some(data) => Some(Ok(Opt { kind, data })),
            None => {
                self.rest = &[];
                Some(Err(Malformed::BadOption))
            }
        }
    }
}

/// A header of twenty bytes in which only length, identification, type of service and the
/// don't-fragment bit are open: the outer header of a tunnel. The sum of all that is fixed is
/// taken once, so that a packet costs a few additions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    /// TTL, protocol, and in place of the checksum the sum of all that is fixed.
    middle: u32,
    /// Source and destination.
    ends: [[u8; 4]; 2],
}

impl Template {
    /// A template for packets from `source` to `destination`.
    pub const fn new(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, ttl: u8) -> Template {
        let kind = (ttl as u32) << 24 | (protocol as u32) << 16;
        let sum = Sum::ZERO.long(kind).long(source.to_bits()).long(destination.to_bits());
        let ends = [source.octets(), destination.octets()];
        Template { middle: kind | sum.fold() as u32, ends }
    }

    /// The address that packets come from.
    #[inline]
    pub const fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::from_be_bytes(self.ends[0]))
    }

    /// The address that packets go to.
    #[inline]
    pub const fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::from_be_bytes(self.ends[1]))
    }

    /// Writes what [`stamp`](Template::stamp) returns, put together in registers and stored in three pieces:
    /// made elsewhere and copied, it would be read in larger pieces than it was written in.
    #[inline(always)]
    pub fn stamp_onto(
        &self,
        bytes: &mut [u8; HEADER_LEN],
        total_len: u16,
        id: u16,
        tos: u8,
        dont_fragment: bool,
    ) {
        let fragment = if dont_fragment { DONT_FRAGMENT } else { 0 };
        let first = u64::from(VERSION_IHL_PLAIN) << 56
            | u64::from(tos) << 48
            | u64::from(total_len) << 32
            | u64::from(id) << 16
            | u64::from(fragment);
        let checksum = Sum::ZERO.word(self.middle as u16).long_long(first).checksum();
        let (front, ends) = bytes.split_at_mut(12);
        let (one, two) = front.split_at_mut(8);
        one.copy_from_slice(&first.to_be_bytes());
        two.copy_from_slice(&(self.middle >> 16 << 16 | u32::from(checksum)).to_be_bytes());
        ends.copy_from_slice(self.ends.as_flattened());
    }

    /// The header of one packet, checksum included. `total_len` counts the header too.
    #[inline]
    pub fn stamp(&self, total_len: u16, id: u16, tos: u8, dont_fragment: bool) -> Header {
        let mut bytes = [0; HEADER_LEN];
        self.stamp_onto(&mut bytes, total_len, id, tos, dont_fragment);
        zerocopy::transmute!(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An empty UDP datagram to a DNS server, followed by two bytes of link padding.
    const PACKET_BYTES: [u8; 30] = [
        0x45, 0x00, 0x00, 0x1c, 0x1c, 0x46, 0x40, 0x00, 0x40, 0x11, 0x62, 0x68, 0xac, 0x11, 0x00,
        0x02, 0x08, 0x08, 0x08, 0x08, 0xd4, 0x31, 0x00, 0x35, 0x00, 0x08, 0x00, 0x00, 0xaa, 0xaa,
    ];

    /// The same with eight bytes of options: no-operation, a loose source route of one hop with
    /// its pointer at `pointer`.
    fn with_route(pointer: u8) -> Vec<u8> {
        let mut bytes = PACKET_BYTES[..20].to_vec();
        bytes.extend([1, 131, 7, pointer, 10, 0, 0, 1]);
        bytes.extend(&PACKET_BYTES[20..]);
        bytes[0] = 0x47;
        bytes[3] += 8;
        resum(&mut bytes, 28);
        bytes
    }

    fn resum(bytes: &mut [u8], header_len: usize) {
        bytes[10..12].fill(0);
        let checksum = checksum::of(&bytes[..header_len]);
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    }

    #[test]
    fn packet_bytes() {
        let packet = Packet::parse(&PACKET_BYTES).unwrap();
        let header = packet.header;
        assert_eq!((header.version(), header.header_len(), header.tos()), (4, 20, 0));
        assert_eq!((header.total_len(), header.id(), header.checksum()), (28, 0x1c46, 0x6268));
        assert_eq!((header.ttl(), header.protocol()), (64, 17));
        assert_eq!(header.source(), Ipv4Addr::new(172, 17, 0, 2));
        assert_eq!(header.destination(), Ipv4Addr::new(8, 8, 8, 8));
        assert!(header.dont_fragment() && !header.is_fragment());
        assert_eq!(packet.payload, &PACKET_BYTES[20..28], "padding is not payload");
        assert_eq!(packet.options().next(), None);
    }

    #[test]
    fn each_rule_of_rfc_1812() {
        let broken = |at: usize, value: u8| {
            let mut bytes = PACKET_BYTES;
            bytes[at] = value;
            Packet::parse(&bytes).map(|_| ())
        };
        assert_eq!(Packet::parse(&PACKET_BYTES[..19]), Err(Malformed::Truncated));
        assert_eq!(Packet::parse(&PACKET_BYTES[..27]), Err(Malformed::Truncated));
        assert_eq!(broken(0, 0x65), Err(Malformed::BadVersion));
        assert_eq!(broken(0, 0x44), Err(Malformed::BadHeaderLength));
        assert_eq!(broken(0, 0x48), Err(Malformed::BadTotalLength));
        assert_eq!(broken(3, 0), Err(Malformed::BadTotalLength));
        assert_eq!(broken(2, 0xff), Err(Malformed::Truncated));
        assert_eq!(broken(8, 63), Err(Malformed::BadChecksum));
    }

    #[test]
    fn options_and_source_routes() {
        let bytes = with_route(4);
        let packet = Packet::parse(&bytes).unwrap();
        let options: Vec<_> = packet.options().collect();
        let route = Opt { kind: 131, data: &[4, 10, 0, 0, 1] };
        assert_eq!(options, [Ok(route)]);
        assert!(route.source_route_left());
        assert!(Opt { data: &[7, 10, 0, 0, 1], ..route }.source_route_left(), "7 is the last byte");
        let done = with_route(8);
        let option = Packet::parse(&done).unwrap().options().next().unwrap().unwrap();
        assert!(!option.source_route_left());
        assert!(!Opt { kind: 7, ..route }.source_route_left());
    }

    #[test]
    fn options_of_impossible_length() {
        for bytes in [&[7u8][..], &[7, 0, 0, 0], &[7, 1, 0, 0], &[7, 5, 0, 0], &[1, 1, 7, 3]] {
            let all: Vec<_> = Options { rest: bytes }.collect();
            assert_eq!(all, [Err(Malformed::BadOption)], "{bytes:?}");
        }
        assert_eq!(Options { rest: &[1, 1, 0, 7] }.count(), 0, "nothing counts after the end");
        assert_eq!(Options { rest: &[148, 4, 0, 0, 7, 2] }.count(), 2);
    }

    #[test]
    fn ttl_stops_at_one() {
        for ttl in [0, 1] {
            let mut bytes = PACKET_BYTES;
            bytes[8] = ttl;
            let before = bytes;
            assert!(!decrement_ttl(&mut bytes));
            assert_eq!(bytes, before);
        }
        assert!(!decrement_ttl(&mut [0x45; 19]));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(packet) = Packet::parse(&bytes) {
                prop_assert!(packet.options().count() <= 20);
            }
        }

        #[test]
        fn stamped_headers_parse_back(
            source: u32, destination: u32, protocol: u8, ttl: u8, payload_len in 0u16..1500,
            id: u16, tos: u8, dont_fragment: bool,
        ) {
            let (source, destination) = (Ipv4Addr::from(source), Ipv4Addr::from(destination));
            let template = Template::new(source, destination, protocol, ttl);
            let total_len = payload_len + 20;
            let header = template.stamp(total_len, id, tos, dont_fragment);
            let mut bytes = vec![0; usize::from(total_len)];
            header.emit(&mut bytes).unwrap();
            let packet = Packet::parse(&bytes).unwrap();
            prop_assert_eq!(packet.header, &header);
            prop_assert_eq!((header.source(), header.destination()), (source, destination));
            prop_assert_eq!((header.protocol(), header.ttl()), (protocol, ttl));
            prop_assert_eq!((header.total_len(), header.id()), (total_len, id));
            prop_assert_eq!((header.tos(), header.dont_fragment()), (tos, dont_fragment));
            let mut in_place = bytes.clone();
            in_place[..20].fill(0xa5);
            let place = in_place.first_chunk_mut().unwrap();
            template.stamp_onto(place, total_len, id, tos, dont_fragment);
            prop_assert_eq!(&in_place, &bytes);
            prop_assert!(!header.is_fragment());
            prop_assert_eq!(packet.payload.len(), usize::from(payload_len));
        }

        #[test]
        fn plain_headers_are_what_they_are_field_by_field(mut bytes: [u8; Plain::LEN]) {
            bytes[0] = 0x45;
            (bytes[6], bytes[7]) = (bytes[6] & 0x40, 0);
            resum(&mut bytes, HEADER_LEN);
            let (plain, again) = (Plain::read(&bytes).unwrap(), Plain::reread(&bytes));
            prop_assert_eq!(plain.ends(), again.ends());
            let (header, carried) = Header::over(&bytes).unwrap();
            prop_assert_eq!(plain.dont_fragment(), header.dont_fragment());
            prop_assert_eq!((plain.tos(), plain.ttl()), (header.tos(), header.ttl()));
            prop_assert_eq!(plain.total_len(), header.total_len());
            let ports = u32::from_be_bytes(carried.try_into().unwrap());
            let [source, destination] = [header.source(), header.destination()].map(u32::from);
            let [mask, every] = Plain::ends_of(u8::MAX, u32::MAX, u32::MAX, u32::MAX);
            let [second, third] = plain.ends();
            let ends = Plain::ends_of(header.protocol(), source, destination, ports);
            prop_assert_eq!([second & mask, third & every], ends);
            let mut forwarded = bytes;
            let has_hops = decrement_ttl(&mut forwarded);
            let taken = plain.take_hop(bytes.first_chunk_mut().unwrap());
            prop_assert_eq!(taken.is_some(), has_hops);
            prop_assert_eq!(bytes, forwarded);
        }

        #[test]
        fn a_hop_is_taken_whatever_the_checksum(mut bytes: [u8; Plain::LEN]) {
            // Carries come where sums end, so each sum has its turn.
            for sum in 0..=u16::MAX {
                bytes[10..12].copy_from_slice(&sum.to_be_bytes());
                let (mut taken, mut forwarded) = (bytes, bytes);
                forwarded[0] = 0x45;
                let has_hops = decrement_ttl(&mut forwarded);
                let hop = Plain::reread(&bytes).take_hop(taken.first_chunk_mut().unwrap());
                prop_assert_eq!(hop.is_some(), has_hops);
                prop_assert_eq!(&taken[1..], &forwarded[1..]);
            }
        }

        #[test]
        fn changes_in_place_keep_the_full_checksum(mut bytes: [u8; 20], tos: u8) {
            bytes[0] = 0x45;
            resum(&mut bytes, 20);
            let (old_ttl, mut twin) = (bytes[8], bytes);
            let forwarded = decrement_ttl(&mut bytes);
            prop_assert_eq!(forwarded, old_ttl > 1);
            Header::over_mut(&mut bytes).unwrap().0.set_tos(tos);
            twin[8] -= u8::from(forwarded);
            twin[1] = tos;
            resum(&mut twin, 20);
            prop_assert_eq!(bytes, twin);
        }
    }
}
