//! Binding a socket: its memory, its rings, its queue.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::error::XskError;
use crate::ring::{self, Sizes, SocketRings};
use crate::sys;
use crate::umem::Umem;
use crate::xdp::{CopyMode, XdpOptions};

/// How long a busy queue is tried again: the kernel frees the queue of a closed socket from a
/// work queue, typically within 20 ms, so a quick restart meets its own past. Where every core is busy
/// it takes more than a second, and to refuse the start then would leave the interfaces closed.
const BUSY_RETRY_MAX: Duration = Duration::from_secs(5);
const BUSY_RETRY_PAUSE: Duration = Duration::from_millis(2);

/// Packets that one kick may send: with the kernel's default of 32 the forwarder spends its time
/// in system calls (0.5 instead of 1 Mpps measured on veth); above 256 nothing is gained.
const SEND_BUDGET_PACKETS: u32 = 256;

/// Bytes that packets sent in copy mode may hold in the kernel before it says EAGAIN. The default
/// (208 KiB) is about 100 long packets, fewer than one kick sends.
const SEND_BUFFER_BYTES: i32 = 4 << 20;

/// What a socket is to be bound to.
pub(super) struct Target<'a> {
    pub(super) interface: &'a str,
    pub(super) index: u32,
    pub(super) queue: u32,
    pub(super) is_fed: bool,
    pub(super) options: XdpOptions,
}

impl Target<'_> {
    /// Binds a new socket; to the memory of `sibling`, if there is one, else to `umem` anew.
    pub(super) fn bind(
        &self,
        umem: &'static Umem,
        sibling: Option<&OwnedFd>,
    ) -> Result<(OwnedFd, SocketRings), XskError> {
        let fd = sys::xdp_socket().map_err(|source| self.socket_error(source))?;
        if sibling.is_none() {
            sys::register_umem(fd.as_fd(), umem.memory(), umem.chunk_size() as u32)
                .map_err(|source| self.register_error(source, umem))?;
        }
        let sizes = Sizes { entries: self.options.ring_entries, feeds: !self.is_fed };
        let rings = ring::map_socket(umem, fd.as_fd(), sizes)
            .map_err(|source| self.error("map the rings of an AF_XDP socket", source))?;
        // Both only make sending faster; kernels before 6.17 do not know the first.
        let _ = sys::set_send_budget(fd.as_fd(), SEND_BUDGET_PACKETS);
        let _ = sys::set_send_buffer(fd.as_fd(), SEND_BUFFER_BYTES);
        self.bind_patiently(&fd, &self.address(sibling))?;
        Ok((fd, rings))
    }

    fn address(&self, sibling: Option<&OwnedFd>) -> libc::sockaddr_xdp {
        // A socket that shares a UMEM takes over the flags of the one it shares with.
        let (flags, shared) = match (sibling, self.options.copy) {
            (Some(sibling), _) => (libc::XDP_SHARED_UMEM, sibling.as_raw_fd() as u32),
            (None, CopyMode::Auto) => (libc::XDP_USE_NEED_WAKEUP, 0),
            (None, CopyMode::Copy) => (libc::XDP_USE_NEED_WAKEUP | libc::XDP_COPY, 0),
            (None, CopyMode::Zero) => (libc::XDP_USE_NEED_WAKEUP | libc::XDP_ZEROCOPY, 0),
        };
        libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: self.index,
            sxdp_queue_id: self.queue,
            sxdp_shared_umem_fd: shared,
        }
    }

    fn bind_patiently(&self, fd: &OwnedFd, address: &libc::sockaddr_xdp) -> Result<(), XskError> {
        let begin = Instant::now();
        loop {
            let Err(source) = sys::bind(fd.as_fd(), address) else {
                return Ok(());
            };
            if source.raw_os_error() != Some(libc::EBUSY) {
                return Err(self.error("bind an AF_XDP socket", source));
            }
            if begin.elapsed() >= BUSY_RETRY_MAX {
                let interface = self.interface.to_owned();
                return Err(XskError::QueueBusy { interface, queue: self.queue });
            }
            std::thread::sleep(BUSY_RETRY_PAUSE);
        }
    }

    fn error(&self, doing: &'static str, source: io::Error) -> XskError {
        XskError::kernel(doing, self.interface, source)
    }

    fn socket_error(&self, source: io::Error) -> XskError {
        match source.raw_os_error() {
            Some(libc::EPERM) => {
                XskError::Permission { doing: "open an AF_XDP socket", capability: "CAP_NET_RAW" }
            }
            Some(libc::EAFNOSUPPORT) => XskError::NoAfXdp,
            _ => self.error("open an AF_XDP socket", source),
        }
    }

    fn register_error(&self, source: io::Error, umem: &Umem) -> XskError {
        match source.raw_os_error() {
            Some(libc::ENOBUFS | libc::EPERM) => {
                XskError::MemoryLock { mebibytes: umem.memory().len().div_ceil(1 << 20) }
            }
            _ => self.error("register the packet memory", source),
        }
    }
}
