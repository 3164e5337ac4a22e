//! Tunnels in route mode: which share an `if_id`, and rows that routes made.

use std::io;

use dataplane::view::View;

use super::super::tunnels::TunnelRows;
use super::{Tables, armed};

impl Tables {
    /// Says which `if_id`s have tunnels that are told apart by their far ends, before any SA is there.
    pub fn with_shared_if_ids(mut self, if_ids: impl Iterator<Item = u32>) -> Tables {
        self.slots.share(if_ids);
        self
    }

    /// Fills the rows of tunnels that routes lead into now; whether there are new ones.
    ///
    /// # Errors
    /// The epoch file cannot be written. The view must not be published then.
    pub fn fill_tunnels(&mut self, view: &mut View) -> io::Result<bool> {
        let Tables { tunnels, slots, sas, nonces, .. } = self;
        TunnelRows::fill_new(tunnels, view, |key, view| {
            slots.take(key, view, |id| armed(sas, nonces, id))
        })
    }
}
