//! Stage `send`, after `route`: packets to their ports, and the rest to the pool.
//!
//! ```text
//!  batch ─┬─ egress ──► port ──► (sent, counted as its success)
//!         │              └─ no room, or others wait ─► queue of the port ─► port, later
//!         └─ dropped ─► pool
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

/// Packets in a row that end alike.
struct Alike {
    verdict: Verdict,
    packets: usize,
}

/// Packets on their way into one port, oldest first.
pub(crate) struct Queue {
    frames: Vec<Frame>,
    /// What they count as when they are sent.
    ends: Vec<Alike>,
    /// Packets that the port took and has not sent yet.
    unflushed: usize,
}

impl Queue {
    /// An empty queue.
    pub fn new() -> Queue {
        Queue {
            frames: Vec::with_capacity(QUEUE_PACKETS),
            ends: Vec::with_capacity(QUEUE_PACKETS),
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
        if sent != 0 {
            self.count(sent, counters);
        }
        self.unflushed = port.flush(pool);
    }

    /// Gives packets straight to the port, out of the first of slots that end alike, as long as it takes them at
    /// once; how many. None where others wait, which go first.
    #[inline]
    fn pass(
        &mut self,
        slots: &mut [Slot<'_>],
        is_alike: impl Fn(&Slot<'_>) -> bool,
        port: &mut Port,
        pool: &mut Pool,
    ) -> usize {
        if !self.is_empty() {
            return 0;
        }
        let take = move |slot: &mut Slot<'_>| is_alike(slot).then(|| slot.frame.take());
        let sent = port.send_from(slots, take, pool);
        self.unflushed += sent;
        sent
    }

    /// How many more packets may wait here.
    fn room(&self) -> usize {
        QUEUE_PACKETS.saturating_sub(self.frames.len())
    }

    /// Takes the packets of slots that end alike.
    #[inline]
    fn push(&mut self, slots: &mut [Slot<'_>], verdict: Verdict) {
        if slots.is_empty() {
            return;
        }
        let packets = slots.len();
        self.frames.extend(slots.iter_mut().map(|slot| slot.frame.take()));
        match self.ends.last_mut() {
            Some(last) if last.verdict == verdict => last.packets += packets,
            _ => self.ends.push(Alike { verdict, packets }),
        }
    }

    /// Counts the oldest packets, so many, as what they are now that they are sent.
    #[inline]
    fn count(&mut self, mut sent: usize, counters: &Counters) {
        let mut over = 0;
        for alike in &mut self.ends {
            let now = sent.min(alike.packets);
            counters.count(alike.verdict, now as u64);
            alike.packets -= now;
            sent -= now;
            if alike.packets != 0 {
                break;
            }
            over += 1;
        }
        self.ends.drain(..over);
    }

    /// Gives up all that waits.
    pub(crate) fn discard(&mut self, pool: &mut Pool, counters: &Counters) {
        counters.count(Verdict::Stopped, self.frames.len() as u64);
        self.ends.clear();
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
    let mut rest = &mut batch.slots[..];
    // Most packets leave where the one before left, and count alike.
    while let Some(&Slot { verdict, egress, .. }) = rest.first() {
        let is_alike = move |slot: &Slot<'_>| slot.verdict == verdict && slot.egress == egress;
        // Every slot is decided by now: `route` leaves none.
        let verdict = verdict.unwrap_or(Verdict::Stopped);
        let egress = egress.map(usize::from);
        let mut way = egress.and_then(|at| queues.get_mut(at).zip(ports.get_mut(at)));
        if let Some((queue, port)) = &mut way {
            let sent = queue.pass(rest, is_alike, port, pool);
            turn.counters.count(verdict, sent as u64);
            rest = &mut rest[sent..];
        }
        let run = rest.iter().take_while(|slot| is_alike(slot)).count();
        let (mut now, later) = rest.split_at_mut(run);
        let mut lost = if egress.is_some() { Verdict::RouteNotAPort } else { verdict };
        if let Some((queue, _)) = way {
            lost = Verdict::TransmitFull;
            let taken;
            (taken, now) = now.split_at_mut(run.min(queue.room()));
            queue.push(taken, verdict);
        }
        if !now.is_empty() {
            give_up(now, lost, pool, turn);
        }
        rest = later;
    }
    // All frames are taken.
    batch.slots.clear();
    for (queue, port) in queues.iter_mut().zip(ports) {
        queue.drain(port, pool, turn.counters);
    }
}

/// The end of packets that go nowhere; of those without an SA only if none may still come.
#[inline(never)]
fn give_up(slots: &mut [Slot<'_>], lost: Verdict, pool: &mut Pool, turn: &mut Turn<'_>) {
    let mut count = 0;
    for slot in slots {
        match slot.stay.filter(|_| lost == Verdict::NoSa) {
            Some(stay) => turn.hold.take(slot, stay, pool, turn.counters),
            None => {
                pool.give(slot.frame.take());
                count += 1;
            }
        }
    }
    turn.counters.count(lost, count);
}
