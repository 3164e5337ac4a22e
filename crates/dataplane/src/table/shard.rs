//! The entries of a shard: lines of memory, which may hold the bits of what another shard has.
//!
//! An entry lies in the line that its key's hash names, or, where that was full when it came, in the next
//! that was not. A line fills from its first slot on. So a search reads one line mostly, also for what is
//! not there, and ends in the first line that has a free slot, of which there is always one.
//!
//! In which slot of its line a key lies nobody can foresee, and a processor that guesses wrongly loses some
//! fifteen cycles: all keys of a line are compared, and no comparison is branched on. So keys lie together, and as
//! soon as a line has one, every slot has bits of some key.
//!
//! Copying a shard copies bits: a value that is in several shards is there as often and was never
//! counted. Whose it is, and when values and lines end, is the table's to know. What relies on that is
//! `unsafe` here.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

use crate::cpu::{Cache, LINE, prefetch, prefetch_next};

/// So many neighbouring slots.
#[repr(align(64))]
struct Line<K, V, const N: usize> {
    /// Written all of them once the line has its first entry. Behind its entries they are any keys.
    keys: [MaybeUninit<K>; N],
    values: [Option<ManuallyDrop<V>>; N],
}

type Entry<K, V> = (K, ManuallyDrop<V>);

/// Where the lines of a shard are, and how many entries they have. A copy names the same lines.
pub(super) struct Shard<K, V, const N: usize> {
    lines: NonNull<Line<K, V, N>>,
    count: u32,
    len: u32,
    /// The number of the version that made these lines, and alone may change them.
    pub(super) born: u64,
}

impl<K, V, const N: usize> Clone for Shard<K, V, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V, const N: usize> Copy for Shard<K, V, N> {}

// SAFETY: it gives shared references to keys and values, on any thread, and who changes it or ends its
// values is the only one who has it.
unsafe impl<K: Send + Sync, V: Send + Sync, const N: usize> Send for Shard<K, V, N> {}

// SAFETY: as above.
unsafe impl<K: Send + Sync, V: Send + Sync, const N: usize> Sync for Shard<K, V, N> {}

/// Lines for so many entries. Half of the slots are free, so that nine entries in ten lie in their own line;
/// with three eighths free it is four in five, and the others lie further away.
const fn lines_for<const N: usize>(entries: usize) -> usize {
    (entries * 2).div_ceil(N)
}

impl<K, V, const N: usize> Line<K, V, N> {
    fn free() -> Line<K, V, N> {
        Line { keys: [const { MaybeUninit::uninit() }; N], values: [const { None }; N] }
    }

    fn is_full(&self) -> bool {
        self.values.last().is_some_and(Option::is_some)
    }

    /// The keys of its entries, and any others behind them; none if there is no entry.
    #[inline(always)]
    fn keys(&self) -> &[K] {
        match self.values.first() {
            // SAFETY: all keys were written when the first entry came.
            Some(Some(_)) => unsafe { std::slice::from_raw_parts(self.keys.as_ptr().cast(), N) },
            _ => &[],
        }
    }

    fn entries(&self) -> impl Iterator<Item = (&K, &V)> {
        self.keys()
            .iter()
            .zip(&self.values)
            .map_while(|(key, value)| Some((key, &**value.as_ref()?)))
    }

    /// The slot of the entry whose key is meant, or one that is free, or none.
    #[inline(always)]
    fn slot(&self, is: impl Fn(&K) -> bool) -> usize {
        let note = |slots, (slot, key)| slots | u32::from(is(key)) << slot;
        // Entries come first: if the first key that is meant is none of an entry, there is no such entry.
        self.keys().iter().enumerate().fold(0, note).trailing_zeros() as usize
    }
}

/// The line of a shard in which a search begins.
pub struct Home<'a, K, V, const N: usize>(&'a Line<K, V, N>);

impl<K, V, const N: usize> Clone for Home<'_, K, V, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V, const N: usize> Copy for Home<'_, K, V, N> {}

impl<'a, K, V, const N: usize> Home<'a, K, V, N> {
    /// The entry of the key that is meant, or else what `beyond` finds, if it may lie in another line.
    #[inline(always)]
    pub(super) fn find(
        self,
        is: impl Fn(&K) -> bool,
        beyond: impl FnOnce() -> Option<(&'a K, &'a V)>,
    ) -> Option<(&'a K, &'a V)> {
        let line = self.0;
        let slot = line.slot(is);
        match (line.keys().get(slot), line.values.get(slot)) {
            (Some(key), Some(value)) => value.as_ref().map(|value| (key, &**value)),
            _ if line.is_full() => beyond(),
            _ => None,
        }
    }
}

impl<K: Copy, V, const N: usize> Line<K, V, N> {
    /// Puts an entry into the first free slot, if there is one; gives it back if there is none.
    fn put(&mut self, (key, value): Entry<K, V>) -> Option<Entry<K, V>> {
        match self.values.iter().position(Option::is_none) {
            Some(slot) => {
                let written = if slot == 0 { 0..N } else { slot..slot + 1 };
                self.keys[written].fill(MaybeUninit::new(key));
                self.values[slot] = Some(value);
                None
            }
            None => Some((key, value)),
        }
    }

    /// Takes the entry of a slot out; the last one takes its slot.
    fn take(&mut self, slot: usize) -> Option<Entry<K, V>> {
        let key = *self.keys().get(slot)?;
        let last = self.entries().count() - 1;
        self.keys[slot] = self.keys[last];
        self.values.swap(slot, last);
        Some((key, self.values[last].take()?))
    }
}

impl<K, V, const N: usize> Shard<K, V, N> {
    /// Bytes of a line.
    pub(super) const LINE_LEN: usize = size_of::<Line<K, V, N>>();

    /// Lines of its own for so many entries, all free.
    pub(super) fn free(entries: usize, born: u64) -> Shard<K, V, N> {
        let count = lines_for::<N>(entries.max(1));
        let lines = Self::allocate(count);
        for at in 0..count {
            // SAFETY: there is room for `count` lines.
            unsafe { lines.add(at).write(Line::free()) };
        }
        Shard { lines, count: count as u32, len: 0, born }
    }

    fn layout(count: usize) -> Layout {
        Layout::array::<Line<K, V, N>>(count).unwrap_or_else(|_| panic!("a shard of {count} lines"))
    }

    /// Memory for lines. The heap of whole lines has nothing in front of them; the C library would answer
    /// with a piece of a larger block, and such pieces seldom fit where others were before.
    fn allocate(count: usize) -> NonNull<Line<K, V, N>> {
        let layout = Self::layout(count);
        // SAFETY: the layout has a size, as there is always a line.
        let start = NonNull::new(unsafe { alloc(layout) });
        start.unwrap_or_else(|| handle_alloc_error(layout)).cast()
    }

    /// Entries.
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether one more entry takes more lines.
    pub(super) fn is_full(&self) -> bool {
        lines_for::<N>(self.len() + 1) > self.count as usize
    }

    /// The line in which a search begins. The shard was chosen by the upper half of the hash.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash & 0xffff_ffff) * u64::from(self.count)) >> 32) as usize
    }

    /// Asks for the memory that a search will read, and says where it begins.
    ///
    /// # Safety
    /// The lines do not end in `'a`, and nobody changes them.
    #[inline(always)]
    pub(super) unsafe fn ask<'a>(&self, hash: u64, cache: Cache) -> Home<'a, K, V, N> {
        // SAFETY: as the caller says; the home is one of them.
        let home = unsafe { self.lines.add(self.home(hash)).as_ref() };
        prefetch(home, cache);
        // Where two entries are a line one in ten lies in the next; two of more bytes reach into it.
        if 2 * Self::LINE_LEN >= N * LINE {
            prefetch_next(home, cache);
        }
        Home(home)
    }

    /// # Safety
    /// The lines do not end in `'a`, and nobody changes them.
    #[inline]
    unsafe fn lines<'a>(&self) -> &'a [Line<K, V, N>] {
        // SAFETY: `count` lines were made there, and the rest is as the caller says.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr(), self.count as usize) }
    }

    /// # Safety
    /// As [`lines`](Shard::lines), and nobody else has a reference to them.
    unsafe fn lines_mut(&mut self) -> &mut [Line<K, V, N>] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_ptr(), self.count as usize) }
    }

    /// Every entry.
    ///
    /// # Safety
    /// Neither lines nor values end in `'a`, and nobody changes the lines.
    pub(super) unsafe fn entries<'a>(
        &self,
    ) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V, N>
    where
        K: 'a,
        V: 'a,
    {
        // SAFETY: as the caller says.
        let lines: &'a [Line<K, V, N>] = unsafe { self.lines() };
        lines.iter().flat_map(Line::entries)
    }

    /// The same entries in lines of another version's own.
    ///
    /// # Safety
    /// The lines have not ended. The values are still one each.
    pub(super) unsafe fn copy(&self, born: u64) -> Shard<K, V, N> {
        let lines = Self::allocate(self.count as usize);
        // SAFETY: both have room for `count` lines, and one was made just now.
        unsafe { self.lines.copy_to_nonoverlapping(lines, self.count as usize) };
        Shard { lines, born, ..*self }
    }

    /// Ends the lines, and no value.
    ///
    /// # Safety
    /// Nobody uses them any more, through this name or another.
    pub(super) unsafe fn end(self) {
        // SAFETY: `allocate` made them with this layout, and the rest is as the caller says.
        unsafe { dealloc(self.lines.as_ptr().cast(), Self::layout(self.count as usize)) };
    }

    /// Ends every value.
    ///
    /// # Safety
    /// Nobody uses them any more, through these lines or others. The lines are not changed meanwhile.
    pub(super) unsafe fn end_values(mut self) {
        // SAFETY: as the caller says; each value is in one slot.
        let lines = unsafe { self.lines_mut() };
        for value in lines.iter_mut().flat_map(|line| line.values.iter_mut().flatten()) {
            // SAFETY: as above.
            unsafe { ManuallyDrop::drop(value) };
        }
    }

    /// Makes the values this shard's own, which were those of the one it is a copy of.
    ///
    /// # Safety
    /// These lines are nobody else's.
    pub(super) unsafe fn clone_values(&mut self)
    where
        V: Clone,
    {
        // SAFETY: as the caller says.
        let lines = unsafe { self.lines_mut() };
        for value in lines.iter_mut().flat_map(|line| line.values.iter_mut().flatten()) {
            // What is overwritten is not dropped.
            *value = ManuallyDrop::new(V::clone(value));
        }
    }
}

impl<K: Eq + Copy, V, const N: usize> Shard<K, V, N> {
    /// The entry of the key that is meant.
    ///
    /// # Safety
    /// Neither lines nor values end in `'a`, and nobody changes the lines.
    #[inline]
    pub(super) unsafe fn find<'a>(
        &self,
        hash: u64,
        is: impl Fn(&K) -> bool,
    ) -> Option<(&'a K, &'a V)>
    where
        K: 'a,
    {
        // SAFETY: as the caller says.
        let lines: &'a [Line<K, V, N>] = unsafe { self.lines() };
        let mut at = self.home(hash);
        loop {
            // What `Home` says of one line, but asked for that the compiler makes a function of its own of all this, and a
            // received packet's policy is found in 30 cycles more.
            let line = &lines[at];
            let slot = line.slot(&is);
            if let (Some(key), Some(value)) = (line.keys().get(slot), line.values.get(slot)) {
                return value.as_ref().map(|value| (key, &**value));
            }
            if !line.is_full() {
                return None;
            }
            at = if at + 1 == lines.len() { 0 } else { at + 1 };
        }
    }

    /// Line and slot of a key.
    ///
    /// # Safety
    /// These lines are nobody else's.
    unsafe fn place(&self, hash: u64, key: &K) -> Option<(usize, usize)> {
        // SAFETY: as the caller says.
        let lines = unsafe { self.lines() };
        let mut at = self.home(hash);
        loop {
            if let Some(slot) = lines[at].entries().position(|(found, _)| found == key) {
                return Some((at, slot));
            }
            if !lines[at].is_full() {
                return None;
            }
            at = (at + 1) % lines.len();
        }
    }

    /// Sets the value of a key that is there; the one it had.
    ///
    /// # Safety
    /// These lines are nobody else's. The value that is returned may still be used through others.
    pub(super) unsafe fn replace(
        &mut self,
        hash: u64,
        key: &K,
        value: V,
    ) -> Option<ManuallyDrop<V>> {
        // SAFETY: as the caller says.
        let ((at, slot), lines) = unsafe { (self.place(hash, key)?, self.lines_mut()) };
        // Equal keys may have more to say than what is compared.
        lines[at].keys[slot] = MaybeUninit::new(*key);
        lines[at].values[slot].replace(ManuallyDrop::new(value))
    }

    /// Adds an entry whose key is not there; the shard is not full.
    ///
    /// # Safety
    /// These lines are nobody else's.
    pub(super) unsafe fn put(&mut self, hash: u64, key: K, value: ManuallyDrop<V>) {
        let mut at = self.home(hash);
        // SAFETY: as the caller says.
        let lines = unsafe { self.lines_mut() };
        let mut entry = (key, value);
        while let Some(refused) = lines[at].put(entry) {
            entry = refused;
            at = (at + 1) % lines.len();
        }
        self.len += 1;
    }

    /// Adds the bits of another shard's entry.
    ///
    /// # Safety
    /// As [`put`](Shard::put). The value ends once, through one of the two.
    pub(super) unsafe fn put_bits(&mut self, hash: u64, key: K, value: &V) {
        // SAFETY: a copy of bits, which nothing drops without saying so.
        let value = unsafe { std::ptr::from_ref(value).cast::<ManuallyDrop<V>>().read() };
        // SAFETY: as the caller says.
        unsafe { self.put(hash, key, value) };
    }

    /// Removes a key, and moves up those behind it that would lie nearer to their own lines.
    ///
    /// # Safety
    /// These lines are nobody else's. The value that is returned may still be used through others.
    pub(super) unsafe fn remove(
        &mut self,
        hash: u64,
        key: &K,
        hash_of: impl Fn(&K) -> u64,
    ) -> Option<ManuallyDrop<V>> {
        let shard = *self;
        // SAFETY: as the caller says.
        let ((mut hole, slot), lines) = unsafe { (self.place(hash, key)?, self.lines_mut()) };
        let count = lines.len();
        let distance = |from: usize, to: usize| (to + count - from) % count;
        let (mut at, mut was_full) = (hole, lines[hole].is_full());
        let removed = lines[hole].take(slot);
        // Nothing came past a line that has room.
        while was_full {
            at = (at + 1) % count;
            was_full = lines[at].is_full();
            let came_past =
                |(key, _): (&K, &V)| distance(shard.home(hash_of(key)), at) >= distance(hole, at);
            let past = lines[at].entries().position(came_past);
            if let Some(slot) = past
                && let Some(entry) = lines[at].take(slot)
            {
                // It has room: that is the hole.
                let _ = lines[hole].put(entry);
                hole = at;
            }
        }
        self.len -= 1;
        removed.map(|(_, value)| value)
    }
}

#[cfg(test)]
impl<K: Eq + Copy, V, const N: usize> Shard<K, V, N> {
    pub(super) fn slots(&self) -> usize {
        self.count as usize * N
    }

    /// Whether a key's entry lies in the line that its hash names. For shards of a table that is there.
    pub(super) fn is_at_home(&self, hash: u64, key: &K) -> bool {
        // SAFETY: as whoever asks has to see to.
        unsafe { self.place(hash, key) }.is_some_and(|(line, _)| line == self.home(hash))
    }
}
