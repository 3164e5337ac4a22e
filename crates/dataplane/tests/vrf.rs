//! VRFs: two customers with the same addresses, each with a port and a tunnel, and one wire for both.

mod fixture;

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::fib::{NextHop, Route};
use dataplane::policy::{Direction, Policy};
use dataplane::prefix::Prefix;
use dataplane::sa::{Sa, SaConfig};
use dataplane::tunnel::TunnelName;
use dataplane::verdict::Verdict;
use dataplane::view::{PortInfo, View};
use dataplane::vrfs::{MAIN, PortVrf, UNKNOWN, Vrfs};
use fixture::*;

/// The second customer's port.
const RED2: u16 = HOST;
/// The devices of the two customers' groups of tunnels, which no packet of these tests comes by.
const DEVICES: [u16; 2] = [3, 4];
const PORTS: [u16; 2] = [RED, RED2];
const IF_IDS: [u32; 2] = [7, 8];
const FAR_ENDS: [&str; 2] = ["192.0.2.2", "192.0.2.3"];

/// The table of a customer.
fn vrf(customer: usize) -> u32 {
    customer as u32 + 1
}

fn lead(view: &mut View, inner: [u32; 2], outer: u32, stray: u32) {
    let of = |inner, outer| PortVrf { inner, outer };
    view.vrfs = Vrfs::new(
        vec![
            of(inner[0], inner[0]),
            of(outer, outer),
            of(inner[1], inner[1]),
            of(inner[0], outer),
            of(inner[1], outer),
        ],
        stray,
    );
}

/// The SA of a customer's tunnel towards a site.
fn sa(customer: usize, towards: Site) -> SaConfig {
    let tunnel = Tunnel { if_id: IF_IDS[customer], ..PLAIN };
    let (config, far_end) = (tunnel.sa(towards), ip(FAR_ENDS[customer]));
    let spi = config.spi + customer as u32;
    match towards {
        Site::East => SaConfig { spi, destination: far_end, ..config },
        Site::West => SaConfig { spi, source: far_end, ..config },
    }
}

/// The west with two customers, the far ends in the table `outer`.
fn west(outer: u32) -> Gateway {
    let nonces = nonces();
    let mut view = View { ports: PLAIN.view(Site::West, &nonces).ports, ..View::default() };
    let third = PortInfo { ifindex: 12, mac: port_mac(RED2), ..view.ports[0].clone() };
    view.ports = view.ports.iter().cloned().chain([third]).collect();
    view.local.insert(Site::West.outer(false));
    lead(&mut view, [vrf(0), vrf(1)], outer, MAIN);
    for customer in 0..2 {
        let far_end = ip(FAR_ENDS[customer]);
        let name = TunnelName { if_id: IF_IDS[customer], remote: Some(far_end) };
        let row = view.tunnels.join(name).unwrap();
        view.tunnels.set_device(name.if_id, DEVICES[customer]);
        view.tunnels.set_slots(row, [Some(customer as u32); 2]);
        let outbound = Arc::new(Sa::new(sa(customer, Site::East)).unwrap());
        outbound.arm(&nonces).unwrap();
        view.bundles.set(customer as u32, Some(outbound));
        view.sad.insert(Arc::new(Sa::new(sa(customer, Site::West)).unwrap()));
        // Both have the same addresses on both sides.
        let host = Site::West.host(false);
        let hop = NextHop { port: PORTS[customer], gateway: Some(host) };
        view.fib.insert_in(vrf(customer), Site::West.inner(false), Route::Via(hop));
        view.fib.insert_in(vrf(customer), Site::East.inner(false), Route::Tunnel(row));
        view.neighbours.set(PORTS[customer], host, OTHER_MAC);
        let wire = Route::Via(NextHop { port: BLACK, gateway: None });
        view.fib.insert_in(outer, Prefix::host(far_end), wire);
        view.neighbours.set(BLACK, far_end, OTHER_MAC);
    }
    Gateway::new(view)
}

fn towards(site: Site) -> Packet {
    Packet::udp(site.peer().host(false), site.host(false), 4000, 5000, 40)
}

/// What the far end of a customer sends.
fn sealed(customer: usize, sequence: u64) -> Vec<u8> {
    Seal::sequence(sequence).frame(&sa(customer, Site::West), &towards(Site::West).bytes())
}

#[test]
fn the_same_addresses_go_each_by_its_own_tunnel_and_come_back_by_its_own_port() {
    for outer in [MAIN, 3] {
        let mut west = west(outer);
        for round in 1..=2 {
            for customer in 0..2 {
                let packet = towards(Site::East).frame(PORTS[customer]);
                let (verdict, egress, sent) = west.forward(PORTS[customer], &packet);
                assert_eq!((verdict, egress), (Verdict::Sealed, BLACK));
                let sent = unframe(BLACK, &sent);
                let far_end = IpAddr::from(<[u8; 4]>::try_from(&sent[16..20]).unwrap());
                assert_eq!(far_end, ip(FAR_ENDS[customer]));
                let (verdict, egress, _) = west.forward(BLACK, &sealed(customer, round));
                assert_eq!((verdict, egress), (Verdict::Opened, PORTS[customer]));
            }
        }
    }
}

#[test]
fn packets_of_both_in_one_batch_do_not_take_each_others_way() {
    let mut west = west(MAIN);
    for sequence in 1..=8 {
        for customer in 0..2 {
            west.inject(BLACK, &sealed(customer, sequence));
        }
    }
    west.worker.turn();
    for port in PORTS {
        let came = std::iter::from_fn(|| west.collect(port)).count();
        assert_eq!(came, 8, "by port {port}");
    }
    // In clear within a VRF, too: what one has a route for, the other has not.
    let clear = |port| Packet::udp(ip("10.2.0.1"), ip("10.9.0.1"), 1, 2, 30).frame(port);
    west.change(|view| {
        let hop = NextHop { port: RED, gateway: Some(Site::West.host(false)) };
        view.fib.insert_in(vrf(0), prefix("10.9.0.0/16"), Route::Via(hop));
        view.fib.insert(prefix("0.0.0.0/0"), Route::Via(hop));
    });
    for _ in 0..4 {
        west.inject(RED, &clear(RED));
        west.inject(RED2, &clear(RED2));
    }
    west.worker.turn();
    let counts = west.snapshot();
    assert_eq!((counts.of(Verdict::Forwarded), counts.of(Verdict::NoRoute)), (4, 4));
}

/// Also when packets follow those before them, which only those of the same customer do.
#[test]
fn whoever_follows_stays_in_its_vrf() {
    for outer in [MAIN, 3] {
        let mut west = west(outer);
        let mut followed = 0;
        for round in 0..4 {
            for customer in [0, 0, 1, 1].repeat(4) {
                west.inject(PORTS[customer], &towards(Site::East).frame(PORTS[customer]));
            }
            west.worker.turn();
            let mut far_ends = [0; 2];
            while let Some(sent) = west.collect(BLACK) {
                let sent = unframe(BLACK, &sent);
                let far_end = IpAddr::from(<[u8; 4]>::try_from(&sent[16..20]).unwrap());
                far_ends[usize::from(far_end == ip(FAR_ENDS[1]))] += 1;
            }
            assert_eq!(far_ends, [8, 8]);
            for (customer, sequence) in [0, 0, 1, 1].repeat(4).into_iter().zip(1..) {
                west.inject(BLACK, &sealed(customer, 100 * round + sequence));
            }
            west.worker.turn();
            for port in PORTS {
                assert_eq!(std::iter::from_fn(|| west.collect(port)).count(), 8, "by port {port}");
            }
            let before = std::mem::replace(&mut followed, west.snapshot().followed);
            assert_eq!(followed - before, if round == 0 { 0 } else { 32 }, "in round {round}");
        }
        // One customer's route leads nowhere any more; the other's, to the same network, is as it was.
        west.change(|view| {
            view.fib.insert_in(vrf(0), Site::East.inner(false), Route::Blackhole);
        });
        for _ in 0..3 {
            for customer in [0, 0, 1, 1] {
                west.inject(PORTS[customer], &towards(Site::East).frame(PORTS[customer]));
            }
            west.worker.turn();
        }
        let sent = std::iter::from_fn(|| west.collect(BLACK)).count();
        assert_eq!((sent, west.snapshot().of(Verdict::RouteBlackhole)), (6, 6));
    }
}

/// Nor does a packet of many tunnels, none of which follows the one before, take another customer's way.
#[test]
fn whoever_needs_no_stages_stays_in_its_vrf() {
    for outer in [MAIN, 3] {
        let mut west = west(outer);
        // What one customer has at home, the other reaches through a tunnel; and each sends what is in clear to another port.
        let (elsewhere, away) = (ip("10.7.0.1"), ip("10.9.0.1"));
        west.change(|view| {
            let [far_end, other] = FAR_ENDS.map(ip);
            let name = TunnelName { if_id: IF_IDS[1], remote: Some(other) };
            let row = view.tunnels.number(&name).unwrap();
            let home = NextHop { port: RED, gateway: Some(Site::West.host(false)) };
            view.fib.insert_in(vrf(0), prefix("10.7.0.0/16"), Route::Via(home));
            view.fib.insert_in(vrf(1), prefix("10.7.0.0/16"), Route::Tunnel(row));
            let wire = NextHop { port: BLACK, gateway: Some(far_end) };
            view.fib.insert_in(vrf(0), prefix("10.9.0.0/16"), Route::Via(wire));
            view.fib.insert_in(vrf(1), prefix("10.9.0.0/16"), Route::Via(home));
        });
        let to = |dst| Packet { dst, ..towards(Site::West) }.bytes();
        let (mut followed, mut sequence) = (0, 0);
        for round in 0..6 {
            let host = Site::West.host(false);
            for dst in [host, host, host, host, host, elsewhere] {
                sequence += 1;
                for customer in 0..2 {
                    let sa = sa(customer, Site::West);
                    west.inject(BLACK, &Seal::sequence(sequence).frame(&sa, &to(dst)));
                }
            }
            west.worker.turn();
            let mut came = |port| std::iter::from_fn(|| west.collect(port)).count();
            assert_eq!([RED, RED2, BLACK].map(&mut came), [6, 5, 1], "in round {round}");
            for port in PORTS {
                let clear = Packet::udp(ip("10.2.0.1"), away, 1, 2, 30).frame(port);
                (0..10).for_each(|_| west.inject(port, &clear));
            }
            west.worker.turn();
            let mut came = |port| std::iter::from_fn(|| west.collect(port)).count();
            assert_eq!([RED, RED2, BLACK].map(&mut came), [10, 0, 10], "in round {round}");
            let before = std::mem::replace(&mut followed, west.snapshot().followed);
            assert_eq!(followed - before, if round == 0 { 0 } else { 11 + 20 }, "in round {round}");
        }
        assert_eq!(west.snapshot().of(Verdict::Resealed), 6);
    }
}

#[test]
fn no_table_is_asked_in_anothers_place() {
    let mut west = west(MAIN);
    // The main table would know the way.
    west.change(|view| {
        let hop = NextHop { port: BLACK, gateway: Some(ip(FAR_ENDS[0])) };
        view.fib.insert(prefix("0.0.0.0/0"), Route::Via(hop));
        view.fib.clear(vrf(1));
    });
    let packet = towards(Site::East).frame(RED2);
    assert_eq!(west.drop(RED2, &packet), Verdict::NoRoute);
    assert_eq!(west.drop(BLACK, &sealed(1, 1)), Verdict::NoPolicy, "no route leads back");
    west.change(|view| {
        view.fib.insert_in(vrf(1), Site::East.inner(false), Route::OutOfVrf);
    });
    assert_eq!(west.drop(RED2, &packet), Verdict::RouteOutOfVrf);
    // The far end is not in the table that was said.
    west.change(|view| lead(view, [vrf(0), vrf(1)], 9, MAIN));
    assert_eq!(west.drop(RED, &towards(Site::East).frame(RED)), Verdict::NoRoute);
}

#[test]
fn a_vrf_that_is_not_there_takes_nothing_and_gives_nothing() {
    let mut west = west(MAIN);
    west.change(|view| {
        lead(view, [UNKNOWN, vrf(1)], MAIN, MAIN);
        let hop = NextHop { port: BLACK, gateway: Some(ip(FAR_ENDS[0])) };
        view.fib.insert(prefix("0.0.0.0/0"), Route::Via(hop));
    });
    assert_eq!(west.drop(RED, &towards(Site::East).frame(RED)), Verdict::VrfUnknown);
    assert_eq!(west.drop(BLACK, &sealed(0, 1)), Verdict::VrfUnknown);
    assert_eq!(west.forward(BLACK, &sealed(1, 1)).0, Verdict::Opened, "the other is whole");
    // Far ends in no VRF.
    west.change(|view| lead(view, [vrf(0), vrf(1)], UNKNOWN, MAIN));
    assert_eq!(west.drop(RED, &towards(Site::East).frame(RED)), Verdict::VrfUnknown);
}

#[test]
fn a_tunnel_that_nobody_knows_does_not_come_up_in_the_main_table() {
    let mut west = west(MAIN);
    let stranger = Tunnel { if_id: 99, ..PLAIN };
    west.change(|view| {
        view.sad
            .insert(Arc::new(Sa::new(SaConfig { spi: 99, ..stranger.sa(Site::West) }).unwrap()));
        view.spd.insert(Arc::new(Policy::new(stranger.policy(Direction::Forward, Site::West))));
        let hop = NextHop { port: BLACK, gateway: Some(ip(FAR_ENDS[0])) };
        view.fib.insert(prefix("0.0.0.0/0"), Route::Via(hop));
    });
    let packet = |sequence| {
        let sa = SaConfig { spi: 99, ..stranger.sa(Site::West) };
        Seal::sequence(sequence).frame(&sa, &towards(Site::West).bytes())
    };
    assert_eq!(west.forward(BLACK, &packet(1)).0, Verdict::Opened);
    west.change(|view| lead(view, [vrf(0), vrf(1)], MAIN, UNKNOWN));
    assert_eq!(west.drop(BLACK, &packet(2)), Verdict::VrfUnknown);
}

#[test]
fn policies_hold_in_every_vrf_and_their_sas_leave_where_the_packet_was() {
    let tunnel = PLAIN;
    let mut west = west(MAIN);
    let nonces = nonces();
    west.change(|view| {
        let sa = Arc::new(Sa::new(SaConfig { spi: 77, ..tunnel.sa(Site::East) }).unwrap());
        sa.arm(&nonces).unwrap();
        view.bundles.set(0, Some(sa));
        view.spd.insert(Arc::new(Policy::new(tunnel.policy(Direction::Out, Site::East))));
    });
    // The main table knows the way to the far end, and the packet's VRF does not.
    assert_eq!(west.drop(RED, &towards(Site::East).frame(RED)), Verdict::NoRoute);
    west.change(|view| {
        let hop = NextHop { port: RED, gateway: Some(Site::West.host(false)) };
        view.fib.insert_in(vrf(0), Prefix::host(Site::East.outer(false)), Route::Via(hop));
    });
    let (verdict, egress, _) = west.forward(RED, &towards(Site::East).frame(RED));
    assert_eq!((verdict, egress), (Verdict::Sealed, RED));
}
