//! Netlink, of whatever protocol: a socket that does not block, requests out, datagrams in.
//!
//! Who follows the kernel (`route_feed`) reads events and lists from a [`NetlinkSocket`]; who writes to it
//! (`gateway/rtnetlink.rs`, `gateway/kernel_policy.rs`) has a [`Batch`] of requests. Here the netlink
//! header is known, and nothing about what is inside a message.

mod batch;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{
    ErrorBuffer, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
};
use netlink_sys::{Socket, SocketAddr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use wire::xfrm::{Builder, Header};

pub(crate) use batch::{Attribute, Batch};

/// The largest datagram taken in one piece. The kernel builds dump parts of at most 32 KiB; a
/// single event is larger only for a route with thousands of next hops, which then is read again by
/// a dump.
const DATAGRAM_BYTES_MAX: usize = 128 << 10;
/// Bytes of events that wait in the kernel while the control thread does something else: 5000 route
/// events take about 4 MiB there. More only delays the overrun, which is handled anyway.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// How long a list may take.
const DUMP_TIMEOUT: Duration = Duration::from_secs(10);

/// The socket.
#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
}

/// What one read gave.
pub(crate) enum Received<'a> {
    /// Messages from the kernel, one after the other.
    Datagram(&'a [u8]),
    /// Nothing waits.
    Empty,
    /// Events were lost (the receive buffer was full, or a datagram was cut).
    Overrun,
}

impl NetlinkSocket {
    /// Opens a socket of a protocol and joins the multicast groups of a mask (group *n* is bit
    /// *n*-1).
    pub(crate) fn open(protocol: isize, groups: u32) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.set_non_blocking(true)?;
        // Needs CAP_NET_ADMIN; without it (probing as a user) the default size has to do.
        let forced =
            rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES);
        if forced.is_err() {
            rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)?;
        }
        socket.bind(&SocketAddr::new(0, groups))?;
        Ok(Self { socket, buffer: Vec::with_capacity(DATAGRAM_BYTES_MAX), sequence: 0 })
    }

    /// Has the kernel heed what a dump asks for (one table, say) instead of sending everything.
    pub(crate) fn be_strict(&self) -> io::Result<()> {
        self.socket.set_netlink_get_strict_chk(true)
    }

    /// Sends messages that are whole already, in one datagram. Their sequence numbers are theirs.
    fn send_batch(&mut self, messages: &[u8]) -> io::Result<()> {
        self.socket.send_to(messages, &SocketAddr::new(0, 0), 0).map(drop)
    }

    /// Makes the receive buffer small, so that a test can overrun it.
    #[cfg(test)]
    pub(crate) fn shrink_receive_buffer(&self, bytes: usize) {
        rustix::net::sockopt::set_socket_recv_buffer_size(&self.socket, bytes).unwrap();
    }

    /// Sends one request; the sequence number that its answers carry.
    pub(crate) fn send(&mut self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<u32> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let header = Header { kind, flags, seq: self.sequence, ..Header::default() };
        let mut bytes = Vec::new();
        Builder::new(&mut bytes, header).raw(payload).finish();
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
        Ok(self.sequence)
    }

    /// Reads one datagram. Datagrams that do not come from the kernel are skipped: any process may
    /// send to a netlink socket's port.
    pub(crate) fn receive(&mut self) -> io::Result<Received<'_>> {
        loop {
            self.buffer.clear();
            let truncate = RecvFlags::TRUNC.bits().cast_signed();
            let (length, sender) = match self.socket.recv_from(&mut self.buffer, truncate) {
                Ok(received) => received,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => return Ok(Received::Empty),
                    Some(Errno::NOBUFS) => return Ok(Received::Overrun),
                    Some(Errno::INTR) => continue,
                    _ => return Err(error),
                },
            };
            if sender.port_number() != 0 {
                continue;
            }
            if length > self.buffer.len() {
                return Ok(Received::Overrun);
            }
            return Ok(Received::Datagram(&self.buffer));
        }
    }

    /// Asks for a list and tells the body of each message of it, as [`list`](NetlinkSocket::list) does.
    pub(crate) fn dump(
        &mut self,
        kind: u16,
        request: &[u8],
        mut tell: impl FnMut(&[u8]),
    ) -> io::Result<Option<io::Error>> {
        let asked = self.send(kind, NLM_F_REQUEST | NLM_F_DUMP, request)?;
        self.list(asked, DUMP_TIMEOUT, |message| tell(message.payload()))
    }

    /// Tells each message of the list that was asked for with this sequence number; what the kernel says
    /// went wrong, if anything did. Nothing else may be waiting here.
    ///
    /// # Errors
    /// The list did not come as a whole, or took too long. What came until then has been told.
    pub(crate) fn list(
        &mut self,
        asked: u32,
        timeout: Duration,
        mut tell: impl FnMut(&NetlinkBuffer<&[u8]>),
    ) -> io::Result<Option<io::Error>> {
        let deadline = Instant::now() + timeout;
        loop {
            let datagram = match self.receive()? {
                Received::Empty => {
                    self.wait(deadline)?;
                    continue;
                }
                Received::Overrun => return Err(io::Error::other("too much to list")),
                Received::Datagram(datagram) => datagram,
            };
            for message in messages(datagram).filter(|one| one.sequence_number() == asked) {
                let body = message.payload();
                match message.message_type() {
                    // One that tells of no error is none that could be here.
                    NLMSG_ERROR => {
                        let unknown = || io::ErrorKind::InvalidData.into();
                        return Ok(Some(error_of(body).unwrap_or_else(unknown)));
                    }
                    NLMSG_DONE => {
                        let code = body.first_chunk().map_or(0, |c| i32::from_ne_bytes(*c));
                        return Ok((code < 0).then(|| io::Error::from_raw_os_error(-code)));
                    }
                    _ => tell(&message),
                }
            }
        }
    }

    /// Waits until something can be read.
    pub(crate) fn wait(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit)) {
            Ok(0) => Err(io::Error::from(io::ErrorKind::TimedOut)),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The messages of one datagram, up to the first that is not whole.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(rest).ok()?;
        let length = message.length() as usize;
        let whole = rest.get(..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        NetlinkBuffer::new_checked(whole).ok()
    })
}

/// The type of the request that an NLMSG_ERROR payload carries, which is the one that it refuses.
pub(crate) fn refused_type(payload: &[u8]) -> Option<u16> {
    let refusal = ErrorBuffer::new_checked(payload).ok()?;
    NetlinkBuffer::new_checked(refusal.payload()).ok().map(|request| request.message_type())
}

/// The error that an NLMSG_ERROR payload carries; `None` for an acknowledgement.
pub(crate) fn error_of(payload: &[u8]) -> Option<io::Error> {
    let buffer = ErrorBuffer::new_checked(payload).ok()?;
    buffer.code().map(|code| io::Error::from_raw_os_error(code.get().saturating_neg()))
}
