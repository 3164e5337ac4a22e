//! Whose an SA's words are, in a turn.

use super::Sa;
use crate::batch::Turn;
use crate::claim::{self, Access};
use crate::seat;

impl Sa {
    /// What the worker of this turn may do with the SA's words, until the turn is over.
    #[inline]
    pub(crate) fn access(&self, turn: &Turn<'_>) -> Access {
        claim::access(self.words().claim(), turn.seat, turn.number, seat::turn_of)
    }

    /// The same before it is known whether a packet is authentic: `None` where the words are another worker's, who is not to lose them to
    /// whoever sends something with their SPI.
    #[inline]
    pub(crate) fn access_if_free(&self, turn: &Turn<'_>) -> Option<Access> {
        claim::access_if_free(self.words().claim(), turn.seat, turn.number, seat::turn_of)
    }

    /// Makes the words everybody's, so that one who is no worker may change them. Waits for the end of
    /// their owner's turn, some microseconds; not for workers.
    pub(super) fn share(&self) {
        let access = || claim::access(self.words().claim(), 0, claim::RESTING, seat::turn_of);
        while access() != Access::Shared {
            std::thread::yield_now();
        }
    }

    /// As [`access`](Sa::access) of packets that need not be counted each by itself: whether the words are this worker's alone.
    /// `None` if they have to be, or have to wait.
    #[inline(always)]
    pub(crate) fn free_access(&self, turn: &Turn<'_>) -> Option<bool> {
        self.if_free(self.access(turn))
    }

    /// The same before it is known whether a packet is authentic, as [`access_if_free`](Sa::access_if_free).
    #[inline(always)]
    pub(crate) fn free_access_to_open(&self, turn: &Turn<'_>) -> Option<bool> {
        self.if_free(self.access_if_free(turn)?)
    }

    #[inline(always)]
    fn if_free(&self, access: Access) -> Option<bool> {
        let alone = match access {
            Access::Alone => true,
            Access::Shared => false,
            Access::Wait => return None,
        };
        (!self.counts_each(alone)).then_some(alone)
    }
}
