//! The SAs of packets about which only policies say anything, where nobody waits and every packet is whole and of
//! IPv4. What else there may be is not looked for, packet by packet.

#[cfg(test)]
mod twin;

use arrayvec::ArrayVec;

use super::{ask, choose_run};
use crate::batch::{BATCH_PACKETS, Slot, Turn};
use crate::bundles::Sole;
use crate::cpu::asked_cache;
use crate::policy::Direction;
use crate::runs::Run;
use crate::spd::{Asked, Lookup, Many};
use crate::view::View;

/// Finds the SAs of packets, at most [`BATCH_PACKETS`]; those that follow each other and of which the policies say
/// the same are done together. Whether it did: it does not where one is a fragment, or not of IPv4.
///
/// 1. What is asked of the policies; ask for the memory in which their answers are found.
/// 2. The policies; ask for theirs.
/// 3. What they say; ask for that of the slots in which their SAs are.
/// 4. The SAs; ask for theirs.
#[inline]
pub(super) fn all<'v>(
    slots: &mut [Slot<'v>],
    many: Many<'v>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> bool {
    let cache = asked_cache();
    let mut asked: ArrayVec<(usize, Asked<'_>), BATCH_PACKETS> = ArrayVec::new();
    let mut last = None;
    for (at, slot) in slots.iter().enumerate() {
        if slot.verdict.is_some() {
            continue;
        }
        let Some(flow) = many.flow(&slot.flow) else { return false };
        if last.is_none_or(|last| !many.same(last, flow)) {
            last = Some(flow);
            asked.push((at, many.ask(flow, cache)));
        }
    }
    let presumed: ArrayVec<_, BATCH_PACKETS> =
        asked.iter().map(|(_, asked)| many.presume(*asked, cache)).collect();
    let found: ArrayVec<(Lookup<'_>, Option<Sole<'_>>), BATCH_PACKETS> = asked
        .iter()
        .zip(&presumed)
        .map(|((_, asked), presumed)| {
            let found = many.lookup(*asked, *presumed);
            let sole = match found {
                Lookup::Policy(policy) => {
                    policy.shared_bundle().and_then(|number| view.bundles.sole(number, cache))
                }
                _ => None,
            };
            (found, sole)
        })
        .collect();
    // From the first that is asked for on, each run up to the next one's start.
    for (at, ((start, _), (found, sole))) in asked.iter().zip(&found).enumerate() {
        let end = asked.get(at + 1).map_or(slots.len(), |(next, _)| *next);
        let slots = &mut slots[*start..end];
        if let Lookup::Policy(policy) = *found
            && let Some(sa) = sole.and_then(Sole::sa)
        {
            sa.prefetch(cache);
            Run::of_all(slots, Direction::Out, *found).count_each(policy, slots, turn, |slot| {
                slot.policy = Some(policy);
                slot.outbound = Some(sa);
            });
        } else {
            choose_rest(slots, *found, view, turn);
        }
    }
    true
}

/// The long way, for packets of which the policies say the same.
#[inline(never)]
fn choose_rest<'v>(slots: &mut [Slot<'v>], found: Lookup<'v>, view: &'v View, turn: &mut Turn<'_>) {
    let mut run = Run::of_all(slots, Direction::Out, found);
    ask(&mut run, slots, view, turn);
    choose_run(&run, slots, view, turn);
}
