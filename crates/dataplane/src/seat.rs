//! Who a worker is among all of the process: a seat that no other worker has at the same time, and the
//! count of the turns it began there.
//!
//! Some of what several workers may change is in truth changed by one. Whoever sits first says so by its
//! number, and from then on writes without locking the bus. The count of turns tells others when what
//! a worker did before is over. Seats know nothing of what is claimed from them.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::claim::{self, RESTING};

/// Seats of a process: more than the workers of any machine. Who finds none works without claims.
const SEATS: usize = 1024;

/// The turns of a seat, on cache lines of their own.
#[repr(align(128))]
struct Turns {
    /// The one that the worker is in, or [`RESTING`].
    current: AtomicU64,
    /// How many workers of the past had here.
    past: AtomicU64,
}

impl Turns {
    const fn none() -> Turns {
        Turns { current: AtomicU64::new(RESTING), past: AtomicU64::new(0) }
    }
}

static TURNS: [Turns; SEATS] = [const { Turns::none() }; SEATS];

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
                        let turn = turns(number).map_or(0, |turns| turns.past.load(Relaxed));
                        return Seat { number, turn };
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

    /// A turn begins; its number, which no other turn of this seat has. What others made known before
    /// they read an older one is seen in it.
    #[inline]
    pub(crate) fn begin_turn(&mut self) -> u64 {
        self.turn += 1;
        if let Some(turns) = turns(self.number) {
            claim::begin_turn(&turns.current, self.turn);
        }
        self.turn
    }

    /// The turn is over: all that was done in it is seen by whoever reads this.
    #[inline]
    pub(crate) fn end_turn(&self) {
        if let Some(turns) = turns(self.number) {
            claim::end_turn(&turns.current);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.end_turn();
        if let Some(turns) = turns(self.number) {
            turns.past.store(self.turn, Relaxed);
            let index = usize::from(self.number) - 1;
            TAKEN[index / 64].fetch_and(!(1 << (index % 64)), AcqRel);
        }
    }
}

/// The turn that the worker of a seat is in, or [`RESTING`]. Whatever it did before is over and seen.
pub(crate) fn turn_of(number: u16) -> u64 {
    turns(number).map_or(RESTING, |turns| claim::current_turn(&turns.current))
}

#[inline]
fn turns(number: u16) -> Option<&'static Turns> {
    TURNS.get(usize::from(number).wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// Held by who takes all seats, and by who needs one.
    static ALL: Mutex<()> = Mutex::new(());

    #[test]
    fn no_two_workers_have_one_seat_and_seats_come_back() {
        let _all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn turns_are_numbered_and_their_ends_are_seen() {
        let _all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seat = Seat::take();
        let first = seat.begin_turn();
        assert_eq!(turn_of(seat.number()), first);
        assert_eq!(seat.begin_turn(), first + 1);
        seat.end_turn();
        assert_eq!(turn_of(seat.number()), RESTING);
        assert_eq!(turn_of(0), RESTING);
    }

    #[test]
    fn whoever_sits_down_next_goes_on_counting() {
        let _all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        // Tests elsewhere take seats, too, so the same one comes back only sooner or later.
        let mut seat = Seat::take();
        let (number, last) = (seat.number(), seat.begin_turn());
        drop(seat);
        let mut taken = Vec::new();
        for _ in 0..SEATS {
            let mut seat = Seat::take();
            if seat.number() == number {
                assert!(seat.begin_turn() > last);
                return;
            }
            taken.push(seat);
        }
    }
}
