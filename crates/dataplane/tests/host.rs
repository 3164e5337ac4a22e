//! The host's own packets: out through a tunnel or in clear, and in through a tunnel.

mod fixture;

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::event::Event;
use dataplane::fib::{NextHop, Route};
use dataplane::policy::{Action, Direction, Policy, PolicyConfig, Template};
use dataplane::prefix::{Family, Prefix};
use dataplane::sa::{Mode, Sa, SaConfig};
use dataplane::selector::Selector;
use dataplane::transport::Ends;
use dataplane::verdict::Verdict;
use fixture::*;
use wire::protocol;

/// A gateway whose host has an address in the inner network.
fn at(site: Site, tunnel: &Tunnel) -> Gateway {
    let mut gateway = Gateway::at(site, tunnel);
    gateway.change(|view| {
        view.host = Some(HOST);
        view.local.insert(inner(site, tunnel.inner_v6));
    });
    gateway
}

/// The host's own address in its site's inner network.
fn inner(site: Site, v6: bool) -> IpAddr {
    ip(match (site, v6) {
        (Site::West, false) => "10.1.0.254",
        (Site::East, false) => "10.2.0.254",
        (Site::West, true) => "2001:db8:1::fe",
        (Site::East, true) => "2001:db8:2::fe",
    })
}

fn shapes() -> impl Iterator<Item = Tunnel> {
    let both = [false, true];
    both.into_iter()
        .flat_map(move |inner_v6| both.map(|outer_v6| Tunnel { inner_v6, outer_v6, ..PLAIN }))
}

#[test]
fn what_the_host_sends_is_sealed_as_it_is() {
    for tunnel in shapes() {
        let mut west = at(Site::West, &tunnel);
        let (src, dst) = (inner(Site::West, tunnel.inner_v6), inner(Site::East, tunnel.inner_v6));
        // A hop limit of one is enough: the host is not on the way, it is where the way begins.
        let packet = Packet { ttl: 1, ..Packet::udp(src, dst, 179, 179, 30) };
        let (verdict, egress, sent) = west.forward(HOST, &packet.bytes());
        assert_eq!((verdict, egress), (Verdict::HostSealed, BLACK));
        let opened = Opened::from(&unframe(BLACK, &sent), &tunnel.sa(Site::East), 0);
        assert!(opened.plaintext.starts_with(&packet.bytes()));
    }
}

#[test]
fn what_comes_out_of_a_tunnel_for_the_host_is_handed_to_it_as_it_is() {
    for tunnel in shapes() {
        let mut east = at(Site::East, &tunnel);
        let (src, dst) = (inner(Site::West, tunnel.inner_v6), inner(Site::East, tunnel.inner_v6));
        let packet = Packet { ttl: 1, ..Packet::udp(src, dst, 179, 179, 30) };
        let next_header = if tunnel.inner_v6 { protocol::IPV6 } else { protocol::IPV4 };
        let seal = Seal { next_header, ..Seal::default() };
        let frame = seal.frame(&tunnel.sa(Site::East), &packet.bytes());
        let (verdict, egress, sent) = east.forward(BLACK, &frame);
        assert_eq!((verdict, egress), (Verdict::HostOpened, HOST));
        assert_eq!(sent, packet.bytes());
        assert_eq!(east.inbound().stats().other_errors, 0);
    }
}

/// BGP of clouds' VPNs runs between such addresses. Nobody forwards from or to them.
#[test]
fn link_local_addresses_reach_the_host_and_nobody_else() {
    for (v6, far, own) in
        [(false, "169.254.21.1", "169.254.21.2"), (true, "fe80::21:1", "fe80::21:2")]
    {
        let tunnel = Tunnel { inner_v6: v6, ..PLAIN };
        let mut east = Gateway::at(Site::East, &tunnel);
        east.change(|view| {
            view.host = Some(HOST);
            view.local.insert(ip(own));
            for direction in [Direction::In, Direction::Forward] {
                let family = if v6 { Family::V6 } else { Family::V4 };
                let policy = tunnel.policy(direction, Site::East);
                let selector = Selector::any(family);
                let index = 500 + direction as u32;
                view.spd.insert(Arc::new(Policy::new(PolicyConfig { index, selector, ..policy })));
            }
        });
        let next_header = if v6 { protocol::IPV6 } else { protocol::IPV4 };
        let mut sequence = 0;
        let mut come = |src: &str, dst: &str| {
            sequence += 1;
            let packet = Packet::udp(ip(src), ip(dst), 179, 179, 30);
            let seal = Seal { next_header, ..Seal::sequence(sequence) };
            east.pass(BLACK, &seal.frame(&tunnel.sa(Site::East), &packet.bytes()))
        };
        assert_eq!(come(far, own).0, Verdict::HostOpened, "{own}");
        let beyond = if v6 { "2001:db8:2::1" } else { "10.2.0.1" };
        assert_eq!(come(far, beyond).0, Verdict::MartianSource, "{own}");
        let loopback = if v6 { "::1" } else { "127.0.0.1" };
        assert_eq!(come(loopback, own).0, Verdict::MartianSource, "{own}");
    }
}

#[test]
fn what_comes_to_the_host_must_come_the_right_way() {
    let mut east = at(Site::East, &PLAIN);
    let host = inner(Site::East, false);
    let stranger = Packet::udp(ip("8.8.8.8"), host, 1, 2, 8);
    let sealed = |sequence, packet: &Packet| {
        Seal::sequence(sequence).frame(&PLAIN.sa(Site::East), &packet.bytes())
    };
    assert_eq!(east.drop(BLACK, &sealed(1, &stranger)), Verdict::NoPolicy);
    // The policy of a direction is asked that the packet takes: without one for `in`, none passes.
    let genuine = Packet::udp(inner(Site::West, false), host, 1, 2, 8);
    assert_eq!(east.forward(BLACK, &sealed(2, &genuine)).0, Verdict::HostOpened);
    east.change(|view| {
        assert!(view.spd.remove(&PLAIN.policy(Direction::In, Site::East)).is_some());
    });
    assert_eq!(east.drop(BLACK, &sealed(3, &genuine)), Verdict::NoPolicy);
}

#[test]
fn what_no_policy_protects_leaves_in_clear_by_the_routes() {
    let mut west = at(Site::West, &PLAIN);
    let packet = Packet::udp(ip("192.0.2.1"), ip("192.0.2.2"), 22, 4000, 100);
    let (verdict, egress, sent) = west.forward(HOST, &packet.bytes());
    assert_eq!((verdict, egress), (Verdict::HostForwarded, BLACK));
    assert_eq!(unframe(BLACK, &sent), packet.bytes());
    let nowhere = Packet { dst: ip("203.0.113.9"), ..packet.clone() };
    assert_eq!(west.drop(HOST, &nowhere.bytes()), Verdict::NoRoute);
    // What the kernel could have delivered itself does not go in circles.
    let own = inner(Site::West, false);
    west.change(|view| {
        view.fib.insert(Prefix::host(own), Route::Local);
    });
    assert_eq!(west.drop(HOST, &Packet { dst: own, ..packet }.bytes()), Verdict::HostClear);
}

#[test]
fn without_an_sa_the_hosts_packet_asks_for_one() {
    let mut west = at(Site::West, &PLAIN);
    west.change(|view| assert!(view.bundles.set(0, None)));
    let packet = Packet::udp(inner(Site::West, false), inner(Site::East, false), 1, 2, 8);
    assert_eq!(west.drop(HOST, &packet.bytes()), Verdict::NoSa);
    let events: Vec<Event> = west.events.try_iter().collect();
    let [Event::SaNeeded { flow, .. }] = events[..] else { panic!("{events:?}") };
    assert_eq!(flow.src, packet.src);
}

#[test]
fn odd_packets_of_the_host_end_by_name() {
    let mut west = at(Site::West, &PLAIN);
    let packet = Packet::udp(inner(Site::West, false), inner(Site::East, false), 1, 2, 8);
    let bytes = packet.bytes();
    assert_eq!(west.drop(HOST, &bytes[..19]), Verdict::IpTruncated);
    assert_eq!(west.drop(HOST, &[]), Verdict::IpTruncated);
    let mut broken = bytes.clone();
    broken[10] ^= 1;
    assert_eq!(west.drop(HOST, &broken), Verdict::IpChecksum);
    let huge = Packet::udp(packet.src, packet.dst, 1, 2, 1450);
    assert_eq!(west.drop(HOST, &huge.bytes()), Verdict::TooBig);
}

/// Both gateways' hosts, between whose outer addresses there are SAs in transport mode.
fn in_transport_mode(site: Site, v6: bool) -> (Gateway, SaConfig) {
    let tunnel = Tunnel { outer_v6: v6, extended: true, ..PLAIN };
    let config = |towards| SaConfig { mode: Mode::Transport, ..tunnel.sa(towards) };
    let mut view = tunnel.view(site, &nonces());
    view.host = Some(HOST);
    let out = Arc::new(Sa::new(config(site.peer())).unwrap());
    out.arm(&nonces()).unwrap();
    let SaConfig { source, destination, reqid, .. } = out.config();
    view.bundles.set(5, Some(out));
    view.transport.insert(Ends { source, destination, if_id: 0, reqid, spi: 0 }, 5);
    view.sad = Default::default();
    view.sad.insert(Arc::new(Sa::new(config(site)).unwrap()));
    for (direction, towards) in [(Direction::Out, site.peer()), (Direction::In, site)] {
        let ends = [towards.peer().outer(v6), towards.outer(v6)].map(Prefix::host);
        let template = Template { mode: Mode::Transport, ..tunnel.template(towards) };
        view.spd.insert(Arc::new(Policy::new(PolicyConfig {
            index: 200 + direction as u32,
            selector: Selector::between(ends[0], ends[1]).unwrap(),
            action: Action::Protect { template, bundle: None },
            ..tunnel.policy(direction, towards)
        })));
    }
    let config = config(site);
    (Gateway::new(view), config)
}

#[test]
fn transport_mode_between_two_hosts() {
    for v6 in [false, true] {
        let (mut west, _) = in_transport_mode(Site::West, v6);
        let (mut east, _) = in_transport_mode(Site::East, v6);
        for len in [0, 1, 2, 3, 700] {
            let packet = Packet::udp(Site::West.outer(v6), Site::East.outer(v6), 4000, 5000, len);
            let (verdict, _, sent) = west.forward(HOST, &packet.bytes());
            assert_eq!(verdict, Verdict::HostSealed);
            let sealed = unframe(BLACK, &sent);
            let (verdict, egress, sent) = east.forward(BLACK, &frame(BLACK, &sealed));
            assert_eq!((verdict, egress), (Verdict::HostOpened, HOST));
            assert_eq!(sent, packet.bytes());
        }
    }
}

#[test]
fn extension_headers_outside_and_inside_survive_transport_mode() {
    let (mut west, _) = in_transport_mode(Site::West, true);
    let (mut east, _) = in_transport_mode(Site::East, true);
    let packet = Packet::udp(Site::West.outer(true), Site::East.outer(true), 1, 2, 9);
    let options = |next_header| vec![next_header, 0, 1, 4, 0, 0, 0, 0];
    let routing = vec![protocol::DESTINATION_OPTIONS, 0, 4, 0, 0, 0, 0, 0];
    for (first, chain) in [
        (protocol::HOP_BY_HOP, options(protocol::UDP)),
        (protocol::ROUTING, [routing, options(protocol::UDP)].concat()),
    ] {
        let mut bytes = packet.bytes();
        bytes.splice(40..40, chain.clone());
        bytes[6] = first;
        bytes[5] += chain.len() as u8;
        let (_, _, sent) = west.forward(HOST, &bytes);
        let (_, _, sent) = east.forward(BLACK, &frame(BLACK, &unframe(BLACK, &sent)));
        assert_eq!(sent, bytes);
    }
}

#[test]
fn what_transport_mode_carries_is_inspected() {
    let (mut east, config) = in_transport_mode(Site::East, false);
    let packet = Packet::udp(Site::West.outer(false), Site::East.outer(false), 7, 8, 20);
    let sealed = |sequence, next_header| {
        let seal = Seal { sequence, next_header, ..Seal::default() };
        seal.frame(&config, &packet.payload)
    };
    let change = |east: &mut Gateway, edit: &dyn Fn(&mut PolicyConfig)| {
        let mut new =
            PolicyConfig { priority: 1, index: 300, ..PLAIN.policy(Direction::In, Site::East) };
        new.selector = Selector::any(dataplane::prefix::Family::V4);
        edit(&mut new);
        east.change(|view| {
            view.spd.remove(&new);
            view.spd.insert(Arc::new(Policy::new(new)));
        });
    };
    assert_eq!(east.forward(BLACK, &sealed(1, protocol::UDP)).0, Verdict::HostOpened);
    let (dummy, _) = east.pass(BLACK, &sealed(2, protocol::NO_NEXT_HEADER));
    assert_eq!(dummy, Verdict::Dummy);
    // A policy that asks for a tunnel is not content with transport, even with the same reqid.
    change(&mut east, &|_| {});
    assert_eq!(east.drop(BLACK, &sealed(3, protocol::UDP)), Verdict::PolicyMismatch);
    // What may come in clear may come this way, too.
    change(&mut east, &|policy| policy.action = Action::Bypass);
    assert_eq!(east.forward(BLACK, &sealed(4, protocol::UDP)).0, Verdict::HostOpened);
    change(&mut east, &|policy| policy.action = Action::Discard);
    assert_eq!(east.drop(BLACK, &sealed(5, protocol::UDP)), Verdict::PolicyBlock);
    east.change(|view| view.spd = Default::default());
    assert_eq!(east.forward(BLACK, &sealed(6, protocol::UDP)).0, Verdict::HostOpened);
    // Content that is no datagram of its protocol.
    let cut = Seal::sequence(7);
    let cut = Seal { next_header: protocol::TCP, ..cut }.frame(&config, &[1, 2]);
    assert_eq!(east.drop(BLACK, &cut), Verdict::InnerMalformed);
}

#[test]
fn a_tunnels_packet_is_not_what_a_policy_of_transport_mode_asks_for() {
    let mut east = at(Site::East, &PLAIN);
    east.change(|view| {
        let config = PLAIN.policy(Direction::In, Site::East);
        let template = Template { mode: Mode::Transport, ..PLAIN.template(Site::East) };
        view.spd.insert(Arc::new(Policy::new(PolicyConfig {
            index: 300,
            priority: 1,
            action: Action::Protect { template, bundle: None },
            ..config
        })));
    });
    let packet = Packet::udp(inner(Site::West, false), inner(Site::East, false), 1, 2, 8);
    let frame = Seal::default().frame(&PLAIN.sa(Site::East), &packet.bytes());
    assert_eq!(east.drop(BLACK, &frame), Verdict::PolicyMismatch);
}

#[test]
fn a_policy_of_many_peers_needs_no_address_of_theirs() {
    let (mut west, _) = in_transport_mode(Site::West, false);
    let other = ip("192.0.2.77");
    west.change(|view| {
        let template = Template { mode: Mode::Transport, ..PLAIN.template(Site::East) };
        view.spd.insert(Arc::new(Policy::new(PolicyConfig {
            index: 301,
            selector: Selector::any(dataplane::prefix::Family::V4),
            action: Action::Protect { template, bundle: None },
            ..PLAIN.policy(Direction::Out, Site::East)
        })));
        view.fib.insert(Prefix::host(other), Route::Via(NextHop { port: BLACK, gateway: None }));
        view.neighbours.set(BLACK, other, OTHER_MAC);
    });
    let towards = |dst| Packet::udp(Site::West.outer(false), dst, 1, 2, 8).bytes();
    assert_eq!(west.forward(HOST, &towards(Site::East.outer(false))).0, Verdict::HostSealed);
    assert_eq!(west.drop(HOST, &towards(other)), Verdict::NoSa);
}
