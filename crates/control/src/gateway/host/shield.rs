//! The kernel's own refusal to send in clear what the host must send protected.
//!
//! The routes to the host's device are what brings its packets to the data plane; a program that binds
//! its socket to an interface, or a person who removes the device, goes past them. For each selector
//! that is protected and that an address of the host is in, the kernel is given a policy: direction
//! `out`, action `block`. For IPv4 it concerns every way out but the device, whose packets meet no
//! policy (`disable_xfrm`). IPv6 has no such setting: there it names the ports, one policy each, and
//! meets who bound to one.
//!
//! Two kinds of packets are let past: IKE, by its source ports, and neighbour discovery, without which
//! no peer on the link could be reached. Policies outlive a gateway that is killed, and are known again
//! by their priority and their instance's number: another gateway in the same network namespace has its
//! own. A clean stop removes them.

use std::collections::HashSet;
use std::io;

use dataplane::prefix::Family;
use dataplane::selector::{PortMatch, Selector};
use wire::protocol;
use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::number::{action, direction, msg};
use wire::xfrm::policy::{UserpolicyId, UserpolicyInfo};
use zerocopy::IntoBytes;

use super::super::kernel_policy::{KernelPolicies, owned_selector};
use super::super::translate;

/// The priority of a block, by which it is known again. A person's own policies come before.
const BLOCK_PRIORITY: u32 = 0x5047_0001;
/// The priority of what is let past.
const PASS_PRIORITY: u32 = 0x5047_0000;
/// ICMPv6 types of neighbour discovery (RFC 4861 §4): router and neighbour, solicitation and
/// advertisement, and redirect.
const DISCOVERY: std::ops::RangeInclusive<u16> = 133..=137;

/// A policy of ours: its selector and the interface it names (0: all).
type Block = (Selector, u32);

/// The kernel's policies that keep the host's packets.
pub struct Shield {
    /// `None`: the kernel has no XFRM.
    kernel: Option<KernelPolicies>,
    /// Whose policies they are.
    owner: u32,
    /// Interface indexes of the ports.
    ports: Vec<u32>,
    ike_ports: Vec<u16>,
    blocks: HashSet<Block>,
    /// Whether IKE and neighbour discovery are let past.
    lets_pass: bool,
}

impl Shield {
    /// Takes over what an earlier run of the instance of this number left.
    pub fn open(owner: u32, ports: Vec<u32>, ike_ports: &[u16]) -> io::Result<Shield> {
        let mut shield = Shield {
            kernel: KernelPolicies::open().ok(),
            owner,
            ports,
            ike_ports: ike_ports.to_vec(),
            blocks: HashSet::new(),
            lets_pass: false,
        };
        shield.blocks = shield.left()?;
        Ok(shield)
    }

    /// How many selectors and interfaces are blocked.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Brings a selector's blocks in line with what is wanted, from the next
    /// [`flush`](Shield::flush) on.
    pub fn set(&mut self, selector: &Selector, blocked: bool) -> io::Result<()> {
        let wanted: Vec<u32> = match (blocked, selector.source.family()) {
            (false, _) => Vec::new(),
            (true, Family::V4) => vec![0],
            (true, Family::V6) => self.ports.clone(),
        };
        if !wanted.is_empty() {
            self.let_pass()?;
        }
        for port in &wanted {
            if self.blocks.insert((*selector, *port)) {
                self.add(selector, *port, action::BLOCK, BLOCK_PRIORITY)?;
            }
        }
        let places = self.ports.iter().copied().chain([0]);
        for place in places.filter(|place| !wanted.contains(place)).collect::<Vec<_>>() {
            if self.blocks.remove(&(*selector, place)) {
                self.remove(selector, place)?;
            }
        }
        Ok(())
    }

    /// The ports are these interfaces now. What named others goes.
    pub fn set_ports<'a>(
        &mut self,
        ports: Vec<u32>,
        blocked: impl Iterator<Item = &'a Selector>,
    ) -> io::Result<()> {
        if ports == self.ports {
            return Ok(());
        }
        self.ports = ports;
        for selector in blocked {
            self.set(selector, true)?;
        }
        let gone = |(_, place): &&Block| *place != 0 && !self.ports.contains(place);
        for (selector, place) in self.blocks.iter().filter(gone).copied().collect::<Vec<_>>() {
            self.blocks.remove(&(selector, place));
            self.remove(&selector, place)?;
        }
        self.flush()
    }

    /// Brings into force what was asked for.
    pub fn flush(&mut self) -> io::Result<()> {
        self.kernel.as_mut().map_or(Ok(()), KernelPolicies::flush)
    }

    /// Removes everything that the kernel lets go; its first refusal is told.
    pub fn end(&mut self) -> io::Result<()> {
        let mut ended = Ok(());
        for (selector, place) in std::mem::take(&mut self.blocks) {
            ended = ended.and(self.remove(&selector, place));
        }
        for selector in self.passes() {
            ended = ended.and(self.remove(&selector, 0));
        }
        ended.and(self.flush())
    }

    fn let_pass(&mut self) -> io::Result<()> {
        if !self.lets_pass {
            for selector in self.passes() {
                self.add(&selector, 0, action::ALLOW, PASS_PRIORITY)?;
            }
            self.lets_pass = true;
        }
        Ok(())
    }

    fn passes(&self) -> Vec<Selector> {
        let from = |family, protocol, port| Selector {
            protocol,
            source_port: PortMatch::exactly(port),
            ..Selector::any(family)
        };
        let ike = |port: &u16| [Family::V4, Family::V6].map(|one| from(one, protocol::UDP, *port));
        let discovery = DISCOVERY.map(|kind| from(Family::V6, protocol::ICMPV6, kind));
        self.ike_ports.iter().flat_map(ike).chain(discovery).collect()
    }

    fn add(&mut self, selector: &Selector, place: u32, act: u8, priority: u32) -> io::Result<()> {
        let mut sel = owned_selector(selector, self.owner);
        sel.ifindex = place as i32;
        let policy = UserpolicyInfo {
            sel,
            lft: LifetimeConfig::UNLIMITED,
            dir: direction::OUT,
            action: act,
            priority,
            ..UserpolicyInfo::default()
        };
        self.request(msg::NEWPOLICY, policy.as_bytes())
    }

    fn remove(&mut self, selector: &Selector, place: u32) -> io::Result<()> {
        let mut sel = owned_selector(selector, self.owner);
        sel.ifindex = place as i32;
        let id = UserpolicyId { sel, dir: direction::OUT, ..UserpolicyId::default() };
        self.request(msg::DELPOLICY, id.as_bytes())
    }

    fn request(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        self.kernel.as_mut().map_or(Ok(()), |kernel| kernel.request(kind, payload))
    }

    /// The blocks that are there already.
    fn left(&mut self) -> io::Result<HashSet<Block>> {
        let mut left = HashSet::new();
        let (owner, Some(kernel)) = (self.owner, &mut self.kernel) else { return Ok(left) };
        kernel.read(|policy, _| left.extend(block_of(owner, policy)))?;
        Ok(left)
    }
}

/// The block that a kernel's policy is, if it is one of this owner's.
fn block_of(owner: u32, policy: &UserpolicyInfo) -> Option<Block> {
    let is_ours = policy.dir == direction::OUT
        && policy.action == action::BLOCK
        && policy.sel.user == owner
        && policy.priority == BLOCK_PRIORITY;
    let selector = is_ours.then(|| translate::selector(&policy.sel)).flatten()?;
    Some((selector, policy.sel.ifindex as u32))
}

#[cfg(test)]
mod tests {
    use super::super::super::rtnetlink::namespace::Namespace;
    use super::*;
    use dataplane::prefix::Prefix;

    #[test]
    fn a_shield_neither_takes_over_nor_removes_that_of_another_gateway() {
        let namespace = Namespace::new("shield");
        let host = |last| Prefix::host([10, 1, 0, last].into());
        let selector = Selector::between(host(1), host(2)).unwrap();
        namespace.inside(|| {
            let policies = || namespace.ip("xfrm policy list");
            let open = |owner| Shield::open(owner, Vec::new(), &[500]).unwrap();
            let mut first = open(1);
            first.set(&selector, true).unwrap();
            first.flush().unwrap();
            let before = policies();
            assert!(before.contains("action block") && before.contains("sport 500"), "{before}");

            let mut second = open(2);
            assert_eq!(second.len(), 0);
            second.set(&selector, true).unwrap();
            second.flush().unwrap();
            assert_eq!(policies().matches("action block").count(), 2);
            second.end().unwrap();
            assert_eq!(policies(), before);

            // Killed: the next run knows its own again.
            drop(first);
            let mut first = open(1);
            assert_eq!(first.len(), 1);
            first.end().unwrap();
            assert_eq!(policies().matches("action block").count(), 0);
        });
    }
}
