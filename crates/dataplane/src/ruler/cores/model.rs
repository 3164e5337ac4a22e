//! What more cores than this machine has would make of the costs that were measured on it.
//!
//! Many tunnels: every worker does all by itself, and shares nothing but the view; a core more is a
//! worker more. One fat tunnel: `crew.rs`, played with times instead of packets: the owner's turns with
//! their serial part, the ring in its order, helpers that take the oldest chunk when they are free, the
//! owner's share by the same rule. Memory, NIC and link have no limits here; on a real machine they come
//! first, and the answer is what the software allows.
//!
//! The costs go in as they were measured on one core, and what moving packets between cores adds as
//! it was measured on two. One core alone has no ring, and seals and opens in loops of its own: its time is
//! what was measured of it, and no sum of the pipeline's parts. Whoever shows the answer for more shows, beside it,
//! the answer for two and what two did (`bench cores`).

use std::collections::VecDeque;

use super::Load;
use crate::batch::BATCH_PACKETS;
use crate::chunk::CHUNK_PACKETS;
use crate::crew::{CHUNKS_PER_HELPER, RING_CHUNKS, TURN_CHUNKS};

/// Nanoseconds per packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// All of it, on a worker that does everything by itself.
    pub alone_ns: f64,
    /// What the owner of a fat tunnel does for every packet, in order.
    pub serial_ns: f64,
    /// What any worker can do.
    pub heavy_ns: f64,
    /// What it costs a helper beyond that to fetch the packet from the owner's core.
    pub moved_ns: f64,
}

/// Turns that are played: some 30 000 packets, in which the first and the last turn are lost.
const TURNS: usize = 512;

/// Packets per second of `cores` cores.
pub fn packets_per_second(costs: Costs, load: Load, cores: usize) -> f64 {
    match load {
        Load::Many(_) => cores as f64 * 1e9 / costs.alone_ns,
        Load::Fat if cores <= 1 => 1e9 / costs.alone_ns,
        Load::Fat => Play::new(costs, cores - 1).run(),
    }
}

/// A chunk in the ring: when it was published, and when it was done, once somebody has claimed it.
struct Piece {
    published_ns: f64,
    done_ns: Option<f64>,
}

/// One owner and its helpers.
struct Play {
    costs: Costs,
    /// The owner's time.
    now_ns: f64,
    /// When each helper is free.
    helpers: Vec<f64>,
    ring: VecDeque<Piece>,
}

impl Play {
    fn new(costs: Costs, helpers: usize) -> Play {
        Play { costs, now_ns: 0.0, helpers: vec![0.0; helpers], ring: VecDeque::new() }
    }

    /// Packets per second, under as many as it takes.
    fn run(mut self) -> f64 {
        let turn_chunks = BATCH_PACKETS / CHUNK_PACKETS;
        for _ in 0..TURNS {
            self.now_ns += self.costs.serial_ns * BATCH_PACKETS as f64;
            for _ in 0..turn_chunks {
                self.ring.push_back(Piece { published_ns: self.now_ns, done_ns: None });
            }
            self.help();
            self.commit();
            self.work();
        }
        // What is still out is done in its time.
        self.help_until(f64::INFINITY);
        let last = self.ring.iter().filter_map(|piece| piece.done_ns).fold(self.now_ns, f64::max);
        (TURNS * BATCH_PACKETS) as f64 * 1e9 / last
    }

    fn unclaimed(&self) -> usize {
        self.ring.iter().rev().take_while(|piece| piece.done_ns.is_none()).count()
    }

    fn help(&mut self) {
        self.help_until(self.now_ns);
    }

    /// The helper that is free first takes the oldest chunk, as long as that begins before `until`.
    fn help_until(&mut self, until: f64) {
        let chunk_ns = (self.costs.heavy_ns + self.costs.moved_ns) * CHUNK_PACKETS as f64;
        while let Some(piece) = self.ring.iter_mut().find(|piece| piece.done_ns.is_none()) {
            let Some(helper) = self.helpers.iter_mut().min_by(|a, b| a.total_cmp(b)) else {
                return;
            };
            let begins = helper.max(piece.published_ns);
            if begins > until {
                return;
            }
            *helper = begins + chunk_ns;
            piece.done_ns = Some(*helper);
        }
    }

    /// Takes back what is done, in order; what that costs is in the serial part.
    fn commit(&mut self) {
        while self
            .ring
            .front()
            .and_then(|piece| piece.done_ns)
            .is_some_and(|done| done <= self.now_ns)
        {
            self.ring.pop_front();
        }
    }

    /// The owner's share, and its wait where nothing is left to do but to wait.
    fn work(&mut self) {
        let keep = self.helpers.len() * CHUNKS_PER_HELPER as usize;
        loop {
            let is_short = RING_CHUNKS - self.ring.len().min(RING_CHUNKS) < TURN_CHUNKS;
            if self.unclaimed() > keep || (is_short && self.unclaimed() > 0) {
                self.now_ns += self.costs.heavy_ns * CHUNK_PACKETS as f64;
                let oldest = self.ring.iter_mut().find(|piece| piece.done_ns.is_none());
                if let Some(piece) = oldest {
                    piece.done_ns = Some(self.now_ns);
                }
            } else if is_short {
                let oldest = self.ring.front().and_then(|piece| piece.done_ns);
                self.now_ns = oldest.map_or(self.now_ns, |done| done.max(self.now_ns));
            } else {
                return;
            }
            self.help();
            self.commit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { alone_ns: 240.0, serial_ns: 40.0, heavy_ns: 200.0, moved_ns: 0.0 };

    fn fat(costs: Costs, cores: usize) -> f64 {
        packets_per_second(costs, Load::Fat, cores) * costs.alone_ns / 1e9
    }

    #[test]
    fn one_tunnel_grows_with_the_cores_up_to_its_serial_part() {
        assert_eq!(fat(COSTS, 1), 1.0);
        // Nothing but work: as long as the owner has time for some of it, no core idles.
        for cores in 2..=4 {
            let speedup = fat(COSTS, cores);
            assert!((speedup / cores as f64 - 1.0).abs() < 0.03, "{cores} cores: {speedup}");
        }
        // (40 + 200) / 40 = 6.
        for cores in [8, 16, 64] {
            let speedup = fat(COSTS, cores);
            assert!((5.8..=6.0).contains(&speedup), "{cores} cores: {speedup}");
        }
    }

    #[test]
    fn a_core_more_is_never_slower_and_moving_packets_costs() {
        for moved_ns in [0.0, 30.0, 100.0] {
            let costs = Costs { moved_ns, ..COSTS };
            let rates: Vec<f64> = (1..=64).map(|cores| fat(costs, cores)).collect();
            let falls = rates.windows(2).filter(|pair| pair[1] < pair[0] * 0.995).count();
            assert_eq!(falls, 0, "{rates:?}");
        }
        assert!(fat(Costs { moved_ns: 100.0, ..COSTS }, 2) < fat(COSTS, 2) * 0.9);
    }

    #[test]
    fn many_tunnels_are_as_many_workers() {
        let rate = |cores| packets_per_second(COSTS, Load::Many(10_000), cores);
        assert_eq!(rate(64), 64.0 * rate(1));
    }
}
