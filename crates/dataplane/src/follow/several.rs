//! Trails of several tunnels, found by a number that packets show.

use arrayvec::ArrayVec;

/// As many trails as there may be: with more tunnels, too few packets of a batch are of any one.
pub(super) const TRAILS: usize = 16;

/// Places for them, so many that each has one of its own.
const PLACES: usize = 256;

/// Odd, and with bits as if drawn: 2⁶⁴ over the golden ratio.
pub(super) const MIXER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Multipliers that are tried until no two trails have the same place. For 16 trails each is good enough in five of eight cases.
const TRIES: u64 = 32;

/// Trails, each with a key of its own.
pub(super) struct Several<T> {
    keys: ArrayVec<u64, TRAILS>,
    trails: ArrayVec<T, TRAILS>,
    /// What a key is multiplied with: the highest bits are its place.
    multiplier: u64,
    /// Of each place the number of a trail, or any where there is none.
    places: [u8; PLACES],
    /// Which is the next to make room.
    oldest: usize,
    /// Trails for which none has made room.
    refused: u32,
}

/// Trails that are refused for each that is let in where there is no room: to learn of one takes long.
const REFUSED: u32 = 31;

impl<T> Several<T> {
    pub(super) fn none() -> Several<T> {
        Several {
            keys: ArrayVec::new(),
            trails: ArrayVec::new(),
            multiplier: MIXER,
            places: [0; PLACES],
            oldest: 0,
            refused: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.trails.is_empty()
    }

    /// The number of the trail with a key.
    #[inline(always)]
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        let number = usize::from(self.places[place(key, self.multiplier)]);
        (self.keys.get(number) == Some(&key)).then_some(number)
    }

    /// The trail with a number that was found.
    #[inline(always)]
    pub(super) fn get(&self, number: usize) -> Option<&T> {
        self.trails.get(number)
    }

    /// The same, to be changed.
    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.trails.get_mut(number)
    }

    /// Whether one may be added.
    pub(super) fn has_room(&mut self) -> bool {
        if !self.trails.is_full() {
            return true;
        }
        self.refused = (self.refused + 1) % (REFUSED + 1);
        self.refused == 0
    }

    /// Adds a trail; its number. The one with that key makes room, or the oldest if there is no room.
    pub(super) fn put(&mut self, key: u64, trail: T) -> usize {
        let number = self.keys.iter().position(|other| *other == key);
        let number = number.or_else(|| self.keys.is_full().then(|| self.next_oldest()));
        match number {
            Some(number) => (self.keys[number], self.trails[number]) = (key, trail),
            None => {
                self.keys.push(key);
                self.trails.push(trail);
            }
        }
        self.place_all();
        number.unwrap_or(self.trails.len() - 1)
    }

    fn next_oldest(&mut self) -> usize {
        self.oldest = (self.oldest + 1) % TRAILS;
        self.oldest
    }

    /// Gives each trail a place; where the last try fails, too, some have none.
    fn place_all(&mut self) {
        for nth in 0..TRIES {
            self.multiplier = MIXER.wrapping_mul(2 * nth + 1);
            let mut taken = [false; PLACES];
            let mut is_good = true;
            for (number, key) in self.keys.iter().enumerate() {
                let place = place(*key, self.multiplier);
                is_good &= !std::mem::replace(&mut taken[place], true);
                self.places[place] = number as u8;
            }
            if is_good {
                return;
            }
        }
    }
}

/// What each trail that packets of a batch follow does for them: its share.
pub(super) struct Shares<S> {
    pub(super) all: ArrayVec<S, TRAILS>,
    /// Of each trail which its share is.
    of_trails: [u8; TRAILS],
}

/// Of a trail that was not asked for its share yet, and of one that has none in this batch.
const UNKNOWN: u8 = u8::MAX;
const NOTHING: u8 = u8::MAX - 1;

impl<S> Shares<S> {
    pub(super) fn none() -> Shares<S> {
        Shares { all: ArrayVec::new(), of_trails: [UNKNOWN; TRAILS] }
    }

    /// The share of the trail with a number, and the share's; when first asked, it is made, if it can be, beside those that are there.
    #[inline(always)]
    pub(super) fn of(
        &mut self,
        trail: usize,
        make: impl FnOnce(&[S]) -> Option<S>,
    ) -> Option<(u8, &mut S)> {
        let share = match self.of_trails[trail] {
            UNKNOWN => self.add(trail, make),
            share => share,
        };
        Some((share, self.all.get_mut(usize::from(share))?))
    }

    /// Adds a trail's share; its number.
    #[inline(never)]
    fn add(&mut self, trail: usize, make: impl FnOnce(&[S]) -> Option<S>) -> u8 {
        let share = make(&self.all);
        let number = if share.is_some() { self.all.len() as u8 } else { NOTHING };
        self.all.extend(share);
        self.of_trails[trail] = number;
        number
    }

    /// The trail that has a share.
    pub(super) fn trail(&self, share: u8) -> Option<usize> {
        self.of_trails.iter().position(|other| *other == share)
    }
}

/// How many of the packets that followed so many trails it was worth it for. For few by each, what is done once for a trail is more than
/// it saves; and the fewer there are of others, the more does each of them cost.
pub(super) fn worth(packets: usize, trails: usize, others: usize) -> usize {
    let least = if others == 0 { ALONE } else { AMONG_OTHERS };
    if packets >= least * trails { packets } else { 0 }
}

/// Packets for which a trail is worth it.
const ALONE: usize = 3;
const AMONG_OTHERS: usize = 6;

#[inline(always)]
fn place(key: u64, multiplier: u64) -> usize {
    (key.wrapping_mul(multiplier) >> (u64::BITS - PLACES.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Keys as they are, few bits of which differ, in any place.
    fn key() -> impl Strategy<Value = u64> {
        (0u64..40, prop::sample::select(vec![0, 8, 24, 32, 56])).prop_map(|(n, at)| n << at)
    }

    proptest! {
        /// Whatever is found is what was put there last; all are found as long as there is room.
        #[test]
        fn what_was_put_is_found_by_its_key(keys in prop::collection::vec(key(), 1..60)) {
            let (mut several, mut twin) = (Several::none(), BTreeMap::new());
            for (at, key) in keys.into_iter().enumerate() {
                several.put(key, at);
                twin.insert(key, at);
                let find = |key| several.find(key).and_then(|number| several.get(number));
                prop_assert_eq!(find(key), Some(&at));
                let mut found = 0;
                for (key, value) in &twin {
                    prop_assert!(find(*key).is_none_or(|other| other == value), "{key:#x}");
                    found += usize::from(find(*key).is_some());
                }
                prop_assert_eq!(found, twin.len().min(TRAILS));
            }
        }
    }
}
