//! Lifetimes of SAs and policies: when they are looked at, and who is waited for.
//!
//! What has expired is the server's to know (`xfrm/expiry.rs`).

use wire::xfrm::number::group;

use super::Gateway;

impl Gateway {
    /// Lifetimes, once a second, which is what they are counted in. It looks at every SA that has a
    /// limit in bytes or packets: done with each request, installing would take time by the square.
    pub(super) fn expire(&mut self, now: u64) {
        let is_new = self.expired_at != now;
        if is_new {
            self.expired_at = now;
            if let Some(seconds) = acquire_expires_s() {
                self.server.set_acquire_expires(seconds);
            }
        }
        if is_new || self.expires_more() {
            let expired = self.server.tick(now, &self.forwarding);
            self.announce(expired);
        }
    }

    /// Whether more has expired that may be said at once. Who does not read along has a second for each part,
    /// until it has lost some and is not waited for.
    pub(super) fn expires_more(&self) -> bool {
        self.server.has_more_due() && !self.clients.are_behind(group::EXPIRE)
    }
}

/// How long an ACQUIRE may stay unanswered, as the IKE daemon or the operator set it in this network
/// namespace; charon writes 165. `None` on a kernel that has no XFRM.
fn acquire_expires_s() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/net/core/xfrm_acq_expires").ok()?;
    text.trim().parse().ok()
}
