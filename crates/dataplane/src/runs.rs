//! Consecutive packets of which the policies say the same: they are asked once for all of them.
//!
//! Two packets are of one run if their flows differ in nothing that any policy of the direction looks at
//! (`Side::same` in `spd.rs`). Packets of one tunnel often come together, and are one run even where they
//! are of many flows.

use arrayvec::ArrayVec;

use crate::batch::{BATCH_PACKETS, Slot, Turn};
use crate::bundles::Sole;
use crate::policy::{Direction, Policy};
use crate::spd::Lookup;
use crate::verdict::Verdict;

/// Some consecutive slots. Those in between that are decided belong to no run.
#[derive(Clone, Copy)]
pub(crate) struct Run<'v> {
    first: u32,
    end: u32,
    /// Whose policies are asked.
    pub(crate) direction: Direction,
    /// What the look-up wants to know.
    pub(crate) asked: u32,
    /// The policy that presumably decides.
    pub(crate) presumed: Option<&'v Policy>,
    /// What the policies say.
    pub(crate) found: Lookup<'v>,
    /// What its packets die of if no route lets them in.
    pub(crate) unwelcome: Option<Verdict>,
    /// Where the SA is that they ask for, if it takes all packets.
    pub(crate) sole: Option<Sole<'v>>,
}

impl<'v> Run<'v> {
    /// All of some slots.
    pub(crate) fn of_all(slots: &[Slot<'v>], direction: Direction, found: Lookup<'v>) -> Run<'v> {
        let end = slots.len() as u32;
        let (asked, presumed) = (0, None);
        Run { first: 0, end, direction, asked, presumed, found, unwelcome: None, sole: None }
    }

    /// Its first slot.
    #[inline]
    pub(crate) fn first<'a>(&self, slots: &'a [Slot<'v>]) -> &'a Slot<'v> {
        &slots[self.first as usize]
    }

    /// Its slots that nobody decided, and where they are.
    #[inline]
    pub(crate) fn undecided<'a>(
        &self,
        slots: &'a [Slot<'v>],
    ) -> impl Iterator<Item = (usize, &'a Slot<'v>)> + use<'a, 'v> {
        let slots = slots.iter().enumerate().take(self.end as usize).skip(self.first as usize);
        slots.filter(|(_, slot)| slot.verdict.is_none())
    }

    /// The same for change.
    #[inline]
    pub(crate) fn of<'a>(
        &self,
        slots: &'a mut [Slot<'v>],
    ) -> impl Iterator<Item = &'a mut Slot<'v>> {
        let slots = &mut slots[self.first as usize..self.end as usize];
        slots.iter_mut().filter(|slot| slot.verdict.is_none())
    }

    /// Does something with each of its packets, and counts them, if there are any left, as a policy's.
    #[inline]
    pub(crate) fn count_each(
        &self,
        policy: &Policy,
        slots: &mut [Slot<'v>],
        turn: &Turn<'_>,
        mut each: impl FnMut(&mut Slot<'v>),
    ) {
        // Among many tunnels mostly each packet has another.
        if self.end - self.first == 1
            && let slot = &mut slots[self.first as usize]
            && slot.verdict.is_none()
        {
            each(slot);
            return policy.count(turn.seat, 1, slot.frame.len() as u64, turn.now_ns);
        }
        let (mut packets, mut bytes) = (0, 0);
        for slot in self.of(slots) {
            each(slot);
            packets += 1;
            bytes += slot.frame.len() as u64;
        }
        if packets != 0 {
            policy.count(turn.seat, packets, bytes, turn.now_ns);
        }
    }

    /// Counts its packets, if there are any left, as a policy's.
    #[inline]
    pub(crate) fn count(&self, policy: &Policy, slots: &mut [Slot<'v>], turn: &Turn<'_>) {
        self.count_each(policy, slots, turn, |_| {});
    }
}

/// The runs among up to [`BATCH_PACKETS`] slots.
pub(crate) struct Runs<'v>(ArrayVec<Run<'v>, BATCH_PACKETS>);

impl<'v> Runs<'v> {
    /// None yet.
    #[inline]
    pub(crate) fn new() -> Runs<'v> {
        Runs(ArrayVec::new())
    }

    /// A run begins with the slot `at`.
    #[inline]
    pub(crate) fn begin(&mut self, at: usize, direction: Direction, asked: u32) {
        let (first, end, found) = (at as u32, at as u32 + 1, Lookup::PortsNeeded);
        let (presumed, unwelcome, sole) = (None, None, None);
        let run = Run { first, end, direction, asked, presumed, found, unwelcome, sole };
        // Each begins with a slot of its own.
        let _ = self.0.try_push(run);
    }

    /// The last run goes on to the slot `at`.
    #[inline]
    pub(crate) fn extend(&mut self, at: usize) {
        if let Some(run) = self.0.last_mut() {
            run.end = at as u32 + 1;
        }
    }

    /// Every run.
    #[inline]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Run<'v>> {
        self.0.iter_mut()
    }
}
