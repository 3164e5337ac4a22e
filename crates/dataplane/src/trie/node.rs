//! A node of the trie: which prefixes end in it, their values, and its children.

use std::sync::Arc;

use super::Word;

/// Bits that a node takes of an address.
pub(super) const STRIDE: u32 = 6;

/// Values in a node itself, so that a look-up ends there. Seldom more prefixes end in one.
const FEW: usize = 6;

/// The values of a node's prefixes, in the order of their bits.
#[derive(Clone)]
enum Values {
    Few([u32; FEW]),
    Many(Arc<[u32]>),
}

/// One cache line.
#[derive(Clone)]
#[repr(align(64))]
pub(super) struct Node {
    /// The prefixes that end here: bit 2ⁿ + b for the one of n further bits, which are b; n is 0 to 5.
    pub(super) ends: u64,
    /// The children that exist, by the next six bits.
    pub(super) below: u64,
    pub(super) children: Option<Arc<[Node]>>,
    values: Values,
}

const _: () = assert!(size_of::<Node>() == 64);

/// For each five bits, the prefixes of them.
pub(super) const COVERING: [u64; 32] = {
    let mut table = [0; 32];
    let mut bits = 0;
    while bits < 32 {
        let mut len = 0;
        while len < STRIDE as usize {
            table[bits] |= 1 << (1 << len | bits >> (STRIDE as usize - 1 - len));
            len += 1;
        }
        bits += 1;
    }
    table
};

/// The bit of `Node::ends` for a prefix that ends in the node at `depth`.
pub(super) fn end_of<W: Word>(prefix: W, depth: u32, len: u32) -> u32 {
    1 << (len - depth) | prefix.bits(depth, len - depth)
}

/// How many bits of `set` are below `bit`.
#[inline(always)]
fn rank(set: u64, bit: u32) -> usize {
    (set & ((1 << bit) - 1)).count_ones() as usize
}

impl Node {
    pub(super) const EMPTY: Node =
        Node { ends: 0, below: 0, children: None, values: Values::Few([0; FEW]) };

    #[inline(always)]
    pub(super) fn child(&self, next: u32) -> Option<&Node> {
        if self.below >> next & 1 == 0 {
            return None;
        }
        self.children.as_ref()?.get(rank(self.below, next))
    }

    /// The value of a prefix that ends here.
    #[inline(always)]
    pub(super) fn value(&self, end: u32) -> u32 {
        let at = rank(self.ends, end);
        let value = match &self.values {
            Values::Few(values) => values.get(at),
            Values::Many(values) => values.get(at),
        };
        value.copied().unwrap_or(0)
    }

    fn values(&self) -> &[u32] {
        match &self.values {
            Values::Few(values) => &values[..(self.ends.count_ones() as usize).min(FEW)],
            Values::Many(values) => values,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends | self.below == 0
    }

    pub(super) fn replace<W: Word>(&mut self, prefix: W, depth: u32, len: u32, value: u32) -> u32 {
        if len - depth < STRIDE {
            return self.replace_here(end_of(prefix, depth, len), value);
        }
        let next = prefix.bits(depth, STRIDE);
        if self.below >> next & 1 == 0 {
            if value == 0 {
                return 0;
            }
            self.edit_children(next, |children, at| children.insert(at, Node::EMPTY));
            self.below |= 1 << next;
        }
        let at = rank(self.below, next);
        let Some(children) = &mut self.children else { return 0 };
        let child = &mut Arc::make_mut(children)[at];
        let old = child.replace(prefix, depth + STRIDE, len, value);
        if child.is_empty() {
            self.edit_children(next, |children, at| drop(children.remove(at)));
            self.below &= !(1 << next);
        }
        old
    }

    fn edit_children(&mut self, next: u32, edit: impl FnOnce(&mut Vec<Node>, usize)) {
        let mut children = Vec::with_capacity(self.below.count_ones() as usize + 1);
        children.extend(self.children.take().iter().flat_map(|known| known.iter().cloned()));
        edit(&mut children, rank(self.below, next));
        self.children = (!children.is_empty()).then(|| children.into());
    }

    fn replace_here(&mut self, end: u32, value: u32) -> u32 {
        let at = rank(self.ends, end);
        let known = self.ends >> end & 1 != 0;
        let mut values = self.values().to_vec();
        let old = match (known, value) {
            (false, 0) => return 0,
            (false, value) => {
                values.insert(at, value);
                self.ends |= 1 << end;
                0
            }
            (true, 0) => {
                self.ends &= !(1 << end);
                values.remove(at)
            }
            (true, value) => std::mem::replace(&mut values[at], value),
        };
        self.values = match values.len() {
            0..=FEW => {
                let mut few = [0; FEW];
                few[..values.len()].copy_from_slice(&values);
                Values::Few(few)
            }
            _ => Values::Many(values.into()),
        };
        old
    }

    pub(super) fn for_each<W: Word>(
        &self,
        prefix: W,
        depth: u32,
        each: &mut impl FnMut(W, u32, u32),
    ) {
        let ends = (0..u64::BITS).filter(|end| self.ends >> end & 1 != 0);
        for (end, value) in ends.zip(self.values()) {
            let len = end.ilog2();
            each(prefix.with_bits(depth, len, end & !(1 << len)), depth + len, *value);
        }
        let below = (0..u64::BITS).filter(|next| self.below >> next & 1 != 0);
        for (next, child) in below.zip(self.children.iter().flat_map(|children| children.iter())) {
            child.for_each(prefix.with_bits(depth, STRIDE, next), depth + STRIDE, each);
        }
    }
}
