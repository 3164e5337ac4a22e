//! The four rings of an AF_XDP socket, and the same rings in plain memory.
//!
//! Each ring has one producer and one consumer, two running indices and a power of two of slots.
//! What may be done with a ring follows from its type: frames go into a [`FillRing`] and a
//! [`TxRing`], and come out of an [`RxRing`] and a [`CompletionRing`].
//!
//! ```text
//!          FillRing ──▶ kernel ──▶ RxRing          empty frames in, packets out
//!          TxRing ──▶ kernel ──▶ CompletionRing    packets in, spent frames out
//!          TxRing ──▶ memory ──▶ RxRing            `in_memory`: no kernel between
//! ```
//!
//! Ownership goes with the descriptor: pushing consumes the [`Frame`], popping makes one. Does not
//! make system calls: `socket` maps the rings and kicks the kernel.

mod sides;

use std::io;
use std::ops::AddAssign;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use self::sides::{Consumer, Layout, Producer, Shared};
use crate::frame::Frame;
use crate::sys::{self, Mapping};
use crate::umem::Umem;

/// A packet in a ring: `struct xdp_desc` of linux/if_xdp.h.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct Descriptor {
    address: u64,
    len: u32,
    options: u32,
}

/// What was moved in one go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Packets.
    pub packets: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl AddAssign for Moved {
    fn add_assign(&mut self, other: Moved) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// Empty frames on their way to the kernel, to be filled with packets.
///
/// ```
/// fn fill(ring: &mut xsk::ring::FillRing, frame: xsk::Frame) {
///     assert!(ring.push(frame).is_ok());
/// }
/// ```
///
/// ```compile_fail
/// fn fill_an_rx_ring(ring: &mut xsk::ring::RxRing, frame: xsk::Frame) {
///     ring.push(frame); // nothing can be put into an RX ring
/// }
/// ```
#[derive(Debug)]
pub struct FillRing {
    umem: &'static Umem,
    ring: Producer<u64>,
}

/// Packets on their way to the other side.
#[derive(Debug)]
pub struct TxRing {
    umem: &'static Umem,
    ring: Producer<Descriptor>,
}

/// Packets that arrived.
#[derive(Debug)]
pub struct RxRing {
    umem: &'static Umem,
    ring: Consumer<Descriptor>,
}

/// Frames whose packets have been sent.
#[derive(Debug)]
pub struct CompletionRing {
    umem: &'static Umem,
    ring: Consumer<u64>,
}

impl FillRing {
    /// Puts a frame in. [`FillRing::publish`] shows it.
    ///
    /// # Errors
    ///
    /// The frame, when the ring is full.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.ring.put(self.umem.address(&frame)) { Ok(()) } else { Err(frame) }
    }

    /// Shows the pushed frames to the kernel.
    pub fn publish(&mut self) {
        self.ring.publish();
    }

    /// Free slots.
    pub fn free(&mut self) -> usize {
        self.ring.free() as usize
    }

    /// Whether the driver sleeps until it is told of new frames. It may fall asleep while they are published,
    /// unseen by this: ask again.
    pub fn needs_wakeup(&self) -> bool {
        self.ring.shared.needs_wakeup()
    }

    /// Says for the driver whether it sleeps.
    #[cfg(test)]
    pub(crate) fn set_needs_wakeup(&self, on: bool) {
        self.ring.shared.set_needs_wakeup(on);
    }
}

impl TxRing {
    /// Puts a packet in. [`TxRing::publish`] shows it.
    ///
    /// # Errors
    ///
    /// The frame, when the ring is full.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        let (address, len) = (self.umem.address(&frame), frame.len() as u32);
        let descriptor = Descriptor { address, len, options: 0 };
        if self.ring.put(descriptor) { Ok(()) } else { Err(frame) }
    }

    /// Puts packets in that `take` takes out of the first of `slots`, as long as it takes one and there is room; how
    /// many. [`TxRing::publish`] shows them.
    // By itself its loop keeps all it needs in registers.
    #[inline(never)]
    pub fn push_run<S>(
        &mut self,
        slots: &mut [S],
        mut take: impl FnMut(&mut S) -> Option<Frame>,
    ) -> Moved {
        let extent = self.umem.extent();
        let mut bytes = 0;
        // Their chunks are the ring's now.
        let packets = self.ring.put_run(slots, |slot| {
            let frame = take(slot)?;
            let len = frame.len() as u32;
            bytes += u64::from(len);
            Some(Descriptor { address: extent.address(&frame), len, options: 0 })
        });
        Moved { packets, bytes }
    }

    /// Shows the pushed packets to the other side.
    pub fn publish(&mut self) {
        self.ring.publish();
    }

    /// Packets that the other side has not taken yet.
    pub fn pending(&mut self) -> usize {
        self.ring.pending() as usize
    }

    /// Whether the kernel sends only after a kick.
    pub fn needs_wakeup(&self) -> bool {
        self.ring.shared.needs_wakeup()
    }
}

impl RxRing {
    /// The next packet. Its slot is free again after [`RxRing::release`].
    #[inline]
    pub fn pop(&mut self) -> Option<Frame> {
        loop {
            let descriptor = self.ring.take()?;
            // SAFETY: the other side gave the chunk away with this descriptor, and `take` returns
            // each descriptor once.
            let frame = unsafe { self.umem.frame(descriptor.address, descriptor.len) };
            if frame.is_some() {
                return frame;
            }
        }
    }

    /// The next packets, up to `max` of them: what `make` makes of them goes to the end of `into`. Their slots are free
    /// again after [`RxRing::release`].
    ///
    /// Each is made where it stays. Made elsewhere and moved, it would be read in large pieces before the processor has
    /// stored the small ones.
    // By itself its loop keeps all it needs in registers.
    #[inline(never)]
    pub fn pop_run<S>(
        &mut self,
        into: &mut Vec<S>,
        max: usize,
        mut make: impl FnMut(Frame) -> S,
    ) -> Moved {
        let extent = self.umem.extent();
        let mut bytes = 0;
        let max = max.min(self.ring.available() as usize);
        into.reserve(max);
        let mut end = into.spare_capacity_mut().as_mut_ptr();
        let mut made = 0;
        let packets = self.ring.take_run(max, |descriptor| {
            // SAFETY: as `pop`.
            let frame = unsafe { extent.frame(descriptor.address, descriptor.len) };
            if let Some(frame) = frame {
                bytes += u64::from(descriptor.len);
                // SAFETY: there is room for `max`, and no more are taken.
                end = unsafe {
                    (*end).write(make(frame));
                    end.add(1)
                };
                made += 1;
            }
        });
        // SAFETY: so many were written behind the others, one after the other.
        unsafe { into.set_len(into.len() + made) };
        Moved { packets, bytes }
    }

    /// Frees the slots of the popped packets.
    pub fn release(&mut self) {
        self.ring.release();
    }

    /// Packets that wait.
    pub fn available(&mut self) -> usize {
        self.ring.available() as usize
    }
}

impl CompletionRing {
    /// The next spent frame. Its slot is free again after [`CompletionRing::release`].
    #[inline]
    pub fn pop(&mut self) -> Option<Frame> {
        loop {
            let address = self.ring.take()?;
            // SAFETY: as `RxRing::pop`.
            let frame = unsafe { self.umem.frame(address, 0) };
            if frame.is_some() {
                return frame;
            }
        }
    }

    /// Frees the slots of the popped frames.
    pub fn release(&mut self) {
        self.ring.release();
    }
}

/// Which rings a socket has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Entries of each ring, a power of two.
    pub(crate) entries: u32,
    /// It has fill and completion rings: the first socket of a queue.
    pub(crate) feeds: bool,
}

/// The rings of one AF_XDP socket.
#[derive(Debug)]
pub(crate) struct SocketRings {
    /// Those of the queue; with its first socket alone.
    pub(crate) feed: Option<(FillRing, CompletionRing)>,
    pub(crate) rx: RxRing,
    pub(crate) tx: TxRing,
}

/// Sizes and maps the rings of an AF_XDP socket that is, or will be bound as, a socket of
/// `umem`. To be called once per socket: rings mapped twice would be two producers.
pub(crate) fn map_socket(
    umem: &'static Umem,
    fd: BorrowedFd<'_>,
    sizes: Sizes,
) -> io::Result<SocketRings> {
    let Sizes { entries, feeds } = sizes;
    if feeds {
        sys::set_ring_size(fd, libc::XDP_UMEM_FILL_RING, entries)?;
        sys::set_ring_size(fd, libc::XDP_UMEM_COMPLETION_RING, entries)?;
    }
    sys::set_ring_size(fd, libc::XDP_RX_RING, entries)?;
    sys::set_ring_size(fd, libc::XDP_TX_RING, entries)?;
    let at = sys::mmap_offsets(fd)?;
    let feed = match feeds {
        true => {
            let fill = shared(fd, at.fr, libc::XDP_UMEM_PGOFF_FILL_RING as i64, entries)?;
            let page_offset = libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64;
            let completion = shared(fd, at.cr, page_offset, entries)?;
            let fill = FillRing { umem, ring: Producer::new(fill) };
            Some((fill, CompletionRing { umem, ring: Consumer::new(completion) }))
        }
        false => None,
    };
    let rx = shared(fd, at.rx, libc::XDP_PGOFF_RX_RING, entries)?;
    let tx = shared(fd, at.tx, libc::XDP_PGOFF_TX_RING, entries)?;
    Ok(SocketRings {
        feed,
        rx: RxRing { umem, ring: Consumer::new(rx) },
        tx: TxRing { umem, ring: Producer::new(tx) },
    })
}

fn shared<T: Copy>(
    fd: BorrowedFd<'_>,
    at: libc::xdp_ring_offset,
    page_offset: i64,
    entries: u32,
) -> io::Result<Shared<T>> {
    let layout = Layout::from(at);
    let memory = Mapping::of_socket(fd, layout.len::<T>(entries), page_offset)?;
    Ok(Shared::new(Arc::new(memory), layout, entries))
}

/// A ring in plain memory: what goes into the one end comes out of the other, in order.
///
/// # Errors
///
/// When there is no memory.
///
/// # Panics
///
/// When `entries` is no power of two.
pub fn in_memory(umem: &'static Umem, entries: u32) -> io::Result<(TxRing, RxRing)> {
    let layout = Layout::IN_MEMORY;
    let len = layout.len::<Descriptor>(entries).next_multiple_of(4096);
    let shared = Shared::new(Arc::new(Mapping::anonymous(len, false)?), layout, entries);
    let tx = TxRing { umem, ring: Producer::new(shared.clone()) };
    Ok((tx, RxRing { umem, ring: Consumer::new(shared) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::atomic::Ordering;

    fn indices(start: u32, entries: u32) -> (Producer<u64>, Consumer<u64>) {
        let layout = Layout::IN_MEMORY;
        let memory = Mapping::anonymous(layout.len::<u64>(entries), false).unwrap();
        let shared = Shared::<u64>::new(Arc::new(memory), layout, entries);
        shared.producer().store(start, Ordering::Relaxed);
        shared.consumer().store(start, Ordering::Relaxed);
        (Producer::new(shared.clone()), Consumer::new(shared))
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Put(u8),
        /// A run, of which there is no more than so much.
        PutRun(u8, u8),
        Publish,
        Take(u8),
        TakeRun(u8),
        Release,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1u8..12).prop_map(Step::Put),
            (1u8..12, 0u8..12).prop_map(|(len, most)| Step::PutRun(len, most)),
            Just(Step::Publish),
            (1u8..12).prop_map(Step::Take),
            (1u8..12).prop_map(Step::TakeRun),
            Just(Step::Release),
        ]
    }

    proptest! {
        /// The twin: one queue of what is published, one of what is put and not yet published, and
        /// a count of what is taken and not yet released. Indices start near their overflow.
        #[test]
        fn a_ring_behaves_like_its_twin(
            steps in prop::collection::vec(step(), 1..200),
            start in prop_oneof![Just(0u32), Just(u32::MAX - 3), any::<u32>()],
            order in 0u32..4,
        ) {
            let entries = 1usize << order;
            let (mut producer, mut consumer) = indices(start, entries as u32);
            let (mut hidden, mut shown) = (VecDeque::new(), VecDeque::new());
            let (mut held, mut next) = (0, 0u64);
            for step in steps {
                match step {
                    Step::Put(count) => for _ in 0..count {
                        let room = hidden.len() + shown.len() + held < entries;
                        prop_assert_eq!(producer.put(next), room);
                        if room {
                            hidden.push_back(next);
                            next += 1;
                        }
                    },
                    Step::PutRun(len, most) => {
                        let run: Vec<u64> = (next..next + u64::from(len)).collect();
                        let most = next + u64::from(most);
                        let put = producer.put_run(&mut run.clone(), |item| {
                            (*item < most).then_some(*item)
                        });
                        let room = entries - (hidden.len() + shown.len() + held);
                        prop_assert_eq!(put, room.min(run.len()).min((most - next) as usize));
                        hidden.extend(&run[..put]);
                        next += put as u64;
                    }
                    Step::Publish => {
                        producer.publish();
                        shown.append(&mut hidden);
                    }
                    Step::Take(count) => for _ in 0..count {
                        let expected = shown.pop_front();
                        held += usize::from(expected.is_some());
                        prop_assert_eq!(consumer.take(), expected);
                    },
                    Step::TakeRun(max) => {
                        let mut taken = Vec::new();
                        let count = consumer.take_run(max.into(), |item| taken.push(item));
                        prop_assert_eq!(count, taken.len());
                        let expected: Vec<u64> = shown.drain(..count).collect();
                        prop_assert_eq!(taken, expected);
                        held += count;
                        // It looks anew only when it knows of none.
                        prop_assert!(count == usize::from(max) || count != 0 || shown.is_empty());
                    }
                    Step::Release => {
                        consumer.release();
                        held = 0;
                    }
                }
                let filled = hidden.len() + shown.len() + held;
                prop_assert_eq!(producer.free() as usize, entries - filled);
                prop_assert_eq!(producer.pending() as usize, filled);
            }
        }
    }

    #[test]
    fn two_threads_see_every_item_once_and_in_order() {
        const ITEMS: u64 = 200_000;
        let (mut producer, mut consumer) = indices(u32::MAX - 1000, 64);
        let sender = std::thread::spawn(move || {
            for item in 0..ITEMS {
                while !producer.put(item) {
                    std::thread::yield_now();
                }
                producer.publish();
            }
        });
        let mut expected = 0;
        while expected < ITEMS {
            match consumer.take() {
                Some(item) => {
                    assert_eq!(item, expected);
                    expected += 1;
                    consumer.release();
                }
                None => std::thread::yield_now(),
            }
        }
        sender.join().unwrap();
    }

    #[test]
    fn a_descriptor_outside_the_umem_makes_no_frame() {
        let umem = Umem::new(2, 2048, false).unwrap();
        let (mut tx, mut rx) = in_memory(umem, 8).unwrap();
        for (address, len) in [(4096, 1), (u64::MAX, 1), (2000, 100), (0, u32::MAX)] {
            assert!(tx.ring.put(Descriptor { address, len, options: 0 }));
        }
        tx.publish();
        assert!(rx.pop().is_none());
        assert_eq!(rx.available(), 0);
    }
}
