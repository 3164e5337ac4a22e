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

/// A version of them, of one direction and family, if there are any. A version in which none is added or removed copies nothing.
#[derive(Clone)]
pub(super) struct Portless<A>(Option<Arc<Known<A>>>);

#[derive(Clone)]
struct Known<A> {
    /// The best of each shape without ports.
    best: Space<A>,
    /// All of them.
    by_shape: Table<Shape<A>, Arc<Ordered>>,
}

impl<A: Address> Default for Portless<A> {
    fn default() -> Self {
        Portless(None)
    }
}

impl<A: Address> Portless<A> {
    /// Whether any may decide a flow whose ports are not known, where `than` does so otherwise.
    pub(super) fn may_decide(&self, flow: &Fields<A>, than: Option<Found<'_>>) -> bool {
        self.0.as_ref().is_some_and(|known| known.best.best(flow, true, than).is_some())
    }

    /// Adds a policy of a shape, if that has ports.
    pub(super) fn insert(&mut self, shape: &Shape<A>, policy: &Arc<Policy>) {
        if shape.has_ports() {
            let known = Arc::make_mut(self.0.get_or_insert_with(|| Arc::new(Known::new())));
            known.change(shape.without_ports(), |ordered| ordered.insert(policy.clone()));
        }
    }

    /// Removes a policy that was added.
    pub(super) fn remove(&mut self, shape: &Shape<A>, policy: &Arc<Policy>) {
        let Some(known) = self.0.as_mut().filter(|_| shape.has_ports()) else { return };
        let known = Arc::make_mut(known);
        known.change(shape.without_ports(), |ordered| ordered.remove(policy));
        if known.best.is_empty() {
            self.0 = None;
        }
    }

    /// Policies that a fragment is compared with, or could be.
    #[cfg(test)]
    pub(super) fn compared(&self) -> usize {
        self.0.as_ref().map_or(0, |known| known.best.iter().count())
    }
}

impl<A: Address> Known<A> {
    fn new() -> Known<A> {
        // Those without ports do not tell so.
        Known { best: Space::new(false), by_shape: Table::new() }
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
}
