//! The policy database: which policy decides a flow, at a cost that does not grow with their
//! number.
//!
//! XFRM's semantics: one list per direction, the lowest priority value wins, among equals the
//! policy added first, and a default action per direction where nothing matches.
//!
//! Method: tuple space search (Srinivasan, Suri, Varghese, SIGCOMM 1999). Policies whose selectors
//! mask the same bits share a hash table; a look-up probes each table once, in the order of the
//! best rank each may hold, and stops at the first that cannot better what was found. A gateway
//! with 50 000 tunnels of equal shape has one table. The policies of tunnels in route mode (`if_id`)
//! are a world of their own, of which a look-up is for one tunnel. The kernel's marks and interface
//! indices are not in a selector here.

use std::sync::Arc;

use wire::flow::{Flow, Fragment};

use crate::policy::{Direction, Policy, PolicyConfig, Rank};
use crate::prefix::{Family, address_bits, prefix_mask};
use crate::selector::Selector;
use crate::table::Table;

/// What happens where no policy matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultAction {
    /// As if no policy database existed; the kernel's default.
    #[default]
    Accept,
    /// Drop.
    Block,
}

/// The result of a look-up.
#[derive(Clone, Copy, Debug)]
pub enum Lookup<'a> {
    /// This policy decides.
    Policy(&'a Policy),
    /// No policy matches; the default action decides.
    Default(DefaultAction),
    /// A fragment without ports, and a policy that selects by ports might have decided it.
    PortsNeeded,
}

/// A version of the policy database. Cloning is cheap; versions share what did not change.
#[derive(Clone, Default)]
pub struct Spd {
    /// By direction, by family, and by whether the policies are those of tunnels in route mode.
    spaces: [[[TupleSpace; 2]; 2]; 3],
    defaults: [DefaultAction; 3],
    len: usize,
}

/// Tables ordered by their best rank.
type TupleSpace = Vec<Tuple>;

/// Which bits of a flow a selector looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mask {
    source: u128,
    destination: u128,
    protocol: u8,
    source_port: u16,
    destination_port: u16,
}

/// A flow under a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    if_id: u32,
    source: u128,
    destination: u128,
    protocol: u8,
    source_port: u16,
    destination_port: u16,
}

/// Policies of one selector, best first. Nearly always there is one.
#[derive(Clone)]
struct Bucket {
    first: Arc<Policy>,
    others: Vec<Arc<Policy>>,
}

/// All policies whose selectors have one mask.
#[derive(Clone)]
struct Tuple {
    mask: Mask,
    /// No policy here ranks better. May be better than the best, after removals.
    best: Rank,
    /// Removals since `best` was exact.
    removals: usize,
    buckets: Table<Key, Bucket>,
    /// If the mask has ports: the ranks under each key without its ports, for later fragments.
    portless: Table<Key, Vec<Rank>>,
}

impl Spd {
    /// An empty database that accepts everything.
    pub fn new() -> Spd {
        Spd::default()
    }

    /// Sets what happens where no policy of a direction matches.
    pub fn set_default(&mut self, direction: Direction, action: DefaultAction) {
        self.defaults[direction as usize] = action;
    }

    /// What happens where no policy of a direction matches.
    pub fn default_action(&self, direction: Direction) -> DefaultAction {
        self.defaults[direction as usize]
    }

    /// Policies in all directions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no policy.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The policy that decides a flow outside of route mode.
    #[inline]
    pub fn lookup(&self, direction: Direction, flow: &Flow) -> Lookup<'_> {
        self.lookup_of(0, direction, flow)
    }

    /// The policy that decides a flow in the tunnel of an `if_id`; of 0, outside of route mode.
    #[inline]
    pub fn lookup_of(&self, if_id: u32, direction: Direction, flow: &Flow) -> Lookup<'_> {
        let family = Family::of(flow.src).index();
        let space = &self.spaces[direction as usize][family][usize::from(if_id != 0)];
        let key = Key::of(flow, if_id);
        let portless = flow.fragment == Fragment::Later;
        // The best match so far; without a policy if only ports could tell whether it matches.
        let mut found: Option<(Rank, Option<&Policy>)> = None;
        for tuple in space {
            if found.is_some_and(|(rank, _)| tuple.best >= rank) {
                break;
            }
            let candidate = if portless && tuple.mask.has_ports() {
                tuple.best_without_ports(&key).map(|rank| (rank, None))
            } else {
                let bucket = tuple.buckets.get(&key.under(&tuple.mask));
                bucket.map(|bucket| (bucket.first.rank(), Some(&*bucket.first)))
            };
            if let Some((rank, _)) = candidate
                && found.is_none_or(|(best, _)| rank < best)
            {
                found = candidate;
            }
        }
        match found {
            Some((_, Some(policy))) => Lookup::Policy(policy),
            Some((_, None)) => Lookup::PortsNeeded,
            None => Lookup::Default(self.default_action(direction)),
        }
    }

    /// See [`Table::settle`].
    pub(crate) fn settle(&mut self) -> bool {
        let tuples = self.spaces.iter_mut().flatten().flatten().flatten();
        tuples.fold(false, |done, tuple| tuple.buckets.settle() | tuple.portless.settle() | done)
    }

    /// Adds a policy, or replaces the one with its direction, selector and index, which is
    /// returned.
    pub fn insert(&mut self, policy: Arc<Policy>) -> Option<Arc<Policy>> {
        let config = policy.config();
        let replaced = self.remove(config);
        let mask = Mask::of(&config.selector);
        let key = Key::of_policy(config);
        let rank = policy.rank();
        let space = self.space_mut(config);
        let place = space.iter().position(|tuple| tuple.mask == mask).unwrap_or_else(|| {
            space.push(Tuple::new(mask, rank));
            space.len() - 1
        });
        space[place].insert(key, policy);
        space.sort_by_key(|tuple| tuple.best);
        self.len += 1;
        replaced
    }

    /// Removes the policy with a direction, `if_id`, selector and index; what else `config` says does
    /// not matter.
    pub fn remove(&mut self, config: &PolicyConfig) -> Option<Arc<Policy>> {
        let mask = Mask::of(&config.selector);
        let space = self.space_mut(config);
        let place = space.iter().position(|tuple| tuple.mask == mask)?;
        let removed = space[place].remove(&Key::of_policy(config), config.index)?;
        if space[place].buckets.is_empty() {
            space.remove(place);
        } else {
            space.sort_by_key(|tuple| tuple.best);
        }
        self.len -= 1;
        Some(removed)
    }

    /// Every policy, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        let tuples = self.spaces.iter().flatten().flatten().flatten();
        tuples.flat_map(|tuple| tuple.buckets.iter()).flat_map(|(_, bucket)| bucket.iter())
    }

    fn space_mut(&mut self, config: &PolicyConfig) -> &mut TupleSpace {
        let family = config.selector.family().index();
        &mut self.spaces[config.direction as usize][family][usize::from(config.if_id != 0)]
    }
}

impl Mask {
    fn of(selector: &Selector) -> Mask {
        let family = selector.family();
        Mask {
            source: prefix_mask(family, selector.source.len()),
            destination: prefix_mask(family, selector.destination.len()),
            protocol: if selector.protocol == 0 { 0 } else { u8::MAX },
            source_port: selector.source_port.mask,
            destination_port: selector.destination_port.mask,
        }
    }

    fn has_ports(&self) -> bool {
        (self.source_port | self.destination_port) != 0
    }

    fn without_ports(self) -> Mask {
        Mask { source_port: 0, destination_port: 0, ..self }
    }
}

impl Key {
    #[inline]
    fn of(flow: &Flow, if_id: u32) -> Key {
        Key {
            if_id,
            source: address_bits(flow.src),
            destination: address_bits(flow.dst),
            protocol: flow.protocol,
            source_port: flow.src_port,
            destination_port: flow.dst_port,
        }
    }

    fn of_policy(config: &PolicyConfig) -> Key {
        let selector = &config.selector;
        let key = Key {
            if_id: config.if_id,
            source: address_bits(selector.source.address()),
            destination: address_bits(selector.destination.address()),
            protocol: selector.protocol,
            source_port: selector.source_port.port,
            destination_port: selector.destination_port.port,
        };
        key.under(&Mask::of(selector))
    }

    #[inline]
    fn under(&self, mask: &Mask) -> Key {
        Key {
            if_id: self.if_id,
            source: self.source & mask.source,
            destination: self.destination & mask.destination,
            protocol: self.protocol & mask.protocol,
            source_port: self.source_port & mask.source_port,
            destination_port: self.destination_port & mask.destination_port,
        }
    }
}

impl Bucket {
    fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    fn insert(&mut self, mut policy: Arc<Policy>) {
        if policy.rank() < self.first.rank() {
            std::mem::swap(&mut self.first, &mut policy);
        }
        let place = self.others.partition_point(|other| other.rank() <= policy.rank());
        self.others.insert(place, policy);
    }
}

impl Tuple {
    fn new(mask: Mask, best: Rank) -> Tuple {
        Tuple { mask, best, removals: 0, buckets: Table::new(), portless: Table::new() }
    }

    /// The best rank that a flow without ports might reach.
    fn best_without_ports(&self, key: &Key) -> Option<Rank> {
        self.portless.get(&key.under(&self.mask.without_ports()))?.first().copied()
    }

    fn insert(&mut self, key: Key, policy: Arc<Policy>) {
        let rank = policy.rank();
        self.best = self.best.min(rank);
        match self.buckets.get_mut(&key) {
            Some(bucket) => bucket.insert(policy),
            None => {
                self.buckets.insert(key, Bucket { first: policy, others: Vec::new() });
            }
        }
        if self.mask.has_ports() {
            let key = key.under(&self.mask.without_ports());
            match self.portless.get_mut(&key) {
                Some(ranks) => ranks.insert(ranks.partition_point(|other| *other <= rank), rank),
                None => {
                    self.portless.insert(key, vec![rank]);
                }
            }
        }
    }

    fn remove(&mut self, key: &Key, index: u32) -> Option<Arc<Policy>> {
        let bucket = self.buckets.get(key)?;
        let place = bucket.iter().position(|policy| policy.config().index == index)?;
        let removed = if bucket.others.is_empty() {
            self.buckets.remove(key)?.first
        } else {
            let bucket = self.buckets.get_mut(key)?;
            match place {
                0 => std::mem::replace(&mut bucket.first, bucket.others.remove(0)),
                _ => bucket.others.remove(place - 1),
            }
        };
        self.forget_ports(key, removed.rank());
        self.removals += 1;
        // Exactness costs a scan; done this seldom, it costs each removal a constant.
        if self.removals > self.buckets.len() / 2 {
            self.removals = 0;
            let ranks = self.buckets.iter().map(|(_, bucket)| bucket.first.rank());
            self.best = ranks.min().unwrap_or(self.best);
        }
        Some(removed)
    }

    fn forget_ports(&mut self, key: &Key, rank: Rank) {
        let key = key.under(&self.mask.without_ports());
        let Some(ranks) = self.portless.get_mut(&key) else { return };
        if let Some(place) = ranks.iter().position(|other| *other == rank) {
            ranks.remove(place);
        }
        if ranks.is_empty() {
            self.portless.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
