//! First stage: packets from the ports into the batch.
//!
//! Every port gets an equal share of the batch, so that a busy port cannot starve another. What a
//! port does not give in this turn waits in its ring.

use xsk::{Frame, Pool, Port};

use crate::batch::{BATCH_PACKETS, Batch, Turn};

/// Fills the batch; the number of packets received.
pub(crate) fn receive(
    batch: &mut Batch<'_>,
    ports: &mut [Port],
    pool: &mut Pool,
    inbox: &mut Vec<Frame>,
    turn: &Turn<'_>,
) -> usize {
    let share = (BATCH_PACKETS / ports.len().max(1)).max(1);
    let mut bytes = 0;
    for (index, port) in ports.iter_mut().enumerate() {
        let room = share.min(BATCH_PACKETS - batch.slots.len());
        port.receive(pool, inbox, room);
        for frame in inbox.drain(..) {
            bytes += frame.len() as u64;
            batch.push(frame, index as u16);
        }
    }
    turn.counters.count_received(batch.slots.len() as u64, bytes);
    batch.slots.len()
}
