//! The kernel's links, addresses, routes and neighbours, as the tables that workers forward by.
//!
//! Ports and addresses are few and rebuilt from the kernel's state when something of their kind changed.
//! Routes are followed one by one, as there may be a million of them; all are rebuilt only when the
//! device of a group of tunnels comes or goes. So are neighbours, so that the marks of use that
//! workers leave on them survive. What the kernel would choose among several routes is decided by
//! `route_feed`, not here.

use std::collections::BTreeMap;
use std::net::IpAddr;

use dataplane::fib::{Fib, NextHop, Route};
use dataplane::local::Locals;
use dataplane::neighbour::Neighbours;
use dataplane::prefix::Prefix;
use dataplane::tunnel::Tunnels;
use dataplane::view::{PortInfo, View};
use wire::ethernet::MacAddr;

use super::groups::{Groups, Lead};
use crate::route_feed::{Change, Kernel, NextHop as KernelHop, Route as KernelRoute, RouteKind};

/// Which interface each port is, in the order in which every worker holds the ports.
pub struct Network {
    ifindexes: Vec<u32>,
    groups: Groups,
    /// The links that are groups' devices, as the routes were translated with them.
    devices: BTreeMap<u32, String>,
}

/// What of a view is different, or must be built anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stale {
    /// Ports: addresses, MTU or state of a link.
    pub ports: bool,
    /// Addresses of this host.
    pub local: bool,
    /// Routes.
    pub routes: bool,
}

impl Network {
    /// The ports are these interfaces, and the groups' devices come after them.
    pub fn new(ifindexes: Vec<u32>, groups: Groups) -> Network {
        Network { ifindexes, groups, devices: BTreeMap::new() }
    }

    /// The `if_id`s whose tunnels are told apart by their far ends.
    pub fn shared_if_ids(&self) -> impl Iterator<Item = u32> {
        self.groups.if_ids().map(|(_, if_id)| if_id)
    }

    /// The port of an interface.
    pub fn port(&self, ifindex: u32) -> Option<u16> {
        // A port per interface, at most `config::PORTS_MAX` of them.
        self.ifindexes.iter().position(|known| *known == ifindex).map(|port| port as u16)
    }

    /// The interface of a port.
    pub fn ifindex(&self, port: u16) -> Option<u32> {
        self.ifindexes.get(usize::from(port)).copied()
    }

    /// Everything, from the beginning.
    pub fn fill(&mut self, kernel: &Kernel, view: &mut View) {
        view.host = self.groups.host();
        view.tunnel_devices = self.groups.ports();
        for (port, if_id) in self.groups.if_ids() {
            view.tunnels.set_device(if_id, port);
        }
        self.devices = self.groups.devices_among(kernel.links());
        self.refresh(kernel, view, Stale { ports: true, local: true, routes: true });
        view.neighbours = Neighbours::new();
        for neighbour in kernel.neighbours() {
            self.follow(kernel, view, neighbour.ifindex, neighbour.address);
        }
    }

    /// Follows changes; whether the view is different now, and what of it.
    pub fn apply(&mut self, kernel: &Kernel, view: &mut View, changes: &[Change]) -> (bool, Stale) {
        let mut stale = Stale::default();
        let mut different = false;
        for change in changes {
            match *change {
                Change::Link(_) => stale.ports = true,
                Change::Address(_) => stale.local = true,
                Change::Neighbour(ifindex, address) => {
                    different |= self.follow(kernel, view, ifindex, address);
                }
                Change::Route(..) => {}
            }
        }
        // Whether a route's interface works the kernel says with the route; what it is, is its link's.
        if stale.ports {
            let devices = self.groups.devices_among(kernel.links());
            stale.routes = devices != self.devices;
            self.devices = devices;
        }
        self.refresh(kernel, view, stale);
        if !stale.routes {
            for change in changes {
                if let Change::Route(table, prefix) = *change {
                    for prefix in kernel.touched_by(table, prefix) {
                        stale.routes |= self.follow_route(kernel, view, prefix);
                    }
                }
            }
        }
        (different || stale != Stale::default(), stale)
    }

    fn refresh(&self, kernel: &Kernel, view: &mut View, stale: Stale) {
        if stale.ports {
            view.ports = self.ifindexes.iter().map(|ifindex| port_info(kernel, *ifindex)).collect();
        }
        if stale.local {
            let mut local = Locals::new();
            for address in kernel.addresses() {
                local.insert(address.address);
            }
            view.local = local;
        }
        if stale.routes {
            let mut fib = Fib::new();
            for route in kernel.selected_routes() {
                fib.insert(route.prefix, self.route(kernel, route, &mut view.tunnels));
            }
            view.fib = fib;
        }
    }

    /// Copies the route of one prefix; whether anything changed.
    fn follow_route(&self, kernel: &Kernel, view: &mut View, prefix: Prefix) -> bool {
        let known = view.fib.get(prefix);
        let selected = kernel.selected_route(prefix);
        let route = selected.map(|route| self.route(kernel, route, &mut view.tunnels));
        if route == known {
            return false;
        }
        match route {
            Some(route) => view.fib.insert(prefix, route),
            None => view.fib.remove(prefix),
        };
        true
    }

    /// Copies one neighbour; whether anything changed.
    fn follow(&self, kernel: &Kernel, view: &mut View, ifindex: u32, address: IpAddr) -> bool {
        let Some(port) = self.port(ifindex) else { return false };
        match kernel.neighbour(ifindex, address).and_then(|known| known.usable_mac()) {
            Some(mac) => {
                view.neighbours.set(port, address, mac);
                true
            }
            None => view.neighbours.remove(port, address),
        }
    }

    fn route(&self, kernel: &Kernel, route: &KernelRoute, tunnels: &mut Tunnels) -> Route {
        match route.kind {
            RouteKind::Unicast => match route.first_hop() {
                Some(hop) => match self.port(hop.ifindex) {
                    Some(port) => Route::Via(NextHop { port, gateway: hop.gateway }),
                    None => self.tunnel(kernel, hop, tunnels).unwrap_or(Route::NotAPort),
                },
                None => Route::Unreachable,
            },
            RouteKind::Local | RouteKind::Broadcast | RouteKind::Multicast => Route::Local,
            RouteKind::Blackhole => Route::Blackhole,
            RouteKind::Unreachable => Route::Unreachable,
            RouteKind::Prohibit => Route::Prohibit,
            RouteKind::Throw | RouteKind::KernelOnly(_) => Route::NotAPort,
        }
    }
}

impl Network {
    /// The route by a group's device; `None` if the hop's device is none.
    fn tunnel(&self, kernel: &Kernel, hop: &KernelHop, tunnels: &mut Tunnels) -> Option<Route> {
        let device = &kernel.link(hop.ifindex)?.name;
        let Lead { tunnel, port } = self.groups.lead(device, hop.gateway)?;
        let row = tunnel.and_then(|name| {
            let row = tunnels.join(name)?;
            tunnels.set_device(name.if_id, port);
            Some(row)
        });
        // A next hop that names no tunnel: nothing may leave in clear instead.
        Some(row.map_or(Route::Unreachable, Route::Tunnel))
    }
}

/// A port as its link is now; a link that is gone is a port that is down.
fn port_info(kernel: &Kernel, ifindex: u32) -> PortInfo {
    match kernel.link(ifindex) {
        Some(link) => PortInfo {
            ifindex,
            name: link.name.clone(),
            mac: link.mac.unwrap_or(MacAddr::ZERO),
            mtu: link.mtu,
            up: link.up && link.carrier,
        },
        None => PortInfo { ifindex, name: String::new(), mac: MacAddr::ZERO, mtu: 0, up: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::route_feed::{Event, Link, Placement, Table};
    use dataplane::tunnel::TunnelName;
    use proptest::prelude::*;

    /// Interfaces 1 and 2 are ports, 3 is a group's device, and 4 is nothing.
    fn network() -> Network {
        let text = "[[group]]
            device = \"hub\"
            if_id = 9
            [[port]]
            interface = \"one\"
            [[port]]
            interface = \"two\"";
        Network::new(vec![1, 2], Groups::new(&Config::parse(text).unwrap()))
    }

    fn link(ifindex: u32, name: &str) -> Event {
        Event::Link(Link {
            ifindex,
            name: name.to_owned(),
            kind: None,
            mac: None,
            mtu: 1500,
            up: true,
            carrier: true,
            parent: None,
            vlan: None,
            master: None,
            rx_queues: 1,
        })
    }

    fn route() -> impl Strategy<Value = KernelRoute> {
        let prefix = (0..8u8, 0..4u8, prop::sample::select(vec![0, 8, 14, 16, 24, 32]));
        let way = (1..5u32, 0..3u8, prop::bool::weighted(0.2));
        (prefix, way, 0..3usize, 0..2u32).prop_map(
            |((a, b, len), (ifindex, via, dead), at, metric)| {
                let gateway = (via != 0).then(|| IpAddr::from([192, 0, 2, via]));
                let hop = KernelHop { gateway, ifindex, weight: 1, dead };
                let kind =
                    if via == 2 && metric == 1 { RouteKind::Blackhole } else { RouteKind::Unicast };
                KernelRoute {
                    table: Table::ALL[at],
                    prefix: Prefix::new(IpAddr::from([a, b, 0, b]), len).unwrap(),
                    metric,
                    kind,
                    hops: if kind == RouteKind::Unicast { vec![hop] } else { vec![] },
                    preferred_source: None,
                    mtu: None,
                    protocol: 4,
                }
            },
        )
    }

    fn events() -> impl Strategy<Value = Event> {
        prop_oneof![
            8 => (route(), prop::sample::select(vec![Placement::Append, Placement::Replace]))
                .prop_map(|(route, placement)| Event::Route(route, placement)),
            4 => route().prop_map(Event::RouteGone),
            1 => prop::sample::select(vec![link(3, "hub"), link(3, "other"), link(4, "hub"), link(1, "one")]),
            1 => prop::sample::select(vec![Event::LinkGone(3), Event::LinkGone(4)]),
        ]
    }

    /// The routes of a view, with the names of tunnels, whose numbers depend on history.
    fn routes(view: &View) -> BTreeMap<Prefix, Result<Route, Option<TunnelName>>> {
        let named = |route| match route {
            Route::Tunnel(number) => Err(view.tunnels.row(number).map(|row| row.name)),
            other => Ok(other),
        };
        view.fib.iter().map(|(prefix, route)| (prefix, named(route))).collect()
    }

    proptest! {
        #[test]
        fn routes_that_are_followed_are_those_that_are_read_anew(
            batches in prop::collection::vec(prop::collection::vec(events(), 1..6), 1..25),
        ) {
            let (mut kernel, mut news) = (Kernel::default(), Vec::new());
            for event in [link(1, "one"), link(2, "two"), link(3, "hub")] {
                let _ = kernel.apply(event, &mut news);
            }
            let (mut network, mut view) = (network(), View::default());
            network.fill(&kernel, &mut view);
            for events in batches {
                news.clear();
                for event in events {
                    let _ = kernel.apply(event, &mut news);
                }
                let before = routes(&view);
                let (_, stale) = network.apply(&kernel, &mut view, &news);
                let (mut fresh_network, mut fresh) = (self::network(), View::default());
                fresh_network.fill(&kernel, &mut fresh);
                prop_assert_eq!(routes(&view), routes(&fresh));
                prop_assert!(stale.routes || before == routes(&view), "workers are told");
            }
        }
    }
}
