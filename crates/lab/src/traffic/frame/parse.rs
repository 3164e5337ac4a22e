//! Recognising test frames and checking that they are whole.
//!
//! Says what stands in a frame; whether it belongs where it arrived is the books' question.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    ETHERNET_BYTES, FILLER_WORD_BYTES, IPV4_BYTES, IPV6_BYTES, Kind, PAYLOAD_HEADER_BYTES,
    PROTOCOL_UDP, SIGNATURE, UDP_BYTES, filler_word,
};
use crate::traffic::checksum::Sum;

const VLAN_TAG_BYTES: usize = 4;

/// What a received test frame says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Stream number; see [`super::FrameSpec::stream`].
    pub stream: u16,
    /// Load or probe.
    pub kind: Kind,
    /// Frame number within the stream.
    pub sequence: u64,
    /// The sender's clock when the frame was written, nanoseconds.
    pub sent_ns: u64,
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// TTL or hop limit on arrival.
    pub ttl: u8,
    /// L2 bytes without FCS, tag and padding.
    pub size: u16,
    /// All checksums and the filler are right. When not, nothing else here can be trusted.
    pub intact: bool,
}

impl Stamp {
    /// The generator port that sent the frame.
    pub fn port(&self) -> u16 {
        self.stream / 2
    }
}

/// Recognises a test frame. `None` is anything else: ARP, IKE, another program's packets.
///
/// A test frame that was damaged is still recognised by its signature and comes back with
/// `intact` false; one whose signature or lengths are damaged cannot be told from foreign traffic
/// and shows as lost.
pub fn parse_frame(frame: &[u8]) -> Option<Stamp> {
    let mut ethertype = frame.get(12..14)?;
    let mut packet = frame.get(ETHERNET_BYTES..)?;
    if ethertype == [0x81, 0x00] {
        ethertype = frame.get(16..18)?;
        packet = frame.get(ETHERNET_BYTES + VLAN_TAG_BYTES..)?;
    }
    let network = match ethertype {
        [0x08, 0x00] => parse_ipv4(packet)?,
        [0x86, 0xdd] => parse_ipv6(packet)?,
        _ => return None,
    };
    let udp = network.payload;
    let length: usize = u16::from_be_bytes([*udp.get(4)?, *udp.get(5)?]).into();
    let datagram = udp.get(..length)?;
    let stamp = datagram.get(UDP_BYTES..UDP_BYTES + PAYLOAD_HEADER_BYTES)?;
    if stamp[..8] != SIGNATURE {
        return None;
    }
    let kind = match u16::from_be_bytes([stamp[10], stamp[11]]) {
        0 => Some(Kind::Load),
        1 => Some(Kind::Probe),
        _ => None,
    };
    let sequence = be_u64(&stamp[12..20]);
    let checksum_present = datagram[6..8] != [0, 0];
    let sum = Sum::of(datagram)
        .plus(network.address_sum)
        .plus(Sum::of_u16(length as u16))
        .plus(Sum::of_u16(PROTOCOL_UDP.into()));
    Some(Stamp {
        stream: u16::from_be_bytes([stamp[8], stamp[9]]),
        kind: kind.unwrap_or(Kind::Load),
        sequence,
        sent_ns: be_u64(&stamp[20..28]),
        src: network.src,
        dst: network.dst,
        ttl: network.ttl,
        // Both terms come from 16-bit length fields that were checked against the frame.
        size: (ETHERNET_BYTES + network.header_bytes + length) as u16,
        intact: kind.is_some()
            && network.intact
            && checksum_present
            && sum.is_valid()
            && is_filled(&datagram[UDP_BYTES + PAYLOAD_HEADER_BYTES..], filler_word(sequence)),
    })
}

/// What both families' headers come down to.
struct Network<'a> {
    src: IpAddr,
    dst: IpAddr,
    ttl: u8,
    header_bytes: usize,
    address_sum: Sum,
    intact: bool,
    payload: &'a [u8],
}

/// Whole IPv4 datagrams that carry UDP; a fragment is not a test frame.
fn parse_ipv4(packet: &[u8]) -> Option<Network<'_>> {
    let first = *packet.first()?;
    let header_bytes = usize::from(first & 0x0f) * 4;
    let header = packet.get(..header_bytes.max(IPV4_BYTES))?;
    let total: usize = u16::from_be_bytes([header[2], header[3]]).into();
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
    if first >> 4 != 4 || header_bytes < IPV4_BYTES || fragment != 0 || header[9] != PROTOCOL_UDP {
        return None;
    }
    let address = |at: usize| {
        Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]).into()
    };
    Some(Network {
        src: address(12),
        dst: address(16),
        ttl: header[8],
        header_bytes,
        address_sum: Sum::of(&header[12..20]),
        intact: Sum::of(header).is_valid(),
        payload: packet.get(header_bytes..total)?,
    })
}

/// IPv6 without extension headers, as the lab sends it.
fn parse_ipv6(packet: &[u8]) -> Option<Network<'_>> {
    let header: &[u8; IPV6_BYTES] = packet.first_chunk()?;
    let length: usize = u16::from_be_bytes([header[4], header[5]]).into();
    if header[0] >> 4 != 6 || header[6] != PROTOCOL_UDP {
        return None;
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        Ipv6Addr::from(octets).into()
    };
    Some(Network {
        src: address(8),
        dst: address(24),
        ttl: header[7],
        header_bytes: IPV6_BYTES,
        address_sum: Sum::of(&header[8..40]),
        intact: true,
        payload: packet.get(IPV6_BYTES..IPV6_BYTES + length)?,
    })
}

fn is_filled(filler: &[u8], word: u64) -> bool {
    let bytes = word.to_be_bytes();
    let mut words = filler.chunks_exact(FILLER_WORD_BYTES);
    let whole = words.by_ref().all(|chunk| chunk == bytes);
    let tail = words.remainder();
    whole && tail == &bytes[..tail.len()]
}

fn be_u64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
