//! The policies that select by ports, found without: for fragments that show none.
//!
//! Whether such a policy may decide a fragment the best one of those that select the same but for their ports says: it alone
//! is found. The others are in order behind it, for the time when it goes.

use std::sync::Arc;

use super::ordered::Ordered;
use super::space::Space;
use super::tuple::Found;
use crate::policy::{Address, Fields, Policy, Shape};
use crate::table::Table;

/// A version of them, of one direction and family.
#[derive(Clone)]
pub(super) struct Portless<A> {
    /// The best of each shape without ports.
    best: Space<A>,
    /// All of them.
    by_shape: Table<Shape<A>, Arc<Ordered>>,
}

impl<A: Address> Portless<A> {
    pub(super) fn new() -> Portless<A> {
        // Those without ports do not tell so.
        Portless { best: Space::new(false), by_shape: Table::new() }
    }

    /// Whether any may decide a flow whose ports are not known, where `than` does so otherwise.
    pub(super) fn may_decide(&self, flow: &Fields<A>, than: Option<Found<'_>>) -> bool {
        self.best.best(flow, true, than).is_some()
    }

    /// Adds a policy of a shape, if that has ports.
    pub(super) fn insert(&mut self, shape: &Shape<A>, policy: &Arc<Policy>) {
        if shape.has_ports() {
            self.change(shape.without_ports(), |ordered| ordered.insert(policy.clone()));
        }
    }

    /// Removes a policy that was added.
    pub(super) fn remove(&mut self, shape: &Shape<A>, policy: &Arc<Policy>) {
        if shape.has_ports() {
            self.change(shape.without_ports(), |ordered| ordered.remove(policy));
        }
    }

    fn change(&mut self, shape: Shape<A>, change: impl FnOnce(&mut Ordered)) {
        let mut ordered =
            self.by_shape.get(&shape).map(|ordered| (**ordered).clone()).unwrap_or_default();
        let old = ordered.first().cloned();
        change(&mut ordered);
        let new = ordered.first().cloned();
        match &new {
            Some(_) => drop(self.by_shape.insert(shape, Arc::new(ordered))),
            None => drop(self.by_shape.remove(&shape)),
        }
        if old.as_ref().map(Arc::as_ptr) == new.as_ref().map(Arc::as_ptr) {
            return;
        }
        if let Some(old) = old {
            self.best.remove(&shape, old.index());
        }
        if let Some(new) = new {
            self.best.insert(&shape, new);
        }
    }

    /// See [`Table::settle`].
    pub(super) fn settle(&mut self) -> bool {
        self.best.settle() | self.by_shape.settle()
    }

    /// Policies that a fragment is compared with, or could be.
    #[cfg(test)]
    pub(super) fn compared(&self) -> usize {
        self.best.iter().count()
    }
}
