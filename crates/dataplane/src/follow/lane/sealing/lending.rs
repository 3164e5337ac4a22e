//! Packets in clear for many tunnels, while their worker lends its work: it does all but encrypt.

use super::find::Mixed;
use super::{Lane, number, set_sas};
use crate::batch::{Slot, Turn};
use crate::cpu::{Cache, asked_cache};
use crate::follow::lane::admit::of_one_vrf;
use crate::follow::lent::{Numbers, Sealing, Ways};
use crate::route::Router;
use crate::view::View;

impl Lane {
    /// Puts packets first that may come here and are for tunnels, gives them their numbers, and leaves the rest to whoever has time: how
    /// many they are, and what is to be done.
    pub(in crate::follow) fn lend<'v>(
        &mut self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &mut Turn<'_>,
    ) -> Option<(usize, Sealing)> {
        let (vrf, slots) = of_one_vrf(slots, view).filter(|_| self.hours.are_open(version))?;
        let (cache, mut mixed) = (asked_cache(), Mixed::of(vrf));
        let mut found = match cache {
            Cache::First => self.find::<false, true>(slots, view, &mut mixed),
            Cache::Second => self.find::<true, true>(slots, view, &mut mixed),
        };
        let came = found.groups().len();
        // Where others are among them, they stay behind, so that all have an SA.
        if found.is_mixed() {
            found.part_sealed(slots, &mixed);
        }
        let plain = set_sas::<true>(slots, &found, &mixed, cache);
        let (shares, ways) = ways(&slots[..plain], view, turn);
        let mut lent = 0;
        for (slot, group) in slots[..shares.len()].iter_mut().zip(found.groups()) {
            let policy = found.exit::<true>(*group, &mixed).and_then(|exit| exit.policy);
            if number::<false>(slot, policy, turn, turn.now_ns).is_none() {
                break;
            }
            lent += 1;
        }
        // What `choose` is to find out is not there yet.
        slots[lent..plain].iter_mut().for_each(|slot| slot.outbound = None);
        self.hours.trial.note(came, lent);
        (lent != 0).then_some((lent, Sealing { shares, ways }))
    }
}

/// Where packets leave that have their SAs: of each of the first, which of these ways it is.
fn ways<'v>(slots: &[Slot<'v>], view: &'v View, turn: &mut Turn<'_>) -> (Numbers, Ways) {
    let (mut router, mut shares, mut ways) = (Router::new(), Numbers::new(), Ways::new());
    let has_vrfs = view.vrfs.in_use();
    let (mut rest, mut last) = (slots, 0);
    while let Some((slot, later)) = rest.split_first() {
        let way = match has_vrfs {
            false => router.way::<false>(slot, later, view, turn),
            true => router.way::<true>(slot, later, view, turn),
        };
        let Ok(way) = way else { break };
        if ways.get(last) != Some(way) {
            last = ways.iter().position(|other| other == way).unwrap_or(ways.len());
        }
        if last == ways.len() && ways.try_push(*way).is_err() {
            break;
        }
        shares.push(last as u8);
        rest = later;
    }
    (shares, ways)
}
