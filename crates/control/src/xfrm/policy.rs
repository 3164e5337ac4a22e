//! One policy: what the data plane gets of it, and what the server remembers beside.

use std::sync::Arc;

use wire::xfrm::address::{Mark, Selector};
use wire::xfrm::lifetime::{LifetimeConfig, LifetimeCurrent};
use wire::xfrm::number::default_action;
use wire::xfrm::policy::{UserTmpl, UserpolicyInfo};

use super::counters::Counters;

/// Names a policy for as long as the server runs; never used twice. A policy that replaces another
/// has its index but not its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyId(pub u64);

/// A policy as the data plane gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRecord {
    /// Its name here.
    pub id: PolicyId,
    /// Its number in the interface.
    pub index: u32,
    /// See [`wire::xfrm::number::policy_type`]: main, but for what a journal of before may say.
    pub kind: u8,
    /// See [`wire::xfrm::number::direction`].
    pub direction: u8,
    /// Packets it is for.
    pub selector: Selector,
    /// Smaller is looked up first.
    pub priority: u32,
    /// Among policies of one priority, smaller is looked up first.
    pub order: u64,
    /// See [`wire::xfrm::number::action`].
    pub action: u8,
    /// See [`wire::xfrm::number::policy_flag`].
    pub flags: u8,
    /// Limits.
    pub limits: LifetimeConfig,
    /// Which packets' marks it accepts.
    pub mark: Mark,
    /// XFRM interface, 0 for none.
    pub if_id: u32,
    /// What SAs it wants, the innermost first; none means "let through unprotected".
    pub templates: Vec<UserTmpl>,
}

/// One entry of the SPD.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub(super) record: Arc<PolicyRecord>,
    /// When it was installed.
    pub(super) add_time: u64,
    /// When to look at its time limits next.
    pub(super) deadline: Option<u64>,
}

impl Policy {
    pub(super) fn usage(&self, counters: &dyn Counters) -> LifetimeCurrent {
        let live = counters.policy(self.record.id).unwrap_or_default();
        LifetimeCurrent {
            add_time: self.add_time,
            use_time: live.use_time,
            ..LifetimeCurrent::default()
        }
    }

    /// As messages show it.
    pub(super) fn info(&self, counters: &dyn Counters) -> UserpolicyInfo {
        let record = &*self.record;
        UserpolicyInfo {
            sel: record.selector,
            lft: record.limits,
            curlft: self.usage(counters),
            priority: record.priority,
            index: record.index,
            dir: record.direction,
            action: record.action,
            flags: record.flags,
            ..UserpolicyInfo::default()
        }
    }
}

/// What happens to packets without a policy, see [`wire::xfrm::number::default_action`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// To packets addressed to this host.
    pub input: u8,
    /// To packets in transit.
    pub forward: u8,
    /// To packets that leave.
    pub output: u8,
}

impl Default for Defaults {
    /// Everything is accepted.
    fn default() -> Self {
        let accept = default_action::ACCEPT;
        Self { input: accept, forward: accept, output: accept }
    }
}
