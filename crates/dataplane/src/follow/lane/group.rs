//! Packets of a batch that are the same to who is asked about them: their groups.

use crate::batch::BATCH_PACKETS;

/// One of the groups of a batch, which are numbered by family.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Group(u8);

/// That a group is of IPv6.
const V6: u8 = 1 << 7;

const _: () = assert!(BATCH_PACKETS < V6 as usize);

impl Group {
    /// The first.
    pub(super) const FIRST: Group = Group(0);

    /// The last of so many.
    #[inline(always)]
    pub(super) fn last_of(groups: usize) -> Group {
        Group((groups as u8).wrapping_sub(1))
    }

    /// The last of so many of IPv6.
    #[inline(always)]
    pub(super) fn last_of_v6(groups: usize) -> Group {
        Group((groups as u8).wrapping_sub(1) | V6)
    }

    /// As a number of eight bits, which others may be put beside.
    #[inline(always)]
    pub(super) fn code(self) -> u16 {
        self.0.into()
    }

    /// The group of such a number, whatever is beside it.
    #[inline(always)]
    pub(super) fn of(code: u16) -> Group {
        Group(code as u8)
    }

    #[inline(always)]
    pub(super) fn is_v6(self) -> bool {
        self.0 & V6 != 0
    }

    /// Its number among those of its family.
    #[inline(always)]
    pub(super) fn number(self) -> usize {
        usize::from(self.0 & !V6)
    }
}
