//! The kernel's own policies, as far as they are ours: requests in batches.
//!
//! A request to the kernel takes two system calls, of which a gateway with 50 000 tunnels makes as few as
//! it can: what one answer of its own stands for goes out in one datagram. Netlink carries out the
//! requests of a datagram one by one before `send` returns, and only failures are answered.
//!
//! What the policies are for is `backstop.rs` and `host/shield.rs`.

use std::io;

use netlink_packet_core::{NLM_F_REQUEST, NLMSG_ERROR};
use netlink_sys::protocols::NETLINK_XFRM;
use rustix::io::Errno;
use wire::xfrm::attribute::AttributeIter;
use wire::xfrm::netlink::{HEADER_LEN, Header};
use wire::xfrm::number::msg;
use wire::xfrm::policy::{UserpolicyId, UserpolicyInfo};
use zerocopy::{FromBytes, IntoBytes};

use crate::route_feed::socket::{NetlinkSocket, Received, error_of, messages};

/// Bytes of requests that go out without being asked for. A netlink socket sends 200 KiB at most; the
/// answers, if all fail, fit into its receive buffer.
const BATCH_BYTES: usize = 32 << 10;

/// Requests to the kernel's policy database of this network namespace.
pub struct KernelPolicies {
    socket: NetlinkSocket,
    batch: Vec<u8>,
}

impl KernelPolicies {
    /// Opens a socket.
    ///
    /// # Errors
    /// The kernel has no XFRM.
    pub fn open() -> io::Result<KernelPolicies> {
        Ok(KernelPolicies { socket: NetlinkSocket::open(NETLINK_XFRM, 0)?, batch: Vec::new() })
    }

    /// Reads every policy that is there, whoever made it, with the attributes behind it. What the kernel
    /// refuses to list counts as not there.
    ///
    /// # Errors
    /// Reading was cut short. What was read until then has been told.
    pub fn read(
        &mut self,
        mut tell: impl FnMut(&UserpolicyInfo, AttributeIter<'_>),
    ) -> io::Result<()> {
        self.flush()?;
        let any = UserpolicyId::default();
        let refused = self.socket.dump(msg::GETPOLICY, any.as_bytes(), |body| {
            if let Ok((policy, rest)) = UserpolicyInfo::read_from_prefix(body) {
                tell(&policy, AttributeIter::new(rest));
            }
        });
        refused.map(drop)
    }

    /// Adds a request. A policy that is to be added and is there, or is to be removed and is not, will
    /// do as well; any other failure is told by [`flush`](KernelPolicies::flush), or by this when the
    /// batch is full.
    pub fn request(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        let len = HEADER_LEN + payload.len();
        let header = Header { len: len as u32, kind, flags: NLM_F_REQUEST, ..Header::default() };
        self.batch.extend_from_slice(header.as_bytes());
        self.batch.extend_from_slice(payload);
        self.batch.resize(self.batch.len().next_multiple_of(4), 0);
        if self.batch.len() >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Has the kernel do what was requested.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let sent = self.socket.send_batch(&self.batch);
        self.batch.clear();
        sent?;
        loop {
            match self.socket.receive()? {
                Received::Empty => return Ok(()),
                Received::Overrun => {
                    return Err(io::Error::other("the kernel's answers were lost"));
                }
                Received::Datagram(datagram) => {
                    let failures =
                        messages(datagram).filter(|one| one.message_type() == NLMSG_ERROR);
                    failures.into_iter().try_for_each(|one| judge(one.payload()))?;
                }
            }
        }
    }
}

/// What a failure comes to: its request's header is quoted behind the code.
fn judge(payload: &[u8]) -> io::Result<()> {
    let quoted = payload.get(size_of::<i32>()..).unwrap_or_default();
    let kind = Header::read_from_prefix(quoted).map_or(0, |(header, _)| header.kind);
    let harmless = if kind == msg::NEWPOLICY { Errno::EXIST } else { Errno::NOENT };
    match error_of(payload) {
        Some(error) if error.raw_os_error() != Some(harmless.raw_os_error()) => Err(error),
        _ => Ok(()),
    }
}
