//! The routes that the gateway forwards by: longest prefix match, IPv4 and IPv6.
//!
//! One hash table per prefix length that occurs, searched from the longest: at most 33 or 129
//! look-ups, in practice a handful. Route metrics, tables and multipath are resolved by control,
//! which puts here what the kernel would choose.

use std::net::IpAddr;

use crate::prefix::{Family, Prefix, address_bits, prefix_mask};
use crate::table::Table;

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

#[derive(Clone)]
struct Level {
    len: u8,
    mask: u128,
    routes: Table<u128, Route>,
}

/// A version of the routing table. Cloning is cheap; versions share what did not change.
#[derive(Clone, Default)]
pub struct Fib {
    /// Per family, the prefix lengths that occur, longest first.
    levels: [Vec<Level>; 2],
}

impl Fib {
    /// A table without routes.
    pub fn new() -> Fib {
        Fib::default()
    }

    /// The route of the longest prefix that holds the address.
    #[inline]
    pub fn lookup(&self, destination: IpAddr) -> Option<Route> {
        let bits = address_bits(destination);
        self.levels[Family::of(destination).index()]
            .iter()
            .find_map(|level| level.routes.get(&(bits & level.mask)).copied())
    }

    /// See [`Table::settle`].
    pub(crate) fn settle(&mut self) -> bool {
        let levels = self.levels.iter_mut().flatten();
        levels.fold(false, |done, level| level.routes.settle() | done)
    }

    /// Adds a route, or replaces the one of its prefix, which is returned.
    pub fn insert(&mut self, prefix: Prefix, route: Route) -> Option<Route> {
        let levels = &mut self.levels[prefix.family().index()];
        let place = levels.partition_point(|level| level.len > prefix.len());
        if levels.get(place).is_none_or(|level| level.len != prefix.len()) {
            let mask = prefix_mask(prefix.family(), prefix.len());
            levels.insert(place, Level { len: prefix.len(), mask, routes: Table::new() });
        }
        levels[place].routes.insert(address_bits(prefix.address()), route)
    }

    /// Removes the route of a prefix.
    pub fn remove(&mut self, prefix: Prefix) -> Option<Route> {
        let levels = &mut self.levels[prefix.family().index()];
        let place = levels.iter().position(|level| level.len == prefix.len())?;
        let removed = levels[place].routes.remove(&address_bits(prefix.address()));
        if levels[place].routes.is_empty() {
            levels.remove(place);
        }
        removed
    }

    /// Every route, longest prefixes first.
    pub fn iter(&self) -> impl Iterator<Item = (Prefix, Route)> {
        [Family::V4, Family::V6].into_iter().flat_map(move |family| {
            self.levels[family.index()].iter().flat_map(move |level| {
                level.routes.iter().filter_map(move |(bits, route)| {
                    let address = match family {
                        Family::V4 => IpAddr::from((*bits as u32).to_be_bytes()),
                        Family::V6 => IpAddr::from(bits.to_be_bytes()),
                    };
                    Some((Prefix::new(address, level.len)?, *route))
                })
            })
        })
    }

    /// How many routes there are.
    pub fn len(&self) -> usize {
        self.levels.iter().flatten().map(|level| level.routes.len()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.levels.iter().all(Vec::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    fn naive(routes: &HashMap<Prefix, Route>, destination: IpAddr) -> Option<Route> {
        routes
            .iter()
            .filter(|(prefix, _)| prefix.contains(destination))
            .max_by_key(|(prefix, _)| prefix.len())
            .map(|(_, route)| *route)
    }

    proptest! {
        #[test]
        fn equals_the_naive_search(
            changes in prop::collection::vec((prefixes(), any::<u16>(), any::<bool>()), 0..200),
            probes in prop::collection::vec((any::<bool>(), any::<u32>()), 50),
        ) {
            let mut fib = Fib::new();
            let mut twin = HashMap::new();
            for (prefix, port, remove) in changes {
                let route = Route::Via(NextHop { port, gateway: None });
                if remove && port % 2 == 0 {
                    prop_assert_eq!(fib.remove(prefix), twin.remove(&prefix));
                } else {
                    prop_assert_eq!(fib.insert(prefix, route), twin.insert(prefix, route));
                }
            }
            prop_assert_eq!(fib.len(), twin.len());
            prop_assert_eq!(fib.is_empty(), twin.is_empty());
            prop_assert_eq!(fib.iter().collect::<HashMap<_, _>>(), twin.clone());
            for (v6, bits) in probes {
                let destination = address(v6, bits);
                prop_assert_eq!(fib.lookup(destination), naive(&twin, destination));
            }
            for prefix in twin.keys() {
                prop_assert_eq!(fib.lookup(prefix.address()), naive(&twin, prefix.address()));
            }
        }
    }

    #[test]
    fn default_routes_are_per_family() {
        let mut fib = Fib::new();
        fib.insert(Prefix::any(Family::V4), Route::Blackhole);
        assert_eq!(fib.lookup("192.0.2.1".parse().unwrap()), Some(Route::Blackhole));
        assert_eq!(fib.lookup("2001:db8::1".parse().unwrap()), None);
    }
}
