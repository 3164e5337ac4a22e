//! By whose word each of the first packets leaves by which SA.

use arrayvec::ArrayVec;
use wire::{ethernet, ipv4};

use crate::batch::{BATCH_PACKETS, Slot};
use crate::bundles::Sole;
use crate::cpu::{Cache, asked_cache};
use crate::fib::{Fib, MANY};
use crate::follow::aside::gather;
use crate::follow::lane::addresses::Addresses;
use crate::follow::lane::admit::{Groups, admit};
use crate::follow::lane::forwarding::{Away, Led};
use crate::follow::lane::group::Group;
use crate::follow::lane::inquiry::{Inquiry, InquiryV6, Last, Presumed};
use crate::parse;
use crate::policy::{Address, Direction, Kind, Policy};
use crate::prefix::Family;
use crate::sa::Sa;
use crate::spd::{DefaultAction, Lookup};
use crate::tunnel::simple_sa;
use crate::view::View;

/// How packets of a group leave: by an SA, unless they leave in clear or have to take the stages, and which policy says so, if one
/// does.
#[derive(Clone, Copy, Default)]
pub(super) struct Exit<'v> {
    pub(super) policy: Option<&'v Policy>,
    pub(super) sa: Option<&'v Sa>,
}

/// Those of the groups of a family.
type Exits<'v> = ArrayVec<Exit<'v>, BATCH_PACKETS>;

/// How the first packets leave.
#[derive(Default)]
pub(super) struct Found<'v> {
    exits: Exits<'v>,
    groups: Groups,
    is_mixed: bool,
}

/// What there is to say beside that where other packets are mixed with those of IPv4 for tunnels: of IPv6, in clear, or such as take
/// the stages. By itself, as the other is moved.
pub(super) struct Mixed<'v> {
    /// Of which VRF all are.
    vrf: u32,
    exits_v6: Exits<'v>,
    /// Of each family, by their bits, the groups that leave in clear.
    clear: [u64; 2],
    /// Of the packets in clear, in their order, the codes of their routes, and how many of the first lead away.
    codes: ArrayVec<u32, BATCH_PACKETS>,
    away: usize,
}

impl<'v> Found<'v> {
    /// Of each of the first packets which group it is of.
    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Whether others are mixed with those of IPv4 for tunnels.
    pub(super) fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// How a group leaves, if that is known.
    #[inline(always)]
    pub(super) fn exit<const MIXED: bool>(
        &self,
        group: Group,
        mixed: &Mixed<'v>,
    ) -> Option<Exit<'v>> {
        match MIXED {
            false => self.exits.get(group.number()).copied(),
            true => mixed.exit(&self.exits, group),
        }
    }

    /// How many of the first packets, which are mixed, leave, so that none of them needs the stages.
    pub(super) fn leaving(&self, mixed: &Mixed<'v>) -> usize {
        let mut codes = mixed.codes().iter();
        let leaves = |group: &&Group| match self.exit::<true>(**group, mixed) {
            Some(Exit { sa: Some(_), .. }) => true,
            Some(_) => mixed.is_in_clear(**group) && codes.next().is_some(),
            None => false,
        };
        self.groups.iter().take_while(leaves).count()
    }

    /// Whether any of so many packets, which are mixed, is to be sealed, or leaves by the word of a policy.
    pub(super) fn seals(&self, packets: usize, mixed: &Mixed<'v>) -> bool {
        let mut exits =
            self.groups[..packets].iter().filter_map(|group| self.exit::<true>(*group, mixed));
        exits.any(|exit| exit.sa.is_some() || exit.policy.is_some())
    }

    /// Puts packets behind the others that have no SA, or are in clear and their routes do not lead away; and those behind them that
    /// are between the same hosts.
    #[inline(never)]
    pub(super) fn part(&mut self, slots: &mut [Slot<'_>], mixed: &mut Mixed<'v>, view: &View) {
        let mut codes = std::mem::take(&mut mixed.codes).into_iter();
        let mut away = Away::none();
        let leaves = self.groups.iter().map(|group| match self.exit::<true>(*group, mixed)?.sa {
            Some(_) => Some((*group, None)),
            None if mixed.is_in_clear(*group) => {
                let code = codes.next().filter(|code| away.is(*code, view))?;
                Some((*group, Some(code)))
            }
            None => None,
        });
        let leaves: ArrayVec<_, BATCH_PACKETS> = leaves.collect();
        let leaving = gather(&mut slots[..leaves.len()], None, |at, _| leaves[at]);
        self.groups = leaving.iter().map(|(group, _)| *group).collect();
        mixed.codes = leaving.iter().filter_map(|(_, code)| *code).collect();
        mixed.away = mixed.codes.len();
        self.is_mixed = true;
    }

    /// Puts packets first that have an SA, but for those that are behind others between the same hosts.
    #[inline(never)]
    pub(super) fn part_sealed(&mut self, slots: &mut [Slot<'_>], mixed: &Mixed<'v>) {
        let has_sa = |group: &Group| self.exit::<true>(*group, mixed)?.sa.map(|_| *group);
        let leaves: ArrayVec<_, BATCH_PACKETS> = self.groups.iter().map(has_sa).collect();
        self.groups = gather(&mut slots[..leaves.len()], None, |at, _| leaves[at]);
    }
}

impl<'v> Mixed<'v> {
    /// Nothing yet, of packets of a VRF.
    pub(super) fn of(vrf: u32) -> Mixed<'v> {
        let (exits_v6, codes) = (Exits::new(), ArrayVec::new());
        Mixed { vrf, exits_v6, clear: [0; 2], codes, away: 0 }
    }

    /// Of those in clear, in their order, the codes of their routes, up to the first that does not lead away.
    pub(super) fn codes(&self) -> &[u32] {
        &self.codes[..self.away]
    }

    /// Puts these codes down, if they are all known.
    fn put(&mut self, codes: impl Iterator<Item = Option<u32>>, view: &View) {
        self.codes.extend(codes.map_while(|code| code));
        let mut away = Away::none();
        self.away = self.codes.iter().take_while(|code| away.is(**code, view)).count();
    }

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
        let [clear, clear_v6] = &mut self.clear;
        v4.answer(exits.len(), presumed, |lookup| push_any(exits, clear, lookup, view));
        v6.answer(|lookup| push_any(&mut self.exits_v6, clear_v6, lookup, view));
        let (mut v4, mut v6) = (Addresses::<u32>::default(), Addresses::<u128>::default());
        let mut led = Groups::new();
        for (slot, group) in slots.iter().zip(groups.iter()) {
            if !self.is_in_clear(*group) {
                continue;
            }
            let Some(flow) = parse::flow_again(&slot.frame, ethernet::HEADER_LEN) else { break };
            led.push(match flow.is_ipv6() {
                false => v4.note(u32::of_address(flow.dst)),
                true => v6.note(u128::of_address(flow.dst)),
            });
        }
        let (mut codes, mut codes_v6) = ([0; MANY], [0; MANY]);
        let codes_v6 = if v6.is_empty() { &[] } else { v6.codes(self.vrf, view, &mut codes_v6) };
        let by_group = Led { codes: v4.codes(self.vrf, view, &mut codes), codes_v6 };
        self.put(led.iter().map(|group| by_group.code(*group)), view);
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
        let [clear, clear_v6] = &mut self.clear;
        push_all(exits, clear, codes, Family::V4, view);
        let mut codes_v6 = [0; MANY];
        let mut by_group = Led { codes, codes_v6: &[] };
        if !destinations.is_empty() {
            by_group.codes_v6 = destinations.codes(self.vrf, view, &mut codes_v6);
            push_all(&mut self.exits_v6, clear_v6, by_group.codes_v6, Family::V6, view);
        }
        let is_in_clear = |group: &&Group| self.is_in_clear(**group);
        let led: Groups = groups.iter().filter(is_in_clear).copied().collect();
        self.put(led.iter().map(|group| by_group.code(*group)), view);
    }

    /// How a group leaves, if that is known.
    #[inline(always)]
    fn exit(&self, exits: &Exits<'v>, group: Group) -> Option<Exit<'v>> {
        let exits = if group.is_v6() { &self.exits_v6 } else { exits };
        exits.get(group.number()).copied()
    }

    /// Whether a group leaves in clear.
    pub(super) fn is_in_clear(&self, group: Group) -> bool {
        self.clear[usize::from(group.is_v6())] >> group.number() & 1 != 0
    }
}

/// By what policies say. What there is to say of such as are `mixed` is put there. A function for packets that are `LENT` and one for
/// others: of what one function says two callers have compiled into them less than one has.
#[inline(always)]
pub(super) fn by_policies<'v, const SECOND: bool, const LENT: bool>(
    slots: &mut [Slot<'v>],
    view: &'v View,
    mixed: &mut Mixed<'v>,
) -> Found<'v> {
    let cache = Cache::second_if(SECOND);
    let out = view.spd.side(Direction::Out);
    let (mut v4, mut v6) = (Inquiry::of(&out), InquiryV6::of(&out));
    let mut last = Last::default();
    let note = |header: &ipv4::Plain| v4.note(header, &mut last, cache);
    let groups = admit(slots, view, cache, note, |fields| v6.note(fields));
    if groups.is_empty() {
        return Found::default();
    }
    let (mut exits, mut presumed) = (Exits::new(), Presumed::new());
    v4.presume(&mut presumed, cache);
    // In two steps: whether a policy is the one that decides is a branch, and behind one that it does not foresee a processor reads
    // nothing ahead by itself.
    let mut soles: ArrayVec<(&Policy, Sole<'_>), BATCH_PACKETS> = ArrayVec::new();
    v4.answer(0, &presumed, |lookup| {
        let Some((policy, slot)) = protected(lookup) else { return false };
        let Some(sole) = view.bundles.sole(slot, cache) else { return false };
        soles.push((policy, sole));
        true
    });
    exits.extend(soles.into_iter().map_while(|(policy, sole)| {
        let sa = sole.sa()?;
        sa.prefetch(cache);
        Some(Exit { policy: Some(policy), sa: Some(sa) })
    }));
    let is_mixed = exits.len() < v4.questions() || !v6.is_empty();
    if is_mixed {
        let packets = (&*slots, &groups[..]);
        mixed.go_on_by_policies(&mut exits, (&v4, &presumed), &v6, packets, view);
    }
    Found { exits, groups, is_mixed }
}

/// The policy that protects a group, simply, of which policies say this, and the slot in which its SA is.
#[inline(always)]
fn protected<'v>(found: Lookup<'v>) -> Option<(&'v Policy, u32)> {
    let Lookup::Policy(policy) = found else { return None };
    Some((policy, policy.shared_bundle()?))
}

/// Adds how any group leaves that policies say this of; of one that needs the stages that it has no SA.
fn push_any<'v>(exits: &mut Exits<'v>, clear: &mut u64, found: Lookup<'v>, view: &'v View) -> bool {
    let by_sa = || {
        let (policy, slot) = protected(found)?;
        let sa = view.bundles.sa(slot)?;
        sa.prefetch(asked_cache());
        Some(Exit { policy: Some(policy), sa: Some(sa) })
    };
    let (exit, is_in_clear) = match found {
        Lookup::Default(DefaultAction::Accept) => (Exit::default(), true),
        Lookup::Policy(policy) if policy.kind() == Kind::Bypass => {
            (Exit { policy: Some(policy), sa: None }, true)
        }
        _ => (by_sa().unwrap_or_default(), false),
    };
    *clear |= u64::from(is_in_clear) << exits.len();
    exits.push(exit);
    true
}

/// By where routes lead. What there is to say of such as are `mixed` is put there.
#[inline(always)]
pub(super) fn by_routes<'v, const SECOND: bool>(
    slots: &mut [Slot<'v>],
    view: &'v View,
    mixed: &mut Mixed<'v>,
) -> Found<'v> {
    let cache = Cache::second_if(SECOND);
    let (mut v4, mut v6) = (Addresses::<u32>::default(), Addresses::<u128>::default());
    let note = |header: &ipv4::Plain| v4.note(header.destination().to_bits());
    let groups = admit(slots, view, cache, note, |fields| v6.note(fields.destination));
    if groups.is_empty() {
        return Found::default();
    }
    let mut codes = [0; MANY];
    let codes = v4.codes(mixed.vrf, view, &mut codes);
    let mut exits = Exits::new();
    push_led(&mut exits, codes, Family::V4, view, cache);
    let is_mixed = exits.len() < codes.len() || !v6.is_empty();
    if is_mixed {
        mixed.go_on_by_routes(&mut exits, codes, &v6, &groups, view);
    }
    Found { exits, groups, is_mixed }
}

/// Adds how groups of a family leave whose routes have these codes, up to the first that leads into no tunnel, or into one that is
/// not simple.
#[inline(always)]
fn push_led<'v>(
    exits: &mut Exits<'v>,
    codes: &[u32],
    family: Family,
    view: &'v View,
    cache: Cache,
) {
    exits.extend(codes.iter().map_while(|code| {
        let sa = simple_sa(Fib::tunnel_of(*code)?, family, view)?;
        sa.prefetch(cache);
        Some(Exit { policy: None, sa: Some(sa) })
    }));
}

/// The same of any, behind those that are there; of one whose tunnel is not simple that it has no SA.
fn push_all<'v>(
    exits: &mut Exits<'v>,
    clear: &mut u64,
    codes: &[u32],
    family: Family,
    view: &'v View,
) {
    let cache = asked_cache();
    for code in &codes[exits.len()..] {
        let row = Fib::tunnel_of(*code);
        let sa = row.and_then(|row| simple_sa(row, family, view));
        if let Some(sa) = sa {
            sa.prefetch(cache);
        }
        *clear |= u64::from(row.is_none()) << exits.len();
        exits.push(Exit { policy: None, sa });
    }
}
