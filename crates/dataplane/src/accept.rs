//! Stage `accept`, between `decrypt` and `inspect`: of the authentic ESP packets those go on that are no replays.
//!
//! For each packet, in the order in which they came:
//!
//! 1. accept the sequence number;
//! 2. of one that came in UDP, tell control if the peer's address or port has changed, and take out
//!    what it carries; of any other `decrypt` has done that (`content`);
//! 3. count it, and end it if its content was flawed.
//!
//! This is the serial part of opening: one SA's packets pass here one after the other. Whether the
//! inner packet may come through this SA at all is decided by `inspect`.

use crate::batch::{Batch, Slot, Turn, is_same};
use crate::claim::Access;
use crate::content;
use crate::open::refusal;
use crate::sa::Sa;
use crate::verdict::Verdict;

/// Accepts every packet that `decrypt` found authentic.
pub(crate) fn accept(batch: &mut Batch<'_>, turn: &mut Turn<'_>) {
    if batch.named.is_empty() && batch.returned == 0 {
        return;
    }
    let mut rest = &mut batch.slots[..];
    while let Some(first) = rest.first() {
        let Some(sa) = first.inbound.filter(|_| first.verdict.is_none()) else {
            rest = &mut rest[1..];
            continue;
        };
        // `open` let none pass that has to wait, and an owner, also one whose packets were out
        // for a few turns, leaves to nobody but all.
        let alone = sa.access(turn) == Access::Alone;
        let done = if alone && !sa.counts_each(true) && !sa.hot().traits.is_encapsulated() {
            accept_plain(rest, sa, turn)
        } else {
            accept_run(rest, sa, alone, turn)
        };
        rest = &mut rest[done..];
    }
}

/// What [`accept_run`] does, for an SA far from limits and without UDP that this worker has for itself, as nearly every one is.
#[inline(always)]
fn accept_plain(slots: &mut [Slot<'_>], sa: &Sa, turn: &Turn<'_>) -> usize {
    let (mut done, mut opened) = (0, Opened::default());
    let is_next = |slot: &Slot<'_>| slot.verdict.is_none() && is_same(slot.inbound, sa);
    loop {
        let slot = &mut slots[done];
        match sa.replay().commit_alone(slot.sequence) {
            Ok(()) => opened.add(slot, sa),
            Err(refused) => slot.refuse(Some(sa), refusal(refused)),
        }
        done += 1;
        if !slots.get(done).is_some_and(is_next) {
            break;
        }
    }
    if opened.packets != 0 {
        sa.count(opened.packets, opened.bytes, turn.now_ns, true);
    }
    done
}

/// Accepts the packets of one SA that come first, without one of another in between; how many they are.
#[inline(never)]
fn accept_run(slots: &mut [Slot<'_>], sa: &Sa, alone: bool, turn: &mut Turn<'_>) -> usize {
    let (mut done, mut opened) = (0, Opened::default());
    // Where limits are counted, the packet that finds one reached is told from the one before.
    let slots_max = if sa.counts_each(alone) { 1 } else { usize::MAX };
    for slot in slots.iter_mut().take(slots_max) {
        if slot.verdict.is_some() || !is_same(slot.inbound, sa) {
            break;
        }
        done += 1;
        match accept_one(slot, sa, alone, turn) {
            Ok(()) => opened.add(slot, sa),
            Err(verdict) => slot.refuse(Some(sa), verdict),
        }
    }
    if opened.packets != 0 {
        sa.count(opened.packets, opened.bytes, turn.now_ns, alone);
        if let Some(token) = sa.limit_crossed() {
            turn.events.limit_reached(token, turn.counters);
        }
    }
    done
}

#[inline]
fn accept_one(
    slot: &mut Slot<'_>,
    sa: &Sa,
    alone: bool,
    turn: &mut Turn<'_>,
) -> Result<(), Verdict> {
    // Packets before this one in the batch may have used up what `open` still saw left.
    if sa.expired() {
        return Err(Verdict::InSaExpired);
    }
    // Two copies of one packet may both have passed `open`; one of them stops here.
    sa.replay().commit_as(slot.sequence, alone).map_err(refusal)?;
    if sa.hot().traits.is_encapsulated() {
        note_move(slot, sa, turn);
        slot.flaw = content::take(slot, sa).err();
    }
    Ok(())
}

/// What consecutive packets of one SA are to count, added up before it is written.
#[derive(Default)]
struct Opened {
    packets: u64,
    bytes: u64,
}

impl Opened {
    /// Step 3 for a packet that is no replay.
    #[inline(always)]
    fn add(&mut self, slot: &mut Slot<'_>, sa: &Sa) {
        if slot.flaw != Some(Verdict::EspPadding) {
            self.packets += 1;
            self.bytes += u64::from(slot.counted);
        }
        if let Some(flaw) = slot.flaw {
            // A dummy is nobody's error.
            slot.refuse(Some(sa).filter(|_| flaw != Verdict::Dummy), flaw);
        }
    }
}

/// Tells control if the packet came from elsewhere than the SA says.
fn note_move(slot: &Slot<'_>, sa: &Sa, turn: &mut Turn<'_>) {
    if sa.has_moved(slot.flow.src, slot.flow.src_port) {
        turn.events.mapping_changed(sa, &slot.flow, turn.now_ns, turn.counters);
    }
}
