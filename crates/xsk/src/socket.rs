//! One AF_XDP socket: one queue of one interface, with its four rings, over the shared UMEM.
//!
//! The first socket registers the UMEM with the kernel; every later one, whatever its interface
//! and queue, joins a live one (`XDP_SHARED_UMEM`), so that a frame received by one socket can be
//! sent by another without a copy. Each (interface, queue) has fill and completion rings of its
//! own, which belong to its first socket; further sockets of the same queue receive what the first
//! one fed, and what they send comes back to it. Does not choose queues (`xdp`) and does not steer
//! packets (`program`).

mod bind;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};

use self::bind::Target;
use crate::error::XskError;
use crate::frame::Frame;
use crate::port::PortCounters;
use crate::ring::{Moved, SocketRings};
use crate::sys;
use crate::umem::{Live, Pool, Umem};
use crate::xdp::XdpOptions;

/// Empty calls of [`Socket::receive`] per wake-up of a driver that has frames to take and goes on saying that
/// it sleeps, as one with longer rings than ours does: a system call takes as long as some ten such calls.
const CALLS_PER_WAKE: u32 = 16;

/// Kicks without progress after which [`Socket::flush`] leaves the packets for the next time: the
/// interface is down, or its peer does not take packets. Never wait in a worker.
const IDLE_KICKS_MAX: u32 = 4;

#[derive(Debug)]
pub(crate) struct Socket {
    rings: SocketRings,
    fd: Arc<OwnedFd>,
    umem: &'static Umem,
    interface: u32,
    queue: u32,
    role: Role,
    zero_copy: bool,
    /// Frames that the fill ring lacks: what was received and not yet replaced.
    deficit: usize,
    way: Way,
    /// The fill ring has frames that its flag was not read after, in order.
    unseen: bool,
    /// Empty calls of `receive` until the driver is woken again.
    calls_left: u32,
}

/// What became of the packets that the kernel was told of last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// They leave, or will.
    Open,
    /// The interface is down: what is in the ring leaves with the first packet sent when it is up again.
    Down,
    /// The interface is gone, and with it the socket's binding; another one of its name is not the same.
    Gone,
}

/// Which of a queue's sockets one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The only one.
    Alone,
    /// The first of several: it feeds all of them.
    Feeds,
    /// One that the first feeds.
    IsFed,
}

impl Socket {
    /// Opens a socket of one queue and, if it is the first, fills the fill ring from `pool`.
    pub(crate) fn open(
        interface: &str,
        index: u32,
        queue: u32,
        role: Role,
        pool: &mut Pool,
        options: XdpOptions,
    ) -> Result<Socket, XskError> {
        let umem = pool.umem();
        // Held while binding, so that two first sockets do not both register the memory.
        let mut live = umem.sockets().lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|socket| socket.fd.strong_count() > 0);
        // Who is fed shares the rings of this very queue, whoever feeds must not.
        let is_fed = role == Role::IsFed;
        let fits = |socket: &&Live| match socket.role {
            Role::Feeds if is_fed => (socket.interface, socket.queue) == (index, queue),
            Role::Alone | Role::Feeds => !is_fed,
            Role::IsFed => false,
        };
        let sibling = live.iter().filter(fits).find_map(|socket| socket.fd.upgrade());
        let target = Target { interface, index, queue, is_fed, options };
        let (fd, rings) = match target.bind(umem, sibling.as_deref()) {
            // The sibling's zero copy does not suit this interface (EOPNOTSUPP), it holds this
            // very queue (EINVAL), or its interface is gone (EBADF). Registering the same memory
            // once more works, and frames still cross without a copy, or it says what is wrong.
            Err(XskError::Kernel { .. }) if sibling.is_some() && !is_fed => {
                target.bind(umem, None)?
            }
            result => result?,
        };
        let at =
            |source| XskError::kernel("read the state of the AF_XDP socket", interface, source);
        let zero_copy = sys::is_zero_copy(fd.as_fd()).map_err(at)?;
        sys::statistics(fd.as_fd()).map_err(at)?;
        let fd = Arc::new(fd);
        live.push(Live { fd: Arc::downgrade(&fd), interface: index, queue, role });
        let deficit = if is_fed { 0 } else { options.ring_entries as usize };
        let mut socket = Socket {
            rings,
            fd,
            umem,
            interface: index,
            queue,
            role,
            zero_copy,
            deficit,
            way: Way::Open,
            unseen: false,
            calls_left: 0,
        };
        socket.refill(pool, &mut PortCounters::default());
        Ok(socket)
    }

    pub(crate) fn queue(&self) -> u32 {
        self.queue
    }

    /// Whether other sockets depend on its turns.
    pub(crate) fn feeds_others(&self) -> bool {
        self.role == Role::Feeds
    }

    pub(crate) fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn receive<S>(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<S>,
        max: usize,
        make: impl FnMut(Frame) -> S,
        counters: &mut PortCounters,
    ) -> Moved {
        let moved = self.rings.rx.pop_run(into, max, make);
        if moved.packets > 0 {
            self.rings.rx.release();
            self.deficit += moved.packets;
            counters.count_received(moved);
        }
        self.refill(pool, counters);
        if moved.packets == 0 {
            self.wake(counters);
        }
        moved
    }

    /// Gives the kernel a new frame for each one received.
    fn refill(&mut self, pool: &mut Pool, counters: &mut PortCounters) {
        let Some((fill, _)) = &mut self.rings.feed else { return };
        if self.role == Role::Feeds {
            // What the others received only the ring itself can tell.
            self.deficit = fill.free();
        }
        if self.deficit == 0 {
            return;
        }
        let mut pushed = 0;
        while pushed < self.deficit {
            let Some(frame) = pool.take() else { break };
            if let Err(frame) = fill.push(frame) {
                pool.give(frame);
                break;
            }
            pushed += 1;
        }
        self.deficit -= pushed;
        fill.publish();
        self.unseen = true;
        if fill.needs_wakeup() {
            self.kick_receive(counters);
        }
    }

    /// Wakes a driver that went to sleep while it was given frames: each side may miss what the other one
    /// has just written. Only where nothing was received, so that packets do not pay for the fence.
    fn wake(&mut self, counters: &mut PortCounters) {
        let Some((fill, _)) = &self.rings.feed else { return };
        if std::mem::take(&mut self.unseen) {
            fence(Ordering::SeqCst);
            self.calls_left = 0;
        }
        if !fill.needs_wakeup() {
            return;
        }
        if self.calls_left > 0 {
            self.calls_left -= 1;
            return;
        }
        self.calls_left = CALLS_PER_WAKE - 1;
        self.kick_receive(counters);
    }

    /// Only tells the driver to look; errors show in the counters as missing frames.
    fn kick_receive(&self, counters: &mut PortCounters) {
        counters.kicks += 1;
        let _ = sys::kick_receive(self.as_fd());
    }

    pub(crate) fn send(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut Pool,
        counters: &mut PortCounters,
    ) -> usize {
        self.reap(pool);
        if self.way == Way::Gone {
            return lose(frames, pool, counters);
        }
        let count = self.push(frames, |frame| Some(frame.take()), pool, counters);
        frames.drain(..count);
        if self.way == Way::Down {
            // Nobody empties the ring, and nobody shall wait for it.
            return count + lose(frames, pool, counters);
        }
        counters.tx_ring_full += frames.len() as u64;
        count
    }

    /// Takes packets out of the first of `slots`, as long as `take` takes one and there is room; none unless they leave.
    pub(crate) fn send_from<S>(
        &mut self,
        slots: &mut [S],
        take: impl FnMut(&mut S) -> Option<Frame>,
        pool: &mut Pool,
        counters: &mut PortCounters,
    ) -> usize {
        match self.way {
            Way::Open => self.push(slots, take, pool, counters),
            Way::Down | Way::Gone => 0,
        }
    }

    /// The same whatever becomes of them. Empty ones, which the kernel would refuse, are given up.
    fn push<S>(
        &mut self,
        slots: &mut [S],
        mut take: impl FnMut(&mut S) -> Option<Frame>,
        pool: &mut Pool,
        counters: &mut PortCounters,
    ) -> usize {
        let mut taken = 0;
        loop {
            let mut empty = None;
            let moved = self.rings.tx.push_run(&mut slots[taken..], |slot| {
                let frame = take(slot)?;
                if frame.is_empty() {
                    empty = Some(frame);
                    return None;
                }
                Some(frame)
            });
            taken += moved.packets;
            counters.count_sent(moved);
            let Some(frame) = empty else { break };
            taken += 1;
            counters.tx_invalid += 1;
            pool.give(frame);
        }
        self.rings.tx.publish();
        taken
    }

    /// Kicks until the kernel has taken everything, or takes no more; returns what is left. Nothing is left to
    /// wait for while the interface is down or gone.
    pub(crate) fn flush(&mut self, pool: &mut Pool, counters: &mut PortCounters) -> usize {
        if self.way == Way::Gone {
            return 0;
        }
        let mut idle = 0;
        let mut pending = self.rings.tx.pending();
        while pending > 0 && idle < IDLE_KICKS_MAX && self.rings.tx.needs_wakeup() {
            counters.kicks += 1;
            self.way = match sys::kick_send(self.as_fd()).map_err(|error| error.raw_os_error()) {
                // EAGAIN: the budget is used up, or the kernel has no memory for the packet now.
                Ok(()) | Err(Some(libc::EAGAIN | libc::ENOBUFS)) => Way::Open,
                // The kernel took the packet off the ring and the device refused it.
                Err(Some(libc::EBUSY)) => {
                    counters.tx_dropped += 1;
                    Way::Open
                }
                Err(Some(libc::ENETDOWN)) => Way::Down,
                // Their frames are lost to the pool, like those that wait for packets to come.
                Err(Some(libc::ENXIO | libc::ENODEV)) => {
                    counters.tx_dropped += pending as u64;
                    Way::Gone
                }
                Err(_) => break,
            };
            self.reap(pool);
            if self.way != Way::Open {
                return 0;
            }
            let left = self.rings.tx.pending();
            idle = if left < pending { 0 } else { idle + 1 };
            pending = left;
        }
        self.reap(pool);
        pending
    }

    /// Collects the frames whose packets have left.
    pub(crate) fn reap(&mut self, pool: &mut Pool) {
        let Some((_, completion)) = &mut self.rings.feed else { return };
        let mut reaped = false;
        while let Some(frame) = completion.pop() {
            pool.give(frame);
            reaped = true;
        }
        if reaped {
            completion.release();
        }
    }

    /// Adds what the kernel counted for this socket; to the first of several sockets of a queue, what
    /// all of them lost for want of a frame or of room in it, as only their sum can be told apart.
    pub(crate) fn add_statistics(&self, counters: &mut PortCounters) {
        let dropped_by_others = self.dropped_by_fed();
        // Checked when the socket was opened; cannot fail on a bound socket.
        let Ok(kernel) = sys::statistics(self.as_fd()) else {
            return;
        };
        counters.rx_ring_full += kernel.rx_ring_full;
        counters.tx_invalid += kernel.tx_invalid_descs;
        if self.zero_copy {
            // A driver that finds the fill ring empty has lost nothing yet; the NIC counts misses.
            counters.rx_oversize += kernel.rx_dropped;
        } else {
            // In copy mode `rx_dropped` counts both packets without a frame and long packets of this
            // socket, and each packet without a frame has found the fill ring empty exactly once.
            // Every socket that shares a fill ring is told of all that found it empty: who feeds
            // them counts for them. Their drops were read first, so that a packet that is lost
            // meanwhile is no long one.
            if self.role != Role::IsFed {
                let no_frame = kernel.rx_fill_ring_empty_descs;
                counters.rx_no_frame += no_frame;
                let dropped = kernel.rx_dropped + dropped_by_others;
                counters.rx_oversize += dropped.saturating_sub(no_frame);
            }
        }
    }

    /// Packets that the sockets which this one feeds lost, without a frame or longer than one.
    fn dropped_by_fed(&self) -> u64 {
        if self.role != Role::Feeds || self.zero_copy {
            return 0;
        }
        let live = self.umem.sockets().lock().unwrap_or_else(PoisonError::into_inner);
        let place = (self.interface, self.queue);
        live.iter()
            .filter(|one| one.role == Role::IsFed && (one.interface, one.queue) == place)
            .filter_map(|one| sys::statistics(one.fd.upgrade()?.as_fd()).ok())
            .map(|kernel| kernel.rx_dropped)
            .sum()
    }
}

/// Gives up packets that no interface takes.
fn lose(frames: &mut Vec<Frame>, pool: &mut Pool, counters: &mut PortCounters) -> usize {
    let count = frames.len();
    counters.tx_packets += count as u64;
    counters.tx_dropped += count as u64;
    for frame in frames.drain(..) {
        counters.tx_bytes += frame.len() as u64;
        pool.give(frame);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdp::CopyMode;

    #[test]
    fn a_driver_that_fell_asleep_over_a_full_ring_is_woken() {
        let mut pool = Umem::new(64, 2048, false).unwrap().pool(0..64);
        let options = XdpOptions { ring_entries: 32, copy: CopyMode::Copy };
        let index = sys::interface_index("lo").unwrap();
        let mut socket = Socket::open("lo", index, 0, Role::Alone, &mut pool, options).unwrap();
        let mut counters = PortCounters::default();
        let mut kicks = |socket: &mut Socket, calls| {
            let before = counters.kicks;
            for _ in 0..calls {
                let keep = |frame| frame;
                let moved = socket.receive(&mut pool, &mut Vec::new(), 64, keep, &mut counters);
                assert_eq!(moved.packets, 0);
            }
            counters.kicks - before
        };
        assert_eq!(socket.deficit, 0, "the ring is full");
        assert_eq!(kicks(&mut socket, 10), 0);
        socket.rings.feed.as_ref().unwrap().0.set_needs_wakeup(true);
        assert_eq!(kicks(&mut socket, 1), 1);
        assert_eq!(kicks(&mut socket, 2 * CALLS_PER_WAKE), 2, "and again, at leisure");
        socket.rings.feed.as_ref().unwrap().0.set_needs_wakeup(false);
        assert_eq!(kicks(&mut socket, 2 * CALLS_PER_WAKE), 0);
    }
}
