//! Seventh stage: the outbound policy, and the SA where it asks for one.
//!
//! 1. Ask for the memory in which every packet's policy is found, by its flow.
//! 2. By then it has come: the policy, or the row of the tunnel that its route leads into; ask for the
//!    memory of that.
//! 3. What it says; ask for the memory of the slot in which its SA is.
//! 4. The SA; ask for its memory, which `seal` is about to need.
//!
//! Packets without a protect policy leave in clear. Nothing in a packet is changed here.

use wire::flow::Flow;

use crate::batch::{Batch, Slot, Turn};
use crate::bundles::Whose;
use crate::hold::Stay;
use crate::inspect::check_ports_known;
use crate::policy::{Action, Direction, Policy, Template};
use crate::sa::{Mode, Sa};
use crate::spd::{DefaultAction, Lookup};
use crate::tally::Tally;
use crate::transport;
use crate::tunnel;
use crate::verdict::Verdict;
use crate::view::View;

/// Applies the outbound policy to every packet, and sets the SA of those that are to be sealed.
pub(crate) fn choose<'v>(batch: &mut Batch<'v>, view: &'v View, turn: &mut Turn<'_>) {
    if !view.spd.is_empty() {
        for slot in batch.undecided() {
            turn.flows.prefetch(&view.spd, Direction::Out, &slot.flow);
        }
    }
    for slot in batch.undecided() {
        slot.found = turn.flows.lookup(&view.spd, Direction::Out, &slot.flow);
        match slot.found {
            Lookup::Policy(policy) => policy.prefetch(),
            _ => tunnel::ask(slot, view),
        }
    }
    let mut tally = Tally::new(turn);
    for slot in batch.undecided() {
        if let Err(verdict) = ask(slot, view, &mut tally) {
            slot.decide(verdict);
        }
    }
    for slot in batch.undecided() {
        match choose_one(slot, view, turn, &mut tally) {
            // Whatever the policies say now: a packet that waited to be protected is not for clear.
            Ok(()) if slot.stay.is_some() && slot.outbound.is_none() => {
                slot.decide(Verdict::HoldPolicyGone);
            }
            Ok(()) => {}
            Err(verdict) => slot.decide(verdict),
        }
    }
    tally.settle();
}

/// The third pass: leaves in the slot who says which SA it is, if anybody asks for one.
#[inline]
fn ask<'v>(slot: &mut Slot<'v>, view: &'v View, tally: &mut Tally<'v>) -> Result<(), Verdict> {
    let flow = &slot.flow;
    let policy = match slot.found {
        Lookup::Policy(policy) => policy,
        Lookup::PortsNeeded => return Err(Verdict::FragmentOfPortPolicy),
        Lookup::Default(DefaultAction::Accept) => return tunnel::find(slot, view),
        Lookup::Default(DefaultAction::Block) => return Err(Verdict::OutPolicyBlock),
    };
    check_ports_known(flow, &policy.config().selector)?;
    match &policy.config().action {
        Action::Discard => Err(Verdict::OutPolicyBlock),
        Action::Bypass => {
            tally.count(policy, slot.frame.len());
            tunnel::find(slot, view)
        }
        Action::Protect { bundle, .. } => {
            policy.prefetch_usage();
            if let Some(number) = bundle {
                view.bundles.prefetch(*number);
            }
            slot.policy = Some(policy);
            Ok(())
        }
    }
}

/// The last pass: sets the SA of a packet that must be sealed.
#[inline]
fn choose_one<'v>(
    slot: &mut Slot<'v>,
    view: &'v View,
    turn: &mut Turn<'_>,
    tally: &mut Tally<'v>,
) -> Result<(), Verdict> {
    if let Some(policy) = slot.policy
        && let Action::Protect { template, bundle } = &policy.config().action
    {
        protect(slot, policy, template, *bundle, view, turn)?;
        tally.count(policy, slot.frame.len());
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
        Mode::Transport => transport::slot(&view.transport, template, &slot.flow),
    };
    let chosen = bundle.and_then(|slot| view.bundles.choose(slot, turn.worker));
    match chosen.filter(|(sa, _)| carries(sa, slot)) {
        Some(_) if slot.stay.is_none() && turn.hold.must_follow(policy.config().index) => {
            slot.stay = Some(Stay::begin(slot, policy.config().index, turn.now_ns));
            return Err(Verdict::NoSa);
        }
        Some((sa, whose)) => {
            note_whose(whose, policy, &slot.flow, turn);
            sa.prefetch();
            slot.outbound = Some(sa);
        }
        None if template.optional => {}
        None => return Err(missing_sa(policy, slot, view, turn)),
    }
    Ok(())
}

/// Whether the SA's own selector admits the packet.
#[inline]
pub(crate) fn carries(sa: &Sa, slot: &Slot<'_>) -> bool {
    !sa.hot().selective || sa.config().selector.is_none_or(|selector| selector.matches(&slot.flow))
}

/// RFC 9611 §3: a packet leaves by the SA for all while its worker has none of its own, and one is
/// asked for if the policy says so.
#[inline]
fn note_whose(whose: Whose, policy: &Policy, flow: &Flow, turn: &mut Turn<'_>) {
    match whose {
        Whose::Own => turn.counters.count_own_sa(),
        Whose::Everybodys if !policy.config().own_sas => {}
        Whose::Everybodys | Whose::Fallback => {
            turn.counters.count_fallback_sa();
            if let Some(cpu) = turn.cpu.filter(|_| policy.config().own_sas) {
                turn.events.need_own_sa(policy, flow, cpu, turn.now_ns, turn.counters);
            }
        }
    }
}

#[cold]
fn missing_sa(policy: &Policy, slot: &mut Slot<'_>, view: &View, turn: &mut Turn<'_>) -> Verdict {
    turn.events.need_sa(policy, &slot.flow, turn.now_ns, turn.counters);
    // There is no use in waiting where nobody is asked, or where no SA would do.
    let may_come = view.acquire_is_heard && policy.can_have_sa();
    slot.stay = may_come.then(|| Stay::begin(slot, policy.config().index, turn.now_ns));
    Verdict::NoSa
}
