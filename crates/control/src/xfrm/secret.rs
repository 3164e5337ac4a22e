//! Memory that holds keys: wiped when dropped, and silent when printed.

use std::fmt;
use std::ops::Deref;

use zeroize::Zeroizing;

/// The bytes of a message that may hold keys.
#[derive(Clone)]
pub struct Bytes {
    bytes: Vec<u8>,
    /// Nothing was written since it was wiped.
    is_wiped: bool,
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Bytes {}

/// Room for the longest single reply, an SA with a 4096-packet window (about 1.1 KiB), so that
/// building one never moves key bytes and leaves a copy behind.
pub(super) const REPLY_CAPACITY: usize = 2048;

/// Bytes behind the end that may have been written and taken back: a message that did not fit behind the
/// others of a dump, a nested attribute. No message is longer.
const TAKEN_BACK_MAX: usize = 4096;

/// Room that is kept when it is not needed any more.
const REUSED_MAX: usize = 1 << 20;

impl Bytes {
    /// Empty, with room for any single reply.
    pub(super) fn for_reply() -> Self {
        Self::with_capacity(REPLY_CAPACITY)
    }

    /// Empty, with room for `capacity` bytes.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { bytes: Vec::with_capacity(capacity), is_wiped: true }
    }

    /// Empty, to be used over and over: its room stays, and what was in it is wiped.
    pub fn reusable(capacity: usize) -> Self {
        Self::with_capacity(capacity)
    }

    /// Wipes it and makes it empty.
    pub fn clear(&mut self) {
        self.wipe();
        if self.bytes.capacity() > REUSED_MAX {
            self.bytes = Vec::with_capacity(REPLY_CAPACITY);
        }
    }

    /// Overwrites what was in it, and what was taken back and is behind the end. In one piece: byte by byte,
    /// as `zeroize` does it, takes a microsecond for a reply. Not all of its room, of which the journal
    /// has sixteen kilobytes: wiping those for each request took longer than writing them.
    fn wipe(&mut self) {
        let written = (self.bytes.len() + TAKEN_BACK_MAX).min(self.bytes.capacity());
        if self.bytes.is_empty() && self.is_wiped {
            return;
        }
        self.bytes.clear();
        self.bytes.resize(written, 0);
        // Nobody reads it any more, but the compiler must not know.
        std::hint::black_box(self.bytes.as_slice());
        self.bytes.clear();
        self.is_wiped = true;
    }

    /// Room for `more` bytes, without leaving a copy of what is there.
    pub(crate) fn reserve(&mut self, more: usize) {
        let wanted = self.bytes.len() + more;
        if wanted > self.bytes.capacity() {
            let mut larger = Bytes::with_capacity(wanted.next_power_of_two());
            larger.vec().extend_from_slice(&self.bytes);
            *self = larger;
        }
    }

    /// To append to.
    pub(crate) fn vec(&mut self) -> &mut Vec<u8> {
        self.is_wiped = false;
        &mut self.bytes
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.wipe();
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.bytes.len())
    }
}

/// An SA's key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Zeroizing<Vec<u8>>);

impl Key {
    /// A copy of `bytes`.
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self(Zeroizing::new(bytes.to_vec()))
    }

    /// The key itself.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_was_written_and_what_was_taken_back_is_wiped() {
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let mut bytes = Bytes::reusable(16 << 10);
        for _ in 0..2 {
            bytes.vec().extend([0xab; 5000]);
            bytes.vec().truncate(5000 - TAKEN_BACK_MAX);
            let start = bytes.vec().as_ptr() as u64;
            let mut found = [0; 5000];
            memory.read_exact_at(&mut found, start).unwrap();
            assert_eq!(found, [0xab; 5000], "what is taken back stays");
            bytes.clear();
            bytes.clear();
            memory.read_exact_at(&mut found, start).unwrap();
            assert_eq!(found, [0; 5000]);
        }
    }

    #[test]
    fn nothing_is_printed_but_lengths() {
        let mut bytes = Bytes::for_reply();
        bytes.vec().extend([0xab; 5]);
        assert_eq!(format!("{bytes:?} {:?}", Key::new(&[0xab; 3])), "Bytes(5) Key(3 bytes)");
    }
}
