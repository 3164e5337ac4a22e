//! The kernel's links, addresses, routes and neighbours, as the tables that workers forward by.
//!
//! Ports and addresses are few and rebuilt from the kernel's state when something of their kind changed.
//! Routes are followed one by one, as there may be a million of them; all are rebuilt only when the
//! device of a group of tunnels comes or goes. So are neighbours, so that the marks of use that
//! workers leave on them survive. What the kernel would choose among several routes is decided by
//! `route_feed`, not here; who is led to which VRF, by `vrfs`.
//!
//! A route stays in its VRF: one that leaves by a port or a tunnel of another is one to nowhere.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use dataplane::fib::{Fib, NextHop, Route};
use dataplane::local::Locals;
use dataplane::neighbour::Neighbours;
use dataplane::prefix::Prefix;
use dataplane::view::{PortInfo, View};
use dataplane::vrfs::{MAIN, Vrfs};
use wire::ethernet::MacAddr;

use super::groups::{Groups, Lead};
use super::vrfs::Leads;
use crate::config::Config;
use crate::route_feed::{
    Change, Kernel, NextHop as KernelHop, Route as KernelRoute, RouteKind, Table,
};

/// Which interface each port is, in the order in which every worker holds the ports.
pub struct Network {
    ifindexes: Vec<u32>,
    /// Whose interfaces were gone at any time: one that comes back with its index has none of our sockets.
    dead: BTreeSet<u32>,
    groups: Groups,
    leads: Leads,
    /// The links that are groups' devices, as the routes were translated with them.
    devices: BTreeMap<u32, String>,
    /// The routes that make addresses this host's, or broadcasts, as the steering programs know them.
    own: HashMap<(Table, Prefix), RouteKind>,
}

/// What of a view is different, or must be built anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stale {
    /// Ports: addresses, MTU or state of a link.
    pub ports: bool,
    /// Addresses of this host, or broadcasts of its networks.
    pub local: bool,
    /// Routes.
    pub routes: bool,
}

impl Network {
    /// The ports are these interfaces, and the groups' devices come after them.
    pub fn new(ifindexes: Vec<u32>, groups: Groups, leads: Leads) -> Network {
        let (dead, devices, own) = (BTreeSet::new(), BTreeMap::new(), HashMap::new());
        Network { ifindexes, dead, groups, leads, devices, own }
    }

    /// Those of a configuration.
    pub fn of(config: &Config, ifindexes: Vec<u32>) -> Network {
        Network::new(ifindexes, Groups::new(config), Leads::new(config))
    }

    /// The `if_id`s whose tunnels are told apart by their far ends.
    pub fn shared_if_ids(&self) -> impl Iterator<Item = u32> {
        self.groups.if_ids().map(|(_, if_id)| if_id)
    }

    /// The name of the VRF of a port, if it is not the main table.
    pub fn vrf_name(&self, port: u16, vrfs: &Vrfs, kernel: &Kernel) -> Option<String> {
        self.leads.name(vrfs.port(port).inner, kernel)
    }

    /// The tables of VRFs that anything is led to.
    pub fn vrf_tables(&self) -> impl Iterator<Item = Table> {
        self.leads.tables().map(|(table, _)| table)
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
        for (port, if_id) in self.groups.if_ids().chain(self.groups.listed_if_ids()) {
            view.tunnels.set_device(if_id, port);
        }
        self.devices = self.groups.devices_among(kernel.links());
        view.vrfs = self.leads.resolve(&self.ifindexes, &self.groups, kernel);
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
                Change::AddressAgain(_) => {}
                Change::Neighbour(ifindex, address) => {
                    different |= self.follow(kernel, view, ifindex, address);
                }
                Change::Route(table, prefix) => {
                    stale.local |= self.is_about_host(kernel, table, prefix);
                }
            }
        }
        // Whether a route's interface works the kernel says with the route; what it is, is its link's.
        if stale.ports {
            let devices = self.groups.devices_among(kernel.links());
            let vrfs = self.leads.resolve(&self.ifindexes, &self.groups, kernel);
            stale.routes = devices != self.devices || vrfs != view.vrfs;
            // The routes of a VRF's table to this host count while its device is there.
            stale.local |= vrfs != view.vrfs;
            (self.devices, view.vrfs) = (devices, vrfs);
        }
        self.refresh(kernel, view, stale);
        if !stale.routes {
            for change in changes {
                match *change {
                    Change::Route(table @ Table::Other(_), prefix) => {
                        stale.routes |= self.follow_vrfs_route(kernel, view, table, prefix);
                    }
                    Change::Route(table, prefix) => {
                        for prefix in kernel.touched_by(table, prefix) {
                            let selected = kernel.selected_route(prefix);
                            stale.routes |= self.follow_route(kernel, view, MAIN, prefix, selected);
                        }
                    }
                    _ => {}
                }
            }
        }
        (different || stale != Stale::default(), stale)
    }

    /// Whether a route's change is one of what is this host's. It is by none of the tables main and
    /// default, where the kernel does not look for it.
    fn is_about_host(&self, kernel: &Kernel, table: Table, prefix: Prefix) -> bool {
        if let Table::Main | Table::Default = table {
            return false;
        }
        let now = kernel.route_in(table, prefix).filter(|route| route.is_of_host());
        now.map(|route| route.kind) != self.own.get(&(table, prefix)).copied()
    }

    fn refresh(&mut self, kernel: &Kernel, view: &mut View, stale: Stale) {
        if stale.ports {
            let gone = |ifindex: &&u32| kernel.link(**ifindex).is_none();
            self.dead.extend(self.ifindexes.iter().filter(gone));
            let info = |ifindex: &u32| port_info(kernel, *ifindex, self.dead.contains(ifindex));
            view.ports = self.ifindexes.iter().map(info).collect();
        }
        if stale.local {
            let mut local = Locals::new();
            for address in kernel.addresses() {
                local.insert(address.address);
            }
            let routes = kernel.host_routes();
            self.own = routes.map(|route| ((route.table, route.prefix), route.kind)).collect();
            let addresses = self.own.iter().filter(|(_, kind)| **kind == RouteKind::Local);
            for ((_, prefix), _) in addresses {
                local.insert(prefix.address());
            }
            view.local = local;
        }
        if stale.routes {
            let mut fib = Fib::new();
            for route in kernel.selected_routes() {
                fib.insert(route.prefix, self.route(kernel, MAIN, route, view));
            }
            for (table, vrf) in self.leads.tables() {
                for route in kernel.routes_in(table) {
                    fib.insert_in(vrf, route.prefix, self.route(kernel, vrf, route, view));
                }
            }
            view.fib = fib;
        }
    }

    /// Copies the route of one prefix of a VRF's table, if it is one; whether anything changed.
    fn follow_vrfs_route(
        &self,
        kernel: &Kernel,
        view: &mut View,
        table: Table,
        prefix: Prefix,
    ) -> bool {
        let Some(vrf) = self.leads.number_of(table) else { return false };
        self.follow_route(kernel, view, vrf, prefix, kernel.route_in(table, prefix))
    }

    /// Copies the route of one prefix; whether anything changed.
    fn follow_route(
        &self,
        kernel: &Kernel,
        view: &mut View,
        vrf: u32,
        prefix: Prefix,
        selected: Option<&KernelRoute>,
    ) -> bool {
        let known = view.fib.get_in(vrf, prefix);
        let route = selected.map(|route| self.route(kernel, vrf, route, view));
        if route == known {
            return false;
        }
        match route {
            Some(route) => view.fib.insert_in(vrf, prefix, route),
            None => view.fib.remove_in(vrf, prefix),
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

    fn route(&self, kernel: &Kernel, vrf: u32, route: &KernelRoute, view: &mut View) -> Route {
        match route.kind {
            RouteKind::Unicast => match route.first_hop() {
                Some(hop) => match self.port(hop.ifindex) {
                    Some(port) if view.vrfs.port(port).inner != vrf => Route::OutOfVrf,
                    Some(port) => Route::Via(NextHop { port, gateway: hop.gateway }),
                    None => self.tunnel(kernel, vrf, hop, view).unwrap_or(Route::NotAPort),
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
    fn tunnel(&self, kernel: &Kernel, vrf: u32, hop: &KernelHop, view: &mut View) -> Option<Route> {
        let View { tunnels, vrfs, .. } = view;
        let device = &kernel.link(hop.ifindex)?.name;
        let Lead { tunnel, port } = self.groups.lead(device, hop.gateway)?;
        // A tunnel has one VRF, however many devices name it: that of the first.
        let others = tunnel.and_then(|name| tunnels.device(name.if_id));
        if vrfs.port(port).inner != vrf
            || others.is_some_and(|other| vrfs.port(other) != vrfs.port(port))
        {
            return Some(Route::OutOfVrf);
        }
        let row = tunnel.and_then(|name| {
            let row = tunnels.join(name)?;
            tunnels.set_device(name.if_id, port);
            Some(row)
        });
        // A next hop that names no tunnel: nothing may leave in clear instead.
        Some(row.map_or(Route::Unreachable, Route::Tunnel))
    }
}

/// A port as its link is now; a link that is gone is a port that is down, also when it comes back.
fn port_info(kernel: &Kernel, ifindex: u32, is_dead: bool) -> PortInfo {
    match kernel.link(ifindex) {
        Some(link) => PortInfo {
            ifindex,
            name: link.name.clone(),
            mac: link.mac.unwrap_or(MacAddr::ZERO),
            mtu: link.mtu,
            up: link.up && link.carrier && !is_dead,
        },
        None => PortInfo { ifindex, name: String::new(), mac: MacAddr::ZERO, mtu: 0, up: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route_feed::{Event, Link, Placement};
    use dataplane::tunnel::TunnelName;
    use dataplane::vrfs::UNKNOWN;
    use proptest::prelude::*;

    /// Interfaces 1, 2 and 6 are ports, 3 and 7 are groups' devices, 4 is nothing and 5 is a VRF, which the
    /// second group is led to by name.
    fn network() -> Network {
        let text = "[[group]]
            device = \"hub\"
            if_id = 9
            [[group]]
            device = \"spoke\"
            if_id = 10
            vrf = \"blue\"
            [[port]]
            interface = \"one\"
            [[port]]
            interface = \"two\"
            [[port]]
            interface = \"six\"
            vrf = { table = 20 }";
        let config = Config::parse(text).unwrap();
        Network::of(&config, vec![1, 2, 6])
    }

    fn link(ifindex: u32, name: &str) -> Event {
        Event::Link(plain(ifindex, name))
    }

    /// A VRF device of a table.
    fn vrf(table: u32) -> Event {
        let kind = Some("vrf".to_owned());
        Event::Link(Link { kind, vrf_table: Some(table), ..plain(5, "blue") })
    }

    /// Interface 1 as a part of the VRF.
    fn enslaved() -> Event {
        Event::Link(Link { master: Some(5), ..plain(1, "one") })
    }

    fn plain(ifindex: u32, name: &str) -> Link {
        Link {
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
            vrf_table: None,
            rx_queues: 1,
        }
    }

    fn route() -> impl Strategy<Value = KernelRoute> {
        let prefix = (0..8u8, 0..4u8, prop::sample::select(vec![0, 8, 14, 16, 24, 32]));
        let way = (1..8u32, 0..3u8, prop::bool::weighted(0.2));
        (prefix, way, 0..5usize, 0..2u32).prop_map(
            |((a, b, len), (ifindex, via, dead), at, metric)| {
                let gateway = (via != 0).then(|| IpAddr::from([192, 0, 2, via]));
                let hop = KernelHop { gateway, ifindex, weight: 1, dead, link_down: false };
                let kind =
                    if via == 2 && metric == 1 { RouteKind::Blackhole } else { RouteKind::Unicast };
                KernelRoute {
                    table: [&Table::WITHOUT_VRF[..], &[Table::Other(10), Table::Other(20)]]
                        .concat()[at],
                    prefix: Prefix::new(IpAddr::from([a, b, 0, b]), len).unwrap(),
                    metric,
                    kind,
                    hops: if kind == RouteKind::Unicast { vec![hop] } else { vec![] },
                    preferred_source: None,
                    mtu: None,
                    protocol: 4,
                    object: None,
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
            1 => prop::sample::select(vec![Event::LinkGone(3), Event::LinkGone(4), Event::LinkGone(5)]),
            1 => prop::sample::select(vec![vrf(10), vrf(20), enslaved()]),
        ]
    }

    /// The routes of the tables of a view, with the names of tunnels, whose numbers depend on history, as
    /// those of tables do.
    fn routes(
        network: &Network,
        view: &View,
    ) -> BTreeMap<(Table, Prefix), Result<Route, Option<TunnelName>>> {
        let led: Vec<u32> = (0..6).map(|port| view.vrfs.port(port).inner).collect();
        let vrfs = network.leads.tables().filter(|(_, vrf)| led.contains(vrf));
        let named = |route| match route {
            Route::Tunnel(number) => Err(view.tunnels.row(number).map(|row| row.name)),
            other => Ok(other),
        };
        let of = |(table, vrf)| {
            view.fib.iter_in(vrf).map(move |(prefix, route)| ((table, prefix), named(route)))
        };
        vrfs.chain([(Table::Main, MAIN)]).flat_map(of).collect()
    }

    fn by(ifindex: u32, table: Table) -> KernelRoute {
        KernelRoute {
            table,
            prefix: Prefix::new([10, 0, 0, 0].into(), 8).unwrap(),
            metric: 0,
            kind: RouteKind::Unicast,
            hops: vec![KernelHop {
                gateway: None,
                ifindex,
                weight: 1,
                dead: false,
                link_down: false,
            }],
            preferred_source: None,
            mtu: None,
            protocol: 4,
            object: None,
        }
    }

    #[test]
    fn ports_follow_the_kernel_into_vrfs_and_routes_stay_in_theirs() {
        let (mut kernel, mut news) = (Kernel::default(), Vec::new());
        let mut apply = |kernel: &mut Kernel, event| {
            news.clear();
            let _ = kernel.apply(event, &mut news);
            news.clone()
        };
        for event in [link(1, "one"), link(2, "two"), link(6, "six"), link(7, "spoke")] {
            apply(&mut kernel, event);
        }
        for (ifindex, table) in [(1, Table::Main), (1, Table::Other(10)), (6, Table::Other(20))] {
            apply(&mut kernel, Event::Route(by(ifindex, table), Placement::Append));
        }
        let (mut network, mut view) = (network(), View::default());
        network.fill(&kernel, &mut view);
        let destination = [10, 1, 1, 1].into();
        let leads = |view: &View, port| {
            let vrf = view.vrfs.port(port).inner;
            (vrf, view.fib.lookup_in(vrf, destination))
        };
        let via = |port| Some(Route::Via(NextHop { port, gateway: None }));
        // The configuration's word: port 2 by table 20, and the group's device, 5, by a VRF that is not there.
        let twenty = view.vrfs.port(2).inner;
        assert_eq!((leads(&view, 0), leads(&view, 2)), ((MAIN, via(0)), (twenty, via(2))));
        assert_eq!(leads(&view, 5), (UNKNOWN, None));
        let name = |network: &Network, port, view: &View, kernel: &Kernel| {
            network.vrf_name(port, &view.vrfs, kernel)
        };
        assert_eq!(name(&network, 0, &view, &kernel), None);
        assert_eq!(name(&network, 2, &view, &kernel).as_deref(), Some("table 20"));
        assert_eq!(name(&network, 5, &view, &kernel).as_deref(), Some("unknown"));
        // The kernel's: the VRF comes, and port 0 becomes a part of it.
        for event in [vrf(10), enslaved()] {
            let news = apply(&mut kernel, event);
            assert!(network.apply(&kernel, &mut view, &news).1.routes);
        }
        let ten = view.vrfs.port(0).inner;
        assert_eq!((leads(&view, 0), leads(&view, 5)), ((ten, via(0)), (ten, via(0))));
        assert_eq!(name(&network, 0, &view, &kernel).as_deref(), Some("blue"));
        assert_eq!(
            leads(&view, 1),
            (MAIN, Some(Route::OutOfVrf)),
            "main's route is by a port of blue"
        );
        let news = apply(&mut kernel, Event::Route(by(6, Table::Other(10)), Placement::Replace));
        assert!(network.apply(&kernel, &mut view, &news).1.routes);
        assert_eq!(leads(&view, 0).1, Some(Route::OutOfVrf));
        let news = apply(&mut kernel, Event::RouteGone(by(6, Table::Other(10))));
        assert!(network.apply(&kernel, &mut view, &news).1.routes);
        assert_eq!(leads(&view, 0).1, None);
        // And it goes.
        let news = apply(&mut kernel, Event::LinkGone(5));
        network.apply(&kernel, &mut view, &news);
        assert_eq!((leads(&view, 0).0, leads(&view, 5).0), (UNKNOWN, UNKNOWN));
    }

    #[test]
    fn a_port_whose_interface_was_gone_stays_down() {
        let (mut kernel, mut network, mut view) = (Kernel::default(), network(), View::default());
        for event in [link(1, "one"), link(2, "two"), link(6, "six")] {
            let _ = kernel.apply(event, &mut Vec::new());
        }
        network.fill(&kernel, &mut view);
        let mut up = |event| {
            let mut news = Vec::new();
            let _ = kernel.apply(event, &mut news);
            network.apply(&kernel, &mut view, &news);
            view.ports.iter().map(|port| port.up).collect::<Vec<_>>()
        };
        assert_eq!(up(link(1, "renamed")), [true, true, true]);
        assert_eq!(up(Event::LinkGone(1)), [false, true, true]);
        assert_eq!(up(link(1, "one")), [false, true, true], "its sockets are gone");
    }

    #[test]
    fn addresses_follow_the_routes_to_this_host() {
        let (mut kernel, mut network, mut view) = (Kernel::default(), network(), View::default());
        network.fill(&kernel, &mut view);
        let mut changed = |event| {
            let mut news = Vec::new();
            let _ = kernel.apply(event, &mut news);
            let (_, stale) = network.apply(&kernel, &mut view, &news);
            (stale.local, view.local.contains(&[10, 0, 0, 0].into()))
        };
        let to = |table, kind, len| {
            let prefix = Prefix::new([10, 0, 0, 0].into(), len).unwrap();
            KernelRoute { kind, prefix, hops: vec![], ..by(1, table) }
        };
        let own = to(Table::Local, RouteKind::Local, 32);
        let comes = |route: &KernelRoute| Event::Route(route.clone(), Placement::Replace);
        assert_eq!(changed(comes(&own)), (true, true));
        assert_eq!(changed(comes(&own)), (false, true), "nothing new");
        let broadcast = to(Table::Local, RouteKind::Broadcast, 32);
        assert_eq!(changed(comes(&broadcast)), (true, false), "the steering programs' alone");
        assert_eq!(changed(Event::RouteGone(broadcast)), (true, false));
        // What is no address, what is no VRF's, and what is.
        assert_eq!(changed(comes(&to(Table::Local, RouteKind::Local, 24))), (false, false));
        assert_eq!(changed(comes(&to(Table::Main, RouteKind::Local, 32))), (false, false));
        assert!(!changed(comes(&to(Table::Other(10), RouteKind::Local, 32))).1);
        assert_eq!(changed(vrf(10)), (true, true));
        assert_eq!(changed(Event::LinkGone(5)), (true, false));
    }

    proptest! {
        #[test]
        fn routes_that_are_followed_are_those_that_are_read_anew(
            batches in prop::collection::vec(prop::collection::vec(events(), 1..6), 1..25),
        ) {
            let (mut kernel, mut news) = (Kernel::default(), Vec::new());
            for event in [link(1, "one"), link(2, "two"), link(3, "hub"), link(6, "six"), link(7, "spoke")] {
                let _ = kernel.apply(event, &mut news);
            }
            let (mut network, mut view) = (network(), View::default());
            network.fill(&kernel, &mut view);
            for events in batches {
                news.clear();
                for event in events {
                    let _ = kernel.apply(event, &mut news);
                }
                let before = routes(&network, &view);
                let (_, stale) = network.apply(&kernel, &mut view, &news);
                let (mut fresh_network, mut fresh) = (self::network(), View::default());
                fresh_network.fill(&kernel, &mut fresh);
                let now = routes(&network, &view);
                prop_assert_eq!(&now, &routes(&fresh_network, &fresh));
                prop_assert!(stale.routes || before == now, "workers are told");
            }
        }
    }
}
