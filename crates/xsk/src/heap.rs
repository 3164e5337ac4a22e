//! A heap for blocks of whole cache lines, which there are 100 000 of: SAs, keys, policies, tables.
//!
//! The C library keeps a word in front of each block, so that one which begins with a line takes another
//! line beside, and a way around its caches. Here a block has nothing in front: who gives it back knows its
//! size, as everybody does in Rust. Each size has a list of its free blocks; where that is empty the next
//! bytes of a *stretch* are taken. Of small blocks each size has *slabs* of the stretch for itself.
//!
//! ```text
//!  stretch  │ key │ key │ key │ … │ SA │ SA │ SA │ … │ shard │ policy │ policy │ … │ never used yet → │
//! ```
//!
//! So keys lie beside keys and policies beside policies, and the lines that no packet reads are not between
//! those that every packet reads. Were a tunnel's blocks side by side in the order in which they are made, its
//! packets would find all of them in one page; but with 50 000 tunnels by policy sealing takes a tenth longer so.
//!
//! A shard of a table grows through many sizes, and all shards grow alike: what they leave behind is of sizes
//! that nobody asks for any more, a seventh of the memory of 100 000 SAs. So a small block for which there is
//! none is cut from a free large one before a stretch is, as long as its size has more than those that
//! copies of tables take and give back all the time.
//!
//! All that is not some lines goes to the C library. Blocks are never joined or given back to the kernel. A
//! program that wants this makes [`Lines`] its `#[global_allocator]`; nothing breaks in one that does not.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a cache line.
const LINE: usize = 64;

/// The largest blocks from here: a shard of a table of 100 000 entries has 8 KiB. Larger ones are few.
const BLOCK_MAX: usize = 16 << 10;

/// Sizes.
const CLASSES: usize = BLOCK_MAX / LINE;

/// The largest blocks that are cut from others: an SA, a key, a policy. What is cut is larger.
const SMALL_MAX: usize = 10 * LINE;

/// Bytes of a slab: some tens of keys.
const SLAB_BYTES: usize = 16 << 10;

/// Blocks that are being cut at a time: one that is too small for a key does for policies.
const PIECES: usize = 4;

/// Free blocks of a size that are left to those who ask for that size.
const KEPT: usize = 16;

/// Large blocks that are given back before there is another look for some to cut, after there were none.
const PATIENCE: usize = 64;

/// Address space that is taken at a time; it takes memory where it is used.
const STRETCH_BYTES: usize = 64 << 20;

/// A huge page, where stretches begin.
const HUGE: usize = 2 << 20;

/// The heap.
pub struct Lines {
    state: Mutex<State>,
}

struct State {
    /// Free blocks by their lines, less one. Each begins with the address of the next.
    free: [Option<NonNull<u8>>; CLASSES],
    /// How many they are.
    count: [usize; CLASSES],
    /// What of the stretch was never used.
    next: *mut u8,
    left: usize,
    /// The same of the slab of each small size.
    slabs: [(*mut u8, usize); SMALL_MAX / LINE],
    /// What is left of the blocks that are being cut, and how many bytes that is.
    pieces: [(*mut u8, usize); PIECES],
    /// Large blocks to be given back before the next look for one to cut.
    patience: usize,
    /// Whether to ask for huge pages.
    huge: bool,
}

// SAFETY: all that the pointers lead to is memory which nobody but the heap has.
unsafe impl Send for State {}

/// The class of a block, if it is one of ours.
#[inline]
fn class_of(layout: Layout) -> Option<usize> {
    let (size, align) = (layout.size(), layout.align());
    let ours = size.is_multiple_of(LINE) && align <= LINE && (1..=BLOCK_MAX).contains(&size);
    ours.then(|| size / LINE - 1)
}

impl Lines {
    /// A heap that has no memory yet.
    pub const fn new() -> Lines {
        let state = State {
            free: [None; CLASSES],
            count: [0; CLASSES],
            next: ptr::null_mut(),
            left: 0,
            slabs: [(ptr::null_mut(), 0); SMALL_MAX / LINE],
            pieces: [(ptr::null_mut(), 0); PIECES],
            patience: 0,
            huge: false,
        };
        Lines { state: Mutex::new(state) }
    }

    /// Asks for huge pages from now on, for what there is, too.
    pub fn ask_for_huge_pages(&self) {
        let mut state = self.lock();
        state.huge = true;
        let (next, left) = (state.next, state.left);
        let first = next.map_addr(|address| address / HUGE * HUGE);
        // The page in which the stretch goes on is part of the stretch, as that begins with one.
        advise_huge(first, left + (next.addr() - first.addr()));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Lines {
    fn default() -> Lines {
        Lines::new()
    }
}

impl State {
    fn take(&mut self, class: usize) -> *mut u8 {
        if let Some(block) = self.take_free(class) {
            return block.as_ptr();
        }
        let size = (class + 1) * LINE;
        match size <= SMALL_MAX {
            true => self.cut(size).unwrap_or_else(|| self.take_of_slab(class)),
            false => self.take_of_stretch(size),
        }
    }

    /// The next block of a small size's slab, or of another one.
    fn take_of_slab(&mut self, class: usize) -> *mut u8 {
        let size = (class + 1) * LINE;
        if self.slabs[class].1 < size {
            let slab = self.take_of_stretch(SLAB_BYTES);
            if slab.is_null() {
                return slab;
            }
            let (rest, left) = std::mem::replace(&mut self.slabs[class], (slab, SLAB_BYTES));
            self.give_rest(rest, left);
        }
        let (block, left) = self.slabs[class];
        // SAFETY: so many bytes are left of the slab.
        self.slabs[class] = (unsafe { block.add(size) }, left - size);
        block
    }

    /// The next bytes of the stretch, or of another one; null if there is no memory.
    fn take_of_stretch(&mut self, size: usize) -> *mut u8 {
        if self.left < size && !self.stretch() {
            return ptr::null_mut();
        }
        let block = self.next;
        // SAFETY: so many bytes are left in the mapping.
        self.next = unsafe { block.add(size) };
        self.left -= size;
        block
    }

    #[inline]
    fn take_free(&mut self, class: usize) -> Option<NonNull<u8>> {
        let block = self.free[class]?;
        // SAFETY: `give` wrote this at the beginning of the block, which nobody has had since; it is
        // aligned to a line.
        self.free[class] = unsafe { block.cast::<Option<NonNull<u8>>>().read() };
        self.count[class] -= 1;
        Some(block)
    }

    /// A small block out of a large one, if there is one to spare.
    fn cut(&mut self, size: usize) -> Option<*mut u8> {
        let fits = |piece: &usize| self.pieces[*piece].1 >= size;
        let piece = (0..PIECES).filter(fits).min_by_key(|piece| self.pieces[*piece].1);
        let piece = piece.or_else(|| self.next_piece())?;
        let (block, left) = self.pieces[piece];
        // SAFETY: so many bytes are left of the piece.
        self.pieces[piece] = (unsafe { block.add(size) }, left - size);
        Some(block)
    }

    /// Takes another block to cut, of the size whose free ones have the most bytes, in place of the piece
    /// that is smallest.
    #[cold]
    fn next_piece(&mut self) -> Option<usize> {
        if self.patience != 0 {
            return None;
        }
        let spare = |class: &usize| self.count[*class].saturating_sub(KEPT) * (class + 1);
        let class = (SMALL_MAX / LINE..CLASSES).max_by_key(spare).filter(|class| spare(class) != 0);
        let Some((class, block)) = class.and_then(|class| Some((class, self.take_free(class)?)))
        else {
            self.patience = PATIENCE;
            return None;
        };
        let piece = (0..PIECES).min_by_key(|piece| self.pieces[*piece].1)?;
        let (rest, left) = self.pieces[piece];
        self.give_rest(rest, left);
        self.pieces[piece] = (block.as_ptr(), (class + 1) * LINE);
        Some(piece)
    }

    /// Makes a block of what is left of something larger.
    fn give_rest(&mut self, rest: *mut u8, left: usize) {
        if let Some(class) = (left / LINE).checked_sub(1) {
            self.give(class.min(CLASSES - 1), rest);
        }
    }

    fn give(&mut self, class: usize, block: *mut u8) {
        let Some(block) = NonNull::new(block) else { return };
        if (class + 1) * LINE > SMALL_MAX {
            self.patience = self.patience.saturating_sub(1);
        }
        self.count[class] += 1;
        // SAFETY: the block is at least a line, aligned to one, and its owner has given it up.
        unsafe { block.cast::<Option<NonNull<u8>>>().write(self.free[class]) };
        self.free[class] = Some(block);
    }

    /// Takes another stretch; what was left of the last one becomes a block. Whether there is one.
    #[cold]
    fn stretch(&mut self) -> bool {
        self.give_rest(self.next, self.left);
        (self.next, self.left) = (ptr::null_mut(), 0);
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let whole = STRETCH_BYTES + HUGE;
        // SAFETY: a mapping at no particular address changes no other.
        let start = unsafe { libc::mmap(ptr::null_mut(), whole, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return false;
        }
        let start = start.cast::<u8>();
        // SAFETY: less than a huge page further on, of which the mapping has one more.
        self.next = unsafe { start.add(start.align_offset(HUGE)) };
        self.left = STRETCH_BYTES;
        if self.huge {
            advise_huge(self.next, self.left);
        }
        true
    }
}

/// Asks for huge pages in part of a stretch. Small ones do as well, more slowly.
fn advise_huge(start: *mut u8, len: usize) {
    if len != 0 {
        // SAFETY: the advice changes nothing that could be seen in the memory.
        unsafe { libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE) };
    }
}

// SAFETY: a block is handed out once until it is given back, as `State` says; it has the size of its
// class, which is that of the layout, and begins with a line, since stretches do and all blocks are lines.
// Who gives a block back says the layout that it was asked for with, hence whose it is.
unsafe impl GlobalAlloc for Lines {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some(class) => self.lock().take(class),
            // SAFETY: the caller's promise is the same.
            None => unsafe { System.alloc(layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else {
            // SAFETY: the caller's promise is the same.
            return unsafe { System.alloc_zeroed(layout) };
        };
        let block = self.lock().take(class);
        if !block.is_null() {
            // SAFETY: the block has so many bytes, and is ours until we return it.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(layout) {
            Some(class) => self.lock().give(class, block),
            // SAFETY: it was asked for with this layout, hence came from there.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size does not overflow with this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if class_of(layout).is_none() && class_of(new).is_none() {
            // SAFETY: it came from there, and the caller's promise is the same.
            return unsafe { System.realloc(block, layout, new_size) };
        }
        // SAFETY: the new layout is one that may be asked for, and the block was asked for with the old
        // one; both have as many bytes as are copied, and are not the same memory.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                ptr::copy_nonoverlapping(block, moved, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// A block, what it was filled with, and its layout.
    type Held = (*mut u8, u8, Layout);

    fn holds((block, byte, layout): &Held) -> bool {
        // SAFETY: the block is ours, and every byte of it was written.
        unsafe { std::slice::from_raw_parts(*block, layout.size()) }.iter().all(|b| b == byte)
    }

    fn fill(block: *mut u8, byte: u8, size: usize) {
        // SAFETY: the block is ours.
        unsafe { block.write_bytes(byte, size) };
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn nobody_writes_into_a_block_but_its_owner(
            steps in prop::collection::vec((0..4u8, 0..40usize, 1..300usize, 0..8u32), 1..400),
        ) {
            let heap = Lines::new();
            let mut held: Vec<Held> = Vec::new();
            for (n, (what, at, size, align)) in steps.into_iter().enumerate() {
                // Half of them whole lines.
                let size = if size % 2 == 0 { size * LINE } else { size };
                let (layout, byte) = (Layout::from_size_align(size, 1 << align).unwrap(), n as u8);
                let known = at % held.len().max(1);
                match what {
                    0 if !held.is_empty() => {
                        let (block, _, layout) = held.swap_remove(known);
                        // SAFETY: it was asked for with this layout, and is forgotten.
                        unsafe { heap.dealloc(block, layout) };
                    }
                    1 if !held.is_empty() => {
                        let (block, old, layout) = held[known];
                        // SAFETY: as above; a size of some kilobytes does not overflow.
                        let block = unsafe { heap.realloc(block, layout, size) };
                        let new = Layout::from_size_align(size, layout.align()).unwrap();
                        let kept = Layout::from_size_align(layout.size().min(size), 1).unwrap();
                        prop_assert!(holds(&(block, old, kept)));
                        fill(block, byte, size);
                        held[known] = (block, byte, new);
                    }
                    _ => {
                        // SAFETY: the size is not zero.
                        let block = unsafe {
                            if what == 2 { heap.alloc_zeroed(layout) } else { heap.alloc(layout) }
                        };
                        prop_assert!(!block.is_null() && block.addr() % layout.align() == 0);
                        prop_assert!(size % LINE != 0 || size > BLOCK_MAX || block.addr() % LINE == 0);
                        prop_assert!(what != 2 || holds(&(block, 0, layout)));
                        fill(block, byte, size);
                        held.push((block, byte, layout));
                    }
                }
                prop_assert!(held.iter().all(holds));
            }
            for (block, _, layout) in held {
                // SAFETY: as above.
                unsafe { heap.dealloc(block, layout) };
            }
        }
    }

    #[test]
    fn what_is_given_back_is_given_out_again_and_stretches_follow_each_other() {
        let heap = Lines::new();
        heap.ask_for_huge_pages();
        let layout = Layout::from_size_align(BLOCK_MAX, LINE).unwrap();
        // SAFETY: none of the sizes is zero, and each block is given back once.
        unsafe {
            let first = heap.alloc(layout);
            heap.ask_for_huge_pages();
            heap.dealloc(first, layout);
            assert_eq!(heap.alloc(layout), first);
            let mut blocks: Vec<_> =
                (0..STRETCH_BYTES / BLOCK_MAX + 9).map(|_| heap.alloc(layout)).collect();
            assert!(blocks.iter().all(|block| !block.is_null()));
            blocks.sort_unstable();
            assert!(blocks.windows(2).all(|two| two[1].addr() - two[0].addr() >= BLOCK_MAX));
        }
    }

    #[test]
    fn small_blocks_of_a_size_lie_beside_each_other() {
        let heap = Lines::new();
        let sizes = [8, 3, 2].map(|lines| lines * LINE);
        let mut blocks = sizes.map(|_| Vec::new());
        // As a tunnel's are made: a key, an SA, a policy.
        for _ in 0..SLAB_BYTES / sizes[0] {
            for (blocks, size) in blocks.iter_mut().zip(sizes) {
                let layout = Layout::from_size_align(size, LINE).unwrap();
                // SAFETY: the size is not zero.
                blocks.push(unsafe { heap.alloc(layout) }.addr());
            }
        }
        for (blocks, size) in blocks.iter().zip(sizes) {
            assert!(blocks.windows(2).all(|two| two[1] - two[0] == size), "{size}");
        }
    }

    #[test]
    fn small_blocks_are_cut_from_large_ones_that_are_left_over() {
        let heap = Lines::new();
        let lines = |count: usize| Layout::from_size_align(count * LINE, LINE).unwrap();
        let used = || STRETCH_BYTES - heap.lock().left;
        // SAFETY: none of the sizes is zero, and each block is given back once.
        unsafe {
            // As shards grow: each size is given back when the next is there.
            let mut large: Vec<_> = (0..1000).map(|_| heap.alloc(lines(20))).collect();
            for size in 21..40 {
                for block in &mut large {
                    let grown = heap.alloc(lines(size));
                    heap.dealloc(*block, lines(size - 1));
                    *block = grown;
                }
            }
            let before = used();
            let left_over: usize = (20..39).map(|size| (1000 - KEPT) * size * LINE).sum();
            let (mut small, mut bytes) = (HashSet::new(), 0);
            while bytes < left_over * 95 / 100 {
                let size = [9, 3, 2, 2][small.len() % 4];
                let block = heap.alloc(lines(size));
                fill(block, 7, size * LINE);
                assert!(small.insert(block));
                bytes += size * LINE;
            }
            assert_eq!(used(), before, "no memory that was never used");
            // Those that are given back and taken all the time are left alone.
            assert!(heap.lock().count[19..38].iter().all(|count| *count >= KEPT));
        }
    }

    #[test]
    fn threads_share_it() {
        let heap = Lines::new();
        std::thread::scope(|scope| {
            for byte in 0..4 {
                let heap = &heap;
                scope.spawn(move || {
                    let layout = Layout::from_size_align(3 * LINE, 8).unwrap();
                    for _ in 0..5000 {
                        // SAFETY: given back once, with the layout that it was asked for with.
                        unsafe {
                            let block = heap.alloc(layout);
                            fill(block, byte, layout.size());
                            assert!(holds(&(block, byte, layout)));
                            heap.dealloc(block, layout);
                        }
                    }
                });
            }
        });
    }
}
