//! Look-ups of many packets' policies side by side, for what nearly all packets are: whole, and of IPv4.
//!
//! Says what [`Side::ask`](super::Side::ask) and [`Side::lookup`](super::Side::lookup) say, where one table has
//! all policies of a direction. What a look-up asks first is kept for the time when the memory has come.

use std::net::IpAddr;

use wire::flow::{Flow, Fragment};

use super::fields::Fields;
use super::tuple::Tuple;
use super::{DefaultAction, Lookup};

/// The policies of one direction, outside of route mode, in one table.
#[derive(Clone, Copy)]
pub(crate) struct Many<'a> {
    tuple: &'a Tuple<u32>,
    /// Every bit that any of them looks at.
    seen: &'a Fields<u32>,
    default: DefaultAction,
}

/// A flow whose policy is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    fields: Fields<u32>,
    hash: u64,
}

impl<'a> Many<'a> {
    pub(super) fn new(
        tuple: &'a Tuple<u32>,
        seen: &'a Fields<u32>,
        default: DefaultAction,
    ) -> Many<'a> {
        Many { tuple, seen, default }
    }

    /// A flow that can be looked up here; `None` if it is not of IPv4, or a fragment.
    #[inline(always)]
    pub(crate) fn flow(&self, flow: &Flow) -> Option<Asked> {
        match (flow.src, flow.dst) {
            (IpAddr::V4(_), IpAddr::V4(_)) if flow.fragment == Fragment::Whole => {
                Some(Asked { fields: Fields::of(flow, 0), hash: 0 })
            }
            _ => None,
        }
    }

    /// Whether the policies say of two flows the same: they differ in nothing that any of them looks at.
    #[inline(always)]
    pub(crate) fn same(&self, one: &Asked, other: &Asked) -> bool {
        self.seen.agree(&one.fields, &other.fields)
    }

    /// The flow, after asking for the memory that [`lookup`](Many::lookup) will mostly read.
    #[inline(always)]
    pub(crate) fn ask(&self, flow: Asked) -> Asked {
        Asked { hash: self.tuple.ask(&flow.fields), ..flow }
    }

    /// What the policies say of a flow that was [asked](Many::ask) for; asks for the memory of the one that
    /// decides.
    #[inline(always)]
    pub(crate) fn lookup(&self, asked: &Asked) -> Lookup<'a> {
        match self.tuple.find_hashed(&asked.fields, asked.hash) {
            Some(policy) => {
                policy.prefetch();
                Lookup::Policy(policy)
            }
            None => Lookup::Default(self.default),
        }
    }
}
