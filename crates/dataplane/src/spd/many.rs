//! Look-ups of many packets' policies side by side, for what nearly all packets are: whole, and of IPv4.
//!
//! Says what [`Side::ask`](super::Side::ask) and [`Side::lookup`](super::Side::lookup) say, where one table has
//! all policies of a direction. What a look-up asks first is kept for the time when the memory has come.

use std::net::IpAddr;

use wire::flow::{Flow, Fragment};

use super::fields::{Fields, Words};
use super::tuple::{Place, Tuple};
use super::{DefaultAction, Lookup};

/// The policies of one direction, outside of route mode, in one table.
#[derive(Clone, Copy)]
pub(crate) struct Many<'a> {
    tuple: &'a Tuple<u32>,
    /// Its mask.
    mask: Words,
    /// Every bit that any of them looks at.
    seen: Words,
    default: DefaultAction,
}

/// What of a flow policies may look at.
#[derive(Clone, Copy)]
pub(crate) struct Question(Words);

/// A flow whose policy was asked for.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    flow: Words,
    place: Place<'a, u32>,
}

impl<'a> Many<'a> {
    pub(super) fn new(
        tuple: &'a Tuple<u32>,
        seen: &Fields<u32>,
        default: DefaultAction,
    ) -> Many<'a> {
        Many { tuple, mask: Words::of(&tuple.mask), seen: Words::of(seen), default }
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

    /// Whether the policies say of two flows the same: they differ in nothing that any of them looks at.
    #[inline(always)]
    pub(crate) fn same(&self, one: Question, other: Question) -> bool {
        self.seen.agree(one.0, other.0)
    }

    /// The flow, after asking for the memory that [`lookup`](Many::lookup) will mostly read.
    #[inline(always)]
    pub(crate) fn ask(&self, flow: Question) -> Asked<'a> {
        Asked { flow: flow.0, place: self.tuple.ask_at(&flow.0.under(self.mask)) }
    }

    /// What the policies say of a flow that was [asked](Many::ask) for; asks for the memory of the one that
    /// decides.
    #[inline(always)]
    pub(crate) fn lookup(&self, asked: &Asked<'a>) -> Lookup<'a> {
        match self.tuple.find_at(asked.flow, asked.place) {
            Some(policy) => {
                policy.prefetch();
                Lookup::Policy(policy)
            }
            None => Lookup::Default(self.default),
        }
    }
}
