//! Test frames: written from a template, recognised and checked on the other side.
//!
//! ```text
//! Ethernet 14 │ IPv4 20 or IPv6 40 │ UDP 8 │ signature 8 │ stream 2 │ kind 2 │ sequence 8 │
//!             │ sent at, ns 8 │ filler: one 8-byte word made from the sequence, repeated
//! ```
//!
//! The UDP checksum covers all of it and is always present, so damage anywhere between the IP
//! header and the last byte shows. The template holds what frames of a port and size share; per
//! frame only addresses, sequence, time and filler are written, and the checksum is put together
//! from partial sums, never by reading the frame back. No VLAN tags are written, one is accepted.

mod parse;

pub use parse::{Stamp, parse_frame};

use std::net::IpAddr;

use thiserror::Error;

use super::checksum::Sum;
use super::cycle::Addresses;

/// The first eight payload bytes of every test frame.
pub const SIGNATURE: [u8; 8] = *b"PEREGRN1";
/// Payload bytes before the filler.
pub const PAYLOAD_HEADER_BYTES: usize = 28;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
/// Headers of the larger family.
const HEADERS_BYTES_MAX: usize = ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES;
const FILLER_WORD_BYTES: usize = 8;
const PROTOCOL_UDP: u8 = 17;
/// Enough for the two gateways and any router between them; RFC 1700's default.
const TTL: u8 = 64;
/// Load frames of port `p` go from UDP `6000+p` to `7000+p`, as in the published profiles.
const LOAD_SOURCE_PORT: u16 = 6000;
const LOAD_DESTINATION_PORT: u16 = 7000;
/// Probes go from 1025 to 9 (discard), as in the published profiles.
const PROBE_SOURCE_PORT: u16 = 1025;
const PROBE_DESTINATION_PORT: u16 = 9;

/// What a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Part of the load; counted.
    Load,
    /// A latency probe at a constant low rate; counted apart and timed.
    Probe,
}

/// What all frames of one template have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameSpec {
    /// The gateway's address on the generator's link.
    pub destination_mac: [u8; 6],
    /// The generator's own.
    pub source_mac: [u8; 6],
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
    /// Generator port number, from 0.
    pub port: u8,
    /// Load or probe.
    pub kind: Kind,
    /// L2 bytes without FCS.
    pub size: u16,
}

impl FrameSpec {
    /// The number that stands in the frames: two streams per port, its load and its probes.
    pub fn stream(&self) -> u16 {
        u16::from(self.port) * 2 + u16::from(self.kind == Kind::Probe)
    }
}

/// Why a template cannot be made or a frame cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The headers and the stamp do not fit.
    #[error("a test frame needs at least {min} bytes (L2 without FCS), {size} were asked for")]
    TooSmall {
        /// What was asked for.
        size: u16,
        /// The least for the family.
        min: u16,
    },
    /// The buffer is shorter than the frame.
    #[error("the buffer has {found} bytes, the frame {needed}")]
    Buffer {
        /// Bytes there are.
        found: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// Addresses of the other family.
    #[error("the template is {0}, the addresses are not")]
    Family(&'static str),
}

/// The smallest test frame of a family, L2 without FCS.
pub const fn min_frame_bytes(ipv6: bool) -> u16 {
    let ip = if ipv6 { IPV6_BYTES } else { IPV4_BYTES };
    (ETHERNET_BYTES + ip + UDP_BYTES + PAYLOAD_HEADER_BYTES) as u16
}

/// The unchanging part of a port's frames of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    headers: [u8; HEADERS_BYTES_MAX],
    ip_bytes: usize,
    size: usize,
    stream: u16,
    kind: Kind,
    /// IPv4 header without addresses and checksum.
    ip_sum: Sum,
    /// Pseudo-header without addresses, UDP header without checksum, signature, stream, kind.
    udp_sum: Sum,
}

impl Template {
    /// Works out everything that does not depend on the frame number.
    ///
    /// # Errors
    /// [`FrameError`] for a size that does not hold the headers and the stamp.
    pub fn new(spec: &FrameSpec) -> Result<Template, FrameError> {
        let min = min_frame_bytes(spec.ipv6);
        if spec.size < min {
            return Err(FrameError::TooSmall { size: spec.size, min });
        }
        let ip_bytes = if spec.ipv6 { IPV6_BYTES } else { IPV4_BYTES };
        let udp_length = spec.size - (ETHERNET_BYTES + ip_bytes) as u16;
        let mut headers = [0; HEADERS_BYTES_MAX];
        let (ethernet, rest) = headers.split_at_mut(ETHERNET_BYTES);
        let (ip, rest) = rest.split_at_mut(ip_bytes);
        ethernet[..6].copy_from_slice(&spec.destination_mac);
        ethernet[6..12].copy_from_slice(&spec.source_mac);
        ethernet[12..].copy_from_slice(if spec.ipv6 { &[0x86, 0xdd] } else { &[0x08, 0x00] });
        write_ip(ip, udp_length);
        let (source, destination) = match spec.kind {
            Kind::Load => (LOAD_SOURCE_PORT, LOAD_DESTINATION_PORT),
            Kind::Probe => (PROBE_SOURCE_PORT, PROBE_DESTINATION_PORT),
        };
        let by_port = if spec.kind == Kind::Load { u16::from(spec.port) } else { 0 };
        let udp = &mut rest[..UDP_BYTES];
        udp[..2].copy_from_slice(&(source + by_port).to_be_bytes());
        udp[2..4].copy_from_slice(&(destination + by_port).to_be_bytes());
        udp[4..6].copy_from_slice(&udp_length.to_be_bytes());

        let udp_sum = Sum::of(udp)
            .plus(Sum::of_u16(udp_length))
            .plus(Sum::of_u16(PROTOCOL_UDP.into()))
            .plus(Sum::of(&SIGNATURE))
            .plus(Sum::of_u16(spec.stream()))
            .plus(Sum::of_u16(kind_code(spec.kind)));
        let ip_sum = if spec.ipv6 { Sum::default() } else { Sum::of(ip) };
        Ok(Template {
            headers,
            ip_bytes,
            size: spec.size.into(),
            stream: spec.stream(),
            kind: spec.kind,
            ip_sum,
            udp_sum,
        })
    }

    /// L2 bytes of the frames, without FCS.
    pub fn size(&self) -> usize {
        self.size
    }
}

/// The IP header with zero addresses and, in IPv4, a zero checksum.
fn write_ip(ip: &mut [u8], udp_length: u16) {
    if ip.len() == IPV6_BYTES {
        ip[0] = 0x60;
        ip[4..6].copy_from_slice(&udp_length.to_be_bytes());
        ip[6] = PROTOCOL_UDP;
        ip[7] = TTL;
    } else {
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&(udp_length + IPV4_BYTES as u16).to_be_bytes());
        // Do not fragment: a frame too long for the path has to show as a named drop. The
        // identification of such datagrams means nothing (RFC 6864 §4.1).
        ip[6] = 0x40;
        ip[8] = TTL;
        ip[9] = PROTOCOL_UDP;
    }
}

/// Writes frame `sequence` of the template's stream into the front of `out` and returns its
/// length. `sent_ns` is the sender's clock at this moment, nanoseconds.
///
/// # Errors
/// [`FrameError`] if `out` is shorter than the frame, or the addresses are of the other family.
pub fn write_frame(
    template: &Template,
    out: &mut [u8],
    addresses: &Addresses,
    sequence: u64,
    sent_ns: u64,
) -> Result<usize, FrameError> {
    let found = out.len();
    let frame =
        out.get_mut(..template.size).ok_or(FrameError::Buffer { found, needed: template.size })?;
    let header_bytes = ETHERNET_BYTES + template.ip_bytes + UDP_BYTES;
    let (headers, payload) = frame.split_at_mut(header_bytes);
    headers.copy_from_slice(&template.headers[..header_bytes]);

    let (_, rest) = headers.split_at_mut(ETHERNET_BYTES);
    let (ip, udp) = rest.split_at_mut(template.ip_bytes);
    let address_sum = match (addresses.src, addresses.dst, ip.len()) {
        (IpAddr::V4(src), IpAddr::V4(dst), IPV4_BYTES) => {
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let sum = Sum::of_u64(u64::from(u32::from(src)) << 32 | u64::from(u32::from(dst)));
            ip[10..12].copy_from_slice(&template.ip_sum.plus(sum).checksum().to_be_bytes());
            sum
        }
        (IpAddr::V6(src), IpAddr::V6(dst), IPV6_BYTES) => {
            ip[8..24].copy_from_slice(&src.octets());
            ip[24..40].copy_from_slice(&dst.octets());
            Sum::of(&ip[8..40])
        }
        (_, _, IPV4_BYTES) => return Err(FrameError::Family("IPv4")),
        _ => return Err(FrameError::Family("IPv6")),
    };

    let (stamp, filler) = payload.split_at_mut(PAYLOAD_HEADER_BYTES);
    stamp[..8].copy_from_slice(&SIGNATURE);
    stamp[8..10].copy_from_slice(&template.stream.to_be_bytes());
    stamp[10..12].copy_from_slice(&kind_code(template.kind).to_be_bytes());
    stamp[12..20].copy_from_slice(&sequence.to_be_bytes());
    stamp[20..28].copy_from_slice(&sent_ns.to_be_bytes());
    let sum = template
        .udp_sum
        .plus(address_sum)
        .plus(Sum::of_u64(sequence))
        .plus(Sum::of_u64(sent_ns))
        .plus(fill(filler, filler_word(sequence)));
    // RFC 768: a computed zero is sent as all ones, because zero means "no checksum".
    let checksum = match sum.checksum() {
        0 => 0xffff,
        checksum => checksum,
    };
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    Ok(template.size)
}

/// A different word for every sequence number (the multiplier is odd, so this is a bijection).
fn filler_word(sequence: u64) -> u64 {
    sequence.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Repeats the word over `filler` and returns the sum of what was written.
fn fill(filler: &mut [u8], word: u64) -> Sum {
    let bytes = word.to_be_bytes();
    let mut words = filler.chunks_exact_mut(FILLER_WORD_BYTES);
    let whole = words.len() as u32;
    words.by_ref().for_each(|chunk| chunk.copy_from_slice(&bytes));
    let tail = words.into_remainder();
    tail.copy_from_slice(&bytes[..tail.len()]);
    Sum::of_u64(word).times(whole).plus(Sum::of(tail))
}

fn kind_code(kind: Kind) -> u16 {
    match kind {
        Kind::Load => 0,
        Kind::Probe => 1,
    }
}

#[cfg(test)]
mod tests;
