//! Frames from the network. The link and network headers must read as etherparse reads them,
//! but for the named differences; the summary must stay in bounds; what is written must parse
//! back. No state is kept from one input to the next.

use wire::flow::{self, Flow, Fragment};
use wire::{Overlay, esp, icmp, ipv4, ipv6, natt, protocol, tcp, udp, vlan};

use crate::compare;

/// Takes `data` for an Ethernet frame, and its payload for an IP packet whatever the EtherType.
pub fn frame(data: &[u8]) {
    agreed(compare::link(data));
    let Ok(link) = vlan::Packet::parse(data) else { return };
    assert_eq!(link.header_len + link.payload.len(), data.len());
    packet(link.payload);
    // A checksum keeps random changes out of everything behind it: mend it and look again.
    let mut mended = link.payload.to_vec();
    if ipv4::mend_checksum(&mut mended) && mended != link.payload {
        packet(&mended);
    }
}

fn agreed(comparison: compare::Comparison) {
    if let Err(disagreement) = comparison {
        panic!("etherparse reads it otherwise: {disagreement}");
    }
}

fn packet(l3: &[u8]) {
    agreed(compare::ip(l3));
    let parsed = flow::parse(l3);
    // What is read in a few branches, fragments too, is what it is step by step.
    if let Some(header) = flow::any_header_v4(l3, || flow::is_sound_fragment(l3)) {
        assert_eq!(Ok(flow::of_any_v4(&header)), parsed);
    }
    let Ok(flow) = parsed else { return };
    let (header_len, total_len) = (usize::from(flow.header_len), usize::from(flow.total_len));
    assert!(header_len <= total_len && total_len <= l3.len(), "{flow:?}");
    assert!(flow.fragment != Fragment::Later || (flow.src_port, flow.dst_port) == (0, 0));
    let exact = &l3[..total_len];
    assert_eq!(flow::parse(exact), Ok(flow), "padding counts");
    hop(exact, &flow);
    if flow.fragment == Fragment::Whole {
        transport(flow.protocol, &exact[header_len..], &flow);
    }
}

/// Forwarding changes the hops left, remarking the traffic class, and nothing else.
fn hop(packet: &[u8], flow: &Flow) {
    let mut copy = packet.to_vec();
    let tos = !flow.tos;
    let forwarded = if flow.is_ipv6() {
        ipv6::Header::over_mut(&mut copy).expect("parsed").0.set_traffic_class(tos);
        ipv6::decrement_hop_limit(&mut copy)
    } else {
        ipv4::Header::over_mut(&mut copy).expect("parsed").0.set_tos(tos);
        ipv4::decrement_ttl(&mut copy)
    };
    assert_eq!(forwarded, flow.ttl > 1);
    let ttl = flow.ttl - u8::from(forwarded);
    assert_eq!(flow::parse(&copy), Ok(Flow { ttl, tos, ..*flow }));
}

fn transport(protocol: u8, bytes: &[u8], flow: &Flow) {
    match protocol {
        protocol::TCP => {
            let Ok(segment) = tcp::Packet::parse(bytes) else { return };
            let ports = (segment.header.source(), segment.header.destination());
            assert_eq!(ports, (flow.src_port, flow.dst_port));
            assert_eq!(segment.header.header_len() + segment.payload.len(), bytes.len());
        }
        protocol::UDP => {
            let Ok(datagram) = udp::Packet::parse(bytes) else { return };
            let ports = (datagram.header.source(), datagram.header.destination());
            assert_eq!(ports, (flow.src_port, flow.dst_port));
            traversal(datagram.payload);
        }
        protocol::ICMP | protocol::ICMPV6 => {
            let Ok(message) = icmp::Packet::parse(bytes) else { return };
            let kind = (message.header.kind().into(), message.header.code().into());
            assert_eq!(kind, (flow.src_port, flow.dst_port));
        }
        protocol::ESP => sealed(bytes),
        _ => (),
    }
}

fn traversal(payload: &[u8]) {
    match natt::Datagram::parse(payload) {
        Ok(natt::Datagram::Esp(packet)) => sealed(packet),
        Ok(natt::Datagram::Ike(message)) => assert_eq!(message.len() + 4, payload.len()),
        Ok(natt::Datagram::Keepalive) => assert_eq!(payload, [0xff]),
        Err(_) => assert!(payload.len() < esp::ESP_HEADER_LEN),
    }
}

/// An ESP packet's parts make up the whole, and a trailer that is accepted is the one that would
/// have been written.
fn sealed(bytes: &[u8]) {
    let Ok(packet) = esp::Packet::parse(bytes) else { return };
    let mut header = [0; esp::ESP_HEADER_LEN];
    esp::Header::new(packet.header.spi(), packet.header.sequence())
        .emit(&mut header)
        .expect("an array of the header's length");
    assert_eq!([&header[..], packet.iv, packet.ciphertext, packet.icv].concat(), bytes);
    let Ok((payload, trailer)) = esp::Trailer::parse(packet.ciphertext) else { return };
    let tail = &packet.ciphertext[payload.len()..];
    let mut written = vec![0; tail.len()];
    esp::write_trailer(&mut written, trailer.next_header).expect("a trailer that was parsed");
    assert_eq!(written, tail);
}
