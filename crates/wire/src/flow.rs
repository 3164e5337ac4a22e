//! The one summary the data path takes of an IP packet: what policies, routes and counters ask
//! for. Called once for every packet; allocates nothing and reads only headers.
//!
//! Odd packets have one defined outcome each:
//!
//! | packet | outcome |
//! |---|---|
//! | bytes after the total or payload length (link padding, TFC) | accepted; `total_len` says where the packet ends |
//! | IPv4 total length 0, or below the header's | `BadTotalLength` (zero is how Linux writes "larger than 65 535" inside one host) |
//! | IPv6 payload length 0 in front of hop-by-hop options | `Jumbogram` |
//! | IPv6 Jumbo Payload option with a payload length | `Jumbogram` |
//! | IPv6 of more than 65 535 bytes, header included | `BadTotalLength`; no frame is that large |
//! | IPv4 options, well formed | accepted, `has_options` |
//! | IPv4 options or hop-by-hop options of impossible length | `BadOption` |
//! | IPv6 hop-by-hop, routing, destination options | accepted, `has_options`; counted in `header_len` |
//! | source route with hops left (IPv4 LSRR and SSRR, IPv6 type 0) | `SourceRoute` |
//! | segment routing and other routing types | accepted, `has_options`; the destination is the next segment |
//! | hop-by-hop options not in front, second fragment header | `MisplacedExtension` |
//! | more than eight extension headers | `TooManyExtensions` |
//! | first fragment | `First`, with ports; `TinyFragment` if its chain or ports are cut off |
//! | later fragment | `Later`, ports 0; protocol as IPv4 or the fragment header says |
//! | later fragment of IPv6 behind further extension headers | as above, so the protocol may be that of an extension header |
//! | IPv6 atomic fragment (offset 0, last) | `Whole` |
//! | TCP fragment at offset 8 | `TinyFragment` (RFC 3128) |
//! | fragment that ends beyond 65 535 | `OversizeFragment` |
//! | AH, ESP | the protocol; what is behind is not looked at, ports 0 |
//! | transport header cut off before the ports end | `TruncatedTransport` |
//! | TTL or hop limit 0 | accepted: a packet for this host may have it, one to forward may not |
//!
//! Not checked here: addresses (martians are routing's matter), transport lengths and
//! checksums (the end points'), and whether fragments overlap (reassembly's).

use core::net::IpAddr;

use crate::ipv6_ext::Chain;
pub use crate::malformed::Malformed;
use crate::{ipv4, ipv6, protocol};

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

/// Reads the headers of the IP packet that `l3` starts with. See the table above for what
/// becomes of odd ones.
#[inline]
pub fn parse(l3: &[u8]) -> Result<Flow, Malformed> {
    match l3.first().map(|byte| byte >> 4) {
        Some(4) => parse_v4(l3),
        Some(6) => parse_v6(l3),
        Some(_) => Err(Malformed::BadVersion),
        None => Err(Malformed::Truncated),
    }
}

#[inline]
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

#[inline]
fn parse_v6(l3: &[u8]) -> Result<Flow, Malformed> {
    let packet = ipv6::Packet::parse(l3)?;
    let header = packet.header;
    let total_len = (ipv6::HEADER_LEN as u16)
        .checked_add(header.payload_len())
        .ok_or(Malformed::BadTotalLength)?;
    let (chain, fragment) = match header.next_header() {
        protocol::TCP | protocol::UDP | protocol::ESP => {
            (Chain { protocol: header.next_header(), ..Chain::default() }, Fragment::Whole)
        }
        _ => chain_v6(&packet)?,
    };
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

#[cold]
fn check_options(packet: &ipv4::Packet<'_>) -> Result<(), Malformed> {
    for option in packet.options() {
        if option?.source_route_left() {
            return Err(Malformed::SourceRoute);
        }
    }
    Ok(())
}

/// `packet` is a fragment: which, and is it a possible one?
#[cold]
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
#[inline]
fn ports(protocol: u8, transport: &[u8], fragment: Fragment) -> Result<(u16, u16), Malformed> {
    if fragment == Fragment::Later {
        return Ok((0, 0));
    }
    let found = match protocol {
        protocol::TCP | protocol::UDP => pair(transport),
        protocol::ESP => return Ok((0, 0)),
        _ => rare_ports(protocol, transport),
    };
    found.ok_or(match fragment {
        Fragment::First => Malformed::TinyFragment,
        _ => Malformed::TruncatedTransport,
    })
}

/// Two 16-bit numbers at the start of `bytes`.
#[inline]
fn pair(bytes: &[u8]) -> Option<(u16, u16)> {
    let [a, b, c, d] = *bytes.first_chunk()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

fn rare_ports(protocol: u8, transport: &[u8]) -> Option<(u16, u16)> {
    match protocol {
        protocol::UDP_LITE | protocol::SCTP | protocol::DCCP => pair(transport),
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
    const KEY: u8 = 0x20;
    const VERSION: u8 = 0x07;
    let [flags, version, _, _] = *transport.first_chunk()?;
    match flags & KEY != 0 && version & VERSION == 0 {
        true => pair(transport.get(if flags & CHECKSUM != 0 { 8 } else { 4 }..)?),
        false => Some((0, 0)),
    }
}
