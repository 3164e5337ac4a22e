//! Every way to die has its name, and a test that provokes it.

mod fixture;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dataplane::clock::Clock;
use dataplane::crew::{Lending, crew};
use dataplane::event::Event;
use dataplane::fib::Route;
use dataplane::policy::{Action, Direction, Policy, PolicyConfig};
use dataplane::prefix::Prefix;
use dataplane::sa::{HardLimits, Mode, Sa, SaConfig, SaFlags};
use dataplane::selector::{PortMatch, Selector};
use dataplane::spd::DefaultAction;
use dataplane::tunnel::TunnelName;
use dataplane::verdict::{Outcome, Verdict};
use dataplane::vrfs::{MAIN, PortVrf, UNKNOWN, Vrfs};
use fixture::*;
use wire::protocol;

/// A drop, and a way to provoke it, which returns the verdict that was counted.
type Case = (Verdict, fn() -> Verdict);

const CASES: &[Case] = &[
    (Verdict::EthernetTruncated, || west().drop(RED, &[0; 13])),
    (Verdict::NotForUs, || {
        let mut frame = clear().frame(RED);
        frame[5] ^= 1;
        west().drop(RED, &frame)
    }),
    (Verdict::VlanUnknown, || {
        let mut frame = clear().frame(RED);
        frame.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
        west().drop(RED, &frame)
    }),
    (Verdict::NotIp, || {
        let mut frame = clear().frame(RED);
        frame[12..14].copy_from_slice(&[0x08, 0x06]);
        west().drop(RED, &frame)
    }),
    (Verdict::IpTruncated, || {
        let frame = clear().frame(RED);
        west().drop(RED, &frame[..frame.len() - 1])
    }),
    (Verdict::IpVersion, || {
        let mut frame = clear().frame(RED);
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        west().drop(RED, &frame)
    }),
    (Verdict::IpHeaderLength, || drop_edited(|ip| ip[0] = 0x44)),
    (Verdict::IpTotalLength, || drop_edited(|ip| ip[2..4].fill(0))),
    (Verdict::IpChecksum, || {
        let mut frame = clear().frame(RED);
        frame[14 + 10] ^= 1;
        west().drop(RED, &frame)
    }),
    (Verdict::IpExtensions, || drop_with_option([7, 200, 0, 0])),
    (Verdict::SourceRoute, || drop_with_option([131, 4, 4, 0])),
    // A first fragment that ends inside the UDP header.
    (Verdict::IpFragment, || {
        let short = Packet { payload: vec![1, 2], ..clear() };
        let mut bytes = short.bytes();
        set_fragment(&mut bytes, 0x2000);
        west().drop(RED, &frame(RED, &bytes))
    }),
    (Verdict::MartianSource, || {
        let packet = Packet { src: ip("127.0.0.1"), ..clear() };
        west().drop(RED, &packet.frame(RED))
    }),
    (Verdict::MartianDestination, || {
        let packet = Packet { dst: ip("224.0.0.5"), ..clear() };
        west().drop(RED, &packet.frame(RED))
    }),
    (Verdict::HostClear, || {
        let packet = Packet { dst: Site::West.outer(false), ..clear() };
        west().drop(RED, &packet.frame(RED))
    }),
    (Verdict::HostUnreached, || {
        let mut east = east();
        east.change(|view| {
            view.local.insert(Site::East.host(false));
        });
        east.drop(BLACK, &Seal::default().frame(&to_east(), &inner().bytes()))
    }),
    (Verdict::FragmentEsp, || {
        let mut bytes = Seal::default().packet(&to_east(), &inner().bytes());
        set_fragment(&mut bytes, 0x2000);
        east().drop(BLACK, &frame(BLACK, &bytes))
    }),
    (Verdict::EspTruncated, || {
        let payload = to_east().spi.to_be_bytes().repeat(2);
        let packet = Packet { protocol: protocol::ESP, payload, ..outer() };
        east().drop(BLACK, &packet.frame(BLACK))
    }),
    (Verdict::EspAlignment, || {
        let mut payload = Seal::default().packet(&to_east(), &inner().bytes()).split_off(20);
        payload.push(0);
        let packet = Packet { protocol: protocol::ESP, payload, ..outer() };
        east().drop(BLACK, &packet.frame(BLACK))
    }),
    (Verdict::NoState, || {
        let sa = SaConfig { spi: 0x1234, ..to_east() };
        east().drop(BLACK, &Seal::default().frame(&sa, &inner().bytes()))
    }),
    (Verdict::UdpMalformed, || {
        let mut east = east();
        east.change(|view| view.encapsulation_ports.set(4500, true));
        let mut payload = datagram(4500, 4500, &[0x55; 60]);
        payload[5] = 7;
        east.drop(BLACK, &Packet { payload, ..outer() }.frame(BLACK))
    }),
    (Verdict::EncapsulationMismatch, || {
        let mut east = Gateway::at(Site::East, &Tunnel { udp: Some((4500, 4500)), ..PLAIN });
        east.drop(BLACK, &Seal::default().frame(&to_east(), &inner().bytes()))
    }),
    (Verdict::InSaExpired, || {
        let mut east = east();
        let limits = HardLimits { packets: 1, bytes: u64::MAX };
        replace_inbound(&mut east, |config| config.limits = limits);
        open_one(&mut east, &Seal::sequence(1));
        east.drop(BLACK, &Seal::sequence(2).frame(&to_east(), &inner().bytes()))
    }),
    (Verdict::SequenceZero, || drop_sealed(&Seal::sequence(0))),
    (Verdict::Replayed, || {
        let mut east = east();
        open_one(&mut east, &Seal::sequence(5));
        east.drop(BLACK, &Seal::sequence(5).frame(&to_east(), &inner().bytes()))
    }),
    (Verdict::ReplayOld, || {
        let mut east = east();
        open_one(&mut east, &Seal::sequence(65));
        open_one(&mut east, &Seal::sequence(2));
        east.drop(BLACK, &Seal::sequence(1).frame(&to_east(), &inner().bytes()))
    }),
    (Verdict::IntegrityFailed, || {
        let mut frame = Seal::default().frame(&to_east(), &inner().bytes());
        *frame.last_mut().unwrap() ^= 0x80;
        east().drop(BLACK, &frame)
    }),
    (Verdict::EspPadding, || {
        // 28 + 8 bytes of inner packet, two of padding.
        drop_sealed(&Seal { padding: Some(vec![1, 3]), ..Seal::default() })
    }),
    (Verdict::EspNextHeader, || {
        drop_sealed(&Seal { next_header: protocol::UDP, ..Seal::default() })
    }),
    (Verdict::InnerMalformed, || {
        drop_sealed(&Seal { next_header: protocol::IPV6, ..Seal::default() })
    }),
    (Verdict::EcnNotCapable, || drop_sealed(&Seal { outer_tos: 0b11, ..Seal::default() })),
    (Verdict::SelectorMismatch, || {
        let mut east = east();
        let other = Prefix::host(ip("10.1.0.77"));
        let selector = Selector::between(other, Site::East.inner(false));
        replace_inbound(&mut east, |config| config.selector = selector);
        east.drop(BLACK, &Seal::default().frame(&to_east(), &inner().bytes()))
    }),
    // The peer holds good keys, but of a tunnel with another reqid.
    (Verdict::PolicyMismatch, || {
        let mut east = east();
        let stranger = SaConfig { spi: 0x777, reqid: 99, ..to_east() };
        let sa = Arc::new(Sa::new(stranger.clone()).unwrap());
        east.change(|view| {
            view.sad.insert(sa.clone());
        });
        let verdict = east.drop(BLACK, &Seal::default().frame(&stranger, &inner().bytes()));
        assert_eq!(sa.stats().other_errors, 1);
        verdict
    }),
    (Verdict::NoPolicy, || {
        let spoofed = Packet { src: ip("8.8.8.8"), ..inner() };
        east().drop(BLACK, &Seal::default().frame(&to_east(), &spoofed.bytes()))
    }),
    (Verdict::ClearOfProtected, || east().drop(BLACK, &inner().frame(BLACK))),
    (Verdict::PolicyBlock, || {
        let mut west = west();
        add_policy(&mut west, Direction::Forward, Action::Discard, clear_selector());
        west.drop(RED, &clear().frame(RED))
    }),
    (Verdict::OutPolicyBlock, || {
        let mut west = west();
        add_policy(&mut west, Direction::Out, Action::Discard, clear_selector());
        west.drop(RED, &clear().frame(RED))
    }),
    (Verdict::NoSa, || {
        let mut west = west();
        west.change(|view| assert!(view.bundles.set(0, None)));
        let verdict = west.drop(RED, &inner().frame(RED));
        west.drop(RED, &inner().frame(RED));
        let events: Vec<Event> = west.events.try_iter().collect();
        let [Event::SaNeeded { policy, flow, cpu: None }] = events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(policy, PLAIN.policy(Direction::Out, Site::East).index);
        assert_eq!((flow.src, flow.dst, flow.dst_port), (inner().src, inner().dst, 5000));
        verdict
    }),
    (Verdict::HoldFull, || only_loss(&mut waiting(17))),
    (Verdict::HoldExpired, || {
        let mut west = waiting(1);
        west.worker.set_hold_time(Duration::ZERO);
        west.worker.turn();
        only_loss(&mut west)
    }),
    (Verdict::HoldPolicyGone, || {
        let mut west = waiting(1);
        let policy = PLAIN.policy(Direction::Out, Site::East);
        west.change(|view| {
            view.spd.remove(&policy);
        });
        west.turn_until_nothing_waits();
        only_loss(&mut west)
    }),
    (Verdict::OutSaExpired, || {
        let mut west = west();
        let limits = HardLimits { packets: u64::MAX, bytes: 1 };
        replace_outbound(&mut west, |config| config.limits = limits);
        assert_eq!(west.forward(RED, &inner().frame(RED)).0, Verdict::Sealed);
        west.drop(RED, &inner().frame(RED))
    }),
    (Verdict::SequenceExhausted, || {
        let mut west = west();
        install_outbound(&mut west, SaConfig { sent: u64::from(u32::MAX) - 1, ..to_east() });
        assert_eq!(west.forward(RED, &inner().frame(RED)).0, Verdict::Sealed);
        west.drop(RED, &inner().frame(RED))
    }),
    (Verdict::NonceExhausted, || {
        let mut west = west();
        let unarmed = Arc::new(Sa::new(to_east()).unwrap());
        west.change(|view| assert!(view.bundles.set(0, Some(unarmed))));
        west.drop(RED, &inner().frame(RED))
    }),
    (Verdict::FragmentOfPortPolicy, || {
        let mut west = west();
        let selector = Selector { destination_port: PortMatch::exactly(5000), ..clear_selector() };
        add_policy(&mut west, Direction::Forward, Action::Bypass, selector);
        let mut bytes = clear().bytes();
        set_fragment(&mut bytes, 0x2000);
        assert_eq!(west.drop(RED, &frame(RED, &bytes)), Verdict::FragmentOfPortPolicy);
        set_fragment(&mut bytes, 0x0040);
        west.drop(RED, &frame(RED, &bytes))
    }),
    (Verdict::FragmentTransport, || {
        let mut west = west();
        install_outbound(&mut west, SaConfig { mode: Mode::Transport, ..to_east() });
        let mut bytes = inner().bytes();
        set_fragment(&mut bytes, 0x2000);
        west.drop(RED, &frame(RED, &bytes))
    }),
    (Verdict::TtlExpired, || west().drop(RED, &Packet { ttl: 1, ..clear() }.frame(RED))),
    (Verdict::NoRoute, || {
        let packet = Packet { dst: ip("203.0.113.1"), ..clear() };
        west().drop(RED, &packet.frame(RED))
    }),
    (Verdict::RouteBlackhole, || drop_by_route(Route::Blackhole)),
    (Verdict::RouteUnreachable, || drop_by_route(Route::Unreachable)),
    (Verdict::RouteProhibit, || drop_by_route(Route::Prohibit)),
    (Verdict::RouteOutOfVrf, || drop_by_route(Route::OutOfVrf)),
    (Verdict::VrfUnknown, || {
        let mut west = west();
        let unknown = PortVrf { inner: UNKNOWN, outer: UNKNOWN };
        west.change(|view| view.vrfs = Vrfs::new(vec![unknown; 2], MAIN));
        west.drop(RED, &clear().frame(RED))
    }),
    (Verdict::NoTunnel, || {
        let mut west = west();
        west.change(|view| {
            let row = view.tunnels.join(TunnelName { if_id: 7, remote: None }).unwrap();
            view.fib.insert(Prefix::host(clear().dst), Route::Tunnel(row));
        });
        west.drop(RED, &clear().frame(RED))
    }),
    (Verdict::RouteNotAPort, || drop_by_route(Route::NotAPort)),
    (Verdict::TunnelToSelf, || {
        let mut west = west();
        west.change(|view| {
            view.fib.insert(Prefix::host(Site::East.outer(false)), Route::Local);
        });
        west.drop(RED, &inner().frame(RED))
    }),
    (Verdict::NeighbourUnresolved, || {
        let mut west = west();
        let peer = Site::East.outer(false);
        west.change(|view| assert!(view.neighbours.remove(BLACK, peer)));
        let verdict = west.drop(RED, &inner().frame(RED));
        west.drop(RED, &inner().frame(RED));
        let events: Vec<Event> = west.events.try_iter().collect();
        assert_eq!(events, [Event::NeighbourNeeded { port: BLACK, address: peer }]);
        verdict
    }),
    // 1500 bytes fit the link, but not with a tunnel around them.
    (Verdict::TooBig, || {
        let packet = Packet::towards(Site::East, false, 1500 - 28);
        west().drop(RED, &packet.frame(RED))
    }),
    // The longest frame of a chunk leaves no room for a trailer.
    (Verdict::NoRoom, || {
        let packet = Packet::towards(Site::East, false, 2048 - 256 - 14 - 28);
        west().drop(RED, &packet.frame(RED))
    }),
    (Verdict::PortDown, || {
        let mut west = west();
        west.change(|view| {
            let mut ports = view.ports.to_vec();
            ports[usize::from(BLACK)].up = false;
            view.ports = ports.into();
        });
        west.drop(RED, &inner().frame(RED))
    }),
    (Verdict::TransmitFull, || {
        // Nobody collects: the ring takes 128 frames and the queue 512.
        let mut west = Gateway::with_frames(PLAIN.view(Site::West, &nonces()), 1024);
        for _ in 0..11 {
            for _ in 0..64 {
                west.inject(RED, &inner().frame(RED));
            }
            while west.worker.turn() != 0 {}
        }
        let snapshot = west.snapshot();
        assert_eq!(snapshot.of(Verdict::Sealed), 128);
        assert_eq!((snapshot.of(Verdict::TransmitFull), west.worker.waiting()), (64, 512));
        assert_eq!(snapshot.decided() + 512, snapshot.received);
        assert_eq!(west.worker.pool().free(), 1024 - 128 - 512);
        Verdict::TransmitFull
    }),
    (Verdict::PipelineFull, || {
        // It lends all its work, and nobody ever does any: the ring fills.
        let mut west = Gateway::with_frames(PLAIN.view(Site::West, &nonces()), 4096);
        let mut member = crew(2, Clock).unwrap().swap_remove(0);
        member.set_lending(Lending::Dispatch);
        member.set_pause(Duration::ZERO);
        west.worker.join(member);
        while west.snapshot().of(Verdict::PipelineFull) == 0 {
            for _ in 0..64 {
                west.inject(RED, &inner().frame(RED));
            }
            assert_ne!(west.worker.turn(), 0);
        }
        west.worker.run(&AtomicBool::new(true)).unwrap();
        let snapshot = west.snapshot();
        assert_eq!(snapshot.of(Verdict::Stopped), 2048, "what the ring held");
        assert_eq!((snapshot.decided(), west.worker.pool().free()), (snapshot.received, 4096));
        Verdict::PipelineFull
    }),
    (Verdict::Stopped, || {
        let mut west = Gateway::with_frames(PLAIN.view(Site::West, &nonces()), 256);
        for _ in 0..4 {
            for _ in 0..40 {
                west.inject(RED, &inner().frame(RED));
            }
            while west.worker.turn() != 0 {}
        }
        west.worker.run(&AtomicBool::new(true)).unwrap();
        let snapshot = west.snapshot();
        assert_eq!((snapshot.of(Verdict::Sealed), snapshot.of(Verdict::Stopped)), (128, 32));
        assert_eq!(snapshot.decided(), snapshot.received);
        assert_eq!(west.worker.pool().free(), 128);
        Verdict::Stopped
    }),
];

#[test]
fn every_drop_is_provoked_under_its_own_name() {
    for (expected, provoke) in CASES {
        assert_eq!(provoke(), *expected);
    }
    let provoked: HashSet<Verdict> = CASES.iter().map(|(verdict, _)| *verdict).collect();
    let missing = Verdict::ALL
        .iter()
        .filter(|verdict| verdict.outcome() == Outcome::Dropped && !provoked.contains(verdict));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&Verdict>::new());
}

fn west() -> Gateway {
    Gateway::at(Site::West, &PLAIN)
}

fn east() -> Gateway {
    Gateway::at(Site::East, &PLAIN)
}

fn to_east() -> SaConfig {
    PLAIN.sa(Site::East)
}

/// A packet that the tunnel protects.
fn inner() -> Packet {
    Packet::towards(Site::East, false, 8)
}

/// A packet between outer addresses.
fn outer() -> Packet {
    Packet::udp(Site::West.outer(false), Site::East.outer(false), 0, 0, 0)
}

/// A packet that no policy covers.
fn clear() -> Packet {
    Packet::udp(ip("10.1.0.1"), ip("10.1.0.2"), 4000, 5000, 40)
}

fn clear_selector() -> Selector {
    Selector::between(Prefix::host(clear().src), Prefix::host(clear().dst)).unwrap()
}

fn fix_checksum(ip: &mut [u8]) {
    let len = usize::from(ip[0] & 0xf) * 4;
    ip[10..12].fill(0);
    let checksum = wire::checksum::of(&ip[..len]);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
}

fn set_fragment(ip: &mut [u8], field: u16) {
    ip[6..8].copy_from_slice(&field.to_be_bytes());
    fix_checksum(ip);
}

fn drop_edited(edit: fn(&mut [u8])) -> Verdict {
    let mut bytes = clear().bytes();
    edit(&mut bytes);
    fix_checksum(&mut bytes);
    west().drop(RED, &frame(RED, &bytes))
}

fn drop_with_option(option: [u8; 4]) -> Verdict {
    let mut bytes = clear().bytes();
    bytes.splice(20..20, option);
    bytes[0] = 0x46;
    let len = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&len.to_be_bytes());
    fix_checksum(&mut bytes);
    west().drop(RED, &frame(RED, &bytes))
}

fn drop_sealed(seal: &Seal) -> Verdict {
    east().drop(BLACK, &seal.frame(&to_east(), &inner().bytes()))
}

fn drop_by_route(route: Route) -> Verdict {
    let mut west = west();
    west.change(|view| {
        view.fib.insert(Prefix::host(clear().dst), route);
    });
    west.drop(RED, &clear().frame(RED))
}

/// A gateway with packets that wait for an SA.
fn waiting(packets: usize) -> Gateway {
    let mut view = PLAIN.view(Site::West, &nonces());
    view.acquire_is_heard = true;
    view.bundles.set(0, None);
    let mut west = Gateway::with_frames(view, 512);
    for _ in 0..packets {
        west.inject(RED, &inner().frame(RED));
        west.worker.turn();
    }
    west
}

/// How the one packet that was lost ended.
fn only_loss(gateway: &mut Gateway) -> Verdict {
    let counts = gateway.snapshot();
    assert_eq!(counts.decided(), 1);
    let lost = Verdict::ALL.iter().find(|verdict| counts.of(**verdict) == 1);
    assert!(gateway.collect(BLACK).is_none() && gateway.collect(RED).is_none());
    *lost.unwrap()
}

fn open_one(east: &mut Gateway, seal: &Seal) {
    let frame = seal.frame(&to_east(), &inner().bytes());
    assert_eq!(east.forward(BLACK, &frame).0, Verdict::Opened);
}

fn add_policy(gateway: &mut Gateway, direction: Direction, action: Action, selector: Selector) {
    let (index, priority, position) = (40, 1, 40);
    let (own_sas, if_id) = (false, 0);
    let config =
        PolicyConfig { index, direction, if_id, selector, priority, position, action, own_sas };
    gateway.change(|view| {
        view.spd.insert(Arc::new(Policy::new(config)));
    });
}

fn replace_inbound(gateway: &mut Gateway, change: impl FnOnce(&mut SaConfig)) {
    let changed = Arc::new(gateway.inbound().with_changes(change).unwrap());
    gateway.change(|view| {
        view.sad.insert(changed);
    });
}

fn replace_outbound(gateway: &mut Gateway, change: impl FnOnce(&mut SaConfig)) {
    let changed = Arc::new(gateway.outbound().with_changes(change).unwrap());
    gateway.change(|view| assert!(view.bundles.set(0, Some(changed))));
}

fn install_outbound(gateway: &mut Gateway, config: SaConfig) {
    let sa = Arc::new(Sa::new(config).unwrap());
    sa.arm(&nonces()).unwrap();
    gateway.change(|view| assert!(view.bundles.set(0, Some(sa))));
}

#[test]
fn a_dummy_is_consumed_and_counts_as_received() {
    let mut east = east();
    // RFC 4303 §2.6: the payload of a dummy need not be well formed.
    let dummy = Seal { next_header: protocol::NO_NEXT_HEADER, ..Seal::sequence(9) };
    assert_eq!(east.drop(BLACK, &dummy.frame(&to_east(), &[0xff; 50])), Verdict::Dummy);
    let stats = east.inbound().stats();
    assert_eq!((stats.received, stats.usage.packets, stats.other_errors), (9, 1, 0));
    assert_eq!(east.drop(BLACK, &dummy.frame(&to_east(), &[0xff; 50])), Verdict::Replayed);
}

#[test]
fn forgeries_never_move_the_window() {
    let mut east = east();
    open_one(&mut east, &Seal::sequence(10));
    let forged = SaConfig { key: Tunnel { key_len: 32, ..PLAIN }.key(), ..to_east() };
    for sequence in [11, 74, 75, 1000, u64::from(u32::MAX)] {
        let frame = Seal::sequence(sequence).frame(&forged, &inner().bytes());
        assert_eq!(east.drop(BLACK, &frame), Verdict::IntegrityFailed);
    }
    let stats = east.inbound().stats();
    assert_eq!((stats.received, stats.integrity_failed), (10, 5));
    for sequence in [1, 9, 11, 12] {
        open_one(&mut east, &Seal::sequence(sequence));
    }
}

#[test]
fn a_packet_cut_at_any_length_dies_and_leaves_no_trace() {
    for outer_v6 in [false, true] {
        let tunnel = Tunnel { outer_v6, ..PLAIN };
        let mut east = Gateway::at(Site::East, &tunnel);
        let sa = tunnel.sa(Site::East);
        let whole = Seal::default().frame(&sa, &inner().bytes());
        for len in 0..whole.len() {
            // Cut on the wire: the IP header still claims the whole length.
            let verdict = east.drop(BLACK, &whole[..len]);
            let expected = if len < 14 { Verdict::EthernetTruncated } else { Verdict::IpTruncated };
            assert_eq!(verdict, expected, "{len}");
        }
        let header_len = if outer_v6 { 40 } else { 20 };
        let esp = &whole[14 + header_len..];
        for len in 0..esp.len() {
            // Cut by the sender: the IP header agrees with what is left.
            let payload = esp[..len].to_vec();
            let template = Packet::udp(sa.source, sa.destination, 0, 0, 0);
            let packet = Packet { protocol: protocol::ESP, payload, ..template };
            let verdict = east.drop(BLACK, &packet.frame(BLACK));
            let expected = match len {
                0..=32 => Verdict::EspTruncated,
                _ if len % 4 != 0 => Verdict::EspAlignment,
                _ => Verdict::IntegrityFailed,
            };
            assert_eq!(verdict, expected, "{len}");
        }
        assert_eq!(east.inbound().stats().received, 0);
        assert_eq!(east.forward(BLACK, &whole).0, Verdict::Opened);
    }
}

#[test]
fn a_packet_corrupted_in_any_bit_dies() {
    let mut east = east();
    let whole = Seal::default().frame(&to_east(), &inner().bytes());
    for at in (0..whole.len()).filter(|at| !(6..12).contains(at)) {
        for bit in 0..8 {
            let mut frame = whole.clone();
            frame[at] ^= 1 << bit;
            let verdict = east.drop(BLACK, &frame);
            if at >= 14 + 20 + 8 {
                assert_eq!(verdict, Verdict::IntegrityFailed, "byte {at} bit {bit}");
            }
        }
    }
    assert_eq!(east.inbound().stats().received, 0);
    assert_eq!(east.forward(BLACK, &whole).0, Verdict::Opened);
}

#[test]
fn padding_may_neither_lie_nor_reach_out_of_the_packet() {
    let cases = [
        (Some(vec![0, 0]), None),
        (Some(vec![2, 1]), None),
        (Some(vec![1, 2, 3, 4, 5, 7]), None),
        (None, Some(200)),
        (None, Some(255)),
    ];
    for (padding, pad_len) in cases {
        let seal = Seal { padding, pad_len, ..Seal::default() };
        assert_eq!(drop_sealed(&seal), Verdict::EspPadding);
    }
    // More than is needed is the sender's right (RFC 4303 §2.4).
    let generous = Seal { padding: Some((1..=254).collect()), ..Seal::default() };
    open_one(&mut east(), &generous);
}

#[test]
fn inner_packets_must_be_what_they_claim() {
    let mut bytes = inner().bytes();
    bytes[10] ^= 1;
    let verdict = |payload: &[u8]| east().drop(BLACK, &Seal::default().frame(&to_east(), payload));
    assert_eq!(verdict(&bytes), Verdict::InnerMalformed, "checksum");
    let bytes = inner().bytes();
    for len in [0, 1, 19, 20, bytes.len() - 1] {
        assert_eq!(verdict(&bytes[..len]), Verdict::InnerMalformed, "{len}");
    }
    let v6 = Packet::towards(Site::East, true, 8).bytes();
    assert_eq!(verdict(&v6), Verdict::InnerMalformed, "IPv6 under next header 4");
    let martian = Packet { src: ip("127.0.0.1"), ..inner() };
    assert_eq!(verdict(&martian.bytes()), Verdict::MartianSource);
}

#[test]
fn fragments_pass_where_ports_do_not_matter() {
    let mut west = west();
    for field in [0x2000, 0x2003, 0x0040] {
        let mut bytes = inner().bytes();
        set_fragment(&mut bytes, field);
        assert_eq!(west.forward(RED, &frame(RED, &bytes)).0, Verdict::Sealed);
    }
}

#[test]
fn ports_of_an_sas_selector_refuse_fragments() {
    let mut east = east();
    let all = Selector::between(Site::West.inner(false), Site::East.inner(false)).unwrap();
    let selector = Selector { destination_port: PortMatch::exactly(5000), ..all };
    replace_inbound(&mut east, |config| config.selector = Some(selector));
    open_one(&mut east, &Seal::sequence(1));
    let mut bytes = inner().bytes();
    set_fragment(&mut bytes, 0x0040);
    let frame = Seal::sequence(2).frame(&to_east(), &bytes);
    assert_eq!(east.drop(BLACK, &frame), Verdict::FragmentOfPortPolicy);
}

#[test]
fn default_actions_block_by_the_names_of_linux() {
    let mut west = west();
    west.change(|view| view.spd.set_default(Direction::Forward, DefaultAction::Block));
    assert_eq!(west.drop(RED, &clear().frame(RED)), Verdict::NoPolicy);
    west.change(|view| {
        view.spd.set_default(Direction::Forward, DefaultAction::Accept);
        view.spd.set_default(Direction::Out, DefaultAction::Block);
    });
    assert_eq!(west.drop(RED, &clear().frame(RED)), Verdict::OutPolicyBlock);
    assert_eq!(Verdict::NoPolicy.linux(), Some("XfrmInNoPols"));
}

#[test]
fn an_optional_template_lets_clear_traffic_pass_both_ways() {
    let mut west = west();
    west.change(|view| assert!(view.bundles.set(0, None)));
    for (direction, towards) in [(Direction::Out, Site::East), (Direction::Forward, Site::West)] {
        let mut config = PLAIN.policy(direction, towards);
        let Action::Protect { template, .. } = &mut config.action else { unreachable!() };
        template.optional = true;
        west.change(|view| {
            view.spd.insert(Arc::new(Policy::new(config)));
        });
    }
    let back = Packet::towards(Site::West, false, 8);
    assert_eq!(west.forward(BLACK, &back.frame(BLACK)).0, Verdict::Forwarded);
    // Towards the east there is no route but to the tunnel's end.
    assert_eq!(west.drop(RED, &inner().frame(RED)), Verdict::NoRoute);
}

#[test]
fn an_outbound_sa_carries_only_what_its_selector_admits() {
    let mut west = west();
    let other = Selector::between(Prefix::host(ip("10.1.0.77")), Site::East.inner(false));
    replace_outbound(&mut west, |config| config.selector = other);
    assert_eq!(west.drop(RED, &inner().frame(RED)), Verdict::NoSa);
    let admitted = Packet { src: ip("10.1.0.77"), ..inner() };
    assert_eq!(west.forward(RED, &admitted.frame(RED)).0, Verdict::Sealed);
}

#[test]
fn no_ecn_ignores_the_outer_mark() {
    let mut east = east();
    let flags = SaFlags { no_ecn: true, ..SaFlags::default() };
    replace_inbound(&mut east, |config| config.flags = flags);
    open_one(&mut east, &Seal { outer_tos: 0b11, ..Seal::default() });
}
