//! The bench's end of the XFRM interface: one socket, one request at a time, as an IKE daemon does.
//!
//! Either straight to the gateway's Unix socket, or through a netlink socket of this process, which
//! the preload library, if it is loaded, redirects to the same place.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use netlink_sys::protocols::NETLINK_XFRM;
use netlink_sys::{Socket, SocketAddr};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, recv, send, socket,
};
use wire::xfrm::netlink::{HEADER_LEN, NLM_F_ACK, NLMSG_DONE, NLMSG_ERROR};
use wire::xfrm::number::msg;
use wire::xfrm::{Datagram, Header, shim};
use zerocopy::{FromBytes, IntoBytes};

/// The errno of an error without one.
const EBADMSG: i32 = Errno::BADMSG.raw_os_error();
/// strongSwan's receive buffer.
const ANSWER_MAX: usize = 4096;

/// Why a request got no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The socket failed.
    #[error("the gateway's XFRM interface: {0}")]
    Io(#[from] io::Error),
    /// The gateway closed the connection.
    #[error("the gateway closed the connection")]
    Closed,
    /// The gateway refused.
    #[error("the gateway refused {request}: {error}")]
    Refused {
        /// The message's name.
        request: &'static str,
        /// The errno.
        error: io::Error,
    },
    /// The answer belongs to no request.
    #[error("the gateway answered {request} with something else: type {kind}, number {sequence}")]
    Answer {
        /// The message's name.
        request: &'static str,
        /// `nlmsg_type` of the answer.
        kind: u16,
        /// `nlmsg_seq` of the answer.
        sequence: u32,
    },
}

enum Wire {
    Direct(OwnedFd),
    Netlink(Socket),
}

/// A synchronous client.
pub struct Program {
    wire: Wire,
    buffer: [u8; ANSWER_MAX],
}

impl Program {
    /// Connects to a gateway's `xfrm.sock`.
    ///
    /// # Errors
    /// [`ProgramError`] if nobody accepts the connection.
    pub fn connect(path: &Path) -> Result<Program, ProgramError> {
        let fd =
            socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).map_err(io::Error::from)?;
        let address = SocketAddrUnix::new(path).map_err(io::Error::from)?;
        connect(&fd, &address).map_err(io::Error::from)?;
        let frame = shim::Frame::bind(std::process::id(), 0);
        send(&fd, frame.as_bytes(), SendFlags::NOSIGNAL).map_err(io::Error::from)?;
        Ok(Program { wire: Wire::Direct(fd), buffer: [0; ANSWER_MAX] })
    }

    /// Opens a netlink socket, as every XFRM program does.
    ///
    /// # Errors
    /// [`ProgramError`] if there is no such socket.
    pub fn netlink() -> Result<Program, ProgramError> {
        let mut socket = Socket::new(NETLINK_XFRM)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        Ok(Program { wire: Wire::Netlink(socket), buffer: [0; ANSWER_MAX] })
    }

    /// Sends a request and waits for its answer. An acknowledgement is an answer of no bytes.
    ///
    /// # Errors
    /// As of [`Program::receive`].
    pub fn ask(&mut self, request: &[u8]) -> Result<&[u8], ProgramError> {
        let asked = self.send(request)?;
        self.receive(asked)
    }

    /// Sends a request, whose answer is to be [`received`](Program::receive) after those of all
    /// requests before it.
    ///
    /// # Errors
    /// [`ProgramError`] if the connection ended.
    pub fn send(&mut self, request: &[u8]) -> Result<Asked, ProgramError> {
        match &self.wire {
            Wire::Direct(fd) => {
                send(fd, request, SendFlags::NOSIGNAL).map_err(io::Error::from)?;
            }
            Wire::Netlink(socket) => {
                socket.send_to(request, &SocketAddr::new(0, 0), 0)?;
            }
        }
        Ok(Asked(head(request).unwrap_or_default()))
    }

    /// Sends a datagram of several requests, and notes those that are answered if all is well.
    ///
    /// # Errors
    /// [`ProgramError`] if the connection ended.
    pub fn send_packed(
        &mut self,
        requests: &[u8],
        asked: &mut Vec<Asked>,
    ) -> Result<(), ProgramError> {
        self.send(requests)?;
        let headers = Datagram::new(requests).map(|(header, _)| header);
        let answered =
            |header: &Header| header.flags & NLM_F_ACK != 0 || header.kind == msg::ALLOCSPI;
        asked.extend(headers.filter(answered).map(Asked));
        Ok(())
    }

    /// Waits for the answer to a request.
    ///
    /// # Errors
    /// [`ProgramError`] if the connection ended, the request was refused, or something else was answered.
    pub fn receive(&mut self, asked: Asked) -> Result<&[u8], ProgramError> {
        let len = self.next()?;
        judge(asked, &self.buffer[..len])
    }

    /// Waits for the messages of a dump; how many there were.
    ///
    /// # Errors
    /// As of [`Program::receive`].
    pub fn receive_dump(&mut self, asked: Asked) -> Result<u64, ProgramError> {
        let mut messages = 0;
        loop {
            let len = self.next()?;
            for (header, _) in Datagram::new(&self.buffer[..len]) {
                match header.kind {
                    NLMSG_DONE => return Ok(messages),
                    NLMSG_ERROR => judge(asked, &self.buffer[..len]).map(drop)?,
                    _ => messages += 1,
                }
            }
            if len == 0 {
                return Err(ProgramError::Closed);
            }
        }
    }

    /// The length of the next datagram, which is in the buffer.
    fn next(&mut self) -> Result<usize, ProgramError> {
        Ok(match &self.wire {
            Wire::Direct(fd) => {
                recv(fd, &mut self.buffer[..], RecvFlags::empty()).map_err(io::Error::from)?.0
            }
            Wire::Netlink(socket) => socket.recv(&mut &mut self.buffer[..], 0)?,
        })
    }
}

/// A request that was sent: its header.
#[derive(Clone, Copy, Debug)]
pub struct Asked(Header);

fn head(bytes: &[u8]) -> Option<Header> {
    Header::read_from_prefix(bytes).ok().map(|(header, _)| header)
}

/// Whether `answer` is the good answer to a request.
fn judge(Asked(asked): Asked, answer: &[u8]) -> Result<&[u8], ProgramError> {
    let header = head(answer).ok_or(ProgramError::Closed)?;
    let error = (header.kind == NLMSG_ERROR).then(|| {
        i32::read_from_prefix(&answer[HEADER_LEN..])
            .map_or((EBADMSG, None), |(code, quoted)| (-code, head(quoted)))
    });
    if let Some((errno @ 1.., quoted)) = error {
        // Maybe of a request before it in the datagram, that would not have been acknowledged.
        let request = wire::xfrm::message::name(quoted.unwrap_or(asked).kind);
        return Err(ProgramError::Refused { request, error: io::Error::from_raw_os_error(errno) });
    }
    if header.seq != asked.seq {
        let request = wire::xfrm::message::name(asked.kind);
        return Err(ProgramError::Answer { request, kind: header.kind, sequence: header.seq });
    }
    Ok(if error.is_some() { &[] } else { answer })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, seq: u32, body: &[u8]) -> Vec<u8> {
        [Header { len: 16, kind, seq, ..Header::default() }.as_bytes(), body].concat()
    }

    #[test]
    fn answers_are_told_apart() {
        let request = Asked(Header { kind: 0x10, seq: 9, ..Header::default() });
        let fine = message(NLMSG_ERROR, 9, &0_i32.to_ne_bytes());
        assert!(judge(request, &fine).unwrap().is_empty());
        assert!(judge(request, &message(0x10, 9, &[1])).unwrap().len() > HEADER_LEN);
        let refusal = message(NLMSG_ERROR, 9, &(-17_i32).to_ne_bytes());
        assert!(matches!(judge(request, &refusal), Err(ProgramError::Refused { error, .. })
            if error.raw_os_error() == Some(17)));
        let cut = message(NLMSG_ERROR, 9, &[0; 3]);
        assert!(matches!(judge(request, &cut), Err(ProgramError::Refused { .. })));
        let before = message(msg::NEWSA, 8, &[]);
        let refusal = message(NLMSG_ERROR, 8, &[&(-22_i32).to_ne_bytes()[..], &before].concat());
        assert!(matches!(judge(request, &refusal), Err(ProgramError::Refused { request, .. })
            if request == wire::xfrm::message::name(msg::NEWSA)));
        let other = message(NLMSG_ERROR, 8, &0_i32.to_ne_bytes());
        assert!(matches!(judge(request, &other), Err(ProgramError::Answer { sequence: 8, .. })));
        assert!(matches!(judge(request, &[]), Err(ProgramError::Closed)));
    }
}
