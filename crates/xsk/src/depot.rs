//! Where pools leave the frames that they have too many of, for those that have too few.
//!
//! Frames wander: a worker receives into its own, and whoever reaps the queue by which they left gets
//! them back. Where that is always the same other one, the first would run dry. A bounded ring of chunk
//! numbers between them all, after Vyukov: each cell has a ticket that says whose turn it is, for the
//! next put or the next get. Nobody waits; who meets a cell that is under way is refused.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Chunk numbers that belong to no pool.
#[derive(Debug)]
pub(crate) struct Depot {
    /// A power of two.
    cells: Box<[Cell]>,
    puts: AtomicU64,
    gets: AtomicU64,
}

#[derive(Debug)]
struct Cell {
    /// The index of the put that may fill it, or one more than the put that has filled it.
    ticket: AtomicU64,
    chunk: AtomicU64,
}

impl Depot {
    /// A depot with room for every one of `chunks` chunks.
    pub(crate) fn new(chunks: usize) -> Depot {
        let cell = |index| Cell { ticket: AtomicU64::new(index), chunk: AtomicU64::new(0) };
        let cells = (0..chunks.next_power_of_two() as u64).map(cell).collect();
        Depot { cells, puts: AtomicU64::new(0), gets: AtomicU64::new(0) }
    }

    fn cell(&self, index: u64) -> &Cell {
        &self.cells[index as usize & (self.cells.len() - 1)]
    }

    /// Leaves a chunk; `false` if its cell is still being emptied.
    pub(crate) fn put(&self, chunk: u32) -> bool {
        let mut index = self.puts.load(Relaxed);
        loop {
            let cell = self.cell(index);
            // `Acquire`: the get that emptied the cell is over.
            let ticket = cell.ticket.load(Acquire);
            if ticket < index {
                return false;
            }
            if ticket > index {
                index = self.puts.load(Relaxed);
                continue;
            }
            match self.puts.compare_exchange_weak(index, index + 1, Relaxed, Relaxed) {
                Ok(_) => {
                    cell.chunk.store(chunk.into(), Relaxed);
                    cell.ticket.store(index + 1, Release);
                    return true;
                }
                Err(seen) => index = seen,
            }
        }
    }

    /// Takes the oldest chunk; `None` if there is none, or its cell is still being filled.
    pub(crate) fn get(&self) -> Option<u32> {
        let mut index = self.gets.load(Relaxed);
        loop {
            let cell = self.cell(index);
            // `Acquire`: the chunk that was left there.
            let ticket = cell.ticket.load(Acquire);
            if ticket < index + 1 {
                return None;
            }
            if ticket > index + 1 {
                index = self.gets.load(Relaxed);
                continue;
            }
            match self.gets.compare_exchange_weak(index, index + 1, Relaxed, Relaxed) {
                Ok(_) => {
                    let chunk = cell.chunk.load(Relaxed) as u32;
                    // Free for the put that comes round next.
                    cell.ticket.store(index + self.cells.len() as u64, Release);
                    return Some(chunk);
                }
                Err(seen) => index = seen,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_comes_out_in_order_and_no_more_than_fits() {
        let depot = Depot::new(3);
        assert_eq!(depot.get(), None);
        for round in 0..5 {
            assert!((0..4).all(|chunk| depot.put(round * 4 + chunk)));
            assert!(!depot.put(99), "four cells");
            for chunk in 0..4 {
                assert_eq!(depot.get(), Some(round * 4 + chunk));
            }
            assert_eq!(depot.get(), None);
        }
    }

    #[test]
    fn threads_lose_and_double_nothing() {
        const CHUNKS: u32 = 64;
        let depot = Depot::new(CHUNKS as usize);
        assert!((0..CHUNKS).all(|chunk| depot.put(chunk)));
        let held: Vec<AtomicU64> = (0..CHUNKS).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        let Some(chunk) = depot.get() else { continue };
                        let place = &held[chunk as usize];
                        assert_eq!(place.fetch_add(1, Relaxed), 0, "two have it");
                        place.fetch_sub(1, Relaxed);
                        while !depot.put(chunk) {
                            std::hint::spin_loop();
                        }
                    }
                });
            }
        });
        let mut left: Vec<u32> = std::iter::from_fn(|| depot.get()).collect();
        left.sort_unstable();
        assert!(left.into_iter().eq(0..CHUNKS));
    }
}
