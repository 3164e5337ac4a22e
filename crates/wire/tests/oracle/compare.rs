//! Reads the same bytes with `wire` and with etherparse, an independent parser, and tells
//! agreement from the differences that are meant. Shared by the property tests beside it and by
//! the fuzz target `frame`.

use etherparse::{
    Icmpv4Slice, Icmpv6Slice, IpSlice, LaxSlicedPacket, TcpHeaderSlice, UdpHeaderSlice,
};
use wire::flow::{self, Flow, Fragment};
use wire::{Malformed, protocol, vlan};

/// What `wire` does otherwise, on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// `wire` refuses, for this reason, what etherparse does not check.
    Stricter(Malformed),
    /// IPv6 payload length zero means no payload; etherparse takes all bytes for a jumbogram's.
    ZeroLength,
    /// To `wire` AH is a protocol; etherparse reads on behind it.
    BehindAh,
    /// To `wire` the chain ends at the header of a later fragment, because what follows is
    /// data; etherparse reads on.
    BehindLaterFragment,
    /// etherparse takes apart 0x9100 tags and MACsec; to `wire` they are payload.
    OtherTags,
}

/// Both parsers agree, or differ as meant; anything else is an error in words.
pub type Comparison = Result<Option<Difference>, String>;

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, ours: T, theirs: T) -> Result<(), String> {
    if ours == theirs { Ok(()) } else { Err(format!("{what}: ours {ours:?}, theirs {theirs:?}")) }
}

/// Compares Ethernet header and VLAN tags.
pub fn link(frame: &[u8]) -> Comparison {
    let (ours, theirs) = (vlan::Packet::parse(frame), LaxSlicedPacket::from_ethernet(frame));
    let packet = match (ours, &theirs) {
        (Err(Malformed::Truncated), Err(_)) => return Ok(None),
        (Err(Malformed::Truncated), Ok(theirs)) if theirs.stop_err.is_some() => return Ok(None),
        (Err(Malformed::TooManyTags), Ok(theirs)) if theirs.vlan_ids().len() >= 2 => {
            return Ok(Some(Difference::Stricter(Malformed::TooManyTags)));
        }
        (Ok(packet), Ok(_)) => packet,
        (ours, theirs) => return Err(format!("ours {ours:?}, theirs {theirs:?}")),
    };
    if matches!(packet.ethertype.0, 0x9100 | 0x88e5) {
        return Ok(Some(Difference::OtherTags));
    }
    let theirs = theirs.map_err(|error| error.to_string())?;
    let payload = theirs.ether_payload().ok_or("theirs has no payload")?;
    let tags: Vec<u16> = theirs.vlan_ids().iter().map(|id| id.value()).collect();
    let ours: Vec<u16> =
        [packet.outer, packet.inner].into_iter().flatten().map(|tag| tag.vlan()).collect();
    expect("tags", ours, tags)?;
    expect("EtherType", packet.ethertype.0, payload.ether_type.0)?;
    expect("link payload", packet.payload, payload.payload)?;
    expect("link length", packet.header_len, frame.len() - payload.payload.len())?;
    Ok(None)
}

/// Compares IP headers, extension headers and ports.
pub fn ip(l3: &[u8]) -> Comparison {
    match (flow::parse(l3), IpSlice::from_slice(l3)) {
        (Err(_), Err(_)) => Ok(None),
        (Err(_), Ok(_)) if is_zero_length(l3) => Ok(Some(Difference::ZeroLength)),
        (Err(reason), Ok(theirs)) if is_justified(reason, l3, &theirs) => {
            Ok(Some(Difference::Stricter(reason)))
        }
        (Err(reason), Ok(theirs)) => Err(format!("ours {reason}, theirs {theirs:?}")),
        (Ok(flow), Err(_)) if flow.protocol == protocol::AH => Ok(Some(Difference::BehindAh)),
        (Ok(flow), Err(_)) if flow.is_ipv6() && flow.fragment == Fragment::Later => {
            Ok(Some(Difference::BehindLaterFragment))
        }
        (Ok(flow), Err(error)) => Err(format!("ours {flow:?}, theirs {error}")),
        (Ok(flow), Ok(theirs)) => both(l3, &flow, &theirs),
    }
}

fn is_zero_length(l3: &[u8]) -> bool {
    l3.len() > 40 && l3[0] >> 4 == 6 && l3[4..6] == [0, 0]
}

/// Whether an IPv4 header sums to all ones, by the definition (RFC 1071 §1). etherparse's own sum
/// leaves out the reserved flag, so it cannot be asked.
fn is_summed(header: &[u8]) -> bool {
    let sum = header.chunks_exact(2).fold(0u16, |sum, pair| {
        let (sum, carry) = sum.overflowing_add(u16::from_be_bytes([pair[0], pair[1]]));
        sum + u16::from(carry)
    });
    sum == u16::MAX
}

/// Both accept: every field must be the same, except behind what is meant to end the chain.
fn both(l3: &[u8], flow: &Flow, theirs: &IpSlice<'_>) -> Comparison {
    expect("source", flow.src, theirs.source_addr())?;
    expect("destination", flow.dst, theirs.destination_addr())?;
    let (ttl, tos, total_len) = match theirs {
        IpSlice::Ipv4(packet) => {
            let header = packet.header();
            if !is_summed(header.slice()) {
                return Err("accepted a wrong checksum".into());
            }
            let tos = header.dcp().value() << 2 | header.ecn().value();
            (header.ttl(), tos, usize::from(header.total_len()))
        }
        IpSlice::Ipv6(packet) => {
            let header = packet.header();
            let total_len = 40 + usize::from(header.payload_length());
            (header.hop_limit(), header.traffic_class(), total_len)
        }
    };
    expect("ttl", flow.ttl, ttl)?;
    expect("tos", flow.tos, tos)?;
    expect("total length", usize::from(flow.total_len), total_len)?;
    if is_zero_length(l3) {
        return Ok(Some(Difference::ZeroLength));
    }
    let payload = theirs.payload();
    let header_len = total_len - payload.payload.len();
    let same_end = usize::from(flow.header_len) == header_len;
    let fragmented = flow.fragment != Fragment::Whole;
    if flow.protocol == protocol::AH && !same_end {
        return Ok(Some(Difference::BehindAh));
    }
    if flow.is_ipv6() && flow.fragment == Fragment::Later && !same_end {
        return Ok(Some(Difference::BehindLaterFragment));
    }
    expect("header length", usize::from(flow.header_len), header_len)?;
    expect("protocol", flow.protocol, payload.ip_number.0)?;
    expect("fragmented", fragmented, payload.fragmented)?;
    if flow.fragment == Fragment::Later {
        expect("ports", (flow.src_port, flow.dst_port), (0, 0))?;
    } else if let Some(ports) = their_ports(flow.protocol, payload.payload) {
        expect("ports", (flow.src_port, flow.dst_port), ports)?;
    }
    Ok(None)
}

/// The ports, if etherparse has a parser for the protocol and accepts the transport header.
fn their_ports(protocol: u8, transport: &[u8]) -> Option<(u16, u16)> {
    match protocol {
        protocol::UDP => UdpHeaderSlice::from_slice(transport)
            .ok()
            .map(|header| (header.source_port(), header.destination_port())),
        protocol::TCP => TcpHeaderSlice::from_slice(transport)
            .ok()
            .map(|header| (header.source_port(), header.destination_port())),
        protocol::ICMP => Icmpv4Slice::from_slice(transport)
            .ok()
            .map(|message| (message.type_u8().into(), message.code_u8().into())),
        protocol::ICMPV6 => Icmpv6Slice::from_slice(transport)
            .ok()
            .map(|message| (message.type_u8().into(), message.code_u8().into())),
        _ => None,
    }
}

/// Whether etherparse's own reading shows why `wire` may refuse for this reason.
fn is_justified(reason: Malformed, l3: &[u8], theirs: &IpSlice<'_>) -> bool {
    // The longest transport header that ports are read from: GRE with checksum and key.
    const PORTS_END: usize = 12;
    let payload = theirs.payload();
    let is_short = payload.payload.len() < PORTS_END;
    let offset = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
    match (reason, theirs) {
        (Malformed::BadChecksum, IpSlice::Ipv4(packet)) => !is_summed(packet.header().slice()),
        (Malformed::BadOption, IpSlice::Ipv4(packet)) => !packet.header().options().is_empty(),
        (Malformed::SourceRoute, IpSlice::Ipv4(packet)) => {
            packet.header().options().iter().any(|byte| matches!(byte, 131 | 137))
        }
        (Malformed::BadTotalLength, IpSlice::Ipv6(_)) => offset(&l3[4..]) > u16::MAX - 40,
        (
            Malformed::BadOption | Malformed::TooManyOptions | Malformed::Jumbogram,
            IpSlice::Ipv6(packet),
        ) => packet.header().next_header().0 == protocol::HOP_BY_HOP,
        (Malformed::TooManyExtensions, IpSlice::Ipv6(packet)) => {
            packet.extensions().slice().len() >= (wire::ipv6_ext::MAX_EXTENSIONS + 1) * 8
        }
        (Malformed::SourceRoute | Malformed::MisplacedExtension, IpSlice::Ipv6(packet)) => {
            packet.extensions().slice().len() >= 8
        }
        (Malformed::TinyFragment, _) => {
            let is_tcp = payload.ip_number.0 == protocol::TCP;
            payload.fragmented && (is_short || is_tcp)
        }
        (Malformed::OversizeFragment, _) => payload.fragmented,
        (Malformed::TruncatedTransport, _) => !payload.fragmented && is_short,
        _ => false,
    }
}
