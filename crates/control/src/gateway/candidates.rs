//! The SAs between the same two ends, and which of them workers take.
//!
//! The order of preference is that of `xfrm_state_look_at`: an SA bound to another CPU is not looked
//! at, one of the own CPU goes before one of none, one that has not reached a soft limit before one
//! that has, and among equals the newest. (The kernel compares pairwise while it walks, so that a
//! dying own SA sometimes loses to an unbound one, by the order of installation. Here it never does,
//! and keeps the peer's CPU busy until its successor is there.)
//!
//! Which ends an SA is between is the caller's to know.

use crate::xfrm::SaId;

/// An SA as a candidate, ordered by worker, then from the worst to the best: by "has not reached a
/// soft limit", then by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// The worker that alone seals with it; [`SHARED`] for all.
    pub worker: u16,
    /// It has not reached a soft limit.
    pub is_fresh: bool,
    /// Its name.
    pub id: SaId,
    /// Its SPI.
    pub spi: u32,
}

/// The worker of an SA that is for all. It sorts last.
pub const SHARED: u16 = u16::MAX;

/// The SAs between two ends. Nearly always there is one, so one takes no memory of its own.
#[derive(Debug)]
pub enum Candidates {
    /// One.
    One(Candidate),
    /// None, or several, in order.
    #[allow(clippy::box_collection)]
    Many(Box<Vec<Candidate>>),
}

impl Default for Candidates {
    fn default() -> Self {
        Candidates::Many(Box::default())
    }
}

impl Candidates {
    /// All of them, in order.
    pub fn all(&self) -> &[Candidate] {
        match self {
            Candidates::One(one) => std::slice::from_ref(one),
            Candidates::Many(many) => many,
        }
    }

    /// Whether there are none with this SPI; 0 stands for any.
    pub fn is_empty(&self, spi: u32) -> bool {
        self.fitting(spi).next().is_none()
    }

    /// Adds an SA.
    pub fn insert(&mut self, candidate: Candidate) {
        match self {
            Candidates::Many(many) if many.is_empty() => *self = Candidates::One(candidate),
            Candidates::Many(many) => {
                let place = many.partition_point(|other| *other < candidate);
                many.insert(place, candidate);
            }
            Candidates::One(one) => {
                let mut two = vec![*one, candidate];
                two.sort_unstable();
                *self = Candidates::Many(Box::new(two));
            }
        }
    }

    /// Takes an SA out.
    pub fn remove(&mut self, candidate: Candidate) {
        match self {
            Candidates::One(one) if *one == candidate => *self = Candidates::default(),
            Candidates::One(_) => {}
            Candidates::Many(many) => {
                if let Ok(place) = many.binary_search(&candidate) {
                    many.remove(place);
                }
                if let [last] = many[..] {
                    *self = Candidates::One(last);
                }
            }
        }
    }

    /// The SA for all workers, of those with an SPI; 0 stands for any.
    pub fn shared(&self, spi: u32) -> Option<SaId> {
        let shared = self.all().iter().rev().take_while(|one| one.worker == SHARED);
        shared.into_iter().find(|one| spi == 0 || one.spi == spi).map(|one| one.id)
    }

    /// Each worker's own SA, where there is one, of those with an SPI; 0 stands for any.
    pub fn own(&self, spi: u32) -> impl Iterator<Item = (usize, SaId)> {
        let mut own = self.fitting(spi).take_while(|one| one.worker != SHARED).peekable();
        std::iter::from_fn(move || {
            let mut best = own.next()?;
            while let Some(better) = own.next_if(|next| next.worker == best.worker) {
                best = better;
            }
            Some((usize::from(best.worker), best.id))
        })
    }

    /// Those with an SPI, in order; 0 stands for any.
    pub fn fitting(&self, spi: u32) -> impl Iterator<Item = &Candidate> {
        self.all().iter().filter(move |one| spi == 0 || one.spi == spi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Install(Option<u16>, u32),
        Dying(usize),
        Remove(usize),
    }

    /// What a worker seals with, by looking at every SA as the kernel would walk over it.
    fn look_at(sas: &[Candidate], worker: u16, spi: u32) -> Option<SaId> {
        let mut best: Option<Candidate> = None;
        let usable = |one: &&Candidate| [SHARED, worker].contains(&one.worker);
        for sa in sas.iter().filter(usable).filter(|one| spi == 0 || one.spi == spi) {
            let better = match best {
                None => true,
                Some(old) if old.worker != sa.worker => sa.worker != SHARED,
                Some(old) if old.is_fresh != sa.is_fresh => sa.is_fresh,
                Some(old) => sa.id > old.id,
            };
            if better {
                best = Some(*sa);
            }
        }
        best.map(|sa| sa.id)
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (prop::option::of(0..3u16), 1..4u32).prop_map(|(own, spi)| Step::Install(own, spi)),
            2 => (0..16usize).prop_map(Step::Dying),
            3 => (0..16usize).prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn workers_take_what_a_walk_over_all_would_find(
            steps in prop::collection::vec(step(), 1..60)
        ) {
            let (mut candidates, mut twin) = (Candidates::default(), Vec::<Candidate>::new());
            for (id, step) in (0u64..).zip(steps) {
                match step {
                    Step::Install(worker, spi) => {
                        let worker = worker.unwrap_or(SHARED);
                        let new = Candidate { worker, is_fresh: true, id: SaId(id), spi };
                        candidates.insert(new);
                        twin.push(new);
                    }
                    Step::Dying(which) if !twin.is_empty() => {
                        let count = twin.len();
                        let sa = &mut twin[which % count];
                        candidates.remove(*sa);
                        sa.is_fresh = false;
                        candidates.insert(*sa);
                    }
                    Step::Remove(which) if !twin.is_empty() => {
                        candidates.remove(twin.swap_remove(which % twin.len()));
                    }
                    Step::Dying(_) | Step::Remove(_) => {}
                }
                for spi in 0..4 {
                    let own: BTreeMap<usize, SaId> = candidates.own(spi).collect();
                    for worker in 0..3u16 {
                        let found = own.get(&worker.into()).copied().or(candidates.shared(spi));
                        prop_assert_eq!(found, look_at(&twin, worker, spi));
                    }
                    let none = twin.iter().all(|sa| spi != 0 && sa.spi != spi);
                    prop_assert_eq!(candidates.is_empty(spi), none);
                }
            }
        }
    }

    #[test]
    fn one_takes_two_words() {
        assert_eq!((size_of::<Candidate>(), size_of::<Candidates>()), (16, 16));
    }
}
