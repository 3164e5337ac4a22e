//! What is written to the kernel's routing: routes of any table, rules, links. In batches.
//!
//! The host's traffic (`host.rs`) and groups of tunnels (`group_devices.rs`) are led by it. It does not know
//! why any of it is wanted, and follows nothing: that is `route_feed`.

mod codec;
#[cfg(test)]
pub mod namespace;

use std::io;

use dataplane::prefix::Family;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_sys::protocols::NETLINK_ROUTE;
use rustix::io::Errno;

use crate::netlink::Batch;

pub use codec::{Act, OUR_PROTOCOL, Of, Route, Rule, Way};

/// The writer.
pub struct Writer {
    batch: Batch,
}

impl Writer {
    /// In this network namespace.
    pub fn open() -> io::Result<Writer> {
        let mut batch = Batch::open(NETLINK_ROUTE, is_done_already)?;
        batch.socket().be_strict()?;
        Ok(Writer { batch })
    }

    /// The index of an interface.
    pub fn index_of(&mut self, name: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(self.batch.socket(), name)?)
    }

    /// Brings a link up, with an MTU.
    pub fn set_link(&mut self, index: u32, mtu: u32) -> io::Result<()> {
        let head = codec::link_header(index, codec::IFF_UP);
        let mtu = (codec::IFLA_MTU, mtu.to_ne_bytes().to_vec());
        self.batch.put(codec::RTM_NEWLINK, 0, &head, &[mtu])?;
        self.flush()
    }

    /// Removes a link, if it is there.
    pub fn delete_link(&mut self, index: u32) -> io::Result<()> {
        self.batch.put(codec::RTM_DELLINK, 0, &codec::link_header(index, 0), &[])?;
        self.flush()
    }

    /// Adds a route, or gives the one of its prefix and metric another way.
    pub fn add_route(&mut self, table: u32, route: &Route) -> io::Result<()> {
        let (head, attributes) = codec::route_body(table, route);
        self.batch.put(codec::RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &head, &attributes)
    }

    /// Removes a route, if it is there: that of its prefix, metric, kind and device, whatever its next hop.
    pub fn delete_route(&mut self, table: u32, route: &Route) -> io::Result<()> {
        let (mut head, attributes) = codec::route_body(table, route);
        // The scope says whether there is a next hop, and IPv4 finds no route of another one.
        head[codec::SCOPE_AT] = codec::SCOPE_NOWHERE;
        self.batch.put(codec::RTM_DELROUTE, 0, &head, &attributes)
    }

    /// Adds a rule, unless it is there.
    pub fn add_rule(&mut self, rule: &Rule) -> io::Result<()> {
        self.rule(codec::RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, rule)
    }

    /// Removes a rule, if it is there.
    pub fn delete_rule(&mut self, rule: &Rule) -> io::Result<()> {
        self.rule(codec::RTM_DELRULE, 0, rule)
    }

    fn rule(&mut self, kind: u16, flags: u16, rule: &Rule) -> io::Result<()> {
        let (head, attributes) = codec::rule_body(rule);
        self.batch.put(kind, flags, &head, &attributes)
    }

    /// Sends what was put.
    ///
    /// # Errors
    /// The first refusal. To add what is there and to remove what is not is none. What came after it
    /// is done all the same.
    pub fn flush(&mut self) -> io::Result<()> {
        self.batch.flush()
    }

    /// Every route of a table.
    pub fn routes(&mut self, table: u32) -> io::Result<Vec<Route>> {
        let mut found = Vec::new();
        for family in [Family::V4, Family::V6] {
            let mut request = vec![codec::family_number(family)];
            request.resize(12, 0);
            request.extend(8u16.to_ne_bytes());
            request.extend(codec::RTA_TABLE.to_ne_bytes());
            request.extend(table.to_ne_bytes());
            self.dump(codec::RTM_GETROUTE, &request, |head, attributes| {
                found.extend(codec::read_route(family, head, attributes));
            })?;
        }
        Ok(found)
    }

    /// Every rule that was made by us, whatever its place.
    pub fn rules(&mut self) -> io::Result<Vec<Rule>> {
        let mut found = Vec::new();
        for family in [Family::V4, Family::V6] {
            let mut request = vec![codec::family_number(family)];
            request.resize(12, 0);
            self.dump(codec::RTM_GETRULE, &request, |head, attributes| {
                found.extend(codec::read_rule(family, head, attributes));
            })?;
        }
        Ok(found)
    }

    /// The bodies of a dump, in two parts; a table that does not exist is empty.
    fn dump(
        &mut self,
        kind: u16,
        request: &[u8],
        mut each: impl FnMut(&[u8; 12], &[u8]),
    ) -> io::Result<()> {
        let refused = self.batch.socket().dump(kind, request, |body| {
            if let Some((head, attributes)) = body.split_first_chunk() {
                each(head, attributes);
            }
        })?;
        absent_is_empty(refused)
    }
}

/// Whether it was refused to add what is there, or to remove what is not: of a link that is ENODEV.
fn is_done_already(kind: u16, errno: Errno) -> bool {
    let is_gone = kind == codec::RTM_DELLINK && errno == Errno::NODEV;
    is_gone || [Errno::EXIST, Errno::SRCH, Errno::NOENT].contains(&errno)
}

fn absent_is_empty(error: Option<io::Error>) -> io::Result<()> {
    // EAFNOSUPPORT and EOPNOTSUPP: a kernel without IPv6.
    let absent = [Errno::NOENT, Errno::AFNOSUPPORT, Errno::OPNOTSUPP].map(Errno::raw_os_error);
    match error {
        Some(error) if !error.raw_os_error().is_some_and(|code| absent.contains(&code)) => {
            Err(error)
        }
        _ => Ok(()),
    }
}
