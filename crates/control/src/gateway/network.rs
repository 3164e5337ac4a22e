//! The kernel's links, addresses, routes and neighbours, as the tables that workers forward by.
//!
//! A table is rebuilt from the kernel's state when something of its kind changed; neighbours are
//! followed one by one, so that the marks of use that workers leave on them survive. What the
//! kernel would choose among several routes is decided by `route_feed`, not here.

use std::net::IpAddr;

use dataplane::fib::{Fib, NextHop, Route};
use dataplane::local::Locals;
use dataplane::neighbour::Neighbours;
use dataplane::tunnel::Tunnels;
use dataplane::view::{PortInfo, View};
use wire::ethernet::MacAddr;

use super::groups::{Groups, Lead};
use crate::route_feed::{Change, Kernel, NextHop as KernelHop, Route as KernelRoute, RouteKind};

/// Which interface each port is, in the order in which every worker holds the ports.
pub struct Network {
    ifindexes: Vec<u32>,
    groups: Groups,
}

/// What of a view must be built anew.
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
        Network { ifindexes, groups }
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
    pub fn fill(&self, kernel: &Kernel, view: &mut View) {
        view.host = self.groups.host();
        view.tunnel_devices = self.groups.ports();
        for (port, if_id) in self.groups.if_ids() {
            view.tunnels.set_device(if_id, port);
        }
        self.refresh(kernel, view, Stale { ports: true, local: true, routes: true });
        view.neighbours = Neighbours::new();
        for neighbour in kernel.neighbours() {
            self.follow(kernel, view, neighbour.ifindex, neighbour.address);
        }
    }

    /// Follows changes; whether the view is different now, and what was rebuilt.
    pub fn apply(&self, kernel: &Kernel, view: &mut View, changes: &[Change]) -> (bool, Stale) {
        let mut stale = Stale::default();
        let mut different = false;
        for change in changes {
            match *change {
                Change::Link(_) => {
                    // A route's interface may have become one of ours, or dead.
                    stale.ports = true;
                    stale.routes = true;
                }
                Change::Address(_) => stale.local = true,
                Change::Route(_) => stale.routes = true,
                Change::Neighbour(ifindex, address) => {
                    different |= self.follow(kernel, view, ifindex, address);
                }
            }
        }
        self.refresh(kernel, view, stale);
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
