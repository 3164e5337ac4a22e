//! Stage `inspect`, between `accept` and `hop`: was it right for this packet to come in the way it came?
//!
//! RFC 4301 §5.2, with the meaning XFRM gives it. A packet out of a tunnel must fit the selector of
//! the SA that carried it, and the policy that covers it must ask for just such an SA. A packet in
//! clear must not be covered by a policy that protects. Whoever holds one tunnel's keys can thus
//! not speak for another's addresses, and nobody can without keys.
//!
//! What passes here is forwarded, or handed to this host; what goes out, and how, `choose` decides. Where no
//! policy can say anything of packets in clear, `classify` has seen to them already.

mod forwarded;
mod martian;
mod standing;
#[cfg(test)]
mod twin;
mod way_back;

use wire::flow::{Flow, Fragment};

use crate::batch::{BATCH_PACKETS, Batch, Slot, Turn, is_same};
use crate::classify::is_local;
use crate::cpu::asked_cache;
use crate::flows::Flows;
use crate::policy::{Action, Direction, Kind, Policy};
use crate::punt::to_host;
use crate::runs::{Run, Runs};
use crate::sa::{Mode, Sa};
use crate::selector::Selector;
use crate::spd::{DefaultAction, Lookup, Side};
use crate::verdict::Verdict;
use crate::view::View;
use crate::vrfs::refuse_unknown;

use martian::may_reach_host;
pub(crate) use martian::{check_addresses, may_be_martians};
pub(crate) use standing::{Standing, Word};
pub(crate) use way_back::{Back, do_routes_decide_alone};

/// Checks every packet against the policies of the direction it takes.
///
/// 1. Its addresses. Is whatever comes out of its tunnel [welcome](Standing)? Which of the other packets are of
///    one run? For each run, ask for the memory in which its policy is found.
/// 2. By then it has come: the policy that presumably decides; ask for its memory.
/// 3. Does it? Then
/// 4. decide; but of what came out of tunnels of route mode and no policy lets in
/// 5. ask the routes, all of them together.
///
/// Where packets are as nearly all are that come through tunnels, it is done in fewer steps (`forwarded`).
pub(crate) fn inspect<'v>(batch: &mut Batch<'v>, view: &'v View, turn: &mut Turn<'_>) {
    if view.vrfs.in_use() {
        refuse_unknown(batch, view);
    }
    if view.welcomes_clear() && !batch.brings_opened() {
        return;
    }
    let sides = Sides::of(view);
    let standing = sides.are_of_tunnels().then(|| Standing::of(view, turn));
    let forward = sides.side(0, Direction::Forward);
    let is_simple = standing.is_none() && !Flows::is_worth_it(forward);
    let many = forward.many().filter(|_| is_simple);
    for slots in batch.slots.chunks_mut(BATCH_PACKETS) {
        if let Some(many) = many
            && forwarded::all(slots, many, view, turn)
        {
            continue;
        }
        let welcome = standing.map_or(0, |standing| standing.welcome(slots, view));
        let mut runs = Runs::new();
        find_runs(slots, welcome, &mut runs, &sides, view, turn);
        for run in runs.iter_mut() {
            run.presumed = recall(run, slots, &sides, turn);
        }
        for run in runs.iter_mut() {
            run.found = find(run, slots, &sides, turn);
            if let Lookup::Policy(policy) = run.found {
                policy.prefetch(asked_cache());
            }
        }
        let mut any_unwelcome = false;
        for run in runs.iter_mut() {
            inspect_run(run, slots, view, turn);
            any_unwelcome |= run.unwelcome.is_some();
        }
        if let Some(standing) = standing {
            runs.iter_mut().for_each(|run| standing.note(run, slots, &sides));
        }
        if any_unwelcome {
            way_back::decide(runs.iter_mut(), slots, view);
        }
    }
}

/// The policies of the two directions that packets take on their way in, outside of route mode and of its
/// tunnels.
struct Sides<'v>([[Side<'v>; 2]; 2]);

impl<'v> Sides<'v> {
    #[inline]
    fn of(view: &'v View) -> Sides<'v> {
        Sides([false, true].map(|of_tunnels| {
            [Direction::In, Direction::Forward]
                .map(|direction| view.spd.side_of(direction, of_tunnels))
        }))
    }

    /// Whether there are policies of tunnels.
    #[inline]
    fn are_of_tunnels(&self) -> bool {
        self.0[1].iter().any(|side| !side.is_empty())
    }

    #[inline]
    fn side(&self, if_id: u32, direction: Direction) -> &Side<'v> {
        &self.0[usize::from(if_id != 0)][usize::from(direction == Direction::Forward)]
    }
}

/// Who a packet came through, and where it goes: one run's packets have it in common.
#[derive(Clone, Copy)]
struct Way<'v> {
    sa: Option<&'v Sa>,
    direction: Direction,
}

impl<'v> Way<'v> {
    #[inline]
    fn of(slot: &Slot<'v>, view: &View) -> Way<'v> {
        // Only a packet out of a tunnel can be local here: `classify` ended the others.
        let for_host = slot.inbound.is_some() && is_local(&slot.flow.dst, view);
        let direction = if for_host { Direction::In } else { Direction::Forward };
        Way { sa: slot.inbound, direction }
    }

    /// The tunnel of route mode that it came through; 0 if none.
    #[inline]
    fn if_id(&self) -> u32 {
        self.sa.map_or(0, |sa| sa.hot().if_id)
    }

    /// Whether a packet that goes this way is only to be asked about together with itself.
    #[inline]
    fn is_single(&self) -> bool {
        // Selectors of SAs look at more than the policies do.
        self.sa.is_some_and(Sa::is_selective)
    }

    #[inline]
    fn same(&self, other: &Way<'_>) -> bool {
        let sa = |way: &Way<'_>| way.sa.map(|sa| &raw const *sa);
        self.direction == other.direction && sa(self) == sa(other) && !self.is_single()
    }
}

/// The first pass. Of slots whose bit is set in `welcome`, nothing is asked.
#[inline]
fn find_runs<'v>(
    slots: &mut [Slot<'v>],
    welcome: u64,
    runs: &mut Runs<'v>,
    sides: &Sides<'v>,
    view: &'v View,
    turn: &Turn<'_>,
) {
    let clear_is_welcome = view.welcomes_clear();
    let mut first: Option<(usize, Way<'v>, &Side<'v>)> = None;
    for at in 0..slots.len() {
        let slot = &mut slots[at];
        if slot.verdict.is_some() {
            continue;
        }
        if welcome >> at & 1 != 0 {
            first = None;
            continue;
        }
        // What the host itself sends comes in nowhere: only its way out is asked for, by `choose`.
        if slot.is_hosts(view) {
            first = None;
            continue;
        }
        // It goes on, as in clear there is nothing for this host here; `classify` saw its addresses.
        if slot.inbound.is_none() && clear_is_welcome {
            first = None;
            continue;
        }
        // Most come through the SA, from and to the hosts, that the one before came through.
        if let Some((other, known, side)) = &first
            && known.sa.is_some_and(|sa| is_same(slots[at].inbound, sa))
            && !known.is_single()
            && same_ends(&slots[*other].flow, &slots[at].flow)
            && side.same(&slots[*other].flow, &slots[at].flow)
        {
            runs.extend(at);
            continue;
        }
        let slot = &mut slots[at];
        let way = Way::of(slot, view);
        if let Err(verdict) = check_addresses(&slot.flow)
            && !(way.direction == Direction::In && may_reach_host(&slot.flow))
        {
            slot.refuse(slot.inbound, verdict);
            continue;
        }
        let (flow, same) =
            (&slots[at].flow, |(other, known, side): (usize, Way<'_>, &Side<'_>)| {
                known.same(&way) && side.same(&slots[other].flow, &slots[at].flow)
            });
        if first.is_some_and(same) {
            runs.extend(at);
        } else {
            let if_id = way.if_id();
            let side = sides.side(if_id, way.direction);
            // What is known of flows is known of those outside of route mode.
            let asked = match if_id {
                0 => turn.flows.ask(side, flow),
                _ => side.ask(if_id, flow, asked_cache()),
            };
            runs.begin(at, way.direction, asked);
            first = Some((at, way, side));
        }
    }
}

#[inline]
fn same_ends(one: &Flow, other: &Flow) -> bool {
    one.src == other.src && one.dst == other.dst
}

/// Asks for the memory of what is known of a run's flow; the policy that presumably decides it.
#[inline]
fn recall<'v>(
    run: &Run<'v>,
    slots: &[Slot<'v>],
    sides: &Sides<'v>,
    turn: &Turn<'_>,
) -> Option<&'v Policy> {
    let (if_id, side) = side_of(run, slots, sides);
    let flow = &run.first(slots).flow;
    match if_id {
        0 => turn.flows.recall(side, flow, run.asked),
        _ => side.presume(if_id, flow, run.asked, asked_cache()),
    }
}

/// What the policies of the packets' direction say.
#[inline]
fn find<'v>(
    run: &Run<'v>,
    slots: &[Slot<'v>],
    sides: &Sides<'v>,
    turn: &mut Turn<'_>,
) -> Lookup<'v> {
    let (if_id, side) = side_of(run, slots, sides);
    let flow = &run.first(slots).flow;
    match if_id {
        0 => turn.flows.lookup(side, flow, run.asked, run.presumed),
        _ => side.lookup(if_id, flow, run.asked, run.presumed),
    }
}

/// The `if_id` of the tunnel that a run's packets came through, or 0, and the policies that are asked about them.
#[inline]
fn side_of<'a, 'v>(run: &Run<'v>, slots: &[Slot<'v>], sides: &'a Sides<'v>) -> (u32, &'a Side<'v>) {
    let if_id = run.first(slots).inbound.map_or(0, |sa| sa.hot().if_id);
    (if_id, sides.side(if_id, run.direction))
}

/// The last pass.
#[inline]
fn inspect_run<'v>(run: &mut Run<'v>, slots: &mut [Slot<'v>], view: &'v View, turn: &mut Turn<'_>) {
    let slot = run.first(slots);
    let flow = &slot.flow;
    let policy = match slot.inbound {
        Some(sa) => inspect_opened(flow, sa, run.found),
        None => inspect_clear(flow, run.found),
    };
    match policy {
        Err(verdict) if slot.inbound.is_some_and(|sa| is_for_routes(verdict, sa, run.found)) => {
            run.unwelcome = Some(verdict);
            return;
        }
        Err(verdict) => run.of(slots).for_each(|slot| slot.refuse(slot.inbound, verdict)),
        Ok(Some(policy)) => run.count(policy, slots, turn),
        Ok(None) => {}
    }
    if run.direction == Direction::In {
        for slot in run.of(slots) {
            if let Err(verdict) = to_host(slot, view) {
                slot.refuse(slot.inbound, verdict);
            }
        }
    }
}

/// Whether the routes are asked about a packet that no policy lets in. A policy has room for one far end only: where
/// a tunnel's packets come from among those that their far ends tell apart, the routes say, unless what no policy
/// lets in is to be blocked.
#[inline]
fn is_for_routes(verdict: Verdict, sa: &Sa, found: Lookup<'_>) -> bool {
    sa.hot().if_id != 0
        && matches!(verdict, Verdict::NoPolicy | Verdict::PolicyMismatch)
        && !matches!(found, Lookup::Default(DefaultAction::Block))
}

/// A packet that came through `sa`; the policy that lets it pass.
fn inspect_opened<'v>(
    flow: &Flow,
    sa: &Sa,
    found: Lookup<'v>,
) -> Result<Option<&'v Policy>, Verdict> {
    if sa.is_selective()
        && let Some(selector) = sa.selector()
    {
        check_selector(flow, selector)?;
    }
    // As in Linux, transport mode adds to a packet that would be welcome in clear, too: its
    // addresses are the peer's own, so it says nothing that the peer could not say without
    // (`secpath_has_nontransport`).
    let is_transport = sa.hot().traits.mode() == Mode::Transport;
    let policy = match found {
        Lookup::Policy(policy) => policy,
        Lookup::PortsNeeded => return Err(Verdict::FragmentOfPortPolicy),
        Lookup::Default(DefaultAction::Accept) if is_transport => return Ok(None),
        Lookup::Default(_) => return Err(Verdict::NoPolicy),
    };
    match policy.kind() {
        Kind::Discard => Err(Verdict::PolicyBlock),
        Kind::Protect if is_welcome(policy, sa) => {
            check_ports_known(flow, policy)?;
            Ok(Some(policy))
        }
        Kind::Bypass if is_transport => Ok(Some(policy)),
        Kind::Protect | Kind::Bypass => Err(Verdict::PolicyMismatch),
    }
}

/// Whether the SA's own selector admits the packet.
fn check_selector(flow: &Flow, selector: &Selector) -> Result<(), Verdict> {
    check_ports_seen(flow, selector.selects_ports())?;
    if selector.matches(flow) { Ok(()) } else { Err(Verdict::SelectorMismatch) }
}

/// Whether a protect policy asks for just such an SA. Neither of the two ever changes, so what was once
/// found goes on being so.
#[inline(always)]
pub(crate) fn is_welcome(policy: &Policy, sa: &Sa) -> bool {
    sa.hot().is_welcomed_by(policy.id()) || becomes_welcome(policy, sa)
}

#[cold]
#[inline(never)]
fn becomes_welcome(policy: &Policy, sa: &Sa) -> bool {
    let Action::Protect { template, .. } = policy.action() else { return false };
    let welcome =
        template.accepts(sa) || sa.hot().traits.mode() == Mode::Transport && template.optional;
    if welcome {
        sa.hot().welcome_by(policy.id());
    }
    welcome
}

/// A packet that came in clear; the policy that lets it pass, if it was not the default action.
fn inspect_clear<'v>(flow: &Flow, found: Lookup<'v>) -> Result<Option<&'v Policy>, Verdict> {
    let policy = match found {
        Lookup::Policy(policy) => policy,
        Lookup::PortsNeeded => return Err(Verdict::FragmentOfPortPolicy),
        Lookup::Default(DefaultAction::Accept) => return Ok(None),
        Lookup::Default(DefaultAction::Block) => return Err(Verdict::NoPolicy),
    };
    match policy.kind() {
        Kind::Discard => Err(Verdict::PolicyBlock),
        Kind::Protect if !policy.is_optional() => Err(Verdict::ClearOfProtected),
        Kind::Protect | Kind::Bypass => {
            check_ports_known(flow, policy)?;
            Ok(Some(policy))
        }
    }
}

/// A fragment passes only where ports do not matter (RFC 4301 §7): the first one shows them, but
/// those that follow could not, and half a packet is of no use.
#[inline]
pub(crate) fn check_ports_known(flow: &Flow, policy: &Policy) -> Result<(), Verdict> {
    check_ports_seen(flow, policy.is_by_ports())
}

#[inline]
fn check_ports_seen(flow: &Flow, by_ports: bool) -> Result<(), Verdict> {
    match flow.fragment != Fragment::Whole && by_ports {
        true => Err(Verdict::FragmentOfPortPolicy),
        false => Ok(()),
    }
}
