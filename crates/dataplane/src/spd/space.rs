//! The policies of one direction and family, in tables by the bits that their selectors look at.
//!
//! Method: tuple space search (Srinivasan, Suri, Varghese, SIGCOMM 1999), and where selectors look at
//! more than a few different bits TupleMerge (Daly, Bruschi, Linguaglossa, Pontarelli, Rossi, Tollet, Torng,
//! Yourtchenko, ToN 2019): a *tuple* is a hash table under one mask, and a policy may lie in one whose
//! mask sees fewer bits than its selector, among a few others that are compared one by one. A look-up
//! probes the tuples in the order of the best rank that each may hold, and stops at the first that cannot
//! better what was found.
//!
//! TupleMerge makes masks finer where too many policies meet, and never goes back, so that those remain
//! which the first policies happened to ask for. Here each new mask begins coarse, and takes over what few
//! policies those before it have: fifty thousand policies of two thousand masks end in one tuple, or in two.
//! A gateway whose policies have up to four shapes has a table for each.
//!
//! Policies that may all decide one flow, as prefixes and ranges of ports that nest around one pair of networks do, no mask
//! tells apart. Of those a tuple takes as many as there are tuples: both grow with the root of their number.

use std::sync::Arc;

use wire::flow::Flow;

use super::tag::Tag;
use super::tuple::{Found, Tuple, rule};
use crate::cpu::Cache;
use crate::policy::{Address, Fields, Policy, Rank, Shape};

/// Tuples up to which every mask has one of its own; only beyond are they merged. Each that is probed in
/// vain takes a line from the third level cache, some 20 ns, where there are many policies.
const OWN_TUPLES: usize = 4;

/// Policies that are compared one by one in a merged tuple: so many, or where there are more tuples as many as there are.
/// Eight lie in as many cache lines, one behind the other; with fewer, more masks get tuples of their own. With no
/// more than eight, 1089 policies that may all decide one flow would be in 136 tuples instead of 35.
const COMPARED_MIN: usize = 8;

/// Keys up to which the policies of other tuples are moved when there is a new one, the fewest first. A
/// hundred take the time of some ten requests, and there are new masks seldom. A tuple with more is worth
/// its probe.
const MOVED_MAX: usize = 128;

/// Tuples up to which policies are moved for each new one. Beyond, most of those that make so many do not fit elsewhere.
const ALWAYS_MOVED: usize = 16;

/// New tuples for which nothing is moved after one for which it was in vain, where there are more. With fewer, a policy of a
/// large nest takes longer to install, with more there are more tuples.
const NOT_MOVED: usize = 8;

/// Tuples ordered by their best rank.
#[derive(Clone)]
pub(super) struct Space<A> {
    tuples: Vec<Tuple<A>>,
    /// Every bit that any policy here looks at, or looked at before it was removed.
    seen: Fields<A>,
    /// Whether every policy is found by just what it says itself that it selects: not where that is without ports.
    all_tell: bool,
    /// New tuples until policies are moved again, where there are many.
    not_moved: usize,
}

impl<A: Address> Space<A> {
    /// No policies; whether each will be found by just what it says itself.
    pub(super) fn new(all_tell: bool) -> Space<A> {
        Space { tuples: Vec::new(), seen: Fields::none(), all_tell, not_moved: 0 }
    }

    /// The best policy that matches a flow, if it ranks better than `than`. With `whole` false the ports
    /// are not known: only policies without ports count.
    pub(super) fn best<'a>(
        &'a self,
        flow: &Fields<A>,
        whole: bool,
        than: Option<Found<'a>>,
    ) -> Option<Found<'a>> {
        let mut bound = than;
        let mut found = None;
        for tuple in &self.tuples {
            let (priority, position) = tuple.best;
            if bound.is_some_and(|bound| bound.compare(priority, || position).is_le()) {
                break;
            }
            if !whole && tuple.mask.ports != 0 {
                continue;
            }
            if let Some(candidate) = tuple.find(flow, whole)
                && bound.is_none_or(|bound| {
                    candidate.compare(bound.priority(), || bound.position()).is_lt()
                })
            {
                bound = Some(candidate);
                found = Some(candidate);
            }
        }
        found
    }

    /// The policy that presumably is the best which matches a flow with ports in the tunnel of an `if_id`, which
    /// [`ask`](Space::ask) was told of; asks for its memory. Of several tables none is presumed.
    #[inline(always)]
    pub(super) fn presume(
        &self,
        if_id: u32,
        flow: &Flow,
        asked: Tag,
        cache: Cache,
    ) -> Option<&Policy> {
        let presumed = self.only()?.presume(&Fields::of(flow, if_id), asked);
        presumed.inspect(|policy| policy.prefetch(cache))
    }

    /// The best policy that matches that flow, of which [`presume`](Space::presume) has said what is presumed.
    #[inline(always)]
    pub(super) fn best_asked<'a>(
        &'a self,
        if_id: u32,
        flow: &Flow,
        asked: Tag,
        presumed: Option<&'a Policy>,
    ) -> Option<&'a Policy> {
        match &self.tuples[..] {
            [] => None,
            [only] => only.confirm(&Fields::of(flow, if_id), asked, presumed),
            _ => self.best_of_many(&Fields::of(flow, if_id)),
        }
    }

    /// The same of a flow that nothing was asked for.
    #[inline(always)]
    pub(super) fn best_whole<'a>(&'a self, flow: &Fields<A>) -> Option<&'a Policy> {
        match &self.tuples[..] {
            [] => None,
            [only] => {
                let tag = only.tag(flow);
                only.confirm(flow, tag, only.presume(flow, tag))
            }
            _ => self.best_of_many(flow),
        }
    }

    #[inline(never)]
    fn best_of_many<'a>(&'a self, flow: &Fields<A>) -> Option<&'a Policy> {
        self.best(flow, true, None).map(|found| found.policy)
    }

    /// Asks for the memory that a look-up reads in the tuples it asks first; what
    /// [`best_asked`](Space::best_asked) wants to know.
    #[inline(always)]
    pub(super) fn ask(&self, if_id: u32, flow: &Flow, cache: Cache) -> Tag {
        match &self.tuples[..] {
            [] => Tag(0),
            [only] => only.ask(&Fields::of(flow, if_id), cache),
            _ => self.ask_many(if_id, flow, cache),
        }
    }

    #[inline(never)]
    fn ask_many(&self, if_id: u32, flow: &Flow, cache: Cache) -> Tag {
        let flow = Fields::of(flow, if_id);
        let ask = |_, tuple: &Tuple<A>| tuple.ask(&flow, cache);
        self.tuples.iter().take(OWN_TUPLES).fold(Tag(0), ask)
    }

    /// Asks for the memory that a look-up may read in any tuple.
    pub(super) fn ask_everywhere(&self, if_id: u32, flow: &Flow, cache: Cache) {
        let flow = Fields::of(flow, if_id);
        for tuple in &self.tuples {
            tuple.ask(&flow, cache);
        }
    }

    /// The one table in which every look-up is made, if there is just one.
    #[inline]
    pub(super) fn only(&self) -> Option<&Tuple<A>> {
        match &self.tuples[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// The table that has the best policy, or had it.
    #[inline]
    pub(super) fn first(&self) -> Option<&Tuple<A>> {
        self.tuples.first()
    }

    /// Asks for the memory that [`presume_of_many`](Space::presume_of_many) reads in all tables but the first.
    #[inline(never)]
    pub(super) fn ask_others(&self, flow: &Fields<A>, cache: Cache) {
        for tuple in self.tuples.iter().skip(1) {
            tuple.ask(flow, cache);
        }
    }

    /// The policy that is the best which matches a flow with ports if it matches it at all: no table has another with the flow's
    /// tag that may rank better. In the first that is this. Asks for the memory of the policies that it comes upon.
    #[inline(never)]
    pub(super) fn presume_of_many(
        &self,
        flow: &Fields<A>,
        first: Tag,
        cache: Cache,
    ) -> Option<&Policy> {
        let mut presumed: Option<(&Policy, Rank)> = None;
        let mut is_clear = true;
        for (at, tuple) in self.tuples.iter().enumerate() {
            // So it is of those behind, too.
            if presumed.is_some_and(|(_, worst)| worst < tuple.best) {
                break;
            }
            let tag = if at == 0 { first } else { tuple.tag(flow) };
            match tuple.presume(flow, tag) {
                Some(policy) => {
                    policy.prefetch(cache);
                    is_clear &= presumed.replace((policy, tuple.worst)).is_none();
                }
                None => is_clear &= tuple.has_none_behind(tag),
            }
        }
        presumed.filter(|_| is_clear).map(|(policy, _)| policy)
    }

    /// Every bit that policies look at: flows that differ in none are decided alike.
    #[inline]
    pub(super) fn seen(&self) -> &Fields<A> {
        &self.seen
    }

    /// Whether a policy here decides every flow in its tunnel, as it looks at nothing else and none of those
    /// that look at more ranks better.
    pub(super) fn is_for_all(&self, policy: &Policy) -> bool {
        let looks_at_tunnels = |tuple: &Tuple<A>| !tuple.is_shared && tuple.mask.is_of_tunnels();
        // None that is in another tuple ranks better than that's best.
        let is_best = |tuple: &Tuple<A>| looks_at_tunnels(tuple) || policy.rank() < tuple.best;
        self.tuples.iter().any(looks_at_tunnels) && self.tuples.iter().all(is_best)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tuples.is_empty()
    }

    /// How many tables a look-up may ask.
    pub(super) fn tuples(&self) -> usize {
        self.tuples.len()
    }

    /// See [`Table::settle`](crate::table::Table::settle).
    pub(super) fn settle(&mut self) -> bool {
        self.tuples.iter_mut().fold(false, |done, tuple| tuple.settle() | done)
    }

    /// Every policy, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.tuples.iter().flat_map(Tuple::iter)
    }

    pub(super) fn insert(&mut self, shape: &Shape<A>, policy: Arc<Policy>) {
        self.seen = self.seen.with(&shape.mask());
        let mask = match self.place(shape) {
            Some(place) => self.tuples[place].mask,
            None => self.make(shape),
        };
        // What was moved to make room may have changed the order, and the tuples' places.
        if let Some(tuple) = self.tuples.iter_mut().find(|tuple| tuple.mask == mask) {
            tuple.insert(rule(*shape, policy));
        }
        self.tuples.sort_by_key(|tuple| tuple.best);
    }

    /// Removes the policy of an index.
    pub(super) fn remove(&mut self, shape: &Shape<A>, index: u32) -> Option<Arc<Policy>> {
        let (place, removed) = (0..self.tuples.len())
            .filter(|place| sees_no_more(&self.tuples[*place], &shape.mask()))
            .collect::<Vec<_>>()
            .into_iter()
            .find_map(|place| Some((place, self.tuples[place].remove(shape, index)?)))?;
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

    /// The tuple for one more policy of a shape, if there is one for it: that of its own mask, and as soon
    /// as there are more than a few, of the shared ones that see no more and have room the fullest.
    fn place(&self, shape: &Shape<A>) -> Option<usize> {
        let mask = shape.mask();
        let own = self.tuples.iter().position(|tuple| tuple.mask == mask);
        own.or_else(|| self.shared(shape, &mask))
    }

    /// The fullest of the shared tuples that see no more than a mask and have room for a shape.
    fn shared(&self, shape: &Shape<A>, mask: &Fields<A>) -> Option<usize> {
        let (value, compared_max) = (shape.value(), self.tuples.len().max(COMPARED_MIN));
        let fits = |tuple: &Tuple<A>| {
            tuple.is_shared
                && sees_no_more(tuple, mask)
                && tuple.compared_with(&value) < compared_max
        };
        let fitting = self.tuples.iter().enumerate().filter(|(_, tuple)| fits(tuple));
        fitting.max_by_key(|(_, tuple)| tuple.len()).map(|(place, _)| place)
    }

    /// A new tuple for a shape that has none; its mask. As long as there are few it is the shape's own, then
    /// the coarsest that is not there yet, which takes over what there is of tuples with few policies.
    fn make(&mut self, shape: &Shape<A>) -> Fields<A> {
        if self.tuples.len() < OWN_TUPLES {
            self.tuples.push(Tuple::new(shape.mask(), false, self.all_tell));
            return shape.mask();
        }
        let is_new = |mask: &Fields<A>| self.tuples.iter().all(|tuple| tuple.mask != *mask);
        let mask = shape.masks().into_iter().find(is_new).unwrap_or(shape.mask());
        self.tuples.push(Tuple::new(mask, true, self.all_tell));
        let tuples = self.tuples.len();
        if tuples > ALWAYS_MOVED && self.not_moved > 0 {
            self.not_moved -= 1;
            return mask;
        }
        self.take_over(&mask);
        if self.tuples.len() == tuples {
            self.not_moved = NOT_MOVED;
        }
        mask
    }

    /// Moves the policies of tuples with few of them, but not those of the tuple of a mask.
    fn take_over(&mut self, mask: &Fields<A>) {
        let others = self.tuples.iter().filter(|tuple| tuple.mask != *mask);
        let mut others: Vec<_> = others.map(|tuple| (tuple.len(), tuple.mask)).collect();
        others.sort_by_key(|(len, _)| *len);
        let mut moved = 0;
        for (len, mask) in others {
            moved += len;
            if moved <= MOVED_MAX {
                self.dissolve(&mask);
            }
        }
    }

    /// Moves the policies of a tuple into shared ones, as far as they fit. If none is left it ends.
    fn dissolve(&mut self, mask: &Fields<A>) {
        let Some(place) = self.tuples.iter().position(|tuple| tuple.mask == *mask) else { return };
        let mut tuple = self.tuples.remove(place);
        for rule in tuple.rules() {
            let shape = rule.numbers.shape;
            if let Some(place) = self.shared(&shape, &shape.mask()) {
                tuple.remove(&shape, rule.value.index());
                self.tuples[place].insert(rule);
            }
        }
        if tuple.len() != 0 {
            self.tuples.push(tuple);
        }
    }
}

/// Whether a tuple looks at nothing beside a mask.
fn sees_no_more<A: Address>(tuple: &Tuple<A>, mask: &Fields<A>) -> bool {
    tuple.mask.under(mask) == tuple.mask
}
