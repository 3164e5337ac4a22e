//! The network as the kernel has it, kept up to date event by event.
//!
//! Pure: no socket and no clock. What to do when an event does not fit is decided by the caller;
//! this file only says that it is in doubt.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use dataplane::prefix::Prefix;

use super::model::{Address, Link, Neighbour, Route, Table};
use super::table::{Effect, Placement, RouteTable};

/// The four kinds of things that the kernel tells about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Interfaces.
    Links,
    /// Addresses of this host.
    Addresses,
    /// Routes.
    Routes,
    /// Neighbours.
    Neighbours,
}

impl Kind {
    /// All of them, in the order in which they are read: later ones refer to earlier ones.
    pub const ALL: [Self; 4] = [Self::Links, Self::Addresses, Self::Routes, Self::Neighbours];
}

/// One piece of news from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A link is new or different.
    Link(Link),
    /// A link is gone.
    LinkGone(u32),
    /// An address is new.
    Address(Address),
    /// An address is gone.
    AddressGone(Address),
    /// A route is new or different.
    Route(Route, Placement),
    /// A route, or some of its hops, is gone.
    RouteGone(Route),
    /// A next-hop object is new or different.
    Object(u32),
    /// A next-hop object is gone.
    ObjectGone(u32),
    /// A neighbour is new or different.
    Neighbour(Neighbour),
    /// A neighbour is gone.
    NeighbourGone(u32, IpAddr),
}

impl Event {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Link(_) | Self::LinkGone(_) => Kind::Links,
            Self::Address(_) | Self::AddressGone(_) => Kind::Addresses,
            Self::Route(..) | Self::RouteGone(_) | Self::Object(_) | Self::ObjectGone(_) => {
                Kind::Routes
            }
            Self::Neighbour(_) | Self::NeighbourGone(..) => Kind::Neighbours,
        }
    }

    /// What an event is about, of things that a new one takes the place of as a whole; `None` of routes.
    pub(super) fn key(&self) -> Option<Key> {
        match *self {
            Self::Link(Link { ifindex, .. }) | Self::LinkGone(ifindex) => Some(Key::Link(ifindex)),
            Self::Address(address) | Self::AddressGone(address) => Some(Key::Address(address)),
            Self::Neighbour(Neighbour { ifindex, address, .. })
            | Self::NeighbourGone(ifindex, address) => Some(Key::Neighbour(ifindex, address)),
            Self::Route(..) | Self::RouteGone(_) | Self::Object(_) | Self::ObjectGone(_) => None,
        }
    }

    /// The table and prefix that an event about routes is about.
    pub(super) fn route_key(&self) -> Option<(Table, Prefix)> {
        match self {
            Self::Route(route, _) | Self::RouteGone(route) => Some((route.table, route.prefix)),
            _ => None,
        }
    }
}

/// A thing of which there is one: a later event about it overrules an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Link(u32),
    Address(Address),
    Neighbour(u32, IpAddr),
}

/// What is different now. A change names the thing; its present state is in the [`Kernel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// The link of this index.
    Link(u32),
    /// This address is new or gone.
    Address(Address),
    /// This address was known, and may have other flags: the kernel takes an IPv6 address for the source of a
    /// route once it has made sure that nobody else has it.
    AddressAgain(Address),
    /// The routes of a table for this prefix.
    Route(Table, Prefix),
    /// The neighbour behind this interface.
    Neighbour(u32, IpAddr),
}

/// The network as the kernel has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    links: BTreeMap<u32, Link>,
    addresses: BTreeSet<Address>,
    routes: RouteTable,
    neighbours: HashMap<(u32, IpAddr), Neighbour>,
}

impl Kernel {
    /// Every link, by index.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.values()
    }

    /// The link of an index.
    #[must_use]
    pub fn link(&self, ifindex: u32) -> Option<&Link> {
        self.links.get(&ifindex)
    }

    /// The link of a name.
    #[must_use]
    pub fn link_named(&self, name: &str) -> Option<&Link> {
        self.links.values().find(|link| link.name == name)
    }

    /// Every address of this host.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter()
    }

    /// Every neighbour, in no order.
    pub fn neighbours(&self) -> impl Iterator<Item = &Neighbour> {
        self.neighbours.values()
    }

    /// The neighbour of an address behind an interface.
    #[must_use]
    pub fn neighbour(&self, ifindex: u32, address: IpAddr) -> Option<&Neighbour> {
        self.neighbours.get(&(ifindex, address))
    }

    /// Every route of the followed tables, also those that no packet takes now; in no order.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.routes.all()
    }

    /// How many routes there are.
    #[must_use]
    pub fn route_count(&self) -> usize {
        self.routes.len()
    }

    /// One route per prefix, such that the longest match among them is what the kernel would choose
    /// (tables, metrics and dead hops resolved). Linear in the number of routes.
    #[must_use]
    pub fn selected_routes(&self) -> Vec<&Route> {
        self.routes.selected()
    }

    /// Of [`selected_routes`](Self::selected_routes) the route of one prefix, without looking at the
    /// others.
    #[must_use]
    pub fn selected_route(&self, prefix: Prefix) -> Option<&Route> {
        self.routes.selected_at(prefix)
    }

    /// One route per prefix of a table, such that the longest match among them is what the kernel would
    /// choose in that table.
    pub fn routes_in(&self, table: Table) -> impl Iterator<Item = &Route> {
        self.routes.best_of(table)
    }

    /// Of [`routes_in`](Self::routes_in) the route of one prefix.
    #[must_use]
    pub fn route_in(&self, table: Table, prefix: Prefix) -> Option<&Route> {
        self.routes.best(table, prefix)
    }

    /// The routes that make single addresses this host's, or broadcasts, in the tables where the kernel
    /// looks for them: local, and those of VRF devices.
    pub fn host_routes(&self) -> impl Iterator<Item = &Route> {
        let vrfs = self.links.values().filter_map(|link| Table::from_number(link.vrf_table?));
        let tables = std::iter::once(Table::Local).chain(vrfs);
        tables.flat_map(move |table| self.routes.best_of(table)).filter(|route| route.is_of_host())
    }

    /// The prefixes whose selected route is perhaps another after [`Change::Route`]: itself, and those of
    /// tables that are asked later which it covers, or did.
    #[must_use]
    pub fn touched_by(&self, table: Table, prefix: Prefix) -> Vec<Prefix> {
        self.routes.touched(table, prefix)
    }

    /// The route that the kernel would choose for an address, by asking every prefix length of
    /// every table: slow, for people and tests. A `throw` in the last table gives `None`.
    #[must_use]
    pub fn lookup(&self, address: IpAddr) -> Option<&Route> {
        self.routes.lookup(address)
    }

    /// Takes in one event and tells what changed. True when the routes are in doubt and must be
    /// read again: because the event does not fit, or because the kernel is known to change routes
    /// without telling. IPv4 routes go silently with their interface (fib_sync_down_dev), their
    /// hops come back to life silently (fib_sync_up), and routes that name a removed address as
    /// source go silently with it. IPv4 routes by a next-hop object also do (__remove_nexthop_fib),
    /// right after the news of its end; and those by a group of objects silently lose the hops that
    /// the group loses (remove_nexthop_from_groups).
    #[must_use]
    pub fn apply(&mut self, event: Event, changes: &mut Vec<Change>) -> bool {
        match event {
            Event::Link(link) => self.apply_link(link, changes),
            Event::LinkGone(ifindex) => self.apply_link_gone(ifindex, changes),
            Event::Address(address) => {
                let is_new = self.addresses.insert(address);
                changes.push(match is_new {
                    true => Change::Address(address),
                    false => Change::AddressAgain(address),
                });
                false
            }
            Event::AddressGone(address) => {
                let known = self.addresses.remove(&address);
                if known {
                    changes.push(Change::Address(address));
                }
                known && address.address.is_ipv4()
            }
            Event::Route(route, placement) => {
                let key = (route.table, route.prefix);
                route_effect(self.routes.insert(route, placement), key, changes)
            }
            Event::RouteGone(route) => {
                let key = (route.table, route.prefix);
                route_effect(self.routes.remove(&route), key, changes)
            }
            Event::Object(object) => self.routes.uses(object),
            Event::ObjectGone(object) => {
                let routes = self.routes.forget_object(object).into_iter();
                changes.extend(routes.map(|(table, prefix)| Change::Route(table, prefix)));
                false
            }
            Event::Neighbour(neighbour) => {
                let key = (neighbour.ifindex, neighbour.address);
                if self.neighbours.insert(key, neighbour) != Some(neighbour) {
                    changes.push(Change::Neighbour(key.0, key.1));
                }
                false
            }
            Event::NeighbourGone(ifindex, address) => {
                if self.neighbours.remove(&(ifindex, address)).is_some() {
                    changes.push(Change::Neighbour(ifindex, address));
                }
                false
            }
        }
    }

    fn apply_link(&mut self, link: Link, changes: &mut Vec<Change>) -> bool {
        let ifindex = link.ifindex;
        let before = self.links.get(&ifindex);
        if before == Some(&link) {
            return false;
        }
        let health = |link: &Link| (link.up, link.carrier);
        let routes_in_doubt = before.is_some_and(|before| health(before) != health(&link));
        self.links.insert(ifindex, link);
        changes.push(Change::Link(ifindex));
        routes_in_doubt
    }

    fn apply_link_gone(&mut self, ifindex: u32, changes: &mut Vec<Change>) -> bool {
        if self.links.remove(&ifindex).is_none() {
            return false;
        }
        changes.push(Change::Link(ifindex));
        // The kernel tells about each of these too, before or after; the order must not matter.
        self.addresses.retain(|address| {
            let stays = address.ifindex != ifindex;
            if !stays {
                changes.push(Change::Address(*address));
            }
            stays
        });
        self.neighbours.retain(|key, _| {
            let stays = key.0 != ifindex;
            if !stays {
                changes.push(Change::Neighbour(key.0, key.1));
            }
            stays
        });
        true
    }

    /// Forgets the routes of one table for one prefix, without telling.
    pub(super) fn forget_routes(&mut self, key: (Table, Prefix)) {
        self.routes.forget(key);
    }

    /// Puts what was read afresh in the place of what was known of one kind, and tells the
    /// difference.
    pub(super) fn replace(&mut self, kind: Kind, fresh: &mut Self, changes: &mut Vec<Change>) {
        match kind {
            Kind::Links => {
                let (old, new) = (&self.links, &fresh.links);
                let differs = |i: &&u32| old.get(*i) != new.get(*i);
                let indexes: BTreeSet<&u32> = old.keys().chain(new.keys()).collect();
                changes.extend(indexes.into_iter().filter(differs).map(|&i| Change::Link(i)));
                std::mem::swap(&mut self.links, &mut fresh.links);
            }
            Kind::Addresses => {
                let difference = self.addresses.symmetric_difference(&fresh.addresses);
                changes.extend(difference.map(|&address| Change::Address(address)));
                let both = self.addresses.intersection(&fresh.addresses);
                changes.extend(both.map(|&address| Change::AddressAgain(address)));
                std::mem::swap(&mut self.addresses, &mut fresh.addresses);
            }
            Kind::Routes => {
                let difference = self.routes.difference(&fresh.routes);
                changes.extend(
                    difference.into_iter().map(|(table, prefix)| Change::Route(table, prefix)),
                );
                std::mem::swap(&mut self.routes, &mut fresh.routes);
            }
            Kind::Neighbours => {
                let (old, new) = (&self.neighbours, &fresh.neighbours);
                let keys = old.keys().chain(new.keys().filter(|key| !old.contains_key(key)));
                let differs = keys.filter(|key| old.get(key) != new.get(key));
                changes.extend(differs.map(|key| Change::Neighbour(key.0, key.1)));
                std::mem::swap(&mut self.neighbours, &mut fresh.neighbours);
            }
        }
    }
}

fn route_effect(
    effect: Effect,
    (table, prefix): (Table, Prefix),
    changes: &mut Vec<Change>,
) -> bool {
    if effect != Effect::None {
        changes.push(Change::Route(table, prefix));
    }
    effect == Effect::Doubtful
}
