//! Sixth stage: of the authentic ESP packets those go on that are no replays.
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
use crate::encapsulation::UdpEncapsulation;
use crate::open::refusal;
use crate::sa::Sa;
use crate::verdict::Verdict;

/// What consecutive packets of one SA are to count, added up before it is written.
struct Opened<'v> {
    sa: Option<&'v Sa>,
    /// Whether nobody else may change its words.
    alone: bool,
    packets: u64,
    bytes: u64,
}

/// Accepts every packet that `decrypt` found authentic.
pub(crate) fn accept(batch: &mut Batch<'_>, turn: &mut Turn<'_>) {
    if batch.named.is_empty() && batch.returned == 0 {
        return;
    }
    let mut opened = Opened { sa: None, alone: false, packets: 0, bytes: 0 };
    for slot in &mut batch.slots {
        let Some(sa) = slot.inbound else { continue };
        if slot.verdict.is_some() {
            continue;
        }
        if !is_same(opened.sa, sa) || sa.hot().counted {
            opened.settle(turn);
            // `open` let none pass that has to wait, and an owner, also one whose packets were out
            // for a few turns, leaves to nobody but all.
            (opened.sa, opened.alone) = (Some(sa), sa.access(turn) == Access::Alone);
        }
        if let Err(verdict) = accept_one(slot, sa, &mut opened, turn) {
            if verdict != Verdict::Dummy {
                sa.count_error(verdict);
            }
            slot.decide(verdict);
        }
    }
    opened.settle(turn);
}

impl Opened<'_> {
    /// Writes the sum.
    #[inline]
    fn settle(&mut self, turn: &mut Turn<'_>) {
        let Some(sa) = self.sa.take() else { return };
        if self.packets != 0 {
            sa.count(self.packets, self.bytes, turn.now_ns, self.alone);
            (self.packets, self.bytes) = (0, 0);
            if let Some(token) = sa.limit_crossed() {
                turn.events.limit_reached(token, turn.counters);
            }
        }
    }
}

#[inline]
fn accept_one(
    slot: &mut Slot<'_>,
    sa: &Sa,
    opened: &mut Opened<'_>,
    turn: &mut Turn<'_>,
) -> Result<(), Verdict> {
    // Packets before this one in the batch may have used up what `open` still saw left.
    if sa.expired() {
        return Err(Verdict::InSaExpired);
    }
    // Two copies of one packet may both have passed `open`; one of them stops here.
    let committed = match opened.alone {
        true => sa.replay().commit_alone(slot.sequence),
        false => sa.replay().commit(slot.sequence),
    };
    committed.map_err(refusal)?;
    if sa.hot().encapsulated {
        note_move(slot, sa, turn);
        slot.flaw = content::take(slot, sa).err();
    }
    if slot.flaw != Some(Verdict::EspPadding) {
        opened.packets += 1;
        opened.bytes += u64::from(slot.counted);
    }
    slot.flaw.map_or(Ok(()), Err)
}

/// Tells control if the packet came from elsewhere than the SA says.
fn note_move(slot: &Slot<'_>, sa: &Sa, turn: &mut Turn<'_>) {
    let moved = |udp: UdpEncapsulation| udp.moved(sa.source(), slot.flow.src, slot.flow.src_port);
    if sa.encapsulation().is_some_and(moved) {
        turn.events.mapping_changed(sa, &slot.flow, turn.now_ns, turn.counters);
    }
}
