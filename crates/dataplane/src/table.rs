//! A hash table whose versions share what they have in common.
//!
//! Control clones a table (one count), changes the clone, and publishes it while workers still read the
//! old version. Only the shards that a change touches are copied, and only once per published version,
//! however many changes fall into them. The array of shards is not copied for every change either: a
//! version keeps the shards that differ from the array beside it, until they are too many or
//! [`Table::settle`] puts them in, after which a look-up need not ask there.
//!
//! To copy is to copy bits. Values are not counted for it, which of 100 000 entries would touch memory that
//! no core had for a long time, for each of a shard: what a version takes out ends with the last version
//! that had it (`lineage.rs`). A shard's entries lie in whole cache lines (`shard.rs`).
//!
//! The table is keyed against hash flooding, as its keys come from the wire. It keeps no order, and
//! does not evict.

#![allow(unsafe_code)]

mod lineage;
mod shard;
mod steady;

use std::hash::{BuildHasher, Hash, Hasher};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use foldhash::quality::RandomState;

use self::lineage::Lineage;
pub use self::shard::Home;
use self::shard::Shard;
pub use self::steady::{Beside, Steady};
use crate::cpu::Cache;

/// Entries per shard, in the mean, at which the number of shards doubles. A shard of policies is 1.6 KiB then,
/// one of SAs 2 KiB, copied in a fifth of a microsecond; smaller ones make the array of shards larger, which is to stay
/// where it is read quickly.
const SHARD_ENTRIES_MAX: usize = 64;

/// Shards that a version keeps beside the array. Sixteen bring the array's copying below that of
/// the shard; a look-up compares sixteen numbers as long as they are there.
const ASIDE_MAX: usize = 16;

/// A copy-on-write hash table in shards. `N` entries lie in a cache line, or in as many lines as they
/// take.
///
/// *What all `unsafe` here relies on:* the shards of a version and the values in them end after the
/// version. Only a version whose number a shard bears changes its lines, and it has one holder then.
pub struct Table<K, V, const N: usize = 2, S = RandomState> {
    shards: Arc<[Shard<K, V, N>]>,
    /// Shards that count instead of those in the array, by their index there.
    aside: Vec<(usize, Shard<K, V, N>)>,
    /// Of which indices, by their last bits, there may be one: nearly all others are not looked for.
    aside_bits: u64,
    /// The array before this one, for its memory: what it names may have ended. A version that is not
    /// changed any more has none.
    spare: Arc<[Shard<K, V, N>]>,
    len: usize,
    /// The hash that mixes to the end. The quick one is a product: with one seed in a hundred, numbers that count
    /// up (the `if_id`s of tunnels) lay so close that a search took seven lines, with some eighty.
    hasher: S,
    lineage: Lineage<Gone<K, V, N>>,
}

/// What a later version has not.
enum Gone<K, V, const N: usize> {
    Value(ManuallyDrop<V>),
    Lines(Shard<K, V, N>),
    /// All that the last version had: the array, and what counts instead.
    All(Arc<[Shard<K, V, N>]>, Vec<(usize, Shard<K, V, N>)>),
}

impl<K, V, const N: usize> Drop for Gone<K, V, N> {
    fn drop(&mut self) {
        match self {
            // SAFETY: it was taken out of the last version that had it, and those before have ended.
            Gone::Value(value) => unsafe { ManuallyDrop::drop(value) },
            // SAFETY: as above.
            Gone::Lines(shard) => unsafe { shard.end() },
            Gone::All(shards, aside) => (0..shards.len()).for_each(|index| {
                let shard = *shard_aside(shards, aside, index);
                // SAFETY: every version has ended, and each value is in one of the last one's shards.
                unsafe {
                    shard.end_values();
                    shard.end();
                }
            }),
        }
    }
}

impl<K, V, const N: usize, S: Clone> Clone for Table<K, V, N, S> {
    fn clone(&self) -> Self {
        Table {
            shards: self.shards.clone(),
            aside: self.aside.clone(),
            aside_bits: self.aside_bits,
            spare: Arc::default(),
            len: self.len,
            hasher: self.hasher.clone(),
            lineage: self.lineage.join(),
        }
    }
}

impl<K, V, const N: usize, S> Drop for Table<K, V, N, S> {
    fn drop(&mut self) {
        if self.lineage.ends() {
            let aside = std::mem::take(&mut self.aside);
            self.lineage.leave(Gone::All(self.shards.clone(), aside));
        }
    }
}

impl<K, V, const N: usize, S> Table<K, V, N, S>
where
    K: Hash + Eq + Copy,
    V: Steady,
    S: BuildHasher + Clone + Default,
{
    /// Bytes in which `N` entries lie: whole cache lines.
    pub const LINE_LEN: usize = Shard::<K, V, N>::LINE_LEN;

    /// An empty table.
    pub fn new() -> Table<K, V, N, S> {
        let lineage = Lineage::new();
        Table {
            shards: Arc::new([Shard::free(0, lineage.number())]),
            aside: Vec::new(),
            aside_bits: 0,
            spare: Arc::default(),
            len: 0,
            hasher: S::default(),
            lineage,
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
    pub fn prefetch(&self, key: &K, cache: Cache) -> u64 {
        let hash = self.hash(key);
        self.ask(hash, cache);
        hash
    }

    /// Asks for the memory that a search by a hash will read; where it begins, for [`find_from`](Table::find_from).
    #[inline(always)]
    pub fn ask(&self, hash: u64, cache: Cache) -> Home<'_, K, V, N> {
        let shard = self.shard(shard_of(hash, self.shards.len()));
        // SAFETY: it is one of this version's, which nobody changes while it is borrowed.
        unsafe { shard.ask(hash, cache) }
    }

    /// As [`find_hashed`](Table::find_hashed), for a hash that [`ask`](Table::ask) was told of.
    #[inline(always)]
    pub fn find_from<'a>(
        &'a self,
        home: Home<'a, K, V, N>,
        hash: u64,
        is: impl Fn(&K) -> bool + Copy,
    ) -> Option<(&'a K, &'a V)> {
        home.find(is, || self.find_further(hash, is))
    }

    /// A tenth of the entries lie in another line than their hash names.
    #[inline(never)]
    fn find_further(&self, hash: u64, is: impl Fn(&K) -> bool) -> Option<(&K, &V)> {
        self.find_hashed(hash, is)
    }

    /// The value of a key whose hash [`prefetch`](Table::prefetch) of this very version returned.
    #[inline(always)]
    pub fn get_hashed(&self, hash: u64, key: &K) -> Option<&V> {
        self.find_hashed(hash, |found| found == key).map(|(_, value)| value)
    }

    /// The entry with a hash of which something is true that is true of one key at most.
    #[inline(always)]
    pub fn find_hashed(&self, hash: u64, is: impl Fn(&K) -> bool) -> Option<(&K, &V)> {
        // SAFETY: it is one of this version's, which nobody changes while it is borrowed.
        unsafe { self.shard(shard_of(hash, self.shards.len())).find(hash, is) }
    }

    /// Sets the value of a key; the value it had before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.advance();
        let hash = self.hash(&key);
        let is_new = self.get_hashed(hash, &key).is_none();
        let shard = self.own(shard_of(hash, self.shards.len()), is_new);
        if !is_new {
            // SAFETY: the shard is this version's own, and what is taken out of it is retired.
            let replaced = unsafe { shard.replace(hash, &key, value) };
            return replaced.map(|value| self.retire(value));
        }
        // SAFETY: the shard is this version's own.
        unsafe { shard.put(hash, key, ManuallyDrop::new(value)) };
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
        self.advance();
        let (hash, hasher) = (self.hash(key), self.hasher.clone());
        let shard = self.own(shard_of(hash, self.shards.len()), false);
        // SAFETY: the shard is this version's own, and what is taken out of it is retired.
        let removed = unsafe { shard.remove(hash, key, |key| hasher.hash_one(key)) }?;
        self.len -= 1;
        Some(self.retire(removed))
    }

    /// Every entry, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        // SAFETY: they are this version's, which nobody changes while it is borrowed.
        (0..self.shards.len()).flat_map(|index| unsafe { self.shard(index).entries() })
    }

    /// Puts what lies beside the array into it. Whether there was anything.
    pub fn settle(&mut self) -> bool {
        if self.aside.is_empty() {
            return false;
        }
        let aside = std::mem::take(&mut self.aside);
        self.aside_bits = 0;
        let shards = self.own_array();
        aside.into_iter().for_each(|(index, shard)| shards[index] = shard);
        true
    }

    /// What [`get_hashed`](Table::get_hashed) wants to know of a key, or of what hashes as one does.
    #[inline(always)]
    pub fn hash(&self, key: &impl Hash) -> u64 {
        hash_one(&self.hasher, key)
    }

    #[inline(always)]
    fn shard(&self, index: usize) -> &Shard<K, V, N> {
        if self.aside_bits == 0 { &self.shards[index] } else { self.shard_of_both(index) }
    }

    #[cold]
    fn shard_of_both(&self, index: usize) -> &Shard<K, V, N> {
        match self.may_be_aside(index) {
            true => shard_aside(&self.shards, &self.aside, index),
            false => &self.shards[index],
        }
    }

    /// Whether another shard may count instead of that in the array.
    #[inline]
    fn may_be_aside(&self, index: usize) -> bool {
        self.aside_bits & bit_of(index) != 0
    }

    /// Makes this a version of its own: to be done before any change.
    fn advance(&mut self) {
        if self.lineage.advance().is_ok() {
            return;
        }
        // Another holder has changed this version before: from here on there are two, with values each
        // of their own. Nobody who publishes one version after the other comes here.
        let lineage = Lineage::new();
        let own = |index| {
            let shard = *self.shard(index);
            // SAFETY: one of this version's; the copy is nobody else's, as its values are from here on.
            unsafe {
                let mut copy = shard.copy(lineage.number());
                copy.clone_values();
                copy
            }
        };
        let shards = (0..self.shards.len()).map(own).collect();
        let (len, hasher) = (self.len, self.hasher.clone());
        let (aside, aside_bits, spare) = (Vec::new(), 0, Arc::default());
        *self = Table { shards, aside, aside_bits, spare, len, hasher, lineage };
    }

    /// A value that this version has no more. What is returned is the caller's own.
    fn retire(&self, value: ManuallyDrop<V>) -> V {
        let own = V::clone(&value);
        self.lineage.retire(Gone::Value(value));
        own
    }

    /// A shard for change, with lines of this version's own, and room for one more entry if that is
    /// wanted. After [`advance`](Table::advance).
    fn own(&mut self, index: usize, with_room: bool) -> &mut Shard<K, V, N> {
        let (known, number) = (*self.shard(index), self.lineage.number());
        let grows = with_room && known.is_full();
        if known.born == number && !grows {
            return self.place(index);
        }
        // SAFETY: it is one of this version's, and the other is new; after this the one takes its place.
        let own = unsafe {
            if grows {
                let mut wider = Shard::free(known.len() + 1 + known.len() / 8, number);
                for (key, value) in known.entries() {
                    wider.put_bits(self.hasher.hash_one(key), *key, value);
                }
                wider
            } else {
                known.copy(number)
            }
        };
        *self.place(index) = own;
        self.lineage.retire(Gone::Lines(known));
        self.place(index)
    }

    /// Where a shard of this version is named, for change.
    fn place(&mut self, index: usize) -> &mut Shard<K, V, N> {
        let known = match self.may_be_aside(index) {
            true => self.aside.iter().position(|(place, _)| *place == index),
            false => None,
        };
        let place = known.unwrap_or(self.aside.len());
        if known.is_none() {
            if self.aside.len() == ASIDE_MAX || Arc::get_mut(&mut self.shards).is_some() {
                self.settle();
                return &mut self.own_array()[index];
            }
            self.aside.push((index, self.shards[index]));
            self.aside_bits |= bit_of(index);
        }
        &mut self.aside[place].1
    }

    /// The array for change. Where another version has it, it is copied, into the memory of the one before
    /// if nobody has that any more: memory of its size that is asked for and given back all the time does
    /// not come to lie where it was, so the heap grows.
    fn own_array(&mut self) -> &mut [Shard<K, V, N>] {
        if Arc::get_mut(&mut self.shards).is_none() {
            let copy = match Arc::get_mut(&mut self.spare) {
                Some(spare) if spare.len() == self.shards.len() => {
                    spare.copy_from_slice(&self.shards);
                    std::mem::take(&mut self.spare)
                }
                _ => Arc::from(&*self.shards),
            };
            self.spare = std::mem::replace(&mut self.shards, copy);
        }
        Arc::make_mut(&mut self.shards)
    }

    fn double(&mut self) {
        let (count, number) = (self.shards.len() * 2, self.lineage.number());
        let mut lens = vec![0; count];
        for (key, _) in self.iter() {
            lens[shard_of(self.hash(key), count)] += 1;
        }
        let mut shards: Vec<Shard<K, V, N>> =
            lens.into_iter().map(|len| Shard::free(len + len / 8, number)).collect();
        for index in 0..self.shards.len() {
            let known = *self.shard(index);
            // SAFETY: one of this version's; the others are new, and take its place after this.
            for (key, value) in unsafe { known.entries() } {
                let hash = self.hash(key);
                // SAFETY: as above.
                unsafe { shards[shard_of(hash, count)].put_bits(hash, *key, value) };
            }
            self.lineage.retire(Gone::Lines(known));
        }
        self.shards = shards.into();
        self.aside.clear();
        self.aside_bits = 0;
    }
}

impl<K, V, const N: usize, S> Default for Table<K, V, N, S>
where
    K: Hash + Eq + Copy,
    V: Steady,
    S: BuildHasher + Clone + Default,
{
    fn default() -> Self {
        Table::new()
    }
}

/// What the hasher's own `hash_one` says.
#[inline(always)]
#[expect(
    clippy::manual_hash_one,
    reason = "a call, with the key in memory, takes ten cycles a packet"
)]
pub(crate) fn hash_one(hasher: &impl BuildHasher, key: &impl Hash) -> u64 {
    let mut state = hasher.build_hasher();
    key.hash(&mut state);
    state.finish()
}

/// The shard of a hash. `count` is a power of two. Bits 32 and up choose the shard, because those below
/// choose the line in it.
#[inline]
fn shard_of(hash: u64, count: usize) -> usize {
    (hash >> 32) as usize & (count - 1)
}

/// The bit that stands for an index, and for one in so many others.
#[inline]
fn bit_of(index: usize) -> u64 {
    1 << (index % u64::BITS as usize)
}

/// The shard of an index, of an array and those that count instead.
fn shard_aside<'a, K, V, const N: usize>(
    shards: &'a [Shard<K, V, N>],
    aside: &'a [(usize, Shard<K, V, N>)],
    index: usize,
) -> &'a Shard<K, V, N> {
    let aside = aside.iter().find(|(place, _)| *place == index);
    aside.map_or(&shards[index], |(_, shard)| shard)
}

#[cfg(test)]
mod tests;
