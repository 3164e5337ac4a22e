//! Last stage: packets to their ports, and the rest to the pool.
//!
//! ```text
//!  batch ─┬─ egress ──► queue of the port ──► port ──► (sent, counted as its success)
//!         └─ dropped ─► pool                    └─ no room ─► stays in the queue
//! ```
//!
//! A packet without an SA that may still come goes to the hold instead.
//!
//! A port that takes nothing fills its queue, and then packets for it die by name. Everybody else's
//! packets go on: there is no back-pressure from one port to another.

use xsk::{Frame, Pool, Port};

use crate::batch::{BATCH_PACKETS, Batch, Slot, Turn};
use crate::counters::Counters;
use crate::verdict::Verdict;

/// Packets that may wait for one port: eight batches, which last a stalled port a quarter of a
/// millisecond at full speed. Fewer lose packets to short stalls, more only add delay.
const QUEUE_PACKETS: usize = 512;

/// Packets on their way into one port, oldest first.
pub(crate) struct Queue {
    frames: Vec<Frame>,
    /// What each of them counts as when it is sent.
    verdicts: Vec<Verdict>,
    /// Packets that the port took and has not sent yet.
    unflushed: usize,
}

impl Queue {
    /// An empty queue.
    pub fn new() -> Queue {
        Queue {
            frames: Vec::with_capacity(QUEUE_PACKETS),
            verdicts: Vec::with_capacity(QUEUE_PACKETS),
            unflushed: 0,
        }
    }

    /// Packets that wait here.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether nothing waits here.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether the port has anything left to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.frames.is_empty() && self.unflushed == 0
    }

    /// Sends what the port takes now.
    pub(crate) fn drain(&mut self, port: &mut Port, pool: &mut Pool, counters: &Counters) {
        // An idle port is asked only when frames run short, for those it has sent meanwhile.
        if self.is_idle() && pool.free() >= BATCH_PACKETS {
            return;
        }
        let sent = if self.is_empty() { 0 } else { port.send(&mut self.frames, pool) };
        // Most end alike.
        for alike in self.verdicts[..sent].chunk_by(|one, next| one == next) {
            counters.count(alike[0], alike.len() as u64);
        }
        self.verdicts.drain(..sent);
        self.unflushed = port.flush(pool);
    }

    /// Gives up all that waits.
    pub(crate) fn discard(&mut self, pool: &mut Pool, counters: &Counters) {
        counters.count(Verdict::Stopped, self.verdicts.len() as u64);
        self.verdicts.clear();
        for frame in self.frames.drain(..) {
            pool.give(frame);
        }
    }
}

impl Default for Queue {
    fn default() -> Self {
        Queue::new()
    }
}

/// Ends the turn of every packet.
pub(crate) fn send(
    batch: &mut Batch<'_>,
    ports: &mut [Port],
    queues: &mut [Queue],
    pool: &mut Pool,
    turn: &mut Turn<'_>,
) {
    if batch.slots.iter().any(|slot| slot.stay.is_some()) {
        hold_back(batch, pool, turn);
    }
    for slot in batch.slots.drain(..) {
        let Slot { frame, verdict, egress, .. } = slot;
        // Every slot is decided by now: `route` leaves none.
        let verdict = verdict.unwrap_or(Verdict::Stopped);
        match egress.and_then(|egress| queues.get_mut(usize::from(egress))) {
            Some(queue) if queue.frames.len() < QUEUE_PACKETS => {
                queue.frames.push(frame);
                queue.verdicts.push(verdict);
            }
            missing_or_full => {
                let lost = match (egress, missing_or_full) {
                    (None, _) => verdict,
                    (Some(_), Some(_)) => Verdict::TransmitFull,
                    (Some(_), None) => Verdict::RouteNotAPort,
                };
                turn.counters.count(lost, 1);
                pool.give(frame);
            }
        }
    }
    for (queue, port) in queues.iter_mut().zip(ports) {
        queue.drain(port, pool, turn.counters);
    }
}

/// Packets without an SA that may still come go to the hold.
#[cold]
fn hold_back(batch: &mut Batch<'_>, pool: &mut Pool, turn: &mut Turn<'_>) {
    let waits = |slot: &mut Slot<'_>| slot.verdict == Some(Verdict::NoSa) && slot.stay.is_some();
    for slot in batch.slots.extract_if(.., waits) {
        if let Some(stay) = slot.stay {
            turn.hold.take(slot, stay, pool, turn.counters);
        }
    }
}
