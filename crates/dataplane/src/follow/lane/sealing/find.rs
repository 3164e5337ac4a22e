//! Which of the first packets may come here, and by whose word each leaves by which SA.

use arrayvec::ArrayVec;
use wire::flow::Flow;
use wire::ipv6;

use crate::batch::{BATCH_PACKETS, Slot};
use crate::bundles::Sole;
use crate::cpu::prefetch;
use crate::fib::{Fib, MANY};
use crate::follow::lane::WORTH;
use crate::follow::lane::addresses::Addresses;
use crate::follow::lane::group::Group;
use crate::follow::lane::inquiry::{Inquiry, InquiryV6};
use crate::follow::like::Known;
use crate::inspect::may_be_martians;
use crate::parse::{self, LastMac};
use crate::plain::PlainHeader;
use crate::policy::{Address, Direction, Fields, Kind, Policy};
use crate::prefix::Family;
use crate::sa::Sa;
use crate::spd::Lookup;
use crate::tunnel::Slots;
use crate::view::View;

/// Of each packet what its group is.
type Groups = ArrayVec<Group, BATCH_PACKETS>;

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

/// Which of the first packets may come here, as far as they themselves say, and policies of what may come in: the group of
/// each. `note` and `note_v6` are told of each, and say which group it is of: packets of one leave by one SA.
#[inline(always)]
fn admit(
    slots: &mut [Slot<'_>],
    view: &View,
    mut note: impl FnMut(&Flow) -> Group,
    mut note_v6: impl FnMut(Fields<u128>) -> Group,
) -> Groups {
    let mut groups = Groups::new();
    let forward = view.spd.side(Direction::Forward);
    let is_guarded = !forward.is_silent();
    let mut guard = is_guarded.then(|| (Inquiry::of(&forward), Groups::new()));
    let mut guard_v6 = InquiryV6::of(&forward);
    let (mut known, mut known_v6) = (Known::of_none(), Known::of_none());
    let mut mac = LastMac::new();
    let packets = slots.len();
    for slot in slots.iter_mut().take(BATCH_PACKETS) {
        let mac = mac.bits(slot, view);
        let group = match parse::plain(&slot.frame, mac) {
            Some(flow) => {
                if flow.ttl <= 1 || may_be_martians(&flow) {
                    break;
                }
                if known.is_for_host(u32::of_address(flow.dst), view) {
                    break;
                }
                // What its SA counts.
                slot.counted = flow.total_len;
                if let Some((guard, guarded)) = &mut guard {
                    guarded.push(guard.note(&flow));
                }
                note(&flow)
            }
            None => {
                let guard_v6 = is_guarded.then_some(&mut guard_v6);
                let admitted = admit_v6(slot, mac, &mut known_v6, guard_v6, &mut note_v6, view);
                let Some([guard_group, group]) = admitted else { break };
                if let Some((_, guarded)) = &mut guard {
                    guarded.push(guard_group);
                }
                group
            }
        };
        groups.push(group);
    }
    if groups.len() < WORTH.min(packets) {
        groups.clear();
    } else if let Some((guard, guarded)) = &guard {
        let free = guard.free();
        let free_v6 = if guard_v6.is_empty() { 0 } else { guard_v6.free() };
        let is_free = |group: &&Group| group.number() < if group.is_v6() { free_v6 } else { free };
        groups.truncate(guarded.iter().take_while(is_free).count());
    }
    groups
}

/// The same of one packet of IPv6: its groups for the guard and for who says by which SA it leaves. Out of line, so that nothing of it
/// takes registers from those of IPv4; in one piece, as what is put into memory field by field and read as a whole is waited for.
#[inline(never)]
fn admit_v6(
    slot: &mut Slot<'_>,
    mac: u64,
    known: &mut Known<u128>,
    guard: Option<&mut InquiryV6<'_>>,
    note: &mut impl FnMut(Fields<u128>) -> Group,
    view: &View,
) -> Option<[Group; 2]> {
    let header: ipv6::Plain = parse::plain_header(&slot.frame, mac)?;
    let flow = header.flow();
    if flow.ttl <= 1
        || may_be_martians(&flow)
        || known.is_for_host(u128::of_address(flow.dst), view)
    {
        return None;
    }
    slot.counted = flow.total_len;
    let guarded = guard.map_or(Group::FIRST, |guard| guard.note(Fields::of(&flow, 0)));
    Some([guarded, note(Fields::of(&flow, 0))])
}
