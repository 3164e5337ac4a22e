//! The SAs by which many packets of a batch go.

use arrayvec::ArrayVec;
use wire::ethernet;

use super::hours::Growing;
use super::several::{MIXER, TRAILS};
use super::{Trails, leave_sealed};
use crate::batch::{Slot, Turn, is_same};
use crate::parse;
use crate::sa::Sa;
use crate::verdict::Verdict;
use crate::view::View;

/// So many packets are enough to see who is busy.
const ENOUGH: usize = 16;

/// So many of one SA are many.
const MANY: u8 = 4;

/// Bits of a place in which packets of an SA are counted, and maybe those of others.
const PLACE_BITS: u32 = 6;

/// Where two packets of one SA are, the last behind the other.
type Pair = [usize; 2];

/// Packets which others may be found to follow: two of each SA that is busy.
#[derive(Default)]
pub(super) struct Busy {
    pairs: ArrayVec<Pair, TRAILS>,
    /// In looking at all packets.
    unlooked: Growing,
}

impl Busy {
    /// Looks for pairs among plain packets that came to a lane, now and then at all of them, and notes what flows they are.
    #[inline(always)]
    pub(super) fn look<'v>(
        &mut self,
        slots: &mut [Slot<'v>],
        sa_of: impl Fn(&Slot<'v>) -> Option<&'v Sa>,
    ) {
        self.pairs.clear();
        if self.is_due(slots.len()) {
            self.pairs =
                pairs(slots, sa_of, |slot| parse::is_v6(&slot.frame, ethernet::HEADER_LEN));
        } else {
            self.pairs.extend(last_pair(slots, sa_of));
        }
        for at in self.pairs.iter().flatten() {
            let slot = &mut slots[*at];
            if let Some(flow) = parse::flow_again(&slot.frame, ethernet::HEADER_LEN) {
                slot.flow = flow;
            }
        }
    }

    /// Now and then looks for pairs among packets of which stages have noted what flows they are.
    fn look_again<'v>(&mut self, slots: &[Slot<'v>], sa_of: impl Fn(&Slot<'v>) -> Option<&'v Sa>) {
        self.pairs.clear();
        if self.is_due(slots.len()) {
            self.pairs = pairs(slots, sa_of, |slot| slot.flow.is_ipv6());
        }
    }

    /// Whether all of so many packets are to be looked at.
    #[inline(always)]
    fn is_due(&mut self, packets: usize) -> bool {
        let is_due = packets >= ENOUGH && self.unlooked.is_over();
        if is_due {
            self.unlooked.begin();
        }
        is_due
    }

    /// Has trails left of the pairs that were found; where `leave` left one, others may soon be.
    pub(super) fn leave<'v>(
        &mut self,
        slots: &[Slot<'v>],
        mut leave: impl FnMut([&Slot<'v>; 2]) -> bool,
    ) {
        for [before, last] in std::mem::take(&mut self.pairs) {
            if leave([&slots[before], &slots[last]]) {
                self.unlooked = Growing::default();
            }
        }
    }
}

/// By which SAs many packets went that the stages sealed, and opened, where no lane looks for them.
#[derive(Default)]
pub(super) struct Unled {
    sealed: Busy,
    opened: Busy,
}

impl Trails {
    /// Leaves trails of packets that the stages have dealt with, where no lane does so.
    pub(super) fn leave_busy<'s>(
        &mut self,
        slots: &[Slot<'s>],
        version: u64,
        view: &View,
        turn: &mut Turn<'_>,
    ) {
        let Trails { unled, sealed, sealed_v6, opened, sealing, opening, .. } = self;
        let ended = |slot: &Slot<'_>, verdict| slot.verdict == Some(verdict);
        // Where many are of one kind, so is mostly the first or the last.
        let may_be_many = |verdict| {
            [slots.first(), slots.last()].into_iter().flatten().any(|slot| ended(slot, verdict))
        };
        if sealing.is_none() && may_be_many(Verdict::Sealed) {
            let sa_of = |slot: &Slot<'s>| slot.outbound.filter(|_| ended(slot, Verdict::Sealed));
            unled.sealed.look_again(slots, sa_of);
            unled
                .sealed
                .leave(slots, |pair| leave_sealed(sealed, sealed_v6, pair, version, view, turn));
        }
        if opening.is_none() && may_be_many(Verdict::Opened) {
            let sa_of = |slot: &Slot<'s>| slot.inbound.filter(|_| ended(slot, Verdict::Opened));
            unled.opened.look_again(slots, sa_of);
            unled.opened.leave(slots, |pair| opened.leave(pair, version, view, turn));
        }
    }
}

/// The last two packets that have an SA, if it is one: whatever is between them, they may be the first of many.
#[inline(always)]
fn last_pair<'v>(slots: &[Slot<'v>], sa_of: impl Fn(&Slot<'v>) -> Option<&'v Sa>) -> Option<Pair> {
    let mut sas = slots.iter().enumerate().filter_map(|(at, slot)| Some((at, sa_of(slot)?)));
    let ((last, sa), (before, other)) = (sas.next_back()?, sas.next_back()?);
    is_same(Some(other), sa).then_some([before, last])
}

/// The first and the last packet of one family of each SA of which there are many.
#[inline(never)]
fn pairs<'v>(
    slots: &[Slot<'v>],
    sa_of: impl Fn(&Slot<'v>) -> Option<&'v Sa>,
    is_v6: impl Fn(&Slot<'v>) -> bool,
) -> ArrayVec<Pair, TRAILS> {
    let kinds = || {
        let kind = |slot: &Slot<'v>| Some(Kind { sa: sa_of(slot)?, is_v6: is_v6(slot) });
        slots.iter().enumerate().filter_map(move |(at, slot)| Some((at, kind(slot)?)))
    };
    let mut counts = [0u8; 1 << PLACE_BITS];
    kinds().for_each(|(_, kind)| counts[kind.place()] += 1);
    let mut pairs: ArrayVec<(Kind<'_>, Pair, u8), TRAILS> = ArrayVec::new();
    for (at, kind) in kinds().filter(|(_, kind)| counts[kind.place()] >= MANY) {
        match pairs.iter_mut().find(|(other, ..)| other.is(&kind)) {
            Some((_, [_, last], count)) => (*last, *count) = (at, *count + 1),
            // Where there is no room, another time.
            None => drop(pairs.try_push((kind, [at, at], 1))),
        }
    }
    pairs.into_iter().filter(|(.., count)| *count >= MANY).map(|(_, pair, _)| pair).collect()
}

/// Packets of a family that go by an SA.
struct Kind<'v> {
    sa: &'v Sa,
    is_v6: bool,
}

impl Kind<'_> {
    fn is(&self, other: &Kind<'_>) -> bool {
        std::ptr::eq(self.sa, other.sa) && self.is_v6 == other.is_v6
    }

    fn place(&self) -> usize {
        let address = std::ptr::from_ref(self.sa).addr() as u64 + u64::from(self.is_v6);
        (address.wrapping_mul(MIXER) >> (u64::BITS - PLACE_BITS)) as usize
    }
}
