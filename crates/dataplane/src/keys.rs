//! Keys come while the cipher works on packets before.
//!
//! A batch of as many SAs has five hundred lines of keys. A core that waits for some fifty lines waits before it asks
//! for one more: asked for all together, they keep it idle for most of their way from memory. Asked for one packet
//! after the other, they come while the execution units are busy anyway.

use crate::batch::{Slot, is_same};
use crate::cpu::prefetch_end;
use crate::sa::Sa;

/// How many packets ahead a key is asked for, into the cache of level 2. Eight of the smallest are 300 ns,
/// which is what memory far away takes.
const EARLY: usize = 8;

/// How many packets ahead it is fetched from there.
pub(crate) const AHEAD: usize = 4;

/// A packet's SA, and how much data its cipher has.
type Need<'v> = fn(&Slot<'v>) -> Option<(&'v Sa, usize)>;

/// Asks for the keys of the first packets: before the last stage in front of the cipher does its work.
#[inline(always)]
pub(crate) fn ask_first<'v>(slots: &[Slot<'v>], need: Need<'v>) {
    (0..EARLY).for_each(|at| ask(slots, at, need));
}

/// Fetches those of the very first, which were asked for.
#[inline(always)]
pub(crate) fn fetch_first<'v>(slots: &[Slot<'v>], need: Need<'v>) {
    (0..AHEAD).for_each(|at| fetch(slots, at, need));
}

/// Asks for and fetches those of packets behind the one in `at`.
#[inline(always)]
pub(crate) fn step<'v>(slots: &[Slot<'v>], at: usize, need: Need<'v>) {
    ask(slots, at + EARLY, need);
    fetch(slots, at + AHEAD, need);
}

#[inline(always)]
fn ask<'v>(slots: &[Slot<'v>], at: usize, need: Need<'v>) {
    if let Some((sa, data_len)) = other(slots, at, need) {
        let key = &*sa.hot().key;
        key.prefetch_early(data_len);
        // That of its lines which says of what kind it is.
        prefetch_end(key);
    }
}

#[inline(always)]
fn fetch<'v>(slots: &[Slot<'v>], at: usize, need: Need<'v>) {
    if let Some((sa, data_len)) = other(slots, at, need) {
        sa.hot().key.prefetch_for(data_len);
    }
}

/// What the packet in `at` needs, if the one before has another SA.
#[inline(always)]
fn other<'v>(slots: &[Slot<'v>], at: usize, need: Need<'v>) -> Option<(&'v Sa, usize)> {
    let (sa, data_len) = need(slots.get(at)?)?;
    let before = at.checked_sub(1).and_then(|before| need(&slots[before]));
    (!is_same(before.map(|(sa, _)| sa), sa)).then_some((sa, data_len))
}
