//! SAs as they go: at once, or in two steps, so that one that was deleted opens what is under way.
//!
//! Which SA is on its way out is `departed`'s subject.

use std::io;
use std::sync::Arc;

use dataplane::sa::Sa;
use dataplane::view::View;

use super::Tables;
use crate::xfrm::SaId;

impl Tables {
    /// Takes an SA out of force.
    pub(super) fn remove_sa(&mut self, id: SaId, view: &mut View) -> io::Result<()> {
        let gone = self.withdraw_sa(id, view)?;
        gone.into_iter().for_each(|sa| self.shut(&sa, view));
        Ok(())
    }

    /// Seals nothing with an SA any more, which has no name from now on, but opens with it.
    fn withdraw_sa(&mut self, id: SaId, view: &mut View) -> io::Result<Option<Arc<Sa>>> {
        let Some(gone) = self.sas.remove(id.0) else { return Ok(None) };
        self.slots.withdraw(gone.offer(id), view);
        self.refill(&gone.sa, view)?;
        Ok(Some(gone.sa))
    }

    /// Opens nothing with an SA any more.
    fn shut(&mut self, sa: &Sa, view: &mut View) {
        self.encapsulation.remove(sa, &mut view.encapsulation_ports);
        self.unlist(sa, view);
    }

    /// Takes an SA out of force that somebody deleted: for sealing at once, and for opening, if it is
    /// here that it opens, a moment later.
    pub(super) fn close_sa(&mut self, id: SaId, view: &mut View) -> io::Result<()> {
        let Some(sa) = self.withdraw_sa(id, view)? else { return Ok(()) };
        if view.local.contains(&sa.destination()) {
            self.departed.close(sa, self.clock.now_ns());
        } else {
            self.shut(&sa, view);
        }
        Ok(())
    }

    /// Takes SAs out of force whose time to go or to move is over; whether there was any.
    pub fn end_departures(&mut self, view: &mut View) -> io::Result<bool> {
        let mut any = false;
        if self.departed.is_empty() {
            return Ok(any);
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
            self.remove_sa(id, view)?;
            any = true;
        }
        self.departed.forget(now_ns);
        Ok(any)
    }
}
