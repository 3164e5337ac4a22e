//! The headers of the packets between the gateways of the ruler.

use std::net::Ipv4Addr;

use wire::ethernet::{EtherType, HEADER_LEN, Header};
use wire::{Overlay, ipv4, ipv6, protocol};

use super::gateways::{
    BLACK_MAC, EAST, HOST, HOST_V6, PORT, RED_MAC, destination, destination_v6, in_clear, source,
};
use super::{HEADERS_LEN, HEADERS_V6_LEN, SIZE_MIN, Selection};

/// What senders say that know of ECN as RFC 9331 has it.
const ECT_1: u8 = 0b01;

/// A host beside the usual one.
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);

/// That a packet is a fragment behind which others come.
const MORE_FRAGMENTS: u8 = 0x20;

/// Options that say nothing.
const NO_OPTIONS: [u8; 4] = [1; 4];

/// What GRE begins with that has no key, and a packet of IPv4 in it.
const GRE_OF_IPV4: [u8; 4] = [0, 0, 8, 0];

/// The headers of a packet of `size` bytes into a tunnel, as they reach the sealing gateway.
pub(crate) fn into_tunnel(tunnel: usize, size: usize) -> [u8; HEADERS_LEN] {
    headers_of(tunnel, size, HOST, PORT)
}

/// Writes the same over the beginning of a packet, by how packets find their tunnel; `number` counts those of a tunnel, of which
/// one may be of a second kind, or of one that is seldom.
pub(super) fn write(
    packet: &mut [u8],
    selection: Selection,
    tunnel: usize,
    size: usize,
    number: usize,
    is_second: bool,
    is_seldom: bool,
) {
    let [v4, v6] = selection.families();
    if v6 && (is_second || !v4) {
        packet[..HEADERS_V6_LEN].copy_from_slice(&headers_v6(tunnel, size));
        return;
    }
    let headers = match selection {
        // A tunnel's next packet is of another flow, for as long as any cache remembers.
        Selection::PolicyUncached => headers_of(tunnel, size, HOST, number as u16),
        Selection::P2mp => headers_of(tunnel, size, source(tunnel), PORT),
        _ if selection.is_split() && is_second => headers_to(in_clear(tunnel), size, HOST, PORT, 0),
        Selection::PolicyMarked => headers_to(destination(tunnel), size, HOST, PORT, ECT_1),
        Selection::PolicyFragments | Selection::PolicyOptions if is_seldom => {
            headers_of(tunnel, size, NEIGHBOUR, PORT)
        }
        _ => into_tunnel(tunnel, size),
    };
    packet[..HEADERS_LEN].copy_from_slice(&headers);
    match selection {
        Selection::PolicyFragments if is_seldom => {
            change_v4(packet, |packet| packet[6] |= MORE_FRAGMENTS);
        }
        // In the place of the ports.
        Selection::PolicyOptions if is_seldom => change_v4(packet, |packet| {
            packet[0] += NO_OPTIONS.len() as u8 / 4;
            packet[ipv4::HEADER_LEN..][..NO_OPTIONS.len()].copy_from_slice(&NO_OPTIONS);
        }),
        Selection::PolicyGre => change_v4(packet, |packet| {
            packet[9] = protocol::GRE;
            packet[ipv4::HEADER_LEN..][..GRE_OF_IPV4.len()].copy_from_slice(&GRE_OF_IPV4);
        }),
        _ => {}
    }
}

fn headers_of(tunnel: usize, size: usize, source: Ipv4Addr, port: u16) -> [u8; HEADERS_LEN] {
    headers_to(destination(tunnel), size, source, port, 0)
}

fn headers_to(
    destination: Ipv4Addr,
    size: usize,
    source: Ipv4Addr,
    port: u16,
    tos: u8,
) -> [u8; HEADERS_LEN] {
    let mut bytes = [0; HEADERS_LEN];
    let ip = ipv4::Template::new(source, destination, protocol::UDP, 64);
    let ip = ip.stamp(size as u16, 0, tos, false);
    let (link, rest) = bytes.split_at_mut(HEADER_LEN);
    // Both slices are longer than what is written, so neither can fail.
    let _ = Header::new(RED_MAC, BLACK_MAC, EtherType::IPV4).emit(link);
    if let Ok(udp) = ip.emit(rest) {
        write_udp(udp, port, size - ipv4::HEADER_LEN);
    }
    bytes
}

/// The headers of a packet of IPv6.
fn headers_v6(tunnel: usize, size: usize) -> [u8; HEADERS_V6_LEN] {
    let mut bytes = [0; HEADERS_V6_LEN];
    let len = size - ipv6::HEADER_LEN;
    let ip = ipv6::Template::new(HOST_V6, destination_v6(tunnel), protocol::UDP, 64);
    let ip = ip.stamp(len as u16, 0, 0);
    let (link, rest) = bytes.split_at_mut(HEADER_LEN);
    // As above.
    let _ = Header::new(RED_MAC, BLACK_MAC, EtherType::IPV6).emit(link);
    if let Ok(udp) = ip.emit(rest) {
        write_udp(udp, PORT, len);
    }
    bytes
}

/// A UDP header of a datagram of so many bytes.
fn write_udp(udp: &mut [u8], port: u16, len: usize) {
    udp[..2].copy_from_slice(&port.to_be_bytes());
    udp[2..4].copy_from_slice(&[0x20, 0x00]);
    udp[4..6].copy_from_slice(&(len as u16).to_be_bytes());
}

/// Gives a packet of a group's tunnel the address of the gateway that opens for its destination, as a hub
/// has one address and not one for each far end.
pub(super) fn lead_to_hub(frame: &mut [u8]) {
    change_v4(frame, |packet| packet[16..20].copy_from_slice(&EAST.octets()));
}

/// Marks a packet as one that met congestion (RFC 3168).
pub(super) fn mark(frame: &mut [u8]) {
    change_v4(frame, |packet| packet[1] |= 0b11);
}

/// Gives an ESP packet an SPI that no SA has.
pub(super) fn lead_astray(frame: &mut [u8]) {
    if let Some(first) = frame.get_mut(HEADER_LEN + ipv4::HEADER_LEN) {
        *first = 0x7f;
    }
}

/// Changes a packet, and the checksum of its header with it, however many options that has then.
fn change_v4(frame: &mut [u8], change: impl FnOnce(&mut [u8])) {
    // The worker's packets are longer.
    let Some(packet) = frame.get_mut(HEADER_LEN..).filter(|packet| packet.len() >= SIZE_MIN) else {
        return;
    };
    change(packet);
    ipv4::mend_checksum(packet);
}
