//! The packet memory that all ports share, and the pools that hand out its chunks.
//!
//! One [`Umem`] lives as long as the process, so that a [`Frame`] can never dangle. Every worker
//! has a [`Pool`] of its own over its own chunks; frames may wander between pools, chunks are
//! never duplicated. Does not talk to the network: `socket` registers the memory with the kernel.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError, Weak};

use crate::depot::Depot;
use crate::frame::{Frame, HEADROOM};
use crate::socket::Role;
use crate::sys::Mapping;

/// Size of a huge page; a mapping from the huge-page pool must be a multiple of it.
const HUGE_PAGE: usize = 2 << 20;

/// Packet memory: `chunks` chunks of `chunk_size` bytes, shared by all ports of the process.
#[derive(Debug)]
pub struct Umem {
    memory: Mapping,
    chunks: usize,
    chunk_size: u16,
    /// `chunk_size` as a power of two: a division per packet would be 5 ns.
    chunk_shift: u32,
    /// Chunks that a pool already owns; a chunk in two pools would be two owners of one packet.
    pooled: Mutex<Vec<Range<usize>>>,
    /// The live sockets that this memory is registered with; a new one joins one of them.
    sockets: Mutex<Vec<Live>>,
    /// Frames that one pool has too many of, for one that has too few.
    depot: Depot,
}

/// A socket that is open, and what it is bound to.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) fd: Weak<OwnedFd>,
    pub(crate) interface: u32,
    pub(crate) queue: u32,
    pub(crate) role: Role,
}

impl Umem {
    /// Maps the memory: 2048 or 4096 bytes per chunk, of huge pages if wanted and there are any.
    ///
    /// Without free huge pages it falls back to ordinary ones, with advice to merge them. All of
    /// it is touched here, so that no packet waits for a page fault, and left out of core dumps
    /// and of forked children: it holds clear text.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for another chunk size or no chunks; `OutOfMemory` from the kernel.
    pub fn new(chunks: usize, chunk_size: usize, hugepages: bool) -> io::Result<&'static Umem> {
        if chunks == 0 || u32::try_from(chunks).is_err() || !matches!(chunk_size, 2048 | 4096) {
            let message =
                format!("{chunks} chunks of {chunk_size} bytes: use chunks of 2048 or 4096");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let page = if hugepages { HUGE_PAGE } else { 4096 };
        let len = (chunks * chunk_size).next_multiple_of(page);
        let huge = if hugepages { Mapping::anonymous(len, true).ok() } else { None };
        let from_huge_pages = huge.is_some();
        let memory = match huge {
            Some(memory) => memory,
            None => Mapping::anonymous(len, false)?,
        };
        memory.advise(libc::MADV_DONTDUMP)?;
        memory.advise(libc::MADV_DONTFORK)?;
        if hugepages && !from_huge_pages {
            // Advice only: a kernel without transparent huge pages says EINVAL and all still works.
            let _ = memory.advise(libc::MADV_HUGEPAGE);
        }
        memory.advise(libc::MADV_POPULATE_WRITE)?;
        Ok(Box::leak(Box::new(Umem {
            memory,
            chunks,
            chunk_size: chunk_size as u16,
            chunk_shift: chunk_size.trailing_zeros(),
            pooled: Mutex::default(),
            sockets: Mutex::default(),
            depot: Depot::new(chunks),
        })))
    }

    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Bytes of one chunk.
    pub fn chunk_size(&self) -> usize {
        usize::from(self.chunk_size)
    }

    /// The longest packet that fits a chunk when it is received.
    pub fn packet_size_max(&self) -> usize {
        self.chunk_size() - HEADROOM
    }

    /// The pool of the chunks `range`.
    ///
    /// # Panics
    ///
    /// When a chunk of the range does not exist or already belongs to a pool.
    pub fn pool(&'static self, range: Range<usize>) -> Pool {
        assert!(range.end <= self.chunks, "chunks {range:?} of a UMEM with {}", self.chunks);
        let mut pooled = self.pooled.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = pooled.iter().find(|other| other.start < range.end && range.start < other.end);
        assert!(taken.is_none(), "chunks {range:?} overlap the pool of {taken:?}");
        pooled.push(range.clone());
        // Room for every chunk of the UMEM, so that frames of other pools never make it grow.
        let mut free = Vec::with_capacity(self.chunks);
        // The last one is taken first; begin with the lowest chunk.
        free.extend(range.rev().map(|chunk| chunk as u32));
        Pool { umem: self, free, free_max: usize::MAX }
    }

    pub(crate) fn memory(&self) -> &Mapping {
        &self.memory
    }

    pub(crate) fn sockets(&self) -> &Mutex<Vec<Live>> {
        &self.sockets
    }

    /// Where its chunks lie, for whoever has many frames to name.
    #[inline]
    pub(crate) fn extent(&'static self) -> Extent {
        let (start, len) = (self.memory.start(), (self.chunks as u64) << self.chunk_shift);
        Extent { start, len, chunk_size: self.chunk_size }
    }

    /// Where the chunk that `frame` owns begins, in bytes from the UMEM's start.
    ///
    /// # Panics
    ///
    /// When the frame belongs to another UMEM.
    #[inline]
    fn chunk_offset(&'static self, frame: &Frame) -> usize {
        self.extent().chunk_offset(frame) as usize
    }

    /// The address of the packet in `frame`, as descriptors give it: bytes from the UMEM's start.
    #[inline]
    pub(crate) fn address(&'static self, frame: &Frame) -> u64 {
        self.extent().address(frame)
    }

    /// The frame that a descriptor names, or `None` when it names no bytes of one chunk.
    ///
    /// # Safety
    ///
    /// As [`Extent::frame`].
    #[inline]
    pub(crate) unsafe fn frame(&'static self, address: u64, len: u32) -> Option<Frame> {
        // SAFETY: the caller's promise.
        unsafe { self.extent().frame(address, len) }
    }

    #[inline]
    fn chunk(&self, index: usize) -> NonNull<u8> {
        debug_assert!(index < self.chunks);
        // SAFETY: the callers pass an index below `chunks`, so the place lies in the mapping.
        unsafe { self.memory.start().add(index << self.chunk_shift) }
    }
}

/// Where the chunks of a UMEM lie: what it takes to go from frames to addresses and back.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    start: NonNull<u8>,
    /// Bytes of all chunks.
    len: u64,
    chunk_size: u16,
}

impl Extent {
    #[inline]
    fn chunk_offset(&self, frame: &Frame) -> u64 {
        let offset = frame.chunk().as_ptr() as usize;
        let offset = offset.wrapping_sub(self.start.as_ptr() as usize) as u64;
        assert!(offset < self.len, "a frame of another UMEM");
        offset
    }

    /// See [`Umem::address`].
    #[inline]
    pub(crate) fn address(&self, frame: &Frame) -> u64 {
        self.chunk_offset(frame) + frame.headroom() as u64
    }

    /// The frame that a descriptor names, or `None` when it names no bytes of one chunk.
    ///
    /// # Safety
    ///
    /// The caller received ownership of that chunk with the descriptor, and has made no frame
    /// of it yet.
    #[inline]
    pub(crate) unsafe fn frame(&self, address: u64, len: u32) -> Option<Frame> {
        let size = u64::from(self.chunk_size);
        // Chunks are as long as a power of two.
        let start = address & u64::from(self.chunk_size.wrapping_sub(1));
        if address >= self.len || start + u64::from(len) > size {
            return None;
        }
        // SAFETY: the address is below the end, so its chunk begins in the mapping.
        let chunk = unsafe { self.start.add((address - start) as usize) };
        // SAFETY: the window was checked above; ownership is the caller's promise.
        Some(unsafe { Frame::new(chunk, self.chunk_size, start as u16, len as u16) })
    }
}

/// The free chunks of one worker, last in first out: the chunk freed last is still in the cache.
#[derive(Debug)]
pub struct Pool {
    umem: &'static Umem,
    free: Vec<u32>,
    /// More than these go to the depot.
    free_max: usize,
}

/// Frames by which a pool that shares exceeds its own number before it gives some away, and how many it
/// gives and takes at once. Fewer would go to and fro; these are a hundredth of what a worker has.
const SURPLUS: usize = 128;

impl Pool {
    /// Has the pool give away what it has and gets beyond `keep` frames, and get frames from such others
    /// when it has none: for workers between which frames wander in one direction, because one receives
    /// what another sends.
    pub fn share(&mut self, keep: usize) {
        self.free_max = keep + SURPLUS;
        while self.free.len() > self.free_max && self.deposit() {}
    }

    #[cold]
    fn deposit(&mut self) -> bool {
        for _ in 0..SURPLUS {
            let Some(chunk) = self.free.pop() else { return false };
            if !self.umem.depot.put(chunk) {
                // It has room for every chunk, but a put may meet one that is under way.
                self.free.push(chunk);
                return false;
            }
        }
        true
    }

    #[cold]
    fn withdraw(&mut self) {
        if self.free_max != usize::MAX {
            self.free.extend((0..SURPLUS).map_while(|_| self.umem.depot.get()));
        }
    }

    /// An empty frame with [`HEADROOM`] in front of it, or `None` when no chunk is free.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        if self.free.is_empty() {
            self.withdraw();
        }
        let index = self.free.pop()? as usize;
        let (chunk, size) = (self.umem.chunk(index), self.umem.chunk_size);
        // SAFETY: a chunk on the free list has no other owner: `Umem::pool` puts every chunk on
        // one list only, and `give` consumes the frame that owned it.
        Some(unsafe { Frame::new(chunk, size, HEADROOM as u16, 0) })
    }

    /// Takes a frame back; it may come from another pool of the same UMEM.
    ///
    /// # Panics
    ///
    /// When the frame belongs to another UMEM.
    #[inline]
    pub fn give(&mut self, frame: Frame) {
        let chunk = self.umem.chunk_offset(&frame) >> self.umem.chunk_shift;
        self.free.push(chunk as u32);
        if self.free.len() > self.free_max {
            self.deposit();
        }
    }

    /// Number of free chunks.
    #[inline]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// The memory that this pool's chunks belong to.
    pub fn umem(&self) -> &'static Umem {
        self.umem
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_handed_out_once_and_comes_back() {
        let umem = Umem::new(8, 2048, false).unwrap();
        let mut pool = umem.pool(0..8);
        let mut frames: Vec<Frame> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((frames.len(), pool.free()), (8, 0));
        for (mark, frame) in frames.iter_mut().enumerate() {
            frame.push_back(1792).unwrap().fill(mark as u8);
            frame.push_front(256).unwrap().fill(mark as u8);
        }
        for (mark, frame) in frames.iter().enumerate() {
            assert!(frame.bytes().iter().all(|&byte| byte == mark as u8));
        }
        frames.drain(..).for_each(|frame| pool.give(frame));
        assert_eq!(pool.free(), 8);
        let frame = pool.take().unwrap();
        assert_eq!((frame.len(), frame.headroom(), frame.tailroom()), (0, 256, 1792));
        pool.give(frame);
    }

    #[test]
    fn frames_wander_between_pools_and_threads() {
        let umem = Umem::new(4, 4096, true).unwrap();
        let (mut mine, mut other) = (umem.pool(0..2), umem.pool(2..4));
        let frame = mine.take().unwrap();
        let other = std::thread::spawn(move || {
            other.give(frame);
            other
        });
        assert_eq!((mine.free(), other.join().unwrap().free()), (1, 3));
    }

    #[test]
    fn frames_that_wander_one_way_come_back() {
        const FRAMES: usize = 1024;
        let umem = Umem::new(2 * FRAMES, 2048, false).unwrap();
        let (mut here, mut there) = (umem.pool(0..FRAMES), umem.pool(FRAMES..2 * FRAMES));
        here.share(FRAMES);
        there.share(FRAMES);
        for _ in 0..20 * FRAMES {
            there.give(here.take().expect("the others' surplus comes back"));
        }
        assert!(there.free() <= FRAMES + SURPLUS);
        let left: Vec<Frame> = std::iter::from_fn(|| here.take()).collect();
        let mut chunks: Vec<usize> = left.iter().map(|frame| umem.chunk_offset(frame)).collect();
        chunks.extend(std::iter::from_fn(|| there.take()).map(|frame| umem.chunk_offset(&frame)));
        chunks.sort_unstable();
        chunks.dedup();
        assert_eq!(chunks.len(), 2 * FRAMES, "each chunk is somewhere once");
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn a_chunk_cannot_belong_to_two_pools() {
        let umem = Umem::new(4, 2048, false).unwrap();
        let _first = umem.pool(0..3);
        let _second = umem.pool(2..4);
    }

    #[test]
    #[should_panic(expected = "another UMEM")]
    fn a_frame_of_another_umem_is_refused() {
        let (here, there) =
            (Umem::new(1, 2048, false).unwrap(), Umem::new(1, 2048, false).unwrap());
        let frame = there.pool(0..1).take().unwrap();
        here.pool(0..1).give(frame);
    }

    #[test]
    fn odd_sizes_are_refused() {
        for (chunks, size) in [(0, 2048), (1, 0), (1, 1500), (1, 8192), (1 << 33, 2048)] {
            let error = Umem::new(chunks, size, false).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
