//! Who a worker is among all of the process: a seat that no other worker has at the same time, and the
//! count of the turns it began there.
//!
//! Some of what several workers may change is in truth changed by one. Whoever sits first says so by its
//! number, and from then on writes without locking the bus. The count of turns tells others when what
//! a worker did before is over. Seats know nothing of what is claimed from them.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};

/// Seats of a process: more than the workers of any machine. Who finds none works without claims.
const SEATS: usize = 1024;

/// What the count of turns says of a seat whose worker is between two turns, for however long.
pub(crate) const RESTING: u64 = u64::MAX;

/// A count of turns, on cache lines of its own.
#[repr(align(128))]
struct Turns(AtomicU64);

static TURNS: [Turns; SEATS] = [const { Turns(AtomicU64::new(RESTING)) }; SEATS];

/// A bit for each seat that is taken.
static TAKEN: [AtomicU64; SEATS / 64] = [const { AtomicU64::new(0) }; SEATS / 64];

/// A worker's seat; given back when it is dropped.
pub(crate) struct Seat {
    /// From 1; 0 if there was none.
    number: u16,
    turn: u64,
}

impl Seat {
    /// A free seat.
    pub(crate) fn take() -> Seat {
        for (index, word) in TAKEN.iter().enumerate() {
            let mut taken = word.load(Relaxed);
            while taken != u64::MAX {
                let bit = (!taken).trailing_zeros();
                // `Acquire`: what the last worker here did happened before.
                match word.compare_exchange_weak(taken, taken | 1 << bit, Acquire, Relaxed) {
                    Ok(_) => {
                        let number = (index * 64) as u16 + bit as u16 + 1;
                        return Seat { number, turn: 0 };
                    }
                    Err(now) => taken = now,
                }
            }
        }
        Seat { number: 0, turn: 0 }
    }

    /// Its number, from 1; 0 for a worker without a seat.
    #[inline]
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// A turn begins: all that was done in turns before is over. What others made known before they
    /// read an older count is seen in this turn.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        self.turn += 1;
        if let Some(turns) = turns(self.number) {
            turns.store(self.turn, Release);
            // The count must be out before anything of this turn is read (as in `Reader::enter`):
            // either the other reads it, or we read what the other wrote.
            fence(SeqCst);
        }
    }

    /// The worker goes away for a while, and does nothing meanwhile.
    pub(crate) fn rest(&self) {
        if let Some(turns) = turns(self.number) {
            turns.store(RESTING, Release);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.rest();
        if let Some(index) = usize::from(self.number).checked_sub(1) {
            TAKEN[index / 64].fetch_and(!(1 << (index % 64)), AcqRel);
        }
    }
}

/// The turn that the worker of a seat is in, or [`RESTING`]. Whatever it did before is over and seen.
#[cfg(test)]
fn turn_of(number: u16) -> u64 {
    // `SeqCst`, after what the caller made known before.
    fence(SeqCst);
    turns(number).map_or(RESTING, |turns| turns.load(Acquire))
}

#[inline]
fn turns(number: u16) -> Option<&'static AtomicU64> {
    TURNS.get(usize::from(number).wrapping_sub(1)).map(|turns| &turns.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_workers_have_one_seat_and_seats_come_back() {
        let seats: Vec<Seat> = (0..SEATS + 5).map(|_| Seat::take()).collect();
        let mut numbers: Vec<u16> = seats.iter().map(Seat::number).filter(|n| *n != 0).collect();
        let taken = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), taken);
        assert!(seats.last().is_some_and(|seat| seat.number() == 0), "all are taken");
        assert!(numbers.last().is_some_and(|last| usize::from(*last) <= SEATS));
        drop(seats);
        assert_ne!(Seat::take().number(), 0);
    }

    #[test]
    fn turns_are_counted_until_the_worker_rests() {
        let mut seat = Seat::take();
        seat.begin_turn();
        let first = turn_of(seat.number());
        seat.begin_turn();
        assert_eq!(turn_of(seat.number()), first + 1);
        seat.rest();
        assert_eq!(turn_of(seat.number()), RESTING);
        seat.begin_turn();
        assert_eq!(turn_of(seat.number()), first + 2);
        assert_eq!(turn_of(0), RESTING);
    }
}
