//! By whose word each of the first packets leaves by which SA.

use arrayvec::ArrayVec;
use wire::ethernet;
use wire::flow::Flow;

use crate::batch::{BATCH_PACKETS, Slot};
use crate::bundles::Sole;
use crate::cpu::prefetch;
use crate::fib::{Fib, MANY};
use crate::follow::lane::addresses::Addresses;
use crate::follow::lane::admit::{Groups, admit};
use crate::follow::lane::forwarding::Led;
use crate::follow::lane::group::Group;
use crate::follow::lane::inquiry::{Inquiry, InquiryV6, Last, Presumed};
use crate::parse;
use crate::policy::{Address, Direction, Kind, Policy};
use crate::prefix::Family;
use crate::spd::{DefaultAction, Lookup};
use crate::tunnel::Slots;
use crate::view::View;

/// How packets of a group leave: by an SA, or in clear, and which policy says so, if one does.
#[derive(Clone, Copy)]
pub(super) struct Exit<'v> {
    pub(super) policy: Option<&'v Policy>,
    /// Where the SA is; `None` in clear.
    pub(super) sole: Option<Sole<'v>>,
}

/// Those of the groups of a family.
type Exits<'v> = ArrayVec<Exit<'v>, BATCH_PACKETS>;

/// How the first packets leave. Of what is not there where none is mixed nothing is said in it, as it is moved.
#[derive(Default)]
pub(super) struct Found<'v, 'm> {
    exits: Exits<'v>,
    groups: Groups,
    mixed: Option<&'m Mixed<'v>>,
}

/// What there is to say where packets of IPv6, or in clear, are mixed with those of IPv4 for tunnels.
#[derive(Default)]
pub(super) struct Mixed<'v> {
    exits_v6: Exits<'v>,
    /// The codes of the routes to neighbours of the packets in clear, in their order.
    codes: ArrayVec<u32, BATCH_PACKETS>,
}

impl<'v> Found<'v, '_> {
    /// Of each of the first packets which group it is of.
    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Whether any of their groups is of IPv6, or leaves in clear.
    pub(super) fn is_mixed(&self) -> bool {
        self.mixed.is_some()
    }

    /// Of those in clear, in their order, the code of the route of each, which leads to a neighbour; they may end before the others.
    pub(super) fn codes(&self) -> &[u32] {
        self.mixed.map_or(&[], |mixed| &mixed.codes)
    }

    /// How a group leaves, if that is known. They are `MIXED` as [said](Found::is_mixed).
    #[inline(always)]
    pub(super) fn exit<const MIXED: bool>(&self, group: Group) -> Option<&Exit<'v>> {
        let exits = if MIXED && group.is_v6() { &self.mixed?.exits_v6 } else { &self.exits };
        exits.get(group.number())
    }
}

impl<'v> Mixed<'v> {
    /// Goes on behind the first exits of IPv4, which policies protect.
    #[inline(never)]
    fn go_on_by_policies(
        &mut self,
        exits: &mut Exits<'v>,
        (v4, presumed): (&Inquiry<'v>, &Presumed<'v>),
        v6: &InquiryV6<'v>,
        (slots, groups): (&[Slot<'_>], &[Group]),
        view: &'v View,
    ) {
        v4.answer(exits.len(), presumed, |lookup| push_any(exits, lookup, view));
        v6.answer(|lookup| push_any(&mut self.exits_v6, lookup, view));
        let (mut v4, mut v6) = (Addresses::<u32>::default(), Addresses::<u128>::default());
        let mut led = Groups::new();
        for (slot, group) in slots.iter().zip(groups) {
            let Some(exit) = self.exits_of(exits, *group).get(group.number()) else { break };
            if exit.sole.is_some() {
                continue;
            }
            let Some(flow) = parse::flow_again(&slot.frame, ethernet::HEADER_LEN) else { break };
            led.push(match flow.is_ipv6() {
                false => v4.note(u32::of_address(flow.dst)),
                true => v6.note(u128::of_address(flow.dst)),
            });
        }
        let (mut codes, mut codes_v6) = ([0; MANY], [0; MANY]);
        let codes_v6 = if v6.is_empty() { &[] } else { v6.codes(view, &mut codes_v6) };
        self.put_codes(&led, &Led { codes: v4.codes(view, &mut codes), codes_v6 }, view);
    }

    /// The same behind those that routes with these codes lead into tunnels.
    #[inline(never)]
    fn go_on_by_routes(
        &mut self,
        exits: &mut Exits<'v>,
        codes: &[u32],
        destinations: &Addresses<u128>,
        groups: &[Group],
        view: &'v View,
    ) {
        push_all(exits, codes, Family::V4, view);
        let mut codes_v6 = [0; MANY];
        let mut led = Led { codes, codes_v6: &[] };
        if !destinations.is_empty() {
            led.codes_v6 = destinations.codes(view, &mut codes_v6);
            push_all(&mut self.exits_v6, led.codes_v6, Family::V6, view);
        }
        let mut in_clear = Groups::new();
        for group in groups {
            match self.exits_of(exits, *group).get(group.number()) {
                Some(exit) if exit.sole.is_none() => in_clear.push(*group),
                Some(_) => {}
                None => break,
            }
        }
        self.put_codes(&in_clear, &led, view);
    }

    /// The exits of a group's family.
    fn exits_of<'e>(&'e self, exits: &'e Exits<'v>, group: Group) -> &'e Exits<'v> {
        if group.is_v6() { &self.exits_v6 } else { exits }
    }

    /// Puts down the codes of packets in clear, by the groups in which they are led.
    fn put_codes(&mut self, groups: &[Group], led: &Led<'_>, view: &View) {
        let packets = led.packets(groups, view);
        self.codes.extend(groups[..packets].iter().filter_map(|group| led.code(*group)));
    }
}

/// By what policies say. What there is to say of such as are `mixed` is put there.
#[inline(always)]
pub(super) fn by_policies<'v, 'm>(
    slots: &mut [Slot<'v>],
    view: &'v View,
    mixed: &'m mut Mixed<'v>,
) -> Found<'v, 'm> {
    let out = view.spd.side(Direction::Out);
    let (mut v4, mut v6) = (Inquiry::of(&out), InquiryV6::of(&out));
    let mut last = Last::default();
    let groups = admit(slots, view, |flow| v4.note(flow, &mut last), |fields| v6.note(fields));
    if groups.is_empty() {
        return Found::default();
    }
    let (mut exits, mut presumed) = (Exits::new(), Presumed::new());
    v4.presume(&mut presumed);
    v4.answer(0, &presumed, |lookup| push_protected(&mut exits, lookup, view));
    let is_mixed = exits.len() < v4.questions() || !v6.is_empty();
    if is_mixed {
        let packets = (&*slots, &groups[..]);
        mixed.go_on_by_policies(&mut exits, (&v4, &presumed), &v6, packets, view);
    }
    Found { exits, groups, mixed: is_mixed.then_some(mixed) }
}

/// Adds how a group leaves that policies say this of; whether one protects it, simply.
#[inline(always)]
fn push_protected<'v>(exits: &mut Exits<'v>, found: Lookup<'v>, view: &'v View) -> bool {
    let Lookup::Policy(policy) = found else { return false };
    let is_simple = policy.kind() == Kind::Protect && !policy.wants_own_sas();
    let bundle = policy.bundle().filter(|_| is_simple);
    let Some(sole) = bundle.and_then(|bundle| view.bundles.sole(bundle)) else { return false };
    exits.push(Exit { policy: Some(policy), sole: Some(sole) });
    true
}

/// The same of one that may leave in clear as well; whether it leaves.
fn push_any<'v>(exits: &mut Exits<'v>, found: Lookup<'v>, view: &'v View) -> bool {
    let policy = match found {
        Lookup::Default(DefaultAction::Accept) => None,
        Lookup::Policy(policy) if policy.kind() == Kind::Bypass => Some(policy),
        _ => return push_protected(exits, found, view),
    };
    exits.push(Exit { policy, sole: None });
    true
}

/// By where routes lead. What there is to say of such as are `mixed` is put there.
#[inline(always)]
pub(super) fn by_routes<'v, 'm>(
    slots: &mut [Slot<'v>],
    view: &'v View,
    mixed: &'m mut Mixed<'v>,
) -> Found<'v, 'm> {
    let (mut v4, mut v6) = (Addresses::<u32>::default(), Addresses::<u128>::default());
    let note = |flow: &Flow| v4.note(u32::of_address(flow.dst));
    let groups = admit(slots, view, note, |fields| v6.note(fields.destination));
    if groups.is_empty() {
        return Found::default();
    }
    let mut codes = [0; MANY];
    let codes = v4.codes(view, &mut codes);
    let mut exits = Exits::new();
    push_led(&mut exits, codes, Family::V4, view);
    let is_mixed = exits.len() < codes.len() || !v6.is_empty();
    if is_mixed {
        mixed.go_on_by_routes(&mut exits, codes, &v6, &groups, view);
    }
    Found { exits, groups, mixed: is_mixed.then_some(mixed) }
}

/// Adds how groups of a family leave whose routes have these codes, up to the first that leads into no tunnel, or into one that is
/// not simple.
#[inline(always)]
fn push_led<'v>(exits: &mut Exits<'v>, codes: &[u32], family: Family, view: &'v View) {
    let mut rows: ArrayVec<&Slots, MANY> = ArrayVec::new();
    for code in codes {
        let row = Fib::tunnel_of(*code).and_then(|number| view.tunnels.slots(number));
        let Some(row) = row else { break };
        prefetch(row);
        rows.push(row);
    }
    for row in rows {
        let Some(sole) = row.slot(family).and_then(|slot| view.bundles.sole(slot)) else { break };
        exits.push(Exit { policy: None, sole: Some(sole) });
    }
}

/// The same of groups of which some may leave in clear, behind those that are there, up to the first whose tunnel is not simple.
fn push_all<'v>(exits: &mut Exits<'v>, codes: &[u32], family: Family, view: &'v View) {
    let tunnel = |code: &u32| Fib::tunnel_of(*code).map(|number| view.tunnels.slots(number));
    let rows = || codes[exits.len()..].iter().map(tunnel);
    rows().flatten().flatten().for_each(prefetch);
    let mut others = Exits::new();
    for row in rows() {
        let sole = row.map(|row| row?.slot(family).and_then(|slot| view.bundles.sole(slot)));
        match sole {
            Some(None) => break,
            _ => others.push(Exit { policy: None, sole: sole.flatten() }),
        }
    }
    exits.extend(others);
}
