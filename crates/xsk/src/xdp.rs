//! One network interface as one worker sees it: the AF_XDP sockets of the queues that are its own.
//!
//! With no fewer queues than workers, queue `q` belongs to worker `q % workers`. With fewer, worker `w`
//! has a socket of its own on queue `w % queues`, and the XDP program chooses between the sockets of one
//! queue: software takes over what the NIC cannot. Packets are received from all own sockets in turn and
//! sent through the first one. Does not attach XDP programs: `program` does, and
//! [`XdpPort::lanes`] says what to register there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::error::XskError;
use crate::frame::Frame;
use crate::port::PortCounters;
use crate::ring::Moved;
use crate::socket::{Role, Socket};
use crate::sys;
use crate::umem::Pool;

/// How the sockets of a port are made.
#[derive(Clone, Copy, Debug)]
pub struct XdpOptions {
    /// Entries of each of the four rings of a queue, a power of two.
    ///
    /// 2048 packets last 0.4 ms at the 5 Mpps that one core can receive on veth; half of it loses
    /// packets whenever a worker is delayed by one batch of long work. A pool should have about
    /// three times as many frames per queue: in the fill ring, on their way, and being sent.
    pub ring_entries: u32,
    /// Whether the driver is to use the packet memory directly.
    pub copy: CopyMode,
}

impl Default for XdpOptions {
    fn default() -> XdpOptions {
        XdpOptions { ring_entries: 2048, copy: CopyMode::Auto }
    }
}

/// How packets get from the driver into the packet memory.
///
/// Decided by the first socket of a packet memory; the others join it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// Directly where the driver can, else by copying.
    Auto,
    /// By copying.
    Copy,
    /// Directly; opening the port fails where the driver cannot.
    Zero,
}

/// Receive queues of an interface that are in use; 1 if its driver does not tell.
///
/// # Errors
///
/// When there is no such interface in the calling thread's network namespace.
pub fn receive_queues(interface: &str) -> std::io::Result<u32> {
    sys::interface_queues(interface).map(|(receive, _)| receive)
}

/// Transmit queues of an interface that are in use; 1 if its driver does not tell. What a socket of a queue
/// beyond them sends stays in its ring, and the kernel says nothing.
///
/// # Errors
///
/// When there is no such interface in the calling thread's network namespace.
pub fn transmit_queues(interface: &str) -> std::io::Result<u32> {
    sys::interface_queues(interface).map(|(_, transmit)| transmit)
}

/// The own queues of one interface.
#[derive(Debug)]
pub struct XdpPort {
    sockets: Vec<Socket>,
    /// Readable when any socket is; only with more than one.
    any: Option<OwnedFd>,
    /// The socket that is asked first next time.
    turn: usize,
    /// The place among the sockets of a queue.
    lane: u32,
    /// How many there are.
    lanes: u32,
    counters: PortCounters,
}

/// A socket's place in an XDP program.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    /// The receive queue.
    pub queue: u32,
    /// The socket's place among those of the queue.
    pub index: u32,
    /// How many sockets the queue has.
    pub count: u32,
    /// The socket.
    pub socket: BorrowedFd<'a>,
}

impl XdpPort {
    /// Opens what belongs to `worker` of `workers` of `interface`, over the UMEM of `pool`, and gives the
    /// kernel frames of `pool` to receive into. The interface is one of the calling thread's network
    /// namespace. Where workers share queues, worker 0 comes first, then worker 1, and so on, each
    /// while those before it are open; their pools should [share](Pool::share).
    ///
    /// Frames that the kernel holds when the port is dropped are lost to the pool.
    ///
    /// # Errors
    ///
    /// Any [`XskError`] about sockets; nothing is left behind.
    ///
    /// # Panics
    ///
    /// When `worker` is not below `workers`.
    pub fn open(
        interface: &str,
        worker: usize,
        workers: usize,
        pool: &mut Pool,
        options: XdpOptions,
    ) -> Result<XdpPort, XskError> {
        assert!(worker < workers, "worker {worker} of {workers}");
        let find = |source| XskError::interface(interface, source);
        let index = sys::interface_index(interface).map_err(find)?;
        let queues = receive_queues(interface).map_err(find)? as usize;
        let shared = queues < workers;
        let lane = if shared { worker / queues } else { 0 };
        // Of those, the first `workers % queues` queues have one more.
        let own = worker % queues;
        let lanes = if shared { (workers - own).div_ceil(queues) } else { 1 };
        let role = match (lanes, lane) {
            (1, _) => Role::Alone,
            (_, 0) => Role::Feeds,
            _ => Role::IsFed,
        };
        let own = if shared { own..own + 1 } else { worker..queues };
        let sockets = own
            .step_by(workers)
            .map(|queue| Socket::open(interface, index, queue as u32, role, pool, options))
            .collect::<Result<Vec<Socket>, XskError>>()?;
        let fds: Vec<BorrowedFd<'_>> = sockets.iter().map(Socket::as_fd).collect();
        let any = if fds.len() > 1 {
            let error = |source| XskError::kernel("watch the sockets", interface, source);
            Some(sys::any_of(&fds).map_err(error)?)
        } else {
            None
        };
        let (lane, lanes) = (lane as u32, lanes as u32);
        Ok(XdpPort { sockets, any, turn: 0, lane, lanes, counters: PortCounters::default() })
    }

    /// The sockets of this port, to be registered with the XDP program.
    pub fn lanes(&self) -> impl Iterator<Item = Lane<'_>> {
        self.sockets.iter().map(|socket| Lane {
            queue: socket.queue(),
            index: self.lane,
            count: self.lanes,
            socket: socket.as_fd(),
        })
    }

    /// The queues of this port with their sockets, for a program that gives each queue to one socket.
    pub fn queues(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        self.sockets.iter().map(|socket| (socket.queue(), socket.as_fd()))
    }

    pub(crate) fn feeds(&self) -> bool {
        self.lane == 0
    }

    /// Whether sockets of other workers depend on this one's turns: it feeds them.
    pub(crate) fn feeds_others(&self) -> bool {
        self.sockets.iter().any(Socket::feeds_others)
    }

    /// Whether every socket uses the packet memory directly.
    pub fn is_zero_copy(&self) -> bool {
        self.sockets.iter().all(Socket::is_zero_copy)
    }

    pub(crate) fn receive<S>(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<S>,
        max: usize,
        mut make: impl FnMut(Frame) -> S,
    ) -> Moved {
        let count = self.sockets.len();
        // Spent frames first: they may be what the fill rings lack.
        self.sockets[0].reap(pool);
        let mut received = Moved::default();
        for step in 0..count {
            let at = (self.turn + step) % count;
            // An equal share of what is left, so that a busy queue cannot starve the others.
            let share = (max - received.packets).div_ceil(count - step);
            let socket = &mut self.sockets[at];
            received += socket.receive(pool, into, share, &mut make, &mut self.counters);
        }
        self.turn = (self.turn + 1) % count;
        received
    }

    pub(crate) fn send(&mut self, frames: &mut Vec<Frame>, pool: &mut Pool) -> usize {
        self.sockets[0].send(frames, pool, &mut self.counters)
    }

    pub(crate) fn send_from<S>(
        &mut self,
        slots: &mut [S],
        take: impl FnMut(&mut S) -> Option<Frame>,
        pool: &mut Pool,
    ) -> usize {
        self.sockets[0].send_from(slots, take, pool, &mut self.counters)
    }

    pub(crate) fn flush(&mut self, pool: &mut Pool) -> usize {
        self.sockets[0].flush(pool, &mut self.counters)
    }

    pub(crate) fn counters(&self) -> PortCounters {
        let mut counters = self.counters;
        self.sockets.iter().for_each(|socket| socket.add_statistics(&mut counters));
        counters
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.any {
            Some(any) => any.as_fd(),
            None => self.sockets[0].as_fd(),
        }
    }
}
