//! The same in IPv6: what is of IPv4 behind the gateways has a likeness there.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use dataplane::fib::{NextHop, Route};
use dataplane::policy::{Policy, PolicyConfig};
use dataplane::prefix::Prefix;
use dataplane::selector::Selector;
use dataplane::view::View;
use wire::ethernet::MacAddr;
use wire::protocol;

use super::fixture::*;

/// Of which families packets behind the gateways are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    V4,
    V6,
    Both,
}

/// The likeness of an address: a host's number is the same.
pub fn likeness(address: IpAddr) -> IpAddr {
    let IpAddr::V4(v4) = address else { return address };
    let [a, b, c, d] = v4.octets().map(u16::from);
    IpAddr::V6(match a {
        10 => Ipv6Addr::new(0x2001, 0xdb8, b, 0, 0, 0, c, d),
        127 => Ipv6Addr::LOCALHOST,
        _ => Ipv6Addr::new(0x2001, 0xdb8, 0xf000 | a, b, 0, 0, c, d),
    })
}

fn likeness_of(prefix: Prefix) -> Prefix {
    let len = match prefix.len() {
        0 => 0,
        16 => 48,
        24 => 112,
        len => 128 - 32 + len,
    };
    Prefix::new(likeness(prefix.address()), len).unwrap()
}

/// By how much the likeness of a policy has another index.
pub const INDEX: u32 = 1000;

/// The likeness of a policy, with the same SA.
pub fn policy(of: &PolicyConfig) -> PolicyConfig {
    let selector = Selector {
        source: likeness_of(of.selector.source),
        destination: likeness_of(of.selector.destination),
        ..of.selector
    };
    let position = of.position + u64::from(INDEX);
    PolicyConfig { index: of.index + INDEX, position, selector, ..of.clone() }
}

/// The likeness of a packet of IPv4.
pub fn packet(of: Packet) -> Packet {
    let (src, dst) = (likeness(of.src), likeness(of.dst));
    let protocol = if of.protocol == protocol::ICMP { protocol::ICMPV6 } else { of.protocol };
    Packet { src, dst, protocol, flow_label: 0x4_2424, ..of }
}

/// Gives a gateway the likeness of all that it has behind it.
pub fn complete(view: &mut View) {
    let policies: Vec<PolicyConfig> = view.spd.iter().map(|policy| policy.config()).collect();
    for config in policies.iter().filter(|config| config.selector.source.address().is_ipv4()) {
        view.spd.insert(Arc::new(Policy::new(policy(config))));
    }
    let is_outer = |prefix: &Prefix| {
        let outer = [ip("192.0.2.0"), ip("203.0.113.0")];
        outer.iter().any(|net| Prefix::new(*net, 24).unwrap().contains(prefix.address()))
    };
    let routes: Vec<_> = view.fib.iter().filter(|(prefix, _)| prefix.address().is_ipv4()).collect();
    for (prefix, route) in routes.into_iter().filter(|(prefix, _)| !is_outer(prefix)) {
        let route = match route {
            Route::Via(NextHop { port: RED, gateway }) => {
                Route::Via(NextHop { port: RED, gateway: gateway.map(likeness) })
            }
            route => route,
        };
        view.fib.insert(likeness_of(prefix), route);
    }
    for n in 1..=3 {
        let host = likeness(ip(&format!("10.2.0.{n}")));
        view.neighbours.set(RED, host, MacAddr([2, 0, 0, 0, 1, n]));
    }
    view.local.insert(likeness(ip(super::case::LOCAL)));
}
