//! The policy database: which policy decides a flow, at a cost that does not grow with their
//! number.
//!
//! XFRM's semantics: one list per direction, the lowest priority value wins, among equals the
//! policy added first, and a default action per direction where nothing matches.
//!
//! How a policy is found `space.rs` says. The policies of tunnels in route mode (`if_id`) are a world
//! of their own, of which a look-up is for one tunnel. The kernel's marks and interface indices are
//! not in a selector here.

mod changes;
mod many;
mod numbers;
mod ordered;
mod portless;
mod space;
mod tag;
mod tuple;

use std::net::IpAddr;
use std::sync::Arc;

use wire::flow::{Flow, Fragment};

use self::changes::Changes;
pub(crate) use self::many::{Asked, Many, ManyV6, Question};
use self::numbers::Numbers;
use self::portless::Portless;
use self::space::Space;
use self::tag::Tag;
use crate::cpu::Cache;
use crate::policy::{Address, Direction, Fields, Policy, PolicyConfig, Shape};
use crate::prefix::Family;

/// What happens where no policy matches.
///
/// As wide as a reference, so that a [`Lookup`] is two words wherever it goes. Were it smaller, a look-up's
/// result would be written in other pieces than it is read in, and the processor would wait for each to be
/// in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(usize)]
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

/// The policies of one direction, outside of route mode or those of all its tunnels, for the look-ups of a
/// batch. An `if_id` is 0 outside of route mode.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    spd: &'a Spd,
    direction: Direction,
    v4: &'a Space<u32>,
    v6: &'a Space<u128>,
    default: DefaultAction,
}

impl<'a> Side<'a> {
    /// The database.
    #[inline]
    pub(crate) fn spd(&self) -> &'a Spd {
        self.spd
    }

    /// The direction.
    #[inline]
    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// Hash tables that a look-up of a family may have to ask.
    #[inline]
    pub(crate) fn tables(&self, family: Family) -> usize {
        match family {
            Family::V4 => self.v4.tuples(),
            Family::V6 => self.v6.tuples(),
        }
    }

    /// Whether there is no policy.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Whether there is no policy, and what they do not cover may pass: nobody need be asked.
    #[inline]
    pub(crate) fn is_silent(&self) -> bool {
        self.is_empty() && self.default == DefaultAction::Accept
    }

    /// Whether a policy decides every flow of a family in its tunnel.
    #[inline(always)]
    pub(crate) fn is_for_all(&self, policy: &Policy, family: Family) -> bool {
        match family {
            Family::V4 => self.v4.is_for_all(policy),
            Family::V6 => self.v6.is_for_all(policy),
        }
    }

    /// The policies outside of route mode for whole packets of IPv4, if there are any.
    #[inline]
    pub(crate) fn many(&self) -> Option<Many<'a>> {
        Many::of(self.v4, self.default)
    }

    /// Those for whole packets of IPv6, if there are any or not.
    #[inline]
    pub(crate) fn many_v6(&self) -> ManyV6<'a> {
        ManyV6::of(self.v6, self.default)
    }

    /// Whether the policies say of one flow what they say of another of the same tunnel: the two differ in
    /// nothing that any of them looks at.
    #[inline]
    pub(crate) fn same(&self, one: &Flow, other: &Flow) -> bool {
        if one.fragment != other.fragment {
            return false;
        }
        match (one.src, other.src) {
            (IpAddr::V4(_), IpAddr::V4(_)) => self.v4.is_empty() || self.v4.seen().same(one, other),
            (IpAddr::V6(_), IpAddr::V6(_)) => self.v6.seen().same(one, other),
            _ => false,
        }
    }

    /// Every bit that policies outside of route mode look at in flows of IPv4.
    pub(crate) fn seen_v4(&self) -> &'a Fields<u32> {
        self.v4.seen()
    }

    /// The same in flows of IPv6.
    pub(crate) fn seen_v6(&self) -> &'a Fields<u128> {
        self.v6.seen()
    }

    /// Asks for the memory that a look-up will mostly read, and returns what [`presume`](Side::presume) and
    /// [`lookup`](Side::lookup) want to know.
    #[inline(always)]
    pub(crate) fn ask(&self, if_id: u32, flow: &Flow, cache: Cache) -> u32 {
        let Tag(asked) = match flow.src {
            IpAddr::V4(_) => self.v4.ask(if_id, flow, cache),
            IpAddr::V6(_) => self.v6.ask(if_id, flow, cache),
        };
        asked
    }

    /// The policy that presumably decides a flow which [`ask`](Side::ask) was told of, once that memory has come;
    /// asks for the policy's.
    #[inline(always)]
    pub(crate) fn presume(
        &self,
        if_id: u32,
        flow: &Flow,
        asked: u32,
        cache: Cache,
    ) -> Option<&'a Policy> {
        match flow.src {
            IpAddr::V4(_) => self.v4.presume(if_id, flow, Tag(asked), cache),
            IpAddr::V6(_) => self.v6.presume(if_id, flow, Tag(asked), cache),
        }
    }

    /// Asks for the memory that a look-up outside of route mode may read, however many tables there are.
    pub(crate) fn ask_everywhere(&self, flow: &Flow, cache: Cache) {
        match flow.src {
            IpAddr::V4(_) => self.v4.ask_everywhere(0, flow, cache),
            IpAddr::V6(_) => self.v6.ask_everywhere(0, flow, cache),
        }
    }

    /// What [`Spd::lookup_of`] says of a flow of which [`presume`](Side::presume) has said what is presumed.
    #[inline(always)]
    pub(crate) fn lookup(
        &self,
        if_id: u32,
        flow: &Flow,
        asked: u32,
        presumed: Option<&'a Policy>,
    ) -> Lookup<'a> {
        if flow.fragment == Fragment::Later {
            return self.spd.lookup_of(if_id, self.direction, flow);
        }
        let found = match flow.src {
            IpAddr::V4(_) => self.v4.best_asked(if_id, flow, Tag(asked), presumed),
            IpAddr::V6(_) => self.v6.best_asked(if_id, flow, Tag(asked), presumed),
        };
        found.map_or(Lookup::Default(self.default), Lookup::Policy)
    }
}

/// A version of the policy database. Cloning is cheap; versions share what did not change.
#[derive(Clone, Default)]
pub struct Spd {
    /// By direction, and by whether the policies are those of tunnels in route mode.
    v4: [[Policies<u32>; 2]; 3],
    v6: [[Policies<u128>; 2]; 3],
    defaults: [DefaultAction; 3],
    len: usize,
    numbers: Numbers,
    changes: Changes,
}

/// Policies of one direction and family.
#[derive(Clone)]
struct Policies<A> {
    all: Space<A>,
    /// Those that select by ports, for fragments that show none.
    portless: Portless<A>,
}

impl<A: Address> Default for Policies<A> {
    fn default() -> Self {
        Policies { all: Space::new(A::TELLS), portless: Portless::default() }
    }
}

impl Spd {
    /// An empty database that accepts everything.
    pub fn new() -> Spd {
        Spd::default()
    }

    /// Sets what happens where no policy of a direction matches.
    pub fn set_default(&mut self, direction: Direction, action: DefaultAction) {
        self.changes.note();
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

    /// A number that no other content of this or another database has: what has it answers alike.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.changes.version()
    }

    /// How many changes ago it was another version; `None` if it never was, or long ago.
    pub(crate) fn changes_since(&self, version: u64) -> Option<u64> {
        self.changes.changes_since(version)
    }

    /// Whether what [`lookup`](Spd::lookup) says of a flow with ports may have been something else before so
    /// many last changes. Default actions do not count.
    #[inline]
    pub(crate) fn touched(&self, changes: u64, direction: Direction, flow: &Flow) -> bool {
        self.changes.touched(changes, direction, flow)
    }

    /// The policy that decides a flow outside of route mode.
    #[inline]
    pub fn lookup(&self, direction: Direction, flow: &Flow) -> Lookup<'_> {
        self.lookup_of(0, direction, flow)
    }

    /// The policy that decides a flow in the tunnel of an `if_id`; of 0, outside of route mode.
    #[inline]
    pub fn lookup_of(&self, if_id: u32, direction: Direction, flow: &Flow) -> Lookup<'_> {
        match self.find(if_id, direction, flow) {
            Some(Some(policy)) => Lookup::Policy(policy),
            Some(None) => Lookup::PortsNeeded,
            None => Lookup::Default(self.default_action(direction)),
        }
    }

    /// What [`lookup`](Spd::lookup) says of a flow with ports, and the number by which
    /// [`numbered`](Spd::numbered) of this version says it again, if there is one.
    #[inline]
    pub(crate) fn lookup_numbered(
        &self,
        direction: Direction,
        flow: &Flow,
    ) -> (Lookup<'_>, Option<u32>) {
        match self.find(0, direction, flow) {
            Some(Some(policy)) => {
                let number = self.numbers.of(policy);
                (Lookup::Policy(policy), (number != 0).then_some(number))
            }
            Some(None) => (Lookup::PortsNeeded, None),
            None => (Lookup::Default(self.default_action(direction)), Some(0)),
        }
    }

    /// See [`lookup_numbered`](Spd::lookup_numbered).
    #[inline]
    pub(crate) fn numbered(&self, number: u32, direction: Direction) -> Lookup<'_> {
        match self.numbers.get(number) {
            Some(policy) => Lookup::Policy(policy),
            None => Lookup::Default(self.default_action(direction)),
        }
    }

    /// Asks for the memory that [`numbered`](Spd::numbered) will read.
    #[inline]
    pub(crate) fn prefetch_numbered(&self, number: u32, cache: Cache) {
        self.numbers.prefetch(number, cache);
    }

    #[inline]
    fn find(&self, if_id: u32, direction: Direction, flow: &Flow) -> Option<Option<&Policy>> {
        let of_tunnel = usize::from(if_id != 0);
        match Family::of(flow.src) {
            Family::V4 => self.v4[direction as usize][of_tunnel].find(flow, if_id),
            Family::V6 => self.v6[direction as usize][of_tunnel].find(flow, if_id),
        }
    }

    /// The policies of a direction outside of route mode, for many look-ups.
    #[inline]
    pub(crate) fn side(&self, direction: Direction) -> Side<'_> {
        self.side_of(direction, false)
    }

    /// The policies of a direction outside of route mode, or those of tunnels.
    #[inline]
    pub(crate) fn side_of(&self, direction: Direction, of_tunnels: bool) -> Side<'_> {
        Side {
            spd: self,
            direction,
            v4: &self.v4[direction as usize][usize::from(of_tunnels)].all,
            v6: &self.v6[direction as usize][usize::from(of_tunnels)].all,
            default: self.default_action(direction),
        }
    }

    /// Hash tables that a look-up of a direction and family may have to ask, outside of route mode.
    #[inline]
    pub fn tables(&self, direction: Direction, family: Family) -> usize {
        match family {
            Family::V4 => self.v4[direction as usize][0].all.tuples(),
            Family::V6 => self.v6[direction as usize][0].all.tuples(),
        }
    }

    /// See [`Table::settle`](crate::table::Table::settle).
    pub(crate) fn settle(&mut self) -> bool {
        let v4 = self.v4.iter_mut().flatten();
        let done = v4.fold(false, |done, policies| policies.settle() | done);
        self.v6.iter_mut().flatten().fold(done, |done, policies| policies.settle() | done)
    }

    /// Adds a policy, or replaces the one with its direction, `if_id`, selector and index, which is
    /// returned.
    pub fn insert(&mut self, policy: Arc<Policy>) -> Option<Arc<Policy>> {
        let replaced = self.remove(&policy.config());
        let config = policy.config();
        let (at, of_tunnel) = (config.direction as usize, usize::from(config.if_id != 0));
        self.numbers.take(policy.clone());
        match config.selector.family() {
            Family::V4 => self.v4[at][of_tunnel].insert(&config, policy),
            Family::V6 => self.v6[at][of_tunnel].insert(&config, policy),
        }
        self.len += 1;
        self.changes.note_policy(&config);
        replaced
    }

    /// Removes the policy with a direction, `if_id`, selector and index; what else `config` says does
    /// not matter.
    pub fn remove(&mut self, config: &PolicyConfig) -> Option<Arc<Policy>> {
        let of_tunnel = usize::from(config.if_id != 0);
        let removed = match config.selector.family() {
            Family::V4 => self.v4[config.direction as usize][of_tunnel].remove(config),
            Family::V6 => self.v6[config.direction as usize][of_tunnel].remove(config),
        }?;
        self.numbers.give_back(&removed);
        self.len -= 1;
        self.changes.note_policy(config);
        Some(removed)
    }

    /// Every policy, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        let v4 = self.v4.iter().flatten().flat_map(|policies| policies.all.iter());
        v4.chain(self.v6.iter().flatten().flat_map(|policies| policies.all.iter()))
    }
}

impl<A: Address> Policies<A> {
    /// The policy that decides a flow; `Some(None)` if only ports could tell.
    #[inline]
    fn find(&self, flow: &Flow, if_id: u32) -> Option<Option<&Policy>> {
        if self.all.is_empty() {
            return None;
        }
        let fields = Fields::of(flow, if_id);
        if flow.fragment == Fragment::Later {
            return self.find_portless(&fields);
        }
        self.all.best_whole(&fields).map(Some)
    }

    #[cold]
    fn find_portless(&self, fields: &Fields<A>) -> Option<Option<&Policy>> {
        let found = self.all.best(fields, false, None);
        match self.portless.may_decide(fields, found) {
            true => Some(None),
            false => found.map(|found| Some(found.policy)),
        }
    }

    fn insert(&mut self, config: &PolicyConfig, policy: Arc<Policy>) {
        let shape = Shape::of(config);
        self.portless.insert(&shape, &policy);
        self.all.insert(&shape, policy);
    }

    fn remove(&mut self, config: &PolicyConfig) -> Option<Arc<Policy>> {
        let shape = Shape::of(config);
        let removed = self.all.remove(&shape, config.index)?;
        self.portless.remove(&shape, &removed);
        Some(removed)
    }

    /// Not where fragments are looked up, which are few.
    fn settle(&mut self) -> bool {
        self.all.settle()
    }
}

#[cfg(test)]
pub(crate) mod tests;
