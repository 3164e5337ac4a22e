//! Keys come while the cipher works on packets before.
//!
//! A batch of as many SAs has five hundred lines of keys. A core that waits for some fifty lines waits before it asks
//! for one more: asked for all together, they keep it idle for most of their way from memory. Asked for one packet
//! after the other, they come while the execution units are busy anyway.

use crate::batch::{Slot, is_same};
use crate::cpu::Cache;
use crate::sa::Sa;

/// How many packets ahead a key is asked for. Eight of the smallest are 300 ns, which is what memory far away takes.
pub(crate) const AHEAD: usize = 8;

/// How many packets ahead what a library expanded is asked for: by then the line has come that says where it is.
pub(crate) const LIBRARY_AHEAD: usize = 4;

/// A packet's SA, and how much data its cipher has.
type Need<'v> = fn(&Slot<'v>) -> Option<(&'v Sa, usize)>;

/// Asks for the keys of the first packets: before the last stage in front of the cipher does its work.
#[inline(always)]
pub(crate) fn ask_first<'v>(slots: &[Slot<'v>], need: Need<'v>, cache: Cache) {
    (0..AHEAD).for_each(|at| ask(slots, at, need, cache));
}

/// Who asks for the keys of packets that come up one after the other.
pub(crate) struct Supply<'v> {
    need: Need<'v>,
    cache: Cache,
    /// What a library expanded is to be asked for as well. A gateway has one engine, so that one key tells.
    has_library_lines: bool,
}

impl<'v> Supply<'v> {
    /// After [`ask_first`], before the first packet.
    #[inline(always)]
    pub(crate) fn of(slots: &[Slot<'v>], need: Need<'v>, cache: Cache) -> Supply<'v> {
        let first = slots.iter().find_map(need);
        let has_library_lines = first.is_some_and(|(sa, _)| sa.hot().key.has_library_lines());
        if has_library_lines {
            (0..LIBRARY_AHEAD).for_each(|at| ask_library(slots, at, need, cache));
        }
        Supply { need, cache, has_library_lines }
    }

    /// The same without [`ask_first`], which it does.
    pub(crate) fn of_all(slots: &[Slot<'v>], need: Need<'v>, cache: Cache) -> Supply<'v> {
        ask_first(slots, need, cache);
        Supply::of(slots, need, cache)
    }

    /// Asks for those of packets behind the one in `at`.
    #[inline(always)]
    pub(crate) fn step(&self, slots: &[Slot<'v>], at: usize) {
        ask(slots, at + AHEAD, self.need, self.cache);
        if self.has_library_lines {
            ask_library(slots, at + LIBRARY_AHEAD, self.need, self.cache);
        }
    }
}

#[inline(always)]
fn ask<'v>(slots: &[Slot<'v>], at: usize, need: Need<'v>, cache: Cache) {
    if let Some((sa, data_len)) = other(slots, at, need) {
        sa.hot().key.prefetch_for(data_len, cache);
    }
}

/// Out of line, so that nothing of it takes registers from our own engines.
#[inline(never)]
fn ask_library<'v>(slots: &[Slot<'v>], at: usize, need: Need<'v>, cache: Cache) {
    if let Some((sa, _)) = other(slots, at, need) {
        sa.hot().key.prefetch_library(cache);
    }
}

/// What the packet in `at` needs, if the one before has another SA.
#[inline(always)]
fn other<'v>(slots: &[Slot<'v>], at: usize, need: Need<'v>) -> Option<(&'v Sa, usize)> {
    let (sa, data_len) = need(slots.get(at)?)?;
    let before = at.checked_sub(1).and_then(|before| need(&slots[before]));
    (!is_same(before.map(|(sa, _)| sa), sa)).then_some((sa, data_len))
}
