//! The policies under one mask, in hash tables by the bits that it sees.
//!
//! A tuple of its own mask holds policies that look at just those bits: who has the key of one has met it.
//! A shared one holds policies that look at more, a few to a key. What the best of them selects lies in the
//! table itself, and is compared where it is found; the others are in a second table, which few packets
//! need. Of IPv4 two entries are a cache line in both kinds.

use std::hash::Hash;
use std::sync::Arc;

use foldhash::quality::RandomState;

use super::brief::{Brief, Tag, Tagged};
use super::fields::{Address, Fields, Shape, Words};
use crate::policy::{Policy, Rank};
use crate::table::{Beside, Home, Table, hash_one};

/// What a policy selects, and how it ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranked<A> {
    pub(super) shape: Shape<A>,
    priority: u32,
    position: u64,
}

/// A policy that is compared with.
pub(super) type Rule<A> = Beside<Ranked<A>, Arc<Policy>>;

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
    /// The best policies of all other tags.
    compared: Tagged<Brief<A>, Arc<Policy>>,
    /// The others, best first.
    behind: Tagged<Tag, Arc<Box<[Rule<A>]>>>,
    hasher: RandomState,
}

const _: () = assert!(Table::<Fields<u32>, Arc<Policy>>::LINE_LEN == 64);
const _: () = assert!(Table::<Fields<u128>, Arc<Policy>>::LINE_LEN == 128);
const _: () = assert!(Tagged::<Brief<u32>, Arc<Policy>>::LINE_LEN == 64);
const _: () = assert!(Tagged::<Brief<u128>, Arc<Policy>>::LINE_LEN == 128);

/// Where a look-up begins: in the table of keys that are alone, or in that of the best with each tag.
#[derive(Clone, Copy)]
pub(super) enum Place<'a, A> {
    Exact(u64, Home<'a, Fields<A>, Arc<Policy>, 2>),
    Compared(Tag, Home<'a, Brief<A>, Arc<Policy>, 2>),
}

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

/// Whether a policy selects a flow. With `whole` false only those without ports do.
#[inline]
fn selects_it<A: Address>(shape: &Shape<A>, flow: &Fields<A>, whole: bool) -> bool {
    shape.selects(flow) && (whole || !shape.has_ports())
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
            behind: Table::new(),
            hasher: RandomState::default(),
        }
    }

    /// Entries of its tables.
    pub(super) fn len(&self) -> usize {
        self.exact.len() + self.compared.len() + self.behind.len()
    }

    #[inline(always)]
    fn tag(&self, fields: &Fields<A>) -> Tag {
        Tag(hash_one(&self.hasher, &fields.under(&self.mask)) as u32)
    }

    /// The best policy with a tag, if what it selects can be told briefly.
    #[inline(always)]
    fn best_of(&self, tag: Tag) -> Option<(&Brief<A>, &Arc<Policy>)> {
        self.compared.find_hashed(tag.spread(), |brief| brief.tag == tag)
    }

    /// The others with that tag, or all.
    #[inline]
    fn behind(&self, tag: Tag) -> &[Rule<A>] {
        match self.behind.is_empty() {
            true => &[],
            false => self.behind.get(&tag).map_or(&[], |rules| rules),
        }
    }

    /// Policies that one with these fields would be compared with.
    pub(super) fn compared_with(&self, fields: &Fields<A>) -> usize {
        let tag = self.tag(fields);
        usize::from(self.best_of(tag).is_some()) + self.behind(tag).len()
    }

    /// Whether every key is of one policy that looks at just the tuple's bits.
    #[inline]
    pub(super) fn is_exact(&self) -> bool {
        self.compared.is_empty() && self.behind.is_empty()
    }

    /// Asks for the memory that a look-up will mostly read, and returns what it wants to know.
    #[inline(always)]
    pub(super) fn ask(&self, flow: &Fields<A>) -> u64 {
        // Out of what `ask_at` says, a received packet's policy is found in 7 cycles more.
        let hash = self.hash(flow);
        if self.is_exact() {
            self.exact.ask(hash);
            return hash;
        }
        let tag = Tag(hash as u32);
        self.compared.ask(tag.spread());
        if !self.behind.is_empty() {
            self.behind.ask(tag.spread());
        }
        hash
    }

    /// What [`ask`](Tuple::ask) returns: the hash of a key that is alone, or a tag.
    #[inline(always)]
    pub(super) fn hash(&self, flow: &Fields<A>) -> u64 {
        match self.is_exact() {
            true => self.exact.hash(&flow.under(&self.mask)),
            false => u64::from(self.tag(flow).0),
        }
    }

    /// What [`find`](Tuple::find) says of a flow with ports whose [hash](Tuple::hash) is known.
    #[inline(always)]
    pub(super) fn find_hashed(&self, flow: &Fields<A>, hash: u64) -> Option<&Policy> {
        if self.is_exact() {
            let found = self.exact.get_hashed(hash, &flow.under(&self.mask));
            return found.map(|policy| &**policy);
        }
        let tag = Tag(hash as u32);
        if let Some((brief, policy)) = self.best_of(tag)
            && brief.selects(flow)
        {
            return Some(policy);
        }
        self.find_beyond(flow, tag, true).map(|found| found.policy)
    }

    /// Asks for the memory that a look-up of a key, under the tuple's mask, will mostly read, and says where it is.
    #[inline(always)]
    pub(super) fn ask_at(&self, key: &impl Hash) -> Place<'_, A> {
        if self.is_exact() {
            let hash = self.exact.hash(key);
            return Place::Exact(hash, self.exact.ask(hash));
        }
        let tag = Tag(hash_one(&self.hasher, key) as u32);
        if !self.behind.is_empty() {
            self.behind.ask(tag.spread());
        }
        Place::Compared(tag, self.compared.ask(tag.spread()))
    }

    /// The best policy here that selects a flow. With `whole` false only those without ports count.
    #[inline]
    pub(super) fn find(&self, flow: &Fields<A>, whole: bool) -> Option<Found<'_>> {
        if self.is_exact() {
            let policy = self.exact.get(&flow.under(&self.mask))?;
            return Some(Found { policy, rank: None });
        }
        let tag = self.tag(flow);
        if let Some((brief, policy)) = self.best_of(tag)
            && selects_it(&brief.shape(), flow, whole)
        {
            return Some(Found { policy, rank: None });
        }
        self.find_beyond(flow, tag, whole)
    }

    /// The same if it is not the best with its tag: one of the others with that, or alone with its key, which
    /// may have the tag of another.
    #[inline(never)]
    fn find_beyond(&self, flow: &Fields<A>, tag: Tag, whole: bool) -> Option<Found<'_>> {
        if !self.exact.is_empty()
            && let Some(policy) = self.exact.get(&flow.under(&self.mask))
        {
            return Some(Found { policy, rank: None });
        }
        let is_it = |rule: &&Rule<A>| selects_it(&rule.numbers.shape, flow, whole);
        let rule = self.behind(tag).iter().find(is_it)?;
        Some(Found { policy: &rule.value, rank: Some(rule.numbers.rank()) })
    }

    /// Every policy, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        let exact = self.exact.iter().map(|(_, policy)| policy);
        let compared = self.compared.iter().map(|(_, policy)| policy);
        let behind = self.behind.iter().flat_map(|(_, rules)| rules.iter());
        exact.chain(compared).chain(behind.map(|rule| &rule.value))
    }

    /// Every policy with what it is compared by, in no order.
    pub(super) fn rules(&self) -> Vec<Rule<A>> {
        let exact = self.exact.iter().map(|(_, policy)| {
            let shape = Shape::of(&policy.config());
            // Where ports are not known, none count of a policy that has some.
            let shape = if self.mask.ports == 0 { shape.without_ports() } else { shape };
            rule(shape, policy.clone())
        });
        let compared = self.compared.iter();
        let compared = compared.map(|(brief, policy)| rule(brief.shape(), policy.clone()));
        let behind = self.behind.iter().flat_map(|(_, rules)| rules.iter().cloned());
        exact.chain(compared).chain(behind).collect()
    }

    /// See [`Table::settle`].
    pub(super) fn settle(&mut self) -> bool {
        self.exact.settle() | self.compared.settle() | self.behind.settle()
    }

    /// What has the key of a shape, or its tag, best first.
    fn rules_at(&self, shape: &Shape<A>) -> Vec<Rule<A>> {
        let fields = shape.value().under(&self.mask);
        // It looks at just the tuple's bits, and they are the same.
        let exact = self.exact.get(&fields).map(|policy| rule(*shape, policy.clone()));
        let tag = self.tag(&fields);
        let best = self.best_of(tag).map(|(brief, policy)| rule(brief.shape(), policy.clone()));
        exact.into_iter().chain(best).chain(self.behind(tag).iter().cloned()).collect()
    }

    /// Sets what has the key of a shape, or its tag, best first.
    fn set(&mut self, shape: &Shape<A>, mut rules: Vec<Rule<A>>) {
        let fields = shape.value().under(&self.mask);
        let tag = self.tag(&fields);
        self.exact.remove(&fields);
        if rules.len() == 1 && !self.is_shared {
            let alone = rules.remove(0);
            self.exact.insert(alone.numbers.shape.value(), alone.value);
        }
        match rules.first().and_then(|best| Brief::of(&best.numbers.shape, tag)) {
            Some(brief) => drop(self.compared.insert(brief, rules.remove(0).value)),
            None => drop(self.compared.remove(&Brief::with(shape, tag))),
        }
        match rules.is_empty() {
            false => drop(self.behind.insert(tag, Arc::new(rules.into_boxed_slice()))),
            true => drop(self.behind.remove(&tag)),
        }
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
            let best = self.iter().map(|policy| policy.rank()).min();
            self.best = best.unwrap_or(self.best);
        }
        Some(removed.value)
    }
}

impl Tuple<u32> {
    /// What [`find`](Tuple::find) says of a flow with ports whose place is known.
    #[inline(always)]
    pub(super) fn find_at<'a>(&'a self, flow: Words, place: Place<'a, u32>) -> Option<&'a Policy> {
        match place {
            Place::Exact(hash, home) => {
                let key = flow.fields().under(&self.mask);
                let found = self.exact.find_from(home, hash, |found| *found == key);
                found.map(|(_, policy)| &**policy)
            }
            Place::Compared(tag, home) => {
                let best = self.compared.find_from(home, tag.spread(), |brief| brief.tag == tag);
                match best {
                    Some((brief, policy)) if brief.selects(&flow.fields()) => Some(policy),
                    _ => self.find_words_beyond(flow, tag),
                }
            }
        }
    }

    // With the fields in memory only here.
    #[inline(never)]
    fn find_words_beyond(&self, flow: Words, tag: Tag) -> Option<&Policy> {
        self.find_beyond(&flow.fields(), tag, true).map(|found| found.policy)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::policy::{Direction, PolicyConfig};
    use crate::prefix::{Family, Prefix};
    use crate::selector::{PortMatch, Selector};

    /// A policy for one address and those ports.
    fn policy(index: u32, address: u32, port: PortMatch) -> PolicyConfig {
        let selector = Selector {
            destination: Prefix::host(Ipv4Addr::from_bits(address).into()),
            destination_port: port,
            ..Selector::any(Family::V4)
        };
        let config = PolicyConfig::bypass(index, Direction::Out, selector);
        PolicyConfig { priority: index % 3, position: u64::from(index), ..config }
    }

    fn value(address: u32, port: u16) -> Fields<u32> {
        Shape::of(&policy(0, address, PortMatch::exactly(port))).value()
    }

    /// Three addresses of which two have one tag.
    fn addresses(tuple: &Tuple<u32>) -> [u32; 3] {
        let mut seen = HashMap::new();
        for address in 1..u32::MAX {
            let tag = tuple.tag(&value(address, 0));
            if let Some(other) = seen.insert(tag.0, address) {
                return [other, address, 0];
            }
        }
        unreachable!("there are as many addresses as tags");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn keys_with_one_tag_are_told_apart(
            is_shared in any::<bool>(),
            steps in prop::collection::vec((0..3usize, 0..4u32), 1..60),
        ) {
            let mask = Shape::<u32>::of(&policy(0, 0, PortMatch::ANY)).mask();
            let mut tuple = Tuple::new(mask, is_shared);
            let addresses = addresses(&tuple);
            let mut twin: Vec<PolicyConfig> = Vec::new();
            for (at, nth) in steps {
                // Of its own mask a tuple has policies that look at no ports; a shared one any, also at some bits.
                let port = match nth {
                    1 | 2 if is_shared => PortMatch::exactly(nth as u16),
                    3 if is_shared => PortMatch { port: 0, mask: 0xfffe },
                    _ => PortMatch::ANY,
                };
                let config = policy(4 * at as u32 + nth, addresses[at], port);
                let shape = Shape::of(&config);
                match twin.iter().position(|known| *known == config) {
                    Some(place) => {
                        twin.remove(place);
                        let removed = tuple.remove(&shape, config.index);
                        prop_assert_eq!(removed.map(|policy| policy.index()), Some(config.index));
                    }
                    None => {
                        tuple.insert(rule(shape, Arc::new(Policy::new(config.clone()))));
                        twin.push(config);
                    }
                }
                prop_assert_eq!(tuple.iter().count(), twin.len());
                prop_assert_eq!(tuple.rules().len(), twin.len());
                prop_assert_eq!(tuple.len() == 0, twin.is_empty());
                for (address, port) in addresses.iter().flat_map(|one| [0, 1, 2, 9].map(|p| (*one, p))) {
                    let flow = value(address, port);
                    let selecting = twin.iter().filter(|one| Shape::of(one).selects(&flow));
                    let best = selecting.min_by_key(|one| (one.priority, one.position));
                    let best = best.map(|one| one.index);
                    let found = tuple.find(&flow, true).map(|found| found.policy.index());
                    prop_assert_eq!(found, best);
                    let asked = tuple.ask(&flow);
                    let found = tuple.find_hashed(&flow, asked).map(|policy| policy.index());
                    prop_assert_eq!(found, best);
                    let words = Words::of(&flow);
                    let place = tuple.ask_at(&words.under(Words::of(&tuple.mask)));
                    let found = tuple.find_at(words, place).map(|policy| policy.index());
                    prop_assert_eq!(found, best);
                }
            }
        }
    }
}
