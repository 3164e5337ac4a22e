//! Numbers that were taken of an SA and are not used yet.

/// Sequence numbers that were taken together, and their IVs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// The first of them.
    pub(super) first: u64,
    pub(super) count: u32,
    /// What goes in front of the lower half of each number to make its IV.
    pub(super) block: u64,
}

impl Numbers {
    /// None.
    pub(crate) const NONE: Numbers = Numbers { first: 0, count: 0, block: 0 };

    /// The next sequence number and its IV.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(u64, u64)> {
        self.count = self.count.checked_sub(1)?;
        let sequence = self.first;
        self.first = sequence.wrapping_add(1);
        Some((sequence, self.block | sequence & u64::from(u32::MAX)))
    }
}
