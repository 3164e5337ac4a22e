//! The one summary the data path takes of an IP packet: what policies, routes and counters ask
//! for. Called once for every packet; allocates nothing and reads only headers.
//!
//! Odd packets have one defined outcome each:
//!
//! Lengths
//! - Bytes behind the total or payload length (link padding, TFC): accepted; `total_len` says
//!   where the packet ends.
//! - IPv4 total length 0, which is how Linux writes "larger than 65 535" within a host, or below
//!   the header's: [`BadTotalLength`](Malformed::BadTotalLength).
//! - IPv6 payload length 0 in front of hop-by-hop options, or a Jumbo Payload option anywhere:
//!   [`Jumbogram`](Malformed::Jumbogram).
//! - IPv6 of more than 65 535 bytes with its header, as no frame is:
//!   [`BadTotalLength`](Malformed::BadTotalLength).
//! - Transport header cut off before the ports end:
//!   [`TruncatedTransport`](Malformed::TruncatedTransport).
//!
//! Options and extension headers
//! - IPv4 options; IPv6 hop-by-hop options, routing header, destination options: accepted,
//!   `has_options`, counted in `header_len`.
//! - IPv4 or hop-by-hop options of impossible length: [`BadOption`](Malformed::BadOption).
//! - More of them than a packet needs: [`TooManyOptions`](Malformed::TooManyOptions),
//!   [`TooManyExtensions`](Malformed::TooManyExtensions).
//! - Hop-by-hop options not in front, a second fragment header:
//!   [`MisplacedExtension`](Malformed::MisplacedExtension).
//! - Source route with hops left (IPv4 LSRR and SSRR, IPv6 routing type 0):
//!   [`SourceRoute`](Malformed::SourceRoute). Segment routing and other routing types are
//!   accepted; the destination is the next segment.
//! - AH, ESP: they are the protocol; what is behind is not looked at, ports 0.
//!
//! Fragments
//! - First: [`Fragment::First`], with ports; [`TinyFragment`](Malformed::TinyFragment) if its
//!   chain or ports are cut off.
//! - Later: [`Fragment::Later`], ports 0, protocol as IPv4 or the fragment header says. In IPv6
//!   the fragmented part may start with destination options: then those are the protocol.
//! - IPv6 atomic fragment (offset 0 and the last, RFC 6946): [`Fragment::Whole`].
//! - TCP at offset 8 (RFC 3128): [`TinyFragment`](Malformed::TinyFragment).
//! - One that ends beyond 65 535: [`OversizeFragment`](Malformed::OversizeFragment).
//!
//! TTL or hop limit 0 is accepted: a packet for this host may have it, one to forward may not.
//!
//! Not checked here: addresses (martians are routing's matter), transport lengths and
//! checksums (the end points'), and whether fragments overlap (reassembly's).

mod plain;

use core::net::IpAddr;

use crate::ipv6_ext::Chain;
pub use crate::malformed::Malformed;
use crate::{ipv4, ipv6, protocol};

pub use plain::{
    any_header_v4, is_sound_fragment, of_any_v4, of_plain_v4, of_plain_v6, plain_header_v4,
    plain_header_v4_of, plain_header_v6, plain_v4, plain_v6, shows_ports,
};

/// Which part of a packet the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fragment {
    /// All of it.
    Whole,
    /// The first of several parts; it has the ports.
    First,
    /// Any other part; it has no ports.
    Later,
}

/// What a packet is, for policies and routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The address the packet comes from.
    pub src: IpAddr,
    /// The address the packet goes to.
    pub dst: IpAddr,
    /// The protocol behind all extension headers.
    pub protocol: u8,
    /// The source port as an XFRM selector sees it: of TCP, UDP, UDP-Lite, SCTP and DCCP the
    /// port; of ICMP and ICMPv6 the type; of the IPv6 mobility header the type; of GRE with a
    /// key its upper half; else 0. Always 0 in later fragments.
    pub src_port: u16,
    /// The destination port, likewise: of ICMP and ICMPv6 the code, of GRE the key's lower half.
    pub dst_port: u16,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Type of service or traffic class: DSCP and ECN.
    pub tos: u8,
    /// Length in bytes of the IP header with all options and extension headers: where the
    /// transport starts.
    pub header_len: u16,
    /// Length in bytes of the IP packet; what follows it is padding.
    pub total_len: u16,
    /// Which part of a packet this is.
    pub fragment: Fragment,
    /// Whether there are IPv4 options, or IPv6 hop-by-hop options, routing header or destination
    /// options. A fragment header alone does not count: `fragment` tells of it.
    pub has_options: bool,
}

impl Flow {
    /// Whether the packet is IPv6.
    #[inline]
    pub const fn is_ipv6(&self) -> bool {
        self.src.is_ipv6()
    }
}

/// Reads the headers of the IP packet that `l3` starts with. See the list above for what
/// becomes of odd ones.
///
/// 1. A plain packet, as nearly all are, is recognised and read in a few branches.
/// 2. Whatever is not plain, good or bad, is taken step by step.
///
/// # Errors
///
/// What the list above names, [`Malformed::BadVersion`] if it is neither IPv4 nor IPv6, and
/// [`Malformed::Truncated`], [`Malformed::BadHeaderLength`], [`Malformed::BadTotalLength`] or
/// [`Malformed::BadChecksum`] if the IP header is not whole or not true.
#[inline]
pub fn parse(l3: &[u8]) -> Result<Flow, Malformed> {
    let plain = match l3.first().map(|byte| byte >> 4) {
        Some(4) => plain_v4(l3),
        _ => plain_v6(l3),
    };
    match plain {
        Some(flow) => Ok(flow),
        None => parse_steps(l3),
    }
}

/// Does as [`parse`], and writes the summary where the caller wants it, field by field if the packet is
/// plain. A summary that is made elsewhere and moved is read in larger pieces than it was written in,
/// before the processor has stored them; that cost more than all the rest.
///
/// # Errors
/// As [`parse`]; then `into` is as it was.
#[inline(always)]
pub fn parse_into(into: &mut Flow, l3: &[u8]) -> Result<(), Malformed> {
    match l3.first().map(|byte| byte >> 4) {
        Some(4) => {
            if let Some(flow) = plain_v4(l3) {
                *into = flow;
                return Ok(());
            }
        }
        _ => {
            if let Some(flow) = plain_v6(l3) {
                *into = flow;
                return Ok(());
            }
        }
    }
    *into = parse_steps(l3)?;
    Ok(())
}

/// Every packet, step by step. Out of line, so that what it keeps in registers costs the plain
/// packet nothing.
#[inline(never)]
fn parse_steps(l3: &[u8]) -> Result<Flow, Malformed> {
    match l3.first().map(|byte| byte >> 4) {
        Some(4) => parse_v4(l3),
        Some(6) => parse_v6(l3),
        Some(_) => Err(Malformed::BadVersion),
        None => Err(Malformed::Truncated),
    }
}

fn parse_v4(l3: &[u8]) -> Result<Flow, Malformed> {
    let packet = ipv4::Packet::parse(l3)?;
    let header = packet.header;
    let has_options = !packet.option_bytes.is_empty();
    if has_options {
        check_options(&packet)?;
    }
    let fragment = if header.is_fragment() { fragment_v4(&packet)? } else { Fragment::Whole };
    let (src_port, dst_port) = ports(header.protocol(), packet.payload, fragment)?;
    Ok(Flow {
        src: IpAddr::V4(header.source()),
        dst: IpAddr::V4(header.destination()),
        protocol: header.protocol(),
        src_port,
        dst_port,
        ttl: header.ttl(),
        tos: header.tos(),
        header_len: header.header_len() as u16,
        total_len: header.total_len(),
        fragment,
        has_options,
    })
}

fn parse_v6(l3: &[u8]) -> Result<Flow, Malformed> {
    let packet = ipv6::Packet::parse(l3)?;
    let header = packet.header;
    let total_len = (ipv6::HEADER_LEN as u16)
        .checked_add(header.payload_len())
        .ok_or(Malformed::BadTotalLength)?;
    let (chain, fragment) = chain_v6(&packet)?;
    let transport = &packet.payload[chain.len..];
    let (src_port, dst_port) = ports(chain.protocol, transport, fragment)?;
    Ok(Flow {
        src: IpAddr::V6(header.source()),
        dst: IpAddr::V6(header.destination()),
        protocol: chain.protocol,
        src_port,
        dst_port,
        ttl: header.hop_limit(),
        tos: header.traffic_class(),
        header_len: (ipv6::HEADER_LEN + chain.len) as u16,
        total_len,
        fragment,
        has_options: chain.has_options,
    })
}

fn check_options(packet: &ipv4::Packet<'_>) -> Result<(), Malformed> {
    for option in packet.options() {
        if option?.source_route_left() {
            return Err(Malformed::SourceRoute);
        }
    }
    Ok(())
}

/// `packet` is a fragment: which, and is it a possible one?
fn fragment_v4(packet: &ipv4::Packet<'_>) -> Result<Fragment, Malformed> {
    let header = packet.header;
    let offset = header.fragment_offset();
    if header.total_len().checked_add(offset).is_none() {
        return Err(Malformed::OversizeFragment);
    }
    part(offset, header.protocol())
}

fn chain_v6(packet: &ipv6::Packet<'_>) -> Result<(Chain, Fragment), Malformed> {
    let next_header = packet.header.next_header();
    if next_header == protocol::HOP_BY_HOP && packet.payload.is_empty() {
        return Err(Malformed::Jumbogram);
    }
    let chain = Chain::walk(next_header, packet.payload)?;
    let fragment = match chain.fragment {
        Some(fragment) if !fragment.is_atomic() => part(fragment.offset(), chain.protocol)?,
        _ => Fragment::Whole,
    };
    Ok((chain, fragment))
}

/// Which part of a packet a fragment at `offset` bytes is.
fn part(offset: u16, protocol: u8) -> Result<Fragment, Malformed> {
    match offset {
        0 => Ok(Fragment::First),
        // RFC 3128 §3: overlapping the first eight bytes is not needed to forge TCP flags.
        8 if protocol == protocol::TCP => Err(Malformed::TinyFragment),
        _ => Ok(Fragment::Later),
    }
}

/// The ports in `transport`, or why they are not there.
fn ports(protocol: u8, transport: &[u8], fragment: Fragment) -> Result<(u16, u16), Malformed> {
    let found = match fragment {
        Fragment::Later => Some((0, 0)),
        _ => read_ports(protocol, transport),
    };
    found.ok_or(match fragment {
        Fragment::First => Malformed::TinyFragment,
        _ => Malformed::TruncatedTransport,
    })
}

/// Two 16-bit numbers at the start of `bytes`.
fn pair(bytes: &[u8]) -> Option<(u16, u16)> {
    let [a, b, c, d] = *bytes.first_chunk()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

fn read_ports(protocol: u8, transport: &[u8]) -> Option<(u16, u16)> {
    match protocol {
        protocol::TCP | protocol::UDP | protocol::UDP_LITE | protocol::SCTP | protocol::DCCP => {
            pair(transport)
        }
        protocol::ICMP | protocol::ICMPV6 => {
            let [kind, code] = *transport.first_chunk()?;
            Some((kind.into(), code.into()))
        }
        protocol::MOBILITY => transport.get(2).map(|kind| (u16::from(*kind), 0)),
        protocol::GRE => gre_key(transport),
        _ => Some((0, 0)),
    }
}

/// The key of GRE version 0 (RFC 2890 §2) in two halves; zero without one.
fn gre_key(transport: &[u8]) -> Option<(u16, u16)> {
    const CHECKSUM: u8 = 0x80;
    let [flags, version, _, _] = *transport.first_chunk()?;
    match has_gre_key(u16::from_be_bytes([flags, version])) {
        true => pair(transport.get(if flags & CHECKSUM != 0 { 8 } else { 4 }..)?),
        false => Some((0, 0)),
    }
}

/// Whether there is a key in GRE that begins with this word.
#[inline(always)]
const fn has_gre_key(flags_and_version: u16) -> bool {
    const KEY: u16 = 0x2000;
    const VERSION: u16 = 0x0007;
    flags_and_version & (KEY | VERSION) == KEY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Overlay;

    use crate::ipv6_ext;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use proptest::prelude::*;

    /// An empty UDP datagram marked for expedited forwarding, and two bytes of link padding.
    const PACKET_BYTES: [u8; 30] = [
        0x45, 0xb8, 0x00, 0x1c, 0x1c, 0x46, 0x40, 0x00, 0x40, 0x11, 0x61, 0xb0, 0xac, 0x11, 0x00,
        0x02, 0x08, 0x08, 0x08, 0x08, 0xd4, 0x31, 0x00, 0x35, 0x00, 0x08, 0x00, 0x00, 0xaa, 0xaa,
    ];

    const A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const B: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
    const A6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    const B6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 2);

    /// An IPv4 packet; `fragment` is the raw field of flags and offset.
    fn v4(protocol: u8, fragment: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let total_len = (20 + options.len() + payload.len()) as u16;
        let mut packet = vec![0; 20];
        ipv4::Template::new(A, B, protocol, 64)
            .stamp(total_len, 1, 0, false)
            .emit(&mut packet)
            .unwrap();
        packet[0] += (options.len() / 4) as u8;
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet.extend(options);
        packet[10..12].fill(0);
        let checksum = crate::checksum::of(&packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        packet.extend(payload);
        packet
    }

    fn v6(next_header: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 40];
        let template = ipv6::Template::new(A6, B6, next_header, 64);
        template.stamp(payload.len() as u16, 0, 0).emit(&mut packet).unwrap();
        packet.extend(payload);
        packet
    }

    fn fragment(next_header: u8, offset: u16, more: bool) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        ipv6_ext::Fragment::new(next_header, offset, more, 7).emit(&mut bytes).unwrap();
        bytes
    }

    fn ports_of(packet: &[u8]) -> Result<(u16, u16), Malformed> {
        parse(packet).map(|flow| (flow.src_port, flow.dst_port))
    }

    #[test]
    fn packet_bytes() {
        let expected = Flow {
            src: IpAddr::V4(Ipv4Addr::new(172, 17, 0, 2)),
            dst: IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8)),
            protocol: protocol::UDP,
            src_port: 54321,
            dst_port: 53,
            ttl: 64,
            tos: 0xb8,
            header_len: 20,
            total_len: 28,
            fragment: Fragment::Whole,
            has_options: false,
        };
        assert_eq!(parse(&PACKET_BYTES), Ok(expected));
        assert!(!expected.is_ipv6());
        for len in 0..28 {
            assert_eq!(parse(&PACKET_BYTES[..len]), Err(Malformed::Truncated), "{len}");
        }
    }

    #[test]
    fn ipv6_with_and_without_options() {
        let flow = parse(&v6(protocol::TCP, &[0, 80, 1, 0])).unwrap();
        assert_eq!((flow.src, flow.dst), (A6.into(), B6.into()));
        assert_eq!((flow.src_port, flow.dst_port, flow.header_len), (80, 256, 40));
        assert!(flow.is_ipv6() && !flow.has_options);
        let flow = parse(&v6(60, &[17, 0, 1, 4, 0, 0, 0, 0, 0, 80, 1, 0])).unwrap();
        assert_eq!((flow.protocol, flow.src_port, flow.header_len), (protocol::UDP, 80, 48));
        assert_eq!((flow.total_len, flow.has_options), (52, true));
    }

    #[test]
    fn ports_as_selectors_see_them() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        for number in [6, 17, 33, 132, 136] {
            assert_eq!(ports_of(&v4(number, 0, &[], &bytes)), Ok((0x0102, 0x0304)), "{number}");
            assert_eq!(ports_of(&v6(number, &bytes)), Ok((0x0102, 0x0304)), "{number}");
        }
        assert_eq!(ports_of(&v4(protocol::ICMP, 0, &[], &bytes)), Ok((1, 2)));
        assert_eq!(ports_of(&v6(protocol::ICMPV6, &bytes)), Ok((1, 2)));
        assert_eq!(ports_of(&v6(protocol::MOBILITY, &bytes)), Ok((3, 0)));
        for number in [protocol::ESP, protocol::AH, protocol::NO_NEXT_HEADER, protocol::IPV4, 255] {
            assert_eq!(ports_of(&v4(number, 0, &[], &bytes)), Ok((0, 0)), "{number}");
            assert_eq!(ports_of(&v6(number, &bytes)), Ok((0, 0)), "{number}");
        }
    }

    #[test]
    fn gre_keys() {
        let gre = |flags, version, len| {
            let bytes = [flags, version, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8];
            ports_of(&v4(protocol::GRE, 0, &[], &bytes[..len]))
        };
        assert_eq!(gre(0x20, 0, 8), Ok((0x0102, 0x0304)));
        assert_eq!(gre(0xa0, 0, 12), Ok((0x0506, 0x0708)));
        assert_eq!(gre(0x80, 0, 4), Ok((0, 0)));
        assert_eq!(gre(0x20, 1, 4), Ok((0, 0)), "version 1 has no key in this sense");
        for (flags, len) in [(0, 3), (0x20, 7), (0xa0, 7), (0xa0, 11)] {
            assert_eq!(gre(flags, 0, len), Err(Malformed::TruncatedTransport), "{flags} {len}");
        }
    }

    #[test]
    fn transport_cut_off() {
        for (number, len) in [(6, 3), (17, 3), (132, 0), (1, 1), (58, 0), (135, 2)] {
            let packet = v4(number, 0, &[], &vec![1; len]);
            assert_eq!(parse(&packet), Err(Malformed::TruncatedTransport), "{number}");
            let packet = v6(number, &vec![1; len]);
            assert_eq!(parse(&packet), Err(Malformed::TruncatedTransport), "{number}");
            let first = v4(number, 0x2000, &[], &vec![1; len]);
            assert_eq!(parse(&first), Err(Malformed::TinyFragment), "{number}");
        }
    }

    #[test]
    fn fragments_v4() {
        let part = |fragment| parse(&v4(17, fragment, &[], &[1; 16]));
        let kind = |fragment| part(fragment).map(|flow| (flow.fragment, flow.src_port));
        assert_eq!(kind(0x2000), Ok((Fragment::First, 0x0101)));
        assert_eq!(kind(0x2001), Ok((Fragment::Later, 0)));
        assert_eq!(kind(0x0001), Ok((Fragment::Later, 0)));
        assert_eq!(kind(0x4000), Ok((Fragment::Whole, 0x0101)));
        assert_eq!(kind(0x8000), Ok((Fragment::Whole, 0x0101)), "the reserved flag means nothing");
        assert_eq!(kind(0x1fff), Err(Malformed::OversizeFragment));
        // Header, offset and 16 bytes make 65 532, and one offset further 65 540.
        assert_eq!(kind(8187), Ok((Fragment::Later, 0)));
        assert_eq!(kind(8188), Err(Malformed::OversizeFragment));
        assert_eq!(parse(&v4(6, 0x2001, &[], &[1; 16])), Err(Malformed::TinyFragment));
        assert!(parse(&v4(6, 0x2002, &[], &[1; 16])).is_ok());
    }

    #[test]
    fn fragments_v6() {
        let part = |next_header, offset, more, payload: &[u8]| {
            let flow = parse(&v6(44, &[&fragment(next_header, offset, more), payload].concat()));
            flow.map(|flow| (flow.fragment, flow.protocol, flow.src_port, flow.header_len))
        };
        assert_eq!(part(17, 0, true, &[1; 8]), Ok((Fragment::First, 17, 0x0101, 48)));
        assert_eq!(part(17, 8, true, &[1; 8]), Ok((Fragment::Later, 17, 0, 48)));
        assert_eq!(part(60, 1448, false, &[1; 3]), Ok((Fragment::Later, 60, 0, 48)));
        assert_eq!(part(17, 0, false, &[1; 8]), Ok((Fragment::Whole, 17, 0x0101, 48)));
        assert_eq!(part(17, 0, false, &[1; 3]), Err(Malformed::TruncatedTransport));
        assert_eq!(part(17, 0, true, &[1; 3]), Err(Malformed::TinyFragment));
        assert_eq!(part(60, 0, true, &[17, 1, 0, 0]), Err(Malformed::TinyFragment));
        assert_eq!(part(6, 8, false, &[1; 8]), Err(Malformed::TinyFragment));
        assert_eq!(part(17, 65_528, false, &[1; 8]), Err(Malformed::OversizeFragment));
        assert!(!parse(&v6(44, &[fragment(59, 0, true), vec![]].concat())).unwrap().has_options);
    }

    #[test]
    fn options_v4() {
        let parse = |options: &[u8]| parse(&v4(17, 0, options, &[1; 8]));
        let flow = parse(&[148, 4, 0, 0]).unwrap();
        assert_eq!((flow.header_len, flow.src_port, flow.has_options), (24, 0x0101, true));
        assert_eq!(parse(&[148, 5, 0, 0]), Err(Malformed::BadOption));
        assert_eq!(parse(&[1, 131, 7, 4, 10, 0, 0, 1]), Err(Malformed::SourceRoute));
        assert_eq!(parse(&[1, 137, 7, 4, 10, 0, 0, 1]), Err(Malformed::SourceRoute));
        assert!(parse(&[1, 131, 7, 8, 10, 0, 0, 1]).is_ok());
    }

    #[test]
    fn lengths_and_versions() {
        assert_eq!(parse(&[]), Err(Malformed::Truncated));
        assert_eq!(parse(&[0x50; 60]), Err(Malformed::BadVersion));
        let mut jumbo = v4(17, 0, &[], &[1; 8]);
        jumbo[2..4].fill(0);
        assert_eq!(parse(&jumbo), Err(Malformed::BadTotalLength));
        let mut short_header = v4(17, 0, &[], &[1; 8]);
        short_header[0] = 0x44;
        assert_eq!(parse(&short_header), Err(Malformed::BadHeaderLength));
        let mut jumbo = v6(0, &[17, 0, 0xc2, 4, 0, 1, 0, 0]);
        assert_eq!(parse(&jumbo), Err(Malformed::Jumbogram));
        jumbo[5] = 0;
        assert_eq!(parse(&jumbo), Err(Malformed::Jumbogram));
        assert_eq!(parse(&v6(59, &[])).unwrap().total_len, 40);
        assert_eq!(parse(&v6(17, &[])), Err(Malformed::TruncatedTransport));
        // The largest packet there is, and one byte more.
        assert_eq!(parse(&v6(59, &[0; 65_495])).unwrap().total_len, 65_535);
        assert_eq!(parse(&v6(59, &[0; 65_496])), Err(Malformed::BadTotalLength));
    }

    proptest! {
        /// The stupid twin: a plain packet, whole, damaged or cut, must come out of the short way
        /// as it comes out of the steps.
        #[test]
        fn the_short_way_is_only_shorter(
            is_v6: bool, protocol in prop_oneof![prop::sample::select(vec![6u8, 17, 50, 1, 58, 47]), any::<u8>()],
            payload in prop::collection::vec(any::<u8>(), 0..12), tos: u8,
            damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
            mend: bool, cut in 0usize..4,
        ) {
            let mut packet =
                if is_v6 { v6(protocol, &payload) } else { v4(protocol, 0, &[], &payload) };
            packet[1] = tos;
            if let Some((at, byte)) = damage {
                let at = at.index(packet.len());
                packet[at] = byte;
            }
            if mend && !is_v6 {
                packet[10..12].fill(0);
                let checksum = crate::checksum::of(&packet[..20]);
                packet[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            let bytes = &packet[..packet.len() - cut.min(packet.len())];
            prop_assert_eq!(parse(bytes), parse_steps(bytes));
        }
    }

    proptest! {
        /// A fragment with a plain header is summarised as it is step by step; what is none, or is not sound, has none.
        #[test]
        fn fragments_with_plain_headers_are_what_they_are_step_by_step(
            protocol in prop_oneof![prop::sample::select(vec![6u8, 17, 50, 1, 47, 135]), any::<u8>()],
            offset in prop_oneof![Just(0), Just(1), 0u16..0x2000], more: bool, dont: bool,
            payload in prop::collection::vec(any::<u8>(), 0..12), cut in 0usize..4,
            damage in prop::option::weighted(0.3, (0usize..20, any::<u8>())), mend: bool,
        ) {
            let bits = offset | u16::from(more) << 13 | u16::from(dont) << 14;
            let mut packet = v4(protocol, bits, &[], &payload);
            if let Some((at, byte)) = damage {
                packet[at] = byte;
                if mend {
                    packet[10..12].fill(0);
                    let checksum = crate::checksum::of(&packet[..20]);
                    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
                }
            }
            let bytes = &packet[..packet.len() - cut];
            let is_fragment = |flow: &Flow| flow.fragment != Fragment::Whole;
            let steps = parse_steps(bytes).ok().filter(is_fragment);
            let header = any_header_v4(bytes, || is_sound_fragment(bytes));
            let short = header.filter(ipv4::Plain::is_fragment).map(|header| of_any_v4(&header));
            prop_assert!(short.is_none() || short == steps, "{short:?} {steps:?}");
            // Those that take the short way are nearly all.
            let is_long = |flow: &Flow| flow.total_len >= 24 && !flow.has_options;
            let is_rare = matches!(packet[9], 0 | 43 | 44 | 47 | 60 | 135);
            prop_assert_eq!(short.is_some() || is_rare, steps.is_some_and(|flow| is_long(&flow)) || is_rare);
        }
    }

    #[test]
    fn no_hops_left_is_for_the_forwarder_to_refuse() {
        let mut packet = v6(17, &[1; 8]);
        packet[7] = 0;
        assert_eq!(parse(&packet).unwrap().ttl, 0);
    }
}
