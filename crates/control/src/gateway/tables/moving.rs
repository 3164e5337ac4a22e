//! SAs as they come and move: what of an earlier one a new one goes on with.
//!
//! Which SA is on the move is `departed`'s subject.

use std::sync::Arc;

use dataplane::view::View;
use tracing::error;

use super::super::departed::{self, Predecessor};
use super::Tables;
use crate::xfrm::SaRecord;

impl Tables {
    /// Puts an SA into force. One that only moved goes on with its numbers, and its old ends go out of
    /// force with the same view.
    pub(super) fn install_sa(&mut self, record: &Arc<SaRecord>, view: &mut View) {
        let old = self.departed.returning(record);
        let old = match old {
            Some(Predecessor::Leaving(id)) => {
                let sa = self.sa_of(id).map(|installed| installed.sa.clone());
                self.remove_sa(id, view);
                sa
            }
            Some(Predecessor::Gone(sa)) => Some(sa),
            None => None,
        };
        let sa = self.build(record).and_then(|sa| match &old {
            Some(old) => departed::moved(old, sa).map_err(|error| error.to_string()),
            None => Ok(sa),
        });
        match sa {
            Ok(sa) => {
                let usage = old.map(|old| old.usage());
                self.put_sa(sa, record, false, view);
                if let (Some(installed), Some(usage)) = (self.sas.get_mut(record.id.0), usage) {
                    installed.before = Some(Box::new((usage.packets, usage.bytes)));
                }
            }
            // The server checked all that the data plane asks for; nothing is sealed without.
            Err(reason) => {
                error!(spi = record.parameters.spi(), %reason, "an SA was not installed");
            }
        }
    }

    /// The addresses of this host have changed: so may have the ports on which ESP arrives.
    pub fn relocate(&mut self, view: &mut View) {
        let local = &view.local;
        let is_local = |address| local.contains(&address);
        self.encapsulation.relocate(is_local, &mut view.encapsulation_ports);
    }
}
