//! Route mode: routes lead into tunnels, and policies of a tunnel concern nothing else.

mod fixture;

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::event::Event;
use dataplane::fib::{NextHop, Route};
use dataplane::policy::{Action, Direction, Policy, PolicyConfig};
use dataplane::prefix::{Family, Prefix};
use dataplane::sa::{Sa, SaConfig};
use dataplane::selector::Selector;
use dataplane::spd::DefaultAction;
use dataplane::tunnel::TunnelName;
use dataplane::verdict::Verdict;
use dataplane::view::View;
use fixture::*;

const IF_ID: u32 = 7;
const ROUTED: Tunnel = Tunnel { if_id: IF_ID, ..PLAIN };

fn shapes() -> impl Iterator<Item = Tunnel> {
    let both = [false, true];
    both.into_iter()
        .flat_map(move |inner_v6| both.map(|outer_v6| Tunnel { inner_v6, outer_v6, ..ROUTED }))
}

fn inner(v6: bool) -> Packet {
    Packet::udp(Site::West.host(v6), Site::East.host(v6), 4000, 5000, 40)
}

/// The number of the tunnel's row.
fn row(view: &View) -> u32 {
    view.tunnels.number(&TunnelName { if_id: IF_ID, remote: None }).unwrap()
}

fn remove_policies(view: &mut View) {
    view.spd = Default::default();
}

#[test]
fn a_route_leads_into_the_tunnel_by_policy_and_by_slot() {
    for tunnel in shapes() {
        let mut west = Gateway::at(Site::West, &tunnel);
        let packet = inner(tunnel.inner_v6);
        for by_slot in [false, true] {
            west.change(|view| {
                let slots = if by_slot { [Some(0); 2] } else { [None; 2] };
                view.tunnels.set_slots(row(view), slots);
            });
            let (verdict, egress, sent) = west.forward(RED, &packet.frame(RED));
            assert_eq!((verdict, egress), (Verdict::Sealed, BLACK), "{tunnel:?}");
            let mut east = Gateway::at(Site::East, &tunnel);
            let (verdict, egress, _) = east.forward(BLACK, &readdressed(&sent));
            assert_eq!((verdict, egress), (Verdict::Opened, RED), "{tunnel:?}");
        }
        assert_eq!(west.outbound().stats().usage.packets, 2);
    }
}

/// A frame that the west sent, as the east receives it.
fn readdressed(frame: &[u8]) -> Vec<u8> {
    fixture::frame(BLACK, &unframe(BLACK, frame))
}

#[test]
fn policies_of_a_tunnel_concern_only_what_a_route_leads_there() {
    let mut west = Gateway::at(Site::West, &ROUTED);
    west.change(|view| {
        let hop = NextHop { port: BLACK, gateway: Some(Site::East.outer(false)) };
        view.fib.insert(Site::East.inner(false), Route::Via(hop));
    });
    assert_eq!(west.forward(RED, &inner(false).frame(RED)).0, Verdict::Forwarded);
    // And the other way round: what a policy of no tunnel protects, it protects before any route.
    west.change(|view| {
        view.fib.insert(Site::East.inner(false), Route::Tunnel(row(view)));
        view.spd.insert(Arc::new(Policy::new(PolicyConfig {
            index: 100,
            action: Action::Discard,
            ..PLAIN.policy(Direction::Out, Site::East)
        })));
    });
    assert_eq!(west.drop(RED, &inner(false).frame(RED)), Verdict::OutPolicyBlock);
}

#[test]
fn nothing_led_into_a_tunnel_leaves_in_clear() {
    let becomes = |action: Option<Action>| {
        let mut west = Gateway::at(Site::West, &ROUTED);
        west.change(|view| {
            let policy = ROUTED.policy(Direction::Out, Site::East);
            view.spd.remove(&policy);
            if let Some(action) = action {
                view.spd.insert(Arc::new(Policy::new(PolicyConfig { action, ..policy })));
            }
        });
        west.drop(RED, &inner(false).frame(RED))
    };
    assert_eq!(becomes(None), Verdict::NoTunnel);
    assert_eq!(becomes(Some(Action::Bypass)), Verdict::NoTunnel);
    assert_eq!(becomes(Some(Action::Discard)), Verdict::OutPolicyBlock);
    let mut template = ROUTED.template(Site::East);
    template.optional = true;
    assert_eq!(becomes(Some(Action::Protect { template, bundle: Some(9) })), Verdict::NoSa);
    // A slot without an SA, and no policy to ask for one by.
    let mut west = Gateway::at(Site::West, &ROUTED);
    west.change(|view| {
        view.tunnels.set_slots(row(view), [Some(9); 2]);
        remove_policies(view);
    });
    assert_eq!(west.drop(RED, &inner(false).frame(RED)), Verdict::NoTunnel);
}

#[test]
fn what_an_sa_of_a_tunnel_brings_meets_the_policies_of_that_tunnel() {
    let seal =
        |sequence| Seal::sequence(sequence).frame(&ROUTED.sa(Site::East), &inner(false).bytes());
    let mut east = Gateway::at(Site::East, &ROUTED);
    assert_eq!(east.forward(BLACK, &seal(1)).0, Verdict::Opened);
    let set = |east: &mut Gateway, if_id| {
        east.change(|view| {
            remove_policies(view);
            let policy = ROUTED.policy(Direction::Forward, Site::East);
            view.spd.insert(Arc::new(Policy::new(PolicyConfig { if_id, ..policy })));
        });
    };
    for (sequence, other) in [(2, 0), (3, 8)] {
        set(&mut east, other);
        assert_eq!(east.drop(BLACK, &seal(sequence)), Verdict::NoPolicy);
    }
    set(&mut east, IF_ID);
    assert_eq!(east.forward(BLACK, &seal(4)).0, Verdict::Opened);
    // An SA of no tunnel is not welcome by a tunnel's policy.
    let mut east = Gateway::at(Site::East, &PLAIN);
    set(&mut east, IF_ID);
    assert_eq!(east.drop(BLACK, &seal(1)), Verdict::NoPolicy);
}

/// A third gateway, and hosts behind it.
const NORTH: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 3));
const NORTH_HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 3, 0, 1));
const NORTH_SPI: u32 = 0x3000_0003;

/// The west as a hub: one `if_id`, no policies, and far ends in the east and in the north.
fn hub() -> Gateway {
    let nonces = nonces();
    let mut view = ROUTED.view(Site::West, &nonces);
    remove_policies(&mut view);
    let north = Sa::new(SaConfig { spi: NORTH_SPI, destination: NORTH, ..ROUTED.sa(Site::East) });
    let north = Arc::new(north.unwrap());
    north.arm(&nonces).unwrap();
    view.bundles.set(1, Some(north));
    let far_ends = [(Site::East.outer(false), "10.2.0.0/16", 0), (NORTH, "10.3.0.0/16", 1)];
    for (remote, behind, slot) in far_ends {
        let row = view.tunnels.join(TunnelName { if_id: IF_ID, remote: Some(remote) }).unwrap();
        view.tunnels.set_slots(row, [Some(slot); 2]);
        view.fib.insert(prefix(behind), Route::Tunnel(row));
        view.fib.insert(Prefix::host(remote), Route::Via(NextHop { port: BLACK, gateway: None }));
        view.neighbours.set(BLACK, remote, OTHER_MAC);
    }
    Gateway::new(view)
}

#[test]
fn one_if_id_has_many_far_ends_which_routes_tell_apart() {
    let mut hub = hub();
    for (to, far_end, spi) in [
        (Site::East.host(false), Site::East.outer(false), Site::East.spi()),
        (NORTH_HOST, NORTH, NORTH_SPI),
    ] {
        let packet = Packet::udp(Site::West.host(false), to, 1, 2, 30);
        let (verdict, _, sent) = hub.forward(RED, &packet.frame(RED));
        assert_eq!(verdict, Verdict::Sealed);
        let sent = unframe(BLACK, &sent);
        assert_eq!(IpAddr::from(<[u8; 4]>::try_from(&sent[16..20]).unwrap()), far_end);
        assert_eq!(sent[20..24], spi.to_be_bytes());
    }
    // A far end is nobody but whom the routes lead to it.
    let from = |source, sequence| {
        let packet = Packet::udp(source, Site::West.host(false), 1, 2, 30);
        Seal::sequence(sequence).frame(&ROUTED.sa(Site::West), &packet.bytes())
    };
    assert_eq!(hub.forward(BLACK, &from(Site::East.host(false), 1)).0, Verdict::Opened);
    assert_eq!(hub.drop(BLACK, &from(NORTH_HOST, 2)), Verdict::NoPolicy);
    assert_eq!(hub.drop(BLACK, &from(ip("10.9.0.1"), 3)), Verdict::NoPolicy);
    // What a policy forbids, no route allows.
    hub.change(|view| {
        let selector = Selector::any(Family::V4);
        let policy = ROUTED.policy(Direction::Forward, Site::West);
        let action = Action::Discard;
        view.spd.insert(Arc::new(Policy::new(PolicyConfig { selector, action, ..policy })));
    });
    assert_eq!(hub.drop(BLACK, &from(Site::East.host(false), 4)), Verdict::PolicyBlock);
    // Nor where everything is forbidden that no policy lets in.
    hub.change(|view| {
        remove_policies(view);
        view.spd.set_default(Direction::Forward, DefaultAction::Block);
    });
    assert_eq!(hub.drop(BLACK, &from(Site::East.host(false), 5)), Verdict::NoPolicy);
}

/// A packet from the west's host to a far one.
fn to(host: IpAddr) -> Vec<u8> {
    Packet::udp(Site::West.host(false), host, 1, 2, 30).frame(RED)
}

/// Passes one packet on while others may wait: whether it was sealed.
fn is_sealed(hub: &mut Gateway, frame: &[u8]) -> bool {
    let before = hub.snapshot().of(Verdict::Sealed);
    hub.inject(RED, frame);
    hub.worker.turn();
    hub.collect(BLACK).is_some() && hub.snapshot().of(Verdict::Sealed) == before + 1
}

#[test]
fn who_waits_elsewhere_does_not_bring_the_policies_of_a_far_end_up() {
    let mut hub = hub();
    hub.change(|view| {
        view.acquire_is_heard = true;
        // One that blocks all, which no packet to a far end with an SA is asked about.
        let selector = Selector::any(Family::V4);
        let policy = ROUTED.policy(Direction::Out, Site::East);
        let action = Action::Discard;
        view.spd.insert(Arc::new(Policy::new(PolicyConfig { selector, action, ..policy })));
        let selector = Selector::between(Site::West.inner(false), prefix("10.9.0.0/16")).unwrap();
        let Action::Protect { template, .. } = policy.action else { unreachable!() };
        let action = Action::Protect { template, bundle: Some(9) };
        let waits = PolicyConfig { index: 100, selector, action, if_id: 0, ..policy };
        view.spd.insert(Arc::new(Policy::new(waits)));
    });
    assert!(is_sealed(&mut hub, &to(Site::East.host(false))));
    assert!(!is_sealed(&mut hub, &to(ip("10.9.0.1"))));
    assert_eq!(hub.worker.waiting(), 1);
    assert!(is_sealed(&mut hub, &to(Site::East.host(false))));
}

#[test]
fn who_waits_for_a_far_end_keeps_back_only_its_own() {
    let mut hub = hub();
    let north = hub.view.bundles.get(1).cloned();
    hub.change(|view| {
        view.acquire_is_heard = true;
        view.bundles.set(1, None);
        let selector = Selector::any(Family::V4);
        let policy = ROUTED.policy(Direction::Out, Site::East);
        view.spd.insert(Arc::new(Policy::new(PolicyConfig { selector, ..policy })));
    });
    assert!(!is_sealed(&mut hub, &to(NORTH_HOST)));
    assert!(is_sealed(&mut hub, &to(Site::East.host(false))), "the same policy, another tunnel");
    hub.change(|view| {
        view.bundles.set(1, north);
    });
    hub.inject(RED, &to(NORTH_HOST));
    hub.worker.turn();
    hub.turn_until_nothing_waits();
    assert_eq!(hub.snapshot().of(Verdict::Sealed), 3);
}

#[test]
fn a_far_end_without_an_sa_gets_nothing_and_others_do_not_get_its_packets() {
    let mut hub = hub();
    hub.change(|view| {
        view.bundles.set(1, None);
    });
    let packet = Packet::udp(Site::West.host(false), NORTH_HOST, 1, 2, 30);
    assert_eq!(hub.drop(RED, &packet.frame(RED)), Verdict::NoSa);
}

#[test]
fn the_first_packet_asks_for_the_sa_of_its_tunnel_and_waits() {
    let nonces = nonces();
    let mut view = ROUTED.view(Site::West, &nonces);
    let sa = view.bundles.get(0).cloned();
    view.bundles.set(0, None);
    view.acquire_is_heard = true;
    view.tunnels.set_slots(row(&view), [Some(0); 2]);
    let mut west = Gateway::new(view);
    west.inject(RED, &inner(false).frame(RED));
    west.worker.turn();
    let asked: Vec<Event> = west.events.try_iter().collect();
    assert!(matches!(asked[..], [Event::SaNeeded { policy: 9, .. }]), "{asked:?}");
    west.change(|view| {
        view.bundles.set(0, sa);
    });
    west.turn_until_nothing_waits();
    assert!(west.collect(BLACK).is_some());
}

#[test]
fn the_host_speaks_by_the_device_of_its_tunnels() {
    let mut west = Gateway::at(Site::West, &ROUTED);
    let own = ip("10.1.0.254");
    west.change(|view| {
        view.tunnel_devices = HOST..HOST + 1;
        view.tunnels.set_device(IF_ID, HOST);
        view.local.insert(own);
    });
    let packet = Packet { ttl: 1, ..Packet::udp(own, Site::East.host(false), 179, 179, 30) };
    assert_eq!(west.forward(HOST, &packet.bytes()).0, Verdict::HostSealed);
    // What no route leads into a tunnel was sent to the tunnels' device all the same.
    let astray = Packet::udp(own, Site::West.host(false), 1, 2, 30);
    assert_eq!(west.drop(HOST, &astray.bytes()), Verdict::NoTunnel);
    let answer = Packet::udp(Site::East.host(false), own, 179, 179, 30);
    let sealed = Seal::sequence(1).frame(&ROUTED.sa(Site::West), &answer.bytes());
    let (verdict, egress, up) = west.forward(BLACK, &sealed);
    assert_eq!((verdict, egress), (Verdict::HostOpened, HOST));
    assert_eq!(up, answer.bytes());
}

#[test]
fn before_there_is_a_tunnel_their_device_sends_nothing_in_clear() {
    let own = ip("10.1.0.254");
    let astray = Packet::udp(own, ip("203.0.113.9"), 1, 2, 30);
    for has_policies in [false, true] {
        let mut west = Gateway::at(Site::West, &PLAIN);
        west.change(|view| {
            view.tunnel_devices = HOST..HOST + 1;
            view.local.insert(own);
            let hop = NextHop { port: BLACK, gateway: Some(Site::East.outer(false)) };
            view.fib.insert(prefix("0.0.0.0/0"), Route::Via(hop));
            if !has_policies {
                remove_policies(view);
            }
        });
        assert!(west.view.tunnels.is_empty());
        assert_eq!(west.drop(HOST, &astray.bytes()), Verdict::NoTunnel);
        // Where it was sent by a host behind, it goes its way.
        assert_eq!(west.forward(RED, &astray.frame(RED)).0, Verdict::Forwarded);
    }
}
