//! Requests to the kernel in batches: many in one datagram, and only what it refuses comes back.
//!
//! A request takes two system calls, of which a gateway with 50 000 tunnels makes as few as it can: what one
//! answer of its own stands for goes out in one datagram. Netlink carries out the requests of a datagram
//! one by one before `send` returns, so that every refusal waits to be read by then, each in a datagram of its own.
//!
//! It does not know what is requested, nor which refusals do no harm: whoever opens it says so.

use std::io;

use netlink_packet_core::{NLM_F_REQUEST, NLMSG_ERROR};
use rustix::io::Errno;
use wire::xfrm::{Builder, Header};
use zerocopy::FromBytes;

use super::{NetlinkSocket, Received, error_of, messages};

/// Bytes of requests that go out without being asked for: 500 routes, which the kernel takes in less than
/// three milliseconds. A netlink socket sends 200 KiB at most; the answers, if all are refused, fit into
/// its receive buffer.
const BATCH_BYTES: usize = 32 << 10;

/// An attribute of a message: its name and its value.
pub(crate) type Attribute = (u16, Vec<u8>);

/// Whether it does no harm that a request of this type is refused with this error.
pub(crate) type Harmless = fn(u16, Errno) -> bool;

/// The requests that go out next, and the socket on which they do.
#[derive(Debug)]
pub(crate) struct Batch {
    socket: NetlinkSocket,
    bytes: Vec<u8>,
    harmless: Harmless,
}

impl Batch {
    /// Opens a socket of a protocol.
    pub(crate) fn open(protocol: isize, harmless: Harmless) -> io::Result<Batch> {
        let socket = NetlinkSocket::open(protocol, 0)?;
        Ok(Batch { socket, bytes: Vec::new(), harmless })
    }

    /// The socket, on which nothing waits: for lists.
    pub(crate) fn socket(&mut self) -> &mut NetlinkSocket {
        &mut self.socket
    }

    /// Adds a request: its fixed part and its attributes. When the batch is full it goes out.
    ///
    /// # Errors
    /// As [`flush`](Batch::flush) has them; this request went out with the others.
    pub(crate) fn put(
        &mut self,
        kind: u16,
        flags: u16,
        fixed: &[u8],
        attributes: &[Attribute],
    ) -> io::Result<()> {
        let header = Header { kind, flags: flags | NLM_F_REQUEST, ..Header::default() };
        let mut message = Builder::new(&mut self.bytes, header).raw(fixed);
        for (name, value) in attributes {
            message = message.attribute(*name, &value[..]);
        }
        message.finish();
        if self.bytes.len() >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Has the kernel do what was put, and reads all of its answers: none is left for a later batch, which
    /// it would be held against.
    ///
    /// # Errors
    /// The first refusal that does harm. What was put after it is done all the same.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let sent = self.socket.send_batch(&self.bytes);
        self.bytes.clear();
        sent?;
        let mut outcome = Ok(());
        loop {
            let refusal = match self.socket.receive()? {
                Received::Empty => return outcome,
                Received::Overrun => {
                    Some(io::Error::other("the kernel refused more than it could say"))
                }
                Received::Datagram(datagram) => first_refusal(datagram, self.harmless),
            };
            outcome = outcome.and(refusal.map_or(Ok(()), Err));
        }
    }
}

/// The first refusal of a datagram that does harm. Behind its code it quotes the request's header.
fn first_refusal(datagram: &[u8], harmless: Harmless) -> Option<io::Error> {
    let answers = messages(datagram).filter(|one| one.message_type() == NLMSG_ERROR);
    let mut refusals = answers.into_iter().filter_map(|answer| {
        let error = error_of(answer.payload())?;
        let quoted = answer.payload().get(size_of::<i32>()..).unwrap_or_default();
        let kind = Header::read_from_prefix(quoted).map_or(0, |(header, _)| header.kind);
        let does_none = Errno::from_io_error(&error).is_some_and(|errno| harmless(kind, errno));
        (!does_none).then_some(error)
    });
    refusals.next()
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NLMSG_NOOP;
    use netlink_sys::protocols::NETLINK_ROUTE;

    use super::*;

    /// Asks for one link (linux/rtnetlink.h): ENODEV without it, for anybody.
    const RTM_GETLINK: u16 = 18;
    /// A type that rtnetlink does not have: EOPNOTSUPP.
    const UNKNOWN: u16 = 0xff00;

    /// A request for a link that is not there.
    fn put_missing(batch: &mut Batch) -> io::Result<()> {
        let index = i32::MAX.to_ne_bytes();
        batch.put(RTM_GETLINK, 0, &[&[0; 4], &index[..], &[0; 8]].concat(), &[])
    }

    fn errno_of(result: io::Result<()>) -> Option<Errno> {
        result.err().map(|error| Errno::from_io_error(&error).unwrap())
    }

    #[test]
    fn of_several_refusals_the_first_is_told_and_none_is_left_for_the_next_batch() {
        let mut batch = Batch::open(NETLINK_ROUTE, |_, _| false).unwrap();
        put_missing(&mut batch).unwrap();
        batch.put(UNKNOWN, 0, &[0; 16], &[]).unwrap();
        batch.put(UNKNOWN, 0, &[0; 16], &[]).unwrap();
        assert_eq!(errno_of(batch.flush()), Some(Errno::NODEV));
        batch.put(NLMSG_NOOP, 0, &[], &[]).unwrap();
        assert_eq!(errno_of(batch.flush()), None);
    }

    #[test]
    fn a_refusal_that_does_no_harm_hides_no_other() {
        let harmless: Harmless = |kind, errno| (kind, errno) == (RTM_GETLINK, Errno::NODEV);
        let mut batch = Batch::open(NETLINK_ROUTE, harmless).unwrap();
        put_missing(&mut batch).unwrap();
        assert_eq!(errno_of(batch.flush()), None);
        put_missing(&mut batch).unwrap();
        batch.put(UNKNOWN, 0, &[0; 16], &[]).unwrap();
        assert_eq!(errno_of(batch.flush()), Some(Errno::OPNOTSUPP));
    }

    #[test]
    fn a_full_batch_goes_out_by_itself() {
        let mut batch = Batch::open(NETLINK_ROUTE, |_, _| false).unwrap();
        let told = (0..BATCH_BYTES / 32).find_map(|_| put_missing(&mut batch).err());
        assert_eq!(errno_of(told.map_or(Ok(()), Err)), Some(Errno::NODEV));
        // All of its refusals were read: nothing is left to send, or to be told.
        assert_eq!(errno_of(batch.flush()), None);
        batch.put(NLMSG_NOOP, 0, &[], &[]).unwrap();
        assert_eq!(errno_of(batch.flush()), None);
    }
}
