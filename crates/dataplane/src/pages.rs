//! An array of small things whose versions share what they have in common.
//!
//! The sibling of [`crate::array`] for elements that are a few bytes and refer to nothing that is counted:
//! control clones it (one reference count), changes the clone and publishes it. A change copies a page, and
//! the list of pages, of which a hundred thousand elements have two hundred. So an element is found in two
//! steps, of which the first reads a few lines that stay in the first level cache.
//!
//! It only grows. Elements that were never set have their default value.

use std::sync::Arc;

use crate::cpu::{Cache, prefetch};

/// Elements of a page: of 8 bytes each they are 4 KiB, which is copied in less than a microsecond.
const PAGE: usize = 512;

/// A copy-on-write array.
#[derive(Clone)]
pub struct Pages<T> {
    pages: Arc<[Arc<[T; PAGE]>]>,
}

impl<T: Copy + Default> Pages<T> {
    /// Asks for the memory that [`get`](Pages::get) will read.
    #[inline]
    pub fn prefetch(&self, index: u32, cache: Cache) {
        if let Some(element) = self.get(index) {
            prefetch(element, cache);
        }
    }

    /// An element that was set, or a neighbour of one.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let page = self.pages.get(index as usize / PAGE)?;
        Some(&page[index as usize % PAGE])
    }

    /// Sets an element, making the array as long as that takes.
    pub fn set(&mut self, index: u32, value: T) {
        let at = index as usize / PAGE;
        if at >= self.pages.len() {
            let empty = Arc::new([T::default(); PAGE]);
            let more = std::iter::repeat_n(&empty, at + 1 - self.pages.len());
            self.pages = self.pages.iter().chain(more).cloned().collect();
        }
        let page = &mut Arc::make_mut(&mut self.pages)[at];
        Arc::make_mut(page)[index as usize % PAGE] = value;
    }
}

impl<T: Copy + Default> Default for Pages<T> {
    fn default() -> Self {
        Pages { pages: Arc::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::tests::equals_a_plain_map;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn equals_a_plain_map_in_every_version(
            steps in prop::collection::vec((0..5u32, 0..3u32, any::<u16>()), 1..200)
        ) {
            // About the ends of pages near and far.
            let place = |(page, offset, value)| ((1u32 << (2 * page)) * PAGE as u32 - 1 + offset, value);
            let probes = [0, 1, 511, 512, 5000, 70_000, u32::MAX];
            equals_a_plain_map(steps.into_iter().map(place), Pages::set, Pages::get, &probes);
        }
    }
}
