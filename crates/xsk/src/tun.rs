//! A TUN device as a port: the host's own packets, without a link header.
//!
//! ```text
//!   kernel's routes ──► device ──► queue of a worker ──► read()  ──► data plane
//!   kernel's sockets ◄── device ◄──────────────────────── write() ◄── data plane
//! ```
//!
//! Packets of one flow come by one queue; which, the kernel decides, and remembers where the flow was
//! last written. The device is persistent: it outlives the process, and drops what is routed to it
//! while nobody reads. Setting it up (addresses, routes, MTU) and removing it is control's business.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::error::XskError;
use crate::frame::Frame;
use crate::port::PortCounters;
use crate::ring::Moved;
use crate::sys;
use crate::umem::Pool;

/// Where queues are opened.
const CLONE_DEVICE: &str = "/dev/net/tun";

/// After a read that brought nothing, the kernel is asked again at the sixteenth call. A read costs
/// 0.15 µs and a full batch 30 µs: asking every time would cost a busy worker 0.5 %, this costs it
/// 0.03 %, and a packet of the host waits half a millisecond at most, where the worker is that busy.
const CALLS_PER_LOOK: u32 = 16;

/// One queue of a device.
#[derive(Debug)]
pub struct TunPort {
    queue: File,
    /// Calls of `receive` until the kernel is asked again.
    calls_left: u32,
    /// Somebody removed the device.
    gone: bool,
    counters: PortCounters,
}

impl TunPort {
    /// Opens another queue of a device, which is made if it does not exist, in the network namespace
    /// of the calling thread.
    ///
    /// # Errors
    /// There is no TUN driver, no permission, no queue left, or an interface of that name that is
    /// something else.
    pub fn open(device: &str) -> Result<TunPort, XskError> {
        let failed =
            |doing| move |source| XskError::Tun { device: device.to_owned(), doing, source };
        let queue = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(CLONE_DEVICE)
            .map_err(failed("open /dev/net/tun for a queue"))?;
        sys::attach_tun_queue(queue.as_fd(), device).map_err(failed("attach a queue"))?;
        Ok(TunPort { queue, calls_left: 0, gone: false, counters: PortCounters::default() })
    }

    pub(crate) fn receive<S>(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<S>,
        max: usize,
        mut make: impl FnMut(Frame) -> S,
    ) -> Moved {
        if self.calls_left > 0 || self.gone {
            self.calls_left = self.calls_left.saturating_sub(1);
            return Moved::default();
        }
        let mut moved = Moved::default();
        while moved.packets < max
            && let Some(mut frame) = pool.take()
        {
            let room = frame.tailroom();
            let read = match frame.push_back(room) {
                Some(room) => self.queue.read(room),
                None => Ok(0),
            };
            match read {
                Ok(len) if len > 0 => {
                    frame.truncate(len);
                    moved += Moved { packets: 1, bytes: len as u64 };
                    into.push(make(frame));
                    continue;
                }
                Ok(_) => {}
                Err(error) => self.note_read_error(&error),
            }
            pool.give(frame);
            break;
        }
        if moved.packets < max {
            self.calls_left = CALLS_PER_LOOK - 1;
        }
        self.counters.count_received(moved);
        moved
    }

    #[cold]
    fn note_read_error(&mut self, error: &std::io::Error) {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => {}
            _ if error.raw_os_error() == Some(libc::EBADFD) => self.gone = true,
            _ => self.counters.rx_oversize += 1,
        }
    }

    pub(crate) fn send(&mut self, frames: &mut Vec<Frame>, pool: &mut Pool) -> usize {
        let mut count = 0;
        for frame in frames.iter() {
            self.counters.kicks += 1;
            match self.queue.write(frame.bytes()) {
                Ok(_) => self.counters.tx_packets += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    self.counters.tx_invalid += 1;
                }
                Err(_) => {
                    self.counters.tx_packets += 1;
                    self.counters.tx_dropped += 1;
                }
            }
            self.counters.tx_bytes += frame.len() as u64;
            count += 1;
        }
        for frame in frames.drain(..count) {
            pool.give(frame);
        }
        self.counters.tx_ring_full += frames.len() as u64;
        count
    }

    pub(crate) fn counters(&self) -> PortCounters {
        self.counters
    }

    /// Readable when a packet waits; `None` once the device is gone, which would seem readable for
    /// ever.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.gone).then(|| self.queue.as_fd())
    }
}
