//! What the rows of `View::tunnels` say: the slot by whose SA all packets of a tunnel leave.
//!
//! A tunnel by far end has a slot of its own, for the SAs of its `if_id` to that end. One by `if_id`
//! has the slot of its policy, if the policy that is asked first protects every packet of a family; if
//! not, the data plane asks the policies. Routes make rows (`network`), this module only fills them.

use std::collections::BTreeMap;

use dataplane::policy::{Action, Direction, PolicyConfig};
use dataplane::prefix::Family;
use dataplane::sa::Mode;
use dataplane::selector::Selector;
use dataplane::tunnel::{Tunnel, TunnelName};
use dataplane::view::View;

use super::slots::SlotKey;

/// A policy's place among those of its tunnel: `if_id`, family, priority and position.
type Place = (u32, Family, u32, u64);

/// What is known of the tunnels' outbound policies, and of the rows.
#[derive(Default)]
pub struct TunnelRows {
    /// Outbound policies of tunnels, and the slot of each that protects every packet.
    policies: BTreeMap<Place, Option<u32>>,
    /// Rows that were filled at least once: all below this number.
    filled: u32,
}

impl TunnelRows {
    /// A policy is there.
    pub fn install(&mut self, config: &PolicyConfig, view: &mut View) {
        if is_of_tunnel(config) {
            self.policies.insert(place(config), whole(config));
            self.refill(config.if_id, view);
        }
    }

    /// A policy is there no more.
    pub fn remove(&mut self, config: &PolicyConfig, view: &mut View) {
        if is_of_tunnel(config) {
            self.policies.remove(&place(config));
            self.refill(config.if_id, view);
        }
    }

    fn refill(&self, if_id: u32, view: &mut View) {
        if let Some(number) = view.tunnels.number(&TunnelName { if_id, remote: None }) {
            view.tunnels.set_slots(number, self.slots(if_id));
        }
    }

    /// Fills rows that routes made since the last call; whether there were any. `take` gives the number
    /// of a slot, one more user of which this is.
    pub fn fill_new(
        &mut self,
        view: &mut View,
        mut take: impl FnMut(SlotKey, &mut View) -> u32,
    ) -> bool {
        let first = self.filled;
        while let Some(Tunnel { name: TunnelName { if_id, remote }, .. }) =
            view.tunnels.row(self.filled)
        {
            let slots = match remote {
                Some(remote) => [Some(take(SlotKey::to_far_end(if_id, remote), view)); 2],
                None => self.slots(if_id),
            };
            view.tunnels.set_slots(self.filled, slots);
            self.filled += 1;
        }
        self.filled != first
    }

    /// Whether packets of a tunnel by `if_id` leave by this policy's slot without asking for it.
    pub fn is_passed_over(&self, config: &PolicyConfig) -> bool {
        let first = self.first(config.if_id, config.selector.family());
        is_of_tunnel(config)
            && first.is_some_and(|(at, slot)| slot.is_some() && *at == place(config))
    }

    /// By family, the slot of the policy that is asked first, if it takes every packet.
    fn slots(&self, if_id: u32) -> [Option<u32>; 2] {
        [Family::V4, Family::V6].map(|family| self.first(if_id, family).and_then(|(_, slot)| *slot))
    }

    /// The policy that is asked first.
    fn first(&self, if_id: u32, family: Family) -> Option<(&Place, &Option<u32>)> {
        let (first, last) = ((if_id, family, 0, 0), (if_id, family, u32::MAX, u64::MAX));
        self.policies.range(first..=last).next()
    }
}

fn is_of_tunnel(config: &PolicyConfig) -> bool {
    config.if_id != 0 && config.direction == Direction::Out
}

fn place(config: &PolicyConfig) -> Place {
    (config.if_id, config.selector.family(), config.priority, config.position)
}

/// The slot of a policy that protects every packet. One whose workers are to ask for SAs of their own
/// (RFC 9611) is asked for each packet.
fn whole(config: &PolicyConfig) -> Option<u32> {
    let everything = config.selector == Selector::any(config.selector.family());
    match config.action {
        Action::Protect { template, bundle } if everything && !config.own_sas => {
            bundle.filter(|_| template.mode == Mode::Tunnel)
        }
        _ => None,
    }
}
