//! Memory that holds keys: wiped when dropped, and silent when printed.

use std::fmt;
use std::ops::Deref;

use zeroize::Zeroizing;

/// The bytes of a message that may hold keys.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(Vec<u8>);

/// Room for the longest single reply, an SA with a 4096-packet window (about 1.1 KiB), so that
/// building one never moves key bytes and leaves a copy behind.
const REPLY_CAPACITY: usize = 2048;

/// Room that is kept when it is not needed any more.
const REUSED_MAX: usize = 1 << 20;

impl Bytes {
    /// Empty, with room for any single reply.
    pub(super) fn for_reply() -> Self {
        Self::with_capacity(REPLY_CAPACITY)
    }

    /// Empty, with room for `capacity` bytes.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    /// Empty, to be used over and over: its room stays, and what was in it is wiped.
    pub fn reusable(capacity: usize) -> Self {
        Self::with_capacity(capacity)
    }

    /// Wipes it and makes it empty.
    pub fn clear(&mut self) {
        self.wipe();
        if self.0.capacity() > REUSED_MAX {
            self.0 = Vec::with_capacity(REPLY_CAPACITY);
        }
    }

    /// Overwrites all of its room, as what was taken back is behind the end. In one piece: byte by byte,
    /// as `zeroize` does it, takes a microsecond for a reply.
    fn wipe(&mut self) {
        self.0.clear();
        self.0.resize(self.0.capacity(), 0);
        // Nobody reads it any more, but the compiler must not know.
        std::hint::black_box(self.0.as_slice());
        self.0.clear();
    }

    /// Room for `more` bytes, without leaving a copy of what is there.
    pub(crate) fn reserve(&mut self, more: usize) {
        let wanted = self.0.len() + more;
        if wanted > self.0.capacity() {
            let mut larger = Bytes::with_capacity(wanted.next_power_of_two());
            larger.0.extend_from_slice(&self.0);
            *self = larger;
        }
    }

    /// To append to.
    pub(crate) fn vec(&mut self) -> &mut Vec<u8> {
        &mut self.0
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
        &self.0
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.0.len())
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

    #[test]
    fn nothing_is_printed_but_lengths() {
        let mut bytes = Bytes::for_reply();
        bytes.vec().extend([0xab; 5]);
        assert_eq!(format!("{bytes:?} {:?}", Key::new(&[0xab; 3])), "Bytes(5) Key(3 bytes)");
    }
}
