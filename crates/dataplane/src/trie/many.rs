//! Look-ups side by side: what many addresses have to wait for comes at the same time.
//!
//! ```text
//!  one by one    root ─ wait ─ node ─ wait ─ value │ root ─ wait ─ node ─ wait ─ value │ …
//!  side by side  root root root … │ node node node … │ value value value …
//! ```
//!
//! All addresses go down by one level before any goes down by the next, and each asks for the memory
//! of its next node as it learns where that is.

use super::flat::{Entry, Flat, TO_TRIE, leads_further};
use super::node::{COVERING, Node, STRIDE};
use super::{Trie, Word};
use crate::cpu::{Cache, asked_cache, counting_bits, prefetch};

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
            Some(flat) => match asked_cache() {
                Cache::First => self.read::<false>(flat, addresses, values),
                Cache::Second => self.read::<true>(flat, addresses, values),
            },
            None => counting_bits(|| self.descend_many(addresses, values)),
        }
    }

    /// From what is written out; what is not, together.
    ///
    /// A function for each cache into which memory may be asked for, the `SECOND` or the first.
    #[inline(never)]
    fn read<const SECOND: bool>(&self, flat: &Flat, addresses: &[W], values: &mut [u32]) {
        let cache = Cache::second_if(SECOND);
        let mut entries: [Option<Entry<'_>>; SIDE_BY_SIDE] = [None; SIDE_BY_SIDE];
        let mut next = flat.entries();
        for (address, entry) in addresses.iter().zip(&mut entries) {
            *entry = next.next(*address);
            if let Some(entry) = entry {
                prefetch(entry.word(), cache);
            }
        }
        // Of those whose values are in tails: which address it is, and where.
        let (mut tails, mut count) = ([(0, &0); SIDE_BY_SIDE], 0);
        let mut are_all_known = true;
        for (at, ((address, entry), value)) in
            addresses.iter().zip(&entries).zip(values.iter_mut()).enumerate()
        {
            *value = entry.map_or(TO_TRIE, |entry| *entry.word());
            match *value {
                0 => *value = self.above(*address),
                word if leads_further(word) => {
                    match entry.and_then(|entry| entry.in_tail(word, *address)) {
                        Some(known) => {
                            prefetch(known, cache);
                            // There are no more than so many: it spares a question.
                            tails[count % SIDE_BY_SIDE] = (at, known);
                            count += 1;
                        }
                        None => are_all_known = false,
                    }
                }
                _ => {}
            }
        }
        for (at, known) in &tails[..count] {
            values[*at] = match known {
                0 => self.above(addresses[*at]),
                known => **known,
            };
        }
        if !are_all_known {
            self.read_further(addresses, values);
        }
    }

    /// The values of those addresses whose entries say that the trie knows.
    #[inline(never)]
    fn read_further(&self, addresses: &[W], values: &mut [u32]) {
        let (mut asked, mut found) = ([W::ZERO; SIDE_BY_SIDE], [0; SIDE_BY_SIDE]);
        let mut count = 0;
        for (address, value) in addresses.iter().zip(&*values) {
            if leads_further(*value) {
                asked[count] = *address;
                count += 1;
            }
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
