//! What a large table says of addresses by their first 24 bits, and by all 32 where that is worth it: a look-up
//! reads a line or two.
//!
//! Method: DIR-24-8 (Gupta, Lin, McKeown, INFOCOM 1998), where there are many prefixes; elsewhere the trie is
//! asked. An entry for each 24 bits says the value of their longest prefix from [`BITS`] bits on, that there is
//! none, or that longer prefixes begin with them. Of those, where they are several, a tail says the value for
//! each of the last eight bits. Shorter prefixes than [`BITS`] are not written out here: a default route that
//! changes would change sixteen million entries.
//!
//! ```text
//!  address   13 bits ─► leaf, 8 KiB │ 11 bits ─► entry ─► tail, 1 KiB │ 8 bits ─► value
//! ```
//!
//! Versions share leaves and tails. It is made of the trie's nodes and holds nothing that they do not.

use std::ops::Range;
use std::sync::Arc;

use super::Word;
use super::node::{COVERING, Node, STRIDE};

/// From how many IPv4 prefixes on they are written out at all: where the trie's roots begin at [`BITS`]. Tables of
/// VRFs there may be a thousand of, and one of 500 prefixes could take most of a MiB. One that is the only one of
/// its kind is written out from its first prefix on.
pub(super) const FROM: usize = 4096;

/// The depth at which the leaves begin; that of the trie's roots.
pub(super) const BITS: u32 = 13;

/// From how many prefixes on a leaf, and a tail, are worth their memory in any case: 128 bytes for each of the
/// prefixes. They go when half are left. Tests pass it with few.
const LEAF_FROM: u32 = if cfg!(test) { 6 } else { 64 };
const TAIL_FROM: u32 = if cfg!(test) { 4 } else { 8 };

/// A leaf for so many prefixes of the table there may be, whatever the leaves have: 512 bytes for each.
const LEAF_FOR: u32 = 16;

/// Leaves that the only table of its kind may have however few prefixes it has, and tails of each: 256 KiB, and
/// 512 KiB.
pub(super) const LEAVES_OF_ONE: u32 = 32;
const TAILS_OF_ONE: usize = 16;

/// Bits of an entry's number in its leaf, and of a value's in its tail.
const LEAF_BITS: u32 = 11;
const TAIL_BITS: u32 = 8;

/// References that are copied together. Each of them is a line of memory somewhere else.
const BRANCH: usize = 16;

/// An entry that sends further, with the number of the tail. No value is between it and [`TO_TRIE`].
const FURTHER: u32 = 1 << 30;

/// An entry that sends to the trie.
pub(super) const TO_TRIE: u32 = (1 << 31) - 1;

/// Whether an entry is not a value.
#[inline(always)]
pub(super) fn leads_further(entry: u32) -> bool {
    (FURTHER..=TO_TRIE).contains(&entry)
}

/// Whether it is one: it neither leads further nor says that there is none.
#[inline(always)]
pub(super) fn is_value(entry: u32) -> bool {
    (entry != 0) & !leads_further(entry)
}

type Tail = [u32; 1 << TAIL_BITS];

#[derive(Clone)]
pub(super) struct Leaf {
    entries: [u32; 1 << LEAF_BITS],
    /// By their numbers. One that nothing leads to any more is free.
    tails: Vec<Option<Arc<Tail>>>,
    /// Tails that there may be for however few prefixes.
    free: usize,
}

/// That of all places without prefixes.
static NONE: Leaf = Leaf { entries: [0; 1 << LEAF_BITS], tails: Vec::new(), free: 0 };

/// What is written out of the prefixes that begin with the same first bits, and how many they are.
#[derive(Clone, Default)]
struct Place {
    leaf: Option<Arc<Leaf>>,
    count: u32,
}

type Branch<T> = Arc<[T; BRANCH]>;

/// The branches just above the leaves.
type Lowest = Branch<Place>;

/// Entries for all addresses.
#[derive(Clone)]
pub(super) struct Flat {
    branches: Arc<[Branch<Lowest>]>,
    budget: Budget,
}

/// Leaves that there are, leaves that there may be in any case, and prefixes.
#[derive(Clone, Copy)]
struct Budget {
    leaves: u32,
    free: u32,
    prefixes: u32,
}

impl Budget {
    /// Whether a leaf is there for so many prefixes, and stays.
    fn keeps(self, count: u32) -> bool {
        let most = (self.prefixes / (LEAF_FOR / 2)).max(self.free);
        count >= LEAF_FROM / 2 || count != 0 && self.leaves <= most
    }

    /// Whether one is made for so many.
    fn affords(self, count: u32) -> bool {
        let most = (self.prefixes / LEAF_FOR).max(self.free);
        count >= LEAF_FROM || count != 0 && self.leaves < most
    }
}

/// An entry that an address led to, to be read when it has come.
#[derive(Clone, Copy)]
pub(super) struct Entry<'f> {
    leaf: &'f Leaf,
    word: &'f u32,
}

impl<'f> Entry<'f> {
    /// Its memory.
    #[inline(always)]
    pub(super) fn word(self) -> &'f u32 {
        self.word
    }

    /// The leaf in which it is.
    #[inline(always)]
    pub(super) fn leaf(self) -> &'f Leaf {
        self.leaf
    }
}

/// Where the addresses lead that begin with the same [`BITS`] bits: a leaf, and which of their next bits count there; `None` where
/// prefixes are not written out.
type Begun<'f> = Option<(&'f Leaf, usize)>;

/// The entries of addresses one after the other, of which many begin like the one before.
pub(super) struct Entries<'f> {
    flat: &'f Flat,
    root: u32,
    begun: Begun<'f>,
}

impl<'f> Entries<'f> {
    /// The entry of an address; `None` where prefixes are not written out.
    #[inline(always)]
    pub(super) fn next<W: Word>(&mut self, address: W) -> Option<Entry<'f>> {
        let root = address.bits(0, BITS);
        if root != self.root {
            (self.root, self.begun) = (root, self.flat.begun(root as usize));
        }
        let (leaf, mask) = self.begun?;
        Some(Entry { leaf, word: &leaf.entries[address.bits(BITS, LEAF_BITS) as usize & mask] })
    }
}

impl Flat {
    /// Nothing written out, of a table of so many prefixes that may have so many leaves in any case.
    pub(super) fn new(prefixes: usize, free: u32) -> Flat {
        let lowest = Arc::new(std::array::from_fn(|_| Place::default()));
        let middle = Arc::new(std::array::from_fn(|_| lowest.clone()));
        let branches = vec![middle; (1 << BITS) / (BRANCH * BRANCH)].into();
        let prefixes = u32::try_from(prefixes).unwrap_or(u32::MAX);
        Flat { branches, budget: Budget { leaves: 0, free, prefixes } }
    }

    /// The entries of addresses that come one after the other.
    #[inline(always)]
    pub(super) fn entries(&self) -> Entries<'_> {
        // No address begins with so many bits.
        Entries { flat: self, root: u32::MAX, begun: None }
    }

    #[inline(always)]
    fn begun(&self, root: usize) -> Begun<'_> {
        let middle = self.branches.get(root / (BRANCH * BRANCH))?;
        let place = &middle[root / BRANCH % BRANCH][root % BRANCH];
        match &place.leaf {
            Some(leaf) => Some((leaf, usize::MAX)),
            // Always the same line.
            None if place.count == 0 => Some((&NONE, 0)),
            None => None,
        }
    }

    /// The value of an address, 0 if no prefix from [`BITS`] bits on has it, and how many of its first bits say so; `None` if the trie
    /// knows.
    #[inline]
    pub(super) fn find<W: Word>(&self, address: W) -> Option<(u32, u32)> {
        let entry = self.entries().next(address)?;
        Some(match *entry.word() {
            word if leads_further(word) => match entry.leaf.in_tail(word, address) {
                TO_TRIE => return None,
                known => (known, BITS + LEAF_BITS + TAIL_BITS),
            },
            word if entry.leaf.is_none() => (word, BITS),
            word => (word, BITS + LEAF_BITS),
        })
    }

    /// Writes out anew what a prefix of [`BITS`] bits or more covers, which was added (1), removed (-1) or has
    /// another value (0); `node` is the trie's node of its first bits.
    pub(super) fn paint<W: Word>(&mut self, prefix: W, len: u32, node: &Node, added: i32) {
        self.budget.prefixes = self.budget.prefixes.saturating_add_signed(added);
        let (mut budget, place) = (self.budget, self.place(prefix));
        place.count = place.count.saturating_add_signed(added);
        match &mut place.leaf {
            Some(leaf) if budget.keeps(place.count) => {
                let all = 1usize << (BITS + LEAF_BITS).saturating_sub(len);
                let first = prefix.bits(BITS, LEAF_BITS) as usize;
                let tail_first = prefix.bits(BITS + LEAF_BITS, TAIL_BITS) as usize;
                let tail_all = 1usize << (u32::BITS - len.max(BITS + LEAF_BITS));
                let tails = tail_first..tail_first + tail_all;
                Arc::make_mut(leaf).paint(first..first + all, &tails, node);
            }
            _ => place.begin(node, &mut budget),
        }
        self.budget = budget;
    }

    /// Writes out what begins with the same bits as `prefix`, for the first time; `node` is the trie's node of
    /// them.
    pub(super) fn begin<W: Word>(&mut self, prefix: W, node: &Node) {
        let mut budget = self.budget;
        let place = self.place(prefix);
        place.count = node.count();
        place.begin(node, &mut budget);
        self.budget = budget;
    }

    fn place<W: Word>(&mut self, prefix: W) -> &mut Place {
        let root = prefix.bits(0, BITS) as usize;
        let middle = &mut Arc::make_mut(&mut self.branches)[root / (BRANCH * BRANCH)];
        let lowest = &mut Arc::make_mut(middle)[root / BRANCH % BRANCH];
        &mut Arc::make_mut(lowest)[root % BRANCH]
    }
}

impl Place {
    /// Another leaf, or none if it is not worth it.
    fn begin(&mut self, node: &Node, budget: &mut Budget) {
        budget.leaves -= u32::from(self.leaf.take().is_some());
        self.leaf = budget.affords(self.count).then(|| {
            let free = if budget.free == 0 { 0 } else { TAILS_OF_ONE };
            let mut leaf = Leaf { entries: [0; 1 << LEAF_BITS], tails: Vec::new(), free };
            leaf.paint(0..1 << LEAF_BITS, &(0..1 << TAIL_BITS), node);
            Arc::new(leaf)
        });
        budget.leaves += u32::from(self.leaf.is_some());
    }
}

impl Leaf {
    /// The value of an address if its entry, which is this word, leads further: 0 if no prefix from [`BITS`] bits on has it,
    /// [`TO_TRIE`] if the trie knows.
    #[inline(always)]
    pub(super) fn in_tail<W: Word>(&self, word: u32, address: W) -> u32 {
        match self.tails.get(word.wrapping_sub(FURTHER) as usize) {
            Some(Some(tail)) => tail[address.bits(BITS + LEAF_BITS, TAIL_BITS) as usize],
            _ => TO_TRIE,
        }
    }

    /// Whether it is that of places without prefixes.
    fn is_none(&self) -> bool {
        std::ptr::eq(self, &NONE)
    }

    /// Whether a tail is made for so many prefixes.
    fn affords(&self, prefixes: u32) -> bool {
        prefixes >= TAIL_FROM || self.tails.iter().flatten().count() < self.free
    }

    /// Whether one stays for so many.
    fn keeps(&self, prefixes: u32) -> bool {
        prefixes >= TAIL_FROM / 2 || prefixes != 0 && self.free != 0
    }

    /// Writes out some entries, and of the tails that they lead to some values.
    fn paint(&mut self, entries: Range<usize>, tails: &Range<usize>, node: &Node) {
        // A node's child covers this many.
        const CHILD: usize = 1 << (LEAF_BITS - STRIDE);
        for next in entries.start / CHILD..entries.end.div_ceil(CHILD) {
            let all = next * CHILD;
            let base = node.longest(next as u32).unwrap_or(0);
            let child = node.child(next as u32);
            for entry in entries.start.max(all)..entries.end.min(all + CHILD) {
                // Its last bit is the first that 24 bits do not say.
                let bits = (entry - all) as u32 * 2;
                let base = child.and_then(|child| child.longest(bits)).unwrap_or(base);
                let halves = [0, 1].map(|half| child.and_then(|child| child.child(bits | half)));
                self.paint_entry(entry, base, halves, tails);
            }
        }
    }

    /// Writes out an entry, of which longer prefixes are in `halves`, and `base` is the longest of the others.
    fn paint_entry(
        &mut self,
        entry: usize,
        base: u32,
        halves: [Option<&Node>; 2],
        tails: &Range<usize>,
    ) {
        let longer: u32 = halves.iter().flatten().map(|node| node.count()).sum();
        let old = (self.entries[entry].wrapping_sub(FURTHER)) as usize;
        let known = self.tails.get(old).is_some_and(Option::is_some);
        let stays = known && self.keeps(longer);
        if !stays {
            if known {
                self.tails[old] = None;
            }
            self.entries[entry] = match longer {
                0 => base,
                _ if self.affords(longer) => self.begin_tail(base, halves),
                _ => TO_TRIE,
            };
        } else if let Some(Some(tail)) = self.tails.get_mut(old) {
            let tail = Arc::make_mut(tail);
            tails.clone().for_each(|at| tail[at] = value_of(at, base, halves));
        }
    }

    /// A new tail; the entry that leads to it.
    fn begin_tail(&mut self, base: u32, halves: [Option<&Node>; 2]) -> u32 {
        let tail = std::array::from_fn(|at| value_of(at, base, halves));
        let free = self.tails.iter().position(Option::is_none).unwrap_or_else(|| {
            self.tails.push(None);
            self.tails.len() - 1
        });
        self.tails[free] = Some(Arc::new(tail));
        FURTHER + free as u32
    }
}

/// The value for the last eight bits.
fn value_of(at: usize, base: u32, halves: [Option<&Node>; 2]) -> u32 {
    let bits = at as u32;
    let (next, last) = (bits >> 1 & 63, (bits & 1) << (STRIDE - 1));
    let Some(half) = halves[at >> (TAIL_BITS - 1)] else { return base };
    let longest = half.child(next).and_then(|node| node.longest(last));
    longest.or_else(|| half.longest(next)).unwrap_or(base)
}

impl Node {
    /// The value of the longest prefix that ends here and holds these six bits.
    fn longest(&self, next: u32) -> Option<u32> {
        let ends = self.ends & COVERING[next as usize >> 1 & 31];
        (ends != 0).then(|| self.value(ends.ilog2()))
    }

    /// Prefixes here and below.
    fn count(&self) -> u32 {
        let below = self.children.iter().flat_map(|children| children.iter());
        self.ends.count_ones() + below.map(Node::count).sum::<u32>()
    }
}

const _: () = assert!((1 << LEAF_BITS) >> STRIDE == 32 && BITS + 3 * STRIDE + 1 == 32);

// Every number of a tail is one of its own, and none is the trie's.
const _: () = assert!(FURTHER + (1 << LEAF_BITS) < TO_TRIE);

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

    /// Tails of a table.
    fn tails(trie: &Trie<u32>) -> usize {
        let places = trie.flat.iter().flat_map(|flat| flat.branches.iter());
        let places = places.flat_map(|middle| middle.iter()).flat_map(|lowest| lowest.iter());
        let leaves = places.filter_map(|place| place.leaf.as_ref());
        leaves.map(|leaf| leaf.tails.iter().flatten().count()).sum()
    }

    #[test]
    fn tails_come_with_long_prefixes_and_go_with_them() {
        let (mut trie, mut twin) = large();
        let prefix = |n: u32| {
            let len = [32, 30, 27, 25, 31, 32, 26, 24][n as usize % 8];
            let address = 0x0a00_0000 | n.wrapping_mul(0x9e37_79b9) >> 22;
            (address & u32::MAX << (32 - len), len)
        };
        let same = |trie: &Trie<u32>, twin: &Twin| {
            (0x0a00_0000..0x0a00_0400).all(|address| trie.lookup(address) == naive(twin, address))
        };
        let mut most = 0;
        for n in 0..200 {
            let (address, len) = prefix(n);
            trie.insert(address, len, n + 1);
            twin.insert((address, len), n + 1);
            assert!(same(&trie, &twin), "{n}");
            most = most.max(tails(&trie));
        }
        assert_eq!(most, 4);
        let old = (trie.clone(), twin.clone());
        for n in 0..200 {
            let (address, len) = prefix(n);
            trie.remove(address, len);
            twin.remove(&(address, len));
            assert!(same(&trie, &twin), "{n}");
        }
        assert!(tails(&trie) == 0 && tails(&old.0) == 4 && same(&old.0, &old.1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn what_is_written_out_equals_the_longest_prefix_in_every_version(
            is_only in any::<bool>(),
            changes in prop::collection::vec((prefix(), 0..4u32), 1..120),
            probes in prop::collection::vec(any::<u32>(), 80),
        ) {
            let (mut trie, mut twin) = if is_only { (Trie::only(), Twin::new()) } else { large() };
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
