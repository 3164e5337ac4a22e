//! Packets that came through tunnels outside of route mode and go on, whole and of IPv4, where only policies are
//! asked about them. What else there may be is not looked for, packet by packet.

use std::ptr;

use arrayvec::ArrayVec;

use super::martian::may_be_martian;
use super::{inspect_run, is_welcome};
use crate::batch::{BATCH_PACKETS, Slot, Turn};
use crate::classify::is_local;
use crate::cpu::asked_cache;
use crate::policy::{Direction, Kind};
use crate::runs::Run;
use crate::sa::Sa;
use crate::spd::{Asked, Lookup, Many, Question};
use crate::view::View;

/// Checks packets, at most [`BATCH_PACKETS`], against the policies; those that follow each other through one SA, and of
/// which the policies say the same, are done together. Whether it did: it does not where any packet is one of the others.
///
/// 1. What is asked of the policies; ask for the memory in which their answers are found.
/// 2. The policies; ask for theirs.
/// 3. Do they let the packets in?
#[inline(never)]
pub(super) fn all<'v>(
    slots: &mut [Slot<'v>],
    many: Many<'v>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> bool {
    let cache = asked_cache();
    let mut asked: ArrayVec<(usize, Asked<'_>), BATCH_PACKETS> = ArrayVec::new();
    let mut last: Option<(&Sa, Question)> = None;
    for (at, slot) in slots.iter().enumerate() {
        if slot.verdict.is_some() {
            continue;
        }
        let Some(sa) = slot.inbound else { return false };
        let Some(question) = many.flow(&slot.flow) else { return false };
        if let Some((known, before)) = last
            && ptr::eq(known, sa)
            && many.same_between_hosts(before, question)
        {
            continue;
        }
        let hot = sa.hot();
        let is_other = hot.if_id != 0
            || sa.is_selective()
            || may_be_martian(slot.flow.src)
            || may_be_martian(slot.flow.dst)
            || is_local(&slot.flow.dst, view);
        if is_other {
            return false;
        }
        last = Some((sa, question));
        asked.push((at, many.ask(question, cache)));
    }
    let presumed: ArrayVec<_, BATCH_PACKETS> =
        asked.iter().map(|(_, asked)| many.presume(*asked, cache)).collect();
    // From the first that is asked for on, each run up to the next one's start.
    for (at, ((start, question), presumed)) in asked.iter().zip(&presumed).enumerate() {
        let end = asked.get(at + 1).map_or(slots.len(), |(next, _)| *next);
        let slots = &mut slots[*start..end];
        let found = many.lookup(*question, *presumed);
        // As `inspect_opened` would say of nearly all of them, in fewer steps.
        if let Lookup::Policy(policy) = found
            && policy.kind() == Kind::Protect
            && slots[0].inbound.is_some_and(|sa| is_welcome(policy, sa))
        {
            Run::of_all(slots, Direction::Forward, found).count(policy, slots, turn);
        } else {
            inspect_rest(slots, found, view, turn);
        }
    }
    true
}

/// The long way, for packets of one SA of which the policies say the same.
#[inline(never)]
pub(super) fn inspect_rest<'v>(
    slots: &mut [Slot<'v>],
    found: Lookup<'v>,
    view: &'v View,
    turn: &mut Turn<'_>,
) {
    let mut run = Run::of_all(slots, Direction::Forward, found);
    inspect_run(&mut run, slots, view, turn);
}
