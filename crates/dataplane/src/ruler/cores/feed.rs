//! Who feeds the workers of the ruler, and who checks what they made of it.

use crypto::Engine;
use wire::ethernet::HEADER_LEN;
use wire::{esp, ipv4};
use xsk::{Frame, MemoryEnd, Pool, Umem};

use super::{Lane, Load, ROUND_PACKETS, lost};
use crate::batch::BATCH_PACKETS;
use crate::clock::Clock;
use crate::crew::crew;
use crate::ruler::RulerError;
use crate::ruler::path::gateways::Keys;
use crate::ruler::path::{CHUNK, HEADERS_LEN, Selection, check_sizes, gateways, headers};
use crate::view::{Publisher, View};

/// Which direction the workers of the ruler work in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Seal,
    Open,
}

/// Bytes of the mark that tells a tunnel's packets apart, behind the inner headers.
const MARK_LEN: usize = 8;

/// Frames of a worker's own pool. On memory ports it needs none, but those that it would drop.
const POOL_FRAMES: usize = 4 * BATCH_PACKETS;

/// Where the ESP header of a packet that left begins.
pub(super) const ESP_AT: usize = HEADER_LEN + ipv4::HEADER_LEN;

/// Frames, the other gateway, and what is expected next of each tunnel.
pub(super) struct Feed {
    umem: &'static Umem,
    frames: Vec<Frame>,
    /// The gateway that seals what the workers open, or opens what they seal.
    other: Lane,
    _publisher: Publisher,
    receiving: usize,
    /// Of each lane its tunnels, in the order in which packets use them, and the place of the next.
    walks: Vec<(Vec<usize>, usize)>,
    sizes: Vec<usize>,
    /// Packets written so far, of all lanes together.
    next: usize,
    /// Packets written to, and received from, each tunnel.
    written: Vec<u64>,
    received: Vec<u64>,
}

impl Feed {
    /// A feed for `receiving` workers, and the view that the workers forward by.
    pub(super) fn new(
        engine: Engine,
        receiving: usize,
        load: Load,
        way: Way,
        sizes: &[usize],
    ) -> Result<(Feed, View), RulerError> {
        check_sizes(sizes)?;
        if let Some(size) = sizes.iter().find(|size| **size < HEADERS_LEN - HEADER_LEN + MARK_LEN) {
            return Err(RulerError::Request(format!("inner packets of {size} bytes hold no mark")));
        }
        let tunnels = match load {
            Load::Fat => 1,
            Load::Many(tunnels) if (receiving..=50_000).contains(&tunnels) => tunnels,
            Load::Many(tunnels) => {
                return Err(RulerError::Request(format!(
                    "no fewer than {receiving} tunnels and at most 50000, not {tunnels}"
                )));
            }
        };
        let (west, east) = (
            gateways::west_view(Selection::Policy, engine, tunnels, Keys::Apart)?,
            gateways::east_view(Selection::Policy, engine, tunnels, Keys::Apart)?,
        );
        let (view, others) = if way == Way::Seal { (west, east) } else { (east, west) };
        let publisher = Publisher::new(others);
        // 64 pools for workers, one for the other gateway, and the frames that go round.
        let frames = receiving * ROUND_PACKETS;
        let umem = Umem::new(65 * POOL_FRAMES + frames, CHUNK, true)?;
        let mut pool = umem.pool(65 * POOL_FRAMES..65 * POOL_FRAMES + frames);
        let member = crew(1, Clock)?.swap_remove(0);
        let other =
            Lane::new(0, umem.pool(64 * POOL_FRAMES..65 * POOL_FRAMES), &publisher, member)?;
        let feed = Feed {
            umem,
            frames: std::iter::from_fn(|| pool.take()).collect(),
            other,
            _publisher: publisher,
            receiving,
            walks: (0..receiving).map(|lane| (walk(lane, receiving, tunnels), 0)).collect(),
            sizes: sizes.to_vec(),
            next: 0,
            written: vec![0; tunnels],
            received: vec![0; tunnels],
        };
        Ok((feed, view))
    }

    /// The pool of a worker.
    pub(super) fn pool(&self, worker: usize) -> Pool {
        self.umem.pool(worker * POOL_FRAMES..(worker + 1) * POOL_FRAMES)
    }

    /// Fills the workers' rings with a round of packets; their inner bytes.
    pub(super) fn fill(&mut self, lanes: &mut [Lane], way: Way) -> Result<u64, RulerError> {
        let mut bytes = 0;
        let mut batch = Vec::with_capacity(BATCH_PACKETS);
        for (lane, ends) in lanes.iter_mut().enumerate().take(self.receiving) {
            for _ in 0..ROUND_PACKETS / BATCH_PACKETS {
                let first = self.frames.len() - BATCH_PACKETS;
                batch.extend(self.frames.drain(first..));
                for frame in &mut batch {
                    bytes += self.write(frame, lane);
                }
                if way == Way::Open {
                    let Lane { worker, red, black } = &mut self.other;
                    through(worker, red, black, &mut batch);
                }
                let end = if way == Way::Seal { &mut ends.red } else { &mut ends.black };
                end.inject_all(&mut batch);
            }
        }
        Ok(bytes)
    }

    /// Writes the next packet of a lane; its inner bytes.
    fn write(&mut self, frame: &mut Frame, lane: usize) -> u64 {
        let size = self.sizes[self.next % self.sizes.len()];
        let (order, place) = &mut self.walks[lane];
        let tunnel = order[*place];
        *place = if *place + 1 == order.len() { 0 } else { *place + 1 };
        self.next += 1;
        frame.clear();
        if let Some(room) = frame.push_back(HEADER_LEN + size) {
            room[..HEADERS_LEN].copy_from_slice(&headers::into_tunnel(tunnel, size));
            let mark = self.written[tunnel].to_be_bytes();
            room[HEADERS_LEN..HEADERS_LEN + MARK_LEN].copy_from_slice(&mark);
        }
        self.written[tunnel] += 1;
        size as u64
    }

    /// Takes what the workers sent, and checks every packet.
    pub(super) fn check(
        &mut self,
        lanes: &mut [Lane],
        way: Way,
        round: usize,
    ) -> Result<(), RulerError> {
        let sent = self.receiving * round;
        let mut came = 0;
        for lane in lanes.iter_mut().take(self.receiving) {
            let mut left = Vec::with_capacity(BATCH_PACKETS);
            loop {
                let end = if way == Way::Seal { &mut lane.black } else { &mut lane.red };
                if end.collect(&mut left, BATCH_PACKETS) == 0 {
                    break;
                }
                came += self.check_batch(&mut left, way)?;
            }
        }
        if came == sent { Ok(()) } else { Err(lost(lanes, sent, came)) }
    }

    /// Checks packets in the order in which they left a worker, and takes their frames back; how many.
    pub(super) fn check_batch(
        &mut self,
        left: &mut Vec<Frame>,
        way: Way,
    ) -> Result<usize, RulerError> {
        let count = left.len();
        if way == Way::Seal {
            self.check_numbers(left)?;
            let Lane { worker, red, black } = &mut self.other;
            through(worker, black, red, left);
            if left.len() != count {
                return Err(lost(std::slice::from_ref(&self.other), count, left.len()));
            }
        }
        self.check_marks(left)?;
        self.frames.append(left);
        Ok(count)
    }

    /// Sealed packets carry the next numbers of their tunnels. What was received of a tunnel is counted
    /// in `check_marks`, so numbers within these few packets are told from those before.
    fn check_numbers(&self, packets: &[Frame]) -> Result<(), RulerError> {
        let mut ahead: Vec<(usize, u64)> = Vec::new();
        for frame in packets {
            let header = frame.bytes().get(ESP_AT..ESP_AT + esp::ESP_HEADER_LEN);
            let word = |at: usize| -> Option<u32> {
                Some(u32::from_be_bytes(*header?.get(at..)?.first_chunk()?))
            };
            let (spi, number) = (word(0).unwrap_or(0), u64::from(word(4).unwrap_or(0)));
            let tunnel = (spi.wrapping_sub(gateways::SPI_FIRST)) as usize;
            let place = ahead.iter().position(|(other, _)| *other == tunnel).unwrap_or_else(|| {
                ahead.push((tunnel, self.received.get(tunnel).copied().unwrap_or(0)));
                ahead.len() - 1
            });
            ahead[place].1 += 1;
            if number != ahead[place].1 {
                return Err(disorder(tunnel, ahead[place].1, number));
            }
        }
        Ok(())
    }

    /// Opened packets carry their tunnel's marks in order.
    fn check_marks(&mut self, packets: &[Frame]) -> Result<(), RulerError> {
        for frame in packets {
            let bytes = frame.bytes();
            let destination = bytes.get(HEADER_LEN + 16..).and_then(|rest| rest.first_chunk());
            let mark = bytes.get(HEADERS_LEN..).and_then(|rest| rest.first_chunk());
            let (Some(destination), Some(mark)) = (destination, mark) else {
                return Err(RulerError::Request("a packet came out too short".to_owned()));
            };
            let (tunnel, mark) = (gateways::tunnel_of(*destination), u64::from_be_bytes(*mark));
            let expected = self.received.get_mut(tunnel);
            let Some(expected) = expected.filter(|expected| **expected == mark) else {
                return Err(disorder(
                    tunnel,
                    self.received.get(tunnel).copied().unwrap_or(0),
                    mark,
                ));
            };
            *expected += 1;
        }
        Ok(())
    }
}

/// The tunnels of a lane, those whose number leaves that rest, in an order that was drawn once.
fn walk(lane: usize, receiving: usize, tunnels: usize) -> Vec<usize> {
    let order = gateways::random_order((tunnels - lane).div_ceil(receiving));
    order.into_iter().map(|nth| lane + receiving * nth as usize).collect()
}

fn disorder(tunnel: usize, expected: u64, found: u64) -> RulerError {
    RulerError::Order { tunnel, expected, found }
}

/// A batch through a gateway that nobody measures.
fn through(
    worker: &mut crate::worker::Worker,
    from: &mut MemoryEnd,
    to: &mut MemoryEnd,
    batch: &mut Vec<Frame>,
) {
    from.inject_all(batch);
    worker.turn();
    to.collect(batch, BATCH_PACKETS);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stride hits one tunnel for ever where it divides their number.
    #[test]
    fn every_tunnel_of_a_lane_is_used_whatever_their_number() {
        for (receiving, tunnels) in [(1, 7919), (2, 2 * 7919), (2, 3), (3, 8192)] {
            let mut all: Vec<usize> =
                (0..receiving).flat_map(|lane| walk(lane, receiving, tunnels)).collect();
            assert!(walk(0, receiving, tunnels).iter().all(|tunnel| tunnel % receiving == 0));
            all.sort_unstable();
            assert!(all.into_iter().eq(0..tunnels));
        }
    }
}
