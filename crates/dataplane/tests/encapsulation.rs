//! ESP in UDP (RFC 3948): what goes out is what Linux sends, what comes in is opened wherever it
//! comes from, and control hears of a peer that moved.

mod fixture;

use std::sync::Arc;

use dataplane::encapsulation::UdpEncapsulation;
use dataplane::event::{Event, REPEAT_NS};
use dataplane::fib::{NextHop, Route};
use dataplane::policy::{Action, Direction, Policy, PolicyConfig, Template};
use dataplane::prefix::Family;
use dataplane::sa::{Mode, Sa, SaConfig};
use dataplane::selector::Selector;
use dataplane::transport::Ends;
use dataplane::verdict::Verdict;
use fixture::*;
use wire::{checksum, protocol, udp};

/// Ports that are neither 4500 nor the same.
const TUNNEL: Tunnel = Tunnel { udp: Some((4500, 61_000)), ..PLAIN };

fn inner() -> Packet {
    Packet::towards(Site::East, false, 31)
}

fn east() -> Gateway {
    Gateway::at(Site::East, &TUNNEL)
}

fn to_east() -> SaConfig {
    TUNNEL.sa(Site::East)
}

/// A datagram of west's to east's port.
fn datagram_to_east(payload: &[u8]) -> Packet {
    let (source, destination) = (Site::West.outer(false), Site::East.outer(false));
    Packet { payload: datagram(4500, 61_000, payload), ..Packet::udp(source, destination, 0, 0, 0) }
}

#[test]
fn datagrams_carry_the_ports_and_the_checksum_that_linux_sends() {
    for outer_v6 in [false, true] {
        let tunnel = Tunnel { outer_v6, ..TUNNEL };
        let mut west = Gateway::at(Site::West, &tunnel);
        // Even and odd lengths: an ICV ends on any byte.
        for len in [0, 1, 2, 3, 1000, 1001] {
            let packet = Packet::towards(Site::East, false, len);
            let (verdict, _, sealed) = west.forward(RED, &packet.frame(RED));
            assert_eq!(verdict, Verdict::Sealed);
            let sealed = unframe(BLACK, &sealed);
            let packet = &sealed[if outer_v6 { 40 } else { 20 }..];
            let datagram = udp::Packet::parse(packet).unwrap();
            assert_eq!((datagram.header.source(), datagram.header.destination()), (4500, 61_000));
            assert_eq!(datagram.payload.len() + 8, packet.len());
            if outer_v6 {
                let ends = (Site::West.outer(true), Site::East.outer(true));
                let (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) = ends else { panic!() };
                let sum = checksum::pseudo_v6(from, to, protocol::UDP, packet.len() as u32);
                assert_ne!(datagram.header.checksum(), 0, "{len}");
                assert!(datagram.checksum_holds(sum), "{len}");
            } else {
                assert_eq!(datagram.header.checksum(), 0);
            }
        }
    }
}

#[test]
fn an_sa_opens_either_plain_esp_or_esp_in_udp() {
    for (tunnel, other) in [(PLAIN, TUNNEL), (TUNNEL, PLAIN)] {
        let mut east = Gateway::at(Site::East, &tunnel);
        east.change(|view| view.encapsulation_ports.set(61_000, true));
        let (right, wrong) = (tunnel.sa(Site::East), other.sa(Site::East));
        let frame = Seal::sequence(1).frame(&wrong, &inner().bytes());
        assert_eq!(east.drop(BLACK, &frame), Verdict::EncapsulationMismatch);
        let stats = east.inbound().stats();
        assert_eq!((stats.received, stats.other_errors), (0, 1));
        let frame = Seal::sequence(1).frame(&right, &inner().bytes());
        assert_eq!(east.forward(BLACK, &frame).0, Verdict::Opened);
    }
}

#[test]
fn any_port_of_an_sa_is_one_for_all_sas_and_others_are_the_hosts() {
    let mut east = east();
    let to_port = |port: u16, sequence: u64| {
        let udp = UdpEncapsulation { destination_port: port, ..to_east().encapsulation.unwrap() };
        let sa = SaConfig { encapsulation: Some(udp), ..to_east() };
        Seal::sequence(sequence).frame(&sa, &inner().bytes())
    };
    assert_eq!(east.forward(BLACK, &to_port(61_000, 1)).0, Verdict::Opened);
    assert_eq!(east.forward(BLACK, &to_port(4500, 2)).0, Verdict::Opened);
    assert_eq!(east.drop(BLACK, &to_port(500, 3)), Verdict::HostClear);
    east.change(|view| view.encapsulation_ports.set(61_000, false));
    assert_eq!(east.drop(BLACK, &to_port(61_000, 4)), Verdict::HostClear);
}

#[test]
fn what_is_no_esp_dies_by_its_name() {
    let mut east = east();
    let ike = [&[0; 4][..], &[7; 28]].concat();
    for (what, payload, verdict) in [
        ("a keepalive", &[0xff][..], Verdict::HostClear),
        ("IKE behind its marker", &ike, Verdict::HostClear),
        ("nothing", &[], Verdict::EspTruncated),
        ("less than an SPI", &[1, 2, 3], Verdict::EspTruncated),
        ("an SPI of nobody's", &[0x55; 64], Verdict::NoState),
    ] {
        let packet = datagram_to_east(payload);
        assert_eq!(east.drop(BLACK, &packet.frame(BLACK)), verdict, "{what}");
    }
    for len in 0..8 {
        let mut packet = datagram_to_east(&[0x55; 64]);
        packet.payload[4..6].copy_from_slice(&[0, len]);
        assert_eq!(east.drop(BLACK, &packet.frame(BLACK)), Verdict::UdpMalformed, "{len}");
    }
    let mut long = datagram_to_east(&[0x55; 64]);
    long.payload[5] += 1;
    assert_eq!(east.drop(BLACK, &long.frame(BLACK)), Verdict::UdpMalformed);
}

#[test]
fn a_datagram_cut_at_any_length_dies_and_leaves_no_trace() {
    let mut east = east();
    let whole = Seal::default().packet(&to_east(), &inner().bytes());
    let esp = &whole[28..];
    for len in 0..esp.len() {
        let expected = match len {
            0..=32 => Verdict::EspTruncated,
            _ if len % 4 != 0 => Verdict::EspAlignment,
            _ => Verdict::IntegrityFailed,
        };
        let verdict = east.drop(BLACK, &datagram_to_east(&esp[..len]).frame(BLACK));
        assert_eq!(verdict, expected, "{len}");
        // The same by the datagram's length alone, with the rest of the packet behind it.
        let mut packet = datagram_to_east(esp);
        packet.payload[4..6].copy_from_slice(&(8 + len as u16).to_be_bytes());
        assert_eq!(east.drop(BLACK, &packet.frame(BLACK)), expected, "{len}, then other bytes");
    }
    // Bytes behind the datagram do no harm.
    let mut longer = datagram_to_east(esp);
    longer.payload.extend([0xee; 13]);
    assert_eq!(east.forward(BLACK, &longer.frame(BLACK)).0, Verdict::Opened);
    assert_eq!(east.inbound().stats().received, 1);
}

/// A frame as a NAT would make it of west's: from another address and port.
fn translated(sequence: u64, address: &str, port: u16) -> Vec<u8> {
    let udp = UdpEncapsulation { source_port: port, ..to_east().encapsulation.unwrap() };
    let sa = SaConfig { source: ip(address), encapsulation: Some(udp), ..to_east() };
    Seal::sequence(sequence).frame(&sa, &inner().bytes())
}

#[test]
fn a_peer_that_moved_is_heard_and_announced_once_in_a_while() {
    let mut east = east();
    assert_eq!(east.forward(BLACK, &translated(1, "192.0.2.1", 4500)).0, Verdict::Opened);
    assert_eq!(east.events.try_iter().count(), 0, "it is where it should be");
    for sequence in 2..40 {
        let frame = translated(sequence, "192.0.2.1", 1024);
        assert_eq!(east.forward(BLACK, &frame).0, Verdict::Opened);
    }
    let announced = |port: u16, address: &str| Event::MappingChanged {
        spi: to_east().spi,
        destination: Site::East.outer(false),
        source: ip(address),
        source_port: port,
    };
    let events: Vec<Event> = east.events.try_iter().collect();
    assert_eq!(events[0], announced(1024, "192.0.2.1"));
    assert!(events.len() < 5, "not one per packet: {events:?}");
    std::thread::sleep(std::time::Duration::from_nanos(REPEAT_NS));
    assert_eq!(east.forward(BLACK, &translated(50, "198.51.100.7", 4500)).0, Verdict::Opened);
    let events: Vec<Event> = east.events.try_iter().collect();
    assert_eq!(events, [announced(4500, "198.51.100.7")]);
}

#[test]
fn neither_forgeries_nor_replays_move_a_peer() {
    let mut east = east();
    assert_eq!(east.forward(BLACK, &translated(1, "192.0.2.1", 4500)).0, Verdict::Opened);
    let mut forged = translated(2, "192.0.2.1", 1024);
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(east.drop(BLACK, &forged), Verdict::IntegrityFailed);
    let replayed = translated(1, "192.0.2.1", 1024);
    assert_eq!(east.drop(BLACK, &replayed), Verdict::Replayed);
    assert_eq!(east.events.try_iter().count(), 0);
}

#[test]
fn an_sa_without_a_source_port_takes_any() {
    let mut east = east();
    let udp = UdpEncapsulation { source_port: 0, ..to_east().encapsulation.unwrap() };
    let quiet = east.inbound().with_changes(|sa| sa.encapsulation = Some(udp)).unwrap();
    east.change(|view| {
        view.sad.insert(Arc::new(quiet));
    });
    assert_eq!(east.forward(BLACK, &translated(1, "192.0.2.1", 1024)).0, Verdict::Opened);
    assert_eq!(east.events.try_iter().count(), 0);
}

#[test]
fn a_moved_sa_goes_on_between_its_new_ends() {
    let mut west = Gateway::at(Site::West, &TUNNEL);
    let seal = |west: &mut Gateway| {
        let (_, _, sealed) = west.forward(RED, &inner().frame(RED));
        let sealed = unframe(BLACK, &sealed);
        let port = u16::from_be_bytes([sealed[22], sealed[23]]);
        (port, Opened::from(&sealed, &to_east(), 0))
    };
    let (port, before) = seal(&mut west);
    assert_eq!((port, before.sequence), (61_000, 1));
    let udp = UdpEncapsulation { destination_port: 999, ..to_east().encapsulation.unwrap() };
    let moved = SaConfig { encapsulation: Some(udp), ..to_east() };
    let sa: Arc<Sa> = Arc::new(west.outbound().moved(moved).unwrap());
    west.change(|view| assert!(view.bundles.set(0, Some(sa))));
    let (port, after) = seal(&mut west);
    assert_eq!((port, after.sequence), (999, 2));
    assert_eq!(after.iv, before.iv + 1, "no IV comes back, and none is skipped");
}

/// The SA between the sites' hosts, in transport mode.
fn transport(v6: bool, towards: Site) -> SaConfig {
    let sa = Tunnel { outer_v6: v6, ..TUNNEL }.sa(towards);
    let (source, destination) = (towards.peer().host(v6), towards.host(v6));
    SaConfig { mode: Mode::Transport, source, destination, ..sa }
}

#[test]
fn transport_mode_has_udp_behind_its_own_header() {
    for v6 in [false, true] {
        let config = transport(v6, Site::East);
        let mut west = Gateway::at(Site::West, &TUNNEL);
        let sa = Arc::new(Sa::new(config.clone()).unwrap());
        sa.arm(&nonces()).unwrap();
        let template = Template { mode: Mode::Transport, ..TUNNEL.template(Site::East) };
        let family = if v6 { Family::V6 } else { Family::V4 };
        let policy = PolicyConfig {
            selector: Selector::any(family),
            action: Action::Protect { template, bundle: None },
            ..TUNNEL.policy(Direction::Out, Site::East)
        };
        west.change(|view| {
            view.spd = Default::default();
            view.spd.insert(Arc::new(Policy::new(policy)));
            view.bundles.set(7, Some(sa));
            let SaConfig { source, destination, reqid, .. } = config;
            view.transport.insert(Ends { source, destination, if_id: 0, reqid, spi: 0 }, 7);
            let hop = NextHop { port: BLACK, gateway: Some(Site::East.outer(v6)) };
            view.fib.insert(Site::East.inner(v6), Route::Via(hop));
        });
        for len in [0, 1, 500, 501] {
            let packet = Packet::towards(Site::East, v6, len);
            let (verdict, _, sealed) = west.forward(RED, &packet.frame(RED));
            assert_eq!(verdict, Verdict::Sealed);
            let sealed = unframe(BLACK, &sealed);
            let opened = Opened::from(&sealed, &config, 0);
            assert_eq!(opened.plaintext[..packet.payload.len()], packet.payload);
            // The header is the packet's own, but for what it carries; behind it comes UDP.
            let payload = sealed[opened.outer.len() - 8..].to_vec();
            assert_eq!(Packet { payload: payload.clone(), ..packet.hopped() }.bytes(), sealed);
            let datagram = udp::Packet::parse(&payload).unwrap();
            assert_eq!((datagram.header.source(), datagram.header.destination()), (4500, 61_000));
            assert_eq!(datagram.payload.len() + 8, payload.len());
            match (packet.src, packet.dst) {
                (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) => {
                    let sum = checksum::pseudo_v6(from, to, protocol::UDP, payload.len() as u32);
                    assert_ne!(datagram.header.checksum(), 0);
                    assert!(datagram.checksum_holds(sum));
                }
                _ => assert_eq!(datagram.header.checksum(), 0),
            }
        }
    }
}
