//! The policies under one mask, in hash tables by the bits that it sees.
//!
//! A tuple of its own mask holds policies that look at just those bits. A shared one holds policies that look at
//! more, a few to a key. In either the best policy with each tag is in one table, the others in a second, which few
//! packets need.
//!
//! ```text
//!          ┌─ a cache line ─────────────────────────────────────┐       ┌─ a cache line ────────────────────┐
//!  tag ──▶ │ tag tag tag tag tag │ policy policy policy … ──────┼─────▶ │ what it selects, does, and counts │
//!          └────────────────────────────────────────────────────┘       └───────────────────────────────────┘
//! ```
//!
//! A policy of IPv4 says itself what it selects, in the line that it is counted in anyway: the table has but its
//! tag, five to a line, so that the tables of 10 000 policies stay in a core's own cache. A look-up *presumes* the
//! policy that has the tag, asks for its memory, and *confirms* once that is there. Of IPv6, and of what is found
//! without its ports, the table has what the best selects, and compares it at once.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use foldhash::quality::RandomState;

use super::tag::{Tag, Tagged};
use crate::cpu::Cache;
use crate::policy::{Address, Brief, Fields, Policy, Rank, Shape, is_brief};
use crate::table::{Beside, Table, hash_one};

/// What a policy selects, and how it ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranked<A> {
    pub(super) shape: Shape<A>,
    priority: u32,
    position: u64,
}

/// A policy that is compared with.
pub(super) type Rule<A> = Beside<Ranked<A>, Arc<Policy>>;

/// What a policy selects, by its tag: in a table there is one with each.
type Told<A> = Brief<A, Tag>;

impl<A> PartialEq for Told<A> {
    fn eq(&self, other: &Told<A>) -> bool {
        self.beside == other.beside
    }
}

impl<A> Eq for Told<A> {}

impl<A> Hash for Told<A> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.beside.hash(state);
    }
}

/// Of policies that differ, two have one tag by chance: among 10 000 in one database of eighty, among 50 000 in four of ten. What
/// is behind so few tags stays in the cache, and no packet asks for it.
const FEW_BEHIND: usize = 16;

/// Policies that tell what they select, by their tags.
pub(super) type Telling = Tagged<Tag, Arc<Policy>, 5>;

/// The best policy with each tag.
#[derive(Clone)]
enum Best<A> {
    Telling(Telling),
    Told(Tagged<Told<A>, Arc<Policy>>),
}

const _: () = assert!(Telling::LINE_LEN == 64);
const _: () = assert!(Tagged::<Told<u128>, Arc<Policy>>::LINE_LEN == 128);

/// The policies with a tag but the best. Mostly it is one, which lies where the table leads to.
struct Behind<A> {
    best: Rule<A>,
    /// Those that rank worse, best first.
    others: Box<[Rule<A>]>,
}

impl<A> Behind<A> {
    /// Those of rules, best first; `None` if there are none.
    fn of(rules: Vec<Rule<A>>) -> Option<Behind<A>> {
        let mut rules = rules.into_iter();
        rules.next().map(|best| Behind { best, others: rules.collect() })
    }

    fn iter(&self) -> impl Iterator<Item = &Rule<A>> {
        std::iter::once(&self.best).chain(&self.others)
    }
}

/// All policies under one mask.
#[derive(Clone)]
pub(super) struct Tuple<A> {
    pub(super) mask: Fields<A>,
    /// Whether it is for policies of other masks, too.
    pub(super) is_shared: bool,
    /// No policy here ranks better. May be better than the best, after removals.
    pub(super) best: Rank,
    /// None ranks worse. May be worse than the worst.
    pub(super) worst: Rank,
    /// Removals since both were exact.
    removals: usize,
    by_tag: Best<A>,
    /// The others with each tag.
    behind: Tagged<Tag, Arc<Behind<A>>>,
    hasher: RandomState,
}

/// A policy that was found.
#[derive(Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) policy: &'a Policy,
    /// If it is known without reading the policy.
    rank: Option<Rank>,
}

impl Found<'_> {
    /// How it ranks beside another. The position is elsewhere in memory, and read only where priorities are the same.
    pub(super) fn compare(&self, priority: u32, position: impl FnOnce() -> u64) -> Ordering {
        self.priority().cmp(&priority).then_with(|| self.position().cmp(&position()))
    }

    pub(super) fn priority(&self) -> u32 {
        self.rank.map_or_else(|| self.policy.priority(), |(priority, _)| priority)
    }

    pub(super) fn position(&self) -> u64 {
        self.rank.map_or_else(|| self.policy.position(), |(_, position)| position)
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

impl<A: Address> Best<A> {
    /// The policy with a tag, and what it selects.
    #[inline]
    fn get(&self, tag: Tag) -> Option<(Shape<A>, &Arc<Policy>)> {
        match self {
            Best::Telling(policies) => {
                let policy = policies.get(&tag)?;
                Some((A::told_by(policy)?, policy))
            }
            Best::Told(told) => {
                let (told, policy) = told.find_hashed(tag.spread(), |told| told.beside == tag)?;
                Some((told.shape(), policy))
            }
        }
    }

    /// The policy that presumably selects a flow with ports: certainly where the table has what it selects.
    #[inline(always)]
    fn presume(&self, flow: &Fields<A>, tag: Tag) -> Option<&Policy> {
        match self {
            Best::Telling(policies) => {
                let found = policies.find_hashed(tag.spread(), |found| *found == tag);
                found.map(|(_, policy)| &**policy)
            }
            Best::Told(told) => {
                let (told, policy) = told.find_hashed(tag.spread(), |told| told.beside == tag)?;
                told.selects(flow).then_some(policy)
            }
        }
    }

    /// Whether the policy that was presumed selects the flow.
    #[inline(always)]
    fn confirms(&self, policy: &Policy, flow: &Fields<A>) -> bool {
        match self {
            Best::Telling(_) => A::is_told(policy, flow),
            Best::Told(_) => true,
        }
    }

    /// Whether a rule may be the best with its tag.
    fn takes(&self, rule: &Rule<A>) -> bool {
        match self {
            Best::Telling(_) => A::told_by(&rule.value).is_some(),
            Best::Told(_) => is_brief(&rule.numbers.shape),
        }
    }

    /// Sets the policy with the tag of a shape, to one that it takes, or to none.
    fn set(&mut self, tag: Tag, shape: &Shape<A>, best: Option<Rule<A>>) {
        match (self, best) {
            (Best::Telling(policies), Some(best)) => drop(policies.insert(tag, best.value)),
            (Best::Telling(policies), None) => drop(policies.remove(&tag)),
            (Best::Told(told), Some(best)) => {
                drop(told.insert(Brief::with(&best.numbers.shape, tag), best.value));
            }
            (Best::Told(told), None) => drop(told.remove(&Brief::with(shape, tag))),
        }
    }

    /// Asks for the memory that a look-up will mostly read.
    #[inline(always)]
    fn ask(&self, tag: Tag, cache: Cache) {
        match self {
            Best::Telling(policies) => {
                policies.ask(tag.spread(), cache);
            }
            Best::Told(told) => {
                told.ask(tag.spread(), cache);
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Best::Telling(policies) => policies.len(),
            Best::Told(told) => told.len(),
        }
    }

    fn settle(&mut self) -> bool {
        match self {
            Best::Telling(policies) => policies.settle(),
            Best::Told(told) => told.settle(),
        }
    }

    /// Every policy with what it selects, in no order.
    fn iter(&self) -> impl Iterator<Item = (Shape<A>, &Arc<Policy>)> {
        let (telling, told) = match self {
            Best::Telling(policies) => (Some(policies), None),
            Best::Told(told) => (None, Some(told)),
        };
        let telling = telling.into_iter().flat_map(Table::iter);
        let telling =
            telling.filter_map(|(_, policy)| A::told_by(policy).map(|shape| (shape, policy)));
        let told = told.into_iter().flat_map(Table::iter);
        telling.chain(told.map(|(told, policy)| (told.shape(), policy)))
    }
}

impl<A: Address> Tuple<A> {
    /// No policies under a mask; whether each that will come says itself what it is found by.
    pub(super) fn new(mask: Fields<A>, is_shared: bool, all_tell: bool) -> Tuple<A> {
        let by_tag = match all_tell {
            true => Best::Telling(Table::new()),
            false => Best::Told(Table::new()),
        };
        Tuple {
            mask,
            is_shared,
            best: (u32::MAX, u64::MAX),
            worst: (0, 0),
            removals: 0,
            by_tag,
            behind: Table::new(),
            hasher: RandomState::default(),
        }
    }

    /// Entries of its tables.
    pub(super) fn len(&self) -> usize {
        self.by_tag.len() + self.behind.len()
    }

    /// The best policy with each tag, if all that will come tell what they select.
    pub(super) fn telling(&self) -> Option<&Telling> {
        match &self.by_tag {
            Best::Telling(policies) => Some(policies),
            Best::Told(_) => None,
        }
    }

    /// What a flow's, or a shape's, policies are found by.
    #[inline(always)]
    pub(super) fn tag(&self, fields: &Fields<A>) -> Tag {
        self.tag_of(&fields.under(&self.mask))
    }

    /// The same of a key, which is under the tuple's mask.
    #[inline(always)]
    pub(super) fn tag_of(&self, key: &impl Hash) -> Tag {
        Tag(hash_one(&self.hasher, key) as u32)
    }

    /// All but the best with a tag, or all.
    #[inline]
    fn behind(&self, tag: Tag) -> Option<&Behind<A>> {
        if self.behind.is_empty() { None } else { self.behind.get(&tag).map(|rules| &**rules) }
    }

    /// The same, best first.
    fn rules_behind(&self, tag: Tag) -> impl Iterator<Item = &Rule<A>> {
        self.behind(tag).into_iter().flat_map(Behind::iter)
    }

    /// Whether so many tags have more policies than the best that their memory is worth being asked for.
    pub(super) fn has_many_behind(&self) -> bool {
        self.behind.len() > FEW_BEHIND
    }

    /// Whether no policy has a tag but the best.
    pub(super) fn has_none_behind(&self, tag: Tag) -> bool {
        self.behind(tag).is_none()
    }

    /// Policies that one with these fields would be compared with.
    pub(super) fn compared_with(&self, fields: &Fields<A>) -> usize {
        let tag = self.tag(fields);
        usize::from(self.by_tag.get(tag).is_some()) + self.rules_behind(tag).count()
    }

    /// Asks for the memory that a look-up will mostly read, and returns the tag that it wants to know.
    #[inline(always)]
    pub(super) fn ask(&self, flow: &Fields<A>, cache: Cache) -> Tag {
        let tag = self.tag(flow);
        self.by_tag.ask(tag, cache);
        self.ask_behind(tag, cache);
        tag
    }

    /// Asks for the memory of all but the best with a tag, if there are many such.
    #[inline(always)]
    pub(super) fn ask_behind(&self, tag: Tag, cache: Cache) {
        if self.has_many_behind() {
            self.behind.ask(tag.spread(), cache);
        }
    }

    /// The policy that presumably is the best which selects a flow with ports, once the memory has come.
    #[inline(always)]
    pub(super) fn presume(&self, flow: &Fields<A>, tag: Tag) -> Option<&Policy> {
        self.by_tag.presume(flow, tag)
    }

    /// The best policy here that selects a flow with ports; `presumed` is what [`presume`](Tuple::presume) says.
    #[inline(always)]
    pub(super) fn confirm<'a>(
        &'a self,
        flow: &Fields<A>,
        tag: Tag,
        presumed: Option<&'a Policy>,
    ) -> Option<&'a Policy> {
        match presumed {
            Some(policy) if self.by_tag.confirms(policy, flow) => Some(policy),
            _ => self.find_behind(flow, tag, true).map(|found| found.policy),
        }
    }

    /// The best policy here that selects a flow. With `whole` false only those without ports count.
    #[inline]
    pub(super) fn find(&self, flow: &Fields<A>, whole: bool) -> Option<Found<'_>> {
        let tag = self.tag(flow);
        match self.by_tag.presume(flow, tag) {
            Some(policy)
                if self.by_tag.confirms(policy, flow) && (whole || !policy.is_by_ports()) =>
            {
                Some(Found { policy, rank: None })
            }
            _ => self.find_behind(flow, tag, whole),
        }
    }

    /// The same if it is not the best with its tag.
    #[inline(never)]
    pub(super) fn find_behind(&self, flow: &Fields<A>, tag: Tag, whole: bool) -> Option<Found<'_>> {
        let is_it = |rule: &&Rule<A>| selects_it(&rule.numbers.shape, flow, whole);
        let rule = self.behind(tag)?.iter().find(is_it)?;
        Some(Found { policy: &rule.value, rank: Some(rule.numbers.rank()) })
    }

    /// Every policy, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        let best = self.by_tag.iter().map(|(_, policy)| policy);
        best.chain(self.all_behind().map(|rule| &rule.value))
    }

    fn all_behind(&self) -> impl Iterator<Item = &Rule<A>> {
        self.behind.iter().flat_map(|(_, rules)| rules.iter())
    }

    /// Every policy with what it is compared by, in no order.
    pub(super) fn rules(&self) -> Vec<Rule<A>> {
        let best = self.by_tag.iter().map(|(shape, policy)| rule(shape, policy.clone()));
        best.chain(self.all_behind().cloned()).collect()
    }

    /// See [`Table::settle`].
    pub(super) fn settle(&mut self) -> bool {
        self.by_tag.settle() | self.behind.settle()
    }

    /// What has a tag, best first.
    fn rules_at(&self, tag: Tag) -> Vec<Rule<A>> {
        let best = self.by_tag.get(tag).map(|(shape, policy)| rule(shape, policy.clone()));
        best.into_iter().chain(self.rules_behind(tag).cloned()).collect()
    }

    /// Sets what has the tag of a shape, best first.
    fn set(&mut self, tag: Tag, shape: &Shape<A>, mut rules: Vec<Rule<A>>) {
        let is_taken = rules.first().is_some_and(|best| self.by_tag.takes(best));
        self.by_tag.set(tag, shape, is_taken.then(|| rules.remove(0)));
        match Behind::of(rules) {
            Some(behind) => drop(self.behind.insert(tag, Arc::new(behind))),
            None => drop(self.behind.remove(&tag)),
        }
    }

    pub(super) fn insert(&mut self, rule: Rule<A>) {
        let (shape, rank) = (rule.numbers.shape, rule.numbers.rank());
        let tag = self.tag(&shape.value());
        let mut rules = self.rules_at(tag);
        self.best = self.best.min(rank);
        self.worst = self.worst.max(rank);
        rules.push(rule);
        // Among equals the first that came.
        rules.sort_by_key(|rule| rule.numbers.rank());
        self.set(tag, &shape, rules);
    }

    /// Removes the policy of a shape and an index.
    pub(super) fn remove(&mut self, shape: &Shape<A>, index: u32) -> Option<Arc<Policy>> {
        let tag = self.tag(&shape.value());
        let mut rules = self.rules_at(tag);
        let is_it = |rule: &Rule<A>| rule.value.index() == index && rule.numbers.shape == *shape;
        let removed = rules.remove(rules.iter().position(is_it)?);
        self.set(tag, shape, rules);
        self.removals += 1;
        // Exactness costs a scan; done this seldom, it costs each removal a constant.
        if self.removals > self.len() / 2 {
            self.removals = 0;
            let ranks = || self.iter().map(|policy| policy.rank());
            let (best, worst) = (ranks().min(), ranks().max());
            self.best = best.unwrap_or(self.best);
            self.worst = worst.unwrap_or(self.worst);
        }
        Some(removed.value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::Ipv4Addr;

    use proptest::prelude::*;
    use wire::flow::{Flow, Fragment};

    use super::super::tests::datagram;
    use super::super::{DefaultAction, Lookup, Many};
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

    #[test]
    fn what_lies_behind_is_asked_for_where_there_is_much_of_it() {
        let mask = Shape::<u32>::of(&policy(0, 0, PortMatch::ANY)).mask();
        let mut tuple = Tuple::new(mask, false, true);
        let addresses = 1..=2 * FEW_BEHIND as u32;
        for last in addresses.clone() {
            for index in [3 * last, 3 * last + 1] {
                let config = policy(index, last, PortMatch::ANY);
                tuple.insert(rule(Shape::of(&config), Arc::new(Policy::new(config))));
            }
            assert_eq!(tuple.has_many_behind(), last as usize > FEW_BEHIND);
            let many = Many::of_one(&tuple, &mask, DefaultAction::Accept).unwrap();
            for address in addresses.clone() {
                let flow = datagram([0; 4], address.to_be_bytes(), 0, Fragment::Whole);
                let asked = many.ask(many.flow(&flow).unwrap(), Cache::First);
                let found = many.lookup(asked, many.presume(asked, Cache::First));
                let found = match found {
                    Lookup::Policy(policy) => Some(policy.index()),
                    _ => None,
                };
                assert_eq!(found, (address <= last).then_some(3 * address));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn keys_with_one_tag_are_told_apart(
            is_shared in any::<bool>(),
            all_tell in any::<bool>(),
            steps in prop::collection::vec((0..3usize, 0..4u32), 1..60),
        ) {
            let mask = Shape::<u32>::of(&policy(0, 0, PortMatch::ANY)).mask();
            let mut tuple = Tuple::new(mask, is_shared, all_tell);
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
                    let asked = tuple.ask(&flow, Cache::First);
                    let presumed = tuple.presume(&flow, asked);
                    let found = tuple.confirm(&flow, asked, presumed).map(|policy| policy.index());
                    prop_assert_eq!(found, best);
                    if let Some(many) = Many::of_one(&tuple, &mask, DefaultAction::Accept) {
                        let flow = datagram([0; 4], address.to_be_bytes(), 0, Fragment::Whole);
                        let question = many.flow(&Flow { dst_port: port, ..flow }).unwrap();
                        let asked = many.ask(question, Cache::First);
                        let found = match many.lookup(asked, many.presume(asked, Cache::First)) {
                            Lookup::Policy(policy) => Some(policy.index()),
                            _ => None,
                        };
                        prop_assert_eq!(found, best);
                    }
                }
            }
        }
    }
}
