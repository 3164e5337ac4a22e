//! A [`Roster`] whose values are bytes: those of 64 names lie behind each other in one block.
//!
//! Hundreds of thousands of packed SAs and policies have 50 to 90 bytes each. Boxed, each would take 16 more for
//! where it is and 8 to 23 for the allocator.
//!
//! The bytes may be keys: what is replaced, removed, moved or dropped is wiped.

use std::ops::Range;

use zeroize::{Zeroize, Zeroizing};

use super::{Roster, Row};

/// The map.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    /// How many bytes each name has.
    lens: Roster<u16, Block>,
}

/// The bytes of a chunk's names, in their order, and zeros.
#[derive(Debug, Default)]
struct Block {
    bytes: Zeroizing<Box<[u8]>>,
    /// So many are names'.
    len: usize,
}

impl Shelf {
    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.lens.len()
    }

    /// Whether a name is there.
    pub(crate) fn contains(&self, name: u64) -> bool {
        self.lens.contains(name)
    }

    /// The bytes of a name.
    pub(crate) fn get(&self, name: u64) -> Option<&[u8]> {
        let (row, block) = self.lens.row(name)?;
        block.bytes.get(range(&row))
    }

    /// Sets the bytes of a name.
    ///
    /// # Panics
    /// If there are more than [`u16::MAX`].
    pub(crate) fn set(&mut self, name: u64, bytes: &[u8]) {
        let len = u16::try_from(bytes.len()).expect("an SA or a policy has some hundred bytes");
        let old = usize::from(self.lens.insert(name, len).unwrap_or(0));
        if let Some((row, block)) = self.lens.row_mut(name) {
            let start = range(&row).start;
            // Names that count up come to fill the chunk, with about as many bytes each.
            let for_names = row.left * (start + bytes.len()) / (row.before.len() + 1);
            // SAs without keys get them one by one: not another block for each.
            let for_keys = (block.len - old + bytes.len()) / 16;
            block.splice(start..start + old, bytes, for_names.max(for_keys));
        }
    }

    /// Removes a name.
    pub(crate) fn remove(&mut self, name: u64) {
        if let Some((row, block)) = self.lens.row_mut(name) {
            block.splice(range(&row), &[], 0);
        }
        self.lens.remove(name);
    }

    /// The highest name below `end`, and its bytes.
    pub(crate) fn before(&self, end: u64) -> Option<(u64, &[u8])> {
        let (name, _) = self.lens.before(end)?;
        Some((name, self.get(name)?))
    }

    /// Every entry, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.lens.iter().filter_map(|(name, _)| Some((name, self.get(name)?)))
    }
}

/// Where a name's bytes are in its block.
fn range(row: &Row<'_, u16>) -> Range<usize> {
    let start = row.before.iter().map(|len| usize::from(*len)).sum();
    start..start + usize::from(*row.value)
}

impl Block {
    /// Puts bytes where others were. If the block has to be another one for it, that has `room` for more.
    fn splice(&mut self, gone: Range<usize>, bytes: &[u8], room: usize) {
        let (start, end) = (gone.start, gone.start + bytes.len());
        let (old_len, len) = (self.len, self.len - gone.len() + bytes.len());
        let size = self.bytes.len();
        if len > size || bytes.is_empty() && len < size / 2 {
            let mut other = Zeroizing::new(vec![0; len + room].into_boxed_slice());
            other[..start].copy_from_slice(&self.bytes[..start]);
            other[end..len].copy_from_slice(&self.bytes[gone.end..old_len]);
            self.bytes = other;
        } else {
            self.bytes.copy_within(gone.end..old_len, end);
            self.bytes[len..old_len.max(len)].zeroize();
        }
        self.bytes[start..end].copy_from_slice(bytes);
        self.len = len;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_a_tree(
            steps in prop::collection::vec(
                (0..200u64, prop::option::of(prop::collection::vec(1..=u8::MAX, 0..100))), 1..600,
            ),
            end in 0..210u64,
        ) {
            let (mut shelf, mut twin) = (Shelf::default(), BTreeMap::new());
            for (name, bytes) in steps {
                match bytes {
                    Some(bytes) => {
                        shelf.set(name, &bytes);
                        twin.insert(name, bytes);
                    }
                    None => {
                        shelf.remove(name);
                        twin.remove(&name);
                    }
                }
                prop_assert_eq!(shelf.len(), twin.len());
            }
            let twins = || twin.iter().map(|(name, bytes)| (*name, &bytes[..]));
            prop_assert!(shelf.iter().eq(twins()));
            prop_assert_eq!(shelf.before(end), twins().rfind(|(name, _)| *name < end));
            for name in 0..200 {
                prop_assert_eq!(shelf.get(name), twin.get(&name).map(|bytes| &bytes[..]));
                prop_assert_eq!(shelf.contains(name), twin.contains_key(&name));
            }
            // No byte is kept of what is not there any more.
            for Block { bytes, len } in shelf.lens.chunks.values().map(|(_, block)| block) {
                prop_assert!(bytes[*len..].iter().all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    fn names_that_count_up_fill_their_blocks_and_no_more() {
        let mut shelf = Shelf::default();
        (0..6400).for_each(|name| shelf.set(name, &[7; 86][..80 + name as usize % 7]));
        let capacity = |shelf: &Shelf| -> usize {
            shelf.lens.chunks.values().map(|(_, block)| block.bytes.len()).sum()
        };
        assert!(capacity(&shelf) < 6400 * 90, "{}", capacity(&shelf));
        (0..6400).filter(|name| name % 64 != 5).for_each(|name| shelf.remove(name));
        assert!(capacity(&shelf) < 100 * 2 * 90, "{}", capacity(&shelf));
    }
}
