//! What a table may have as values: versions share their bits.

#![allow(unsafe_code)]

use std::sync::Arc;

use wire::ethernet::MacAddr;

/// What may be a value: it stays as it is while several versions have its bits.
///
/// # Safety
/// Nothing in the value itself changes through a shared reference, and it claims no memory for itself
/// alone, as a `Box` does; an `Arc` may lead to what changes.
pub unsafe trait Steady: Clone {}

// SAFETY: the count and what is counted lie elsewhere.
unsafe impl<T: ?Sized> Steady for Arc<T> {}
// SAFETY: these are but numbers.
unsafe impl Steady for () {}
// SAFETY: as above.
unsafe impl Steady for u16 {}
// SAFETY: as above.
unsafe impl Steady for u32 {}
// SAFETY: as above.
unsafe impl Steady for MacAddr {}
// SAFETY: two such beside each other.
unsafe impl<A: Steady, B: Steady> Steady for (A, B) {}
// SAFETY: one such or nothing.
unsafe impl<V: Steady> Steady for Option<V> {}

/// Numbers beside a value.
#[derive(Clone, Debug)]
pub struct Beside<T, V> {
    /// The numbers, or what else is but bits.
    pub numbers: T,
    /// The value.
    pub value: V,
}

// SAFETY: what can be copied has no cell in it, and claims nothing; the other is steady.
unsafe impl<T: Copy, V: Steady> Steady for Beside<T, V> {}
