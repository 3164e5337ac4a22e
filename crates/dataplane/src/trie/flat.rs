//! The first 24 bits of a large table written out, so that a look-up reads one line of it.
//!
//! Method: DIR-24-8 (Gupta, Lin, McKeown, INFOCOM 1998), its second half left to the trie. An entry
//! for each 24 bits says the value of their longest prefix from [`BITS`] bits on, that there is none,
//! or that longer prefixes begin with them, so that the trie has to be asked. Shorter prefixes are not
//! written out here: a default route that changes would change sixteen million entries.
//!
//! ```text
//!  address   13 bits ─► leaf, 8 KiB │ 11 bits ─► entry │ the rest: in the trie
//! ```
//!
//! Versions share leaves. It is made of the trie's nodes and holds nothing that they do not.

use std::sync::Arc;

use super::{COVERING, Node, STRIDE, Word};

/// From how many IPv4 prefixes on their first bits are written out: that takes up to 64 MB, and a table
/// of that many prefixes takes some 20 MB itself. Tests pass it with few.
pub(super) const FROM: usize = if cfg!(test) { 5000 } else { 1 << 18 };

/// The depth at which the leaves begin; that of the trie's roots.
pub(super) const BITS: u32 = 13;

/// Bits of an entry's number in its leaf.
const LEAF_BITS: u32 = 11;

/// References that are copied together. Each of them is a line of memory somewhere else.
const BRANCH: usize = 16;

/// An entry that sends to the trie; no value is that.
pub(super) const LONGER: u32 = u32::MAX;

type Leaf = [u32; 1 << LEAF_BITS];

type Branch<T> = Arc<[T; BRANCH]>;

/// The branches just above the leaves.
type Lowest = Branch<Option<Arc<Leaf>>>;

/// Entries for all addresses.
#[derive(Clone)]
pub(super) struct Flat {
    branches: Arc<[Branch<Lowest>]>,
}

impl Flat {
    /// Nothing written out.
    pub(super) fn new() -> Flat {
        let lowest = Arc::new([const { None }; BRANCH]);
        let middle = Arc::new(std::array::from_fn(|_| lowest.clone()));
        Flat { branches: vec![middle; (1 << BITS) / (BRANCH * BRANCH)].into() }
    }

    /// The entry of an address; `None` where no prefix of its leaf was ever written out.
    #[inline(always)]
    pub(super) fn entry<W: Word>(&self, address: W) -> Option<&u32> {
        let root = address.bits(0, BITS) as usize;
        let middle = self.branches.get(root / (BRANCH * BRANCH))?;
        let leaf = middle[root / BRANCH % BRANCH][root % BRANCH].as_ref()?;
        Some(&leaf[address.bits(BITS, LEAF_BITS) as usize])
    }

    /// Writes out anew what a prefix of [`BITS`] bits or more covers; `node` is the trie's node there.
    pub(super) fn paint<W: Word>(&mut self, prefix: W, len: u32, node: &Node) {
        let root = prefix.bits(0, BITS) as usize;
        let first = prefix.bits(BITS, LEAF_BITS) as usize;
        let count = 1 << (BITS + LEAF_BITS).saturating_sub(len);
        let middle = &mut Arc::make_mut(&mut self.branches)[root / (BRANCH * BRANCH)];
        let lowest = &mut Arc::make_mut(middle)[root / BRANCH % BRANCH];
        let place = &mut Arc::make_mut(lowest)[root % BRANCH];
        let leaf = Arc::make_mut(place.get_or_insert_with(|| Arc::new([0; 1 << LEAF_BITS])));
        paint(leaf, first..first + count, node);
        if leaf.iter().all(|entry| *entry == 0) {
            *place = None;
        }
    }
}

/// Writes out some entries of a leaf.
fn paint(leaf: &mut Leaf, entries: std::ops::Range<usize>, node: &Node) {
    // A node's child covers this many.
    const CHILD: usize = 1 << (LEAF_BITS - STRIDE);
    for next in entries.start / CHILD..entries.end.div_ceil(CHILD) {
        let all = next * CHILD;
        let some = entries.start.max(all)..entries.end.min(all + CHILD);
        let base = node.longest(next as u32).unwrap_or(0);
        let Some(child) = node.child(next as u32) else {
            leaf[some].fill(base);
            continue;
        };
        for entry in some {
            // Its last bit is the first that 24 bits do not say.
            let bits = (entry - all) as u32 * 2;
            leaf[entry] = match child.below >> bits & 0b11 {
                0 => child.longest(bits).unwrap_or(base),
                _ => LONGER,
            };
        }
    }
}

impl Node {
    /// The value of the longest prefix that ends here and holds these six bits.
    fn longest(&self, next: u32) -> Option<u32> {
        let ends = self.ends & COVERING[next as usize >> 1 & 31];
        (ends != 0).then(|| self.value(ends.ilog2()))
    }
}

const _: () = assert!((1 << LEAF_BITS) >> STRIDE == 32);

#[cfg(test)]
mod tests {
    use super::super::Trie;
    use super::FROM;
    use proptest::prelude::*;
    use std::collections::HashMap;

    type Twin = HashMap<(u32, u32), u32>;

    /// Prefixes around the lengths at which something begins or ends, within a few leaves.
    fn prefix() -> impl Strategy<Value = (u32, u32)> {
        let len =
            prop::sample::select(vec![0, 7, 8, 12, 13, 14, 18, 19, 20, 23, 24, 25, 26, 31, 32]);
        (any::<u32>(), len).prop_map(|(bits, len)| {
            let bits = 0x0a00_0000 | bits & 0x0019_0385;
            (bits & u32::MAX.checked_shl(32 - len).unwrap_or(0), len)
        })
    }

    fn naive(twin: &Twin, address: u32) -> u32 {
        let value = |len: u32| {
            let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
            twin.get(&(address & mask, len)).copied()
        };
        (0..=32).rev().find_map(value).unwrap_or(0)
    }

    /// A table of so many prefixes that it is written out.
    fn large() -> (Trie<u32>, Twin) {
        let (mut trie, mut twin) = (Trie::default(), Twin::new());
        for n in 0..=FROM as u32 {
            let address = n.wrapping_mul(0x9e37_7900) & 0xffff_ff00 | 1 << 31;
            trie.insert(address, 24, n + 1);
            twin.insert((address, 24), n + 1);
        }
        (trie, twin)
    }

    #[test]
    fn a_table_is_written_out_when_it_is_large_and_no_more_when_it_is_small() {
        let (mut trie, mut twin) = large();
        while trie.len() <= FROM {
            trie.insert(0x0100_0000 + 256 * trie.len() as u32, 24, 9);
            twin.insert((0x0100_0000 + 256 * (trie.len() as u32 - 1), 24), 9);
        }
        assert!(trie.flat.is_some());
        let all: Vec<(u32, u32)> = twin.keys().copied().collect();
        for (at, (address, len)) in all.iter().enumerate() {
            assert_eq!(trie.lookup(address | 7), naive(&twin, address | 7));
            trie.remove(*address, *len);
            twin.remove(&(*address, *len));
            assert_eq!(trie.lookup(address | 7), naive(&twin, address | 7), "{at}");
        }
        assert!(trie.flat.is_none() && trie.len() == 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn what_is_written_out_equals_the_longest_prefix_in_every_version(
            changes in prop::collection::vec((prefix(), 0..4u32), 1..120),
            probes in prop::collection::vec(any::<u32>(), 80),
        ) {
            let (mut trie, mut twin) = large();
            for n in 0..40 {
                trie.insert(n << 8, 24, 1);
                twin.insert((n << 8, 24), 1);
            }
            prop_assert!(trie.flat.is_some());
            let mut versions = Vec::new();
            for (at, ((address, len), value)) in changes.iter().copied().enumerate() {
                let old = match value {
                    0 => {
                        let old = trie.remove(address, len);
                        prop_assert_eq!(old, twin.remove(&(address, len)).unwrap_or(0));
                        continue;
                    }
                    value => trie.insert(address, len, value),
                };
                prop_assert_eq!(old, twin.insert((address, len), value).unwrap_or(0));
                if at % 40 == 5 {
                    versions.push((trie.clone(), twin.clone()));
                }
            }
            versions.push((trie, twin));
            let near = changes.iter().flat_map(|((address, _), _)| {
                [*address, address | 0xff, address ^ 0x100, address.wrapping_sub(1), address ^ 1 << 19]
            });
            let probes: Vec<u32> =
                probes.iter().map(|bits| 0x0a00_0000 | bits & 0x001f_0385).chain(near).collect();
            for (trie, twin) in &versions {
                for some in probes.chunks(64) {
                    let mut values = [0; 64];
                    trie.lookup_many(some, &mut values);
                    for (address, value) in some.iter().zip(values) {
                        prop_assert_eq!(value, naive(twin, *address), "{:x}", address);
                        prop_assert_eq!(trie.lookup(*address), value, "{:x}", address);
                    }
                }
            }
        }
    }
}
