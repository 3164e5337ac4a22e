//! Packets that follow while their worker lends its work.
//!
//! ```text
//!   worker              whoever has time                     worker, in the order in which it lent
//!   numbers ──────────► envelope, encrypt, link header ────► send
//!   window asked ─────► decrypt, inside, link header ──────► number accepted, send
//! ```
//!
//! The worker reads of each no more than the headers that it came with. What others do needs nothing but what is here, the packet,
//! and the hot lines of its SA. Where a packet leaves that was opened, it is only told once its number is accepted.

use std::sync::Arc;

use arrayvec::ArrayVec;
use wire::{ethernet, ipv4, ipv6};

use super::lane::sealing::need;
use super::like::Known;
use super::opening::inside::{Counting, Inner, Tally};
use super::opening::{Marks, park};
use super::several::TRAILS;
use super::{Followed, PlainHeader, Trails, seal};
use crate::batch::{BATCH_PACKETS, Batch, Slot, Turn};
use crate::chunk::Job;
use crate::cpu::asked_cache;
use crate::crew::Member;
use crate::decrypt::decrypt_or_refuse;
use crate::keys::Supply;
use crate::open::refusal;
use crate::parse;
use crate::replay::run::Run;
use crate::route::Way;
use crate::sa::Sa;
use crate::verdict::Verdict;
use crate::view::View;

/// Packets that are worth a piece of work of their own.
pub(super) const WORTH: usize = 8;

/// Of each packet which trail's share it is of.
pub(super) type Numbers = ArrayVec<u8, BATCH_PACKETS>;

/// Of each share where its packets leave.
pub(super) type Ways = ArrayVec<Way, TRAILS>;

/// How packets are sealed that have their numbers and SAs.
pub(crate) struct Sealing {
    pub(super) shares: Numbers,
    pub(super) ways: Ways,
}

/// How packets are opened of which the window wants to hear.
pub(crate) struct Opening<'v> {
    pub(super) shares: Numbers,
    pub(super) of: ArrayVec<Share<'v>, TRAILS>,
    /// What their outer headers say.
    pub(super) marks: Marks,
    pub(super) view: &'v View,
    /// Those of the first packets that follow, once that is known. The others are as `decrypt` leaves them.
    pub(super) follow: usize,
    /// Those among them that carry IPv6, a bit for each.
    pub(super) v6: u64,
}

/// What a trail has to say of its packets of a piece of work.
pub(super) struct Share<'v> {
    /// The number of the trail.
    pub(super) trail: usize,
    pub(super) sa: &'v Sa,
    /// What has to be inside, and who counts it.
    pub(super) v4: Option<(Arc<Inner<ipv4::Plain>>, Counting<'v>)>,
    pub(super) v6: Option<(Arc<Inner<ipv6::Plain>>, Counting<'v>)>,
}

const _: () = assert!(BATCH_PACKETS <= u64::BITS as usize);

impl Trails {
    /// While the worker lends its work: accepts what has come back opened, and lends the packets of a batch that follow.
    #[inline]
    pub(crate) fn lend<'v>(
        &mut self,
        batch: &mut Batch<'v>,
        version: u64,
        view: &'v View,
        turn: &mut Turn<'_>,
        crew: &mut Member,
    ) -> Followed {
        let mut followed = Followed::default();
        let openings =
            crew.openings().map(|(opening, slots)| self.opened.accept(opening, slots, turn));
        // Of those to be opened it is only known now.
        let mut counted: usize = openings.sum();
        if crew.lends() && !turn.hold.may_go(view, turn.now_ns) {
            let Trails { sealed, sealed_v6, gathering, .. } = self;
            let job = |(packets, sealing)| (packets, Job::SealAs(sealing));
            followed.lent += lend(batch, crew, |slots| {
                sealed.lend(slots, version, view, turn, gathering).map(job)
            });
            followed.lent += lend(batch, crew, |slots| {
                sealed_v6.lend(slots, version, view, turn, gathering).map(job)
            });
            if let Some(lane) = &mut self.sealing {
                followed.lent +=
                    lend(batch, crew, |slots| lane.lend(slots, version, view, turn).map(job));
            }
            counted += followed.lent;
            // Those of one trail that come first, and then such as come behind others.
            for _ in 0..2 {
                followed.lent += lend(batch, crew, |slots| {
                    let trial = &mut self.gathering_esp;
                    let (packets, opening) = self.opened.lend(slots, version, view, turn, trial)?;
                    Some((packets, Job::OpenAs(opening)))
                });
            }
        }
        self.end_batch();
        if counted != 0 {
            turn.counters.count_followed(counted as u64);
        }
        followed
    }
}

/// Lends the packets of a batch that `which` puts first, if there is room; how many.
#[inline(always)]
fn lend<'v>(
    batch: &mut Batch<'v>,
    crew: &mut Member,
    which: impl FnOnce(&mut [Slot<'v>]) -> Option<(usize, Job<'v>)>,
) -> usize {
    let most = batch.slots.len().min(BATCH_PACKETS);
    if most == 0 || !crew.has_room() {
        return 0;
    }
    match which(&mut batch.slots[..most]) {
        Some((packets, job)) if packets != 0 => {
            crew.lend_first(job, batch, packets);
            packets
        }
        _ => 0,
    }
}

impl Sealing {
    /// Of so many packets of one trail.
    pub(super) fn of_one(packets: usize, way: Way) -> Sealing {
        let shares = std::iter::repeat_n(0, packets).collect();
        Sealing { shares, ways: ArrayVec::from_iter([way]) }
    }

    /// Seals packets, and says where they leave.
    pub(crate) fn work<'v>(&self, slots: &mut [Slot<'v>]) {
        let keys = Supply::of_all(slots, need, asked_cache());
        for at in 0..slots.len() {
            keys.step(slots, at);
            let slot = &mut slots[at];
            // Nobody is to learn from a packet of which no stage has read the headers.
            let sa = slot.outbound.take().filter(|_| slot.verdict.is_none());
            let (Some(sa), Some(share)) = (sa, self.shares.get(at)) else { continue };
            let way = &self.ways[usize::from(*share)];
            let sealed = match parse::is_v6(&slot.frame, ethernet::HEADER_LEN) {
                false => seal_one::<ipv4::Plain>(slot, sa, way),
                true => seal_one::<ipv6::Plain>(slot, sa, way),
            };
            match sealed {
                Err(Verdict::NoRoom) => slot.refuse(Some(sa), Verdict::NoRoom),
                Err(verdict) => slot.decide(verdict),
                Ok(()) => {}
            }
        }
    }
}

#[inline(always)]
fn seal_one<P: PlainHeader>(slot: &mut Slot<'_>, sa: &Sa, way: &Way) -> Result<(), Verdict> {
    let (hot, numbers) = (sa.hot(), (slot.sequence, slot.iv));
    seal::<P, false>(slot, hot, hot.usual_outer(), numbers, way)
}

impl<'v> Opening<'v> {
    /// Decrypts packets, and makes those ready to leave that follow.
    pub(crate) fn work(&mut self, slots: &mut [Slot<'v>]) {
        for slot in &mut *slots {
            if let Some(sa) = slot.inbound.filter(|_| slot.verdict.is_none()) {
                decrypt_or_refuse(slot, sa);
            }
        }
        let carried = self.marks.carry_inwards(slots, |_, slot| slot.inbound);
        let (mut known, mut known_v6) = (Known::of_none(), Known::of_none());
        self.follow = carried;
        for (at, slot) in slots[..carried].iter_mut().enumerate() {
            let Share { v4, v6, .. } = &self.of[usize::from(self.shares[at])];
            if slot.verdict.is_some()
                || v4.as_ref().is_some_and(|(inner, _)| inner.pass(slot, &mut known, self.view))
            {
                continue;
            }
            if v6.as_ref().is_some_and(|(inner, _)| inner.pass(slot, &mut known_v6, self.view)) {
                self.v6 |= 1 << at;
                continue;
            }
            self.follow = at;
            break;
        }
        for slot in &mut slots[self.follow..] {
            if let Some(sa) = slot.inbound {
                park(slot, sa);
            }
        }
    }

    /// How many of the first packets follow, when the work is done.
    pub(crate) fn followers(&self) -> usize {
        self.follow
    }

    /// Accepts the numbers of packets that follow; how many there are. Those behind them need the stages from `accept` on.
    pub(super) fn accept(&self, slots: &mut [Slot<'_>], turn: &mut Turn<'_>) -> usize {
        let is_one = self.of.len() == 1;
        for (number, share) in self.of.iter().enumerate() {
            let is_its = |at: usize| is_one || usize::from(self.shares[at]) == number;
            let slots = slots[..self.follow].iter_mut().enumerate().filter(|(at, _)| is_its(*at));
            let sa = share.sa;
            if sa.free_access(turn) == Some(true) {
                let (mut numbers, mut tallies) = (Run::new(sa.replay()), Default::default());
                for (at, slot) in slots {
                    let commit = |sequence| numbers.commit(sequence).map_err(refusal);
                    self.accept_one(at, slot, share, commit, &mut tallies);
                }
                drop(numbers);
                share.count(tallies, true, turn);
                continue;
            }
            // Others use it as well by now, or a limit is near.
            for (at, slot) in slots {
                let commit = |sequence| match sa.expired() {
                    true => Err(Verdict::InSaExpired),
                    false => sa.replay().commit_as(sequence, false).map_err(refusal),
                };
                let mut tallies = Default::default();
                self.accept_one(at, slot, share, commit, &mut tallies);
                share.count(tallies, false, turn);
                if let Some(token) = sa.limit_crossed() {
                    turn.events.limit_reached(token, turn.counters);
                }
            }
        }
        self.follow
    }

    /// Accepts the number of a packet of a share, and adds it to what is to be counted of IPv4 and of IPv6.
    #[inline(always)]
    fn accept_one(
        &self,
        at: usize,
        slot: &mut Slot<'_>,
        share: &Share<'_>,
        commit: impl FnOnce(u64) -> Result<(), Verdict>,
        tallies: &mut [Tally; 2],
    ) {
        // Nobody is to learn from a packet of which no stage has read the headers.
        slot.inbound = None;
        if slot.verdict.is_some() {
            return;
        }
        let is_v6 = self.v6 >> at & 1 != 0;
        match commit(slot.sequence) {
            Ok(()) => {
                let len = slot.frame.len() - ethernet::HEADER_LEN;
                tallies[usize::from(is_v6)].add(slot.counted, len as u64);
                slot.egress = share.port(is_v6);
                slot.decide(Verdict::Opened);
            }
            Err(verdict) => slot.refuse(Some(share.sa), verdict),
        }
    }
}

impl Share<'_> {
    /// Where packets leave that carry IPv6, or IPv4.
    #[inline(always)]
    fn port(&self, is_v6: bool) -> Option<u16> {
        match is_v6 {
            false => self.v4.as_ref().map(|(inner, _)| inner.port()),
            true => self.v6.as_ref().map(|(inner, _)| inner.port()),
        }
    }

    /// Counts packets whose numbers were accepted, `alone` where nobody else does.
    fn count(&self, [v4, v6]: [Tally; 2], alone: bool, turn: &Turn<'_>) {
        v4.count(self.sa, self.v4.as_ref().and_then(|(_, counting)| *counting), alone, turn);
        v6.count(self.sa, self.v6.as_ref().and_then(|(_, counting)| *counting), alone, turn);
    }
}
