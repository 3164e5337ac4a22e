//! Look-ups side by side: what many addresses have to wait for comes at the same time.
//!
//! ```text
//!  one by one    root ─ wait ─ node ─ wait ─ value │ root ─ wait ─ node ─ wait ─ value │ …
//!  side by side  root root root … │ node node node … │ value value value …
//! ```
//!
//! All addresses go down by one level before any goes down by the next, and each asks for the memory
//! of its next node as it learns where that is.

use super::flat::{Flat, LONGER};
use super::{COVERING, Node, STRIDE, Trie, Word};
use crate::cpu::{counting_bits, prefetch};

/// Addresses that are looked up side by side: four times what a core of today fetches at a time, so
/// that the first has come when the last was asked for; what is kept of them fits the first level
/// cache many times over.
pub(crate) const SIDE_BY_SIDE: usize = 64;

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
    fn read(&self, flat: &Flat, addresses: &[W], values: &mut [u32]) {
        let mut entries: [Option<&u32>; SIDE_BY_SIDE] = [None; SIDE_BY_SIDE];
        for (address, entry) in addresses.iter().zip(&mut entries) {
            *entry = flat.entry(*address);
            if let Some(entry) = entry {
                prefetch(*entry);
            }
        }
        let mut longer = 0;
        for ((address, entry), value) in addresses.iter().zip(&entries).zip(values.iter_mut()) {
            *value = entry.copied().unwrap_or(0);
            if *value == 0 {
                *value = self.above(*address);
            }
            longer += usize::from(*value == LONGER);
        }
        if longer != 0 {
            self.read_longer(addresses, values);
        }
    }

    /// The trie's values where there are longer prefixes.
    #[cold]
    fn read_longer(&self, addresses: &[W], values: &mut [u32]) {
        let mut asked = [W::ZERO; SIDE_BY_SIDE];
        let mut found = [0; SIDE_BY_SIDE];
        let mut count = 0;
        for (address, _) in addresses.iter().zip(&*values).filter(|(_, value)| **value == LONGER) {
            asked[count] = *address;
            count += 1;
        }
        counting_bits(|| self.descend_many(&asked[..count], &mut found[..count]));
        let longer = values.iter_mut().filter(|value| **value == LONGER);
        longer.zip(&found).for_each(|(value, found)| *value = *found);
    }

    /// Down the trie.
    #[inline(always)]
    fn descend_many(&self, addresses: &[W], values: &mut [u32]) {
        let mut walks = [Walk { address: W::ZERO, at: None, best: None, end: 0 }; SIDE_BY_SIDE];
        let walks = &mut walks[..addresses.len().min(SIDE_BY_SIDE)];
        for (walk, address) in walks.iter_mut().zip(addresses) {
            walk.address = *address;
            walk.at = self.root(address.bits(0, self.root_bits) as usize);
            if let Some(node) = walk.at {
                prefetch(node);
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
                    prefetch(child);
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
