//! An index that holds names and not what they are found by: the table that the names are of has that.
//!
//! A name is kept with half of its key's hash, so that growing the index asks nobody for the keys. It
//! is keyed against hash flooding, as far as the hashes that it is given are.

use hashbrown::HashTable;

/// Half of a hash, and the name in halves: together they would take a quarter more.
type Entry = [u32; 3];

/// Names by the hashes of their keys.
#[derive(Debug, Default)]
pub(super) struct Index {
    names: HashTable<Entry>,
}

/// A hash for the table, which looks at the lowest and the highest bits, of the half that is kept.
fn spread(half: u32) -> u64 {
    u64::from(half).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn half(hash: u64) -> u32 {
    (hash >> 32) as u32
}

fn entry(half: u32, name: u64) -> Entry {
    [half, (name >> 32) as u32, name as u32]
}

impl Index {
    /// Adds a name, which must not be there.
    pub(super) fn insert(&mut self, hash: u64, name: u64) {
        let half = half(hash);
        self.names.insert_unique(spread(half), entry(half, name), |entry| spread(entry[0]));
    }

    /// Removes a name.
    pub(super) fn remove(&mut self, hash: u64, name: u64) {
        let half = half(hash);
        if let Ok(found) = self.names.find_entry(spread(half), |found| *found == entry(half, name))
        {
            found.remove();
        }
    }

    /// The names whose keys may have this hash. The caller sees whether they do have its key.
    pub(super) fn named(&self, hash: u64) -> impl Iterator<Item = u64> {
        let half = half(hash);
        let found = self.names.iter_hash(spread(half));
        let name = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        found.filter(move |entry| entry[0] == half).map(move |entry| name(entry[1], entry[2]))
    }

    /// Names in it.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_hash_until_they_are_removed() {
        let mut index = Index::default();
        let hash = |key: u64| key.wrapping_mul(0xd134_2543_de82_ef95);
        (0..5000).for_each(|name| index.insert(hash(name % 1000), name));
        index.insert(hash(70_000), u64::MAX - 1);
        assert!(index.named(hash(70_000)).eq([u64::MAX - 1]));
        index.remove(hash(70_000), u64::MAX - 1);
        for key in 0..1000 {
            let mut found: Vec<u64> = index.named(hash(key)).collect();
            found.sort_unstable();
            assert_eq!(found, [key, 1000 + key, 2000 + key, 3000 + key, 4000 + key]);
        }
        (0..4000).for_each(|name| index.remove(hash(name % 1000), name));
        index.remove(hash(1), 1);
        assert_eq!(index.len(), 1000);
        assert!(index.named(hash(7)).eq([4007]));
        assert_eq!(index.named(hash(70_000)).count(), 0);
    }
}
