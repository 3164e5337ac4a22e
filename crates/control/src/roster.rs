//! A map for names that count up and are never used twice, in the order of the names.
//!
//! A B-tree that is filled in order leaves nearly half of its room empty, and a hash table has no
//! order. Here 64 names in a row share a chunk: a word says which of them are there, and their values
//! lie one behind the other, so that an entry costs its value and a byte. Chunks without names cost
//! nothing, which is what most are once the oldest entries are gone.

pub(crate) mod shelf;

use std::collections::BTreeMap;

/// Names of a chunk: as many as a word has bits.
const CHUNK_NAMES: u64 = 64;

#[derive(Clone, Debug)]
struct Chunk<T> {
    /// Bit *n*: the chunk's name *n* is there.
    present: u64,
    /// The values of the names that are there, in their order.
    values: Vec<T>,
}

/// A name's value, and those of its chunk that are before it.
struct Row<'a, T> {
    before: &'a [T],
    value: &'a T,
    /// Names behind all of the chunk's that may still come.
    left: usize,
}

impl<T> Chunk<T> {
    fn has(&self, bit: u32) -> bool {
        self.present >> bit & 1 != 0
    }

    /// Where the value of a name is, or would be.
    fn place(&self, bit: u32) -> usize {
        (self.present & ((1 << bit) - 1)).count_ones() as usize
    }

    fn row(&self, bit: u32) -> Option<Row<'_, T>> {
        if !self.has(bit) {
            return None;
        }
        let (before, from) = self.values.split_at_checked(self.place(bit))?;
        Some(Row { before, value: from.first()?, left: self.present.leading_zeros() as usize })
    }
}

/// The map. The names of a chunk may have something in common, a `B`.
#[derive(Clone, Debug)]
pub(crate) struct Roster<T, B = ()> {
    chunks: BTreeMap<u64, (Chunk<T>, B)>,
    len: usize,
}

impl<T, B> Default for Roster<T, B> {
    fn default() -> Self {
        Roster { chunks: BTreeMap::new(), len: 0 }
    }
}

/// The chunk of a name, and its bit there.
fn split(name: u64) -> (u64, u32) {
    (name / CHUNK_NAMES, (name % CHUNK_NAMES) as u32)
}

impl<T, B: Default> Roster<T, B> {
    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The value of a name.
    pub(crate) fn get(&self, name: u64) -> Option<&T> {
        Some(self.row(name)?.0.value)
    }

    /// The value of a name, for change.
    pub(crate) fn get_mut(&mut self, name: u64) -> Option<&mut T> {
        let (number, bit) = split(name);
        let (chunk, _) = self.chunks.get_mut(&number)?;
        let place = chunk.place(bit);
        if chunk.has(bit) { chunk.values.get_mut(place) } else { None }
    }

    /// A name in its chunk, and what those have in common.
    fn row(&self, name: u64) -> Option<(Row<'_, T>, &B)> {
        let (number, bit) = split(name);
        let (chunk, common) = self.chunks.get(&number)?;
        Some((chunk.row(bit)?, common))
    }

    /// The same, to change what they have in common.
    fn row_mut(&mut self, name: u64) -> Option<(Row<'_, T>, &mut B)> {
        let (number, bit) = split(name);
        let (chunk, common) = self.chunks.get_mut(&number)?;
        Some((chunk.row(bit)?, common))
    }

    /// Whether a name is there.
    pub(crate) fn contains(&self, name: u64) -> bool {
        self.get(name).is_some()
    }

    /// Sets the value of a name; the value it had.
    pub(crate) fn insert(&mut self, name: u64, value: T) -> Option<T> {
        let (number, bit) = split(name);
        // Names that count up come to fill a chunk: it need not grow then.
        let empty = || Chunk { present: 0, values: Vec::with_capacity(CHUNK_NAMES as usize) };
        let (chunk, _) = self.chunks.entry(number).or_insert_with(|| (empty(), B::default()));
        let place = chunk.place(bit);
        if chunk.has(bit) {
            return chunk.values.get_mut(place).map(|old| std::mem::replace(old, value));
        }
        chunk.values.insert(place, value);
        chunk.present |= 1 << bit;
        self.len += 1;
        None
    }

    /// Removes a name; the value it had.
    pub(crate) fn remove(&mut self, name: u64) -> Option<T> {
        let (number, bit) = split(name);
        let (chunk, _) = self.chunks.get_mut(&number)?;
        if !chunk.has(bit) {
            return None;
        }
        let value = chunk.values.remove(chunk.place(bit));
        chunk.present &= !(1 << bit);
        self.len -= 1;
        if chunk.present == 0 {
            self.chunks.remove(&number);
        } else if chunk.values.len() <= chunk.values.capacity() / 2 {
            chunk.values.shrink_to_fit();
        }
        Some(value)
    }

    /// The highest name below `end`, and its value.
    pub(crate) fn before(&self, end: u64) -> Option<(u64, &T)> {
        let (number, bit) = split(end);
        if let Some((chunk, _)) = self.chunks.get(&number)
            && let below @ 1.. = chunk.present & ((1 << bit) - 1)
        {
            let bit = below.ilog2();
            let value = chunk.values.get(chunk.place(bit))?;
            return Some((number * CHUNK_NAMES + u64::from(bit), value));
        }
        let (number, (chunk, _)) = self.chunks.range(..number).next_back()?;
        let value = chunk.values.last()?;
        Some((number * CHUNK_NAMES + u64::from(chunk.present.ilog2()), value))
    }

    /// Every entry, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.chunks.iter().flat_map(|(number, (chunk, _))| {
            let names = (0..CHUNK_NAMES).filter(|bit| chunk.has(*bit as u32));
            names.map(move |bit| number * CHUNK_NAMES + bit).zip(&chunk.values)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u32),
        Remove(u64),
        Change(u64, u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let name = || prop_oneof![4 => 0..300u64, 1 => 1 << 40..(1 << 40) + 70u64];
        prop_oneof![
            4 => (name(), any::<u32>()).prop_map(|(name, value)| Step::Insert(name, value)),
            3 => name().prop_map(Step::Remove),
            1 => (name(), any::<u32>()).prop_map(|(name, value)| Step::Change(name, value)),
        ]
    }

    proptest! {
        #[test]
        fn equals_a_tree(
            steps in prop::collection::vec(step(), 1..600),
            end in prop_oneof![0..310u64, Just(1 << 40), Just(u64::MAX)],
        ) {
            let (mut roster, mut twin) = (Roster::<u32>::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Insert(name, value) => {
                        prop_assert_eq!(roster.insert(name, value), twin.insert(name, value));
                    }
                    Step::Remove(name) => prop_assert_eq!(roster.remove(name), twin.remove(&name)),
                    Step::Change(name, value) => {
                        let ours = roster.get_mut(name).map(|old| *old = value);
                        prop_assert_eq!(ours, twin.get_mut(&name).map(|old| *old = value));
                    }
                }
            }
            prop_assert_eq!(roster.len(), twin.len());
            prop_assert!(roster.iter().eq(twin.iter().map(|(name, value)| (*name, value))));
            let last = twin.range(..end).next_back().map(|(name, value)| (*name, value));
            prop_assert_eq!(roster.before(end), last);
            for name in 0..300 {
                prop_assert_eq!(roster.get(name), twin.get(&name));
            }
        }
    }

    #[test]
    fn what_is_gone_takes_no_room() {
        let mut roster = Roster::<[u8; 100]>::default();
        for name in 0..6400u64 {
            roster.insert(name, [0u8; 100]);
        }
        for name in (0..6400u64).filter(|name| name % 64 != 5) {
            roster.remove(name);
        }
        assert_eq!((roster.len(), roster.chunks.len()), (100, 100));
        assert!(roster.chunks.values().all(|(chunk, _)| chunk.values.capacity() == 1));
        for name in 0..6400u64 {
            roster.remove(name);
        }
        assert!(roster.chunks.is_empty());
    }
}
