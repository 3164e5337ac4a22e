//! The names by which a tuple's tables know their entries.

use std::hash::{BuildHasherDefault, Hash, Hasher};

use crate::table::Table;

/// A hash of the bits that a mask sees, which names what lies in a place. Others may have the same: what is
/// there is compared anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(pub(super) u32);

/// A table by tags, or by what has one.
pub(super) type Tagged<K, V, const N: usize = 2> = Table<K, V, N, BuildHasherDefault<OfTag>>;

impl Tag {
    /// A table's hash of it: in the lower half its first bits choose the line, in the upper half its last
    /// ones the shard.
    #[inline]
    pub(super) fn spread(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

impl Hash for Tag {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.spread());
    }
}

/// What hashes a tag for its table: nothing is left to be done.
#[derive(Default)]
pub(super) struct OfTag(u64);

impl Hasher for OfTag {
    /// Not what a tag does.
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
