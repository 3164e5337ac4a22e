//! SAs as they go: at once, or in two steps, so that one that was deleted opens what is under way.
//!
//! Which SA is on its way out is `departed`'s subject.

use std::sync::Arc;

use dataplane::sa::Sa;
use dataplane::view::View;

use super::super::departed;
use super::Tables;
use crate::xfrm::{Change, SaId, SaRecord};

/// Whether an SA that goes on as `new` does so with words of its own.
fn is_remade(old: &Sa, new: &SaRecord) -> bool {
    !old.counts_as(new.replay_window(), new.esn())
}

impl Tables {
    /// Takes an SA out of force.
    pub(super) fn remove_sa(&mut self, id: SaId, view: &mut View) {
        let gone = self.withdraw_sa(id, view);
        gone.into_iter().for_each(|sa| self.shut(&sa, view));
    }

    /// Seals nothing with an SA any more, which has no name from now on, but opens with it.
    fn withdraw_sa(&mut self, id: SaId, view: &mut View) -> Option<Arc<Sa>> {
        let gone = self.sas.remove(id.0)?;
        self.slots.withdraw(gone.offer(id), view);
        self.refill(&gone.sa, view);
        Some(gone.sa)
    }

    /// Opens nothing with an SA any more.
    fn shut(&mut self, sa: &Sa, view: &mut View) {
        self.encapsulation.remove(sa, &mut view.encapsulation_ports);
        self.unlist(sa, view);
    }

    /// Takes an SA out of force that somebody deleted: for sealing at once, and for opening, if it is
    /// here that it opens, a moment later.
    pub(super) fn close_sa(&mut self, id: SaId, view: &mut View) {
        let Some(sa) = self.withdraw_sa(id, view) else { return };
        if view.local.contains(&sa.destination()) {
            self.departed.close(sa, self.clock.now_ns());
        } else {
            self.shut(&sa, view);
        }
    }

    /// An SA was deleted that is on the move. One that [parted](Tables::part) already is remembered.
    pub(super) fn depart(&mut self, record: &Arc<SaRecord>) {
        if self.sa_of(record.id).is_some() {
            self.departed.leave(record.clone(), self.clock.now_ns());
        }
    }

    /// Takes SAs out of force for which others come that go on with other numbers than theirs, of another window or
    /// sequence mode; whether there are any. What the old one sent and received is to be known for good when
    /// the new one begins, so nobody may have it any more: the view is to be published, and no
    /// worker to hold an earlier one, before the changes are applied.
    pub fn part(&mut self, changes: &[Change], view: &mut View) -> bool {
        let mut any = false;
        for change in changes {
            let Change::SaInstalled(new) = change else { continue };
            any |= self.departed.gone_as(new).is_some_and(|old| is_remade(old, new));
            let leaving = self.departed.leaving_as(new).cloned();
            let in_batch = changes.iter().find_map(|change| match change {
                Change::SaDeparted(old) if departed::is_same(old, new) => Some(old.clone()),
                _ => None,
            });
            for old in leaving.into_iter().chain(in_batch) {
                let Some(installed) = self.sa_of(old.id) else { continue };
                if is_remade(&installed.sa, new) {
                    let (sa, id) = (installed.sa.clone(), old.id);
                    self.departed.hurry(sa, old, self.clock.now_ns());
                    self.remove_sa(id, view);
                    any = true;
                }
            }
        }
        any
    }

    /// Takes SAs out of force whose time to go or to move is over; whether there was any.
    pub fn end_departures(&mut self, view: &mut View) -> bool {
        let mut any = false;
        if self.departed.is_empty() {
            return any;
        }
        let now_ns = self.clock.now_ns();
        while let Some(sa) = self.departed.overdue_closed(now_ns) {
            self.shut(&sa, view);
            any = true;
        }
        while let Some(record) = self.departed.overdue(now_ns) {
            let id = record.id;
            if let Some(installed) = self.sas.get(id.0) {
                self.departed.remember(installed.sa.clone(), record, now_ns);
            }
            self.remove_sa(id, view);
            any = true;
        }
        self.departed.forget(now_ns);
        any
    }
}
