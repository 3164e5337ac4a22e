//! A number for each policy, by which a cache may remember it.

use std::sync::Arc;

use crate::array::Array;
use crate::policy::Policy;
use crate::table::Table;

#[derive(Clone, Default)]
enum Place {
    /// Never used.
    #[default]
    Empty,
    Policy(Arc<Policy>),
    /// Free; and the next number that is, or 0.
    Free(u32),
}

/// A version of the policies by their numbers, which begin at 1.
#[derive(Clone, Default)]
pub(super) struct Numbers {
    places: Array<Place>,
    /// By the policies' own [`id`](Policy::id).
    numbers: Table<u64, u32, 4>,
    free: u32,
    made: u32,
}

impl Numbers {
    /// The policy of a number.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Policy> {
        match self.places.get(number)? {
            Place::Policy(policy) => Some(policy),
            Place::Empty | Place::Free(_) => None,
        }
    }

    /// The number of a policy that has one, or 0.
    pub(super) fn of(&self, policy: &Policy) -> u32 {
        self.numbers.get(&policy.id()).copied().unwrap_or(0)
    }

    /// A number for a policy.
    pub(super) fn take(&mut self, policy: Arc<Policy>) -> u32 {
        let number = match self.places.get(self.free) {
            Some(Place::Free(next)) => std::mem::replace(&mut self.free, *next),
            _ => {
                self.made += 1;
                self.made
            }
        };
        self.numbers.insert(policy.id(), number);
        self.places.set(number, Place::Policy(policy));
        number
    }

    /// A policy needs its number no more.
    pub(super) fn give_back(&mut self, policy: &Policy) {
        let Some(number) = self.numbers.remove(&policy.id()) else { return };
        self.places.set(number, Place::Free(self.free));
        self.free = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Direction, PolicyConfig};
    use crate::prefix::Family;
    use crate::selector::Selector;

    #[test]
    fn numbers_are_given_again_and_old_versions_keep_theirs() {
        let policy = |index| {
            let selector = Selector::any(Family::V4);
            Arc::new(Policy::new(PolicyConfig::bypass(index, Direction::Out, selector)))
        };
        let index = |numbers: &Numbers, number| numbers.get(number).map(|one| one.config().index);
        let mut numbers = Numbers::default();
        let [first, second, third] = [10, 20, 30].map(policy);
        let taken = [&first, &second, &third].map(|one| numbers.take(one.clone()));
        assert_eq!(taken, [1, 2, 3]);
        assert_eq!([&first, &second].map(|one| numbers.of(one)), [1, 2]);
        let before = numbers.clone();
        numbers.give_back(&first);
        numbers.give_back(&third);
        assert_eq!([&first, &second].map(|one| numbers.of(one)), [0, 2]);
        assert_eq!([40, 50, 60].map(|one| numbers.take(policy(one))), [3, 1, 4]);
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|one| index(&numbers, one)),
            [None, Some(50), Some(20), Some(40), Some(60), None]
        );
        assert_eq!(
            [1, 2, 3, 4].map(|one| index(&before, one)),
            [Some(10), Some(20), Some(30), None]
        );
    }
}
