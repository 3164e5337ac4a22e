//! Look-ups of many packets' policies side by side, for what nearly all packets are: whole, and of IPv4. What is of IPv6 has a
//! simpler twin.
//!
//! Says what [`Side::ask`](super::Side::ask) and [`Side::lookup`](super::Side::lookup) say, of the policies of a direction
//! outside of route mode. What a look-up asks first is kept for the time when the memory has come. Where several tables have
//! them, a policy is presumed if no other that may match ranks better.

use std::net::IpAddr;
use std::sync::Arc;

use wire::flow::{Flow, Fragment};
use wire::ipv4;

use super::space::Space;
use super::tag::Tag;
use super::tuple::{Telling, Tuple};
use super::{DefaultAction, Lookup, Spd};
use crate::cpu::Cache;
use crate::policy::{Direction, Fields, Policy, Words};
use crate::table::Home;

impl Spd {
    /// Whether no policy outside of route mode looks at ports in what is forwarded over IPv4, so that fragments, which may not show
    /// them, are to all of them what whole packets are.
    pub(crate) fn is_portless(&self) -> bool {
        let sees_none = |direction| self.side(direction).seen_v4().ports == 0;
        sees_none(Direction::Forward) && sees_none(Direction::Out)
    }
}

/// The policies of one direction, outside of route mode.
#[derive(Clone, Copy)]
pub(crate) struct Many<'a> {
    /// The table in which they are, or the first of several.
    tuple: &'a Tuple<u32>,
    policies: &'a Telling,
    /// All tables, if there are several.
    several: Option<&'a Space<u32>>,
    /// There is more to ask for than what the best policy with a tag lies in.
    has_more: bool,
    /// The tuple's mask.
    mask: Words,
    /// Every bit that any of them looks at.
    seen: Words,
    default: DefaultAction,
}

/// What of a flow policies may look at.
#[derive(Clone, Copy, Default)]
pub(crate) struct Question(Words);

/// A flow whose policy was asked for.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    flow: Words,
    tag: Tag,
    home: Home<'a, Tag, Arc<Policy>, 5>,
}

impl<'a> Many<'a> {
    /// `None` if there are no policies.
    pub(super) fn of(space: &'a Space<u32>, default: DefaultAction) -> Option<Many<'a>> {
        let many = Many::of_one(space.first()?, space.seen(), default)?;
        let several = (space.tuples() > 1).then_some(space);
        Some(Many { several, has_more: many.has_more || several.is_some(), ..many })
    }

    /// Those of one table.
    pub(super) fn of_one(
        tuple: &'a Tuple<u32>,
        seen: &Fields<u32>,
        default: DefaultAction,
    ) -> Option<Many<'a>> {
        let policies = tuple.telling()?;
        let (mask, seen) = (Words::of(&tuple.mask), Words::of(seen));
        let has_more = tuple.has_many_behind();
        Some(Many { tuple, policies, several: None, has_more, mask, seen, default })
    }

    /// A flow that can be looked up here; `None` if it is not of IPv4, or a fragment.
    #[inline(always)]
    pub(crate) fn flow(&self, flow: &Flow) -> Option<Question> {
        match (flow.src, flow.dst) {
            (IpAddr::V4(_), IpAddr::V4(_)) if flow.fragment == Fragment::Whole => {
                Some(Question(Words::of(&Fields::of(flow, 0))))
            }
            _ => None,
        }
    }

    /// The flow of a packet with such a header.
    #[inline(always)]
    pub(crate) fn header(&self, header: &ipv4::Plain) -> Question {
        Question(Words::of_header(header))
    }

    /// Whether the policies say of two flows the same: they differ in nothing that any of them looks at.
    #[inline(always)]
    pub(crate) fn same(&self, one: Question, other: Question) -> bool {
        self.seen.agree(one.0, other.0)
    }

    /// The same of two between the same hosts, and `false` of any others.
    #[inline(always)]
    pub(crate) fn same_between_hosts(&self, one: Question, other: Question) -> bool {
        self.seen.with_all_addresses().agree(one.0, other.0)
    }

    /// The flow, after asking for the memory that [`presume`](Many::presume) will mostly read.
    #[inline(always)]
    pub(crate) fn ask(&self, Question(flow): Question, cache: Cache) -> Asked<'a> {
        let tag = self.tuple.tag_of(&flow.under(self.mask));
        if self.has_more {
            self.ask_more(flow, tag, cache);
        }
        Asked { flow, tag, home: self.policies.ask(tag.spread(), cache) }
    }

    #[inline(never)]
    fn ask_more(&self, flow: Words, tag: Tag, cache: Cache) {
        self.tuple.ask_behind(tag, cache);
        if let Some(space) = self.several {
            space.ask_others(&flow.fields(), cache);
        }
    }

    /// The policy that presumably decides a flow which was [asked](Many::ask) for; asks for its memory.
    #[inline(always)]
    pub(crate) fn presume(
        &self,
        Asked { flow, tag, home }: Asked<'a>,
        cache: Cache,
    ) -> Option<&'a Policy> {
        if let Some(space) = self.several {
            return space.presume_of_many(&flow.fields(), tag, cache);
        }
        let found = self.policies.find_from(home, tag.spread(), move |found| *found == tag);
        let policy = found.map(|(_, policy)| &**policy);
        policy.inspect(|policy| policy.prefetch(cache))
    }

    /// What the policies say of that flow.
    #[inline(always)]
    pub(crate) fn lookup(&self, asked: Asked<'a>, presumed: Option<&'a Policy>) -> Lookup<'a> {
        match presumed {
            Some(policy) if policy.selects_briefly(asked.flow, 0) => Lookup::Policy(policy),
            _ => self.lookup_behind(asked.flow, asked.tag),
        }
    }

    // With the fields in memory only here.
    #[inline(never)]
    fn lookup_behind(&self, flow: Words, tag: Tag) -> Lookup<'a> {
        let found = match self.several {
            None => self.tuple.find_behind(&flow.fields(), tag, true),
            Some(space) => space.best(&flow.fields(), true, None),
        };
        found.map_or(Lookup::Default(self.default), |found| Lookup::Policy(found.policy))
    }
}

/// The same of whole packets of IPv6, whose fields say what they are.
#[derive(Clone, Copy)]
pub(crate) struct ManyV6<'a> {
    space: &'a Space<u128>,
    default: DefaultAction,
}

impl<'a> ManyV6<'a> {
    pub(super) fn of(space: &'a Space<u128>, default: DefaultAction) -> ManyV6<'a> {
        ManyV6 { space, default }
    }

    /// Whether the policies say of two flows the same.
    #[inline(always)]
    pub(crate) fn same(&self, one: &Fields<u128>, other: &Fields<u128>) -> bool {
        let seen = self.space.seen();
        one.under(seen) == other.under(seen)
    }

    /// Asks for the memory that [`presume`](ManyV6::presume) will mostly read, and says what it wants to know.
    #[inline(always)]
    pub(crate) fn ask(&self, flow: &Fields<u128>, cache: Cache) -> u32 {
        let Some(first) = self.space.first() else { return 0 };
        let Tag(tag) = first.ask(flow, cache);
        if self.space.tuples() > 1 {
            self.ask_others(*flow, cache);
        }
        tag
    }

    // By value: fields that a reference leads out of here to would be in memory for each packet, in small pieces, and read in large
    // ones.
    #[inline(never)]
    fn ask_others(&self, flow: Fields<u128>, cache: Cache) {
        self.space.ask_others(&flow, cache);
    }

    /// The policy that presumably decides a flow which was asked for; asks for its memory.
    #[inline(always)]
    pub(crate) fn presume(
        &self,
        flow: &Fields<u128>,
        asked: u32,
        cache: Cache,
    ) -> Option<&'a Policy> {
        match self.space.only() {
            Some(only) => only.presume(flow, Tag(asked)).inspect(|policy| policy.prefetch(cache)),
            None => self.space.presume_of_many(flow, Tag(asked), cache),
        }
    }

    /// What the policies say of that flow.
    #[inline(always)]
    pub(crate) fn lookup(
        &self,
        flow: &Fields<u128>,
        asked: u32,
        presumed: Option<&'a Policy>,
    ) -> Lookup<'a> {
        let found = match (self.space.only(), presumed) {
            (Some(only), _) => only.confirm(flow, Tag(asked), presumed),
            // A table of IPv6 presumes what selects the flow.
            (None, Some(policy)) => Some(policy),
            (None, None) => self.space.best_whole(flow),
        };
        found.map_or(Lookup::Default(self.default), Lookup::Policy)
    }
}
