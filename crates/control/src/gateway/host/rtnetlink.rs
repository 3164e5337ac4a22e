//! What is written to the kernel's routing: routes of one table, rules, one link. In batches.
//!
//! Many messages go in one datagram; the kernel has acted on all of them when the send returns, and
//! answers only what it refuses. It does not know why any of it is wanted.

use std::io;

use dataplane::prefix::Family;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NLMSG_ERROR};
use netlink_sys::protocols::NETLINK_ROUTE;
use rustix::io::Errno;

use super::codec::{self, Attribute, Route, Rule};
use crate::route_feed::socket::{NetlinkSocket, Received, error_of, messages};

/// Bytes of one datagram: 400 routes, which the kernel takes in two milliseconds.
const BATCH_BYTES: usize = 24 << 10;

/// The writer.
pub struct Writer {
    socket: NetlinkSocket,
    batch: Vec<u8>,
}

impl Writer {
    /// In this network namespace.
    pub fn open() -> io::Result<Writer> {
        let socket = NetlinkSocket::open(NETLINK_ROUTE, 0)?;
        socket.be_strict()?;
        Ok(Writer { socket, batch: Vec::with_capacity(BATCH_BYTES) })
    }

    /// The index of an interface.
    pub fn index_of(&self, name: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(&self.socket, name)?)
    }

    /// Brings a link up, with an MTU.
    pub fn set_link(&mut self, index: u32, mtu: u32) -> io::Result<()> {
        let head = codec::link_header(index, codec::IFF_UP);
        self.put(codec::RTM_NEWLINK, 0, &head, &[(codec::IFLA_MTU, mtu.to_ne_bytes().to_vec())])?;
        self.flush()
    }

    /// Removes a link, if it is there.
    pub fn delete_link(&mut self, index: u32) -> io::Result<()> {
        let put = self.put(codec::RTM_DELLINK, 0, &codec::link_header(index, 0), &[]);
        put.and(unless_gone(self.flush()))
    }

    /// Adds a route, or gives the one of its prefix and metric another way.
    pub fn add_route(&mut self, table: u32, route: &Route) -> io::Result<()> {
        self.route(codec::RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, table, route)
    }

    /// Removes a route, if it is there.
    pub fn delete_route(&mut self, table: u32, route: &Route) -> io::Result<()> {
        self.route(codec::RTM_DELROUTE, 0, table, route)
    }

    fn route(&mut self, kind: u16, flags: u16, table: u32, route: &Route) -> io::Result<()> {
        let (head, attributes) = codec::route_body(table, route);
        self.put(kind, flags, &head, &attributes)
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
        self.put(kind, flags, &head, &attributes)
    }

    fn put(
        &mut self,
        kind: u16,
        flags: u16,
        head: &[u8],
        attributes: &[Attribute],
    ) -> io::Result<()> {
        // What is refused of the others is no reason to leave this one out.
        let room = self.batch.len() + 256 <= BATCH_BYTES;
        let others = if room { Ok(()) } else { self.flush() };
        let start = self.batch.len();
        self.batch.extend([0; 16]);
        self.batch.extend(head);
        for (name, value) in attributes {
            self.batch.extend((4 + value.len() as u16).to_ne_bytes());
            self.batch.extend(name.to_ne_bytes());
            self.batch.extend(value);
            self.batch.resize(self.batch.len().next_multiple_of(4), 0);
        }
        let len = (self.batch.len() - start) as u32;
        let header = &mut self.batch[start..start + 8];
        header[..4].copy_from_slice(&len.to_ne_bytes());
        header[4..6].copy_from_slice(&kind.to_ne_bytes());
        header[6..].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        others
    }

    /// Sends what was put.
    ///
    /// # Errors
    /// The first refusal. To add what is there and to remove what is not is none. What came after it
    /// is done all the same.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let sent = self.socket.send_batch(&self.batch);
        self.batch.clear();
        sent?;
        let harmless = [Errno::EXIST, Errno::SRCH, Errno::NOENT].map(Errno::raw_os_error);
        let mut result = Ok(());
        loop {
            let datagram = match self.socket.receive()? {
                Received::Empty => return result,
                Received::Overrun => {
                    result = Err(io::Error::other("the kernel refused more than it could say"));
                    continue;
                }
                Received::Datagram(datagram) => datagram,
            };
            let refusals = messages(datagram).filter(|one| one.message_type() == NLMSG_ERROR);
            for error in refusals.filter_map(|one| error_of(one.payload())) {
                if !error.raw_os_error().is_some_and(|code| harmless.contains(&code)) {
                    result = result.and(Err(error));
                }
            }
        }
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
        let refused = self.socket.dump(kind, request, |body| {
            if let Some((head, attributes)) = body.split_first_chunk() {
                each(head, attributes);
            }
        })?;
        absent_is_empty(refused)
    }
}

/// A link that is to be removed and is not there will do.
pub fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| match error.raw_os_error() {
        Some(code) if code == Errno::NODEV.raw_os_error() => Ok(()),
        _ => Err(error),
    })
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
