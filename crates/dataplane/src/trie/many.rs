//! Look-ups side by side: what many addresses have to wait for comes at the same time.
//!
//! ```text
//!  one by one    root ─ wait ─ node ─ wait ─ value │ root ─ wait ─ node ─ wait ─ value │ …
//!  side by side  root root root … │ node node node … │ value value value …
//! ```
//!
//! All addresses go down by one level before any goes down by the next, and each asks for the memory
//! of its next node as it learns where that is. What is written out (`flat.rs`) is two levels deep.

use super::flat::{Entry, Flat, Leaf, TO_TRIE, is_value, leads_further};
use super::node::{COVERING, Node, STRIDE};
use super::{Trie, Word};
use crate::cpu::{asked_cache, counting_bits, prefetch};

/// Addresses that are looked up side by side: four times what a core of today fetches at a time, so
/// that the first has come when the last was asked for; what is kept of them fits the first level
/// cache many times over.
pub(crate) const SIDE_BY_SIDE: usize = 64;

/// Whether all of these are values; together, as this takes less than to ask each.
#[inline(always)]
fn are_values(entries: &[u32]) -> bool {
    entries.iter().fold(true, |all, entry| all & is_value(*entry))
}

/// How far an address has come.
#[derive(Clone, Copy)]
struct Walk<'t, W> {
    address: W,
    at: Option<&'t Node>,
    /// The node in which the longest prefix so far ends, and which of those there it is.
    best: Option<&'t Node>,
    end: u32,
}

impl<W: Word> Trie<W> {
    /// The values of the longest prefixes of addresses, in their order; 0 for those without one. As
    /// many as the shorter of both has, and at most [`SIDE_BY_SIDE`].
    pub(crate) fn lookup_many(&self, addresses: &[W], values: &mut [u32]) {
        let count = addresses.len().min(values.len()).min(SIDE_BY_SIDE);
        let (addresses, values) = (&addresses[..count], &mut values[..count]);
        match &self.flat {
            Some(flat) => self.read(flat, addresses, values),
            None => counting_bits(|| self.descend_many(addresses, values)),
        }
    }

    /// From what is written out; what is not, together.
    ///
    /// Nothing branches on what an entry says before the next one is read, so that a processor reads ahead by itself.
    #[inline]
    fn read(&self, flat: &Flat, addresses: &[W], values: &mut [u32]) {
        let mut leaves = [None; SIDE_BY_SIDE];
        let mut entries = flat.entries();
        for ((address, value), leaf) in addresses.iter().zip(&mut *values).zip(&mut leaves) {
            let entry = entries.next(*address);
            *value = entry.map_or(TO_TRIE, |entry| *entry.word());
            *leaf = entry.map(Entry::leaf);
        }
        if !are_values(values) {
            self.read_tails(addresses, &leaves, values);
        }
    }

    /// The values of those addresses whose entries, in these leaves, lead to tails, or say that no prefix is written out.
    #[inline(never)]
    fn read_tails(&self, addresses: &[W], leaves: &[Option<&Leaf>], values: &mut [u32]) {
        let mut are_all_known = true;
        for ((address, value), leaf) in addresses.iter().zip(&mut *values).zip(leaves) {
            if *value == 0 {
                *value = self.above(*address);
            } else if leads_further(*value) {
                *value = leaf.map_or(TO_TRIE, |leaf| leaf.in_tail(*value, *address));
                are_all_known &= is_value(*value);
            }
        }
        if !are_all_known {
            self.read_further(addresses, values);
        }
    }

    /// The values of those addresses of which no prefix is written out, or of which the trie knows.
    #[inline(never)]
    fn read_further(&self, addresses: &[W], values: &mut [u32]) {
        let (mut asked, mut found) = ([W::ZERO; SIDE_BY_SIDE], [0; SIDE_BY_SIDE]);
        let mut count = 0;
        for (address, value) in addresses.iter().zip(&mut *values) {
            if *value == 0 {
                *value = self.above(*address);
            } else if leads_further(*value) {
                asked[count] = *address;
                count += 1;
            }
        }
        if count == 0 {
            return;
        }
        counting_bits(|| self.descend_many(&asked[..count], &mut found[..count]));
        let unknown = values.iter_mut().filter(|value| leads_further(**value));
        unknown.zip(&found).for_each(|(value, found)| *value = *found);
    }

    /// Down the trie.
    #[inline(always)]
    fn descend_many(&self, addresses: &[W], values: &mut [u32]) {
        let cache = asked_cache();
        let mut walks = [Walk { address: W::ZERO, at: None, best: None, end: 0 }; SIDE_BY_SIDE];
        let walks = &mut walks[..addresses.len().min(SIDE_BY_SIDE)];
        for (walk, address) in walks.iter_mut().zip(addresses) {
            walk.address = *address;
            walk.at = self.root(address.bits(0, self.root_bits) as usize);
            if let Some(node) = walk.at {
                prefetch(node, cache);
            }
        }
        let mut depth = self.root_bits;
        let mut further = !self.roots.is_empty();
        while further {
            further = false;
            for walk in walks.iter_mut() {
                let Some(node) = walk.at else { continue };
                let next = walk.address.bits(depth, STRIDE);
                // On most levels no prefix ends.
                if node.ends != 0 {
                    let ends = node.ends & COVERING[next as usize >> 1 & 31];
                    if ends != 0 {
                        (walk.best, walk.end) = (Some(node), ends.ilog2());
                    }
                }
                walk.at = node.child(next);
                if let Some(child) = walk.at {
                    prefetch(child, cache);
                    further = true;
                }
            }
            depth += STRIDE;
        }
        for (walk, value) in walks.iter().zip(values) {
            *value = match walk.best {
                Some(node) => node.value(walk.end),
                None => self.above(walk.address),
            };
        }
    }
}
