//! Flows whose policy is known: a cache in front of the policy database, one for each worker.
//!
//! What it remembers of a flow is the number of the policy that decides it, or that none does; the
//! policy itself is read from the turn's view. An entry counts as long as the database is the one that
//! it was asked of. A change of policies makes all entries old at once, at no cost; but the database knows
//! its last changes, and of a flow that comes again and that none of them was about, the old entry counts
//! on. Only the others are asked for anew. Nothing is ever cleared.
//!
//! Entries of IPv4 lie three to a cache line, those of IPv6 one. A flow has a line of its own, and may lie
//! in that line's neighbour if its own is full: a look-up mostly reads one. Whole keys are compared: two
//! flows that hash alike are never taken for each other. Fragments are not remembered.
//!
//! A flow that finds no place takes another's only one time in eight (bimodal insertion: Qureshi, Jaleel,
//! Patt, Steely, Emer, ISCA 2007). Where there are more flows than places, each would else have lost its own
//! by the time its next packet comes. Of flows of IPv4 that take turns 98 % are known if they are half as
//! many as the places, 83 % if as many, and 46 % if twice as many.
//!
//! Where the database itself asks no more than a few tables it is as quick, and the cache stays empty.

use std::hash::BuildHasher;
use std::net::IpAddr;

use foldhash::quality::RandomState;
use wire::flow::{Flow, Fragment};

use crate::cpu::{asked_cache, prefetch};
use crate::policy::{Direction, Policy};
use crate::prefix::Family;
use crate::spd::{Lookup, Side, Spd};

/// Tables up to which the database is asked without a cache: each costs about what the cache costs.
const TABLES_MAX: usize = 4;

/// Lines of each family: 24 576 flows of IPv4 and 8192 of IPv6 in half a MiB each, which is half of a
/// second level cache; what overflows costs a look-up in the database.
const LINES: usize = 1 << 13;

/// Flows without a place of which one takes another's.
const OUSTING: u32 = 8;

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
    /// One that mixes to the end: with less some seeds leave neighbouring flows in the same lines.
    hasher: RandomState,
    /// The database that entries of this stamp are of.
    version: u64,
    stamp: u32,
    /// The oldest stamp of a database that this one has come from.
    oldest: u32,
    /// Flows that found no place.
    homeless: u32,
}

/// Stamps go up by so much with each change: there are as many directions, in the lowest bits.
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
            oldest: DIRECTIONS,
            homeless: 0,
        }
    }

    /// Whether any flow of a side is looked for in the cache.
    #[inline]
    pub(crate) fn is_worth_it(side: &Side<'_>) -> bool {
        [Family::V4, Family::V6].into_iter().any(|family| side.tables(family) > TABLES_MAX)
    }

    /// Asks for the memory that [`recall`](Flows::recall) will read, in the cache or in the database, and
    /// returns what it and [`lookup`](Flows::lookup) want to know.
    #[inline(always)]
    pub(crate) fn ask(&self, side: &Side<'_>, flow: &Flow) -> u32 {
        if is_worth_it(side, flow) {
            self.ask_cached(side, flow)
        } else {
            side.ask(0, flow, asked_cache())
        }
    }

    #[inline(never)]
    fn ask_cached(&self, side: &Side<'_>, flow: &Flow) -> u32 {
        let rest = self.rest(side.direction(), flow);
        match (flow.src, flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let line = self.line_v4(src.to_bits(), dst.to_bits(), rest);
                prefetch(&self.v4[line], asked_cache());
                line as u32
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let line = self.line_v6(src.to_bits(), dst.to_bits(), rest);
                prefetch(&self.v6[line], asked_cache());
                line as u32
            }
            _ => 0,
        }
    }

    /// Once the memory is there that was [asked](Flows::ask) for, asks for that which the answer will be read from;
    /// the policy that presumably is the answer, where the database is asked.
    #[inline(always)]
    pub(crate) fn recall<'v>(
        &self,
        side: &Side<'v>,
        flow: &Flow,
        asked: u32,
    ) -> Option<&'v Policy> {
        if is_worth_it(side, flow) {
            self.recall_cached(side, flow, asked as usize % LINES);
            return None;
        }
        side.presume(0, flow, asked, asked_cache())
    }

    #[inline(never)]
    fn recall_cached(&self, side: &Side<'_>, flow: &Flow, at: usize) {
        let rest = self.rest(side.direction(), flow);
        let policy = match (flow.src, flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let place = self.place_v4(at, src.to_bits(), dst.to_bits(), rest);
                place.map(|(at, way)| self.v4[at].policies[way])
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let place = self.place_v6(at, src.to_bits(), dst.to_bits(), rest);
                place.map(|at| self.v6[at].policy)
            }
            _ => None,
        };
        match policy {
            Some(policy) => side.spd().prefetch_numbered(policy, asked_cache()),
            None => side.ask_everywhere(flow, asked_cache()),
        }
    }

    /// The policy that decides a flow, outside of route mode: what [`Spd::lookup`] says. `asked` and `presumed` are
    /// what [`ask`](Flows::ask) and [`recall`](Flows::recall) returned for the same policies and flow.
    #[inline(always)]
    pub(crate) fn lookup<'v>(
        &mut self,
        side: &Side<'v>,
        flow: &Flow,
        asked: u32,
        presumed: Option<&'v Policy>,
    ) -> Lookup<'v> {
        match is_worth_it(side, flow) {
            true => self.lookup_cached(side, flow, asked as usize % LINES),
            false => side.lookup(0, flow, asked, presumed),
        }
    }

    #[inline(never)]
    fn lookup_cached<'v>(&mut self, side: &Side<'v>, flow: &Flow, at: usize) -> Lookup<'v> {
        let (spd, direction) = (side.spd(), side.direction());
        if flow.fragment == Fragment::Later {
            return spd.lookup(direction, flow);
        }
        if spd.version() != self.version {
            self.follow(spd);
        }
        let (rest, oldest) = (self.rest(direction, flow), self.oldest);
        // Brings an older stamp up to date, if what it is on still counts.
        let counts = |stamp: &mut u32| {
            let changes = rest.changes_since(*stamp);
            if changes == 0 {
                return true;
            }
            let counts = *stamp >= oldest && !spd.touched(changes, direction, flow);
            if counts {
                *stamp = rest.stamp;
            }
            counts
        };
        match (flow.src, flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (src, dst) = (src.to_bits(), dst.to_bits());
                let place = self.place_v4(at, src, dst, rest);
                if let Some((at, way)) = place
                    && counts(&mut self.v4[at].stamps[way])
                {
                    return spd.numbered(self.v4[at].policies[way], direction);
                }
                let Some((at, way)) = place.or_else(|| self.room_v4(at)) else {
                    return spd.lookup(direction, flow);
                };
                let (found, policy) = spd.lookup_numbered(direction, flow);
                if let Some(policy) = policy {
                    self.v4[at].put(way, src, dst, rest, policy);
                }
                found
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let (source, destination) = (src.to_bits(), dst.to_bits());
                let place = self.place_v6(at, source, destination, rest);
                if let Some(at) = place
                    && counts(&mut self.v6[at].stamp)
                {
                    return spd.numbered(self.v6[at].policy, direction);
                }
                let Some(at) = place.or_else(|| self.room_v6(at)) else {
                    return spd.lookup(direction, flow);
                };
                let (found, policy) = spd.lookup_numbered(direction, flow);
                let Rest { ports, stamp, protocol } = rest;
                if let Some(policy) = policy {
                    self.v6[at] = LineV6 { source, destination, ports, stamp, policy, protocol };
                }
                found
            }
            _ => spd.lookup(direction, flow),
        }
    }

    /// All entries are of an older database from now on, or of one that this one has not come from.
    #[cold]
    fn follow(&mut self, spd: &Spd) {
        let changes = spd.changes_since(self.version);
        self.version = spd.version();
        // There are never as many that are known.
        let further = DIRECTIONS * changes.unwrap_or(1) as u32;
        // After a thousand million changes stamps begin anew. An entry that old and never touched
        // since would count again, so this one time all are forgotten.
        self.stamp = self.stamp.checked_add(further).unwrap_or_else(|| {
            self.v4.iter_mut().for_each(|line| line.stamps = [0; WAYS]);
            self.v6.iter_mut().for_each(|line| line.stamp = 0);
            self.oldest = DIRECTIONS;
            DIRECTIONS
        });
        if changes.is_none() {
            self.oldest = self.stamp;
        }
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

    /// Line and way of a flow whose own line is `at`.
    #[inline]
    fn place_v4(&self, at: usize, src: u32, dst: u32, rest: Rest) -> Option<(usize, usize)> {
        let of = |at: usize| Some((at, self.v4[at].way(src, dst, rest)?));
        of(at).or_else(|| of(neighbour(at)))
    }

    #[inline]
    fn place_v6(&self, at: usize, source: u128, destination: u128, rest: Rest) -> Option<usize> {
        [at, neighbour(at)].into_iter().find(|at| self.v6[*at].is(source, destination, rest))
    }

    /// Line and way for a flow that is nowhere: one that is free, else now and then that which was written
    /// longest ago in its own line.
    fn room_v4(&mut self, at: usize) -> Option<(usize, usize)> {
        let free = |at: usize| Some((at, self.v4[at].stamps.iter().position(|stamp| *stamp == 0)?));
        let free = free(at).or_else(|| free(neighbour(at)));
        free.or_else(|| self.may_oust().then(|| (at, self.v4[at].oldest())))
    }

    /// The same: a line that is free, else now and then its own.
    fn room_v6(&mut self, at: usize) -> Option<usize> {
        let free = [at, neighbour(at)].into_iter().find(|at| self.v6[*at].stamp == 0);
        free.or_else(|| self.may_oust().then_some(at))
    }

    /// Whether a flow that finds no place may take another's.
    fn may_oust(&mut self) -> bool {
        self.homeless = self.homeless.wrapping_add(1);
        self.homeless.is_multiple_of(OUSTING)
    }
}

/// The line in which a flow may lie as well.
#[inline]
fn neighbour(line: usize) -> usize {
    line ^ 1
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

    /// Whether a stamp is of the same direction.
    #[inline]
    fn is_along(self, stamp: u32) -> bool {
        stamp % DIRECTIONS == self.stamp % DIRECTIONS
    }

    /// Changes of the database since an older stamp.
    #[inline]
    fn changes_since(self, stamp: u32) -> u64 {
        u64::from(self.stamp.wrapping_sub(stamp) / DIRECTIONS)
    }
}

impl LineV4 {
    /// Where a flow is, of any stamp.
    #[inline]
    fn way(&self, src: u32, dst: u32, rest: Rest) -> Option<usize> {
        (0..WAYS).find(|way| {
            self.sources[*way] == src
                && self.destinations[*way] == dst
                && self.ports[*way] == rest.ports
                && self.protocols[*way] == rest.protocol
                && rest.is_along(self.stamps[*way])
        })
    }

    /// The way that was written longest ago; it will have been written last.
    fn oldest(&mut self) -> usize {
        let way = usize::from(self.oldest) % WAYS;
        self.oldest = (way as u8 + 1) % WAYS as u8;
        way
    }

    /// Remembers a flow.
    fn put(&mut self, way: usize, src: u32, dst: u32, rest: Rest, policy: u32) {
        self.sources[way] = src;
        self.destinations[way] = dst;
        self.ports[way] = rest.ports;
        self.stamps[way] = rest.stamp;
        self.policies[way] = policy;
        self.protocols[way] = rest.protocol;
    }
}

impl LineV6 {
    /// Whether it is a flow's, of any stamp.
    #[inline]
    fn is(&self, source: u128, destination: u128, rest: Rest) -> bool {
        self.source == source
            && self.destination == destination
            && self.ports == rest.ports
            && self.protocol == rest.protocol
            && rest.is_along(self.stamp)
    }
}

#[cfg(test)]
mod tests;
