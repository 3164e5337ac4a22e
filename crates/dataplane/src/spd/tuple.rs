//! The policies under one mask, in a hash table by the bits that it sees.
//!
//! A tuple of its own mask holds policies that look at just those bits: who has the key of one has met it,
//! and two entries of IPv4 are a cache line. A shared one holds policies that look at more, a few to a key;
//! what the first of them selects lies beside the key, in one line with IPv4, so that it is compared where
//! it is found.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::fields::{Address, Fields, Shape};
use crate::policy::{Policy, Rank};
use crate::table::{Beside, Table};

/// What a policy selects, and how it ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranked<A> {
    pub(super) shape: Shape<A>,
    priority: u32,
    position: u64,
}

/// A policy that is compared with.
pub(super) type Rule<A> = Beside<Ranked<A>, Arc<Policy>>;

/// What a key has, best first: the first, and the others if there are any.
type Bucket<A> = (Rule<A>, Option<Arc<Box<[Rule<A>]>>>);

/// All policies under one mask.
#[derive(Clone)]
pub(super) struct Tuple<A> {
    pub(super) mask: Fields<A>,
    /// Whether it is for policies of other masks, too.
    pub(super) is_shared: bool,
    /// No policy here ranks better. May be better than the best, after removals.
    pub(super) best: Rank,
    /// Removals since `best` was exact.
    removals: usize,
    /// Keys of one policy that looks at just the tuple's bits, unless it is shared.
    exact: Table<Fields<A>, Arc<Policy>>,
    /// All other keys, by a hash of them: what lies there is compared anyway.
    compared: Table<u64, Bucket<A>>,
    hasher: RandomState,
}

const _: () = assert!(size_of::<Option<(Fields<u32>, Arc<Policy>)>>() == 32);
const _: () = assert!(size_of::<Option<(Fields<u128>, Arc<Policy>)>>() == 64);
const _: () = assert!(size_of::<Option<(u64, Bucket<u32>)>>() == 64);
const _: () = assert!(size_of::<Option<(u64, Bucket<u128>)>>() <= 128);

/// A policy that was found.
#[derive(Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) policy: &'a Policy,
    /// If it is known without reading the policy.
    rank: Option<Rank>,
}

impl Found<'_> {
    pub(super) fn rank(&self) -> Rank {
        self.rank.unwrap_or_else(|| self.policy.rank())
    }
}

impl<A: Address> Ranked<A> {
    fn rank(&self) -> Rank {
        (self.priority, self.position)
    }
}

/// A policy with what it is compared by.
pub(super) fn rule<A: Address>(shape: Shape<A>, policy: Arc<Policy>) -> Rule<A> {
    let (priority, position) = policy.rank();
    Rule { numbers: Ranked { shape, priority, position }, value: policy }
}

fn rules_of<A: Address>((first, more): &Bucket<A>) -> impl Iterator<Item = &Rule<A>> {
    std::iter::once(first).chain(more.iter().flat_map(|more| more.iter()))
}

/// The best that selects a flow. With `whole` false only those without ports count.
#[inline]
fn first_match<'a, A: Address>(
    (first, more): &'a Bucket<A>,
    flow: &Fields<A>,
    whole: bool,
) -> Option<Found<'a>> {
    let selects = |rule: &&Rule<A>| {
        let shape = &rule.numbers.shape;
        shape.selects(flow) && (whole || !shape.has_ports())
    };
    let found = match selects(&first) {
        true => first,
        false => more.as_ref()?.iter().find(selects)?,
    };
    Some(Found { policy: &found.value, rank: Some(found.numbers.rank()) })
}

impl<A: Address> Tuple<A> {
    pub(super) fn new(mask: Fields<A>, is_shared: bool) -> Tuple<A> {
        Tuple {
            mask,
            is_shared,
            best: (u32::MAX, u64::MAX),
            removals: 0,
            exact: Table::new(),
            compared: Table::new(),
            hasher: RandomState::default(),
        }
    }

    /// Keys.
    pub(super) fn len(&self) -> usize {
        self.exact.len() + self.compared.len()
    }

    #[inline]
    fn key(&self, fields: &Fields<A>) -> u64 {
        self.hasher.hash_one(fields.under(&self.mask))
    }

    /// Policies that one with these fields would be compared with.
    pub(super) fn compared_with(&self, fields: &Fields<A>) -> usize {
        self.compared.get(&self.key(fields)).map_or(0, |bucket| rules_of(bucket).count())
    }

    /// Whether every key is of one policy that looks at just the tuple's bits.
    #[inline]
    pub(super) fn is_exact(&self) -> bool {
        self.compared.is_empty()
    }

    /// Asks for the memory that a look-up will mostly read, and returns what it wants to know.
    #[inline]
    pub(super) fn ask(&self, flow: &Fields<A>) -> u64 {
        if self.is_exact() {
            return self.ask_exact(flow);
        }
        let key = self.key(flow);
        self.compared.prefetch(&key);
        key
    }

    /// What [`ask`](Tuple::ask) does, if the tuple [is exact](Tuple::is_exact).
    #[inline]
    pub(super) fn ask_exact(&self, flow: &Fields<A>) -> u64 {
        self.exact.prefetch(&flow.under(&self.mask))
    }

    /// What [`find`](Tuple::find) says of a flow that was asked for, if the tuple is exact.
    #[inline]
    pub(super) fn exact_asked(&self, flow: &Fields<A>, asked: u64) -> Option<&Policy> {
        self.exact.get_hashed(asked, &flow.under(&self.mask)).map(|policy| &**policy)
    }

    /// The same if it is not.
    #[inline]
    pub(super) fn compared_asked(&self, flow: &Fields<A>, asked: u64) -> Option<&Policy> {
        let found = self.compared.get(&asked).and_then(|bucket| first_match(bucket, flow, true));
        match found {
            None if !self.exact.is_empty() => self.find(flow, true).map(|found| found.policy),
            _ => found.map(|found| found.policy),
        }
    }

    /// The best policy here that selects a flow.
    #[inline]
    pub(super) fn find(&self, flow: &Fields<A>, whole: bool) -> Option<Found<'_>> {
        if !self.exact.is_empty()
            && let Some(policy) = self.exact.get(&flow.under(&self.mask))
        {
            return Some(Found { policy, rank: None });
        }
        match self.compared.is_empty() {
            true => None,
            false => first_match(self.compared.get(&self.key(flow))?, flow, whole),
        }
    }

    /// Every policy, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        let compared = self.compared.iter().flat_map(|(_, bucket)| rules_of(bucket));
        let exact = self.exact.iter().map(|(_, policy)| policy);
        exact.chain(compared.map(|rule| &rule.value))
    }

    /// Every policy with what it is compared by, in no order.
    pub(super) fn rules(&self) -> Vec<Rule<A>> {
        let exact = self.exact.iter().map(|(_, policy)| {
            let shape = Shape::of(&policy.config());
            // Where ports are not known, none count of a policy that has some.
            let shape = if self.mask.ports == 0 { shape.without_ports() } else { shape };
            rule(shape, policy.clone())
        });
        let compared = self.compared.iter().flat_map(|(_, bucket)| rules_of(bucket));
        exact.chain(compared.cloned()).collect()
    }

    /// See [`Table::settle`].
    pub(super) fn settle(&mut self) -> bool {
        self.exact.settle() | self.compared.settle()
    }

    /// What has the key of a shape, best first.
    fn rules_at(&self, shape: &Shape<A>) -> Vec<Rule<A>> {
        let fields = shape.value().under(&self.mask);
        // It looks at just the tuple's bits, and they are the same.
        let exact = self.exact.get(&fields).map(|policy| rule(*shape, policy.clone()));
        let bucket = self.compared.get(&self.key(&fields));
        exact.into_iter().chain(bucket.into_iter().flat_map(rules_of).cloned()).collect()
    }

    /// Sets what has the key of a shape.
    fn set(&mut self, shape: &Shape<A>, mut rules: Vec<Rule<A>>) {
        let fields = shape.value().under(&self.mask);
        let key = self.key(&fields);
        self.exact.remove(&fields);
        if rules.is_empty() {
            self.compared.remove(&key);
            return;
        }
        let first = rules.remove(0);
        if rules.is_empty() && !self.is_shared {
            self.compared.remove(&key);
            self.exact.insert(first.numbers.shape.value(), first.value);
            return;
        }
        let more = (!rules.is_empty()).then(|| Arc::new(rules.into_boxed_slice()));
        self.compared.insert(key, (first, more));
    }

    pub(super) fn insert(&mut self, rule: Rule<A>) {
        let (shape, rank) = (rule.numbers.shape, rule.numbers.rank());
        let mut rules = self.rules_at(&shape);
        self.best = self.best.min(rank);
        rules.push(rule);
        // Among equals the first that came.
        rules.sort_by_key(|rule| rule.numbers.rank());
        self.set(&shape, rules);
    }

    /// Removes the policy of a shape and an index.
    pub(super) fn remove(&mut self, shape: &Shape<A>, index: u32) -> Option<Arc<Policy>> {
        let mut rules = self.rules_at(shape);
        let is_it = |rule: &Rule<A>| rule.value.index() == index && rule.numbers.shape == *shape;
        let removed = rules.remove(rules.iter().position(is_it)?);
        self.set(shape, rules);
        self.removals += 1;
        // Exactness costs a scan; done this seldom, it costs each removal a constant.
        if self.removals > self.len() / 2 {
            self.removals = 0;
            let exact = self.exact.iter().map(|(_, policy)| policy.rank());
            let compared = self.compared.iter().map(|(_, bucket)| bucket.0.numbers.rank());
            self.best = exact.chain(compared).min().unwrap_or(self.best);
        }
        Some(removed.value)
    }
}
