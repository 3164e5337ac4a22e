//! A timer wheel: what is due in a second is found without a look at what is not.
//!
//! Seconds are digits of six bits. A deadline lies on the rim of the highest digit in which it differs
//! from now, in the slot of that digit; when the wheel comes to that slot, what is in it moves to a
//! smaller rim, at last to that of seconds (Varghese and Lauck, 1987; scheme 7). Setting a deadline
//! costs the same whatever waits.
//!
//! A deadline is not taken back: whoever it was for compares it with the one that counts when it
//! strikes. Where most of what waits is void that way, the caller may [`clear`](Wheel::clear) the
//! wheel and set all anew.

/// Bits of a digit.
const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
/// Digits of a second. Whatever is further away than all of them, 2000 years, waits on the last rim.
const RIMS: usize = 6;
const HORIZON: u64 = 1 << (DIGIT_BITS * RIMS as u32);

/// A name, and the second in which it is due.
type Due = (u64, u64);

/// The wheel.
#[derive(Debug)]
pub(super) struct Wheel {
    /// The second up to which all was taken.
    now: u64,
    rims: [Vec<Vec<Due>>; RIMS],
    /// What was due already when it was set.
    overdue: Vec<Due>,
    len: usize,
}

impl Default for Wheel {
    fn default() -> Self {
        let rim = || (0..SLOTS).map(|_| Vec::new()).collect();
        Wheel { now: 0, rims: std::array::from_fn(|_| rim()), overdue: Vec::new(), len: 0 }
    }
}

fn slot_of(second: u64, rim: usize) -> usize {
    (second >> (DIGIT_BITS * rim as u32)) as usize % SLOTS
}

impl Wheel {
    /// Deadlines that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        *self = Wheel { now: self.now, ..Wheel::default() };
    }

    /// Sets a deadline.
    pub(super) fn set(&mut self, second: u64, name: u64) {
        self.len += 1;
        self.put(second, name);
    }

    fn put(&mut self, second: u64, name: u64) {
        if second <= self.now {
            self.overdue.push((second, name));
            return;
        }
        // What is beyond the horizon comes back from there, and is put anew then.
        let near = second.min(self.now.saturating_add(HORIZON - 1));
        let rim = ((near ^ self.now).ilog2() / DIGIT_BITS) as usize;
        match self.rims.get_mut(rim) {
            Some(slots) => slots[slot_of(near, rim)].push((second, name)),
            // The digits above the last have turned: the last rim is asked when it comes round.
            None => self.rims[RIMS - 1][slot_of(near, RIMS - 1)].push((second, name)),
        }
    }

    /// Turns the wheel to a second, and takes what was due until then, in the order of the seconds.
    pub(super) fn take_until(&mut self, now: u64) -> Vec<Due> {
        if now < self.now {
            self.turn_back(now);
        }
        let mut due = std::mem::take(&mut self.overdue);
        if now > self.now {
            self.turn(now, &mut due);
        }
        self.len -= due.len();
        due.sort_unstable();
        due
    }

    /// The clock went back: what was due is not any more, and all that waits is put where it belongs now. It
    /// looks at everything, once for each time that somebody sets the clock.
    fn turn_back(&mut self, now: u64) {
        self.now = now;
        let mut waiting = std::mem::take(&mut self.overdue);
        self.rims.iter_mut().flatten().for_each(|slot| waiting.append(slot));
        waiting.into_iter().for_each(|(second, name)| self.put(second, name));
    }

    /// Empties every slot that the wheel passes on its way, on each rim at most once round.
    fn turn(&mut self, now: u64, due: &mut Vec<Due>) {
        let from = std::mem::replace(&mut self.now, now);
        let mut waiting = Vec::new();
        for (rim, slots) in self.rims.iter_mut().enumerate() {
            let shift = DIGIT_BITS * rim as u32;
            let steps = ((now >> shift) - (from >> shift)).min(SLOTS as u64);
            for step in 0..steps {
                waiting.append(&mut slots[((now >> shift) - step) as usize % SLOTS]);
            }
        }
        for (second, name) in waiting {
            if second <= now {
                due.push((second, name));
            } else {
                self.put(second, name);
            }
        }
    }

    /// The earliest deadline. It looks at all that waits.
    #[cfg(test)]
    pub(super) fn earliest(&self) -> Option<u64> {
        let waiting = self.rims.iter().flatten().flatten().chain(&self.overdue);
        waiting.map(|(second, _)| *second).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Debug)]
    enum Step {
        Set(u64),
        Turn(u64),
        Back(u64),
    }

    /// Distances of every size, from nothing to beyond the horizon.
    fn distance() -> impl Strategy<Value = u64> {
        (0..44u32, any::<u64>()).prop_map(|(bits, any)| any & ((1 << bits) - 1))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => distance().prop_map(Step::Set),
            4 => distance().prop_map(Step::Turn),
            1 => distance().prop_map(Step::Back),
        ]
    }

    proptest! {
        #[test]
        fn strikes_when_a_sorted_list_would(
            start in prop_oneof![Just(0), Just(1_700_000_000u64), distance()],
            steps in prop::collection::vec(step(), 1..120),
        ) {
            let (mut wheel, mut twin) = (Wheel::default(), BTreeSet::new());
            let mut now = start;
            wheel.take_until(now);
            for (name, step) in (0..).zip(steps) {
                match step {
                    Step::Set(distance) => {
                        wheel.set(now + distance, name);
                        twin.insert((now + distance, name));
                    }
                    Step::Turn(_) | Step::Back(_) => {
                        now = match step {
                            Step::Back(distance) => now.saturating_sub(distance),
                            Step::Set(distance) | Step::Turn(distance) => now + distance,
                        };
                        let later = twin.split_off(&(now + 1, 0));
                        let due: Vec<Due> = std::mem::replace(&mut twin, later).into_iter().collect();
                        prop_assert_eq!(wheel.take_until(now), due);
                    }
                }
                prop_assert_eq!(wheel.len(), twin.len());
                prop_assert_eq!(wheel.earliest(), twin.first().map(|(second, _)| *second));
            }
        }
    }

    #[test]
    fn a_deadline_of_the_past_is_due_at_once_and_a_clock_that_goes_back_waits() {
        let mut wheel = Wheel::default();
        assert!(wheel.take_until(100).is_empty());
        wheel.set(50, 1);
        wheel.set(101, 2);
        assert_eq!(wheel.take_until(90), [(50, 1)]);
        wheel.set(95, 4);
        assert!(wheel.take_until(94).is_empty(), "it was not due in the time that is taken back");
        assert_eq!(wheel.take_until(101), [(95, 4), (101, 2)]);
        wheel.set(u64::MAX, 3);
        assert!(wheel.take_until(1 << 50).is_empty());
        assert_eq!((wheel.len(), wheel.earliest()), (1, Some(u64::MAX)));
        wheel.clear();
        assert_eq!(wheel.len(), 0);
    }
}
