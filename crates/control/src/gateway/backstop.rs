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
//! Such policies outlive a gateway that is killed, as its programs do. A clean stop removes them.

use std::collections::HashMap;
use std::io;

use dataplane::policy::Direction;
use dataplane::selector::Selector;
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR};
use netlink_sys::protocols::NETLINK_XFRM;
use rustix::io::Errno;
use wire::xfrm::event::UserPolexpire;
use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::number::{action, direction, msg};
use wire::xfrm::policy::{UserpolicyId, UserpolicyInfo};
use zerocopy::IntoBytes;

use super::guard::Held;
use super::translate;
use crate::route_feed::socket::{NetlinkSocket, Received, error_of, messages};

/// One policy in so many is deleted in the way that frees what the others left in the kernel's tables:
/// some 100 bytes each, so the kernel keeps less than half a megabyte for us.
const COLLECT_EVERY: u64 = 4096;

/// The kernel's policies that are ours.
pub struct Backstop {
    /// `None`: the kernel is left alone.
    socket: Option<NetlinkSocket>,
    /// What is blocked, and for how many directions of the guard.
    blocked: HashMap<Selector, u32>,
    /// Policies that were removed so far.
    removals: u64,
}

impl Backstop {
    /// In the kernel's policy database of this network namespace.
    ///
    /// # Errors
    /// The kernel has no XFRM.
    pub fn open() -> io::Result<Backstop> {
        let socket = NetlinkSocket::open(NETLINK_XFRM, 0)?;
        Ok(Backstop { socket: Some(socket), blocked: HashMap::new(), removals: 0 })
    }

    /// One that does nothing.
    pub fn absent() -> Backstop {
        Backstop { socket: None, blocked: HashMap::new(), removals: 0 }
    }

    /// Has the kernel forward nothing of this. A policy that is there already, left by an earlier
    /// run, does as well.
    pub fn block(&mut self, held: Held) -> io::Result<()> {
        let Some(selector) = forwarded(held) else { return Ok(()) };
        if !self.blocked.contains_key(&selector) {
            let policy = UserpolicyInfo {
                sel: translate::wire_selector(&selector),
                lft: LifetimeConfig::UNLIMITED,
                dir: direction::FWD,
                action: action::BLOCK,
                ..UserpolicyInfo::default()
            };
            self.request(msg::NEWPOLICY, policy.as_bytes(), Errno::EXIST)?;
        }
        *self.blocked.entry(selector).or_insert(0) += 1;
        Ok(())
    }

    /// Takes one [`block`](Backstop::block) back.
    pub fn unblock(&mut self, held: Held) -> io::Result<()> {
        let Some(selector) = forwarded(held) else { return Ok(()) };
        match self.blocked.get_mut(&selector) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                self.blocked.remove(&selector);
                self.remove(&selector)?;
            }
            None => {}
        }
        Ok(())
    }

    /// Removes everything that is ours.
    pub fn end(mut self) -> io::Result<()> {
        let blocked: Vec<Selector> = self.blocked.keys().copied().collect();
        for selector in blocked {
            // The last one is deleted, and with it what the others left.
            self.blocked.remove(&selector);
            self.remove(&selector)?;
        }
        Ok(())
    }

    /// Removes a policy. A DELPOLICY has the kernel walk over all policies with prefixes for what is
    /// empty now (1.2 ms among 100 000 of them, `xfrm_policy_inexact_gc_tree`); a policy that expires
    /// is gone at once and leaves that to whoever deletes next. So nearly all of them expire.
    fn remove(&mut self, selector: &Selector) -> io::Result<()> {
        let sel = translate::wire_selector(selector);
        self.removals += 1;
        if self.blocked.is_empty() || self.removals.is_multiple_of(COLLECT_EVERY) {
            let id = UserpolicyId { sel, dir: direction::FWD, ..UserpolicyId::default() };
            return self.request(msg::DELPOLICY, id.as_bytes(), Errno::NOENT);
        }
        let pol = UserpolicyInfo { sel, dir: direction::FWD, ..UserpolicyInfo::default() };
        let expired = UserPolexpire { pol, hard: 1, pad: [0; 7] };
        self.request(msg::POLEXPIRE, expired.as_bytes(), Errno::NOENT)
    }

    /// Sends a request that may fail in one way only. Netlink answers before `send` returns.
    fn request(&mut self, kind: u16, payload: &[u8], harmless: Errno) -> io::Result<()> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        let sequence = socket.send(kind, NLM_F_REQUEST | NLM_F_ACK, payload)?;
        while let Received::Datagram(datagram) = socket.receive()? {
            let mut answers = messages(datagram).filter(|one| {
                one.sequence_number() == sequence && one.message_type() == NLMSG_ERROR
            });
            let Some(answer) = answers.next() else { continue };
            return match error_of(answer.payload()) {
                Some(error) if error.raw_os_error() != Some(harmless.raw_os_error()) => Err(error),
                _ => Ok(()),
            };
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// What the kernel must not forward so that a selector is held in a direction. Packets for the host
/// are not forwarded.
fn forwarded((direction, selector): Held) -> Option<Selector> {
    (direction != Direction::In).then_some(selector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::prefix::Prefix;
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    use std::process::Command;

    struct Namespace(String);

    impl Namespace {
        fn new() -> Namespace {
            let name = format!("pgstop-{}", std::process::id());
            let status = Command::new("ip").args(["netns", "add", &name]).status();
            assert!(status.unwrap().success());
            Namespace(name)
        }

        fn policies(&self) -> String {
            let words = ["-n", &self.0, "xfrm", "policy", "list"];
            let out = Command::new("ip").args(words).output().unwrap();
            String::from_utf8(out.stdout).unwrap()
        }

        /// Runs in a thread inside the namespace.
        fn inside(&self, test: impl FnOnce() + Send) {
            let file = std::fs::File::open(format!("/run/netns/{}", self.0)).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let fd = std::os::fd::AsFd::as_fd(&file);
                    move_into_link_name_space(fd, Some(LinkNameSpaceType::Network)).unwrap();
                    test();
                });
            });
        }
    }

    impl Drop for Namespace {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
        }
    }

    fn between(source: &str, destination: &str) -> Selector {
        let prefix = |text: &str| {
            let (address, len) = text.split_once('/').unwrap();
            Prefix::new(address.parse().unwrap(), len.parse().unwrap()).unwrap()
        };
        Selector::between(prefix(source), prefix(destination)).unwrap()
    }

    #[test]
    fn the_kernel_blocks_what_is_held_once_and_nothing_after_the_end() {
        let namespace = Namespace::new();
        let one = between("16.0.0.0/8", "48.0.0.0/24");
        let two = between("fd16::/64", "fd48::/64");
        namespace.inside(|| {
            let mut backstop = Backstop::open().unwrap();
            for held in [
                (Direction::Out, one),
                (Direction::Forward, one),
                (Direction::In, between("1.0.0.0/8", "2.0.0.0/8")),
                (Direction::Out, two),
            ] {
                backstop.block(held).unwrap();
            }
            let policies = namespace.policies();
            assert_eq!(policies.matches("dir fwd action block").count(), 2, "{policies}");
            assert!(policies.contains("src 16.0.0.0/8 dst 48.0.0.0/24"), "{policies}");
            assert!(policies.contains("src fd16::/64 dst fd48::/64"), "{policies}");
            backstop.unblock((Direction::Out, one)).unwrap();
            assert!(namespace.policies().contains("48.0.0.0/24"), "held in another direction");
            backstop.unblock((Direction::Forward, one)).unwrap();
            assert!(!namespace.policies().contains("48.0.0.0/24"));

            // Many removals in a row, of which most are expiries for the kernel.
            let many: Vec<Selector> =
                (0..100).map(|n| between(&format!("16.{n}.0.0/16"), "48.1.0.0/16")).collect();
            for selector in &many {
                backstop.block((Direction::Out, *selector)).unwrap();
            }
            assert_eq!(namespace.policies().matches("dst 48.1.0.0/16").count(), many.len());
            for selector in &many {
                backstop.unblock((Direction::Out, *selector)).unwrap();
            }
            assert!(!namespace.policies().contains("48.1.0.0/16"));

            // Killed: what was blocked stays, and the next run takes it over.
            drop(backstop);
            assert!(namespace.policies().contains("fd48::/64"));
            let mut backstop = Backstop::open().unwrap();
            backstop.block((Direction::Out, two)).unwrap();
            backstop.block((Direction::Out, one)).unwrap();
            backstop.end().unwrap();
            assert_eq!(namespace.policies(), "");
        });
    }
}
