//! The routes that the gateway forwards by: longest prefix match, IPv4 and IPv6, in a main table and
//! one for each VRF.
//!
//! A look-up is a walk down a trie (`trie.rs`), some three memory accesses in a table of the Internet's
//! size, and one more for the next hop, which all routes and tables by it share. A route into a tunnel
//! is the tunnel's number and nothing else. Route metrics, the kernel's tables and multipath are
//! resolved by control, which puts here what the kernel would choose.

mod hops;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::array::Array;
use crate::prefix::Prefix;
use crate::trie::Trie;
use crate::trie::many::SIDE_BY_SIDE;
use crate::vrfs::MAIN;

use hops::Hops;

/// Destinations that are looked up together at most.
pub(crate) const MANY: usize = SIDE_BY_SIDE;

/// From how many routes on a look-up of many is quicker than one after the other: with fewer, what is
/// read is in the first level cache.
const LARGE: usize = 1024;

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NextHop {
    /// The egress port: an index into [`View::ports`](crate::view::View::ports).
    pub port: u16,
    /// The router to send to, of either family; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
}

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Send to a next hop.
    Via(NextHop),
    /// Into the tunnel of this row of [`View::tunnels`](crate::view::View::tunnels).
    Tunnel(u32),
    /// An address of this host.
    Local,
    /// Leaves by an interface that is not a port of the gateway.
    NotAPort,
    /// Drop silently.
    Blackhole,
    /// Drop; ICMP would say host unreachable.
    Unreachable,
    /// Drop; ICMP would say administratively prohibited.
    Prohibit,
    /// Leaves by a port or tunnel of another VRF.
    OutOfVrf,
}

/// What a trie holds for a route. Next hops are numbered in [`Hops`], from `VIA` on.
mod code {
    pub(super) const LOCAL: u32 = 1;
    pub(super) const NOT_A_PORT: u32 = 2;
    pub(super) const BLACKHOLE: u32 = 3;
    pub(super) const UNREACHABLE: u32 = 4;
    pub(super) const PROHIBIT: u32 = 5;
    pub(super) const OUT_OF_VRF: u32 = 6;
    pub(super) const VIA: u32 = 16;
    /// And the number of the tunnel.
    pub(super) const TUNNEL: u32 = 1 << 31;
}

/// The code of a route that was looked up, if it was. A whole word, as packets' slots have room for.
#[derive(Clone, Copy)]
pub(crate) struct Lead(u64);

impl Lead {
    /// Not looked up yet.
    pub(crate) const UNKNOWN: Lead = Lead(u64::MAX);

    /// A code that was found.
    #[inline]
    pub(crate) fn to(code: u32) -> Lead {
        Lead(code.into())
    }

    /// The code, if it is known.
    #[inline]
    pub(crate) fn code(self) -> Option<u32> {
        u32::try_from(self.0).ok()
    }
}

/// One routing table.
#[derive(Clone, Default)]
struct Routes {
    v4: Trie<u32>,
    v6: Trie<u128>,
}

/// A version of all routing tables. Cloning is cheap; versions share what did not change.
#[derive(Clone)]
pub struct Fib {
    main: Routes,
    /// Numbered from 1.
    vrfs: Array<Routes>,
    /// In the place of a table that is not there.
    none: Routes,
    hops: Hops,
}

impl Default for Fib {
    fn default() -> Fib {
        let main = Routes { v4: Trie::only(), v6: Trie::only() };
        Fib { main, vrfs: Array::default(), none: Routes::default(), hops: Hops::default() }
    }
}

impl Fib {
    /// Tables without routes.
    pub fn new() -> Fib {
        Fib::default()
    }

    /// The route of the longest prefix that holds the address, in the main table.
    #[inline]
    pub fn lookup(&self, destination: IpAddr) -> Option<Route> {
        self.route_of(self.main.lookup(destination))
    }

    /// The same in the table of a VRF; 0 is the main table.
    #[inline]
    pub fn lookup_in(&self, vrf: u32, destination: IpAddr) -> Option<Route> {
        self.route_of(self.code_in(vrf, destination))
    }

    /// The code of the route of an address in the table of a VRF, which need not be there.
    #[inline]
    pub(crate) fn code_in(&self, vrf: u32, destination: IpAddr) -> u32 {
        self.routes(vrf).map_or(0, |routes| routes.lookup(destination))
    }

    /// The same, and how many first bits of the address say so, at least one: all destinations with those have that
    /// code.
    #[inline]
    pub(crate) fn block_in(&self, vrf: u32, destination: IpAddr) -> (u32, u32) {
        self.routes(vrf).map_or((0, u32::MAX), |routes| routes.lookup_block(destination))
    }

    /// The routes of many destinations in the main table, each as [`lookup`](Fib::lookup) finds it, given
    /// to `found` with its destination's number. The memory that they are in is asked for together.
    #[inline]
    pub fn lookup_many(
        &self,
        destinations: &[IpAddr],
        mut found: impl FnMut(usize, Option<Route>),
    ) {
        let mut codes = [0; MANY];
        for (chunk, some) in destinations.chunks(MANY).enumerate() {
            self.codes_of(some, &mut codes);
            for (at, code) in codes.iter().enumerate().take(some.len()) {
                found(chunk * MANY + at, self.route_of(*code));
            }
        }
    }

    /// The codes of the routes of at most [`MANY`] destinations in the main table.
    pub(crate) fn codes_of(&self, destinations: &[IpAddr], codes: &mut [u32; MANY]) {
        let mut v4 = [0; MANY];
        let mut other = false;
        for (destination, bits) in destinations.iter().zip(&mut v4) {
            match destination {
                IpAddr::V4(address) => *bits = address.to_bits(),
                IpAddr::V6(_) => other = true,
            }
        }
        let count = destinations.len().min(MANY);
        if other {
            self.main.codes_of_mixed(&destinations[..count], codes);
        } else {
            self.codes_of_v4(MAIN, &v4[..count], codes);
        }
    }

    /// The same in the table of a VRF, which need not be there; all of them of IPv4.
    #[inline]
    pub(crate) fn codes_of_v4(&self, vrf: u32, destinations: &[u32], codes: &mut [u32; MANY]) {
        self.routes(vrf).unwrap_or(&self.none).v4.lookup_many(destinations, codes);
    }

    /// The same, all of them of IPv6.
    pub(crate) fn codes_of_v6(&self, vrf: u32, destinations: &[u128], codes: &mut [u32; MANY]) {
        self.routes(vrf).unwrap_or(&self.none).v6.lookup_many(destinations, codes);
    }

    /// The tunnel of a code that [`codes_of`](Fib::codes_of) or [`code_in`](Fib::code_in) gave.
    #[inline]
    pub(crate) fn tunnel_of(code: u32) -> Option<u32> {
        (code >= code::TUNNEL).then_some(code ^ code::TUNNEL)
    }

    /// Whether a route of that code leads to a neighbour or nowhere: not to this host, into a tunnel or out of a VRF.
    #[inline]
    pub(crate) fn leads_away(&self, code: u32) -> bool {
        !matches!(self.route_of(code), Some(Route::Local | Route::Tunnel(_) | Route::OutOfVrf))
    }

    /// Whether it has so many routes that destinations should be looked up together.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.main.len() > LARGE
    }

    /// See [`Table::settle`].
    pub(crate) fn settle(&mut self) -> bool {
        self.hops.settle()
    }

    /// Adds a route to the main table, or replaces the one of its prefix, which is returned.
    pub fn insert(&mut self, prefix: Prefix, route: Route) -> Option<Route> {
        self.insert_in(MAIN, prefix, route)
    }

    /// The same in the table of a VRF.
    pub fn insert_in(&mut self, vrf: u32, prefix: Prefix, route: Route) -> Option<Route> {
        let code = self.code_of(route);
        let old = self.change(vrf, |routes| routes.insert(prefix, code));
        self.give_up(old)
    }

    /// Removes the route of a prefix from the main table.
    pub fn remove(&mut self, prefix: Prefix) -> Option<Route> {
        self.remove_in(MAIN, prefix)
    }

    /// The same in the table of a VRF.
    pub fn remove_in(&mut self, vrf: u32, prefix: Prefix) -> Option<Route> {
        self.routes(vrf)?;
        let old = self.change(vrf, |routes| routes.remove(prefix));
        self.give_up(old)
    }

    /// Removes every route of a VRF, or of the main table.
    pub fn clear(&mut self, vrf: u32) {
        let prefixes: Vec<Prefix> = self.iter_in(vrf).map(|(prefix, _)| prefix).collect();
        for prefix in prefixes {
            self.remove_in(vrf, prefix);
        }
    }

    /// The route of exactly this prefix in the main table.
    pub fn get(&self, prefix: Prefix) -> Option<Route> {
        self.get_in(MAIN, prefix)
    }

    /// The same in the table of a VRF.
    pub fn get_in(&self, vrf: u32, prefix: Prefix) -> Option<Route> {
        self.route_of(self.routes(vrf)?.get(prefix))
    }

    /// Every route of the main table, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Prefix, Route)> {
        self.iter_in(MAIN)
    }

    /// Every route of a VRF's table, in no order.
    pub fn iter_in(&self, vrf: u32) -> impl Iterator<Item = (Prefix, Route)> {
        let all = self.routes(vrf).map(Routes::all).unwrap_or_default();
        all.into_iter().filter_map(|(prefix, code)| Some((prefix, self.route_of(code)?)))
    }

    /// How many routes the main table has.
    pub fn len(&self) -> usize {
        self.main.len()
    }

    /// Whether the main table has none.
    pub fn is_empty(&self) -> bool {
        self.main.len() == 0
    }

    fn routes(&self, vrf: u32) -> Option<&Routes> {
        if vrf == MAIN { Some(&self.main) } else { self.vrfs.get(vrf) }
    }

    fn change(&mut self, vrf: u32, change: impl FnOnce(&mut Routes) -> u32) -> u32 {
        if vrf == MAIN {
            return change(&mut self.main);
        }
        let mut routes = self.vrfs.get(vrf).cloned().unwrap_or_default();
        let old = change(&mut routes);
        self.vrfs.set(vrf, routes);
        old
    }

    /// The route of a code that [`codes_of`](Fib::codes_of) or [`code_in`](Fib::code_in) gave.
    #[inline]
    pub(crate) fn route_of(&self, code: u32) -> Option<Route> {
        match code {
            0 => None,
            code::TUNNEL.. => Some(Route::Tunnel(code ^ code::TUNNEL)),
            code::VIA.. => self.hops.get(code - code::VIA).map(Route::Via),
            code::LOCAL => Some(Route::Local),
            code::BLACKHOLE => Some(Route::Blackhole),
            code::UNREACHABLE => Some(Route::Unreachable),
            code::PROHIBIT => Some(Route::Prohibit),
            code::OUT_OF_VRF => Some(Route::OutOfVrf),
            _ => Some(Route::NotAPort),
        }
    }

    /// The code of a route that is about to be one more by its next hop.
    fn code_of(&mut self, route: Route) -> u32 {
        match route {
            Route::Via(hop) => code::VIA + self.hops.take(hop),
            Route::Tunnel(number) => code::TUNNEL | number,
            Route::Local => code::LOCAL,
            Route::NotAPort => code::NOT_A_PORT,
            Route::Blackhole => code::BLACKHOLE,
            Route::Unreachable => code::UNREACHABLE,
            Route::Prohibit => code::PROHIBIT,
            Route::OutOfVrf => code::OUT_OF_VRF,
        }
    }

    /// The route of a code that no prefix has any more.
    fn give_up(&mut self, code: u32) -> Option<Route> {
        let route = self.route_of(code)?;
        if let Route::Via(hop) = route {
            self.hops.leave(&hop);
        }
        Some(route)
    }
}

impl Routes {
    #[inline]
    fn lookup(&self, destination: IpAddr) -> u32 {
        match destination {
            IpAddr::V4(v4) => self.v4.lookup(v4.to_bits()),
            IpAddr::V6(v6) => self.v6.lookup(v6.to_bits()),
        }
    }

    #[inline]
    fn lookup_block(&self, destination: IpAddr) -> (u32, u32) {
        match destination {
            IpAddr::V4(v4) => self.v4.lookup_block(v4.to_bits()),
            IpAddr::V6(v6) => self.v6.lookup_block(v6.to_bits()),
        }
    }

    /// Of destinations of which some are IPv6.
    fn codes_of_mixed(&self, destinations: &[IpAddr], codes: &mut [u32; MANY]) {
        let (mut v4, mut v6) = ([0; MANY], [0; MANY]);
        let (mut codes_v4, mut codes_v6) = ([0; MANY], [0; MANY]);
        let (mut count_v4, mut count_v6) = (0, 0);
        for destination in destinations {
            match destination {
                IpAddr::V4(address) => {
                    v4[count_v4] = address.to_bits();
                    count_v4 += 1;
                }
                IpAddr::V6(address) => {
                    v6[count_v6] = address.to_bits();
                    count_v6 += 1;
                }
            }
        }
        self.v4.lookup_many(&v4[..count_v4], &mut codes_v4);
        self.v6.lookup_many(&v6[..count_v6], &mut codes_v6);
        let (mut codes_v4, mut codes_v6) = (codes_v4.iter(), codes_v6.iter());
        for (destination, code) in destinations.iter().zip(codes) {
            let found = if destination.is_ipv4() { codes_v4.next() } else { codes_v6.next() };
            *code = found.copied().unwrap_or(0);
        }
    }

    fn get(&self, prefix: Prefix) -> u32 {
        match prefix.address() {
            IpAddr::V4(v4) => self.v4.get(v4.to_bits(), prefix.len().into()),
            IpAddr::V6(v6) => self.v6.get(v6.to_bits(), prefix.len().into()),
        }
    }

    fn insert(&mut self, prefix: Prefix, code: u32) -> u32 {
        match prefix.address() {
            IpAddr::V4(v4) => self.v4.insert(v4.to_bits(), prefix.len().into(), code),
            IpAddr::V6(v6) => self.v6.insert(v6.to_bits(), prefix.len().into(), code),
        }
    }

    fn remove(&mut self, prefix: Prefix) -> u32 {
        match prefix.address() {
            IpAddr::V4(v4) => self.v4.remove(v4.to_bits(), prefix.len().into()),
            IpAddr::V6(v6) => self.v6.remove(v6.to_bits(), prefix.len().into()),
        }
    }

    fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    fn all(&self) -> Vec<(Prefix, u32)> {
        let mut all = Vec::with_capacity(self.len());
        self.v4.for_each(|bits, len, code| {
            let address = Ipv4Addr::from_bits(bits).into();
            all.extend(Prefix::new(address, len as u8).map(|prefix| (prefix, code)));
        });
        self.v6.for_each(|bits, len, code| {
            let address = Ipv6Addr::from_bits(bits).into();
            all.extend(Prefix::new(address, len as u8).map(|prefix| (prefix, code)));
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::Family;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn address(v6: bool, bits: u32) -> IpAddr {
        // Few bits vary, so that prefixes overlap.
        match v6 {
            false => IpAddr::from((bits & 0xf00f_000f).to_be_bytes()),
            true => IpAddr::from(u128::from(bits & 0xf00f_000f).rotate_left(96).to_be_bytes()),
        }
    }

    fn prefixes() -> impl Strategy<Value = Prefix> {
        (any::<bool>(), any::<u32>(), any::<u8>()).prop_map(|(v6, bits, len)| {
            Prefix::new(address(v6, bits), len % if v6 { 129 } else { 33 }).unwrap()
        })
    }

    fn route() -> impl Strategy<Value = Route> {
        prop_oneof![
            4 => (0..3u16, prop::option::of(0..3u8)).prop_map(|(port, gateway)| {
                let gateway = gateway.map(|n| IpAddr::from([192, 0, 2, n]));
                Route::Via(NextHop { port, gateway })
            }),
            2 => (0..1000u32).prop_map(Route::Tunnel),
            1 => prop::sample::select(vec![
                Route::Local,
                Route::NotAPort,
                Route::Blackhole,
                Route::Unreachable,
                Route::Prohibit,
            ]),
        ]
    }

    fn naive(routes: &HashMap<Prefix, Route>, destination: IpAddr) -> Option<Route> {
        routes
            .iter()
            .filter(|(prefix, _)| prefix.contains(destination))
            .max_by_key(|(prefix, _)| prefix.len())
            .map(|(_, route)| *route)
    }

    /// An address with another bit.
    fn flipped(address: IpAddr, bit: u32) -> IpAddr {
        match address {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() ^ 1 << (31 - bit)).into(),
            IpAddr::V6(v6) => std::net::Ipv6Addr::from_bits(v6.to_bits() ^ 1 << (127 - bit)).into(),
        }
    }

    fn same(fib: &Fib, vrf: u32, twin: &HashMap<Prefix, Route>, probes: &[(bool, u32)]) {
        assert_eq!(fib.iter_in(vrf).collect::<HashMap<_, _>>(), *twin);
        for (v6, bits) in probes {
            let destination = address(*v6, *bits);
            assert_eq!(fib.lookup_in(vrf, destination), naive(twin, destination), "{destination}");
            let (code, bits) = fib.block_in(vrf, destination);
            assert!(fib.route_of(code) == naive(twin, destination) && bits > 0);
            for neighbour in (bits..if *v6 { 128 } else { 32 }).map(|bit| flipped(destination, bit))
            {
                assert_eq!(naive(twin, neighbour), fib.route_of(code), "{destination} {neighbour}");
            }
        }
        if vrf == 0 {
            let all: Vec<IpAddr> = probes.iter().map(|(v6, bits)| address(*v6, *bits)).collect();
            let v4: Vec<IpAddr> = all.iter().copied().filter(IpAddr::is_ipv4).collect();
            for some in [all, v4] {
                let mut next = 0;
                fib.lookup_many(&some, |at, route| {
                    assert_eq!((at, route), (next, naive(twin, some[next])), "{}", some[next]);
                    next += 1;
                });
                assert_eq!(next, some.len());
            }
        }
        for (prefix, route) in twin {
            let first = prefix.address();
            assert_eq!(fib.lookup_in(vrf, first), naive(twin, first), "{first}");
            assert!(vrf != 0 || fib.get(*prefix) == Some(*route));
        }
    }

    proptest! {
        #[test]
        fn equals_the_naive_search_in_every_version_and_table(
            changes in prop::collection::vec((0..3u32, prefixes(), route(), 0..3u8), 0..300),
            probes in prop::collection::vec((any::<bool>(), any::<u32>()), 0..150),
        ) {
            let mut fib = Fib::new();
            let mut twins = vec![HashMap::new(); 3];
            let mut versions = Vec::new();
            for (n, (vrf, prefix, route, what)) in changes.into_iter().enumerate() {
                let twin = &mut twins[vrf as usize];
                if what == 0 {
                    // Often one that is there.
                    let known = twin.keys().nth(n % 7).copied().unwrap_or(prefix);
                    prop_assert_eq!(fib.remove_in(vrf, known), twin.remove(&known));
                } else {
                    prop_assert_eq!(fib.insert_in(vrf, prefix, route), twin.insert(prefix, route));
                }
                if n % 100 == 50 {
                    versions.push((fib.clone(), twins.clone()));
                }
            }
            prop_assert_eq!(fib.len(), twins[0].len());
            prop_assert_eq!(fib.is_empty(), twins[0].is_empty());
            let hops = |routes: &HashMap<Prefix, Route>| -> std::collections::HashSet<NextHop> {
                let hop = |route: &Route| match route {
                    Route::Via(hop) => Some(*hop),
                    _ => None,
                };
                routes.values().filter_map(hop).collect()
            };
            let used = twins.iter().flat_map(hops).collect::<std::collections::HashSet<_>>();
            prop_assert_eq!(fib.hops.len(), used.len(), "next hops nobody has are let go");
            versions.push((fib, twins));
            for (fib, twins) in &versions {
                for (vrf, twin) in (0..).zip(twins) {
                    same(fib, vrf, twin, &probes);
                }
            }
        }
    }

    /// A table of a VRF passes through every depth at which a trie begins, and stays right; the main one begins at the last.
    #[test]
    fn a_table_that_grows_and_shrinks_stays_right() {
        for (vrf, v6) in [(0, false), (0, true), (1, false), (1, true)] {
            grow_and_shrink(vrf, v6);
        }
    }

    fn grow_and_shrink(vrf: u32, v6: bool) {
        let mut fib = Fib::new();
        let mut twin = HashMap::new();
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 32) as u32
        };
        let to = |bits: u32| match v6 {
            false => IpAddr::from(bits.to_be_bytes()),
            true => IpAddr::from((u128::from(bits) << 96).to_be_bytes()),
        };
        // The first are there before any step: each takes them along, and most probes are decided by one of them.
        let first = (0..64u32).map(|n| {
            let len = [0, 1, 3, 6, 7, 10, 12, 13][n as usize % 8];
            Prefix::new(to(n.reverse_bits() ^ n << 26), len).unwrap()
        });
        let first: Vec<Prefix> = first.collect();
        for n in 0..6000u32 {
            let len = [13, 16, 20, 22, 24, 24, 24, 32][random() as usize % 8];
            let prefix = Prefix::new(to(random()), len).unwrap();
            let prefix = first.get(n as usize).copied().unwrap_or(prefix);
            let route = Route::Tunnel(n);
            assert_eq!(fib.insert_in(vrf, prefix, route), twin.insert(prefix, route));
            // Before and after the steps, which are at 129 routes and 4097.
            if matches!(twin.len(), 30 | 127..=130 | 4095..=4098) || n == 5999 {
                for destination in (0..40).map(|_| to(random())) {
                    assert_eq!(fib.lookup_in(vrf, destination), naive(&twin, destination));
                }
                for prefix in &first {
                    let address = prefix.address();
                    assert_eq!(fib.lookup_in(vrf, address), naive(&twin, address));
                }
                assert_eq!(fib.iter_in(vrf).collect::<HashMap<_, _>>(), twin, "all are there");
            }
        }
        assert!(twin.len() > 5000);
        let all: Vec<Prefix> = twin.keys().copied().collect();
        for (n, prefix) in all.iter().enumerate() {
            assert_eq!(fib.remove_in(vrf, *prefix), twin.remove(prefix));
            if n % 1000 == 0 {
                let destination = to(random());
                assert_eq!(fib.lookup_in(vrf, destination), naive(&twin, destination));
            }
        }
        assert!(fib.iter_in(vrf).next().is_none());
    }

    #[test]
    fn default_routes_are_per_family_and_table() {
        let mut fib = Fib::new();
        fib.insert(Prefix::any(Family::V4), Route::Blackhole);
        assert_eq!(fib.lookup("192.0.2.1".parse().unwrap()), Some(Route::Blackhole));
        assert_eq!(fib.lookup("2001:db8::1".parse().unwrap()), None);
        assert_eq!(fib.lookup_in(1, "192.0.2.1".parse().unwrap()), None);
        fib.insert_in(9, Prefix::any(Family::V4), Route::Prohibit);
        fib.clear(0);
        assert!(fib.is_empty());
        assert_eq!(fib.lookup_in(9, "192.0.2.1".parse().unwrap()), Some(Route::Prohibit));
    }
}
