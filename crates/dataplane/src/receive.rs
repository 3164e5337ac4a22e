//! Stage `receive`, before `parse`: packets from the ports into the batch.
//!
//! Every port first gets an equal share of the batch, so that a busy port cannot starve another;
//! what others leave of theirs, the busy ones take. What a port does not give in this turn waits in
//! its ring.

use xsk::{Frame, Pool, Port};

use crate::batch::{BATCH_PACKETS, Batch, Slot, Turn};
use crate::cpu::LINE;

/// Fills the batch with up to `packets_max` packets, which are at most [`BATCH_PACKETS`], for a worker that `lends` its work or not; the
/// number of packets received.
pub(crate) fn receive(
    batch: &mut Batch<'_>,
    ports: &mut [Port],
    pool: &mut Pool,
    packets_max: usize,
    lends: bool,
    turn: &mut Turn<'_>,
) -> usize {
    for (frame, ingress) in turn.late.drain(..) {
        batch.extend(std::iter::once(frame), ingress);
    }
    let late = batch.slots.len();
    let share = (BATCH_PACKETS / ports.len().max(1)).max(1);
    let mut bytes = 0;
    let mut more = true;
    while more {
        more = false;
        for (index, port) in ports.iter_mut().enumerate() {
            let room = share.min(packets_max.saturating_sub(batch.slots.len()));
            if room == 0 {
                break;
            }
            let (slots, ingress) = (&mut batch.slots, index as u16);
            // None of a packet is in this core's cache, and all of it together comes in the time of one line.
            let moved = match lends {
                false => port.receive(pool, slots, room, slotting(ask_for_all, ingress)),
                // Of nearly each, this worker reads the headers alone, and right away.
                true => port.receive(pool, slots, room, slotting(|frame| frame.fetch(0), ingress)),
            };
            bytes += moved.bytes;
            // A port that fills its share may have more.
            more |= moved.packets == room;
        }
        more &= batch.slots.len() < packets_max;
    }
    turn.counters.count_received((batch.slots.len() - late) as u64, bytes);
    batch.slots.len()
}

/// Keeps what was received for the next turn, in its order: the worker has packets out, and stays with the view that they refer to, which
/// has been replaced. Who was answered that a policy is in force may have sent what came since. How many are left for this turn: none.
#[cold]
pub(crate) fn put_off(batch: &mut Batch<'_>, turn: &mut Turn<'_>) -> usize {
    turn.late.extend(batch.slots.drain(..).map(|slot| (slot.frame, slot.ingress)));
    batch.slots.len()
}

/// What makes a packet's slot, and asks for its memory.
#[inline(always)]
fn slotting<'v>(ask: impl Fn(&Frame), ingress: u16) -> impl Fn(Frame) -> Slot<'v> {
    move |frame| {
        ask(&frame);
        Slot::new(frame, ingress)
    }
}

/// Asks for where a packet's headers are, where those in front of them will be, and its end.
#[inline(always)]
fn ask_for_all(frame: &Frame) {
    frame.prefetch(0);
    frame.prefetch(0usize.wrapping_sub(LINE));
    frame.prefetch(frame.len());
}
