//! The routes of the followed tables, ordered and chosen from as the kernel does it.
//!
//! The kernel's rules, observed and read in net/ipv4/fib_trie.c and net/ipv6/ip6_fib.c:
//!
//! 1. Tables are asked in order: local, main, default. The first with a usable match decides.
//! 2. In a table the longest prefix wins, then the lowest metric, then the order of routes.
//! 3. IPv4 keeps routes of one prefix and metric side by side. A new one goes in front
//!    (`ip route prepend`), to the end (`append`), or takes the place of the first (`replace`).
//! 4. IPv6 merges gateways of one prefix and metric into one multipath route. Its events carry all
//!    the hops of the result; a deletion carries only the hops that went.
//!
//! Routes bound to a type of service or a source prefix never get here (see `decode.rs`), and
//! policy-routing rules are not followed: a packet that needs them must be left to the kernel.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use dataplane::prefix::Prefix;

use super::model::{Route, RouteKind, Table};

/// How an event wants its route to be placed among routes of the same prefix and metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// In the place of the first.
    Replace,
    /// Behind the others (also the order of a dump).
    Append,
    /// In front of the others.
    Prepend,
}

/// What an event did to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing: it was known.
    None,
    /// The routes of the prefix changed.
    Changed,
    /// The event does not fit what is known, or fits in more than one way: read the table again.
    Doubtful,
}

/// All routes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RouteTable {
    /// Routes of one table and prefix, by metric, then in the kernel's order.
    routes: HashMap<(Table, Prefix), Vec<Route>>,
}

impl RouteTable {
    pub(super) fn insert(&mut self, route: Route, placement: Placement) -> Effect {
        let list = self.routes.entry((route.table, route.prefix)).or_default();
        let start = list.partition_point(|r| r.metric < route.metric);
        let end = list.partition_point(|r| r.metric <= route.metric);
        if route.prefix.address().is_ipv4() {
            insert_v4(list, start..end, route, placement)
        } else {
            insert_v6(list, start..end, route, placement)
        }
    }

    pub(super) fn remove(&mut self, route: &Route) -> Effect {
        let key = (route.table, route.prefix);
        let Some(list) = self.routes.get_mut(&key) else {
            return Effect::Doubtful;
        };
        let effect = if route.prefix.address().is_ipv4() {
            remove_v4(list, route)
        } else {
            remove_v6(list, route)
        };
        if list.is_empty() {
            self.routes.remove(&key);
        }
        effect
    }

    /// The prefixes whose routes differ from another table's.
    pub(super) fn difference(&self, other: &Self) -> Vec<Prefix> {
        let keys: HashSet<_> = self.routes.keys().chain(other.routes.keys()).collect();
        let differs = |key: &&&(Table, Prefix)| self.routes.get(*key) != other.routes.get(*key);
        let prefixes: HashSet<Prefix> = keys.iter().filter(differs).map(|key| key.1).collect();
        prefixes.into_iter().collect()
    }

    /// Every route, usable or not, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Route> {
        self.routes.values().flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.routes.values().map(Vec::len).sum()
    }

    /// The route that counts for a prefix in a table.
    fn best(&self, table: Table, prefix: Prefix) -> Option<&Route> {
        self.routes.get(&(table, prefix))?.iter().find(|route| route.usable())
    }

    /// The route for an address, asked table by table as the kernel does it. The slow twin of any
    /// forwarding table built from [`selected`](Self::selected).
    pub(super) fn lookup(&self, address: IpAddr) -> Option<&Route> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let in_table = |table| {
            let prefixes = (0..=bits).rev().filter_map(|length| Prefix::new(address, length));
            let route = prefixes.filter_map(|prefix| self.best(table, prefix)).next()?;
            (route.kind != RouteKind::Throw).then_some(route)
        };
        Table::ALL.into_iter().find_map(in_table)
    }

    /// One route per prefix, such that the longest match among them is the kernel's answer: a route
    /// is left out when a table that is asked earlier covers its whole prefix. A `throw` route
    /// stays as it is, for its packets to be left to the kernel.
    pub(super) fn selected(&self) -> Vec<&Route> {
        let mut selected: Vec<&Route> = Vec::with_capacity(self.routes.len());
        let mut earlier = Cover::default();
        for table in Table::ALL {
            let first = selected.len();
            for &(of, prefix) in self.routes.keys().filter(|key| key.0 == table) {
                if !earlier.covers(prefix) {
                    selected.extend(self.best(of, prefix));
                }
            }
            for route in &selected[first..] {
                earlier.add(route.prefix);
            }
        }
        selected
    }
}

/// Prefixes, by length, so that "is it inside one of them" costs one look-up per length in use.
#[derive(Default)]
struct Cover {
    prefixes: HashSet<Prefix>,
    lengths_v4: HashSet<u8>,
    lengths_v6: HashSet<u8>,
}

impl Cover {
    fn add(&mut self, prefix: Prefix) {
        let v4 = prefix.address().is_ipv4();
        let lengths = if v4 { &mut self.lengths_v4 } else { &mut self.lengths_v6 };
        lengths.insert(prefix.len());
        self.prefixes.insert(prefix);
    }

    fn covers(&self, prefix: Prefix) -> bool {
        let v4 = prefix.address().is_ipv4();
        let lengths = if v4 { &self.lengths_v4 } else { &self.lengths_v6 };
        let covering = |&length: &u8| {
            length <= prefix.len()
                && Prefix::new(prefix.address(), length)
                    .is_some_and(|shorter| self.prefixes.contains(&shorter))
        };
        lengths.iter().any(covering)
    }
}

type Group = std::ops::Range<usize>;

fn insert_v4(list: &mut Vec<Route>, group: Group, route: Route, placement: Placement) -> Effect {
    let twin = group.clone().find(|&i| list[i].same_route(&route));
    match (placement, twin) {
        (Placement::Replace, _) if !group.is_empty() => {
            // The first is replaced, unless the new one already stood elsewhere: then the kernel
            // changes nothing, and sends no event either. Several candidates are worth a look.
            let effect = set(list, group.start, route);
            if group.len() > 1 { Effect::Doubtful } else { effect }
        }
        (_, Some(i)) => set(list, i, route),
        (Placement::Prepend, None) => {
            list.insert(group.start, route);
            Effect::Changed
        }
        (Placement::Append | Placement::Replace, None) => {
            list.insert(group.end, route);
            Effect::Changed
        }
    }
}

fn insert_v6(list: &mut Vec<Route>, group: Group, route: Route, placement: Placement) -> Effect {
    let has_gateway = |route: &Route| route.hops.iter().any(|hop| hop.gateway.is_some());
    if placement == Placement::Replace && !group.is_empty() {
        // Routes with gateways replace such routes, the others replace the others.
        let alike = |&i: &usize| has_gateway(&list[i]) == has_gateway(&route);
        let place = group.clone().find(alike).unwrap_or(group.start);
        let effect = set(list, place, route);
        return if group.len() > 1 { Effect::Doubtful } else { effect };
    }
    match group.clone().find(|&i| list[i].shares_hop(&route)) {
        Some(i) => set(list, i, route),
        None => {
            list.insert(group.end, route);
            Effect::Changed
        }
    }
}

fn set(list: &mut [Route], index: usize, route: Route) -> Effect {
    if list[index] == route {
        return Effect::None;
    }
    list[index] = route;
    Effect::Changed
}

fn remove_v4(list: &mut Vec<Route>, route: &Route) -> Effect {
    let exact = list.iter().position(|r| r.metric == route.metric && r.same_route(route));
    match exact {
        Some(i) => {
            list.remove(i);
            Effect::Changed
        }
        None => Effect::Doubtful,
    }
}

fn remove_v6(list: &mut Vec<Route>, route: &Route) -> Effect {
    let gone = |hop: &_| route.hops.iter().any(|g| g.same_way(hop));
    let found = list.iter().position(|r| r.metric == route.metric && r.shares_hop(route));
    let Some(i) = found else {
        return Effect::Doubtful;
    };
    list[i].hops.retain(|hop| !gone(hop));
    if list[i].hops.is_empty() {
        list.remove(i);
    }
    Effect::Changed
}
