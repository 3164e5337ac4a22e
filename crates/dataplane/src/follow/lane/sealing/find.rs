//! By whose word each of the first packets leaves by which SA.

use arrayvec::ArrayVec;
use wire::flow::Flow;

use crate::batch::{BATCH_PACKETS, Slot};
use crate::bundles::Sole;
use crate::cpu::prefetch;
use crate::fib::{Fib, MANY};
use crate::follow::lane::addresses::Addresses;
use crate::follow::lane::admit::{Groups, admit};
use crate::follow::lane::group::Group;
use crate::follow::lane::inquiry::{Inquiry, InquiryV6};
use crate::policy::{Address, Direction, Kind, Policy};
use crate::prefix::Family;
use crate::sa::Sa;
use crate::spd::Lookup;
use crate::tunnel::Slots;
use crate::view::View;

/// Of each group of a family its policy, and where its SA is.
type Soles<'v> = ArrayVec<(Option<&'v Policy>, Sole<'v>), BATCH_PACKETS>;

/// Where the SAs of the first packets are.
#[derive(Default)]
pub(super) struct Found<'v> {
    soles: Soles<'v>,
    soles_v6: Soles<'v>,
    groups: Groups,
    is_mixed: bool,
}

impl<'v> Found<'v> {
    /// Of each of the first packets which group it is of.
    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Whether any of their groups is of IPv6.
    pub(super) fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    #[inline(always)]
    fn get<const MIXED: bool>(&self, group: Group) -> Option<&(Option<&'v Policy>, Sole<'v>)> {
        let soles = if MIXED && group.is_v6() { &self.soles_v6 } else { &self.soles };
        soles.get(group.number())
    }

    /// The SA of a group, if it is there. They are `MIXED` as [said](Found::is_mixed).
    #[inline(always)]
    pub(super) fn sa<const MIXED: bool>(&self, group: Group) -> Option<&'v Sa> {
        self.get::<MIXED>(group).and_then(|(_, sole)| sole.sa())
    }

    /// The policy of a group, if one protects it.
    #[inline(always)]
    pub(super) fn policy<const MIXED: bool>(&self, group: Group) -> Option<&'v Policy> {
        self.get::<MIXED>(group).and_then(|(policy, _)| *policy)
    }
}

/// By what policies say.
pub(super) fn by_policies<'v>(slots: &mut [Slot<'v>], view: &'v View) -> Found<'v> {
    let out = view.spd.side(Direction::Out);
    let (mut v4, mut v6) = (Inquiry::of(&out), InquiryV6::of(&out));
    let groups = admit(slots, view, |flow| v4.note(flow), |fields| v6.note(fields));
    if groups.is_empty() {
        return Found::default();
    }
    let (mut soles, mut soles_v6) = (Soles::new(), Soles::new());
    v4.answer(|lookup| push_protecting(&mut soles, lookup, view));
    let is_mixed = !v6.is_empty();
    if is_mixed {
        v6.answer(|lookup| push_protecting(&mut soles_v6, lookup, view));
    }
    Found { soles, soles_v6, groups, is_mixed }
}

/// Adds the SA of a policy that protects; whether it is such a policy, and simple.
#[inline(always)]
fn push_protecting<'v>(soles: &mut Soles<'v>, found: Lookup<'v>, view: &'v View) -> bool {
    let Lookup::Policy(policy) = found else { return false };
    let is_simple = policy.kind() == Kind::Protect && !policy.wants_own_sas();
    let bundle = policy.bundle().filter(|_| is_simple);
    let Some(sole) = bundle.and_then(|bundle| view.bundles.sole(bundle)) else { return false };
    soles.push((Some(policy), sole));
    true
}

/// By where routes lead.
pub(super) fn by_routes<'v>(slots: &mut [Slot<'v>], view: &'v View) -> Found<'v> {
    let (mut v4, mut v6) = (Addresses::<u32>::default(), Addresses::<u128>::default());
    let note = |flow: &Flow| v4.note(u32::of_address(flow.dst));
    let groups = admit(slots, view, note, |fields| v6.note(fields.destination));
    if groups.is_empty() {
        return Found::default();
    }
    let mut codes = [0; MANY];
    let soles = soles(v4.codes(view, &mut codes), Family::V4, view);
    let is_mixed = !v6.is_empty();
    let soles_v6 = if is_mixed { soles_v6(&v6, view) } else { Soles::new() };
    Found { soles, soles_v6, groups, is_mixed }
}

#[inline(never)]
fn soles_v6<'v>(destinations: &Addresses<u128>, view: &'v View) -> Soles<'v> {
    let mut codes = [0; MANY];
    soles(destinations.codes(view, &mut codes), Family::V6, view)
}

/// Where the SAs are of packets of a family whose routes have these codes, up to the first that leads into no tunnel.
#[inline(always)]
fn soles<'v>(codes: &[u32], family: Family, view: &'v View) -> Soles<'v> {
    let mut rows: ArrayVec<&Slots, MANY> = ArrayVec::new();
    for code in codes {
        let row = Fib::tunnel_of(*code).and_then(|number| view.tunnels.slots(number));
        let Some(row) = row else { break };
        prefetch(row);
        rows.push(row);
    }
    let mut soles = Soles::new();
    for row in rows {
        let sole = row.slot(family).and_then(|slot| view.bundles.sole(slot));
        let Some(sole) = sole else { break };
        soles.push((None, sole));
    }
    soles
}
