//! Who may change words that several workers share: one of them alone, or all of them together.
//!
//! An SA's numbers and its window are nearly always one worker's. It then loads and stores them; a locked
//! instruction for each packet would cost as much as the rest of its headers. The first who comes claims
//! them. When another comes, they become everybody's for good, and everybody uses atomic operations:
//!
//! ```text
//!  free ──first──► owned by A ──B comes──► A is to leave ──A's turn is over──► shared
//!                       A: alone                A: alone, in that turn          all: atomically
//!                                               B: must wait
//! ```
//!
//! A permission lasts until the turn is over in which it was given. What lies between: B says that A is to
//! leave, *then* reads in which turn A is; A begins a turn, *then* reads whether it is to leave; both
//! with a fence between. So B has either read A's turn and waits for its end, or A reads that it is to
//! leave, and leaves. `interleavings` tries every order of steps.
//!
//! Nobody blocks here: who must wait keeps its packets and asks again in its next turn.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release, SeqCst};

use crate::sync::{AtomicU64, fence};

/// What a worker may do with the words until its turn is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Load and store them: nobody else writes.
    Alone,
    /// Change them with atomic operations.
    Shared,
    /// Nothing yet: their owner is about to leave.
    Wait,
}

/// A turn that is none: the worker is between two of them.
pub const RESTING: u64 = u64::MAX;

/// A turn begins, which the word of its seat says from now on. What others made known before they read an older one is seen in it.
#[inline]
pub fn begin_turn(current: &AtomicU64, turn: u64) {
    current.store(turn, Release);
    // The number must be out before anything of this turn is read (as in `Reader::enter`):
    // either the other reads it, or we read what the other wrote.
    fence(SeqCst);
}

/// The turn is over: all that was done in it is seen by whoever reads this.
#[inline]
pub fn end_turn(current: &AtomicU64) {
    current.store(RESTING, Release);
}

/// The turn that the word of a seat says, or [`RESTING`]. Whatever its worker did before is over and seen.
#[inline]
pub fn current_turn(current: &AtomicU64) -> u64 {
    current.load(Acquire)
}

/// Nobody came yet.
const FREE: u64 = 0;

/// For good.
const SHARED: u64 = u64::MAX;

/// The owner's seat is in the lowest bits; then, if it is to leave, the next bit; then, once somebody has
/// read it, the turn in which it was, plus one.
const SEAT_BITS: u32 = 16;

const LEAVING: u64 = 1 << SEAT_BITS;

const TURN_SHIFT: u32 = SEAT_BITS + 1;

/// What `word` allows the worker of a seat that is in `turn`. Turns of a seat never repeat, also not with
/// another worker. A `seat` of 0 is nobody's, and never alone. `turn_of` reads a seat's turn.
#[inline]
pub fn access(word: &AtomicU64, seat: u16, turn: u64, turn_of: impl Fn(u16) -> u64) -> Access {
    // `Acquire`: what the last owner did happened before.
    match word.load(Acquire) {
        owner if owner == u64::from(seat) && seat != 0 => Access::Alone,
        SHARED => Access::Shared,
        other => contend(word, other, seat, turn, turn_of),
    }
}

/// As [`access`], for who is not sure yet that there is anything to change: `None` where that would take the words from another
/// worker.
#[inline]
pub fn access_if_free(
    word: &AtomicU64,
    seat: u16,
    turn: u64,
    turn_of: impl Fn(u16) -> u64,
) -> Option<Access> {
    match word.load(Acquire) {
        owner if owner == u64::from(seat) && seat != 0 => Some(Access::Alone),
        SHARED => Some(Access::Shared),
        other => contend_if_free(word, other, seat, turn, turn_of),
    }
}

#[cold]
fn contend_if_free(
    word: &AtomicU64,
    seen: u64,
    seat: u16,
    turn: u64,
    turn_of: impl Fn(u16) -> u64,
) -> Option<Access> {
    let is_anothers = seen != FREE && seen & (LEAVING - 1) != u64::from(seat);
    (!is_anothers).then(|| contend(word, seen, seat, turn, turn_of))
}

#[cold]
fn contend(
    word: &AtomicU64,
    mut seen: u64,
    seat: u16,
    turn: u64,
    turn_of: impl Fn(u16) -> u64,
) -> Access {
    let own = u64::from(seat);
    loop {
        let owner = seen & (LEAVING - 1);
        let recorded = seen >> TURN_SHIFT;
        let current = turn.wrapping_add(1) & (u64::MAX >> TURN_SHIFT);
        let (next, access) = match seen {
            SHARED => return Access::Shared,
            FREE if seat == 0 => (SHARED, Some(Access::Shared)),
            FREE => (own, Some(Access::Alone)),
            _ if seen & LEAVING == 0 && owner == own => return Access::Alone,
            _ if seen & LEAVING == 0 => (seen | LEAVING, None),
            // To leave, in this turn still alone: whoever is to come waits for the turn's end.
            _ if owner == own && recorded == current => return Access::Alone,
            _ if owner == own && recorded == 0 => {
                (seen | current << TURN_SHIFT, Some(Access::Alone))
            }
            // To leave since a turn before, so nothing was allowed in this one.
            _ if owner == own => (SHARED, Some(Access::Shared)),
            _ => {
                fence(SeqCst);
                match turn_of(owner as u16) {
                    RESTING => (SHARED, Some(Access::Shared)),
                    now => {
                        let now = now.wrapping_add(1) & (u64::MAX >> TURN_SHIFT);
                        match recorded {
                            0 => (seen | now << TURN_SHIFT, Some(Access::Wait)),
                            _ if recorded == now => return Access::Wait,
                            _ => (SHARED, Some(Access::Shared)),
                        }
                    }
                }
            }
        };
        match word.compare_exchange(seen, next, AcqRel, Acquire) {
            Ok(_) => match access {
                Some(access) => return access,
                None => seen = next,
            },
            Err(now) => seen = now,
        }
    }
}

#[cfg(test)]
#[path = "claim/tests.rs"]
mod tests;
