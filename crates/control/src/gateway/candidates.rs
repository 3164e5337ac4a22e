//! The SAs that fit one slot, and which of them workers take.
//!
//! The order of preference is that of `xfrm_state_look_at`: an SA bound to another CPU is not looked
//! at, one of the own CPU goes before one of none, one that has not reached a soft limit before one
//! that has, and among equals the newest. (The kernel compares pairwise while it walks, so that a
//! dying own SA sometimes loses to an unbound one, by the order of installation. Here it never does,
//! and keeps the peer's CPU busy until its successor is there.)
//!
//! What fits a slot is decided by the caller.

use std::collections::{BTreeMap, BTreeSet};

use crate::xfrm::SaId;

/// SAs from the worst to the best: by "has not reached a soft limit", then by age.
type Ranked = BTreeSet<(bool, SaId)>;

/// The SAs that fit one slot.
#[derive(Debug, Default)]
pub struct Candidates {
    shared: Ranked,
    /// By worker.
    own: BTreeMap<usize, Ranked>,
}

impl Candidates {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.shared.is_empty() && self.own.is_empty()
    }

    /// Adds an SA, of one worker or for all.
    pub fn insert(&mut self, id: SaId, dying: bool, worker: Option<usize>) {
        let ranked = match worker {
            Some(worker) => self.own.entry(worker).or_default(),
            None => &mut self.shared,
        };
        ranked.insert((!dying, id));
    }

    /// Takes an SA out.
    pub fn remove(&mut self, id: SaId, dying: bool, worker: Option<usize>) {
        let Some(worker) = worker else {
            self.shared.remove(&(!dying, id));
            return;
        };
        if let Some(ranked) = self.own.get_mut(&worker) {
            ranked.remove(&(!dying, id));
            if ranked.is_empty() {
                self.own.remove(&worker);
            }
        }
    }

    /// The SA for all workers.
    pub fn shared(&self) -> Option<SaId> {
        best(&self.shared)
    }

    /// Each worker's own SA, where there is one.
    pub fn own(&self) -> impl Iterator<Item = (usize, SaId)> {
        self.own.iter().filter_map(|(worker, ranked)| Some((*worker, best(ranked)?)))
    }
}

fn best(ranked: &Ranked) -> Option<SaId> {
    ranked.last().map(|(_, id)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An SA as the kernel would walk over it.
    #[derive(Clone, Copy, Debug)]
    struct Twin {
        id: u64,
        dying: bool,
        worker: Option<usize>,
    }

    #[derive(Clone, Debug)]
    enum Step {
        Install(Option<usize>),
        Dying(usize),
        Remove(usize),
    }

    /// What a worker seals with, by looking at every SA.
    fn look_at(sas: &[Twin], worker: usize) -> Option<u64> {
        let mut best: Option<Twin> = None;
        for sa in sas.iter().filter(|sa| sa.worker.is_none() || sa.worker == Some(worker)) {
            let better = match best {
                None => true,
                Some(old) if old.worker != sa.worker => sa.worker.is_some(),
                Some(old) if old.dying != sa.dying => !sa.dying,
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
            4 => prop::option::of(0..3usize).prop_map(Step::Install),
            2 => (0..16usize).prop_map(Step::Dying),
            3 => (0..16usize).prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn workers_take_what_a_walk_over_all_would_find(
            steps in prop::collection::vec(step(), 1..60)
        ) {
            let (mut candidates, mut twin) = (Candidates::default(), Vec::<Twin>::new());
            for (id, step) in (0u64..).zip(steps) {
                match step {
                    Step::Install(worker) => {
                        candidates.insert(SaId(id), false, worker);
                        twin.push(Twin { id, dying: false, worker });
                    }
                    Step::Dying(which) if !twin.is_empty() => {
                        let count = twin.len();
                        let sa = &mut twin[which % count];
                        candidates.remove(SaId(sa.id), sa.dying, sa.worker);
                        sa.dying = true;
                        candidates.insert(SaId(sa.id), true, sa.worker);
                    }
                    Step::Remove(which) if !twin.is_empty() => {
                        let sa = twin.swap_remove(which % twin.len());
                        candidates.remove(SaId(sa.id), sa.dying, sa.worker);
                    }
                    Step::Dying(_) | Step::Remove(_) => {}
                }
                let own: BTreeMap<usize, SaId> = candidates.own().collect();
                for worker in 0..3 {
                    let found = own.get(&worker).copied().or(candidates.shared());
                    prop_assert_eq!(found.map(|id| id.0), look_at(&twin, worker));
                }
                prop_assert_eq!(candidates.is_empty(), twin.is_empty());
            }
        }
    }
}
