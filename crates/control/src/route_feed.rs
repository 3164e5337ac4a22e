//! The kernel's links, addresses, routes and neighbours, read once and then kept up to date.
//!
//! [`RouteFeed`] owns one rtnetlink socket that never blocks: wait for its file descriptor in a
//! poll loop and call [`RouteFeed::poll`], which tells what changed; the present state is in
//! [`RouteFeed::kernel`]. Lost events are noticed and repaired by reading everything again
//! (`replica.rs` has the plan).
//!
//! What is followed: all tables, of IPv4 and IPv6. Local, main and default are asked as the kernel's own
//! rules ask them, for whatever has no VRF; any other for packets of its VRF alone. What is not: other
//! rules, so that a table which only they lead to, such as strongSwan's 220, is asked for no packet; routes
//! bound to a type of service or a source prefix; multicast forwarding. Of several routes for one prefix the
//! lowest metric is chosen, and of several next hops the first that works. Next-hop objects are followed
//! through the expansion that the kernel adds to each route by default, and by the news of objects in use.
//!
//! This module changes nothing in the kernel except that [`RouteFeed::solicit`] makes it resolve a
//! neighbour.

mod decode;
mod kernel;
mod model;
mod replica;
mod table;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{
    NLM_F_DUMP_INTR, NLM_F_MULTIPART, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use kernel::{Change, Event, Kernel, Kind};
pub use model::{Address, Link, Neighbour, NeighbourState, NextHop, Route, RouteKind, Table};
pub use table::Placement;

use crate::netlink::{self, NetlinkSocket, Received};
use decode::Decoded;
use replica::Replica;

/// The multicast groups (linux/rtnetlink.h, RTNLGRP_…): link 1, neighbour 3, IPv4 address 5 and
/// route 7, IPv6 address 9 and route 11, next-hop object 32 (from Linux 5.3; unknown before, and no
/// error). Group *n* is bit *n*-1.
const GROUPS: u32 = 1 << 0 | 1 << 2 | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 31;
/// Datagrams read in one call of `poll`: about 10 ms of decoding at most, so that under a flood of
/// route changes the control thread still serves its other duties.
const DATAGRAMS_PER_POLL: usize = 256;
/// How long the first reading may take. A million routes take a few seconds.
const FIRST_READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the kernel's tables cannot be followed.
#[derive(Debug, Error)]
pub enum FeedError {
    /// The socket does not work.
    #[error("the kernel's routing socket (rtnetlink) failed while {doing}: {source}")]
    Socket {
        /// What was being done.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The kernel refuses to tell about a kind of thing.
    #[error("the kernel refuses to list its {kind:?}: {source}")]
    Refused {
        /// Which kind.
        kind: Kind,
        /// Why.
        source: io::Error,
    },
}

/// How the feed is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedCounters {
    /// Events taken in.
    pub events: u64,
    /// Lists asked for: four at the start, and each again when it is in doubt.
    pub dumps: u64,
    /// Times that events were lost and everything was read again.
    pub overruns: u64,
    /// Messages that this version cannot read.
    pub garbled: u64,
    /// Neighbour resolutions that the kernel refused.
    pub solicit_errors: u64,
}

/// The live feed. It belongs to the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct RouteFeed {
    socket: NetlinkSocket,
    replica: Replica,
    /// The dump under way: its kind and sequence number.
    dump: Option<(Kind, u32)>,
    counters: FeedCounters,
}

impl RouteFeed {
    /// Opens the feed and reads everything once; [`kernel`](Self::kernel) is complete on return.
    ///
    /// # Errors
    ///
    /// [`FeedError`] when the socket fails, or the tables are not read in time.
    pub fn open() -> Result<Self, FeedError> {
        let socket = NetlinkSocket::open(NETLINK_ROUTE, GROUPS).map_err(failed("opening"))?;
        let mut feed =
            Self { socket, replica: Replica::new(), dump: None, counters: FeedCounters::default() };
        let deadline = Instant::now() + FIRST_READ_TIMEOUT;
        feed.settle(deadline)?;
        Ok(feed)
    }

    /// The network as the kernel has it, as far as it has told.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        self.replica.kernel()
    }

    /// How the feed is doing.
    #[must_use]
    pub fn counters(&self) -> FeedCounters {
        self.counters
    }

    /// Whether nothing is being read again at the moment.
    #[must_use]
    pub fn settled(&self) -> bool {
        self.replica.settled()
    }

    /// Takes in what the kernel has told, up to a limit, without waiting, and adds what changed.
    /// One thing may be named several times. Call again when the file descriptor is readable.
    ///
    /// # Errors
    /// The feed is beyond repair; open a new one.
    pub fn poll(&mut self, changes: &mut Vec<Change>) -> Result<(), FeedError> {
        for _ in 0..DATAGRAMS_PER_POLL {
            self.ask_next()?;
            let datagram = match self.socket.receive().map_err(failed("reading"))? {
                Received::Empty => {
                    self.replica.empty();
                    if self.replica.next().is_none() {
                        return Ok(());
                    }
                    continue;
                }
                Received::Overrun => {
                    self.counters.overruns += 1;
                    self.replica.overrun();
                    continue;
                }
                Received::Datagram(datagram) => datagram,
            };
            let mut intake = Intake {
                replica: &mut self.replica,
                dump: &mut self.dump,
                counters: &mut self.counters,
            };
            for message in netlink::messages(datagram) {
                intake.message(&message, changes)?;
            }
        }
        Ok(())
    }

    /// Makes the kernel resolve a neighbour, or confirm one that it has not heard of lately. The
    /// answer comes as [`Change::Neighbour`], also when the kernel has known all along: of a neighbour
    /// that it calls reachable there is no news by itself, and what was told before may have been
    /// overtaken, as the kernel writes what it tells without a lock against the next. The kernel spaces
    /// its own probes (one a second), so asking often does no harm beyond the system calls. A neighbour
    /// that the gateway sends to, and the kernel does not, goes stale and would be forgotten: ask every
    /// few seconds for those in use.
    ///
    /// # Errors
    ///
    /// That of sending; whether the neighbour answers is not known yet.
    pub fn solicit(&mut self, ifindex: u32, address: IpAddr) -> io::Result<()> {
        decode::request_resolution(&mut self.socket, ifindex, address)?;
        decode::request_neighbour(&mut self.socket, ifindex, address).map(|_sequence| ())
    }

    /// Waits until nothing is being read.
    fn settle(&mut self, deadline: Instant) -> Result<(), FeedError> {
        let mut changes = Vec::new();
        loop {
            self.poll(&mut changes)?;
            changes.clear();
            if self.settled() {
                return Ok(());
            }
            self.socket.wait(deadline).map_err(failed("waiting for the first tables"))?;
        }
    }

    fn ask_next(&mut self) -> Result<(), FeedError> {
        if let Some(kind) = self.replica.next() {
            let asked = decode::request_dump(&mut self.socket, kind);
            self.dump = Some((kind, asked.map_err(failed("asking for a table"))?));
            self.replica.begin(kind);
            self.counters.dumps += 1;
        }
        Ok(())
    }
}

impl AsFd for RouteFeed {
    /// Readable when [`poll`](RouteFeed::poll) has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> FeedError {
    move |source| FeedError::Socket { doing, source }
}

/// The parts of a feed that a message goes to while the socket's buffer is borrowed.
struct Intake<'a> {
    replica: &'a mut Replica,
    dump: &'a mut Option<(Kind, u32)>,
    counters: &'a mut FeedCounters,
}

impl Intake<'_> {
    fn message(
        &mut self,
        message: &NetlinkBuffer<&[u8]>,
        changes: &mut Vec<Change>,
    ) -> Result<(), FeedError> {
        let sequence = message.sequence_number();
        // News that another program caused has that program's sequence number, which may be the same. It
        // is never a part of a list, as all of a dump is but a refusal, and refusals are told to nobody else.
        let ours = message.flags() & NLM_F_MULTIPART != 0 || message.message_type() == NLMSG_ERROR;
        let dump = self.dump.filter(|&(_, asked)| ours && asked == sequence);
        if dump.is_some() && message.flags() & NLM_F_DUMP_INTR != 0 {
            self.replica.interrupted();
        }
        match (message.message_type(), dump) {
            (NLMSG_DONE, Some((kind, _))) => {
                *self.dump = None;
                // The payload of NLMSG_DONE is the dump's result, an errno below zero on failure.
                let code = message.payload().first_chunk().map_or(0, |c| i32::from_ne_bytes(*c));
                if code < 0 {
                    return self.broke_off(kind, io::Error::from_raw_os_error(-code));
                }
                self.replica.end(changes);
            }
            (NLMSG_ERROR, Some((kind, _))) => {
                *self.dump = None;
                let source = netlink::error_of(message.payload());
                return self.broke_off(kind, source.unwrap_or_else(|| io::ErrorKind::Other.into()));
            }
            // Why there is none was said when it was to be resolved, or it is gone again.
            (NLMSG_ERROR, None) if decode::refuses_neighbour(message.payload()) => {}
            (NLMSG_ERROR, None) => {
                self.counters.solicit_errors += 1;
                let error = netlink::error_of(message.payload());
                tracing::debug!(?error, "the kernel refused to resolve a neighbour");
            }
            (_, dump) => self.news(message, dump.is_some(), changes),
        }
        Ok(())
    }

    fn news(&mut self, message: &NetlinkBuffer<&[u8]>, dump: bool, changes: &mut Vec<Change>) {
        match decode::decode(message, dump) {
            Decoded::Event(event) if dump => self.replica.entry(event),
            Decoded::Event(event) => {
                self.counters.events += 1;
                self.replica.event(event, changes);
            }
            Decoded::Irrelevant => {}
            Decoded::Garbled => {
                self.counters.garbled += 1;
                let kind = message.message_type();
                tracing::warn!(kind, "the kernel sent an rtnetlink message that cannot be read");
            }
        }
    }

    fn broke_off(&mut self, kind: Kind, source: io::Error) -> Result<(), FeedError> {
        if self.replica.failed() { Ok(()) } else { Err(FeedError::Refused { kind, source }) }
    }
}

/// The links of this network namespace, read once.
///
/// # Errors
///
/// That of the socket, or the one with which the kernel refuses.
pub fn links() -> io::Result<Vec<Link>> {
    let mut socket = NetlinkSocket::open(NETLINK_ROUTE, 0)?;
    let asked = decode::request_dump(&mut socket, Kind::Links)?;
    let mut links = Vec::new();
    let refused = socket.list(asked, FIRST_READ_TIMEOUT, |message| {
        if let Decoded::Event(Event::Link(link)) = decode::decode(message, true) {
            links.push(link);
        }
    })?;
    refused.map_or(Ok(links), Err)
}

#[cfg(test)]
mod tests;
