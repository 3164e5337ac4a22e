//! What the policies of a batch are to count, added up before it is written.
//!
//! A policy's counters may have several writers, and an atomic addition for every packet would cost
//! more than finding the policy. Consecutive packets mostly have the same one.

use crate::policy::Policy;

/// A sum for one policy, which is the last packet's.
pub(crate) struct Tally<'v> {
    policy: Option<&'v Policy>,
    packets: u64,
    bytes: u64,
    now_ns: u64,
}

impl<'v> Tally<'v> {
    /// Nothing yet, for a turn that began at `now_ns`.
    pub(crate) fn new(now_ns: u64) -> Tally<'v> {
        Tally { policy: None, packets: 0, bytes: 0, now_ns }
    }

    /// Counts a packet.
    #[inline]
    pub(crate) fn count(&mut self, policy: &'v Policy, bytes: usize) {
        if !self.policy.is_some_and(|known| std::ptr::eq(known, policy)) {
            self.settle();
            self.policy = Some(policy);
        }
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    /// Writes the sum.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if let Some(policy) = self.policy.take() {
            policy.count(self.packets, self.bytes, self.now_ns);
            (self.packets, self.bytes) = (0, 0);
        }
    }
}
