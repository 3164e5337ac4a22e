//! Fifth stage: was it right for this packet to come in the way it came?
//!
//! RFC 4301 §5.2, with the meaning XFRM gives it. A packet out of a tunnel must fit the selector of
//! the SA that carried it, and the policy that covers it must ask for just such an SA. A packet in
//! clear must not be covered by a policy that protects. Whoever holds one tunnel's keys can thus
//! not speak for another's addresses, and nobody can without keys.
//!
//! What passes here is forwarded, or handed to this host; what goes out, and how, `choose` decides.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use wire::flow::{Flow, Fragment};

use crate::batch::{Batch, Slot, Turn};
use crate::classify::is_local;
use crate::policy::{Action, Direction, Policy, Template};
use crate::punt::to_host;
use crate::sa::{Mode, Sa};
use crate::selector::Selector;
use crate::spd::{DefaultAction, Lookup};
use crate::tally::Tally;
use crate::tunnel::leads_back;
use crate::verdict::Verdict;
use crate::view::View;

/// Checks every packet against the policies of the direction it takes: asks for the memory in which
/// they are found, then for that of the policy, then decides.
pub(crate) fn inspect<'v>(batch: &mut Batch<'v>, view: &'v View, turn: &mut Turn<'_>) {
    if !view.spd.is_empty() {
        for slot in batch.undecided() {
            if slot.inbound.is_none() {
                turn.flows.prefetch(&view.spd, Direction::Forward, &slot.flow);
            }
        }
    }
    let mut tally = Tally::new(turn);
    // What the host itself sends comes in nowhere: only its way out is asked for, by `choose`.
    for slot in batch.undecided().filter(|slot| !slot.is_hosts(view)) {
        slot.found = find(slot, view, turn);
        if let Lookup::Policy(policy) = slot.found {
            policy.prefetch();
        }
    }
    for slot in batch.undecided().filter(|slot| !slot.is_hosts(view)) {
        if let Err(verdict) = inspect_one(slot, view, &mut tally) {
            if let Some(sa) = slot.inbound {
                sa.count_error(verdict);
            }
            slot.decide(verdict);
        }
    }
    tally.settle();
}

/// What the policies of the packet's direction say.
#[inline]
fn find<'v>(slot: &Slot<'v>, view: &'v View, turn: &mut Turn<'_>) -> Lookup<'v> {
    let flow = &slot.flow;
    let Some(sa) = slot.inbound else {
        return turn.flows.lookup(&view.spd, Direction::Forward, flow);
    };
    let for_host = is_local(flow.dst, view);
    let direction = if for_host { Direction::In } else { Direction::Forward };
    match sa.hot().if_id {
        0 => turn.flows.lookup(&view.spd, direction, flow),
        if_id => view.spd.lookup_of(if_id, direction, flow),
    }
}

fn inspect_one<'v>(
    slot: &mut Slot<'v>,
    view: &'v View,
    tally: &mut Tally<'v>,
) -> Result<(), Verdict> {
    let flow = &slot.flow;
    check_addresses(flow)?;
    // Only a packet out of a tunnel can be local here: `classify` ended the others.
    let for_host = slot.inbound.is_some() && is_local(flow.dst, view);
    let policy = match slot.inbound {
        Some(sa) if sa.hot().if_id != 0 => inspect_routed(flow, sa, slot.found, view)?,
        Some(sa) => inspect_opened(flow, sa, slot.found)?,
        None => inspect_clear(flow, slot.found)?,
    };
    if let Some(policy) = policy {
        tally.count(policy, slot.frame.len());
    }
    if for_host { to_host(slot, view) } else { Ok(()) }
}

/// A packet that came through `sa`; the policy that lets it pass.
fn inspect_opened<'v>(
    flow: &Flow,
    sa: &Sa,
    found: Lookup<'v>,
) -> Result<Option<&'v Policy>, Verdict> {
    if sa.hot().selective
        && let Some(selector) = &sa.config().selector
    {
        check_ports_known(flow, selector)?;
        if !selector.matches(flow) {
            return Err(Verdict::SelectorMismatch);
        }
    }
    // As in Linux, transport mode adds to a packet that would be welcome in clear, too: its
    // addresses are the peer's own, so it says nothing that the peer could not say without
    // (`secpath_has_nontransport`).
    let is_transport = sa.hot().mode == Mode::Transport;
    let policy = match found {
        Lookup::Policy(policy) => policy,
        Lookup::PortsNeeded => return Err(Verdict::FragmentOfPortPolicy),
        Lookup::Default(DefaultAction::Accept) if is_transport => return Ok(None),
        Lookup::Default(_) => return Err(Verdict::NoPolicy),
    };
    let is_welcome = |template: &Template| {
        // Neither of the two ever changes, so what was once found goes on being so.
        let welcomed_by = &sa.hot().welcomed_by;
        if welcomed_by.load(Relaxed) == policy.id() {
            return true;
        }
        let welcome = template.accepts(sa) || is_transport && template.optional;
        if welcome {
            welcomed_by.store(policy.id(), Relaxed);
        }
        welcome
    };
    match &policy.config().action {
        Action::Discard => Err(Verdict::PolicyBlock),
        Action::Protect { template, .. } if is_welcome(template) => {
            check_ports_known(flow, &policy.config().selector)?;
            Ok(Some(policy))
        }
        Action::Bypass if is_transport => Ok(Some(policy)),
        Action::Protect { .. } | Action::Bypass => Err(Verdict::PolicyMismatch),
    }
}

/// A packet that came through the SA of a tunnel in route mode. Where no policy lets it pass, its source
/// must be where a route leads into the same tunnel, among those that their far ends tell apart: that
/// is what a policy would say there, which has room for one far end only.
fn inspect_routed<'v>(
    flow: &Flow,
    sa: &Sa,
    found: Lookup<'v>,
    view: &View,
) -> Result<Option<&'v Policy>, Verdict> {
    match inspect_opened(flow, sa, found) {
        Err(Verdict::NoPolicy | Verdict::PolicyMismatch) if leads_back(flow.src, sa, view) => {
            Ok(None)
        }
        other => other,
    }
}

/// A packet that came in clear; the policy that lets it pass, if it was not the default action.
fn inspect_clear<'v>(flow: &Flow, found: Lookup<'v>) -> Result<Option<&'v Policy>, Verdict> {
    let policy = match found {
        Lookup::Policy(policy) => policy,
        Lookup::PortsNeeded => return Err(Verdict::FragmentOfPortPolicy),
        Lookup::Default(DefaultAction::Accept) => return Ok(None),
        Lookup::Default(DefaultAction::Block) => return Err(Verdict::NoPolicy),
    };
    match &policy.config().action {
        Action::Discard => Err(Verdict::PolicyBlock),
        Action::Protect { template, .. } if !template.optional => Err(Verdict::ClearOfProtected),
        Action::Protect { .. } | Action::Bypass => {
            check_ports_known(flow, &policy.config().selector)?;
            Ok(Some(policy))
        }
    }
}

/// A fragment passes only where ports do not matter (RFC 4301 §7): the first one shows them, but
/// those that follow could not, and half a packet is of no use.
#[inline]
pub(crate) fn check_ports_known(flow: &Flow, selector: &Selector) -> Result<(), Verdict> {
    if flow.fragment != Fragment::Whole && selector.selects_ports() {
        return Err(Verdict::FragmentOfPortPolicy);
    }
    Ok(())
}

/// RFC 1812 §5.3.7, RFC 4291 §2.5.2–2.5.6: addresses that a router forwards neither from nor to.
fn check_addresses(flow: &Flow) -> Result<(), Verdict> {
    if is_martian(flow.src) {
        return Err(Verdict::MartianSource);
    }
    if is_martian(flow.dst) {
        return Err(Verdict::MartianDestination);
    }
    Ok(())
}

#[inline]
fn is_martian(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let first = v4.octets()[0];
            // 0/8 "this network", 127/8 loopback, 224/4 multicast, 240/4 reserved and broadcast.
            first == 0 || first == 127 || first >= 224 || v4.is_link_local()
        }
        IpAddr::V6(v6) => {
            v6.is_multicast()
                || v6.is_unspecified()
                || v6.is_loopback()
                || v6.is_unicast_link_local()
        }
    }
}
