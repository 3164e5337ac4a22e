//! A hash table whose versions share what they have in common.
//!
//! Control clones a table (one reference count), changes the clone, and publishes it while workers
//! still read the old version. Only the shards that a change touches are copied, and only once per
//! published version, however many changes fall into them. The array of shards is not copied for
//! every change either: a version keeps the shards that differ from the array beside it, until they
//! are too many or [`Table::settle`] puts them in, after which a look-up need not ask there.
//!
//! A copied reference is counted, which touches memory that no core had for a long time: of 100 000
//! entries nearly every one is such a miss. So what is about to be copied is asked for in one go before.
//!
//! Entries lie in whole cache lines, as many in each as the table's type says, so that none is in two.
//!
//! The table is keyed against hash flooding, as its keys come from the wire. It keeps no order, and
//! does not evict.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::cpu::{prefetch, prefetch_count};

/// Entries per shard at which the number of shards doubles. Copying a shard of this size takes a
/// microsecond or two; smaller ones spread the entries over more memory, which costs look-ups.
const SHARD_ENTRIES_MAX: usize = 128;

/// Shards that a version keeps beside the array. Sixteen bring the array's copying below that of
/// the shard; a look-up compares sixteen numbers as long as they are there.
const ASIDE_MAX: usize = 16;

/// Slots of an empty shard.
const SLOTS_MIN: usize = 2;

type Slot<K, V> = Option<(K, V)>;

/// So many neighbouring slots.
#[derive(Clone)]
#[repr(align(64))]
struct Line<K, V, const N: usize>([Slot<K, V>; N]);

/// The slots of a shard, a power of two, shared among versions.
#[derive(Clone)]
struct Slots<K, V, const N: usize>(Arc<[Line<K, V, N>]>);

/// Each entry lies in the line of its hash, or in those behind it if there was no room (linear probing from
/// a line's first slot). Half of the slots are free at least, so that nearly every search, also one for
/// what is not there, ends within the one line that was asked for ahead of time, and reads nothing else.
#[derive(Clone)]
struct Shard<K, V, const N: usize> {
    slots: Slots<K, V, N>,
    len: usize,
}

/// A copy-on-write hash table in shards. `N` entries lie in a cache line, or in as many lines as they
/// take; a power of two.
#[derive(Clone)]
pub struct Table<K, V, const N: usize = 2> {
    shards: Arc<Vec<Shard<K, V, N>>>,
    /// Shards that count instead of those in the array, by their index there.
    aside: Vec<(usize, Shard<K, V, N>)>,
    len: usize,
    hasher: RandomState,
    /// Asks for what copying a value will touch.
    fetch: fn(&V),
}

impl<K: Clone, V: Clone, const N: usize> Slots<K, V, N> {
    /// Free slots; `count` is a power of two.
    fn free(count: usize) -> Slots<K, V, N> {
        const { assert!(N.is_power_of_two()) };
        let free = || Line(std::array::from_fn(|_| None));
        Slots((0..count.div_ceil(N)).map(|_| free()).collect())
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.len() * N
    }

    #[inline]
    fn get(&self, at: usize) -> Option<&Slot<K, V>> {
        self.0.get(at / N).map(|line| &line.0[at % N])
    }

    /// For change, copied if another version shares them.
    fn own(&mut self) -> Own<'_, K, V, N> {
        Own(Arc::make_mut(&mut self.0))
    }

    fn entries(&self) -> impl Iterator<Item = &(K, V)> {
        self.0.iter().flat_map(|line| line.0.iter().flatten())
    }
}

/// Slots that may be changed.
struct Own<'a, K, V, const N: usize>(&'a mut [Line<K, V, N>]);

impl<K, V, const N: usize> Own<'_, K, V, N> {
    fn at(&mut self, at: usize) -> &mut Slot<K, V> {
        &mut self.0[at / N].0[at % N]
    }

    /// Puts an entry into the first free slot from its own on.
    fn put(&mut self, hash: u64, entry: (K, V)) {
        let mask = self.0.len() * N - 1;
        let mut at = home::<N>(hash, mask);
        while self.at(at).is_some() {
            at = (at + 1) & mask;
        }
        *self.at(at) = Some(entry);
    }
}

impl<K: Hash + Eq + Clone, V: Clone, const N: usize> Table<K, V, N> {
    /// An empty table.
    pub fn new() -> Table<K, V, N> {
        Table::fetching(|_| {})
    }

    /// An empty table of values whose copying touches memory elsewhere, and how to ask for that ahead
    /// of time.
    pub fn fetching(fetch: fn(&V)) -> Table<K, V, N> {
        Table {
            shards: Arc::new(vec![Shard::new()]),
            aside: Vec::new(),
            len: 0,
            hasher: RandomState::default(),
            fetch,
        }
    }

    /// Entries in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table has no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a key.
    #[inline]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.get_hashed(self.hash(key), key)
    }

    /// Asks for the memory that [`get_hashed`](Table::get_hashed) will read, and returns the key's
    /// hash for it.
    #[inline]
    pub fn prefetch(&self, key: &K) -> u64 {
        let hash = self.hash(key);
        self.prefetch_hashed(hash);
        hash
    }

    /// Asks for the memory that [`get_hashed`](Table::get_hashed) will read.
    #[inline]
    fn prefetch_hashed(&self, hash: u64) {
        let slots = &self.shard(shard_of(hash, self.shards.len())).slots;
        if let Some(slot) = slots.get(home::<N>(hash, slots.len() - 1)) {
            prefetch(slot);
        }
    }

    /// The value of a key whose hash [`prefetch`](Table::prefetch) of this very version returned.
    #[inline]
    pub fn get_hashed(&self, hash: u64, key: &K) -> Option<&V> {
        self.shard(shard_of(hash, self.shards.len())).find(hash, key).map(|(_, value)| value)
    }

    /// Sets the value of a key; the value it had before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let hash = self.hash(&key);
        let hasher = self.hasher.clone();
        let shard = self.shard_mut(hash);
        if let Some(at) = shard.place(hash, &key) {
            let replaced = shard.slots.own().at(at).replace((key, value));
            return replaced.map(|(_, value)| value);
        }
        shard.insert_new(hash, (key, value), |key| hasher.hash_one(key));
        self.len += 1;
        if self.len > self.shards.len() * SHARD_ENTRIES_MAX {
            self.double();
        }
        None
    }

    /// Removes a key; the value it had.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let hash = self.hash(key);
        self.get_hashed(hash, key)?;
        let hasher = self.hasher.clone();
        let removed = self.shard_mut(hash).remove(hash, key, |key| hasher.hash_one(key))?;
        self.len -= 1;
        Some(removed)
    }

    /// The value of a key for change in place, copying its shard if an older version shares it.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let hash = self.hash(key);
        self.get_hashed(hash, key)?;
        let shard = self.shard_mut(hash);
        let at = shard.place(hash, key)?;
        let lines = Arc::make_mut(&mut shard.slots.0);
        lines[at / N].0[at % N].as_mut().map(|(_, value)| value)
    }

    /// Every entry, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let shards = (0..self.shards.len()).map(|index| self.shard(index));
        shards.flat_map(|shard| shard.slots.entries()).map(|(key, value)| (key, value))
    }

    /// Puts what lies beside the array into it. Whether there was anything.
    pub fn settle(&mut self) -> bool {
        if self.aside.is_empty() {
            return false;
        }
        let shards = own_shards(&mut self.shards);
        for (index, shard) in self.aside.drain(..) {
            shards[index] = shard;
        }
        true
    }

    #[inline]
    fn hash(&self, key: &K) -> u64 {
        self.hasher.hash_one(key)
    }

    #[inline]
    fn shard(&self, index: usize) -> &Shard<K, V, N> {
        if self.aside.is_empty() { &self.shards[index] } else { self.shard_aside(index) }
    }

    #[cold]
    fn shard_aside(&self, index: usize) -> &Shard<K, V, N> {
        let aside = self.aside.iter().find(|(place, _)| *place == index);
        aside.map_or(&self.shards[index], |(_, shard)| shard)
    }

    fn shard_mut(&mut self, hash: u64) -> &mut Shard<K, V, N> {
        let (index, fetch) = (shard_of(hash, self.shards.len()), self.fetch);
        let shard = self.shard_at(index);
        if Arc::get_mut(&mut shard.slots.0).is_none() {
            shard.slots.entries().for_each(|(_, value)| fetch(value));
        }
        shard
    }

    /// A shard for change, while the others stay shared.
    fn shard_at(&mut self, index: usize) -> &mut Shard<K, V, N> {
        let known = self.aside.iter().position(|(place, _)| *place == index);
        let shared = Arc::get_mut(&mut self.shards).is_none();
        if known.is_none() && shared && self.aside.len() < ASIDE_MAX {
            self.aside.push((index, self.shards[index].clone()));
        } else if known.is_none() {
            self.settle();
            return &mut own_shards(&mut self.shards)[index];
        }
        let place = known.unwrap_or(self.aside.len() - 1);
        &mut self.aside[place].1
    }

    fn double(&mut self) {
        let count = self.shards.len() * 2;
        let mut shards: Vec<Shard<K, V, N>> = (0..count).map(|_| Shard::new()).collect();
        for (key, value) in self.iter() {
            let hash = self.hasher.hash_one(key);
            let shard = &mut shards[shard_of(hash, count)];
            shard.insert_new(hash, (key.clone(), value.clone()), |key| self.hasher.hash_one(key));
        }
        self.shards = Arc::new(shards);
        self.aside.clear();
    }
}

/// The array of shards for change, copied if an older version shares it.
fn own_shards<K: Clone, V: Clone, const N: usize>(
    shards: &mut Arc<Vec<Shard<K, V, N>>>,
) -> &mut Vec<Shard<K, V, N>> {
    if Arc::get_mut(shards).is_none() {
        shards.iter().for_each(|shard| prefetch_count(&shard.slots.0));
    }
    Arc::make_mut(shards)
}

impl<K: Eq + Clone, V: Clone, const N: usize> Shard<K, V, N> {
    fn new() -> Shard<K, V, N> {
        Shard { slots: Slots::free(SLOTS_MIN), len: 0 }
    }

    /// A key's entry.
    #[inline]
    fn find(&self, hash: u64, key: &K) -> Option<&(K, V)> {
        let mask = self.slots.len() - 1;
        let mut at = home::<N>(hash, mask);
        // Ends at a free slot, of which there is always one.
        while let Some(Some(entry)) = self.slots.get(at) {
            if entry.0 == *key {
                return Some(entry);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Where a key is.
    fn place(&self, hash: u64, key: &K) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut at = home::<N>(hash, mask);
        while let Some(Some((found, _))) = self.slots.get(at) {
            if found == key {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Adds a key that is not there.
    fn insert_new(&mut self, hash: u64, entry: (K, V), hash_of: impl Fn(&K) -> u64) {
        if (self.len + 1) * 2 > self.slots.len() {
            let mut wider = Slots::free(self.slots.len() * 2);
            let mut own = wider.own();
            for entry in self.slots.entries() {
                own.put(hash_of(&entry.0), entry.clone());
            }
            self.slots = wider;
        }
        self.slots.own().put(hash, entry);
        self.len += 1;
    }

    /// Removes a key, and moves up those behind it that would lie nearer to their own lines.
    fn remove(&mut self, hash: u64, key: &K, hash_of: impl Fn(&K) -> u64) -> Option<V> {
        let mut hole = self.place(hash, key)?;
        let mask = self.slots.len() - 1;
        let mut slots = self.slots.own();
        let (_, removed) = slots.at(hole).take()?;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some((key, _)) = slots.at(at) else { break };
            let from_home = at.wrapping_sub(home::<N>(hash_of(key), mask)) & mask;
            if from_home >= at.wrapping_sub(hole) & mask {
                *slots.at(hole) = slots.at(at).take();
                hole = at;
            }
        }
        self.len -= 1;
        Some(removed)
    }
}

impl<K: Hash + Eq + Clone, V: Clone, const N: usize> Default for Table<K, V, N> {
    fn default() -> Self {
        Table::new()
    }
}

/// The first slot of a hash's line; `mask` is the number of slots less one.
#[inline]
fn home<const N: usize>(hash: u64, mask: usize) -> usize {
    hash as usize & mask & !(N - 1)
}

/// The shard of a hash. `count` is a power of two. Bits 32 and up choose the shard, because the
/// lowest choose the slot in it.
#[inline]
fn shard_of(hash: u64, count: usize) -> usize {
    (hash >> 32) as usize & (count - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u16, u32),
        Remove(u16),
        Change(u16, u32),
        Publish,
        Settle,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..2000u16, any::<u32>()).prop_map(|(k, v)| Step::Insert(k, v)),
            3 => (0..2000u16).prop_map(Step::Remove),
            1 => (0..2000u16, any::<u32>()).prop_map(|(k, v)| Step::Change(k, v)),
            1 => Just(Step::Publish),
            1 => Just(Step::Settle),
        ]
    }

    fn same(table: &Table<u16, u32>, twin: &HashMap<u16, u32>) {
        assert_eq!(table.len(), twin.len());
        assert_eq!(table.is_empty(), twin.is_empty());
        assert_eq!(table.iter().map(|(k, v)| (*k, *v)).collect::<HashMap<_, _>>(), *twin);
        for key in 0..2000 {
            assert_eq!(table.get(&key), twin.get(&key));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn equals_a_plain_map_in_every_version(steps in prop::collection::vec(step(), 1..3000)) {
            let mut table: Table<u16, u32> = Table::new();
            let mut twin = HashMap::new();
            let mut versions = Vec::new();
            for step in steps {
                match step {
                    Step::Insert(k, v) => prop_assert_eq!(table.insert(k, v), twin.insert(k, v)),
                    Step::Remove(k) => prop_assert_eq!(table.remove(&k), twin.remove(&k)),
                    Step::Change(k, v) => {
                        let ours = table.get_mut(&k).map(|value| *value = v);
                        prop_assert_eq!(ours, twin.get_mut(&k).map(|value| *value = v));
                    }
                    Step::Publish if versions.len() < 4 => {
                        versions.push((table.clone(), twin.clone()));
                    }
                    Step::Publish => {}
                    Step::Settle => {
                        table.settle();
                        prop_assert!(!table.settle());
                    }
                }
            }
            same(&table, &twin);
            for (table, twin) in &versions {
                same(table, twin);
            }
        }
    }

    #[test]
    fn one_change_copies_one_shard() {
        let mut table: Table<u32, u32> = Table::new();
        for key in 0..20_000u32 {
            table.insert(key, key);
        }
        let before = table.clone();
        table.insert(7, 8);
        let copied = |table: &Table<u32, u32>| {
            let differs = |index: &usize| {
                !Arc::ptr_eq(&before.shard(*index).slots.0, &table.shard(*index).slots.0)
            };
            (0..before.shards.len()).filter(differs).count()
        };
        assert_eq!(copied(&table), 1);
        assert!(Arc::ptr_eq(&before.shards, &table.shards), "the array is shared as well");
        assert!(table.settle() && copied(&table) == 1);
        assert!(table.shards.len() >= 64);
        assert_eq!((before.get(&7), table.get(&7)), (Some(&7), Some(&8)));
    }

    #[test]
    fn many_changes_of_as_many_versions_copy_the_array_now_and_then() {
        let mut table: Table<u32, u32> = Table::new();
        (0..20_000u32).for_each(|key| assert_eq!(table.insert(key, key), None));
        let (mut arrays, mut last) = (0, table.clone());
        for key in 0..1000 {
            table.insert(key, 1);
            arrays += usize::from(!Arc::ptr_eq(&table.shards, &last.shards));
            last = table.clone();
            assert!(table.aside.len() <= ASIDE_MAX);
        }
        // Of a thousand changes some meet a shard that lies aside already.
        assert!((20..=1000 / ASIDE_MAX).contains(&arrays), "{arrays}");
    }
}
