//! Stands in for `vaes.rs` on other architectures: there is nothing to expand, and nothing that could.

use crate::Cache;

/// Nothing.
pub struct Schedule;

impl Schedule {
    /// Nothing.
    pub const fn empty() -> Schedule {
        Schedule
    }

    /// Nothing to fetch.
    pub fn prefetch(&self, _: usize, _: Cache) {}
}
