//! A port in plain memory: the data plane without a kernel, for benches and tests.
//!
//! ```text
//!   MemoryEnd ── inject ──▶ ring ── receive ──▶ MemoryPort
//!   MemoryEnd ◀── collect ── ring ◀── send ──── MemoryPort
//! ```
//!
//! The port uses the same ring code as AF_XDP, so what a bench measures is what runs. It never
//! drops a packet by itself: a full ring gives the packet back.

use std::io;

use crate::frame::Frame;
use crate::port::PortCounters;
use crate::ring::{self, Moved, RxRing, TxRing};
use crate::umem::{Pool, Umem};

/// The data plane's side of a pair of in-memory rings.
#[derive(Debug)]
pub struct MemoryPort {
    rx: RxRing,
    tx: TxRing,
    counters: PortCounters,
}

/// The other side: a test or a bench, which plays the network. May live on another thread.
#[derive(Debug)]
pub struct MemoryEnd {
    tx: TxRing,
    rx: RxRing,
}

impl MemoryPort {
    /// A port and its other end, with rings of `entries` packets in each direction.
    ///
    /// # Errors
    ///
    /// When there is no memory for the rings.
    ///
    /// # Panics
    ///
    /// When `entries` is no power of two.
    pub fn pair(umem: &'static Umem, entries: u32) -> io::Result<(MemoryPort, MemoryEnd)> {
        let (inject, receive) = ring::in_memory(umem, entries)?;
        let (send, collect) = ring::in_memory(umem, entries)?;
        let port = MemoryPort { rx: receive, tx: send, counters: PortCounters::default() };
        Ok((port, MemoryEnd { tx: inject, rx: collect }))
    }

    #[inline]
    pub(crate) fn receive<S>(
        &mut self,
        into: &mut Vec<S>,
        max: usize,
        make: impl FnMut(Frame) -> S,
    ) -> Moved {
        let moved = self.rx.pop_run(into, max, make);
        if moved.packets != 0 {
            self.rx.release();
            self.counters.count_received(moved);
        }
        moved
    }

    pub(crate) fn send(&mut self, frames: &mut Vec<Frame>) -> usize {
        let sent = self.send_from(frames, |frame| Some(frame.take()));
        frames.drain(..sent);
        self.counters.tx_ring_full += frames.len() as u64;
        sent
    }

    #[inline]
    pub(crate) fn send_from<S>(
        &mut self,
        slots: &mut [S],
        take: impl FnMut(&mut S) -> Option<Frame>,
    ) -> usize {
        let moved = self.tx.push_run(slots, take);
        self.counters.count_sent(moved);
        self.tx.publish();
        moved.packets
    }

    pub(crate) fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl MemoryEnd {
    /// Hands a packet to the port; it comes back when the ring is full.
    ///
    /// # Errors
    ///
    /// The frame itself.
    pub fn inject(&mut self, frame: Frame) -> Result<(), Frame> {
        self.tx.push(frame)?;
        self.tx.publish();
        Ok(())
    }

    /// Hands over as many of `frames` as there is room for, in order, and returns how many;
    /// the rest stay.
    pub fn inject_all(&mut self, frames: &mut Vec<Frame>) -> usize {
        let moved = self.tx.push_run(frames, |frame| Some(frame.take()));
        frames.drain(..moved.packets);
        self.tx.publish();
        moved.packets
    }

    /// Copies a packet into a frame of `pool` and hands it to the port. `false` when the pool is
    /// empty, the packet too long for a chunk, or the ring full.
    #[must_use]
    pub fn inject_bytes(&mut self, pool: &mut Pool, packet: &[u8]) -> bool {
        let Some(mut frame) = pool.take() else {
            return false;
        };
        let fits = match frame.push_back(packet.len()) {
            Some(room) => {
                room.copy_from_slice(packet);
                true
            }
            None => false,
        };
        let rejected = if fits { self.inject(frame).err() } else { Some(frame) };
        match rejected {
            Some(frame) => {
                pool.give(frame);
                false
            }
            None => true,
        }
    }

    /// Takes up to `max` packets that the port sent, and returns how many.
    pub fn collect(&mut self, into: &mut Vec<Frame>, max: usize) -> usize {
        let moved = self.rx.pop_run(into, max, |frame| frame);
        self.rx.release();
        moved.packets
    }

    /// Takes one packet that the port sent, as bytes; its frame goes to `pool`.
    pub fn collect_bytes(&mut self, pool: &mut Pool) -> Option<Vec<u8>> {
        let frame = self.rx.pop()?;
        self.rx.release();
        let bytes = frame.bytes().to_vec();
        pool.give(frame);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::identity;

    use super::*;

    #[test]
    fn packets_cross_both_ways_without_a_copy() {
        let umem = Umem::new(16, 2048, false).unwrap();
        let mut pool = umem.pool(0..16);
        let (mut port, mut end) = MemoryPort::pair(umem, 8).unwrap();
        for mark in 0..8u8 {
            assert!(end.inject_bytes(&mut pool, &[mark; 60]));
        }
        assert!(!end.inject_bytes(&mut pool, &[9; 60]), "the ring holds eight");
        assert!(!end.inject_bytes(&mut pool, &[9; 1793]), "longer than a chunk");
        assert_eq!(pool.free(), 8);

        let mut batch = Vec::new();
        assert_eq!(port.receive(&mut batch, 5, identity).packets, 5);
        assert_eq!(port.receive(&mut batch, 5, identity).packets, 3);
        let places: Vec<*const u8> = batch.iter().map(|frame| frame.bytes().as_ptr()).collect();
        assert_eq!(port.send(&mut batch), 8);
        assert_eq!(end.collect(&mut batch, 3), 3);
        for (frame, place) in batch.drain(..).zip(places) {
            assert_eq!(frame.bytes().as_ptr(), place);
            pool.give(frame);
        }
        for mark in 3..8u8 {
            assert_eq!(end.collect_bytes(&mut pool).unwrap(), [mark; 60]);
        }
        assert_eq!(end.collect_bytes(&mut pool), None);
        assert_eq!(pool.free(), 16);
        let counters = port.counters();
        assert_eq!((counters.rx_packets, counters.rx_bytes), (8, 480));
        assert_eq!((counters.tx_packets, counters.tx_bytes), (8, 480));
    }

    #[test]
    fn a_full_ring_leaves_packets_with_the_sender() {
        let umem = Umem::new(8, 2048, false).unwrap();
        let mut pool = umem.pool(0..8);
        let (mut port, mut end) = MemoryPort::pair(umem, 4).unwrap();
        let mut batch: Vec<Frame> = std::iter::from_fn(|| pool.take()).take(6).collect();
        assert_eq!(port.send(&mut batch), 4);
        assert_eq!((batch.len(), port.counters().tx_ring_full), (2, 2));
        assert_eq!(end.collect(&mut batch, 8), 4);
        batch.drain(..).for_each(|frame| pool.give(frame));
        assert_eq!(pool.free(), 8);
    }
}
