//! One program's connection: its queue, its dump, its groups.
//!
//! ```text
//! program ──request──▶ receive ──▶ Server::handle ──▶ queue ──▶ program
//!                                   events ───────────▶ queue
//! ```
//!
//! The queue is bounded in both ways that netlink is: a program that does not read its replies is
//! not read from, and a program that does not read its events loses them and is told so once
//! (`NLMSG_OVERRUN`, which stands for the `ENOBUFS` of a netlink socket).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use wire::xfrm::netlink::{Datagram, HEADER_LEN, Header, NLMSG_NOOP, NLMSG_OVERRUN};
use wire::xfrm::number::group;
use wire::xfrm::shim;
use zerocopy::{FromBytes, IntoBytes};

use super::client::Client;
use super::counters::{Backend, Counters};
use super::delivery::{Delivery, Event};
use super::dump::Dump;
use super::flush::Flush;
use super::secret::Bytes;
use super::server::Server;

/// Longest datagram of requests. `ip -batch` sends up to 32 KiB, everything else less than 4.
pub(super) const REQUEST_MAX: usize = 64 * 1024;

/// Bytes of replies in the queue from which a program is not read from any more. One datagram of
/// requests may go over it.
const REPLIES_MAX: usize = 64 * 1024;

/// Bytes in the queue from which events are lost; what a netlink socket holds by default
/// (`net.core.rmem_default`).
const EVENTS_MAX: usize = 212_992;

/// Bytes in the queue from which a program that listens is given time to read before what can wait is said.
const EVENTS_BEHIND: usize = EVENTS_MAX / 2;

/// Requests that one program gets before the others have their turn, half a millisecond; a datagram of
/// several that has begun is ended. They come into force together, which copies what they change of the
/// tables once, and takes one write of the journal.
const TURN_MAX: usize = 64;

/// Parts of dumps that one program gets before the others have their turn.
const PARTS_MAX: usize = 16;

/// Turns with one request in a row from which a second is not looked for, which is a system call of its
/// own: who asks one thing at a time waits for the answer.
const ALONE_MIN: u32 = 4;

/// One turn in so many looks for a second request all the same. A program that sends many at a time from
/// now on is told so, within as many requests.
const LOOK_EVERY: u32 = 16;

enum Queued {
    Reply(Bytes),
    Event(Arc<Bytes>),
    Overrun([u8; HEADER_LEN]),
}

impl Queued {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Reply(bytes) => bytes,
            Self::Event(bytes) => bytes,
            Self::Overrun(bytes) => bytes,
        }
    }

    fn reply_len(&self) -> usize {
        match self {
            Self::Reply(bytes) => bytes.len(),
            Self::Event(_) | Self::Overrun(_) => 0,
        }
    }
}

/// Brings into force what was asked for.
pub(super) fn commit(server: &mut Server, backend: &mut dyn Backend) -> Result<(), Ended> {
    if server.has_changes() && !backend.commit(server) { Err(Ended) } else { Ok(()) }
}

/// Whether a frame asks for nothing (`NLMSG_NOOP`): who sends one goes on when the answers to all before it were sent,
/// which it knows by the next having been read, in another turn.
fn is_pause(frame: &[u8]) -> bool {
    Header::read_from_bytes(frame)
        .is_ok_and(|header| (header.kind, header.flags) == (NLMSG_NOOP, 0))
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended;

/// One connection.
pub(super) struct Connection {
    pub(super) fd: OwnedFd,
    client: Client,
    /// Groups it is bound to, as a mask.
    pub(super) groups: u32,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    /// Those of them that are replies.
    reply_bytes: usize,
    dump: Option<Dump>,
    /// Events were lost and it does not know yet.
    overrun: bool,
    /// It asked for a flush that is under way: what it asks next has its turn after that.
    pub(super) flushing: bool,
    /// What its descriptor is waited for.
    pub(super) waits_for: EventFlags,
    /// Turns in a row that found no more than one request.
    alone: u32,
}

impl Connection {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            client: Client::default(),
            groups: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            reply_bytes: 0,
            dump: None,
            overrun: false,
            flushing: false,
            waits_for: EventFlags::IN,
            alone: 0,
        }
    }

    /// How many requests this turn may read.
    fn turn(&self) -> usize {
        let looks = self.alone < ALONE_MIN || self.alone.is_multiple_of(LOOK_EVERY);
        if looks { TURN_MAX } else { 1 }
    }

    /// Whether requests are to be read.
    pub(super) fn wants_read(&self) -> bool {
        self.reply_bytes < REPLIES_MAX && !self.flushing
    }

    /// Whether there is something to send, or to make and send.
    pub(super) fn wants_write(&self) -> bool {
        !self.queue.is_empty() || self.dump.is_some() || self.flushing
    }

    /// Reads requests, in order; what one produces is queued before the next is read. The answers are
    /// to be [`flushed`](Connection::flush) when what was asked for is in force. Returns the events for
    /// everybody else, and the flush that it has to wait for.
    pub(super) fn serve(
        &mut self,
        server: &mut Server,
        backend: &mut dyn Backend,
        now: u64,
        buffer: &mut [u8],
        events: &mut Vec<Event>,
    ) -> Result<Option<Flush>, Ended> {
        let (mut read, mut requests) = (0, 0);
        while requests < self.turn() && self.wants_read() {
            let len = match recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                // A datagram of no bytes says nothing; on a closed connection it says so.
                Ok((_, 0)) => return Err(Ended),
                Ok((_, len)) => len,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(_) => return Err(Ended),
            };
            read += 1;
            requests += 1;
            if is_pause(&buffer[..len.min(buffer.len())]) {
                break;
            }
            if len > buffer.len() {
                self.refuse_oversized(buffer);
            } else if self.obey(&buffer[..len]) {
                // Its own events come before its own replies, from the next request on.
                server.listen_too(self.groups);
            } else {
                requests += Datagram::new(&buffer[..len]).skip(1).count();
                let flush = self.answer(server, &*backend, now, &buffer[..len], events);
                self.flushing = flush.is_some();
                if self.flushing {
                    buffer[..len].fill(0);
                    return Ok(flush);
                }
            }
            buffer[..len.min(REQUEST_MAX)].fill(0);
            if self.dump.is_some() {
                commit(server, backend)?;
                self.flush(server, &*backend)?;
            }
        }
        self.alone = if read > 1 { 0 } else { self.alone.wrapping_add(1) };
        Ok(None)
    }

    fn answer(
        &mut self,
        server: &mut Server,
        counters: &dyn Counters,
        now: u64,
        request: &[u8],
        events: &mut Vec<Event>,
    ) -> Option<Flush> {
        self.client.dumping = self.dump.is_some();
        let handled = server.handle(&self.client, request, now, counters);
        self.take(handled.deliveries, events);
        self.dump = handled.dump.or(self.dump.take());
        handled.flush
    }

    /// Queues what its own request produced. Its own event comes before its own reply.
    pub(super) fn take(&mut self, deliveries: Vec<Delivery>, events: &mut Vec<Event>) {
        for delivery in deliveries {
            match delivery {
                Delivery::Reply(bytes) => self.push(Queued::Reply(bytes)),
                Delivery::Event(event) => {
                    self.notify(&event);
                    events.push(event);
                }
            }
        }
    }

    /// A control frame changes what the server knows of the program. Whether it was one.
    fn obey(&mut self, frame: &[u8]) -> bool {
        let Ok((header, payload)) = Header::read_from_prefix(frame) else { return false };
        let known = [shim::BIND, shim::MEMBERSHIP, shim::OPTION];
        if !known.contains(&header.kind) {
            return false;
        }
        let Ok(([first, second], _)) = <[u32; 2]>::read_from_prefix(payload) else { return true };
        let on = second != 0;
        match (header.kind, first) {
            (shim::BIND, port) => {
                self.client.port = port;
                self.groups = second;
            }
            (shim::MEMBERSHIP, number) if on => self.groups |= group::bit(number),
            (shim::MEMBERSHIP, number) => self.groups &= !group::bit(number),
            (_, shim::OPTION_EXT_ACK) => self.client.ext_ack = on,
            (_, shim::OPTION_CAP_ACK) => self.client.cap_ack = on,
            _ => {}
        }
        true
    }

    /// A request that does not fit is refused as a netlink socket refuses to send it.
    fn refuse_oversized(&mut self, start: &[u8]) {
        let (header, _) = Header::read_from_prefix(start).unwrap_or_default();
        let client = Client { cap_ack: true, ..self.client };
        let reply = super::server::refusal(&client, &header, Errno::MSGSIZE);
        self.push(Queued::Reply(reply));
    }

    /// Queues an event, if the program listens and its queue has room.
    pub(super) fn notify(&mut self, event: &Event) {
        if self.groups & group::bit(event.group) == 0 {
            return;
        }
        if self.overrun || self.queued_bytes + event.bytes.len() > EVENTS_MAX {
            self.overrun = true;
            return;
        }
        self.push(Queued::Event(Arc::clone(&event.bytes)));
    }

    /// Whether it would lose events soon that come in numbers. Who has lost some already is told so, and waited for
    /// no longer: it may never read.
    pub(super) fn is_behind(&self, number: u32) -> bool {
        let listens = self.groups & group::bit(number) != 0;
        listens && !self.overrun && self.queued_bytes > EVENTS_BEHIND
    }

    fn push(&mut self, queued: Queued) {
        self.queued_bytes += queued.bytes().len();
        self.reply_bytes += queued.reply_len();
        self.queue.push_back(queued);
    }

    /// Sends what the program takes. A dump is continued when all before it was taken, so it
    /// never holds more than one part.
    pub(super) fn flush(&mut self, server: &Server, counters: &dyn Counters) -> Result<(), Ended> {
        let mut parts = 0;
        loop {
            while let Some(first) = self.queue.front() {
                let (len, reply_len) = (first.bytes().len(), first.reply_len());
                match send(&self.fd, first.bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                    Ok(_) => {}
                    Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(()),
                    Err(Errno::INTR) => continue,
                    Err(_) => return Err(Ended),
                }
                self.queue.pop_front();
                self.queued_bytes -= len;
                self.reply_bytes -= reply_len;
            }
            if self.overrun {
                self.overrun = false;
                let header =
                    Header { len: HEADER_LEN as u32, kind: NLMSG_OVERRUN, ..Header::default() };
                let mut bytes = [0; HEADER_LEN];
                bytes.copy_from_slice(header.as_bytes());
                self.push(Queued::Overrun(bytes));
                continue;
            }
            if parts == PARTS_MAX || !self.continue_dump(server, counters) {
                return Ok(());
            }
            parts += 1;
        }
    }

    /// Queues the next part of a dump. Whether there was one.
    fn continue_dump(&mut self, server: &Server, counters: &dyn Counters) -> bool {
        let Some(dump) = &mut self.dump else { return false };
        let part = server.dump_next(dump, counters);
        if dump.is_over() {
            self.dump = None;
        }
        let found = part.is_some();
        if let Some(part) = part {
            self.push(Queued::Reply(part));
        }
        found
    }
}
