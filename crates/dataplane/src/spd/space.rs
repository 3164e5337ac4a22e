//! The policies of one direction and family, in tables by the bits that their selectors look at.
//!
//! Method: tuple space search (Srinivasan, Suri, Varghese, SIGCOMM 1999), and where selectors look at
//! very many different bits TupleMerge (Daly, Bruschi, Linguaglossa, Pontarelli, Rossi, Tollet, Torng,
//! Yourtchenko, ToN 2019): a *tuple* is a hash table under one mask, and a policy may lie in one whose
//! mask sees fewer bits than its selector, among a few others that are compared one by one. So a look-up
//! probes some dozens of tables at most, in the order of the best rank that each may hold, and stops at
//! the first that cannot better what was found. A gateway whose policies have one shape has one table.

use std::sync::Arc;

use wire::flow::Flow;

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
    pub(super) policy: &'a Policy,
}

/// A policy that is compared with.
#[derive(Clone, Debug)]
struct Rule<A> {
    rank: Rank,
    value: Fields<A>,
    mask: Fields<A>,
    policy: Arc<Policy>,
}

/// All policies under one mask.
#[derive(Clone)]
struct Tuple<A> {
    mask: Fields<A>,
    /// No policy here ranks better. May be better than the best, after removals.
    best: Rank,
    /// Removals since `best` was exact.
    removals: usize,
    /// Keys of one policy that looks at just the tuple's bits: who has its key has met it. Nearly all are
    /// such. Two entries of IPv4 are a cache line, and one of IPv6 is.
    exact: Table<Fields<A>, Arc<Policy>>,
    /// All other keys; their policies, best first.
    compared: Table<Fields<A>, Arc<[Rule<A>]>>,
}

const _: () = assert!(size_of::<Option<(Fields<u32>, Arc<Policy>)>>() == 32);
const _: () = assert!(size_of::<Option<(Fields<u128>, Arc<Policy>)>>() == 64);

/// Tuples ordered by their best rank.
#[derive(Clone)]
pub(super) struct Space<A> {
    tuples: Vec<Tuple<A>>,
    /// Every bit that any policy here looks at, or looked at before it was removed.
    seen: Fields<A>,
}

impl<A: Address> Default for Space<A> {
    fn default() -> Self {
        Space { tuples: Vec::new(), seen: Fields::none() }
    }
}

impl<A: Address> Space<A> {
    /// The best policy that matches a flow, if it ranks better than `than`. With `whole` false the ports
    /// are not known: only policies without ports count.
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
            if let Some(candidate) = tuple.find(flow, whole)
                && bound.is_none_or(|bound| candidate.rank < bound)
            {
                bound = Some(candidate.rank);
                found = Some(candidate);
            }
        }
        found
    }

    /// The best policy that matches a flow with ports in the tunnel of an `if_id`, which
    /// [`ask`](Space::ask) was told of.
    #[inline]
    pub(super) fn best_asked<'a>(
        &'a self,
        if_id: u32,
        flow: &Flow,
        asked: u64,
    ) -> Option<&'a Policy> {
        match &self.tuples[..] {
            [] => None,
            [tuple] if tuple.compared.is_empty() => {
                let key = Fields::of(flow, if_id).under(&tuple.mask);
                tuple.exact.get_hashed(asked, &key).map(|policy| &**policy)
            }
            _ => self.best_of_many(if_id, flow),
        }
    }

    #[inline(never)]
    fn best_of_many<'a>(&'a self, if_id: u32, flow: &Flow) -> Option<&'a Policy> {
        self.best(&Fields::of(flow, if_id), true, None).map(|found| found.policy)
    }

    /// Asks for the memory that a look-up reads in the tuples it asks first; what
    /// [`best_asked`](Space::best_asked) wants to know.
    #[inline]
    pub(super) fn ask(&self, if_id: u32, flow: &Flow) -> u64 {
        let key = |tuple: &Tuple<A>| Fields::of(flow, if_id).under(&tuple.mask);
        match &self.tuples[..] {
            [] => 0,
            [only] => only.exact.prefetch(&key(only)),
            [first, second, ..] => {
                second.exact.prefetch(&key(second));
                first.exact.prefetch(&key(first))
            }
        }
    }

    /// Every bit that policies look at: flows that differ in none are decided alike.
    #[inline]
    pub(super) fn seen(&self) -> &Fields<A> {
        &self.seen
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
        let settle = |tuple: &mut Tuple<A>| tuple.exact.settle() | tuple.compared.settle();
        self.tuples.iter_mut().fold(false, |done, tuple| settle(tuple) | done)
    }

    /// Every policy, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.tuples.iter().flat_map(|tuple| {
            let compared = tuple.compared.iter().flat_map(|(_, rules)| rules.iter());
            let exact = tuple.exact.iter().map(|(_, policy)| policy);
            exact.chain(compared.map(|rule| &rule.policy))
        })
    }

    pub(super) fn insert(&mut self, shape: &Shape<A>, policy: Arc<Policy>) {
        let place = self.place(shape);
        let rank = policy.rank();
        self.seen = self.seen.with(&shape.mask);
        let tuple = &mut self.tuples[place];
        tuple.best = tuple.best.min(rank);
        tuple.insert(Rule { rank, value: shape.value, mask: shape.mask, policy });
        self.tuples.sort_by_key(|tuple| tuple.best);
    }

    /// Removes the policy of an index.
    pub(super) fn remove(&mut self, shape: &Shape<A>, index: u32) -> Option<Arc<Policy>> {
        let sees_no_more = |tuple: &Tuple<A>| tuple.mask.under(&shape.mask) == tuple.mask;
        let places = (0..self.tuples.len()).filter(|place| sees_no_more(&self.tuples[*place]));
        let (place, removed) = places
            .collect::<Vec<_>>()
            .into_iter()
            .find_map(|place| Some((place, self.tuples[place].remove(&shape.value, index)?)))?;
        if self.tuples[place].len() == 0 {
            self.tuples.remove(place);
            if self.tuples.is_empty() {
                self.seen = Fields::none();
            }
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
                let rules = tuple.compared.get(&shape.value.under(&tuple.mask));
                rules.is_none_or(|rules| rules.len() < COMPARED_MAX)
            };
            let sees_no_more = |tuple: &Tuple<A>| tuple.mask.under(&shape.mask) == tuple.mask;
            let fits = |tuple: &Tuple<A>| sees_no_more(tuple) && has_room(tuple);
            let (_, fitting) = (0..self.tuples.len())
                .filter(|place| fits(&self.tuples[*place]))
                .map(|place| (self.tuples[place].len(), place))
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

fn first_match<'a, A: Address>(
    rules: &'a [Rule<A>],
    flow: &Fields<A>,
    whole: bool,
) -> Option<Found<'a>> {
    let matches =
        |rule: &&Rule<A>| (whole || rule.mask.ports == 0) && flow.under(&rule.mask) == rule.value;
    let found = |rule: &'a Rule<A>| Found { rank: rule.rank, policy: &rule.policy };
    rules.iter().find(matches).map(found)
}

impl<A: Address> Tuple<A> {
    fn new(mask: Fields<A>) -> Tuple<A> {
        let (exact, compared) = (Table::new(), Table::new());
        Tuple { mask, best: (u32::MAX, u64::MAX), removals: 0, exact, compared }
    }

    /// Keys.
    fn len(&self) -> usize {
        self.exact.len() + self.compared.len()
    }

    /// The best policy here that matches a flow.
    #[inline]
    fn find<'a>(&'a self, flow: &Fields<A>, whole: bool) -> Option<Found<'a>> {
        let key = flow.under(&self.mask);
        if let Some(policy) = self.exact.get(&key) {
            return Some(Found { rank: policy.rank(), policy });
        }
        match self.compared.is_empty() {
            true => None,
            false => first_match(self.compared.get(&key)?, flow, whole),
        }
    }

    /// What a key has, as rules to compare with.
    fn rules(&self, key: &Fields<A>) -> Vec<Rule<A>> {
        let (value, mask) = (*key, self.mask);
        match self.exact.get(key) {
            Some(policy) => vec![Rule { rank: policy.rank(), value, mask, policy: policy.clone() }],
            None => self.compared.get(key).map_or_else(Vec::new, |rules| rules.to_vec()),
        }
    }

    /// Sets what a key has.
    fn set(&mut self, key: Fields<A>, rules: Vec<Rule<A>>) {
        match &rules[..] {
            [only] if only.mask == self.mask => {
                self.exact.insert(key, only.policy.clone());
                self.compared.remove(&key);
            }
            [] => {
                self.exact.remove(&key);
                self.compared.remove(&key);
            }
            _ => {
                self.exact.remove(&key);
                self.compared.insert(key, rules.into());
            }
        }
    }

    fn insert(&mut self, rule: Rule<A>) {
        let key = rule.value.under(&self.mask);
        let mut rules = self.rules(&key);
        let place = rules.partition_point(|other| other.rank <= rule.rank);
        rules.insert(place, rule);
        self.set(key, rules);
    }

    fn remove(&mut self, value: &Fields<A>, index: u32) -> Option<Arc<Policy>> {
        let key = value.under(&self.mask);
        let mut rules = self.rules(&key);
        let is_it = |rule: &Rule<A>| rule.policy.index() == index && rule.value == *value;
        let removed = rules.remove(rules.iter().position(is_it)?);
        self.set(key, rules);
        self.removals += 1;
        // Exactness costs a scan; done this seldom, it costs each removal a constant.
        if self.removals > self.len() / 2 {
            self.removals = 0;
            let exact = self.exact.iter().map(|(_, policy)| policy.rank());
            let compared = self.compared.iter().filter_map(|(_, rules)| rules.first());
            let ranks = exact.chain(compared.map(|rule| rule.rank));
            self.best = ranks.min().unwrap_or(self.best);
        }
        Some(removed.policy)
    }
}
