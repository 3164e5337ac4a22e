//! Flows whose policy is known: a cache in front of the policy database, one for each worker.
//!
//! What it remembers of a flow is the number of the policy that decides it, or that none does; the
//! policy itself is read from the turn's view. An entry counts as long as the database is the one that
//! it was asked of: a change of policies makes all entries old at once, at no cost, and each flow is
//! asked for anew when it comes again. Nothing is ever cleared.
//!
//! Entries of IPv4 lie three to a cache line, those of IPv6 one, and a flow may lie in one line only,
//! so that a look-up reads one. Whole keys are compared: two flows that hash alike are never taken for
//! each other. Fragments are not remembered.
//!
//! Where the database itself asks no more than a few tables it is as quick, and the cache stays empty.

use std::hash::BuildHasher;
use std::net::IpAddr;

use foldhash::fast::RandomState;
use wire::flow::{Flow, Fragment};

use crate::cpu::prefetch;
use crate::policy::Direction;
use crate::prefix::Family;
use crate::spd::{Lookup, Side};

/// Tables up to which the database is asked without a cache: each costs about what the cache costs.
const TABLES_MAX: usize = 4;

/// Lines of each family: 24 576 flows of IPv4 and 8192 of IPv6 in half a MiB each, which is half of a
/// second level cache; what overflows costs a look-up in the database.
const LINES: usize = 1 << 13;

/// Entries of IPv4 in a line.
const WAYS: usize = 3;

/// What a flow is looked up by, beside its addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Rest {
    ports: u32,
    /// Of the database and the direction; 0 in entries that were never written.
    stamp: u32,
    protocol: u8,
}

#[repr(align(64))]
#[derive(Clone)]
struct LineV4 {
    sources: [u32; WAYS],
    destinations: [u32; WAYS],
    ports: [u32; WAYS],
    stamps: [u32; WAYS],
    policies: [u32; WAYS],
    protocols: [u8; WAYS],
    /// The entry that was written longest ago.
    oldest: u8,
}

#[repr(align(64))]
#[derive(Clone)]
struct LineV6 {
    source: u128,
    destination: u128,
    ports: u32,
    stamp: u32,
    policy: u32,
    protocol: u8,
}

const _: () = assert!(size_of::<LineV4>() == 64 && size_of::<LineV6>() == 64);

/// The cache of one worker.
pub(crate) struct Flows {
    v4: Vec<LineV4>,
    v6: Vec<LineV6>,
    hasher: RandomState,
    /// The database that entries of this stamp are of.
    version: u64,
    stamp: u32,
}

/// Stamps go up by as many as there are directions, in the lowest bits.
const DIRECTIONS: u32 = 4;

impl Flows {
    /// An empty cache, with all its memory.
    pub(crate) fn new() -> Flows {
        let none = LineV4 {
            sources: [0; WAYS],
            destinations: [0; WAYS],
            ports: [0; WAYS],
            stamps: [0; WAYS],
            policies: [0; WAYS],
            protocols: [0; WAYS],
            oldest: 0,
        };
        let none_v6 =
            LineV6 { source: 0, destination: 0, ports: 0, stamp: 0, policy: 0, protocol: 0 };
        Flows {
            v4: vec![none; LINES],
            v6: vec![none_v6; LINES],
            hasher: RandomState::default(),
            version: 0,
            stamp: DIRECTIONS,
        }
    }

    /// Asks for the memory that [`lookup`](Flows::lookup) will read, in the cache or in the database, and
    /// returns what it wants to know.
    #[inline]
    pub(crate) fn ask(&self, side: &Side<'_>, flow: &Flow) -> u64 {
        if is_worth_it(side, flow) { self.ask_cached(side, flow) } else { side.ask(0, flow) }
    }

    #[inline(never)]
    fn ask_cached(&self, side: &Side<'_>, flow: &Flow) -> u64 {
        let rest = self.rest(side.direction(), flow);
        match (flow.src, flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let line = self.line_v4(src.to_bits(), dst.to_bits(), rest);
                prefetch(&self.v4[line]);
                line as u64
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let line = self.line_v6(src.to_bits(), dst.to_bits(), rest);
                prefetch(&self.v6[line]);
                line as u64
            }
            _ => 0,
        }
    }

    /// The policy that decides a flow, outside of route mode: what [`Spd::lookup`](crate::spd::Spd::lookup) says. `asked` is what
    /// [`ask`](Flows::ask) returned for the same policies and flow.
    #[inline]
    pub(crate) fn lookup<'v>(&mut self, side: &Side<'v>, flow: &Flow, asked: u64) -> Lookup<'v> {
        match is_worth_it(side, flow) {
            true => self.lookup_cached(side, flow, asked as usize % LINES),
            false => side.lookup(0, flow, asked),
        }
    }

    #[inline(never)]
    fn lookup_cached<'v>(&mut self, side: &Side<'v>, flow: &Flow, at: usize) -> Lookup<'v> {
        let (spd, direction) = (side.spd(), side.direction());
        if flow.fragment == Fragment::Later {
            return spd.lookup(direction, flow);
        }
        if spd.version() != self.version {
            self.turn_old(spd.version());
        }
        let rest = self.rest(direction, flow);
        match (flow.src, flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (src, dst) = (src.to_bits(), dst.to_bits());
                if let Some(policy) = self.v4[at].get(src, dst, rest) {
                    return spd.numbered(policy, direction);
                }
                let (found, policy) = spd.lookup_numbered(direction, flow);
                self.v4[at].put(src, dst, rest, policy);
                found
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let (source, destination) = (src.to_bits(), dst.to_bits());
                let line = &mut self.v6[at];
                if line.is(source, destination, rest) {
                    return spd.numbered(line.policy, direction);
                }
                let (found, policy) = spd.lookup_numbered(direction, flow);
                let Rest { ports, stamp, protocol } = rest;
                *line = LineV6 { source, destination, ports, stamp, policy, protocol };
                found
            }
            _ => spd.lookup(direction, flow),
        }
    }

    /// All entries are of another database from now on.
    #[cold]
    fn turn_old(&mut self, version: u64) {
        self.version = version;
        // After a thousand million changes stamps begin anew. An entry that old and never touched
        // since would count again, so this one time all are forgotten.
        self.stamp = self.stamp.checked_add(DIRECTIONS).unwrap_or_else(|| {
            self.v4.iter_mut().for_each(|line| line.stamps = [0; WAYS]);
            self.v6.iter_mut().for_each(|line| line.stamp = 0);
            DIRECTIONS
        });
    }

    #[inline]
    fn rest(&self, direction: Direction, flow: &Flow) -> Rest {
        Rest {
            ports: u32::from(flow.src_port) << 16 | u32::from(flow.dst_port),
            stamp: self.stamp | direction as u32,
            protocol: flow.protocol,
        }
    }

    #[inline]
    fn line_v4(&self, src: u32, dst: u32, rest: Rest) -> usize {
        let key = (u64::from(src) << 32 | u64::from(dst), rest.beside());
        self.hasher.hash_one(key) as usize % LINES
    }

    #[inline]
    fn line_v6(&self, src: u128, dst: u128, rest: Rest) -> usize {
        self.hasher.hash_one((src, dst, rest.beside())) as usize % LINES
    }
}

#[inline]
fn is_worth_it(side: &Side<'_>, flow: &Flow) -> bool {
    side.tables(Family::of(flow.src)) > TABLES_MAX
}

impl Rest {
    /// What is hashed: all but the version, so that a flow stays in its line.
    #[inline]
    fn beside(self) -> u64 {
        let direction = self.stamp % DIRECTIONS;
        u64::from(self.ports) << 16 | u64::from(direction) << 8 | u64::from(self.protocol)
    }
}

impl LineV4 {
    #[inline]
    fn get(&self, src: u32, dst: u32, rest: Rest) -> Option<u32> {
        (0..WAYS).find(|way| self.is(*way, src, dst, rest)).map(|way| self.policies[way])
    }

    #[inline]
    fn is(&self, way: usize, src: u32, dst: u32, rest: Rest) -> bool {
        self.sources[way] == src
            && self.destinations[way] == dst
            && self.ports[way] == rest.ports
            && self.stamps[way] == rest.stamp
            && self.protocols[way] == rest.protocol
    }

    fn put(&mut self, src: u32, dst: u32, rest: Rest, policy: u32) {
        // The same flow of an older version first, or its directions and versions would push others out.
        let same = |way: &usize| {
            let stamp = rest.stamp;
            self.stamps[*way] % DIRECTIONS == stamp % DIRECTIONS
                && self.is(*way, src, dst, Rest { stamp: self.stamps[*way], ..rest })
        };
        let way = (0..WAYS).find(same).unwrap_or_else(|| {
            let way = usize::from(self.oldest) % WAYS;
            self.oldest = (way as u8 + 1) % WAYS as u8;
            way
        });
        self.sources[way] = src;
        self.destinations[way] = dst;
        self.ports[way] = rest.ports;
        self.stamps[way] = rest.stamp;
        self.policies[way] = policy;
        self.protocols[way] = rest.protocol;
    }
}

impl LineV6 {
    #[inline]
    fn is(&self, source: u128, destination: u128, rest: Rest) -> bool {
        self.source == source
            && self.destination == destination
            && self.ports == rest.ports
            && self.stamp == rest.stamp
            && self.protocol == rest.protocol
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Policy, PolicyConfig};
    use crate::prefix::Prefix;
    use crate::selector::Selector;
    use crate::spd::Spd;
    use std::sync::Arc;

    fn policy(index: u32, len: u8, v6: bool, direction: Direction, priority: u32) -> Arc<Policy> {
        let net: IpAddr = if v6 { "2001:db8::".parse().unwrap() } else { [10, 0, 0, 0].into() };
        let family = Family::of(net);
        let selector = Selector { source: Prefix::new(net, len).unwrap(), ..Selector::any(family) };
        let config = PolicyConfig::bypass(index, direction, selector);
        Arc::new(Policy::new(PolicyConfig { priority, position: index.into(), ..config }))
    }

    fn flow(v6: bool, host: u8, port: u16) -> Flow {
        let net: [IpAddr; 2] = match v6 {
            false => [[10, 0, 0, host].into(), [10, 9, 0, 1].into()],
            true => [
                (0x2001_0db8_u128 << 96 | u128::from(host)).to_be_bytes().into(),
                "2001:db8:9::1".parse().unwrap(),
            ],
        };
        Flow {
            src: net[0],
            dst: net[1],
            protocol: 17,
            src_port: port,
            dst_port: 5000,
            ttl: 64,
            tos: 0,
            header_len: 20,
            total_len: 100,
            fragment: Fragment::Whole,
            has_options: false,
        }
    }

    fn found(lookup: Lookup<'_>) -> Option<u32> {
        match lookup {
            Lookup::Policy(policy) => Some(policy.config().index),
            _ => None,
        }
    }

    fn database() -> Spd {
        let mut spd = Spd::new();
        for v6 in [false, true] {
            for direction in Direction::ALL {
                for len in 18..32u8 {
                    let index = u32::from(len) + 100 * direction as u32 + 1000 * u32::from(v6);
                    spd.insert(policy(index, len, v6, direction, 100 - u32::from(len)));
                }
            }
        }
        spd
    }

    /// Every flow, twice, so that the second time the cache answers.
    fn same(flows: &mut Flows, spd: &Spd) {
        for _ in 0..2 {
            for (v6, host, port) in
                (0..4096u32).map(|n| (n % 2 == 0, (n / 2 % 64) as u8, (n / 128) as u16))
            {
                let flow = flow(v6, host, port);
                for direction in Direction::ALL {
                    let side = spd.side(direction);
                    let asked = flows.ask(&side, &flow);
                    let expected = found(spd.lookup(direction, &flow));
                    assert_eq!(found(flows.lookup(&side, &flow, asked)), expected);
                }
            }
        }
    }

    #[test]
    fn it_answers_as_the_database_of_the_day() {
        let mut flows = Flows::new();
        let mut spd = database();
        same(&mut flows, &spd);
        let old = spd.clone();
        // Before all others, and in one direction only.
        spd.insert(policy(7, 24, false, Direction::Out, 0));
        same(&mut flows, &spd);
        spd.remove(&policy(7, 24, false, Direction::Out, 0).config());
        // Its number goes to another.
        spd.insert(policy(8, 26, false, Direction::Forward, 0));
        same(&mut flows, &spd);
        // A worker never goes back, but even so.
        same(&mut flows, &old);
        same(&mut flows, &database());
    }

    #[test]
    fn stamps_that_run_out_begin_anew_with_nothing_known() {
        let mut flows = Flows::new();
        let mut spd = database();
        same(&mut flows, &spd);
        let first = flows.stamp;
        flows.stamp = u32::MAX - 3;
        spd.insert(policy(7, 24, false, Direction::Out, 0));
        same(&mut flows, &spd);
        assert_eq!(flows.stamp, DIRECTIONS);
        assert!(first >= DIRECTIONS);
    }

    #[test]
    fn a_database_of_one_shape_is_asked_itself() {
        let mut flows = Flows::new();
        let mut spd = Spd::new();
        spd.insert(policy(1, 24, false, Direction::Out, 0));
        let one = flow(false, 1, 1);
        let side = spd.side(Direction::Out);
        let asked = flows.ask(&side, &one);
        assert_eq!(found(flows.lookup(&side, &one, asked)), Some(1));
        assert!(flows.v4.iter().all(|line| line.stamps == [0; WAYS]));
    }
}
