//! The policies of one direction and family, in tables by the bits that their selectors look at.
//!
//! Method: tuple space search (Srinivasan, Suri, Varghese, SIGCOMM 1999), and where selectors look at
//! very many different bits TupleMerge (Daly, Bruschi, Linguaglossa, Pontarelli, Rossi, Tollet, Torng,
//! Yourtchenko, ToN 2019): a *tuple* is a hash table under one mask, and a policy may lie in one whose
//! mask sees fewer bits than its selector, among a few others that are compared one by one. So a look-up
//! probes some dozens of tables at most, in the order of the best rank that each may hold, and stops at
//! the first that cannot better what was found. A gateway whose policies have one shape has one table.

use std::sync::Arc;

use super::fields::{Address, Fields, Shape};
use crate::policy::{Policy, Rank};
use crate::table::Table;

/// Tuples up to which every mask has one of its own; only beyond are they merged. Sixteen probes that
/// find nothing take some 100 ns.
const OWN_TUPLES: usize = 16;

/// Policies that are compared one by one in a merged tuple. Eight lie in as many cache lines, one
/// behind the other; with fewer, more masks get tuples of their own.
const COMPARED_MAX: usize = 8;

/// A policy that was found.
#[derive(Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) rank: Rank,
    pub(super) number: u32,
    pub(super) policy: &'a Policy,
}

/// A policy that is compared with.
#[derive(Clone, Debug)]
struct Rule<A> {
    rank: Rank,
    number: u32,
    value: Fields<A>,
    mask: Fields<A>,
    policy: Arc<Policy>,
}

/// Policies under one key of a tuple, best first.
#[derive(Clone, Debug)]
enum Bucket<A> {
    /// One that looks at just the tuple's bits: who has its key has met it. Nearly all are.
    Exact { priority: u32, number: u32, position: u64, policy: Arc<Policy> },
    /// Those that may look at more.
    Compared(Box<[Rule<A>]>),
}

/// All policies under one mask.
#[derive(Clone)]
struct Tuple<A> {
    mask: Fields<A>,
    /// No policy here ranks better. May be better than the best, after removals.
    best: Rank,
    /// Removals since `best` was exact.
    removals: usize,
    buckets: Table<Fields<A>, Bucket<A>>,
}

/// Tuples ordered by their best rank.
#[derive(Clone)]
pub(super) struct Space<A> {
    tuples: Vec<Tuple<A>>,
}

impl<A> Default for Space<A> {
    fn default() -> Self {
        Space { tuples: Vec::new() }
    }
}

impl<A: Address> Space<A> {
    /// The best policy that matches a flow, if it ranks better than `than`. With `whole` false the ports
    /// are not known: only policies without ports count.
    #[inline]
    pub(super) fn best<'a>(
        &'a self,
        flow: &Fields<A>,
        whole: bool,
        than: Option<Rank>,
    ) -> Option<Found<'a>> {
        let mut bound = than;
        let mut found = None;
        for tuple in &self.tuples {
            if bound.is_some_and(|rank| tuple.best >= rank) {
                break;
            }
            if !whole && tuple.mask.ports != 0 {
                continue;
            }
            let candidate = match tuple.buckets.get(&flow.under(&tuple.mask)) {
                None => continue,
                Some(Bucket::Exact { priority, number, position, policy }) => {
                    Some(Found { rank: (*priority, *position), number: *number, policy })
                }
                Some(Bucket::Compared(rules)) => first_match(rules, flow, whole),
            };
            if let Some(candidate) = candidate
                && bound.is_none_or(|bound| candidate.rank < bound)
            {
                bound = Some(candidate.rank);
                found = Some(candidate);
            }
        }
        found
    }

    /// Asks for the memory that a look-up reads in the tuples it asks first.
    #[inline]
    pub(super) fn prefetch(&self, flow: &Fields<A>) {
        for tuple in self.tuples.iter().take(2) {
            tuple.buckets.prefetch(&flow.under(&tuple.mask));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tuples.is_empty()
    }

    /// How many tables a look-up may ask.
    pub(super) fn tuples(&self) -> usize {
        self.tuples.len()
    }

    /// See [`Table::settle`].
    pub(super) fn settle(&mut self) -> bool {
        self.tuples.iter_mut().fold(false, |done, tuple| tuple.buckets.settle() | done)
    }

    /// Every policy, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        let buckets = self.tuples.iter().flat_map(|tuple| tuple.buckets.iter());
        buckets.flat_map(|(_, bucket)| {
            let (exact, compared) = match bucket {
                Bucket::Exact { policy, .. } => (Some(policy), &[][..]),
                Bucket::Compared(rules) => (None, &rules[..]),
            };
            exact.into_iter().chain(compared.iter().map(|rule| &rule.policy))
        })
    }

    pub(super) fn insert(&mut self, shape: &Shape<A>, number: u32, policy: Arc<Policy>) {
        let place = self.place(shape);
        let rank = policy.rank();
        let tuple = &mut self.tuples[place];
        tuple.best = tuple.best.min(rank);
        tuple.insert(Rule { rank, number, value: shape.value, mask: shape.mask, policy });
        self.tuples.sort_by_key(|tuple| tuple.best);
    }

    /// Removes the policy of an index; its number, too.
    pub(super) fn remove(&mut self, shape: &Shape<A>, index: u32) -> Option<(u32, Arc<Policy>)> {
        let sees_no_more = |tuple: &Tuple<A>| tuple.mask.under(&shape.mask) == tuple.mask;
        let places = (0..self.tuples.len()).filter(|place| sees_no_more(&self.tuples[*place]));
        let (place, removed) = places
            .collect::<Vec<_>>()
            .into_iter()
            .find_map(|place| Some((place, self.tuples[place].remove(&shape.value, index)?)))?;
        if self.tuples[place].buckets.is_empty() {
            self.tuples.remove(place);
        } else {
            self.tuples.sort_by_key(|tuple| tuple.best);
        }
        Some(removed)
    }

    /// The tuple for one more policy of a shape:
    /// 1. that of its own mask, which is made as long as there are few;
    /// 2. of those that see fewer bits and have room for it the fullest, which sees most;
    /// 3. a new one that other masks can share, and if there is that one, one of its own.
    fn place(&mut self, shape: &Shape<A>) -> usize {
        let own = |tuples: &[Tuple<A>], mask| tuples.iter().position(|tuple| tuple.mask == mask);
        if let Some(place) = own(&self.tuples, shape.mask) {
            return place;
        }
        if self.tuples.len() >= OWN_TUPLES {
            let has_room = |tuple: &Tuple<A>| {
                let bucket = tuple.buckets.get(&shape.value.under(&tuple.mask));
                bucket.is_none_or(|bucket| bucket.len() < COMPARED_MAX)
            };
            let sees_no_more = |tuple: &Tuple<A>| tuple.mask.under(&shape.mask) == tuple.mask;
            let fits = |tuple: &Tuple<A>| sees_no_more(tuple) && has_room(tuple);
            let (_, fitting) = (0..self.tuples.len())
                .filter(|place| fits(&self.tuples[*place]))
                .map(|place| (self.tuples[place].buckets.len(), place))
                .max()
                .unwrap_or((0, usize::MAX));
            if fitting != usize::MAX {
                return fitting;
            }
            if own(&self.tuples, shape.merged).is_none() {
                self.tuples.push(Tuple::new(shape.merged));
                return self.tuples.len() - 1;
            }
        }
        self.tuples.push(Tuple::new(shape.mask));
        self.tuples.len() - 1
    }
}

#[inline]
fn first_match<'a, A: Address>(
    rules: &'a [Rule<A>],
    flow: &Fields<A>,
    whole: bool,
) -> Option<Found<'a>> {
    let matches =
        |rule: &&Rule<A>| (whole || rule.mask.ports == 0) && flow.under(&rule.mask) == rule.value;
    let found =
        |rule: &'a Rule<A>| Found { rank: rule.rank, number: rule.number, policy: &rule.policy };
    rules.iter().find(matches).map(found)
}

impl<A: Address> Bucket<A> {
    fn len(&self) -> usize {
        match self {
            Bucket::Exact { .. } => 1,
            Bucket::Compared(rules) => rules.len(),
        }
    }

    fn best(&self) -> Option<Rank> {
        match self {
            Bucket::Exact { priority, position, .. } => Some((*priority, *position)),
            Bucket::Compared(rules) => rules.first().map(|rule| rule.rank),
        }
    }

    /// What is here as rules to compare with; `mask` is the tuple's, `value` the key.
    fn rules(&self, value: Fields<A>, mask: Fields<A>) -> Vec<Rule<A>> {
        match self {
            Bucket::Exact { priority, number, position, policy } => {
                let (rank, number) = ((*priority, *position), *number);
                vec![Rule { rank, number, value, mask, policy: policy.clone() }]
            }
            Bucket::Compared(rules) => rules.to_vec(),
        }
    }

    /// The bucket of rules, best first; there is one at least.
    fn of(rules: Vec<Rule<A>>, mask: &Fields<A>) -> Bucket<A> {
        match &rules[..] {
            [only] if only.mask == *mask => {
                let (priority, position) = only.rank;
                let number = only.number;
                Bucket::Exact { priority, number, position, policy: only.policy.clone() }
            }
            _ => Bucket::Compared(rules.into()),
        }
    }
}

impl<A: Address> Tuple<A> {
    fn new(mask: Fields<A>) -> Tuple<A> {
        Tuple { mask, best: (u32::MAX, u64::MAX), removals: 0, buckets: Table::new() }
    }

    fn insert(&mut self, rule: Rule<A>) {
        let key = rule.value.under(&self.mask);
        let known = self.buckets.get(&key);
        let mut rules = known.map(|known| known.rules(key, self.mask)).unwrap_or_default();
        let place = rules.partition_point(|other| other.rank <= rule.rank);
        rules.insert(place, rule);
        self.buckets.insert(key, Bucket::of(rules, &self.mask));
    }

    fn remove(&mut self, value: &Fields<A>, index: u32) -> Option<(u32, Arc<Policy>)> {
        let key = value.under(&self.mask);
        let mut rules = self.buckets.get(&key)?.rules(key, self.mask);
        let is_it = |rule: &Rule<A>| rule.policy.config().index == index && rule.value == *value;
        let removed = rules.remove(rules.iter().position(is_it)?);
        if rules.is_empty() {
            self.buckets.remove(&key);
        } else {
            self.buckets.insert(key, Bucket::of(rules, &self.mask));
        }
        self.removals += 1;
        // Exactness costs a scan; done this seldom, it costs each removal a constant.
        if self.removals > self.buckets.len() / 2 {
            self.removals = 0;
            let ranks = self.buckets.iter().filter_map(|(_, bucket)| bucket.best());
            self.best = ranks.min().unwrap_or(self.best);
        }
        Some((removed.number, removed.policy))
    }
}
