//! A number for each policy, by which a cache may remember it.
//!
//! The policy itself has its number. That it is this version's the place of that number says: a policy
//! may have been given another since, by a later version or by another database.

use std::sync::Arc;

use crate::array::Array;
use crate::cpu::Cache;
use crate::policy::Policy;

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

    /// Asks for the memory that [`get`](Numbers::get) will read.
    #[inline]
    pub(super) fn prefetch(&self, number: u32, cache: Cache) {
        self.places.prefetch(number, cache);
    }

    /// The number of a policy that has one, or 0.
    pub(super) fn of(&self, policy: &Policy) -> u32 {
        let number = policy.number();
        if self.get(number).is_some_and(|numbered| std::ptr::eq(numbered, policy)) {
            number
        } else {
            0
        }
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
        policy.set_number(number);
        self.places.set(number, Place::Policy(policy));
        number
    }

    /// A policy needs its number no more. One that another database has numbered since keeps its place.
    pub(super) fn give_back(&mut self, policy: &Policy) {
        let number = self.of(policy);
        if number == 0 {
            return;
        }
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

    #[test]
    fn a_policy_of_two_databases_has_the_number_of_the_last() {
        let selector = Selector::any(Family::V4);
        let policy =
            |index| Arc::new(Policy::new(PolicyConfig::bypass(index, Direction::Out, selector)));
        let (shared, other) = (policy(1), policy(2));
        let (mut one, mut two) = (Numbers::default(), Numbers::default());
        assert_eq!(one.take(shared.clone()), 1);
        two.take(other.clone());
        assert_eq!(two.take(shared.clone()), 2);
        // Without a number a cache asks again; another's number would be another policy.
        assert_eq!([one.of(&shared), two.of(&shared), two.of(&other)], [0, 2, 1]);
        one.give_back(&shared);
        two.give_back(&shared);
        assert_eq!(two.of(&shared), 0);
    }
}
