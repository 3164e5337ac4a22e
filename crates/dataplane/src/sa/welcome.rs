//! Who is known to let in what comes through an SA.

use std::sync::atomic::Ordering::Relaxed;

use super::Hot;

impl Hot {
    /// Whether it is known that somebody lets in what comes through the SA: a policy that asks for it, by
    /// [`Policy::id`](crate::policy::Policy), the row of its tunnel, by [`Tunnels::id`](crate::tunnel::Tunnels), or what stands for
    /// policies that let in everything.
    #[inline(always)]
    pub(crate) fn is_welcomed_by(&self, id: u64) -> bool {
        self.welcomed_by.load(Relaxed) == id || self.was_welcomed_by(id)
    }

    /// Out of line, as nearly all tunnels have one family inside.
    #[inline(never)]
    fn was_welcomed_by(&self, id: u64) -> bool {
        self.welcomed_before_by.load(Relaxed) == id
    }

    /// Remembers that somebody does.
    pub(crate) fn welcome_by(&self, id: u64) {
        self.welcomed_before_by.store(self.welcomed_by.load(Relaxed), Relaxed);
        self.welcomed_by.store(id, Relaxed);
    }
}
