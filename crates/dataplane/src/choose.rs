//! Stage `choose`, between `hop` and `seal`: the outbound policy, and the SA where it asks for one.
//!
//! 1. Which packets are of one run? For each run, ask for the memory in which its policy is found.
//! 2. By then it has come: the policy that presumably decides, or the row of the tunnel that a packet's route
//!    leads into; ask for the memory of that.
//! 3. Does it decide, and what does it say? Ask for the memory of the slot in which its SA is.
//! 4. The SA; ask for its memory, which `seal` is about to need.
//!
//! Packets without a protect policy leave in clear. Nothing in a packet is changed here. Where no policy can
//! say anything and nobody waits for an SA, only routes are asked, if any leads into a tunnel; and where only
//! policies can, and packets are as nearly all are, it is done in fewer steps (`protect`).

mod protect;

use wire::flow::Flow;

use crate::batch::{BATCH_PACKETS, Batch, Slot, Turn};
use crate::bundles::{Sole, Whose};
use crate::cpu::asked_cache;
use crate::flows::Flows;
use crate::hold::{Stay, far_of};
use crate::inspect::check_ports_known;
use crate::policy::{Action, Direction, Kind, Policy, Template};
use crate::runs::{Run, Runs};
use crate::sa::Mode;
use crate::spd::{DefaultAction, Lookup, Side};
use crate::transport;
use crate::tunnel::{self, Entrance};
use crate::verdict::Verdict;
use crate::view::View;

/// Applies the outbound policy to every packet, and sets the SA of those that are to be sealed.
pub(crate) fn choose<'v>(batch: &mut Batch<'v>, view: &'v View, turn: &mut Turn<'_>) {
    let side = view.spd.side(Direction::Out);
    let by_routes_alone = side.is_silent() && !batch.rejoined && turn.hold.len() == 0;
    if by_routes_alone && !view.has_tunnels() {
        return;
    }
    batch.seals = true;
    let is_cached = Flows::is_worth_it(&side);
    let by_policies_alone =
        !view.has_tunnels() && !is_cached && !batch.rejoined && turn.hold.len() == 0;
    let many = side.many().filter(|_| by_policies_alone);
    for slots in batch.slots.chunks_mut(BATCH_PACKETS) {
        if by_routes_alone && !view.vrfs.in_use() && tunnel::enter_all(slots, view, turn) {
            continue;
        }
        if let Some(many) = many
            && protect::all(slots, many, view, turn)
        {
            continue;
        }
        let mut runs = Runs::new();
        find_runs(slots, &mut runs, &side, turn);
        for run in runs.iter_mut() {
            run.presumed = turn.flows.recall(&side, &run.first(slots).flow, run.asked);
        }
        for run in runs.iter_mut() {
            let flow = &run.first(slots).flow;
            run.found = turn.flows.lookup(&side, flow, run.asked, run.presumed);
            if let Lookup::Policy(policy) = run.found {
                policy.prefetch(asked_cache());
                if view.has_tunnels() {
                    run.of(slots).for_each(|slot| slot.policy = Some(policy));
                }
            }
        }
        tunnel::ask_all(slots, view);
        for run in runs.iter_mut() {
            ask(run, slots, view, turn);
        }
        for run in runs.iter_mut() {
            choose_run(run, slots, view, turn);
        }
    }
}

/// The first pass.
#[inline]
fn find_runs<'v>(slots: &[Slot<'v>], runs: &mut Runs<'v>, side: &Side<'v>, turn: &Turn<'_>) {
    if side.is_silent() && !slots.is_empty() {
        // One run, whoever is in it. An empty database wants nothing asked before it is.
        runs.begin(0, Direction::Out, 0);
        return runs.extend(slots.len() - 1);
    }
    let mut first: Option<&Flow> = None;
    for (at, slot) in slots.iter().enumerate().filter(|(_, slot)| slot.verdict.is_none()) {
        match first {
            Some(flow) if side.same(flow, &slot.flow) => runs.extend(at),
            _ => {
                runs.begin(at, Direction::Out, turn.flows.ask(side, &slot.flow));
                first = Some(&slot.flow);
            }
        }
    }
}

/// The third pass: leaves in the run, or in its slots, who says which SA it is, if anybody asks for one.
#[inline]
fn ask<'v>(run: &mut Run<'v>, slots: &mut [Slot<'v>], view: &'v View, turn: &Turn<'_>) {
    let policy = match run.found {
        Lookup::Policy(policy) => policy,
        Lookup::PortsNeeded => return decide(run, slots, Verdict::FragmentOfPortPolicy),
        Lookup::Default(DefaultAction::Accept) => return find_tunnels(run, slots, view),
        Lookup::Default(DefaultAction::Block) => {
            return decide(run, slots, Verdict::OutPolicyBlock);
        }
    };
    if let Err(verdict) = check_ports_known(&run.first(slots).flow, policy) {
        return decide(run, slots, verdict);
    }
    match policy.kind() {
        Kind::Discard => decide(run, slots, Verdict::OutPolicyBlock),
        Kind::Bypass => {
            run.count(policy, slots, turn);
            find_tunnels(run, slots, view);
        }
        Kind::Protect => {
            run.sole = policy.bundle().and_then(|number| view.bundles.sole(number, asked_cache()));
        }
    }
}

#[cold]
fn decide<'v>(run: &Run<'v>, slots: &mut [Slot<'v>], verdict: Verdict) {
    run.of(slots).for_each(|slot| slot.decide(verdict));
}

/// The tunnels that routes lead into, of packets that no policy protects.
#[inline]
fn find_tunnels<'v>(run: &Run<'v>, slots: &mut [Slot<'v>], view: &'v View) {
    if !view.has_tunnels() {
        return;
    }
    let mut last = None;
    for slot in run.of(slots) {
        // Packets to one tunnel often come together.
        let to = (slot.lead.code(), slot.flow.is_ipv6());
        match last {
            Some((known, tunnel)) if known == to => slot.tunnel = Some(tunnel),
            _ => match tunnel::find(slot, view) {
                Ok(()) => last = slot.tunnel.filter(|_| to.0.is_some()).map(|tunnel| (to, tunnel)),
                Err(verdict) => slot.decide(verdict),
            },
        }
    }
}

/// The last pass: sets the SA of packets that must be sealed.
#[inline]
fn choose_run<'v>(run: &Run<'v>, slots: &mut [Slot<'v>], view: &'v View, turn: &mut Turn<'_>) {
    let policy = match run.found {
        Lookup::Policy(policy) if policy.kind() == Kind::Protect => Some(policy),
        _ => None,
    };
    // Nearly always all of them take one SA, which is there and which nobody waits for.
    if let Some(policy) = policy
        && let Some(sa) = run.sole.and_then(Sole::sa)
        && turn.hold.len() == 0
        && !policy.wants_own_sas()
    {
        sa.prefetch(asked_cache());
        run.count_each(policy, slots, turn, |slot| {
            slot.policy = Some(policy);
            slot.outbound = Some(sa);
        });
        return;
    }
    // As easily where a route leads into a tunnel: the SA need not be read to know that it takes everything.
    let is_plain = policy.is_none() && turn.hold.len() == 0;
    for slot in run.of(slots) {
        if is_plain && let Some(sa) = slot.tunnel.and_then(Entrance::simple) {
            sa.prefetch(asked_cache());
            slot.outbound = Some(sa);
            continue;
        }
        match choose_one(slot, policy, view, turn) {
            // Whatever the policies say now: a packet that waited to be protected is not for clear.
            Ok(()) if slot.stay.is_some() && slot.outbound.is_none() => {
                slot.decide(Verdict::HoldPolicyGone);
            }
            Ok(()) => {}
            Err(verdict) => slot.decide(verdict),
        }
    }
}

/// The long way, for one packet.
fn choose_one<'v>(
    slot: &mut Slot<'v>,
    policy: Option<&'v Policy>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> Result<(), Verdict> {
    slot.policy = policy;
    if let Some(policy) = policy
        && let Action::Protect { template, bundle } = policy.action()
    {
        protect(slot, policy, &template, bundle, view, turn)?;
        policy.count(turn.seat, 1, slot.frame.len() as u64, turn.now_ns);
        // What no policy sealed may still have a route into a tunnel.
        if slot.outbound.is_none() {
            tunnel::find(slot, view)?;
        }
    }
    match slot.tunnel {
        Some(tunnel) => tunnel::enter(slot, tunnel, view, turn),
        None => Ok(()),
    }
}

/// Finds the SA that a policy wants for a packet, in the slot `bundle` or by the packet's own ends.
/// Without one, and without an error, the policy is content with clear.
#[inline]
pub(crate) fn protect<'v>(
    slot: &mut Slot<'v>,
    policy: &Policy,
    template: &Template,
    bundle: Option<u32>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> Result<(), Verdict> {
    let bundle = match template.mode {
        Mode::Tunnel => bundle,
        Mode::Transport => transport::slot(&view.transport, policy, template, &slot.flow),
    };
    let chosen = bundle.and_then(|slot| view.bundles.choose(slot, turn.worker));
    match chosen.filter(|(sa, _)| sa.admits(&slot.flow)) {
        Some((sa, _)) if slot.stay.is_none() && turn.hold.must_follow(slot, policy, sa) => {
            slot.stay = Some(Stay::begin(slot, policy, turn.now_ns));
            return Err(Verdict::NoSa);
        }
        Some((sa, whose)) => {
            note_whose(whose, policy, &slot.flow, turn);
            sa.prefetch(asked_cache());
            slot.outbound = Some(sa);
        }
        // As Linux: in clear until there is one, for which somebody is asked.
        None if template.optional => want_sa(policy, slot, turn),
        None => return Err(missing_sa(policy, slot, view, turn)),
    }
    Ok(())
}

/// RFC 9611 §3: a packet leaves by the SA for all while its worker has none of its own, and one is
/// asked for if the policy says so.
#[inline]
fn note_whose(whose: Whose, policy: &Policy, flow: &Flow, turn: &mut Turn<'_>) {
    match whose {
        Whose::Own => turn.counters.count_own_sa(1),
        Whose::Everybodys if !policy.wants_own_sas() => {}
        Whose::Everybodys | Whose::Fallback => {
            turn.counters.count_fallback_sa();
            if let Some(cpu) = turn.cpu.filter(|_| policy.wants_own_sas()) {
                turn.events.need_own_sa(policy, flow, cpu, turn.now_ns, turn.counters);
            }
        }
    }
}

#[cold]
fn want_sa(policy: &Policy, slot: &Slot<'_>, turn: &mut Turn<'_>) {
    turn.events.need_sa(policy, far_of(slot, policy), &slot.flow, turn.now_ns, turn.counters);
}

#[cold]
fn missing_sa(policy: &Policy, slot: &mut Slot<'_>, view: &View, turn: &mut Turn<'_>) -> Verdict {
    // There is no use in asking where no SA would do, and none in waiting where nobody is asked.
    let may_come = policy.can_have_sa();
    if may_come {
        want_sa(policy, slot, turn);
    }
    let waits = may_come && view.acquire_is_heard;
    slot.stay = waits.then(|| Stay::begin(slot, policy, turn.now_ns));
    Verdict::NoSa
}
