//! What the policies of a batch are to count, added up before it is written.
//!
//! Consecutive packets mostly have the same policy and are counted together. A policy's counters lie
//! apart from what a look-up reads, so they are asked for when a policy is first seen, and written
//! when some more have been.

use crate::batch::Turn;
use crate::policy::Policy;

/// Policies that wait for their counters' memory. It takes some 100 ns, in which a look-up finds two or
/// three more.
const WAITING: usize = 8;

/// A sum for one policy.
#[derive(Clone, Copy)]
struct Sum<'v> {
    policy: &'v Policy,
    packets: u64,
    bytes: u64,
}

/// Sums for the policies of the last few packets.
pub(crate) struct Tally<'v> {
    sums: [Option<Sum<'v>>; WAITING],
    /// The last packet's.
    last: usize,
    seat: u16,
    now_ns: u64,
}

impl<'v> Tally<'v> {
    /// Nothing yet.
    pub(crate) fn new(turn: &Turn<'_>) -> Tally<'v> {
        Tally { sums: [None; WAITING], last: 0, seat: turn.seat, now_ns: turn.now_ns }
    }

    /// Counts a packet.
    #[inline]
    pub(crate) fn count(&mut self, policy: &'v Policy, bytes: usize) {
        if let Some(sum) = &mut self.sums[self.last]
            && std::ptr::eq(sum.policy, policy)
        {
            sum.packets += 1;
            sum.bytes += bytes as u64;
            return;
        }
        policy.prefetch_usage();
        self.last = (self.last + 1) % WAITING;
        let sum = Sum { policy, packets: 1, bytes: bytes as u64 };
        let oldest = self.sums[self.last].replace(sum);
        self.write(oldest);
    }

    /// Writes all sums.
    pub(crate) fn settle(&mut self) {
        for index in 0..WAITING {
            let sum = self.sums[index].take();
            self.write(sum);
        }
    }

    #[inline]
    fn write(&self, sum: Option<Sum<'v>>) {
        if let Some(Sum { policy, packets, bytes }) = sum {
            policy.count(self.seat, packets, bytes, self.now_ns);
        }
    }
}
