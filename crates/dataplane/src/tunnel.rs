//! Route mode: routes that lead into tunnels, and the tunnels as rows of a table.
//!
//! ```text
//!  inner destination ─► FIB ─► row ─┬─ a slot: every packet leaves by its SA      no policy is searched
//!                                   └─ none:  the policies of the row's `if_id` say which SA
//!  inner source of what an SA with an `if_id` brought ─► the policies of that `if_id`
//!                                   └─ none: its route must lead back to the SA's far end
//! ```
//!
//! A tunnel is named as XFRM's interfaces name it, by the `if_id` of its SAs and policies, which are a
//! world of their own: nothing of them concerns packets that no route leads there. Many tunnels may
//! have one `if_id`, told apart by their far ends (point-to-multipoint); then the routes say both who
//! gets a packet and whose packets are welcome, and a policy is only needed to forbid.
//!
//! What never happens: that a packet which a route leads into a tunnel, or which the host sent to the tunnels'
//! device, leaves in clear, whether there are tunnels or not. Which routes lead where, and which slot takes
//! all of a tunnel's packets, control decides.

mod by_policy;

use std::net::{IpAddr, Ipv4Addr};

use arrayvec::ArrayVec;

use crate::array::Array;
use crate::batch::{Slot, Turn};
use crate::bundles::{BUNDLES_MAX, Sole, Whose};
use crate::cpu::asked_cache;
use crate::fib::{Fib, Lead, MANY};
use crate::pages::Pages;
use crate::policy::next_id;
use crate::prefix::Family;
use crate::sa::Sa;
use crate::table::Table;
use crate::verdict::Verdict;
use crate::view::View;
use crate::vrfs::MAIN;

use self::by_policy::{enter_by_policy, is_by_policy};

/// What tells a tunnel from all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TunnelName {
    /// The `if_id` of its SAs and policies; not 0.
    pub if_id: u32,
    /// The far end of its SAs, where several tunnels share the `if_id`.
    pub remote: Option<IpAddr>,
}

/// A tunnel's row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// Its name.
    pub name: TunnelName,
    /// The slot by whose SA every inner packet of a family leaves, IPv4 and IPv6. `None`: the policies
    /// of the `if_id` are asked for each packet.
    pub slots: [Option<u32>; 2],
}

/// What a packet that leaves needs of a row, so that eight rows are a cache line: the slots by family.
#[derive(Clone, Copy)]
pub(crate) struct Slots([u32; 2]);

/// Where a packet goes that its route leads into a tunnel.
#[derive(Clone, Copy)]
pub(crate) struct Entrance<'v> {
    /// The tunnel's row.
    number: u32,
    /// The slot in which its SA is, if one takes every packet, and where that says so.
    slot: Option<u32>,
    sole: Option<Sole<'v>>,
}

impl<'v> Entrance<'v> {
    /// The number of the tunnel's row.
    pub(crate) fn row(self) -> u32 {
        self.number
    }

    /// The SA that takes every packet, if there is one and nothing else is to be looked at.
    #[inline]
    pub(crate) fn simple(self) -> Option<&'v Sa> {
        self.sole.and_then(Sole::sa)
    }
}

/// No slot has this number ([`BUNDLES_MAX`]).
const NO_SLOT: u32 = u32::MAX;

impl Default for Slots {
    fn default() -> Slots {
        Slots([NO_SLOT; 2])
    }
}

impl Slots {
    /// The slot of a family.
    #[inline]
    pub(crate) fn slot(self, family: Family) -> Option<u32> {
        Some(self.0[family.index()]).filter(|slot| *slot != NO_SLOT)
    }

    /// The slot of the family of an inner packet's address.
    #[inline]
    fn of(self, destination: IpAddr) -> Option<u32> {
        self.slot(Family::of(destination))
    }
}

/// A version of all tunnels. Cloning is cheap; versions share what did not change. It only grows: a
/// tunnel without routes costs its row.
///
/// Of a row lies in one place what packets need that leave, in another what those need that came, and in
/// a third its name, which few need: a packet should touch few lines of memory, and others the same.
#[derive(Clone, Default)]
pub struct Tunnels {
    slots: Pages<Slots>,
    /// A number for each row that no other row of the process's life has, nor a policy.
    ids: Pages<u64>,
    names: Array<TunnelName>,
    numbers: Table<TunnelName, u32>,
    /// The port of the host's device, by `if_id`.
    devices: Table<u32, u16>,
}

impl Tunnels {
    /// Whether there is no tunnel, and so no route into one.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// How many there are; their rows are numbered from 0.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The row of a name; made if there is none. `None` if there are [`BUNDLES_MAX`] already.
    pub fn join(&mut self, name: TunnelName) -> Option<u32> {
        if let Some(number) = self.numbers.get(&name) {
            return Some(*number);
        }
        let number = u32::try_from(self.numbers.len()).ok().filter(|n| *n < BUNDLES_MAX)?;
        self.slots.set(number, Slots::default());
        self.ids.set(number, next_id());
        self.names.set(number, name);
        self.numbers.insert(name, number);
        Some(number)
    }

    /// The number of a name's row.
    pub fn number(&self, name: &TunnelName) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// A row.
    pub fn row(&self, number: u32) -> Option<Tunnel> {
        let slots = self.slots(number)?.0.map(|slot| Some(slot).filter(|slot| *slot != NO_SLOT));
        Some(Tunnel { name: *self.names.get(number)?, slots })
    }

    /// The slots of a row.
    #[inline]
    pub(crate) fn slots(&self, number: u32) -> Option<&Slots> {
        self.slots.get(number).filter(|_| self.has(number))
    }

    /// What tells a row from all others there ever were, and from all policies.
    #[inline]
    pub(crate) fn id(&self, number: u32) -> Option<&u64> {
        self.ids.get(number).filter(|_| self.has(number))
    }

    #[inline]
    fn has(&self, number: u32) -> bool {
        (number as usize) < self.len()
    }

    /// Sets the slots of a row that exists.
    pub fn set_slots(&mut self, number: u32, slots: [Option<u32>; 2]) {
        if self.has(number) {
            self.slots.set(number, Slots(slots.map(|slot| slot.unwrap_or(NO_SLOT))));
        }
    }

    /// The port of the device by which the host has the packets of an `if_id`.
    pub fn device(&self, if_id: u32) -> Option<u16> {
        self.devices.get(&if_id).copied()
    }

    /// Sets it; whether that is a change.
    pub fn set_device(&mut self, if_id: u32, port: u16) -> bool {
        self.device(if_id) != Some(port) && self.devices.insert(if_id, port) != Some(port)
    }

    /// See [`Table::settle`].
    pub(crate) fn settle(&mut self) -> bool {
        self.numbers.settle() | self.devices.settle()
    }
}

/// Looks up the routes of all packets that no policy has decided on, if there are tunnels, and asks for the
/// memory of the rows that they lead to.
pub(crate) fn ask_all(slots: &mut [Slot<'_>], view: &View) {
    if !view.has_tunnels() {
        return;
    }
    if view.vrfs.in_use() {
        return ask_each(slots, view);
    }
    for slots in slots.chunks_mut(MANY) {
        if !ask_v4(slots, view) {
            ask_mixed(slots, view);
        }
    }
}

/// Finds the SAs of packets of which no policy can say anything, where nobody waits and there are no VRFs;
/// packets that follow each other to one address are done together. Whether it did: it does not where
/// one is of IPv6.
///
/// 1. The routes, all of them together.
/// 2. The SAs that they lead to; ask for the memory of those.
#[inline]
pub(crate) fn enter_all<'v>(slots: &mut [Slot<'v>], view: &'v View, turn: &mut Turn<'_>) -> bool {
    let mut destinations: ArrayVec<u32, MANY> = ArrayVec::new();
    let mut starts: ArrayVec<usize, MANY> = ArrayVec::new();
    for (at, slot) in slots.iter().enumerate().take(MANY) {
        if slot.verdict.is_some() {
            continue;
        }
        let IpAddr::V4(destination) = slot.flow.dst else { return false };
        let destination = destination.to_bits();
        if destinations.last() != Some(&destination) {
            destinations.push(destination);
            starts.push(at);
        }
    }
    let mut codes = [0; MANY];
    view.fib.codes_of_v4(MAIN, &destinations, &mut codes);
    let codes = &codes[..destinations.len()];
    let cache = asked_cache();
    for (at, code) in codes.iter().enumerate() {
        let end = starts.get(at + 1).map_or(slots.len(), |start| *start);
        let sa = Fib::tunnel_of(*code).and_then(|row| simple_sa(row, Family::V4, view));
        if let Some(sa) = sa {
            sa.prefetch(cache);
        }
        for slot in slots[starts[at]..end].iter_mut().filter(|slot| slot.verdict.is_none()) {
            slot.lead = Lead::to(*code);
            match sa {
                Some(sa) => slot.outbound = Some(sa),
                None => enter_one(slot, view, turn),
            }
        }
    }
    true
}

/// The SA by which every packet of a family leaves that is led into the tunnel of a row, if there is one and nothing else is to be looked
/// at. In one step: what leads to it is small enough to come soon, so that a processor waits for that of several packets at once by itself.
#[inline(always)]
pub(crate) fn simple_sa(row: u32, family: Family, view: &View) -> Option<&Sa> {
    view.bundles.sa(view.tunnels.slots(row)?.slot(family)?)
}

/// The long way, for a packet whose route was looked up.
#[inline(never)]
fn enter_one<'v>(slot: &mut Slot<'v>, view: &'v View, turn: &mut Turn<'_>) {
    let entered = find(slot, view).and_then(|()| match slot.tunnel {
        Some(entrance) => enter(slot, entrance, view, turn),
        None => Ok(()),
    });
    if let Err(verdict) = entered {
        slot.decide(verdict);
    }
}

/// Whether a packet's route is asked for here.
#[inline]
fn is_asked(slot: &Slot<'_>) -> bool {
    slot.verdict.is_none() && slot.policy.is_none()
}

/// Takes note of the route of a packet.
#[inline]
fn lead_to(slot: &mut Slot<'_>, code: u32, view: &View) {
    slot.lead = Lead::to(code);
    if let Some(number) = Fib::tunnel_of(code) {
        view.tunnels.slots.prefetch(number, asked_cache());
    }
}

/// The routes of packets that are all of IPv4; whether they are.
fn ask_v4(slots: &mut [Slot<'_>], view: &View) -> bool {
    // Each once, where packets to one follow each other.
    let mut destinations = [0; MANY];
    let mut count = 0;
    for slot in slots.iter().filter(|slot| is_asked(slot)) {
        let IpAddr::V4(destination) = slot.flow.dst else { return false };
        let destination = destination.to_bits();
        if count == 0 || destinations[count - 1] != destination {
            destinations[count] = destination;
            count += 1;
        }
    }
    let mut codes = [0; MANY];
    view.fib.codes_of_v4(MAIN, &destinations[..count], &mut codes);
    let mut at = 0;
    for slot in slots.iter_mut().filter(|slot| is_asked(slot)) {
        if let IpAddr::V4(destination) = slot.flow.dst {
            at += usize::from(destinations[at] != destination.to_bits());
        }
        lead_to(slot, codes[at], view);
    }
    true
}

/// The routes of packets of which some are of IPv6.
#[inline(never)]
fn ask_mixed(slots: &mut [Slot<'_>], view: &View) {
    let mut destinations = [IpAddr::V4(Ipv4Addr::UNSPECIFIED); MANY];
    let mut count = 0;
    for slot in slots.iter().filter(|slot| is_asked(slot)) {
        destinations[count] = slot.flow.dst;
        count += 1;
    }
    let mut codes = [0; MANY];
    view.fib.codes_of(&destinations[..count], &mut codes);
    for (slot, code) in slots.iter_mut().filter(|slot| is_asked(slot)).zip(codes) {
        lead_to(slot, code, view);
    }
}

/// The same one by one, each in the table of its VRF.
fn ask_each(slots: &mut [Slot<'_>], view: &View) {
    for slot in slots.iter_mut().filter(|slot| is_asked(slot)) {
        let code = view.fib.code_in(view.vrf_of(slot), slot.flow.dst);
        lead_to(slot, code, view);
    }
}

/// Finds the tunnel that the route of a packet leads into which no policy protects, and asks for the
/// memory of the slot in which its SA is.
#[inline]
pub(crate) fn find<'v>(slot: &mut Slot<'v>, view: &'v View) -> Result<(), Verdict> {
    if !view.has_tunnels() {
        return Ok(());
    }
    let code = slot.lead.code();
    let code = code.unwrap_or_else(|| view.fib.code_in(view.vrf_of(slot), slot.flow.dst));
    slot.lead = Lead::to(code);
    let Some(number) = Fib::tunnel_of(code) else {
        // The host chose the tunnels' device: what the device has no tunnel for is not for clear.
        let from_device = view.tunnel_devices.contains(&slot.ingress);
        return if from_device { Err(Verdict::NoTunnel) } else { Ok(()) };
    };
    let slots = view.tunnels.slots(number).ok_or(Verdict::NoTunnel)?;
    let into = slots.of(slot.flow.dst);
    let sole = into.and_then(|into| view.bundles.sole(into, asked_cache()));
    slot.tunnel = Some(Entrance { number, slot: into, sole });
    Ok(())
}

/// Finds the SA of a packet that goes into a tunnel.
#[inline]
pub(crate) fn enter<'v>(
    slot: &mut Slot<'v>,
    Entrance { number, slot: into, .. }: Entrance<'v>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> Result<(), Verdict> {
    // Packets that wait leave first, and what waits is known by its policy.
    if turn.hold.len() != 0 && is_by_policy(slot, number, into, view, turn) {
        return enter_by_policy(slot, number, into, view, turn);
    }
    if let Some((sa, whose)) = into.and_then(|into| view.bundles.choose(into, turn.worker))
        && sa.admits(&slot.flow)
    {
        match whose {
            Whose::Own => turn.counters.count_own_sa(1),
            Whose::Fallback => turn.counters.count_fallback_sa(),
            Whose::Everybodys => {}
        }
        sa.prefetch(asked_cache());
        slot.outbound = Some(sa);
        return Ok(());
    }
    enter_by_policy(slot, number, into, view, turn)
}

/// Whether `sa` belongs to the tunnel of a row, among those of its `if_id` that far ends tell apart.
pub(crate) fn is_of(sa: &Sa, number: u32, view: &View) -> bool {
    view.tunnels.row(number).is_some_and(|tunnel| {
        tunnel.name == TunnelName { if_id: sa.if_id(), remote: Some(sa.source()) }
    })
}

#[cfg(test)]
mod twin;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_row_and_versions_stay_as_they_were() {
        let name =
            |if_id, remote: Option<[u8; 4]>| TunnelName { if_id, remote: remote.map(IpAddr::from) };
        let mut tunnels = Tunnels::default();
        assert!(tunnels.is_empty() && tunnels.row(0).is_none());
        assert_eq!(tunnels.join(name(7, None)), Some(0));
        assert_eq!(tunnels.join(name(7, Some([192, 0, 2, 1]))), Some(1));
        assert_eq!(tunnels.join(name(7, None)), Some(0));
        assert!(tunnels.row(2).is_none(), "a neighbour of rows that exist is none");
        let before = tunnels.clone();
        tunnels.set_slots(1, [Some(5), None]);
        tunnels.set_slots(2, [Some(5), None]);
        assert_eq!(before.row(1).unwrap().slots, [None; 2]);
        assert_eq!(tunnels.row(1).unwrap().slots, [Some(5), None]);
        assert_eq!((tunnels.len(), tunnels.number(&name(8, None))), (2, None));
        assert!(tunnels.set_device(7, 3) && !tunnels.set_device(7, 3));
        assert_eq!((tunnels.device(7), tunnels.device(8)), (Some(3), None));
    }
}
