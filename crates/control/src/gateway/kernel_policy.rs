//! The kernel's own policies, as far as they are ours: requests in batches.
//!
//! It knows which refusals do no harm. What the policies are for is `backstop.rs` and `host/shield.rs`.

use std::io;

use dataplane::selector::Selector;
use netlink_sys::protocols::NETLINK_XFRM;
use rustix::io::Errno;
use wire::xfrm::address::Selector as WireSelector;
use wire::xfrm::attribute::AttributeIter;
use wire::xfrm::number::msg;
use wire::xfrm::policy::{UserpolicyId, UserpolicyInfo};
use zerocopy::{FromBytes, IntoBytes};

use super::translate;
use crate::netlink::Batch;

/// Requests to the kernel's policy database of this network namespace.
pub struct KernelPolicies {
    batch: Batch,
}

impl KernelPolicies {
    /// Opens a socket.
    ///
    /// # Errors
    /// The kernel has no XFRM.
    pub fn open() -> io::Result<KernelPolicies> {
        Ok(KernelPolicies { batch: Batch::open(NETLINK_XFRM, is_done_already)? })
    }

    /// Reads every policy that is there, whoever made it, with the attributes behind it. What the kernel
    /// refuses to list counts as not there.
    ///
    /// # Errors
    /// Reading was cut short. What was read until then has been told.
    pub fn read(
        &mut self,
        mut tell: impl FnMut(&UserpolicyInfo, AttributeIter<'_>),
    ) -> io::Result<()> {
        self.flush()?;
        let any = UserpolicyId::default();
        let refused = self.batch.socket().dump(msg::GETPOLICY, any.as_bytes(), |body| {
            if let Ok((policy, rest)) = UserpolicyInfo::read_from_prefix(body) {
                tell(&policy, AttributeIter::new(rest));
            }
        });
        refused.map(drop)
    }

    /// Adds a request. A policy that is to be added and is there, or is to be removed and is not, will
    /// do as well; any other failure is told by [`flush`](KernelPolicies::flush), or by this when the
    /// batch is full.
    pub fn request(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        self.batch.put(kind, 0, payload, &[])
    }

    /// Has the kernel do what was requested.
    pub fn flush(&mut self) -> io::Result<()> {
        self.batch.flush()
    }
}

/// A selector with the number of the instance whose policy it is. The kernel asks `user` of no packet, and
/// compares it like all else where it looks for the policy of a selector: so that of another instance for the
/// same packets is another policy, which neither stands for this one nor goes with it.
pub fn owned_selector(selector: &Selector, owner: u32) -> WireSelector {
    WireSelector { user: owner, ..translate::wire_selector(selector) }
}

/// Whether a policy is there that was to be added, or is not that was to be removed.
fn is_done_already(kind: u16, errno: Errno) -> bool {
    errno == if kind == msg::NEWPOLICY { Errno::EXIST } else { Errno::NOENT }
}
