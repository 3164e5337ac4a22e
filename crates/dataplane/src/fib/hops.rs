//! The next hops that routes share.

use std::sync::Arc;

use super::NextHop;
use crate::table::Table;

/// Next hops in one piece of memory, copied together: 5 KiB. A thousand of them are four pieces, which a
/// look-up finds in one step.
const HOPS: usize = 256;

/// The next hops in use, each once.
#[derive(Clone, Default)]
pub(super) struct Hops {
    by_number: Vec<Arc<[Option<NextHop>; HOPS]>>,
    /// The number of each, and how many routes have it.
    numbers: Table<NextHop, (u32, u32)>,
    free: Vec<u32>,
}

impl Hops {
    /// The one with a number.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<NextHop> {
        self.by_number.get(number as usize / HOPS)?[number as usize % HOPS]
    }

    fn set(&mut self, number: u32, hop: Option<NextHop>) {
        let piece = number as usize / HOPS;
        while self.by_number.len() <= piece {
            self.by_number.push(Arc::new([None; HOPS]));
        }
        Arc::make_mut(&mut self.by_number[piece])[number as usize % HOPS] = hop;
    }

    /// The number of one that a route more has.
    pub(super) fn take(&mut self, hop: NextHop) -> u32 {
        if let Some(&(number, users)) = self.numbers.get(&hop) {
            self.numbers.insert(hop, (number, users + 1));
            return number;
        }
        let number = self.free.pop().unwrap_or(self.numbers.len() as u32);
        self.set(number, Some(hop));
        self.numbers.insert(hop, (number, 1));
        number
    }

    /// A route less has it.
    pub(super) fn leave(&mut self, hop: &NextHop) {
        let Some(&(number, users)) = self.numbers.get(hop) else { return };
        if users > 1 {
            self.numbers.insert(*hop, (number, users - 1));
        } else {
            self.numbers.remove(hop);
            self.set(number, None);
            self.free.push(number);
        }
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// See [`Table::settle`].
    pub(super) fn settle(&mut self) -> bool {
        self.numbers.settle()
    }
}
