//! An array whose versions share what they have in common.
//!
//! The sibling of [`crate::table`] for small numbers as keys: control clones it (one reference
//! count), changes the clone and publishes it. A change copies sixteen elements and as many
//! references for each level above, of which there are as many as the highest index has hexadecimal
//! digits beyond the first. What is small and refers to nothing is better kept in [`crate::pages`].
//!
//! It only grows. Elements that were never set have their default value.

use std::sync::Arc;

use crate::cpu::{Cache, prefetch};

/// How many elements a leaf has, and how many children a branch.
const WIDTH: usize = 16;

#[derive(Clone)]
enum Node<T> {
    Empty,
    Branch(Arc<[Node<T>; WIDTH]>),
    Leaf(Arc<[T; WIDTH]>),
}

/// A copy-on-write array.
#[derive(Clone)]
pub struct Array<T> {
    root: Node<T>,
    /// Branches between the root and any leaf, the root included.
    levels: u32,
}

impl<T: Clone + Default> Array<T> {
    /// An empty array.
    pub fn new() -> Array<T> {
        Array { root: Node::Empty, levels: 0 }
    }

    /// Asks for the memory that [`get`](Array::get) will read.
    #[inline]
    pub fn prefetch(&self, index: u32, cache: Cache) {
        if let Some(element) = self.get(index) {
            prefetch(element, cache);
        }
    }

    /// An element that was set, or a neighbour of one.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        if !self.reaches(index) {
            return None;
        }
        let mut shift = self.levels * WIDTH.ilog2();
        let mut node = &self.root;
        loop {
            match node {
                Node::Branch(children) => {
                    node = &children[(index >> shift) as usize % WIDTH];
                    shift -= WIDTH.ilog2();
                }
                Node::Leaf(elements) => return Some(&elements[index as usize % WIDTH]),
                Node::Empty => return None,
            }
        }
    }

    /// Sets an element, making the array as long as that takes.
    pub fn set(&mut self, index: u32, value: T) {
        while !self.reaches(index) {
            let below = std::mem::replace(&mut self.root, Node::Empty);
            if !matches!(below, Node::Empty) {
                let mut children = std::array::from_fn(|_| Node::Empty);
                children[0] = below;
                self.root = Node::Branch(Arc::new(children));
            }
            self.levels += 1;
        }
        self.root.set(index, self.levels, value);
    }

    /// Whether the tree is high enough for an index.
    #[inline]
    fn reaches(&self, index: u32) -> bool {
        u64::from(index) >> ((self.levels + 1) * WIDTH.ilog2()) == 0
    }
}

impl<T: Clone + Default> Default for Array<T> {
    fn default() -> Self {
        Array::new()
    }
}

impl<T: Clone + Default> Node<T> {
    fn set(&mut self, index: u32, levels: u32, value: T) {
        if matches!(self, Node::Empty) {
            *self = match levels {
                0 => Node::Leaf(Arc::new(std::array::from_fn(|_| T::default()))),
                _ => Node::Branch(Arc::new(std::array::from_fn(|_| Node::Empty))),
            };
        }
        match self {
            Node::Branch(children) => {
                let child = (index >> (levels * WIDTH.ilog2())) as usize % WIDTH;
                Arc::make_mut(children)[child].set(index, levels - 1, value);
            }
            Node::Leaf(elements) => Arc::make_mut(elements)[index as usize % WIDTH] = value,
            Node::Empty => {}
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Sets elements one after the other, and checks the last version and some before it against a map.
    pub(crate) fn equals_a_plain_map<A: Clone + Default>(
        elements: impl Iterator<Item = (u32, u16)>,
        set: impl Fn(&mut A, u32, u16),
        get: impl Fn(&A, u32) -> Option<&u16>,
        probes: &[u32],
    ) {
        let (mut array, mut twin) = (A::default(), HashMap::new());
        let mut versions = Vec::new();
        for (index, value) in elements {
            set(&mut array, index, value);
            twin.insert(index, value);
            if versions.len() < 4 {
                versions.push((array.clone(), twin.clone()));
            }
        }
        versions.push((array, twin));
        for (array, twin) in &versions {
            for (index, value) in twin {
                assert_eq!(get(array, *index), Some(value));
            }
            for index in probes {
                let expected = twin.get(index).copied().unwrap_or_default();
                assert_eq!(get(array, *index).copied().unwrap_or_default(), expected);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn equals_a_plain_map_in_every_version(
            steps in prop::collection::vec((0..8u32, 0..16u32, any::<u16>()), 1..200)
        ) {
            // Indices of every height, dense at the start of each.
            let place =
                |(digits, offset, value)| (((1u64 << (4 * digits)) - 1) as u32 + offset, value);
            let probes = [0, 1, 17, 300, 5000, 70_000, u32::MAX];
            equals_a_plain_map(steps.into_iter().map(place), Array::set, Array::get, &probes);
        }
    }

    #[test]
    fn the_last_index_of_all_is_one() {
        let mut array: Array<u8> = Array::new();
        array.set(u32::MAX, 7);
        assert_eq!((array.get(u32::MAX), array.get(0)), (Some(&7), None));
        array.set(0, 8);
        assert_eq!((array.get(u32::MAX), array.get(0)), (Some(&7), Some(&8)));
    }
}
