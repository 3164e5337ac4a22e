//! Longest prefix match: a trie whose versions share what they have in common.
//!
//! Method: tree bitmap (Eatherton, Varghese, Dittia, CCR 2004) with strides of six bits. A node is one
//! cache line: which prefixes of the six lengths from its depth on end in it, which of its 64 children
//! exist, and, mostly, the values themselves. Nothing is pushed to leaves below, so that an insertion
//! touches one node, and what it copies of an older version is the way there.
//!
//! ```text
//!  address   0 ─ R │ 6 │ 6 │ …          R = 1, 7 or 13, by the number of prefixes
//!            root   node node
//! ```
//!
//! Depths are 1, 7, 13, 19, 25, 31, …, so that the lengths people use most end the reach of a node:
//! 24 that of depth 19, 48 that of 43. A large table begins at depth 13; prefixes shorter than that
//! are written out for all 8192 values of the first bits. A table of ten prefixes takes some 2 KiB. One that
//! there is only one of, a gateway's main table, begins and is written out as a large one does: look-ups among ten
//! routes would else take four times as long as among a thousand.
//!
//! A large table of IPv4 is written out beside the trie where it has many prefixes (`trie/flat.rs`), and
//! many addresses may be looked up side by side (`trie/many.rs`).
//!
//! It knows bits and numbers, not routes; a value is not 0, and of its two highest bits not the lower one
//! alone is set.

mod flat;
pub(crate) mod many;
mod node;

use std::collections::BTreeMap;
use std::sync::Arc;

use flat::Flat;
use node::{COVERING, Node, STRIDE, end_of};

/// Root nodes in one piece of memory, copied together: 4 KiB, which takes a microsecond.
const CHUNK_BITS: u32 = 6;

/// From how many prefixes on the trie begins at depth 7, in 8 KiB of nodes instead of two.
const DEEPER_FROM: usize = 128;

/// An address as bits, the first ones highest.
pub(crate) trait Word: Copy + Eq {
    /// The `count` bits from `depth` on, at most 31; beyond the end there are zeros.
    fn bits(self, depth: u32, count: u32) -> u32;

    /// An address of zeros but for `count` bits from `depth` on.
    fn with_bits(self, depth: u32, count: u32, bits: u32) -> Self;

    /// How many bits an address has.
    const BITS: u32;

    /// Whether the first bits of a large table are written out as well.
    const HAS_FLAT: bool;

    /// All zeros.
    const ZERO: Self;
}

macro_rules! word {
    ($($word:ty, $has_flat:expr);+) => {$(
        impl Word for $word {
            const BITS: u32 = <$word>::BITS;
            const HAS_FLAT: bool = $has_flat;
            const ZERO: $word = 0;

            #[inline(always)]
            fn bits(self, depth: u32, count: u32) -> u32 {
                // In two steps, as a shift by all bits is none.
                ((self << depth) >> 1 >> (<$word>::BITS - 1 - count)) as u32
            }

            #[inline]
            fn with_bits(self, depth: u32, count: u32, bits: u32) -> $word {
                let aligned = (bits as $word) << 1 << (<$word>::BITS - 1 - count);
                self | aligned >> depth
            }
        }
    )+};
}

word!(u32, true; u128, false);

/// A version of a trie over addresses of one family.
#[derive(Clone)]
pub(crate) struct Trie<W> {
    /// Nodes at depth `root_bits`, in chunks.
    roots: Arc<[Arc<[Node]>]>,
    root_bits: u32,
    /// The value of the longest prefix shorter than `root_bits`, for each root; 0 without one.
    above: Arc<[u32]>,
    /// Prefixes shorter than `root_bits`, by length and bits.
    short: Arc<BTreeMap<(u32, u32), u32>>,
    len: usize,
    /// Whether there is no other like it, so that its memory is worth a quick look-up also where it is small.
    is_only: bool,
    /// Of a large table.
    flat: Option<Flat>,
    family: std::marker::PhantomData<W>,
}

impl<W: Word> Trie<W> {
    /// An empty one, beside which there is no other: a look-up among few prefixes is as quick as among many, for
    /// a MiB or so.
    pub(crate) fn only() -> Trie<W> {
        Trie { is_only: true, ..Trie::default() }
    }

    /// Prefixes in it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The value of the longest prefix of an address; 0 without one.
    #[inline]
    pub(crate) fn lookup(&self, address: W) -> u32 {
        self.lookup_block(address).0
    }

    /// The same, and how many first bits of the address say so: it is the value of all addresses with those.
    #[inline]
    pub(crate) fn lookup_block(&self, address: W) -> (u32, u32) {
        match self.flat.as_ref().and_then(|flat| flat.find(address)) {
            Some((0, bits)) => (self.above(address), bits),
            Some(found) => found,
            None => self.descend(address),
        }
    }

    /// The value of the longest of the prefixes that no node has.
    #[inline]
    fn above(&self, address: W) -> u32 {
        self.above.get(address.bits(0, self.root_bits) as usize).copied().unwrap_or(0)
    }

    #[inline]
    fn descend(&self, address: W) -> (u32, u32) {
        let root = address.bits(0, self.root_bits) as usize;
        let Some(mut node) = self.root(root) else { return (0, W::BITS) };
        let mut depth = self.root_bits;
        let mut best: Option<(&Node, u32)> = None;
        loop {
            let next = address.bits(depth, STRIDE);
            let ends = node.ends & COVERING[next as usize >> 1 & 31];
            if ends != 0 {
                best = Some((node, ends.ilog2()));
            }
            let Some(child) = node.child(next) else { break };
            node = child;
            depth += STRIDE;
        }
        let value = match best {
            Some((node, end)) => node.value(end),
            None => self.above(address),
        };
        (value, (depth + STRIDE).min(W::BITS))
    }

    #[inline]
    fn root(&self, root: usize) -> Option<&Node> {
        self.roots.get(root >> CHUNK_BITS)?.get(root & ((1 << CHUNK_BITS) - 1))
    }

    /// The value of a prefix, or 0.
    pub(crate) fn get(&self, prefix: W, len: u32) -> u32 {
        if len < self.root_bits {
            return self.short.get(&(len, prefix.bits(0, len))).copied().unwrap_or(0);
        }
        let mut depth = self.root_bits;
        let mut node = self.root(prefix.bits(0, depth) as usize);
        while let Some(here) = node {
            if len - depth < STRIDE {
                let end = end_of(prefix, depth, len);
                return if here.ends >> end & 1 != 0 { here.value(end) } else { 0 };
            }
            node = here.child(prefix.bits(depth, STRIDE));
            depth += STRIDE;
        }
        0
    }

    /// Sets the value of a prefix, whose other bits are zeros, to `value`, which is not 0. The value
    /// that it had, or 0.
    pub(crate) fn insert(&mut self, prefix: W, len: u32, value: u32) -> u32 {
        if self.roots.is_empty() {
            *self = self.beginning_at(1);
        }
        let old = self.replace(prefix, len, value);
        self.len += usize::from(old == 0);
        let bits = match self.len {
            len if len > self.flat_from() => flat::BITS,
            len if len > DEEPER_FROM => 7,
            _ => 1,
        };
        if bits > self.root_bits {
            let mut deeper = self.beginning_at(bits);
            self.for_each(|prefix, len, value| {
                deeper.replace(prefix, len, value);
            });
            deeper.len = self.len;
            *self = deeper;
        }
        if W::HAS_FLAT && self.flat.is_none() && self.len > self.flat_from() {
            self.write_out();
        }
        old
    }

    /// Removes a prefix; the value that it had, or 0.
    pub(crate) fn remove(&mut self, prefix: W, len: u32) -> u32 {
        if self.get(prefix, len) == 0 {
            return 0;
        }
        self.len -= 1;
        // Not at the number where it came, or a table that wavers there would do nothing else.
        if self.len < self.flat_from() / 2 {
            self.flat = None;
        }
        self.replace(prefix, len, 0)
    }

    /// Writes out the first bits of all addresses.
    #[cold]
    fn write_out(&mut self) {
        let mut flat = Flat::new(self.len, if self.is_only { flat::LEAVES_OF_ONE } else { 0 });
        for root in 0..1 << flat::BITS {
            if let Some(node) = self.root(root).filter(|node| !node.is_empty()) {
                flat.begin(W::ZERO.with_bits(0, flat::BITS, root as u32), node);
            }
        }
        self.flat = Some(flat);
    }

    /// From how many prefixes on it begins where what is written out does.
    fn flat_from(&self) -> usize {
        if self.is_only { 0 } else { flat::FROM }
    }

    /// An empty one of the same kind.
    fn beginning_at(&self, root_bits: u32) -> Trie<W> {
        let roots = 1usize << root_bits;
        let chunk = roots.min(1 << CHUNK_BITS);
        let nodes: Arc<[Node]> = vec![Node::EMPTY; chunk].into();
        Trie {
            roots: vec![nodes; roots / chunk].into(),
            root_bits,
            above: vec![0; roots].into(),
            short: Arc::default(),
            len: 0,
            is_only: self.is_only,
            flat: None,
            family: std::marker::PhantomData,
        }
    }

    /// Sets a value, or removes it where it is 0.
    fn replace(&mut self, prefix: W, len: u32, value: u32) -> u32 {
        if len < self.root_bits {
            return self.replace_short(prefix.bits(0, len), len, value);
        }
        let root = prefix.bits(0, self.root_bits) as usize;
        let chunk = &mut Arc::make_mut(&mut self.roots)[root >> CHUNK_BITS];
        let node = &mut Arc::make_mut(chunk)[root & ((1 << CHUNK_BITS) - 1)];
        let old = node.replace(prefix, self.root_bits, len, value);
        if let Some(flat) = &mut self.flat {
            flat.paint(prefix, len, node, i32::from(value != 0) - i32::from(old != 0));
        }
        old
    }

    fn replace_short(&mut self, bits: u32, len: u32, value: u32) -> u32 {
        let short = Arc::make_mut(&mut self.short);
        let old = match value {
            0 => short.remove(&(len, bits)),
            value => short.insert((len, bits), value),
        };
        // Painted anew, the shorter ones first.
        let reach = |bits: u32, len: u32| {
            let rest = self.root_bits - len;
            (bits as usize) << rest..(bits as usize + 1) << rest
        };
        let painted = reach(bits, len);
        let above = Arc::make_mut(&mut self.above);
        above[painted.clone()].fill(0);
        for (&(len, bits), &value) in short.iter() {
            let roots = reach(bits, len);
            let both = roots.start.max(painted.start)..roots.end.min(painted.end);
            if !both.is_empty() {
                above[both].fill(value);
            }
        }
        old.unwrap_or(0)
    }

    /// Calls `each` with every prefix, its length and its value; in no order.
    pub(crate) fn for_each(&self, mut each: impl FnMut(W, u32, u32)) {
        for (&(len, bits), &value) in self.short.iter() {
            each(W::ZERO.with_bits(0, len, bits), len, value);
        }
        for root in 0..self.roots.len() << CHUNK_BITS {
            if let Some(node) = self.root(root) {
                let prefix = W::ZERO.with_bits(0, self.root_bits, root as u32);
                node.for_each(prefix, self.root_bits, &mut each);
            }
        }
    }
}

impl<W> Default for Trie<W> {
    fn default() -> Self {
        Trie {
            roots: Arc::default(),
            root_bits: 1,
            above: Arc::default(),
            short: Arc::default(),
            len: 0,
            is_only: false,
            flat: None,
            family: std::marker::PhantomData,
        }
    }
}
