//! What nearly every packet is, and is read in a few branches: whole, without options or extension headers, of a protocol of which the
//! first four bytes say all that there is to know. Fragments of IPv4 that are so but for being fragments may be read likewise.

use core::net::IpAddr;

use super::{Flow, Fragment, has_gre_key, part};
use crate::{ipv4, ipv6, protocol};

/// Whether a packet of this protocol that has these two words behind its IP header needs no more than those to be summarised: not if
/// there may be another header in between, or what selectors see is further in.
///
/// Without a call for those that are seldom met, across which headers would have to be kept.
#[inline(always)]
const fn is_plain(protocol: u8, (first, _): (u16, u16)) -> bool {
    const LOW: u64 = !(1 << protocol::HOP_BY_HOP
        | 1 << protocol::ROUTING
        | 1 << protocol::FRAGMENT
        | 1 << protocol::GRE
        | 1 << protocol::DESTINATION_OPTIONS);
    match protocol {
        0..64 => LOW >> protocol & 1 != 0 || protocol == protocol::GRE && !has_gre_key(first),
        _ => protocol != protocol::MOBILITY,
    }
}

/// Whether the first four bytes of a plain protocol are its two ports, as of nearly all packets. Those of the others are none, or are
/// narrower, or ports of a protocol that is seldom met.
#[inline]
pub const fn shows_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP)
}

/// The ports of a plain protocol that has these two words behind its IP header.
#[inline(always)]
const fn plain_ports(protocol: u8, (first, second): (u16, u16)) -> (u16, u16) {
    match protocol {
        protocol::TCP | protocol::UDP | protocol::UDP_LITE | protocol::SCTP | protocol::DCCP => {
            (first, second)
        }
        protocol::ICMP | protocol::ICMPV6 => (first >> 8, first & 0xff),
        _ => (0, 0),
    }
}

/// The summary of a sound IPv4 packet without options that is no fragment; `None` for any other.
#[inline(always)]
pub fn plain_v4(l3: &[u8]) -> Option<Flow> {
    plain_header_v4(l3).map(|header| of_plain_v4(&header))
}

/// The header of a packet that [`plain_v4`] summarises.
#[inline(always)]
pub fn plain_header_v4(l3: &[u8]) -> Option<ipv4::Plain> {
    any_header_v4(l3, || false)
}

/// The same also of a [sound fragment](is_sound_fragment), if `may_be` says that it is one.
#[inline(always)]
pub fn any_header_v4(l3: &[u8], may_be: impl FnOnce() -> bool) -> Option<ipv4::Plain> {
    plain_header_of(l3, may_be, |header| is_plain(header.protocol(), header.ports()))
}

/// The same of a whole packet of one protocol.
#[inline(always)]
pub fn plain_header_v4_of<const PROTOCOL: u8>(l3: &[u8]) -> Option<ipv4::Plain> {
    plain_header_of(l3, || false, |header| header.protocol() == PROTOCOL)
}

#[inline(always)]
fn plain_header_of(
    l3: &[u8],
    may_be: impl FnOnce() -> bool,
    is_plain: impl FnOnce(&ipv4::Plain) -> bool,
) -> Option<ipv4::Plain> {
    let header = ipv4::Plain::read_any(l3.first_chunk()?, may_be)?;
    if !is_within(&header, l3) {
        return None;
    }
    is_plain(&header).then_some(header)
}

/// Whether a packet with such a header is no shorter than what is read of it, and no longer than what is there.
#[inline(always)]
fn is_within(header: &ipv4::Plain, l3: &[u8]) -> bool {
    const LEN_MIN: u16 = ipv4::Plain::LEN as u16;
    header.total_len() >= LEN_MIN && usize::from(header.total_len()) <= l3.len()
}

/// Whether `l3` begins with a fragment of IPv4 without options, and with one that a sender may make. Of its checksum and its
/// protocol nothing is said.
pub fn is_sound_fragment(l3: &[u8]) -> bool {
    let sound = || {
        let header = ipv4::Plain::reread(l3.first_chunk()?);
        let (offset, protocol) = (header.fragment_offset(), header.protocol());
        header.total_len().checked_add(offset)?;
        let is_one = header.is_plain_fragment() && is_within(&header, l3);
        (is_one && part(offset, protocol).is_ok()).then_some(())
    };
    sound().is_some()
}

/// The summary of a packet with such a header.
#[inline(always)]
pub fn of_plain_v4(header: &ipv4::Plain) -> Flow {
    let (protocol, total_len) = (header.protocol(), header.total_len());
    let (src_port, dst_port) = plain_ports(protocol, header.ports());
    Flow {
        src: IpAddr::V4(header.source()),
        dst: IpAddr::V4(header.destination()),
        protocol,
        src_port,
        dst_port,
        ttl: header.ttl(),
        tos: header.tos(),
        header_len: ipv4::HEADER_LEN as u16,
        total_len,
        fragment: Fragment::Whole,
        has_options: false,
    }
}

/// The summary of a packet with a plain header, or of a sound fragment with such.
#[inline(always)]
pub fn of_any_v4(header: &ipv4::Plain) -> Flow {
    let mut flow = of_plain_v4(header);
    if header.is_fragment() {
        flow.fragment = Fragment::First;
        if header.fragment_offset() != 0 {
            flow.fragment = Fragment::Later;
            (flow.src_port, flow.dst_port) = (0, 0);
        }
    }
    flow
}

/// The summary of a sound IPv6 packet without extension headers; `None` for any other.
#[inline(always)]
pub fn plain_v6(l3: &[u8]) -> Option<Flow> {
    plain_header_v6(l3).map(|header| of_plain_v6(&header))
}

/// The header of a packet that [`plain_v6`] summarises.
#[inline(always)]
pub fn plain_header_v6(l3: &[u8]) -> Option<ipv6::Plain> {
    const PAYLOAD_LEN_MAX: u16 = u16::MAX - ipv6::HEADER_LEN as u16;
    let header = ipv6::Plain::read(l3.first_chunk()?)?;
    let payload_len = header.payload_len();
    let is_sound = is_plain(header.next_header(), header.ports())
        && (4..=PAYLOAD_LEN_MAX).contains(&payload_len)
        && usize::from(payload_len) <= l3.len() - ipv6::HEADER_LEN;
    is_sound.then_some(header)
}

/// The summary of a packet with such a header.
#[inline(always)]
pub fn of_plain_v6(header: &ipv6::Plain) -> Flow {
    let (protocol, payload_len) = (header.next_header(), header.payload_len());
    let (src_port, dst_port) = plain_ports(protocol, header.ports());
    Flow {
        src: IpAddr::V6(header.source()),
        dst: IpAddr::V6(header.destination()),
        protocol,
        src_port,
        dst_port,
        ttl: header.hop_limit(),
        tos: header.traffic_class(),
        header_len: ipv6::HEADER_LEN as u16,
        total_len: ipv6::HEADER_LEN as u16 + payload_len,
        fragment: Fragment::Whole,
        has_options: false,
    }
}
