//! Words in a file that several processes share one after the other: what must survive a process
//! that is killed.
//!
//! A file of whole chunks, each mapped shared and never unmapped, so that its words may be borrowed
//! for as long as the process lives. A store is in the file as soon as it is done: the kernel keeps
//! the pages whatever becomes of the process. On tmpfs nothing is ever written to a disk.
//!
//! Every page is allocated before it is mapped, so that a full file system is an error of
//! [`Region::grow`] and never a bus error. Whoever truncates the file under a running process can
//! still kill it with one: the file belongs into a directory of its owner's alone. What the words mean
//! is the owner's business.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::AtomicU64;

use crate::sys::Mapping;

/// Bytes of a chunk, the unit that the file grows by: a mapping each, of which a process may have
/// 65 530 (`vm.max_map_count`); larger ones waste memory where there are few words.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Words of a chunk.
pub const CHUNK_WORDS: usize = CHUNK_BYTES / size_of::<AtomicU64>();

/// A file as chunks of words.
#[derive(Debug)]
pub struct Region {
    file: File,
    chunks: Vec<&'static [AtomicU64]>,
}

impl Region {
    /// Maps the whole chunks that a file has. It must be open for reading and writing, and belong to
    /// no other process that is alive.
    ///
    /// # Errors
    /// The file cannot be measured, filled or mapped.
    pub fn open(file: File) -> io::Result<Region> {
        let len = file.metadata()?.len();
        let mut region = Region { file, chunks: Vec::new() };
        for _ in 0..len / CHUNK_BYTES as u64 {
            region.grow()?;
        }
        Ok(region)
    }

    /// Maps one more chunk; where the file ends it is made longer, with zeros.
    ///
    /// # Errors
    /// No space is left, or no mapping.
    pub fn grow(&mut self) -> io::Result<&'static [AtomicU64]> {
        let offset = (self.chunks.len() * CHUNK_BYTES) as i64;
        allocate(&self.file, offset)?;
        let mapping = Mapping::of_file(self.file.as_fd(), CHUNK_BYTES, offset)?;
        let words = words(mapping);
        self.chunks.push(words);
        Ok(words)
    }

    /// All chunks, in the order of the file.
    pub fn chunks(&self) -> &[&'static [AtomicU64]] {
        &self.chunks
    }
}

/// Sees that every page of a chunk is there, keeping what it holds.
fn allocate(file: &File, offset: i64) -> io::Result<()> {
    loop {
        // SAFETY: no pointers are passed.
        let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, offset, CHUNK_BYTES as i64) };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The words of a mapping that stays for as long as the process.
fn words(mapping: Mapping) -> &'static [AtomicU64] {
    let start = mapping.start().cast::<AtomicU64>().as_ptr();
    // Never dropped, hence never unmapped.
    std::mem::forget(mapping);
    // SAFETY: `CHUNK_BYTES` bytes from `start` are mapped readable and writable until the process
    // ends, since the mapping was just forgotten; a mapping is page-aligned, any bits are a word, and
    // nobody has another kind of reference to them: `words` is called once for each mapping. Pages
    // behind it exist (`allocate`) unless somebody truncates the file, which kills the process
    // rather than give it other memory.
    unsafe { std::slice::from_raw_parts(start, CHUNK_WORDS) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    fn file() -> (tempfile::TempDir, std::path::PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("words");
        (directory, path)
    }

    fn open(path: &std::path::Path) -> Region {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        Region::open(file.unwrap()).unwrap()
    }

    #[test]
    fn what_is_stored_is_there_for_whoever_opens_the_file_next() {
        let (_directory, path) = file();
        let mut first = open(&path);
        assert!(first.chunks().is_empty());
        let chunk = first.grow().unwrap();
        assert_eq!(chunk.len(), CHUNK_WORDS);
        assert!(chunk.iter().all(|word| word.load(Relaxed) == 0));
        chunk[7].store(42, Relaxed);
        first.grow().unwrap()[CHUNK_WORDS - 1].store(43, Relaxed);
        drop(first);
        chunk[8].fetch_add(5, Relaxed);

        let second = open(&path);
        let found: Vec<u64> =
            second.chunks().iter().flat_map(|c| c.iter()).map(|w| w.load(Relaxed)).collect();
        assert_eq!((found.len(), found[7], found[8]), (2 * CHUNK_WORDS, 42, 5));
        assert_eq!(found.last(), Some(&43));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * CHUNK_BYTES as u64);
    }

    #[test]
    fn a_file_with_holes_is_filled_before_it_is_mapped() {
        let (_directory, path) = file();
        // Half a chunk too long, and without a single page.
        File::create(&path).unwrap().set_len(CHUNK_BYTES as u64 * 3 / 2).unwrap();
        let region = open(&path);
        assert_eq!(region.chunks().len(), 1, "what is no whole chunk is not mapped");
        use std::os::unix::fs::MetadataExt;
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= CHUNK_BYTES as u64);
        region.chunks()[0][CHUNK_WORDS - 1].store(1, Relaxed);
    }

    #[test]
    fn a_file_that_cannot_grow_is_an_error() {
        let (_directory, path) = file();
        open(&path).grow().unwrap();
        let read_only = File::open(&path).unwrap();
        assert!(Region::open(read_only).is_err());
    }
}
