//! ESP in transport mode: the header stays, its content is sealed, and the packet's own addresses
//! choose the SA.

mod fixture;

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::policy::{Action, Direction, Policy, PolicyConfig, Template};
use dataplane::prefix::Family;
use dataplane::sa::{Mode, Sa, SaConfig};
use dataplane::selector::Selector;
use dataplane::transport::Ends;
use dataplane::verdict::Verdict;
use fixture::*;
use wire::{Overlay, ipv4, ipv6, protocol};

/// The SA between the sites' hosts.
fn sa(v6: bool, towards: Site) -> SaConfig {
    SaConfig {
        mode: Mode::Transport,
        source: towards.peer().host(v6),
        destination: towards.host(v6),
        ..Tunnel { extended: true, ..PLAIN }.sa(towards)
    }
}

fn policy(v6: bool, direction: Direction, optional: bool) -> Arc<Policy> {
    // The ends of a template say nothing in transport mode: here they are nobody's.
    let template = Template { mode: Mode::Transport, optional, ..PLAIN.template(Site::East) };
    Arc::new(Policy::new(PolicyConfig {
        index: 100 + direction as u32,
        selector: Selector::any(if v6 { Family::V6 } else { Family::V4 }),
        action: Action::Protect { template, bundle: None },
        ..PLAIN.policy(direction, Site::East)
    }))
}

/// A gateway that forwards for a host which has an SA in transport mode with the far one.
fn west(v6: bool, sas: &[SaConfig]) -> Gateway {
    let mut view = PLAIN.view(Site::West, &nonces());
    view.spd = Default::default();
    view.spd.insert(policy(v6, Direction::Out, false));
    let space = nonces();
    for (slot, config) in (7..).zip(sas) {
        let sa = Arc::new(Sa::new(config.clone()).unwrap());
        sa.arm(&space).unwrap();
        view.bundles.set(slot, Some(sa));
        let SaConfig { source, destination, if_id, reqid, .. } = *config;
        view.transport.insert(Ends { source, destination, if_id, reqid, spi: 0 }, slot);
    }
    let far = Site::East.inner(v6);
    let hop = dataplane::fib::NextHop { port: BLACK, gateway: Some(Site::East.outer(v6)) };
    view.fib.insert(far, dataplane::fib::Route::Via(hop));
    Gateway::new(view)
}

/// IPv6 options that fill eight bytes, in front of `next_header`.
fn options(next_header: u8) -> Vec<u8> {
    vec![next_header, 0, 1, 4, 0, 0, 0, 0]
}

#[test]
fn the_header_stays_and_its_content_is_sealed() {
    for v6 in [false, true] {
        let config = sa(v6, Site::East);
        let mut west = west(v6, std::slice::from_ref(&config));
        for len in [0, 1, 2, 3, 1200] {
            let packet = Packet { tos: 0xb9, ..Packet::towards(Site::East, v6, len) };
            let (verdict, egress, sent) = west.forward(RED, &packet.frame(RED));
            assert_eq!((verdict, egress), (Verdict::Sealed, BLACK));
            let sealed = unframe(BLACK, &sent);
            let opened = Opened::from(&sealed, &config, 0);
            let (content, tail) = opened.plaintext.split_at(packet.payload.len());
            assert_eq!(content, packet.payload);
            assert_eq!(tail.last(), Some(&protocol::UDP));
            // The header is the packet's own but for what it carries and how much.
            let mut expected = packet.hopped();
            expected.protocol = protocol::ESP;
            expected.payload = sealed[opened.outer.len()..].to_vec();
            assert_eq!(sealed, expected.bytes());
        }
        let stats = west.view.bundles.get(7).unwrap().stats();
        assert_eq!((stats.usage.packets, stats.usage.bytes), (5, 5 * 8 + 1206));
    }
}

#[test]
fn ipv4_options_stay_in_front_of_esp() {
    let config = sa(false, Site::East);
    let mut west = west(false, std::slice::from_ref(&config));
    let packet = Packet::towards(Site::East, false, 11);
    let mut bytes = packet.bytes();
    // Four no-operations: a header of six words.
    bytes.splice(20..20, [1, 1, 1, 1]);
    bytes[0] = 0x46;
    bytes[3] += 4;
    assert!(wire::ipv4::mend_checksum(&mut bytes));
    let (_, _, sent) = west.forward(RED, &frame(RED, &bytes));
    let sealed = unframe(BLACK, &sent);
    assert_eq!(sealed[20..24], [1; 4]);
    assert_eq!(wire::checksum::of(&sealed[..24]), 0);
    let (header, _) = ipv4::Header::over(&sealed).unwrap();
    assert_eq!((header.protocol(), usize::from(header.total_len())), (protocol::ESP, sealed.len()));
    let mut plain = sealed[..20].to_vec();
    plain.extend(&sealed[24..]);
    let opened = Opened::from(&plain, &config, 0);
    assert!(opened.plaintext.starts_with(&packet.payload));
}

#[test]
fn esp_follows_the_headers_that_routers_read() {
    let config = sa(true, Site::East);
    let packet = Packet::towards(Site::East, true, 20);
    // Hop-by-hop, then destination options: both stay outside. Behind a routing header (segments
    // left: none) destination options are for the far host only, and go inside.
    let routing = [protocol::DESTINATION_OPTIONS, 0, 4, 0, 0, 0, 0, 0];
    let (hop, dst) = (protocol::HOP_BY_HOP, protocol::DESTINATION_OPTIONS);
    for (first, chain, outside, inner) in [
        (hop, [options(dst), options(protocol::UDP)].concat(), 16, protocol::UDP),
        (dst, [options(protocol::UDP)].concat(), 8, protocol::UDP),
        (protocol::ROUTING, [routing.to_vec(), options(protocol::UDP)].concat(), 8, dst),
    ] {
        let mut west = west(true, std::slice::from_ref(&config));
        let mut bytes = packet.bytes();
        bytes.splice(40..40, chain.clone());
        bytes[6] = first;
        bytes[5] += chain.len() as u8;
        let (verdict, _, sent) = west.forward(RED, &frame(RED, &bytes));
        assert_eq!(verdict, Verdict::Sealed);
        let sealed = unframe(BLACK, &sent);
        let (header, _) = ipv6::Header::over(&sealed).unwrap();
        assert_eq!(header.next_header(), first);
        assert_eq!(usize::from(header.payload_len()), sealed.len() - 40);
        assert_eq!(sealed[40 + outside - 8], protocol::ESP, "the last one outside points at ESP");
        let mut plain = sealed[..40].to_vec();
        plain.extend(&sealed[40 + outside..]);
        let opened = Opened::from(&plain, &config, 0);
        assert!(opened.plaintext.starts_with(&chain[outside..]));
        assert_eq!(opened.plaintext.last(), Some(&inner));
    }
}

#[test]
fn the_packets_own_addresses_choose_the_sa() {
    let near = sa(false, Site::East);
    let elsewhere = SaConfig { spi: 0x55, destination: ip("10.2.0.99"), ..near.clone() };
    let from_any =
        SaConfig { spi: 0x66, source: ip("0.0.0.0"), destination: ip("10.2.0.7"), ..near.clone() };
    let mut west = west(false, &[near.clone(), elsewhere, from_any]);
    let to = |dst: IpAddr| Packet { dst, ..Packet::towards(Site::East, false, 4) };
    for (dst, spi) in
        [(near.destination, near.spi), (ip("10.2.0.99"), 0x55), (ip("10.2.0.7"), 0x66)]
    {
        let (_, _, sent) = west.forward(RED, &to(dst).frame(RED));
        assert_eq!(unframe(BLACK, &sent)[20..24], spi.to_be_bytes());
    }
    assert_eq!(west.drop(RED, &to(ip("10.2.0.8")).frame(RED)), Verdict::NoSa);
    assert_eq!(west.events.try_iter().count(), 1, "somebody is asked for it");
}

#[test]
fn an_sa_of_a_tunnel_is_not_for_policies_of_none() {
    let none = sa(false, Site::East);
    let of_tunnel = SaConfig { spi: 0x77, if_id: 5, ..none.clone() };
    let packet = Packet::towards(Site::East, false, 4).frame(RED);
    let mut gateway = west(false, std::slice::from_ref(&of_tunnel));
    assert_eq!(gateway.drop(RED, &packet), Verdict::NoSa);
    let mut gateway = west(false, &[none.clone(), of_tunnel]);
    let (_, _, sent) = gateway.forward(RED, &packet);
    assert_eq!(unframe(BLACK, &sent)[20..24], none.spi.to_be_bytes());
}

#[test]
fn fragments_are_not_sealed() {
    let mut west = west(false, &[sa(false, Site::East)]);
    for (flags, offset) in [(0x20, 0), (0x20, 100), (0, 100)] {
        let mut bytes = Packet::towards(Site::East, false, 24).bytes();
        bytes[6..8].copy_from_slice(&[flags, offset]);
        assert!(wire::ipv4::mend_checksum(&mut bytes));
        assert_eq!(west.drop(RED, &frame(RED, &bytes)), Verdict::FragmentTransport);
    }
    assert_eq!(west.view.bundles.get(7).unwrap().stats().sent, 0, "no number is used up");
}
