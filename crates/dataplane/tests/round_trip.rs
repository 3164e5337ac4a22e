//! What one gateway seals, another opens, to the byte; and what leaves is what the RFCs say.

mod fixture;

use std::net::{Ipv4Addr, Ipv6Addr};

use dataplane::sa::{Sa, SaFlags};
use dataplane::verdict::Verdict;
use fixture::*;
use wire::{Overlay, ipv4, ipv6, protocol};

fn every_tunnel() -> impl Iterator<Item = Tunnel> {
    [false, true].into_iter().flat_map(|inner_v6| {
        [false, true].into_iter().flat_map(move |outer_v6| {
            [16, 24, 32].into_iter().flat_map(move |key_len| {
                [(false, None), (true, None), (true, Some((4500, 61_000)))].map(
                    move |(extended, udp)| Tunnel {
                        inner_v6,
                        outer_v6,
                        key_len,
                        extended,
                        window: 64,
                        udp,
                        if_id: 0,
                    },
                )
            })
        })
    })
}

#[test]
fn every_combination_arrives_as_it_was_sent_but_for_two_hops() {
    for tunnel in every_tunnel() {
        let mut west = Gateway::at(Site::West, &tunnel);
        let mut east = Gateway::at(Site::East, &tunnel);
        for len in [0, 1, 2, 3, 4, 17, 64, 500, 1300, 1364] {
            let packet = Packet::towards(Site::East, tunnel.inner_v6, len);
            let (verdict, port, sealed) = west.forward(RED, &packet.frame(RED));
            assert_eq!((verdict, port), (Verdict::Sealed, BLACK), "{tunnel:?} {len}");
            let sealed = unframe(BLACK, &sealed);
            let (verdict, port, opened) = east.forward(BLACK, &frame(BLACK, &sealed));
            assert_eq!((verdict, port), (Verdict::Opened, RED), "{tunnel:?} {len}");
            assert_eq!(unframe(RED, &opened), packet.hopped().hopped().bytes(), "{tunnel:?} {len}");
        }
        let (sent, received) = (west.outbound().stats(), east.inbound().stats());
        assert_eq!((sent.sent, received.received), (10, 10));
        assert_eq!(sent.usage.packets, received.usage.packets);
        assert_eq!(sent.usage.bytes, received.usage.bytes, "both count inner bytes");
        assert_eq!(received.replay_bitmap[0], 0x3ff);
    }
}

#[test]
fn sealed_packets_are_laid_out_as_rfc_4303_and_4106_say() {
    for tunnel in every_tunnel() {
        let mut west = Gateway::at(Site::West, &tunnel);
        let sa = tunnel.sa(Site::East);
        for (count, len) in (1u32..).zip([10, 11, 12, 13]) {
            let packet = Packet::towards(Site::East, tunnel.inner_v6, len);
            let (_, _, sealed) = west.forward(RED, &packet.frame(RED));
            let sealed = unframe(BLACK, &sealed);
            let opened = Opened::from(&sealed, &sa, 0);
            assert_eq!(opened.sequence, count);
            assert_eq!(opened.iv >> 48, 1, "the epoch");
            assert_eq!(opened.plaintext.len() % 4, 0);
            let inner = packet.hopped().bytes();
            let (head, tail) = opened.plaintext.split_at(inner.len());
            assert_eq!(head, inner);
            let next_header = if tunnel.inner_v6 { protocol::IPV6 } else { protocol::IPV4 };
            let expected: &[u8] = match tail.len() {
                2 => &[0, next_header],
                3 => &[1, 1, next_header],
                4 => &[1, 2, 2, next_header],
                5 => &[1, 2, 3, 3, next_header],
                other => panic!("a tail of {other} bytes"),
            };
            assert_eq!(tail, expected);
            check_outer(&tunnel, &opened.outer, sealed.len());
        }
    }
}

fn check_outer(tunnel: &Tunnel, outer: &[u8], total_len: usize) {
    let protocol = if tunnel.udp.is_some() { protocol::UDP } else { protocol::ESP };
    if tunnel.outer_v6 {
        let (header, _) = ipv6::Header::over(outer).unwrap();
        assert_eq!(header.source(), "2001:db8::1".parse::<Ipv6Addr>().unwrap());
        assert_eq!(header.destination(), "2001:db8::2".parse::<Ipv6Addr>().unwrap());
        assert_eq!(usize::from(header.payload_len()), total_len - 40);
        assert_eq!((header.next_header(), header.hop_limit()), (protocol, 64));
    } else {
        let (header, _) = ipv4::Header::over(outer).unwrap();
        assert_eq!(header.source(), Ipv4Addr::new(192, 0, 2, 1));
        assert_eq!(header.destination(), Ipv4Addr::new(192, 0, 2, 2));
        assert_eq!(usize::from(header.total_len()), total_len);
        assert_eq!((header.protocol(), header.ttl()), (protocol, 64));
        assert_eq!(wire::checksum::of(&outer[..20]), 0);
    }
}

#[test]
fn packets_of_an_independent_sender_are_opened() {
    for tunnel in every_tunnel() {
        let mut east = Gateway::at(Site::East, &tunnel);
        let sa = tunnel.sa(Site::East);
        let next_header = if tunnel.inner_v6 { protocol::IPV6 } else { protocol::IPV4 };
        for (sequence, len) in (1..).zip([0, 5, 100, 1200]) {
            let packet = Packet::towards(Site::East, tunnel.inner_v6, len);
            // With and without traffic flow confidentiality padding.
            for (offset, tfc) in [(0, 0), (10, 37)] {
                let sequence = sequence + offset;
                let seal = Seal { sequence, tfc, next_header, ..Seal::default() };
                let (verdict, _, sent) = east.forward(BLACK, &seal.frame(&sa, &packet.bytes()));
                assert_eq!(verdict, Verdict::Opened);
                assert_eq!(unframe(RED, &sent), packet.hopped().bytes());
            }
        }
    }
}

#[test]
fn ethernet_padding_is_neither_sealed_nor_forwarded() {
    let mut west = Gateway::at(Site::West, &PLAIN);
    let packet = Packet::towards(Site::East, false, 2);
    let mut padded = packet.frame(RED);
    padded.resize(60, 0);
    let (_, _, sealed) = west.forward(RED, &padded);
    let opened = Opened::from(&unframe(BLACK, &sealed), &PLAIN.sa(Site::East), 0);
    assert_eq!(opened.plaintext.len(), 32);
}

#[test]
fn sequence_numbers_cross_the_boundary_of_32_bits() {
    let tunnel = Tunnel { extended: true, ..PLAIN };
    let (mut west, mut east) = (Gateway::at(Site::West, &tunnel), Gateway::at(Site::East, &tunnel));
    let start = u64::from(u32::MAX) - 2;
    let nonces = nonces();
    let outbound = Sa::new(dataplane::sa::SaConfig { sent: start, ..tunnel.sa(Site::East) });
    let outbound = std::sync::Arc::new(outbound.unwrap());
    outbound.arm(&nonces).unwrap();
    west.change(|view| assert!(view.bundles.set(0, Some(outbound))));
    let inbound = dataplane::sa::SaConfig { received: start, ..tunnel.sa(Site::East) };
    east.change(|view| {
        view.sad.insert(std::sync::Arc::new(Sa::new(inbound).unwrap()));
    });
    for count in 1..=6u64 {
        let packet = Packet::towards(Site::East, false, 40);
        let (_, _, sealed) = west.forward(RED, &packet.frame(RED));
        let sealed = unframe(BLACK, &sealed);
        let opened = Opened::from(&sealed, &tunnel.sa(Site::East), ((start + count) >> 32) as u32);
        assert_eq!(opened.sequence, (start + count) as u32);
        let (verdict, _, _) = east.forward(BLACK, &frame(BLACK, &sealed));
        assert_eq!(verdict, Verdict::Opened);
        assert_eq!(east.drop(BLACK, &frame(BLACK, &sealed)), Verdict::Replayed);
    }
    assert_eq!(east.inbound().stats().received, start + 6);
}

#[test]
fn outer_header_takes_over_tos_df_and_flow_label() {
    for (inner_v6, outer_v6) in [(false, false), (false, true), (true, false), (true, true)] {
        let tunnel = Tunnel { inner_v6, outer_v6, ..PLAIN };
        let mut west = Gateway::at(Site::West, &tunnel);
        for dont_fragment in [false, true] {
            let packet = Packet {
                tos: 0xb9,
                dont_fragment,
                flow_label: 0xabcde,
                ..Packet::towards(Site::East, inner_v6, 40)
            };
            let (_, _, sealed) = west.forward(RED, &packet.frame(RED));
            let sealed = unframe(BLACK, &sealed);
            if outer_v6 {
                let (outer, _) = ipv6::Header::over(&sealed).unwrap();
                assert_eq!(outer.traffic_class(), 0xb9);
                assert_eq!(outer.flow_label(), if inner_v6 { 0xabcde } else { 0 });
            } else {
                let (outer, _) = ipv4::Header::over(&sealed).unwrap();
                assert_eq!(outer.tos(), 0xb9);
                assert_eq!(outer.dont_fragment(), inner_v6 || dont_fragment);
            }
        }
    }
}

#[test]
fn without_df_identifications_differ_and_flags_are_obeyed() {
    let tunnel = PLAIN;
    let mut west = Gateway::at(Site::West, &tunnel);
    let flags = SaFlags { no_pmtu_discovery: true, dont_encap_dscp: true, ..SaFlags::default() };
    let changed = west.outbound().with_changes(|config| config.flags = flags).unwrap();
    west.change(|view| assert!(view.bundles.set(0, Some(std::sync::Arc::new(changed)))));
    let packet = Packet { tos: 0xb9, dont_fragment: true, ..Packet::towards(Site::East, false, 9) };
    let mut ids = Vec::new();
    for _ in 0..3 {
        let (_, _, sealed) = west.forward(RED, &packet.frame(RED));
        let sealed = unframe(BLACK, &sealed);
        let (outer, _) = ipv4::Header::over(&sealed).unwrap();
        assert!(!outer.dont_fragment());
        assert_eq!(outer.tos(), 0x01);
        ids.push(outer.id());
    }
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

#[test]
fn congestion_marks_come_out_of_the_tunnel() {
    for inner_v6 in [false, true] {
        let tunnel = Tunnel { inner_v6, ..PLAIN };
        let mut east = Gateway::at(Site::East, &tunnel);
        let packet = Packet { tos: 0xb8 | 0b10, ..Packet::towards(Site::East, inner_v6, 40) };
        let next_header = if inner_v6 { protocol::IPV6 } else { protocol::IPV4 };
        let seal = Seal { outer_tos: 0b11, next_header, ..Seal::default() };
        let (verdict, _, sent) =
            east.forward(BLACK, &seal.frame(&tunnel.sa(Site::East), &packet.bytes()));
        assert_eq!(verdict, Verdict::Opened);
        let marked = Packet { tos: 0xb8 | 0b11, ..packet.hopped() };
        assert_eq!(unframe(RED, &sent), marked.bytes());
    }
}

#[test]
fn a_hub_opens_one_tunnel_and_seals_into_another() {
    // East routes and seals traffic for a third site, 10.3/16 behind 192.0.2.3.
    use dataplane::fib::{NextHop, Route};
    use dataplane::policy::{Action, Direction, Policy, PolicyConfig, Template};
    use dataplane::prefix::Prefix;
    use dataplane::sa::SaConfig;
    use dataplane::selector::Selector;
    use std::sync::Arc;

    let mut east = Gateway::at(Site::East, &PLAIN);
    let (far, hub) = (ip("192.0.2.3"), Site::East.outer(false));
    let onward = SaConfig { spi: 0x3003, source: hub, destination: far, ..PLAIN.sa(Site::East) };
    let sa = Arc::new(Sa::new(onward.clone()).unwrap());
    sa.arm(&nonces()).unwrap();
    let selector = Selector::between(prefix("10.1.0.0/16"), prefix("10.3.0.0/16")).unwrap();
    let inbound =
        PolicyConfig { index: 20, selector, ..PLAIN.policy(Direction::Forward, Site::East) };
    let template = Template { source: hub, destination: far, ..PLAIN.template(Site::East) };
    let outbound = PolicyConfig {
        index: 21,
        direction: Direction::Out,
        action: Action::Protect { template, bundle: Some(300) },
        ..inbound.clone()
    };
    east.change(|view| {
        assert!(view.bundles.set(300, Some(sa)));
        view.spd.insert(Arc::new(Policy::new(inbound)));
        view.spd.insert(Arc::new(Policy::new(outbound)));
        view.fib.insert(Prefix::host(far), Route::Via(NextHop { port: BLACK, gateway: None }));
        view.neighbours.set(BLACK, far, OTHER_MAC);
    });
    let packet = Packet::udp(ip("10.1.0.1"), ip("10.3.0.1"), 1, 2, 100);
    let (verdict, port, sent) =
        east.forward(BLACK, &Seal::default().frame(&PLAIN.sa(Site::East), &packet.bytes()));
    assert_eq!((verdict, port), (Verdict::Resealed, BLACK), "back out of the ingress port");
    let opened = Opened::from(&unframe(BLACK, &sent), &onward, 0);
    assert!(opened.plaintext.starts_with(&packet.hopped().bytes()));
}

#[test]
fn clear_traffic_is_forwarded_by_the_default_action_and_by_a_bypass() {
    use dataplane::policy::{Action, Direction, Policy, PolicyConfig};
    let mut west = Gateway::at(Site::West, &PLAIN);
    let packet = Packet::udp(ip("192.0.2.77"), ip("10.1.9.9"), 1, 2, 30);
    let (verdict, port, sent) = west.forward(BLACK, &packet.frame(BLACK));
    assert_eq!((verdict, port), (Verdict::Forwarded, RED));
    assert_eq!(unframe(RED, &sent), packet.hopped().bytes());

    // A bypass of better priority than the protecting policy lets one host through in clear.
    let bypass = PolicyConfig {
        index: 30,
        priority: 1,
        action: Action::Bypass,
        ..PLAIN.policy(Direction::Forward, Site::West)
    };
    let from_east = Packet::towards(Site::West, false, 30);
    assert_eq!(west.drop(BLACK, &from_east.frame(BLACK)), Verdict::ClearOfProtected);
    let bypass = std::sync::Arc::new(Policy::new(bypass));
    west.change(|view| {
        view.spd.insert(bypass.clone());
    });
    assert_eq!(west.forward(BLACK, &from_east.frame(BLACK)).0, Verdict::Forwarded);
    assert_eq!((bypass.usage().packets, bypass.usage().bytes), (1, 58));
}

#[test]
fn ipv4_options_pass_unchanged() {
    let mut west = Gateway::at(Site::West, &PLAIN);
    let mut bytes = Packet::towards(Site::East, false, 20).bytes();
    // A router alert of four bytes.
    bytes.splice(20..20, [0x94, 4, 0, 0]);
    bytes[0] = 0x46;
    let total_len = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&total_len.to_be_bytes());
    assert!(wire::ipv4::mend_checksum(&mut bytes));
    let (verdict, _, sealed) = west.forward(RED, &frame(RED, &bytes));
    assert_eq!(verdict, Verdict::Sealed);
    let opened = Opened::from(&unframe(BLACK, &sealed), &PLAIN.sa(Site::East), 0);
    assert_eq!(opened.plaintext[20..bytes.len()], bytes[20..]);
    assert_eq!(wire::checksum::of(&opened.plaintext[..24]), 0);
}
