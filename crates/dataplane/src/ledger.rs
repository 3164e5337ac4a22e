//! The ledger: what packets change in SAs, kept where it can outlive the process.
//!
//! Sequence numbers, replay windows and counters of an SA are one *entry*, a run of atomic words.
//! A ledger lies in memory (tests, benches) or in a file that the next process maps again
//! ([`xsk::Region`]). Whatever was stored is there after a `kill -9` between any two instructions:
//!
//! | killed after | the next process finds |
//! |---|---|
//! | sequence numbers were taken, before their packets were sent | a gap in the numbers, never a repeat |
//! | a window's bit was set, before its packet was sent on | a packet lost, never one accepted twice |
//! | a bit was set, before the window moved to it | the number refused, the window moves with the next |
//! | packets were counted, before bytes | a count that is some packets ahead |
//!
//! IVs are not here: a new process has new ones (`nonce.rs`). Keys are not here either, and the ledger does not
//! know whose an entry is: the *tag*, which is never used twice, ties it to the journal's record of its SA.

mod words;

use std::io;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use xsk::Region;
use xsk::region::CHUNK_WORDS;

use crate::replay::ring_words;

pub(crate) use words::{ErrorKind, Words};
use words::{HEAD_WORDS, word, words_for};

/// Words of a cell, the unit that entries are made of: a head, with the ring of windows up to 96.
const CELL_WORDS: usize = HEAD_WORDS;

/// Cells of a chunk.
const CHUNK_CELLS: usize = CHUNK_WORDS / CELL_WORDS;

/// Sizes of entries: 1, 2, 4, 8, 16 or 32 cells. The last holds the widest window.
const CLASSES: usize = 6;

const _: () =
    assert!(HEAD_WORDS + ring_words(crate::replay::WINDOW_MAX) <= CELL_WORDS << (CLASSES - 1));

/// Where an entry is: enough to find it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Its first cell.
    pub cell: u32,
    /// What tells it from every other entry that ever was there.
    pub tag: u64,
}

/// One SA's entry. Dropping it gives the place back, so nobody may use its words longer.
pub struct Entry {
    words: Words,
    ledger: Ledger,
    cell: u32,
    lasts: bool,
}

/// All entries. Clones are the same ledger.
#[derive(Clone)]
pub struct Ledger {
    state: Arc<Mutex<State>>,
}

struct State {
    /// `None`: chunks are plain memory.
    region: Option<Region>,
    chunks: Vec<Chunk>,
    free: [Vec<u32>; CLASSES],
    /// Given back, and not zeroed yet.
    returned: Vec<u32>,
    next_tag: u64,
    in_use: usize,
}

type Cells = &'static [AtomicU64];

struct Chunk {
    words: Cells,
    /// What it is divided into; `None` until its first entry.
    class: Option<usize>,
    /// Entries found by [`Ledger::find`], one bit per cell.
    found: Vec<u64>,
}

impl Ledger {
    /// Plain memory: it ends with the process.
    pub fn in_memory() -> Ledger {
        Ledger::with(None, Vec::new(), 1)
    }

    /// What an earlier process left in a file, or an empty one. Tags count up from `first_tag`; none
    /// of them may have been used before. Entries are to be found one by one, then
    /// [`Ledger::sweep`] frees what is left.
    pub fn open(region: Region, first_tag: u64) -> Ledger {
        let chunks = region.chunks().iter().map(|words| Chunk::new(words)).collect();
        Ledger::with(Some(region), chunks, first_tag)
    }

    fn with(region: Option<Region>, chunks: Vec<Chunk>, next_tag: u64) -> Ledger {
        let (free, returned) = (Default::default(), Vec::new());
        let state = State { region, chunks, free, returned, next_tag, in_use: 0 };
        Ledger { state: Arc::new(Mutex::new(state)) }
    }

    /// A new entry for a window of so many packets: all zeros.
    ///
    /// # Errors
    /// The file cannot grow.
    pub fn take(&self, window: u32) -> io::Result<Entry> {
        let class = class_of(window);
        let mut state = self.lock();
        if state.region.is_none() {
            // Nothing but this process reads it, so there is nothing to wait for.
            state.reclaim();
        }
        if state.free[class].is_empty() {
            state.grow(class)?;
        }
        let cell = state.free[class].pop().ok_or(io::ErrorKind::OutOfMemory)?;
        let tag = state.next_tag;
        state.next_tag += 1;
        state.in_use += 1;
        let (words, lasts) = (state.words(cell, class), state.region.is_some());
        drop(state);
        let entry = self.entry(words, cell, lasts, window).ok_or(io::ErrorKind::OutOfMemory)?;
        entry.words.head()[word::TAG].store(tag, Relaxed);
        Ok(entry)
    }

    /// The entry that an earlier process made. `None` if it is not there any more, or was found
    /// already.
    pub fn find(&self, place: Place, window: u32) -> Option<Entry> {
        let class = class_of(window);
        let mut state = self.lock();
        let (chunk, cell) = divide(place.cell);
        let known = state.chunks.get_mut(chunk)?;
        let (at, bit) = (cell / 64, 1 << (cell % 64));
        let fits = known.class.is_none_or(|other| other == class) && cell % (1 << class) == 0;
        if !fits || known.found[at] & bit != 0 || place.tag == 0 {
            return None;
        }
        let words = known.words.get(cell * CELL_WORDS..)?.get(..CELL_WORDS << class)?;
        if words[word::TAG].load(Relaxed) != place.tag {
            return None;
        }
        known.class = Some(class);
        known.found[at] |= bit;
        state.in_use += 1;
        drop(state);
        self.entry(words, place.cell, true, window)
    }

    /// Zeroes and frees everything that was not found. Once, before the first [`Ledger::take`].
    pub fn sweep(&self) {
        let mut state = self.lock();
        let State { chunks, free, .. } = &mut *state;
        for (number, chunk) in chunks.iter_mut().enumerate() {
            let Some(class) = chunk.class else {
                // Nobody knows how it was divided, so all of it goes.
                zero(chunk.words);
                continue;
            };
            for cell in (0..CHUNK_CELLS).step_by(1 << class).rev() {
                if chunk.found[cell / 64] >> (cell % 64) & 1 != 0 {
                    continue;
                }
                let words = &chunk.words[cell * CELL_WORDS..][..CELL_WORDS << class];
                // The tag is the first word to be set and the last to be zeroed.
                if words[word::TAG].load(Relaxed) != 0 {
                    zero(words);
                }
                free[class].push((number * CHUNK_CELLS + cell) as u32);
            }
        }
    }

    /// Zeroes and frees what was given back. Whoever keeps a record of entries calls this when the
    /// record says that they are gone.
    pub fn reclaim(&self) {
        self.lock().reclaim();
    }

    /// Entries in use.
    pub fn in_use(&self) -> usize {
        self.lock().in_use
    }

    fn entry(&self, words: Cells, cell: u32, lasts: bool, window: u32) -> Option<Entry> {
        let words = Words::of(words, window)?;
        Some(Entry { words, ledger: self.clone(), cell, lasts })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn words(&self, cell: u32, class: usize) -> &'static [AtomicU64] {
        let (chunk, cell) = divide(cell);
        &self.chunks[chunk].words[cell * CELL_WORDS..][..CELL_WORDS << class]
    }

    fn reclaim(&mut self) {
        for cell in std::mem::take(&mut self.returned) {
            let Some(class) = self.chunks[divide(cell).0].class else { continue };
            zero(self.words(cell, class));
            self.free[class].push(cell);
        }
    }

    /// Gives a class a chunk: one that was swept, or a new one.
    fn grow(&mut self, class: usize) -> io::Result<()> {
        let number = match self.chunks.iter().position(|chunk| chunk.class.is_none()) {
            Some(number) => number,
            None => {
                let words = match &mut self.region {
                    Some(region) => region.grow()?,
                    None => plain_chunk(),
                };
                self.chunks.push(Chunk::new(words));
                self.chunks.len() - 1
            }
        };
        self.chunks[number].class = Some(class);
        let cells = (0..CHUNK_CELLS).step_by(1 << class).rev();
        self.free[class].extend(cells.map(|cell| (number * CHUNK_CELLS + cell) as u32));
        Ok(())
    }
}

impl Chunk {
    fn new(words: &'static [AtomicU64]) -> Chunk {
        Chunk { words, class: None, found: vec![0; CHUNK_CELLS / 64] }
    }
}

/// A chunk that stays for as long as the process, and is used over and over. Where its cells lie,
/// entries share no cache lines.
fn plain_chunk() -> &'static [AtomicU64] {
    const LINE_WORDS: usize = HEAD_WORDS;
    let words: Vec<AtomicU64> =
        std::iter::repeat_with(AtomicU64::default).take(CHUNK_WORDS + LINE_WORDS).collect();
    let words: &'static [AtomicU64] = words.leak();
    let skip = words.as_ptr().align_offset(LINE_WORDS * size_of::<AtomicU64>()).min(LINE_WORDS);
    &words[skip..skip + CHUNK_WORDS]
}

/// The tag goes last: what still has one is zeroed by the next process.
fn zero(words: &[AtomicU64]) {
    let others = words.iter().enumerate().filter(|(index, _)| *index != word::TAG);
    others.for_each(|(_, word)| word.store(0, Relaxed));
    words[word::TAG].store(0, Release);
}

fn class_of(window: u32) -> usize {
    let cells = words_for(window).div_ceil(CELL_WORDS);
    cells.next_power_of_two().trailing_zeros() as usize
}

/// Chunk, and cell in the chunk.
fn divide(cell: u32) -> (usize, usize) {
    (cell as usize / CHUNK_CELLS, cell as usize % CHUNK_CELLS)
}

impl Entry {
    /// One in memory, for SAs that nobody restores.
    pub(crate) fn in_memory(window: u32) -> io::Result<Entry> {
        static MEMORY: LazyLock<Ledger> = LazyLock::new(Ledger::in_memory);
        MEMORY.take(window)
    }

    /// Where it is, for the next process; `None` if it ends with this one.
    pub fn place(&self) -> Option<Place> {
        self.lasts.then(|| self.at())
    }

    fn at(&self) -> Place {
        Place { cell: self.cell, tag: self.words.head()[word::TAG].load(Relaxed) }
    }

    /// Its words.
    pub(crate) fn words(&self) -> Words {
        self.words
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut state = self.ledger.lock();
        state.in_use -= 1;
        state.returned.push(self.cell);
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({:?})", self.at())
    }
}

#[cfg(test)]
mod tests;
