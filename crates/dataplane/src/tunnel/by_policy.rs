//! Into a tunnel of route mode by what the policies of its `if_id` say.

use crate::batch::{Slot, Turn};
use crate::choose::protect;
use crate::policy::{Action, Direction, Kind, Template};
use crate::spd::{DefaultAction, Lookup};
use crate::verdict::Verdict;
use crate::view::View;

/// Whether policies are asked for a packet into a tunnel, SA or not, while others wait. Where the route chose among
/// far ends only for one behind those that wait for the same policy: else what a policy says would count
/// now and then, by who waits.
#[cold]
pub(super) fn is_by_policy(
    slot: &Slot<'_>,
    number: u32,
    into: Option<u32>,
    view: &View,
    turn: &mut Turn<'_>,
) -> bool {
    let Some(name) = view.tunnels.names.get(number).filter(|name| name.remote.is_some()) else {
        return true;
    };
    match view.spd.lookup_of(name.if_id, Direction::Out, &slot.flow) {
        Lookup::Policy(policy) if policy.kind() == Kind::Protect => {
            let sa = into.and_then(|into| view.bundles.choose(into, turn.worker));
            slot.stay.is_none() && sa.is_some_and(|(sa, _)| turn.hold.must_follow(slot, policy, sa))
        }
        _ => false,
    }
}

/// The long way: the policies of the `if_id` are asked, as Linux's XFRM interfaces do for each packet.
#[cold]
pub(super) fn enter_by_policy<'v>(
    slot: &mut Slot<'v>,
    number: u32,
    bundle: Option<u32>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> Result<(), Verdict> {
    let name = view.tunnels.names.get(number).ok_or(Verdict::NoTunnel)?;
    let by_remote = name.remote.is_some();
    match view.spd.lookup_of(name.if_id, Direction::Out, &slot.flow) {
        // Where the route chose among far ends, the policy still asks for an SA.
        Lookup::Policy(policy) => match policy.action() {
            Action::Discard => Err(Verdict::OutPolicyBlock),
            Action::Protect { template, bundle: wanted } => {
                let template = Template { optional: false, ..template };
                let bundle = if by_remote { bundle } else { wanted };
                protect(slot, policy, &template, bundle, view, turn)?;
                policy.count(turn.seat, 1, slot.frame.len() as u64, turn.now_ns);
                Ok(())
            }
            Action::Bypass => Err(Verdict::NoTunnel),
        },
        Lookup::PortsNeeded => Err(Verdict::FragmentOfPortPolicy),
        Lookup::Default(DefaultAction::Block) => Err(Verdict::OutPolicyBlock),
        Lookup::Default(DefaultAction::Accept) if by_remote => {
            let chosen = bundle.and_then(|slot| view.bundles.choose(slot, turn.worker));
            let Some((sa, _)) = chosen.filter(|(sa, _)| sa.admits(&slot.flow)) else {
                // Nobody is asked, so that waiting any longer would be in vain.
                let stay = slot.stay.take();
                let policy_gone = stay.is_some_and(|stay| !stay.is_brief());
                return Err(if policy_gone { Verdict::HoldPolicyGone } else { Verdict::NoSa });
            };
            slot.outbound = Some(sa);
            Ok(())
        }
        Lookup::Default(DefaultAction::Accept) => Err(Verdict::NoTunnel),
    }
}
