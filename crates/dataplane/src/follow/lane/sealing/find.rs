//! Which of the first packets may come here, and by whose word each leaves by which SA.

use arrayvec::ArrayVec;
use wire::flow::Flow;

use crate::batch::{BATCH_PACKETS, Slot};
use crate::bundles::Sole;
use crate::cpu::prefetch;
use crate::fib::{Fib, MANY};
use crate::follow::lane::WORTH;
use crate::follow::lane::inquiry::{Inquiry, last_of, quickly};
use crate::follow::{Known, words};
use crate::inspect::may_be_martians;
use crate::parse::{self, LastMac};
use crate::policy::{Direction, Kind, Policy};
use crate::prefix::Family;
use crate::sa::Sa;
use crate::spd::Lookup;
use crate::tunnel::Slots;
use crate::view::View;

/// Of each packet, what was asked about it.
type Guarded = ArrayVec<u8, BATCH_PACKETS>;

/// Where the SAs of the first packets are.
#[derive(Default)]
pub(super) struct Found<'v> {
    /// Of each group of them: its policy, and where its SA is.
    soles: ArrayVec<(Option<&'v Policy>, Sole<'v>), BATCH_PACKETS>,
    /// Of each packet which group it is of.
    group_of: ArrayVec<u8, BATCH_PACKETS>,
}

impl<'v> Found<'v> {
    /// Of each of the first packets which group it is of.
    pub(super) fn group_of(&self) -> &[u8] {
        &self.group_of
    }

    /// The SA of a group, if it is there.
    #[inline(always)]
    pub(super) fn sa(&self, group: u8) -> Option<&'v Sa> {
        self.soles.get(usize::from(group)).and_then(|(_, sole)| sole.sa())
    }

    /// The policy of a group, if one protects it.
    #[inline(always)]
    pub(super) fn policy(&self, group: u8) -> Option<&'v Policy> {
        self.soles.get(usize::from(group)).and_then(|(policy, _)| *policy)
    }
}

/// By what policies say.
pub(super) fn by_policies<'v>(slots: &mut [Slot<'v>], view: &'v View) -> Found<'v> {
    let Some(many) = quickly(&view.spd.side(Direction::Out)) else { return Found::default() };
    let mut inquiry = Inquiry::of(many);
    let group_of = admit(slots, view, |flow| inquiry.note(flow));
    if group_of.is_empty() {
        return Found::default();
    }
    let presumed = inquiry.presumed();
    let mut found = Found { soles: ArrayVec::new(), group_of };
    for (asked, presumed) in inquiry.asked.iter().zip(&presumed) {
        let Lookup::Policy(policy) = many.lookup(*asked, *presumed) else { break };
        let is_simple = policy.kind() == Kind::Protect && !policy.wants_own_sas();
        let bundle = policy.bundle().filter(|_| is_simple);
        let Some(sole) = bundle.and_then(|bundle| view.bundles.sole(bundle)) else { break };
        found.soles.push((Some(policy), sole));
    }
    found
}

/// By where routes lead.
pub(super) fn by_routes<'v>(slots: &mut [Slot<'v>], view: &'v View) -> Found<'v> {
    let mut destinations: ArrayVec<u32, MANY> = ArrayVec::new();
    let group_of = admit(slots, view, |flow| {
        let destination = words(flow).destination();
        if destinations.last() != Some(&destination) {
            destinations.push(destination);
        }
        destinations.len()
    });
    if group_of.is_empty() {
        return Found::default();
    }
    let mut codes = [0; MANY];
    view.fib.codes_of_v4(&destinations, &mut codes);
    let mut rows: ArrayVec<&Slots, MANY> = ArrayVec::new();
    for code in &codes[..destinations.len()] {
        let row = Fib::tunnel_of(*code).and_then(|number| view.tunnels.slots(number));
        let Some(row) = row else { break };
        prefetch(row);
        rows.push(row);
    }
    let mut found = Found { soles: ArrayVec::new(), group_of };
    for row in rows {
        let sole = row.slot(Family::V4).and_then(|slot| view.bundles.sole(slot));
        let Some(sole) = sole else { break };
        found.soles.push((None, sole));
    }
    found
}

/// Which of the first packets may come here, as far as they themselves say, and policies of what may come in: the group of
/// each. `groups` is told of each, and says how many groups there are then.
#[inline(always)]
fn admit(
    slots: &mut [Slot<'_>],
    view: &View,
    mut groups: impl FnMut(&Flow) -> usize,
) -> ArrayVec<u8, BATCH_PACKETS> {
    let mut group_of = ArrayVec::new();
    let forward = view.spd.side(Direction::Forward);
    let mut guard = quickly(&forward).map(|many| (Inquiry::of(many), Guarded::new()));
    if guard.is_none() && !forward.is_silent() {
        return group_of;
    }
    let mut known = Known::default();
    let mut mac = LastMac::new();
    let packets = slots.len();
    for slot in slots.iter_mut().take(BATCH_PACKETS) {
        let Some(flow) = parse::plain(&slot.frame, mac.bits(slot, view)) else { break };
        if flow.ttl <= 1 || may_be_martians(&flow) {
            break;
        }
        if known.is_for_host(words(&flow).destination(), view) {
            break;
        }
        // What its SA counts.
        slot.counted = flow.total_len;
        if let Some((guard, guarded)) = &mut guard {
            guarded.push(last_of(guard.note(&flow)));
        }
        group_of.push(last_of(groups(&flow)));
    }
    if group_of.len() < WORTH.min(packets) {
        group_of.clear();
    } else if let Some((guard, guarded)) = &guard {
        let free = guard.free();
        group_of.truncate(guarded.iter().take_while(|group| usize::from(**group) < free).count());
    }
    group_of
}
