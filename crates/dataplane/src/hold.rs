//! Packets that wait for an SA.
//!
//! ```text
//!  choose: no SA ─► ACQUIRE ─► send ─► hold ──(the view changed, time passed)──► ahead of what is new
//!                                       └──(full, too late, policy gone)──► dropped by name
//! ```
//!
//! A tunnel that IKE negotiates on demand would otherwise lose the packet that asked for it, and its
//! sender would learn that only by its own timeout. The kernel drops it (`xfrm_larval_drop`). Here it
//! waits, if somebody listens for ACQUIRE, and leaves in order once the SA is there. What waits is
//! bounded per policy and far end, in all and in time. A packet comes back by its policy and not by the slot that it
//! missed: the policy may have changed. It never leaves in clear, whatever the policies say by then.
//!
//! Each worker has a hold of its own. It asks nobody for SAs; `event.rs` does.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use wire::flow::Flow;
use xsk::{Frame, Pool};

use crate::batch::{BATCH_PACKETS, Batch, Slot};
use crate::counters::Counters;
use crate::event::{Far, REPEAT_NS};
use crate::policy::{Action, Policy};
use crate::sa::{Mode, Sa};
use crate::verdict::Verdict;
use crate::view::View;

/// Packets that may wait in one worker: two batches, so that all of them go out in one turn. More
/// would help only where many tunnels begin at once, at 2 KiB each.
pub(crate) const HOLD_PACKETS: usize = 2 * BATCH_PACKETS;

/// Packets that may wait for one policy and far end: the first of a burst, such as a few flows' handshakes. What a
/// sender has under way beyond that it will not miss. An eighth of all, so that one without an answer leaves room for seven more.
const HOLD_POLICY_PACKETS: usize = 16;

/// Packets that may wait for all far ends of one policy: who scans what it is for leaves the other half to the others.
const HOLD_FAR_ENDS_PACKETS: usize = HOLD_PACKETS / 2;

/// Longest wait. A negotiation that loses one message takes a little more than charon's first
/// retransmission, after 4 s; a packet older than that has been repeated by its sender.
const HOLD_TIME: Duration = Duration::from_secs(5);

/// Free frames below which nothing waits: receiving comes first.
const POOL_FRAMES_MIN: usize = 2 * BATCH_PACKETS;

/// Time between two tries. While thousands of tunnels are set up, views change faster than this, and
/// each try costs a policy look-up per packet: 128 of them are 3 % of a millisecond.
const RETRY_NS: u64 = 1_000_000;

/// Time after which packets are tried although nothing changed, so that their SA is asked for again: the
/// question may have been lost, or have come before there was anybody to answer it.
const ASK_AGAIN_NS: u64 = REPEAT_NS;

/// Why, and since when, a packet waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stay {
    /// The policy whose SA is missing.
    pub(crate) policy: u32,
    /// The tunnel's row that the packet's route leads to, as one policy may be for many far ends.
    row: Option<NonZeroU32>,
    /// In transport mode one policy is for as many far ends as packets have.
    by_ends: bool,
    /// The tunnel of route mode that the packet came through; 0 if none.
    pub(crate) if_id: u32,
    /// When it was missed first.
    since_ns: u64,
    /// The packet came through another tunnel.
    pub(crate) opened: bool,
    /// The SA is there, and another worker's until its turn is over.
    brief: bool,
}

/// A packet that waits.
struct Held {
    frame: Frame,
    ingress: u16,
    flow: Flow,
    stay: Stay,
}

impl Held {
    /// Whether it waits for the SA that another packet wants.
    fn is_for(&self, policy: u32, far: Far) -> bool {
        self.stay.policy == policy && self.stay.far(&self.flow) == far
    }
}

/// The packets of one worker that wait, oldest first.
pub(crate) struct Hold {
    packets: VecDeque<Held>,
    time_ns: u64,
    /// The view that they were tried with last.
    generation: u64,
    tried_ns: u64,
    /// The SA of one of them was seen.
    hurried: bool,
}

impl Hold {
    /// An empty hold.
    pub(crate) fn new() -> Hold {
        Hold {
            packets: VecDeque::with_capacity(HOLD_PACKETS),
            time_ns: HOLD_TIME.as_nanos() as u64,
            generation: 0,
            tried_ns: 0,
            hurried: false,
        }
    }

    /// Changes the longest wait.
    pub(crate) fn set_time(&mut self, time: Duration) {
        self.time_ns = time.as_nanos() as u64;
    }

    /// How many packets wait.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether any that wait may go in this turn or one of the next, as a view may say that was not asked about them, or their SA is
    /// there, or they have waited long enough for something to be done about them. If not, what has an SA by that view is for nobody
    /// for whom any wait.
    #[inline]
    pub(crate) fn may_go(&self, view: &View, now_ns: u64) -> bool {
        !self.packets.is_empty()
            && (self.hurried
                || self.generation != view.generation
                || now_ns.saturating_sub(self.tried_ns) >= ASK_AGAIN_NS)
    }

    /// Whether a packet of a policy must wait although its SA is there, because others of that policy
    /// wait for the same far end, and shall leave before it: not those that the SA is not for.
    #[inline]
    pub(crate) fn must_follow(&mut self, slot: &Slot<'_>, policy: &Policy, sa: &Sa) -> bool {
        !self.packets.is_empty() && self.follows(slot, policy, sa)
    }

    #[cold]
    fn follows(&mut self, slot: &Slot<'_>, policy: &Policy, sa: &Sa) -> bool {
        let far = far_of(slot, policy);
        let leaves_first = |held: &Held| held.is_for(policy.index(), far) && sa.admits(&held.flow);
        let follows = self.packets.iter().any(leaves_first);
        self.hurried |= follows;
        follows
    }

    /// Before packets are sealed: drops what waited too long, and puts the rest ahead of the batch if
    /// there is a reason to try.
    #[inline]
    pub(crate) fn turn(
        &mut self,
        batch: &mut Batch<'_>,
        view: &View,
        now_ns: u64,
        pool: &mut Pool,
        counters: &Counters,
    ) {
        if self.packets.is_empty() {
            (self.generation, self.tried_ns) = (view.generation, now_ns);
            return;
        }
        self.expire(now_ns, pool, counters);
        let since_ns = now_ns.saturating_sub(self.tried_ns);
        let changed = view.generation != self.generation && since_ns >= RETRY_NS;
        if changed || self.hurried || since_ns >= ASK_AGAIN_NS {
            (self.generation, self.tried_ns, self.hurried) = (view.generation, now_ns, false);
            self.release(batch);
        }
    }

    #[cold]
    fn expire(&mut self, now_ns: u64, pool: &mut Pool, counters: &Counters) {
        let late = |held: &Held| now_ns.saturating_sub(held.stay.since_ns) >= self.time_ns;
        let count = self.packets.iter().take_while(|held| late(held)).count();
        for held in self.packets.drain(..count) {
            pool.give(held.frame);
        }
        counters.count(Verdict::HoldExpired, count as u64);
    }

    #[cold]
    fn release(&mut self, batch: &mut Batch<'_>) {
        let count = self.packets.len();
        batch.rejoined = count != 0;
        for Held { frame, ingress, flow, stay } in self.packets.drain(..) {
            batch.extend(std::iter::once(frame), ingress);
            if let Some(slot) = batch.slots.last_mut() {
                (slot.flow, slot.stay) = (flow, Some(stay));
                slot.waited_opened = stay.opened;
            }
        }
        batch.slots.rotate_right(count);
    }

    /// Takes a packet that found no SA, or gives up its frame.
    #[cold]
    pub(crate) fn take(
        &mut self,
        slot: &mut Slot<'_>,
        stay: Stay,
        pool: &mut Pool,
        counters: &Counters,
    ) {
        let far = stay.far(&slot.flow);
        let same = self.packets.iter().filter(|held| held.is_for(stay.policy, far)).count();
        let policys = self.packets.iter().filter(|held| held.stay.policy == stay.policy).count();
        let is_few = same < HOLD_POLICY_PACKETS && policys < HOLD_FAR_ENDS_PACKETS;
        let room = self.packets.len() < HOLD_PACKETS
            && (is_few || stay.brief)
            && pool.free() >= POOL_FRAMES_MIN;
        self.hurried |= stay.brief;
        let frame = slot.frame.take();
        if room {
            self.packets.push_back(Held { frame, ingress: slot.ingress, flow: slot.flow, stay });
        } else {
            counters.count(Verdict::HoldFull, 1);
            pool.give(frame);
        }
    }

    /// Gives up all that waits.
    pub(crate) fn discard(&mut self, pool: &mut Pool, counters: &Counters) {
        counters.count(Verdict::Stopped, self.packets.len() as u64);
        for held in self.packets.drain(..) {
            pool.give(held.frame);
        }
    }
}

/// For whom a packet wants a policy's SA.
pub(crate) fn far_of(slot: &Slot<'_>, policy: &Policy) -> Far {
    far(row_of(slot), is_by_ends(policy), &slot.flow)
}

fn far(row: Option<NonZeroU32>, by_ends: bool, flow: &Flow) -> Far {
    match row {
        _ if by_ends => Far::Ends(flow.src, flow.dst),
        Some(row) => Far::Row(row),
        None => Far::All,
    }
}

/// The row that a packet's route leads to, from 1.
fn row_of(slot: &Slot<'_>) -> Option<NonZeroU32> {
    NonZeroU32::new(slot.tunnel?.row() + 1)
}

/// Whether packets have SAs of this policy by their own ends.
#[cold]
#[inline(never)]
fn is_by_ends(policy: &Policy) -> bool {
    matches!(policy.action(), Action::Protect { template, .. } if template.mode == Mode::Transport)
}

impl Stay {
    /// A packet begins to wait now, or goes on waiting for this policy.
    pub(crate) fn begin(slot: &Slot<'_>, policy: &Policy, now_ns: u64) -> Stay {
        Stay::of(slot, policy.index(), is_by_ends(policy), now_ns)
    }

    /// As [`begin`](Stay::begin), until the next turn; also where no policy led to the SA.
    pub(crate) fn briefly(slot: &Slot<'_>, policy: Option<&Policy>, now_ns: u64) -> Stay {
        let (index, by_ends) = policy.map_or((0, false), |by| (by.index(), is_by_ends(by)));
        Stay { brief: true, ..Stay::of(slot, index, by_ends, now_ns) }
    }

    fn of(slot: &Slot<'_>, policy: u32, by_ends: bool, now_ns: u64) -> Stay {
        let row = row_of(slot);
        match slot.stay {
            Some(stay) => Stay { policy, row, by_ends, brief: false, ..stay },
            None => Stay {
                policy,
                row,
                by_ends,
                if_id: slot.came_by_tunnel(),
                since_ns: now_ns,
                opened: slot.inbound.is_some(),
                brief: false,
            },
        }
    }

    /// Whether the SA was there, and another worker's.
    pub(crate) fn is_brief(&self) -> bool {
        self.brief
    }

    fn far(&self, flow: &Flow) -> Far {
        far(self.row, self.by_ends, flow)
    }
}
