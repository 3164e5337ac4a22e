//! Tunnels in route mode: which share an `if_id`, and rows that routes made.

use dataplane::policy::{Action, Direction, Policy};
use dataplane::view::View;

use super::super::slots::SlotKey;
use super::super::tunnels::TunnelRows;
use super::{Tables, armed};

impl Tables {
    /// Says which `if_id`s have tunnels that are told apart by their far ends, before any SA is there.
    pub fn with_shared_if_ids(mut self, if_ids: impl Iterator<Item = u32>) -> Tables {
        self.slots.share(if_ids);
        self
    }

    /// When a policy was used last. Where routes lead packets to its SAs without asking for it, that is when these
    /// were.
    pub fn last_use_ns(&self, policy: &Policy) -> u64 {
        let (config, asked_ns) = (policy.config(), policy.usage().last_use_ns);
        if config.if_id == 0 || config.direction != Direction::Out {
            return asked_ns;
        }
        let Action::Protect { template, bundle: Some(_) } = &config.action else { return asked_ns };
        if !self.slots.is_shared(config.if_id) && !self.tunnels.is_passed_over(&config) {
            return asked_ns;
        }
        let sas = self.slots.fitting(SlotKey::of(template, config.if_id));
        let used = sas.filter_map(|id| Some(self.sa_of(id)?.sa.usage().last_use_ns));
        used.fold(asked_ns, u64::max)
    }

    /// Fills the rows of tunnels that routes lead into now; whether there are new ones.
    pub fn fill_tunnels(&mut self, view: &mut View) -> bool {
        let Tables { tunnels, slots, sas, nonces, .. } = self;
        TunnelRows::fill_new(tunnels, view, |key, view| {
            slots.take(key, view, |id| armed(sas, nonces, id))
        })
    }
}
