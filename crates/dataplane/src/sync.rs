//! What the structures that threads share are made of, under one name.
//!
//! `interleavings` compiles the same files over the types of a checker that tries every order in
//! which threads can take their steps; there, this module is another.

pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, fence};
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

/// A value that several threads may reach, and that something else keeps them from reaching at once.
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Lends the place to a function that may write it, for as long as it runs.
    #[inline]
    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}
