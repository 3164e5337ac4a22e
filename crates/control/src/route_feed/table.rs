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

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use dataplane::prefix::{Family, Prefix};

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
    /// Routes of one table and prefix, by metric, then in the kernel's order. In the order of addresses,
    /// so that those beneath a prefix are found without looking at the others.
    routes: BTreeMap<(Table, Prefix), Vec<Route>>,
    /// How many prefixes of each length there are.
    lengths: BTreeMap<(Table, Family, u8), usize>,
    /// How many routes there are by each next-hop object.
    objects: HashMap<u32, usize>,
}

impl RouteTable {
    pub(super) fn insert(&mut self, route: Route, placement: Placement) -> Effect {
        let list = self.routes.entry((route.table, route.prefix)).or_default();
        if list.is_empty() {
            *self.lengths.entry(length_of((route.table, route.prefix))).or_default() += 1;
        }
        let start = list.partition_point(|r| r.metric < route.metric);
        let end = list.partition_point(|r| r.metric <= route.metric);
        count_out(&mut self.objects, list);
        let effect = if route.prefix.address().is_ipv4() {
            insert_v4(list, start..end, route, placement)
        } else {
            insert_v6(list, start..end, route, placement)
        };
        count_in(&mut self.objects, list);
        effect
    }

    pub(super) fn remove(&mut self, route: &Route) -> Effect {
        let key = (route.table, route.prefix);
        let Some(list) = self.routes.get_mut(&key) else {
            return Effect::Doubtful;
        };
        count_out(&mut self.objects, list);
        let effect = if route.prefix.address().is_ipv4() {
            remove_v4(list, route)
        } else {
            remove_v6(list, route)
        };
        count_in(&mut self.objects, list);
        if list.is_empty() {
            self.forget(key);
        }
        effect
    }

    /// Forgets the routes of one table for one prefix.
    pub(super) fn forget(&mut self, key: (Table, Prefix)) {
        let Some(list) = self.routes.remove(&key) else { return };
        count_out(&mut self.objects, &list);
        if let Some(count) = self.lengths.get_mut(&length_of(key)) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length_of(key));
            }
        }
    }

    /// Whether there is a route by a next-hop object.
    pub(super) fn uses(&self, object: u32) -> bool {
        self.objects.contains_key(&object)
    }

    /// Forgets the IPv4 routes by a next-hop object; whose they were. Of those of IPv6 the kernel tells.
    pub(super) fn forget_object(&mut self, object: u32) -> Vec<(Table, Prefix)> {
        if !self.uses(object) {
            return Vec::new();
        }
        let by_it = |route: &Route| route.object == Some(object);
        let held = self
            .routes
            .iter_mut()
            .filter(|(key, list)| key.1.family() == Family::V4 && list.iter().any(by_it));
        let mut touched = Vec::new();
        for (key, list) in held {
            count_out(&mut self.objects, list);
            list.retain(|route| !by_it(route));
            count_in(&mut self.objects, list);
            touched.push((*key, list.is_empty()));
        }
        touched.iter().filter(|(_, empty)| *empty).for_each(|(key, _)| self.forget(*key));
        touched.into_iter().map(|(key, _)| key).collect()
    }

    /// The tables and prefixes whose routes differ from another's.
    pub(super) fn difference(&self, other: &Self) -> Vec<(Table, Prefix)> {
        let differs = |key: &&(Table, Prefix)| self.routes.get(key) != other.routes.get(key);
        let keys = self.routes.keys().chain(other.routes.keys());
        keys.filter(differs).copied().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Every route, usable or not, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Route> {
        self.routes.values().flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.routes.values().map(Vec::len).sum()
    }

    /// The route that counts for a prefix in a table.
    pub(super) fn best(&self, table: Table, prefix: Prefix) -> Option<&Route> {
        self.routes.get(&(table, prefix))?.iter().find(|route| route.usable())
    }

    /// Those of a table.
    pub(super) fn best_of(&self, table: Table) -> impl Iterator<Item = &Route> {
        // The first prefix of all: those of IPv4 come before those of IPv6.
        let lists = self.routes.range((table, Prefix::any(Family::V4))..);
        let lists = lists.take_while(move |(key, _)| key.0 == table);
        lists.filter_map(|(_, list)| list.iter().find(|route| route.usable()))
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
        Table::WITHOUT_VRF.into_iter().find_map(in_table)
    }

    /// Of [`selected`](Self::selected) the route of one prefix.
    pub(super) fn selected_at(&self, prefix: Prefix) -> Option<&Route> {
        for table in Table::WITHOUT_VRF {
            let best = self.best(table, prefix);
            if best.is_some() {
                return best;
            }
            if self.covers(table, prefix) {
                return None;
            }
        }
        None
    }

    /// Whether a table has a route that counts for a shorter prefix that holds this one.
    fn covers(&self, table: Table, prefix: Prefix) -> bool {
        let family = prefix.family();
        let lengths = self.lengths.range((table, family, 0)..(table, family, prefix.len()));
        lengths.into_iter().any(|(&(_, _, length), _)| {
            Prefix::new(prefix.address(), length)
                .is_some_and(|shorter| self.best(table, shorter).is_some())
        })
    }

    /// The prefixes whose selected route another route of a table for `prefix` may change: itself, and
    /// those in tables that are asked later which it would cover.
    pub(super) fn touched(&self, table: Table, prefix: Prefix) -> Vec<Prefix> {
        let mut touched = vec![prefix];
        for later in Table::WITHOUT_VRF.into_iter().filter(|later| *later > table) {
            let beneath = self.routes.range((later, prefix)..).map(|(key, _)| *key);
            let beneath = beneath
                .take_while(|key| key.0 == later && prefix.contains(key.1.address()))
                .map(|key| key.1);
            touched.extend(beneath.filter(|one| *one != prefix));
        }
        touched
    }

    /// One route per prefix, such that the longest match among them is the kernel's answer: a route
    /// is left out when a table that is asked earlier covers its whole prefix. A `throw` route
    /// stays as it is, for its packets to be left to the kernel.
    pub(super) fn selected(&self) -> Vec<&Route> {
        let mut selected: Vec<&Route> = Vec::with_capacity(self.routes.len());
        let mut earlier = Cover::default();
        for table in Table::WITHOUT_VRF {
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

/// The length of a prefix, in a table and of a family.
fn length_of((table, prefix): (Table, Prefix)) -> (Table, Family, u8) {
    (table, prefix.family(), prefix.len())
}

/// Counts the next-hop objects of routes.
fn count_in(objects: &mut HashMap<u32, usize>, routes: &[Route]) {
    for object in routes.iter().filter_map(|route| route.object) {
        *objects.entry(object).or_default() += 1;
    }
}

/// Counts them out again.
fn count_out(objects: &mut HashMap<u32, usize>, routes: &[Route]) {
    for object in routes.iter().filter_map(|route| route.object) {
        if let Some(count) = objects.get_mut(&object) {
            *count -= 1;
            if *count == 0 {
                objects.remove(&object);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::super::model::NextHop;
    use super::*;
    use proptest::prelude::*;

    fn route(text: &str, metric: u32, via: &[&str]) -> Route {
        let (address, length) = text.split_once('/').unwrap();
        let prefix = Prefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap();
        let hop = |via: &&str| NextHop {
            gateway: Some(via.parse().unwrap()),
            ifindex: 2,
            weight: 1,
            dead: false,
            link_down: false,
        };
        Route {
            table: Table::Main,
            prefix,
            metric,
            kind: RouteKind::Unicast,
            hops: via.iter().map(hop).collect(),
            preferred_source: None,
            mtu: None,
            protocol: 4,
            object: None,
        }
    }

    fn gateways(table: &RouteTable, address: &str) -> Vec<String> {
        let route = table.lookup(address.parse().unwrap());
        let gateway = |hop: &NextHop| hop.gateway.unwrap().to_string();
        route.map(|r| r.hops.iter().map(gateway).collect()).unwrap_or_default()
    }

    #[test]
    fn the_lowest_metric_wins_then_the_order_of_routes() {
        let mut table = RouteTable::default();
        let mut insert = |route: &Route, placement| table.insert(route.clone(), placement);
        let (a, b) = (route("10.0.0.0/8", 5, &["1.1.1.1"]), route("10.0.0.0/8", 5, &["2.2.2.2"]));
        let best = route("10.0.0.0/8", 1, &["3.3.3.3"]);
        assert_eq!(insert(&a, Placement::Append), Effect::Changed);
        assert_eq!(insert(&a, Placement::Append), Effect::None);
        assert_eq!(insert(&b, Placement::Append), Effect::Changed);
        assert_eq!(gateways(&table, "10.1.1.1"), ["1.1.1.1"]);
        table.insert(best.clone(), Placement::Prepend);
        assert_eq!(gateways(&table, "10.1.1.1"), ["3.3.3.3"]);
        assert_eq!(table.remove(&best), Effect::Changed);
        assert_eq!(table.remove(&best), Effect::Doubtful);
        assert_eq!(table.remove(&a), Effect::Changed);
        table.insert(a.clone(), Placement::Prepend);
        assert_eq!(gateways(&table, "10.1.1.1"), ["1.1.1.1"]);
        let c = route("10.0.0.0/8", 5, &["4.4.4.4"]);
        assert_eq!(table.insert(c, Placement::Replace), Effect::Doubtful, "two candidates");
        assert_eq!(gateways(&table, "10.1.1.1"), ["4.4.4.4"]);
        assert_eq!((table.len(), table.selected().len()), (2, 1));
    }

    #[test]
    fn ipv4_routes_go_with_their_next_hop_object() {
        let by = |text, object, via| Route { object: Some(object), ..route(text, 5, &[via]) };
        let (one, other) = (by("10.0.0.0/8", 7, "1.1.1.1"), by("10.0.0.0/8", 8, "1.1.1.1"));
        let six = by("2001:db8::/32", 7, "fe80::1");
        let mut table = RouteTable::default();
        for route in [&one, &other, &by("10.1.0.0/16", 7, "1.1.1.1"), &six] {
            assert_eq!(table.insert(route.clone(), Placement::Append), Effect::Changed);
        }
        let gone = table.forget_object(7);
        assert_eq!(
            gone,
            ["10.0.0.0/8", "10.1.0.0/16"].map(|at| (Table::Main, by(at, 7, "1.1.1.1").prefix))
        );
        let left: Vec<_> = table.all().cloned().collect();
        assert_eq!(left, [other.clone(), six.clone()]);
        assert!(table.uses(7) && table.uses(8) && table.forget_object(7).is_empty());
        assert_eq!((table.remove(&six), table.remove(&other)), (Effect::Changed, Effect::Changed));
        assert_eq!(table, RouteTable::default(), "counts and all");
    }

    #[test]
    fn ipv6_gateways_of_one_metric_are_one_route() {
        let mut table = RouteTable::default();
        let one = route("2001:db8::/32", 5, &["fe80::1"]);
        let two = route("2001:db8::/32", 5, &["fe80::1", "fe80::2"]);
        table.insert(one.clone(), Placement::Prepend);
        table.insert(two, Placement::Append);
        assert_eq!((gateways(&table, "2001:db8::9").len(), table.len()), (2, 1));
        assert_eq!(table.remove(&one), Effect::Changed);
        assert_eq!(gateways(&table, "2001:db8::9"), ["fe80::2"]);
        let other = route("2001:db8::/32", 5, &["fe80::3"]);
        assert_eq!(table.insert(other.clone(), Placement::Replace), Effect::Changed);
        assert_eq!(gateways(&table, "2001:db8::9"), ["fe80::3"]);
        assert_eq!(table.remove(&other), Effect::Changed);
        assert_eq!(table, RouteTable::default());
    }

    #[test]
    fn dead_hops_and_throw_lead_to_the_next_answer() {
        let mut table = RouteTable::default();
        let mut best = route("10.0.0.0/8", 1, &["1.1.1.1"]);
        best.hops[0].dead = true;
        table.insert(best, Placement::Append);
        assert!(table.lookup("10.1.1.1".parse().unwrap()).is_none());
        table.insert(route("10.0.0.0/8", 2, &["2.2.2.2"]), Placement::Append);
        assert_eq!(gateways(&table, "10.1.1.1"), ["2.2.2.2"]);
        let mut throw = route("10.1.0.0/16", 0, &[]);
        throw.kind = RouteKind::Throw;
        table.insert(throw, Placement::Append);
        assert!(table.lookup("10.1.1.1".parse().unwrap()).is_none());
        let mut last = route("0.0.0.0/0", 0, &["3.3.3.3"]);
        last.table = Table::Default;
        table.insert(last, Placement::Append);
        assert_eq!(gateways(&table, "10.1.1.1"), ["3.3.3.3"]);
        let longest = table.selected().into_iter().find(|r| r.prefix.len() == 16).unwrap();
        assert_eq!(longest.kind, RouteKind::Throw, "left to the kernel");
    }

    /// The stupid twin: one list, in order.
    #[derive(Default)]
    struct Twin(Vec<Route>);

    impl Twin {
        fn insert(&mut self, route: Route, placement: Placement) {
            let key = |r: &Route| (r.table, r.prefix, r.metric);
            let first = self.0.iter().position(|r| key(r) == key(&route));
            match (placement, first) {
                (Placement::Replace, Some(i)) => self.0[i] = route,
                (Placement::Prepend, _) => self.0.insert(0, route),
                (Placement::Append | Placement::Replace, _) => self.0.push(route),
            }
        }

        fn lookup(&self, address: IpAddr) -> Option<&Route> {
            Table::WITHOUT_VRF.into_iter().find_map(|table| {
                let matches = |r: &&Route| r.table == table && r.prefix.contains(address);
                let rank = |r: &&Route| (u8::MAX - r.prefix.len(), r.metric);
                // The first of the lowest: `min_by_key` keeps the order of equals.
                let best = self.0.iter().filter(|r| r.usable()).filter(matches).min_by_key(rank)?;
                (best.kind != RouteKind::Throw).then_some(best)
            })
        }
    }

    fn longest_match<'a>(selected: &[&'a Route], address: IpAddr) -> Option<&'a Route> {
        let matching = selected.iter().filter(|r| r.prefix.contains(address));
        matching.max_by_key(|r| r.prefix.len()).copied()
    }

    fn arbitrary_route() -> impl Strategy<Value = Route> {
        let bits = (0..8_u8, prop_oneof![Just(0_u8), 5..=8_u8], 0..3_usize, 0..2_u32, 0..4_u8);
        (bits, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
            |((address, length, table, metric, way), v6, dead)| {
                let address: IpAddr = if v6 {
                    [u16::from(address) << 8, 0, 0, 0, 0, 0, 0, 0].into()
                } else {
                    [address, 0, 0, 0].into()
                };
                let gateway = Some(IpAddr::from([9, 9, 9, way]));
                let kind = if way == 0 { RouteKind::Blackhole } else { RouteKind::Unicast };
                let hop = NextHop { gateway, ifindex: 2, weight: 1, dead, link_down: false };
                Route {
                    table: Table::WITHOUT_VRF[table],
                    prefix: Prefix::new(address, length).unwrap(),
                    metric,
                    kind,
                    hops: if way == 0 { vec![] } else { vec![hop] },
                    preferred_source: None,
                    mtu: None,
                    protocol: 4,
                    object: None,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn look_ups_agree_with_the_twin(
            steps in prop::collection::vec((arbitrary_route(), 0..4_u8), 0..60),
        ) {
            let (mut table, mut twin) = (RouteTable::default(), Twin::default());
            for (route, step) in steps {
                let key = |r: &Route| (r.table, r.prefix, r.metric);
                let v6 = !route.prefix.address().is_ipv4();
                let known = twin.0.iter().position(|r| key(r) == key(&route) && r.same_route(&route));
                let placement = match (step, v6) {
                    (0, _) => {
                        let effect = table.remove(&route);
                        prop_assert_eq!(effect == Effect::Changed, known.is_some());
                        known.map(|i| twin.0.remove(i));
                        continue;
                    }
                    (1, false) => Placement::Replace,
                    (2, false) => Placement::Prepend,
                    _ => Placement::Append,
                };
                // The kernel refuses a route that it has already.
                if known.is_none() {
                    table.insert(route.clone(), placement);
                    twin.insert(route, placement);
                }
            }
            let selected = table.selected();
            for address in (0..8).map(|byte| IpAddr::from([byte, 0, 0, 0])) {
                for length in [0, 5, 6, 7, 8] {
                    let prefix = Prefix::new(address, length).unwrap();
                    let expected = selected.iter().copied().find(|r| r.prefix == prefix);
                    prop_assert_eq!(table.selected_at(prefix), expected);
                }
            }
            for byte in 0..=9_u8 {
                let v6 = IpAddr::from([u16::from(byte) << 8, 0, 0, 0, 0, 0, 0, 1]);
                for address in [IpAddr::from([byte, 1, 2, 3]), v6] {
                    let expected = twin.lookup(address);
                    prop_assert_eq!(table.lookup(address), expected);
                    prop_assert_eq!(longest_match(&selected, address), expected);
                }
            }
            let rebuilt = {
                let mut rebuilt = RouteTable::default();
                for route in table.all() {
                    rebuilt.insert(route.clone(), Placement::Append);
                }
                rebuilt
            };
            prop_assert_eq!(table.difference(&rebuilt), vec![]);
        }
    }
}
