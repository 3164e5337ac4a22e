//! A ruler for the tables alone: routes, policies, and what they cost in time.
//!
//! Contents are fixed, so that runs are repeatable, and nothing here prints or judges. **Time** is that
//! of look-ups one after the other, each for another address or flow than the last thousands, without
//! prefetching and with nothing else in the loop, and that of many together, as the data path does them:
//! of many short runs each, so that what another program took is in few of them. **Memory** whoever
//! asks must measure, as the process's.

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use wire::flow::{Flow, Fragment};

use crate::cpu::suit_cache;
use crate::fib::{Fib, MANY, NextHop, Route};
use crate::flows::Flows;
use crate::policy::{Direction, Policy, PolicyConfig};
use crate::prefix::{Family, Prefix};
use crate::ruler::path::gateways::random_order;
use crate::selector::{PortMatch, Selector};
use crate::spd::{Lookup, Spd};

/// Look-ups of one run: long against the reading of the clock, short against a time slice.
const RUN: usize = 4096;

/// Linear searches of one run: one through 50 000 policies takes some 50 µs.
const LINEAR_RUN: usize = 8;

/// Addresses or flows that are asked for: with their answers more than a second level cache holds.
const PROBES: usize = 1 << 18;

/// Numbers that look random and are the same every time (Knuth's MMIX constants).
pub struct Random(u64);

impl Random {
    /// Those of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u32 {
        let (factor, addend) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.0 = self.0.wrapping_mul(factor).wrapping_add(addend);
        (self.0 >> 32) as u32
    }

    /// One below `bound`, which is above 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound
    }
}

/// Nanoseconds that each of `runs` runs took for one of its `len` probes, which are `count` in turn.
fn times(runs: usize, len: usize, count: usize, mut probe: impl FnMut(usize)) -> Vec<f64> {
    let mut at = 0;
    let mut run = || {
        let start = Instant::now();
        for _ in 0..len {
            probe(at);
            at = (at + 1) % count;
        }
        start.elapsed().as_nanos() as f64 / len as f64
    };
    (0..runs).map(|_| run()).collect()
}

/// A routing table with the lengths of the Internet's: of a hundred prefixes 60 have 24 bits.
pub struct RouteBench {
    fib: Fib,
    prefixes: Vec<Prefix>,
    probes: Vec<IpAddr>,
}

impl RouteBench {
    /// So many IPv4 routes by a thousand next hops.
    #[must_use]
    pub fn new(routes: usize) -> RouteBench {
        let mut random = Random(1);
        let mut fib = Fib::new();
        let mut prefixes = Vec::with_capacity(routes);
        while prefixes.len() < routes {
            let len = match random.below(100) {
                0..60 => 24,
                60..72 => 22,
                72..82 => 23,
                82..87 => 20,
                87..91 => 21,
                91..94 => 19,
                94..97 => 16,
                97..99 => 18,
                _ => 8 + random.below(8) as u8,
            };
            let address = IpAddr::from(random.next().to_be_bytes());
            let gateway = IpAddr::from([192, 0, random.below(4) as u8, random.below(250) as u8]);
            let route = Route::Via(NextHop { port: 1, gateway: Some(gateway) });
            if let Some(prefix) = Prefix::new(address, len)
                && fib.insert(prefix, route).is_none()
            {
                prefixes.push(prefix);
            }
        }
        let probes = (0..PROBES).map(|_| {
            let IpAddr::V4(net) = prefixes[random.below(prefixes.len().max(1))].address() else {
                return IpAddr::from([0; 4]);
            };
            IpAddr::from((net.to_bits() | random.next() & 0xff).to_be_bytes())
        });
        let probes = probes.collect();
        RouteBench { fib, prefixes, probes }
    }

    /// The table.
    #[must_use]
    pub fn fib(&self) -> &Fib {
        &self.fib
    }

    /// Nanoseconds of a look-up of a random address in one of the prefixes, in each of `runs` runs.
    pub fn lookup_ns(&self, runs: usize) -> Vec<f64> {
        times(runs, RUN, self.probes.len(), |at| {
            black_box(&self.fib.lookup(self.probes[at]));
        })
    }

    /// The same of each look-up where 64 are asked for together, as the data path does for the packets of
    /// a turn.
    pub fn lookup_many_ns(&self, runs: usize) -> Vec<f64> {
        let run = |some: &[IpAddr]| {
            let start = Instant::now();
            for turn in some.chunks(MANY) {
                self.fib.lookup_many(turn, |_, route| {
                    black_box(&route);
                });
            }
            start.elapsed().as_nanos() as f64 / RUN as f64
        };
        self.probes.chunks_exact(RUN).cycle().take(runs).map(run).collect()
    }

    /// Nanoseconds of a change while an older version is in use: a prefix gets another route.
    pub fn update_ns(&mut self, changes: usize) -> f64 {
        let mut random = Random(2);
        let start = Instant::now();
        for _ in 0..changes {
            let used = self.fib.clone();
            let prefix = self.prefixes[random.below(self.prefixes.len().max(1))];
            self.fib.insert(prefix, Route::Blackhole);
            black_box(&used);
        }
        start.elapsed().as_nanos() as f64 / changes.max(1) as f64
    }
}

/// Routing tables of VRFs, numbered from 1, with routes to 24 bits each by a gateway of its own.
#[must_use]
pub fn vrfs(tables: u32, routes_each: u32) -> Fib {
    let mut random = Random(3);
    let mut fib = Fib::new();
    for vrf in 1..=tables {
        let gateway = IpAddr::from((0x0a00_0000 + vrf).to_be_bytes());
        for _ in 0..routes_each {
            let address = IpAddr::from(random.next().to_be_bytes());
            if let Some(prefix) = Prefix::new(address, 24) {
                fib.insert_in(vrf, prefix, Route::Via(NextHop { port: 1, gateway: Some(gateway) }));
            }
        }
    }
    fib
}

/// What policies look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All of one shape, as tunnels between hosts have them.
    Uniform,
    /// Prefixes of 16 to 32 bits on either side, three kinds of protocols, ports and ranges of them, a
    /// quarter IPv6.
    Mixed,
    /// Around one pair of hosts, by prefixes of any length from 8 bits and ranges of ports on either side, so that a flow
    /// may meet many of them and no mask tells those apart.
    Nested,
}

/// A policy database, and flows that meet its policies.
pub struct PolicyBench {
    spd: Spd,
    /// The same in the order in which a linear search asks.
    list: Vec<Arc<Policy>>,
    /// What such a search reads, and nothing else: their selectors, side by side, and their numbers.
    linear: Vec<(Selector, u32)>,
    probes: Vec<Flow>,
    flows: Flows,
}

impl PolicyBench {
    /// So many outbound policies.
    #[must_use]
    pub fn new(policies: usize, mix: Mix) -> PolicyBench {
        let mut random = Random(4);
        let mut spd = Spd::new();
        let mut list = Vec::with_capacity(policies);
        for n in 0..policies as u32 {
            let selector = match mix {
                Mix::Uniform => uniform(n),
                Mix::Mixed => mixed(&mut random),
                Mix::Nested => nested(&mut random),
            };
            let index = 8 * n + Direction::Out as u32;
            let config = PolicyConfig::bypass(index, Direction::Out, selector);
            // Of those that nest the narrower come first, as IKE daemons reckon priorities.
            let priority =
                if mix == Mix::Nested { 1000 - narrowness(&selector) } else { 1000 + n % 8 };
            let position = n.into();
            let policy = Arc::new(Policy::new(PolicyConfig { priority, position, ..config }));
            spd.insert(policy.clone());
            list.push(policy);
        }
        let probe = |n: u32| flow(&list[n as usize].config(), &mut random);
        let probes = random_order(policies).into_iter().take(PROBES).map(probe).collect();
        list.sort_by_key(|policy| policy.rank());
        let searched = |policy: &Arc<Policy>| (policy.config().selector, policy.index());
        let linear = list.iter().map(searched).collect();
        PolicyBench { spd, list, linear, probes, flows: Flows::new() }
    }

    /// Hash tables that a look-up of a family may have to ask.
    #[must_use]
    pub fn tables(&self, family: Family) -> usize {
        self.spd.tables(Direction::Out, family)
    }

    /// Nanoseconds of a look-up in the database, in each of `runs` runs.
    pub fn lookup_ns(&self, runs: usize) -> Vec<f64> {
        times(runs, RUN, self.probes.len(), |at| {
            black_box(self.spd.lookup(Direction::Out, &self.probes[at]));
        })
    }

    /// The same of each look-up where 64 are asked for together, as the data path does for the packets of
    /// a turn.
    pub fn lookup_many_ns(&self, runs: usize) -> Vec<f64> {
        let side = self.spd.side(Direction::Out);
        let cache = suit_cache(self.list.len());
        let (mut asked, mut presumed) = ([0; MANY], [None; MANY]);
        let mut times = Vec::with_capacity(runs);
        // Of few policies over and over, so that there are 64 of them to ask for together.
        let probes: Vec<Flow> =
            self.probes.iter().copied().cycle().take(self.probes.len().max(RUN)).collect();
        for some in probes.chunks_exact(RUN).cycle().take(runs) {
            let start = Instant::now();
            for turn in some.chunks(MANY) {
                for (flow, asked) in turn.iter().zip(&mut asked) {
                    *asked = side.ask(0, flow, cache);
                }
                for ((flow, asked), presumed) in turn.iter().zip(&asked).zip(&mut presumed) {
                    *presumed = side.presume(0, flow, *asked, cache);
                }
                for ((flow, asked), presumed) in turn.iter().zip(&asked).zip(&presumed) {
                    black_box(side.lookup(0, flow, *asked, *presumed));
                }
            }
            times.push(start.elapsed().as_nanos() as f64 / RUN as f64);
        }
        times
    }

    /// Nanoseconds of a change while an older version is in use: a policy is removed and added again.
    pub fn update_ns(&mut self, changes: usize) -> f64 {
        let mut random = Random(5);
        let start = Instant::now();
        for _ in 0..changes.div_ceil(2) {
            let policy = self.list[random.below(self.list.len())].clone();
            let used = self.spd.clone();
            self.spd.remove(&policy.config());
            let used = (used, self.spd.clone());
            self.spd.insert(policy);
            black_box(&used);
        }
        start.elapsed().as_nanos() as f64 / changes.max(1) as f64
    }

    /// Nanoseconds of a look-up through a worker's cache, of the first `flows` flows over and over, in each
    /// of `runs` runs.
    pub fn cached_ns(&mut self, runs: usize, flows: usize) -> Vec<f64> {
        let PolicyBench { spd, probes, flows: cache, .. } = self;
        let (count, side) = (probes.len().min(flows).max(1), spd.side(Direction::Out));
        for probe in &probes[..count] {
            let asked = cache.ask(&side, probe);
            cache.lookup(&side, probe, asked, cache.recall(&side, probe, asked));
        }
        times(runs, RUN, count, |at| {
            let asked = cache.ask(&side, &probes[at]);
            let presumed = cache.recall(&side, &probes[at], asked);
            black_box(cache.lookup(&side, &probes[at], asked, presumed));
        })
    }

    /// Nanoseconds of a search through one policy after the other, in each of `runs` runs, which are
    /// shorter, as it takes long.
    pub fn linear_ns(&self, runs: usize) -> Vec<f64> {
        times(runs, LINEAR_RUN, self.probes.len(), |at| {
            black_box(first_of(&self.linear, &self.probes[at]));
        })
    }

    /// Of `count` flows those for which cache, database and linear search do not say the same: 0.
    pub fn disagreements(&mut self, count: usize) -> usize {
        let index = |found: Lookup<'_>| match found {
            Lookup::Policy(policy) => Some(policy.config().index),
            _ => None,
        };
        let probes: Vec<Flow> = self.probes.iter().copied().take(count).collect();
        let linear = |flow: &Flow| first_of(&self.linear, flow);
        let (spd, flows) = (&self.spd, &mut self.flows);
        let side = spd.side(Direction::Out);
        let differs = |flow: &&Flow| {
            let expected = linear(flow);
            let found = index(spd.lookup(Direction::Out, flow));
            let asked = flows.ask(&side, flow);
            let presumed = flows.recall(&side, flow, asked);
            let mut cached = || index(flows.lookup(&side, flow, asked, presumed));
            found != expected || cached() != expected || cached() != expected
        };
        probes.iter().filter(differs).count()
    }
}

fn uniform(n: u32) -> Selector {
    let host = |net: u32| Prefix::host(IpAddr::from((net + n).to_be_bytes()));
    let any = Selector::any(Family::V4);
    Selector { source: host(0x0a00_0000), destination: host(0x1400_0000), ..any }
}

fn mixed(random: &mut Random) -> Selector {
    let v6 = random.below(4) == 0;
    let mut prefix = || {
        let len = 16 + random.below(17) as u8;
        let bits = 0x0a00_0000 | random.next() & 0x0fff_ffff;
        match v6 {
            false => Prefix::new(IpAddr::from(bits.to_be_bytes()), len),
            true => {
                let bits = 0x2001_0db8_u128 << 96 | u128::from(bits) << 64;
                Prefix::new(IpAddr::from(bits.to_be_bytes()), len + 32)
            }
        }
    };
    let family = if v6 { Family::V6 } else { Family::V4 };
    let (source, destination) = (prefix(), prefix());
    let ports = match random.below(8) {
        0 => PortMatch::exactly(random.below(1024) as u16),
        1 => PortMatch { port: (random.below(64) * 64) as u16, mask: 0xffc0 },
        _ => PortMatch::ANY,
    };
    Selector {
        source: source.unwrap_or(Prefix::any(family)),
        destination: destination.unwrap_or(Prefix::any(family)),
        protocol: [0, 0, 6, 17][random.below(4)],
        source_port: PortMatch::ANY,
        destination_port: ports,
    }
}

fn nested(random: &mut Random) -> Selector {
    let around = |host: u32, random: &mut Random| {
        let len = 8 + random.below(25) as u8;
        Prefix::new(IpAddr::from(host.to_be_bytes()), len).unwrap_or(Prefix::any(Family::V4))
    };
    let range = |random: &mut Random| {
        let mask = u16::MAX << random.below(11);
        PortMatch { port: random.below(1024) as u16 & mask, mask }
    };
    Selector {
        source: around(0x0a01_0101, random),
        destination: around(0x1402_0202, random),
        protocol: 17,
        source_port: range(random),
        destination_port: range(random),
    }
}

/// Bits that a selector looks at: of two around one flow, the one with more is the narrower.
fn narrowness(selector: &Selector) -> u32 {
    let Selector { source, destination, source_port, destination_port, .. } = selector;
    let prefixes = u32::from(source.len()) + u32::from(destination.len());
    prefixes + source_port.mask.count_ones() + destination_port.mask.count_ones()
}

/// A flow that a policy selects; another may come before it.
fn flow(config: &PolicyConfig, random: &mut Random) -> Flow {
    let selector = &config.selector;
    let mut within = |prefix: Prefix| match prefix.address() {
        IpAddr::V4(net) => {
            let free = u32::MAX.checked_shr(prefix.len().into()).unwrap_or(0);
            IpAddr::from((net.to_bits() | random.next() & free).to_be_bytes())
        }
        IpAddr::V6(net) => {
            let free = u128::MAX.checked_shr(prefix.len().into()).unwrap_or(0);
            IpAddr::from((net.to_bits() | u128::from(random.next()) & free).to_be_bytes())
        }
    };
    let (src, dst) = (within(selector.source), within(selector.destination));
    Flow {
        src,
        dst,
        protocol: if selector.protocol == 0 { 17 } else { selector.protocol },
        src_port: if selector.source_port == PortMatch::ANY {
            4000
        } else {
            selector.source_port.port
        },
        dst_port: selector.destination_port.port,
        ttl: 64,
        tos: 0,
        header_len: 20,
        total_len: 100,
        fragment: Fragment::Whole,
        has_options: false,
    }
}

/// The number of the first policy that selects a flow.
fn first_of(all: &[(Selector, u32)], flow: &Flow) -> Option<u32> {
    all.iter().find(|(selector, _)| selector.matches(flow)).map(|(_, index)| *index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_found_and_changed() {
        let mut bench = RouteBench::new(5000);
        assert_eq!(bench.fib().len(), 5000);
        assert!(bench.probes.iter().all(|probe| bench.fib.lookup(*probe).is_some()));
        for times in [bench.lookup_ns(3), bench.lookup_many_ns(3)] {
            assert!(times.len() == 3 && times.iter().all(|ns| *ns > 0.0), "{times:?}");
        }
        assert!(bench.update_ns(10) > 0.0);
        assert_eq!(bench.fib().len(), 5000);
        let fib = vrfs(20, 10);
        assert_eq!((1..=20).map(|vrf| fib.iter_in(vrf).count()).sum::<usize>(), 200);
    }

    /// A stride hits one policy for ever where it divides their number.
    #[test]
    fn every_policy_is_asked_for_whatever_their_number() {
        for policies in [1, 10, 7919] {
            let bench = PolicyBench::new(policies, Mix::Uniform);
            let mut flows: Vec<_> = bench.probes.iter().map(|flow| flow.src).collect();
            assert!(policies == 1 || !flows.is_sorted());
            flows.sort_unstable();
            flows.dedup();
            assert_eq!(flows.len(), policies);
            let times = bench.lookup_many_ns(3);
            assert!(times.len() == 3 && times.iter().all(|ns| *ns > 0.0), "{times:?}");
        }
    }

    #[test]
    fn policies_are_found_as_one_after_the_other_finds_them() {
        for (mix, most) in [(Mix::Uniform, 1), (Mix::Mixed, 4), (Mix::Nested, 40)] {
            let mut bench = PolicyBench::new(3000, mix);
            assert_eq!(bench.disagreements(600), 0);
            assert!(bench.update_ns(50) > 0.0);
            let (one, many) = (bench.lookup_ns(2), bench.lookup_many_ns(2));
            for times in [one, many, bench.cached_ns(2, 1000), bench.linear_ns(2)] {
                assert!(times.len() == 2 && times.iter().all(|ns| *ns > 0.0), "{times:?}");
            }
            let tables = bench.tables(Family::V4);
            assert!(tables >= 1 && tables <= most, "{tables} of {mix:?}");
        }
    }
}
