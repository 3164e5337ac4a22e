//! The kernel's own refusal to forward in clear what is protected.
//!
//! The XDP programs take packets off before the kernel sees them, but they are not always there:
//! an interface that is removed and made anew comes without one, a person may take one off, and
//! for a moment after a change of Ethernet or IP addresses a program sorts by the old ones. Nor are
//! they on interfaces that are no ports. The kernel would forward, and knows none of the gateway's
//! policies. So for each selector that the guard holds it is given a policy of its own: direction
//! `fwd`, action `block`, which needs no ESP. It concerns nothing but packets that the kernel itself
//! forwards: the data plane's, ARP, ND and the host's own traffic never meet it.
//!
//! Such policies outlive a gateway that is killed, as its programs do. A clean stop removes them. Each
//! has its instance's number: gateways that share a network namespace may protect the same.

use std::collections::HashSet;
use std::io;

use dataplane::policy::Direction;
use dataplane::selector::Selector;
use tracing::warn;
use wire::xfrm::address::Selector as WireSelector;
use wire::xfrm::event::UserPolexpire;
use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::number::{action, attr, direction, msg};
use wire::xfrm::policy::{UserpolicyId, UserpolicyInfo};
use zerocopy::IntoBytes;

use super::guard::Held;
use super::kernel_policy::{KernelPolicies, owned_selector};

/// One policy in so many is deleted in the way that frees what the others left in the kernel's tables:
/// some 100 bytes each, so the kernel keeps less than four megabytes for us. It takes 10 ms among 100 000
/// policies, for which everybody else waits.
const COLLECT_EVERY: u64 = 32_768;

/// The kernel's policies that are ours. Which they are the guard knows.
pub struct Backstop {
    /// `None`: the kernel is left alone.
    kernel: Option<KernelPolicies>,
    /// Whose policies they are.
    owner: u32,
    /// Policies that are there.
    blocks: usize,
    /// Policies that were removed so far.
    removals: u64,
    /// What the kernel blocks already, while what an earlier run left is taken over.
    left: HashSet<WireSelector>,
}

impl Backstop {
    /// In the kernel's policy database of this network namespace, for an instance of this number.
    ///
    /// # Errors
    /// The kernel has no XFRM.
    pub fn open(owner: u32) -> io::Result<Backstop> {
        Ok(Backstop { kernel: Some(KernelPolicies::open()?), owner, ..Backstop::absent() })
    }

    /// One that does nothing.
    pub fn absent() -> Backstop {
        Backstop { kernel: None, owner: 0, blocks: 0, removals: 0, left: HashSet::new() }
    }

    /// Reads what an earlier run left, so that [`block`](Backstop::block) need not ask for it again until
    /// [`forget_left`](Backstop::forget_left): for each NEWPOLICY of one that is there the kernel walks over
    /// all others before it refuses it (80 s for 25 000, `xfrm_policy_inexact_gc_tree`).
    pub fn find_left(&mut self) {
        let Some(kernel) = &mut self.kernel else { return };
        let (owner, left) = (self.owner, &mut self.left);
        let read = kernel.read(|policy, mut attributes| {
            let is_ours = policy.dir == direction::FWD
                && policy.action == action::BLOCK
                && policy.sel.user == owner
                && !attributes.any(|one| [attr::MARK, attr::IF_ID].contains(&one.kind));
            if is_ours {
                left.insert(policy.sel);
            }
        });
        // What was not read is asked for anew, by a socket on which nothing waits.
        if let Err(error) = read {
            warn!(%error, "the kernel's policies that an earlier run left could not be read");
            self.kernel = KernelPolicies::open().ok();
        }
    }

    /// From here on every block is asked for.
    pub fn forget_left(&mut self) {
        self.left = HashSet::new();
    }

    /// Has the kernel forward nothing of this, from the next [`flush`](Backstop::flush) on. A policy
    /// that is there already, left by an earlier run, does as well.
    pub fn block(&mut self, selector: &Selector) -> io::Result<()> {
        self.blocks += 1;
        let Some(kernel) = &mut self.kernel else { return Ok(()) };
        let sel = owned_selector(selector, self.owner);
        if self.left.remove(&sel) {
            return Ok(());
        }
        let policy = UserpolicyInfo {
            sel,
            lft: LifetimeConfig::UNLIMITED,
            dir: direction::FWD,
            action: action::BLOCK,
            ..UserpolicyInfo::default()
        };
        kernel.request(msg::NEWPOLICY, policy.as_bytes())
    }

    /// Takes a [`block`](Backstop::block) back.
    ///
    /// A DELPOLICY has the kernel walk over all policies with prefixes for what is empty now (1.2 ms
    /// among 100 000 of them, `xfrm_policy_inexact_gc_tree`); a policy that expires is gone at once and
    /// leaves that to whoever deletes next. So nearly all of them expire.
    pub fn unblock(&mut self, selector: &Selector) -> io::Result<()> {
        self.blocks = self.blocks.saturating_sub(1);
        self.removals += 1;
        let Some(kernel) = &mut self.kernel else { return Ok(()) };
        let sel = owned_selector(selector, self.owner);
        // The last one is deleted, and with it what the others left.
        if self.blocks == 0 || self.removals.is_multiple_of(COLLECT_EVERY) {
            let id = UserpolicyId { sel, dir: direction::FWD, ..UserpolicyId::default() };
            return kernel.request(msg::DELPOLICY, id.as_bytes());
        }
        let pol = UserpolicyInfo { sel, dir: direction::FWD, ..UserpolicyInfo::default() };
        let expired = UserPolexpire { pol, hard: 1, pad: [0; 7] };
        kernel.request(msg::POLEXPIRE, expired.as_bytes())
    }

    /// Brings into force what was asked for.
    pub fn flush(&mut self) -> io::Result<()> {
        self.kernel.as_mut().map_or(Ok(()), KernelPolicies::flush)
    }
}

/// What the kernel must not forward so that a selector is held in a direction. Packets for the host
/// are not forwarded.
pub fn forwarded((direction, selector): Held) -> Option<Selector> {
    (direction != Direction::In).then_some(selector)
}

#[cfg(test)]
mod tests {
    use super::super::guard::Guard;
    use super::super::rtnetlink::namespace::Namespace;
    use super::*;
    use dataplane::prefix::Prefix;

    fn between(source: &str, destination: &str) -> Selector {
        let prefix = |text: &str| {
            let (address, len) = text.split_once('/').unwrap();
            Prefix::new(address.parse().unwrap(), len.parse().unwrap()).unwrap()
        };
        Selector::between(prefix(source), prefix(destination)).unwrap()
    }

    #[test]
    fn the_kernel_blocks_what_is_held_once_and_nothing_after_the_end() {
        let namespace = Namespace::new("stop");
        let one = between("16.0.0.0/8", "48.0.0.0/24");
        let two = between("fd16::/64", "fd48::/64");
        let directory = tempfile::tempdir().unwrap();
        namespace.inside(|| {
            let listed = || namespace.ip("xfrm policy list");
            let open = || Guard::open(directory.path(), Backstop::open(1).unwrap()).unwrap().0;
            let mut guard = open();
            for held in [
                (Direction::Out, one),
                (Direction::Forward, one),
                (Direction::In, between("1.0.0.0/8", "2.0.0.0/8")),
                (Direction::Out, two),
            ] {
                guard.protect(held).unwrap();
            }
            guard.flush().unwrap();
            let policies = listed();
            assert_eq!(policies.matches("dir fwd action block").count(), 2, "{policies}");
            assert!(policies.contains("src 16.0.0.0/8 dst 48.0.0.0/24"), "{policies}");
            assert!(policies.contains("src fd16::/64 dst fd48::/64"), "{policies}");
            let release = |guard: &mut Guard, held| {
                assert!(guard.release(held).unwrap());
                guard.flush().unwrap();
            };
            release(&mut guard, (Direction::Out, one));
            assert!(listed().contains("48.0.0.0/24"), "held in another direction");
            release(&mut guard, (Direction::Forward, one));
            assert!(!listed().contains("48.0.0.0/24"));

            // Several datagrams of policies, of which most expire for the kernel.
            let many: Vec<Selector> = (0..600)
                .map(|n| between(&format!("16.{}.{}.0/24", n / 256, n % 256), "48.1.0.0/16"))
                .collect();
            many.iter().for_each(|one| guard.protect((Direction::Out, *one)).unwrap());
            guard.flush().unwrap();
            assert_eq!(listed().matches("dst 48.1.0.0/16").count(), many.len());
            for selector in &many {
                assert!(guard.release((Direction::Out, *selector)).unwrap());
            }
            guard.flush().unwrap();
            assert!(!listed().contains("48.1.0.0/16"));

            // Killed: what was blocked stays, and the next run takes it over; what somebody removed
            // meanwhile is blocked again.
            drop(guard);
            assert!(listed().contains("fd48::/64"));
            let mut backstop = Backstop::open(1).unwrap();
            backstop.find_left();
            assert_eq!(
                backstop.left.iter().copied().collect::<Vec<_>>(),
                [owned_selector(&two, 1)]
            );
            namespace.ip("xfrm policy flush");
            let guard = open();
            assert!(listed().contains("src fd16::/64 dst fd48::/64"));
            drop(guard);
            let mut guard = open();
            assert_eq!(listed().matches("fd48::/64").count(), 1);

            guard.protect((Direction::Out, two)).unwrap();
            guard.protect((Direction::Out, one)).unwrap();
            guard.flush().unwrap();
            guard.end().unwrap();
            assert_eq!(listed(), "");
        });
    }

    #[test]
    fn gateways_in_one_namespace_block_the_same_each_for_itself() {
        let namespace = Namespace::new("stops");
        let one = between("16.0.0.0/8", "48.0.0.0/24");
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        namespace.inside(|| {
            let blocks =
                || namespace.ip("xfrm policy list").matches("dir fwd action block").count();
            let open = |at: usize| {
                let backstop = Backstop::open(at as u32 + 1).unwrap();
                let (mut guard, _) = Guard::open(directories[at].path(), backstop).unwrap();
                guard.protect((Direction::Forward, one)).unwrap();
                guard.flush().unwrap();
                guard
            };
            let first = open(0);
            open(1).end().unwrap();
            assert_eq!(blocks(), 1, "the first one's stays");
            let second = open(1);
            first.end().unwrap();
            assert_eq!(blocks(), 1, "the second one's stays");
            second.end().unwrap();
            assert_eq!(blocks(), 0);
        });
    }
}
