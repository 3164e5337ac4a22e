//! One packet in one chunk of the UMEM, owned.
//!
//! ```text
//!   chunk                                                        chunk + size
//!     |<---- headroom() ---->|<------ len() ------>|<- tailroom() ->|
//!     |                      | bytes()             |                |
//!       push_front / pull_front                truncate / push_back
//! ```
//!
//! Does not know about packets' contents, never copies the payload, and has no destructor: a frame
//! that is forgotten instead of given to a [`Pool`](crate::Pool) or a port is a chunk lost to the
//! process.

use std::ptr::NonNull;

/// Free bytes in front of a received packet, as the kernel leaves them (`XDP_PACKET_HEADROOM`).
///
/// An ESP tunnel header takes at most 4 (VLAN) + 40 (IPv6) + 8 (UDP) + 16 (ESP header and IV) of
/// them.
pub const HEADROOM: usize = 256;

/// A packet in a chunk of the UMEM: the exclusive right to that chunk, and a window on its bytes.
#[must_use = "a frame that is dropped is a chunk lost: give it to a pool or a port"]
#[derive(Debug)]
#[repr(C)]
pub struct Frame {
    chunk: NonNull<u8>,
    start: u16,
    len: u16,
    size: u16,
    /// Nothing, so that every byte of a frame is written.
    rest: u16,
}

/// A frame as it is made and moved: in the fewest pieces, as a processor waits with a large read of what was only just
/// written in small ones.
#[repr(C)]
struct Words {
    chunk: NonNull<u8>,
    /// All that is smaller.
    window: u64,
}

const _: () = assert!(size_of::<Frame>() == size_of::<Words>());

// SAFETY: a frame is the only right to its chunk, and the UMEM lives as long as the process, so it
// may move to, and be used from, any thread.
unsafe impl Send for Frame {}

impl Frame {
    /// # Safety
    ///
    /// `chunk` starts `size` bytes that are mapped for the life of the process, and no other frame
    /// nor the kernel holds that chunk. `start + len <= size`.
    #[inline]
    pub(crate) unsafe fn new(chunk: NonNull<u8>, size: u16, start: u16, len: u16) -> Frame {
        debug_assert!(usize::from(start) + usize::from(len) <= usize::from(size));
        let [[a, b], [c, d], [e, f]] = [start, len, size].map(u16::to_ne_bytes);
        let words = Words { chunk, window: u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]) };
        // SAFETY: the words have the frame's fields, each where it lies.
        unsafe { std::mem::transmute::<Words, Frame>(words) }
    }

    /// Takes the frame out of a place that goes on to be there for a while, and leaves one of nothing in it:
    /// without bytes, room or chunk, for no pool and no port.
    #[inline]
    pub fn take(&mut self) -> Frame {
        // SAFETY: a frame is two words, and no value is any worse there than another. The frame that is read
        // is the only one of its chunk, as what is written over it has none.
        unsafe {
            let words = (&raw mut *self).cast::<Words>();
            let taken = words.replace(Words { chunk: NonNull::dangling(), window: 0 });
            std::mem::transmute::<Words, Frame>(taken)
        }
    }

    #[inline]
    pub(crate) fn chunk(&self) -> NonNull<u8> {
        self.chunk
    }

    /// The packet.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start + len <= size` always holds, the chunk is mapped for the life of the
        // process and this frame is the only right to it; the kernel initialised it with zeros.
        unsafe {
            let first = self.chunk.as_ptr().add(usize::from(self.start));
            std::slice::from_raw_parts(first, usize::from(self.len))
        }
    }

    /// The packet, to be changed in place.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.window_mut(self.headroom(), self.len())
    }

    /// `len` bytes of the chunk from offset `start`, which the callers have checked.
    ///
    /// As whole words: from numbers of 16 bits nobody who cuts the bytes up could tell that they are as many as were asked for.
    #[inline]
    fn window_mut(&mut self, start: usize, len: usize) -> &mut [u8] {
        debug_assert!(start + len <= usize::from(self.size));
        // SAFETY: the callers pass a window inside the chunk; the rest as in `bytes`, and `&mut
        // self` makes this the only reference.
        unsafe {
            let first = self.chunk.as_ptr().add(start);
            std::slice::from_raw_parts_mut(first, len)
        }
    }

    /// Bytes of the packet.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether the packet has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Free bytes in front of the packet.
    #[inline]
    pub fn headroom(&self) -> usize {
        usize::from(self.start)
    }

    /// Free bytes behind the packet.
    #[inline]
    pub fn tailroom(&self) -> usize {
        usize::from(self.size - self.start - self.len)
    }

    /// Grows the packet by `count` bytes at the front and returns the new bytes, whose content is
    /// whatever the chunk held; `None` when the headroom is too small.
    #[inline]
    pub fn push_front(&mut self, count: usize) -> Option<&mut [u8]> {
        if count > self.headroom() {
            return None;
        }
        // `count <= start`, so it fits 16 bits.
        self.start -= count as u16;
        self.len += count as u16;
        Some(self.window_mut(self.headroom(), count))
    }

    /// Removes `count` bytes from the front; `false`, and no change, when there are fewer.
    #[inline]
    #[must_use]
    pub fn pull_front(&mut self, count: usize) -> bool {
        if count > self.len() {
            return false;
        }
        self.start += count as u16;
        self.len -= count as u16;
        true
    }

    /// Grows the packet by `count` bytes at the end and returns the new bytes, whose content is
    /// whatever the chunk held; `None` when the tailroom is too small.
    #[inline]
    pub fn push_back(&mut self, count: usize) -> Option<&mut [u8]> {
        if count > self.tailroom() {
            return None;
        }
        let end = self.headroom() + self.len();
        self.len += count as u16;
        Some(self.window_mut(end, count))
    }

    /// Grows the packet at both ends, by bytes whose content is whatever the chunk held; `None`, and no
    /// change, when there is too little room at either.
    #[inline]
    pub fn grow(&mut self, front: usize, back: usize) -> Option<()> {
        if front > self.headroom() || back > self.tailroom() {
            return None;
        }
        // Both are within the chunk, so they fit 16 bits.
        self.start -= front as u16;
        self.len += (front + back) as u16;
        Some(())
    }

    /// Makes the packet `len` bytes, of which the first are the last `front` in front of it, and returns them; `None`, and no
    /// change, when there is too little room. What was not of the packet is whatever the chunk held.
    #[inline]
    pub fn reframe(&mut self, front: usize, len: usize) -> Option<&mut [u8]> {
        let start = self.headroom().checked_sub(front)?;
        if len > usize::from(self.size) - start {
            return None;
        }
        // Both are within the chunk, so they fit 16 bits.
        (self.start, self.len) = (start as u16, len as u16);
        Some(self.window_mut(start, len))
    }

    /// The `N` bytes at `offset` of the packet, or behind it: there they are whatever the chunk held. `None` where it ends before.
    #[inline]
    pub fn reach<const N: usize>(&mut self, offset: usize) -> Option<&mut [u8; N]> {
        let start = usize::from(self.start) + offset;
        if start + N > usize::from(self.size) {
            return None;
        }
        self.window_mut(start, N).first_chunk_mut()
    }

    /// Shortens the packet to `len` bytes; a packet that is already shorter stays as it is.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        // `len` is the smaller one, so it fits 16 bits.
        self.len = len.min(self.len()) as u16;
    }

    /// Makes the packet `len` bytes of itself, those behind the first `front`, and returns them; `None`, and no change,
    /// when there are fewer.
    #[inline]
    #[must_use]
    pub fn narrow(&mut self, front: usize, len: usize) -> Option<&mut [u8]> {
        if front > self.len() || len > self.len() - front {
            return None;
        }
        let start = self.headroom() + front;
        // Both are within the chunk, so they fit 16 bits.
        (self.start, self.len) = (start as u16, len as u16);
        Some(self.window_mut(start, len))
    }

    /// Empties the packet and puts its start back to the default headroom.
    #[inline]
    pub fn clear(&mut self) {
        self.start = HEADROOM as u16;
        self.len = 0;
    }

    /// The 8 bytes in front of the packet, in host byte order: what the XDP program put there with
    /// `bpf_xdp_adjust_meta`.
    ///
    /// Only meaningful on a frame as it was received, from a program that writes metadata for
    /// every packet (the kernel does not say whether there is any); `None` with less headroom.
    #[inline]
    pub fn metadata_u64(&self) -> Option<u64> {
        let start = self.headroom().checked_sub(8)?;
        // SAFETY: `start + 8 <= self.start <= size`, so the bytes lie inside the chunk; the
        // unaligned read has no requirement of its own.
        Some(unsafe { self.chunk.as_ptr().add(start).cast::<u64>().read_unaligned() })
    }

    /// Asks the CPU to load the cache line at `offset` of the packet, into the cache of level 2, where there
    /// is room for those of many packets; never faults.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        self.ask::<false>(offset);
    }

    /// The same into the cache of level 1, for a packet that is soon to be read.
    #[inline]
    pub fn fetch(&self, offset: usize) {
        self.ask::<true>(offset);
    }

    #[inline(always)]
    fn ask<const NEAR: bool>(&self, offset: usize) {
        let line = self.chunk.as_ptr().wrapping_add(usize::from(self.start).wrapping_add(offset));
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no effect but on the cache, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
            match NEAR {
                true => _mm_prefetch::<_MM_HINT_T0>(line.cast()),
                false => _mm_prefetch::<_MM_HINT_T1>(line.cast()),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}

#[cfg(test)]
mod tests {
    use crate::{HEADROOM, Umem};
    use proptest::prelude::*;

    /// The stupid twin: a whole chunk as a vector, and the window as two indices.
    struct Twin {
        chunk: Vec<u8>,
        start: usize,
        end: usize,
    }

    #[derive(Clone, Debug)]
    enum Step {
        PushFront(usize),
        PullFront(usize),
        PushBack(usize),
        Grow(usize, usize),
        Truncate(usize),
        Narrow(usize, usize),
        Reframe(usize, usize),
        Reach(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let count = 0usize..2500;
        prop_oneof![
            count.clone().prop_map(Step::PushFront),
            count.clone().prop_map(Step::PullFront),
            count.clone().prop_map(Step::PushBack),
            (0usize..300, 0usize..1900).prop_map(|(front, back)| Step::Grow(front, back)),
            count.prop_map(Step::Truncate),
            (0usize..300, 0usize..1900).prop_map(|(front, len)| Step::Narrow(front, len)),
            (0usize..300, 0usize..2100).prop_map(|(front, len)| Step::Reframe(front, len)),
            (0usize..2100).prop_map(Step::Reach),
        ]
    }

    proptest! {
        #[test]
        fn the_window_behaves_like_its_twin(steps in prop::collection::vec(step(), 1..40)) {
            let umem = Umem::new(1, 2048, false).unwrap();
            let mut pool = umem.pool(0..1);
            let mut frame = pool.take().unwrap();
            let mut twin = Twin { chunk: vec![0; 2048], start: HEADROOM, end: HEADROOM };
            for (mark, step) in steps.into_iter().enumerate() {
                let mark = mark as u8 + 1;
                match step {
                    Step::PushFront(n) => {
                        let pushed = frame.push_front(n).map(|new| new.fill(mark)).is_some();
                        prop_assert_eq!(pushed, n <= twin.start);
                        if pushed {
                            twin.chunk[twin.start - n..twin.start].fill(mark);
                            twin.start -= n;
                        }
                    }
                    Step::PullFront(n) => {
                        let pulled = frame.pull_front(n);
                        prop_assert_eq!(pulled, n <= twin.end - twin.start);
                        if pulled {
                            twin.start += n;
                        }
                    }
                    Step::PushBack(n) => {
                        let pushed = frame.push_back(n).map(|new| new.fill(mark)).is_some();
                        prop_assert_eq!(pushed, n <= 2048 - twin.end);
                        if pushed {
                            twin.chunk[twin.end..twin.end + n].fill(mark);
                            twin.end += n;
                        }
                    }
                    Step::Grow(front, back) => {
                        let grown = frame.grow(front, back).is_some();
                        let fits = front <= twin.start && back <= 2048 - twin.end;
                        prop_assert_eq!(grown, fits);
                        if grown {
                            twin.start -= front;
                            twin.end += back;
                        }
                    }
                    Step::Narrow(front, len) => {
                        let narrowed = frame.narrow(front, len).is_some();
                        prop_assert_eq!(narrowed, front + len <= twin.end - twin.start);
                        if narrowed {
                            twin.start += front;
                            twin.end = twin.start + len;
                        }
                    }
                    Step::Reframe(front, len) => {
                        let reframed = frame.reframe(front, len).map(|all| all.len());
                        let fits = front <= twin.start && twin.start - front + len <= 2048;
                        prop_assert_eq!(reframed, fits.then_some(len));
                        if fits {
                            twin.start -= front;
                            twin.end = twin.start + len;
                        }
                    }
                    Step::Reach(at) => {
                        let reached = frame.reach::<8>(at).map(|bytes| bytes.fill(mark)).is_some();
                        prop_assert_eq!(reached, twin.start + at + 8 <= 2048);
                        if reached {
                            twin.chunk[twin.start + at..][..8].fill(mark);
                        }
                    }
                    Step::Truncate(n) => {
                        frame.truncate(n);
                        twin.end = twin.end.min(twin.start + n);
                    }
                }
                prop_assert_eq!(frame.bytes(), &twin.chunk[twin.start..twin.end]);
                prop_assert_eq!(frame.headroom(), twin.start);
                prop_assert_eq!(frame.tailroom(), 2048 - twin.end);
                let meta = twin.start.checked_sub(8).map(|at| {
                    u64::from_ne_bytes(twin.chunk[at..at + 8].try_into().unwrap())
                });
                prop_assert_eq!(frame.metadata_u64(), meta);
            }
            pool.give(frame);
        }
    }
}
