//! Which of the first packets in clear may come into a lane.

use arrayvec::ArrayVec;
use wire::{ipv4, ipv6};

use super::WORTH;
use super::group::Group;
use super::inquiry::{Free, Inquiry, InquiryV6, Last};
use crate::batch::{BATCH_PACKETS, Slot};
use crate::cpu::Cache;
use crate::follow::like::Known;
use crate::inspect::may_be_martians;
use crate::parse::{self, LastMac};
use crate::plain::PlainHeader;
use crate::policy::{Address, Direction, Fields};
use crate::view::View;
use crate::vrfs::{MAIN, UNKNOWN};

/// Of each packet what its group is.
pub(super) type Groups = ArrayVec<Group, BATCH_PACKETS>;

/// Which of the first packets may come here, as far as they themselves say, and policies of what may come in: the group of
/// each. `note` and `note_v6` are told of each, and say which group it is of: packets of one leave alike.
#[inline(always)]
pub(super) fn admit(
    slots: &mut [Slot<'_>],
    view: &View,
    cache: Cache,
    mut note: impl FnMut(&ipv4::Plain) -> Group,
    mut note_v6: impl FnMut(Fields<u128>) -> Group,
) -> Groups {
    let mut groups = Groups::new();
    let forward = view.spd.side(Direction::Forward);
    let is_guarded = !forward.is_silent();
    let mut guard = is_guarded.then(|| (Inquiry::of(&forward), Groups::new()));
    let mut last_guarded = Last::default();
    let mut guard_v6 = InquiryV6::of(&forward);
    let (mut known, mut known_v6) = (Known::of_none(), Known::of_none());
    let mut mac = LastMac::new();
    let packets = slots.len();
    for slot in &mut slots[..packets.min(BATCH_PACKETS)] {
        let mac = mac.bits(slot, view);
        let group = match parse::any_header::<ipv4::Plain>(&slot.frame, mac, view) {
            Some(header) => {
                if header.ttl() <= 1 || may_be_martians(&header.flow()) {
                    break;
                }
                if known.is_for_host(header.destination().to_bits(), view) {
                    break;
                }
                // What its SA counts.
                slot.counted = header.total_len();
                if let Some((guard, guarded)) = &mut guard {
                    guarded.push(guard.note(&header, &mut last_guarded, cache));
                }
                note(&header)
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
        let free = Free::of(guard, &guard_v6);
        groups.truncate(guarded.iter().take_while(|group| free.has(**group)).count());
    }
    groups
}

/// The same of one packet of IPv6: its groups for the guard and for who says how it leaves. Out of line, so that nothing of it
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

/// The first packets that came by ports which lead to one VRF, and that; `None` if it is not known, or there are no packets.
#[inline(always)]
pub(super) fn of_one_vrf<'s, 'v>(
    slots: &'s mut [Slot<'v>],
    view: &View,
) -> Option<(u32, &'s mut [Slot<'v>])> {
    if view.vrfs.in_use() {
        return first_of_vrf(slots, view);
    }
    (!slots.is_empty()).then_some((MAIN, slots))
}

/// Out of line, as nearly nobody has VRFs.
#[inline(never)]
fn first_of_vrf<'s, 'v>(
    slots: &'s mut [Slot<'v>],
    view: &View,
) -> Option<(u32, &'s mut [Slot<'v>])> {
    let vrf_of = |slot: &Slot<'_>| view.vrfs.port(slot.ingress).inner;
    let vrf = slots.first().map(vrf_of).filter(|vrf| *vrf != UNKNOWN)?;
    let packets = slots.iter().take_while(|slot| vrf_of(slot) == vrf).count();
    Some((vrf, &mut slots[..packets]))
}
