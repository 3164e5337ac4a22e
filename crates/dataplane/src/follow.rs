//! Stage `follow`, between `receive` and `parse`: packets that need not be asked all that the other stages ask.
//!
//! Each packet of one fat tunnel is asked the same questions and gives the same answers. Once the other stages
//! have sealed packets with one SA, or opened some, the worker keeps what they found out as a *trail*: what packets have to
//! have in common with those to be dealt with as they were, with which SA, and where they leave. Those that have it are
//! sealed or opened here, also where several tunnels are busy, each of which has a trail (`several`). Where each packet goes into
//! a tunnel of its own, or comes out of one, none follows;
//! then those that are as nearly all are go by a *lane*, in fewer steps than the stages have (`lane`). So do those that leave in clear.
//! What comes mixed is sorted for that (`sorting`).
//!
//! ```text
//!  receive ─► follow ─┬─ as those before, or by the lane ──────────► send
//!                     └─ others, and those behind them ─► parse ─► … ─► route
//!                                                                └─ leaves a trail, opens the lane
//! ```
//!
//! A trail, and the lane, end with their version of the view: of what the view says, no answer is ever out of date. What packets
//! themselves say, each is asked; whose the SA's words are, every turn. Whatever is out of the ordinary
//! (limits that are near, extension headers, packets that wait or are out with other workers) is left to the other
//! stages, and so is each packet that is to be dropped, but for ESP that is not authentic, a replay, or for no SA.

mod aside;
mod busy;
mod hours;
mod lane;
pub(crate) mod lent;
mod like;
mod opening;
mod sealing;
mod several;
mod sorting;

use wire::flow::Flow;
use wire::{ethernet, ipv4, ipv6};

use crate::batch::{Batch, Slot, Turn};
use crate::encrypt::encrypt_data;
use crate::envelope::{self, FRONT_V4_LEN, FRONT_V4_UDP_LEN, FRONT_V6_LEN};
use crate::parse;
use crate::plain::PlainHeader;
use crate::prefix::Family;
use crate::route::Way;
use crate::sa::{Hot, Outer};
use crate::spd::{DefaultAction, Lookup, Side};
use crate::verdict::Verdict;
use crate::view::View;

use busy::Unled;
use hours::{Hours, Pause, Trial};

/// Gathering is worth it where more than one packet of so many follows: to look at the others is in vain.
const GATHERED: usize = 4;

/// What a worker knows of the packets before.
#[derive(Default)]
pub(crate) struct Trails {
    sealed: sealing::Trails<ipv4::Plain>,
    sealed_v6: sealing::Trails<ipv6::Plain>,
    opened: opening::Trails,
    /// What may be sealed that follows nobody, what may be opened, and what may be forwarded in clear.
    sealing: Option<lane::sealing::Lane>,
    opening: Option<lane::opening::Lane>,
    forwarding: Option<lane::forwarding::Lane>,
    unled: Unled,
    /// Of sorting packets.
    unsorted: Pause,
    /// In gathering those that follow, to be sealed and to be opened.
    gathering: Trial,
    gathering_esp: Trial,
}

/// What became of a batch here.
#[derive(Default)]
pub(crate) struct Followed {
    sealed: usize,
    opened: usize,
    /// In clear.
    forwarded: usize,
    /// No longer in the batch: others do the rest of it.
    lent: usize,
    /// Where in the batch those packets belong that were decrypted and then turned out to be others.
    parked: Option<usize>,
}

impl Followed {
    /// Whether nothing of a batch is left for the other stages.
    #[inline]
    pub(crate) fn is_all(&self, batch: &Batch<'_>) -> bool {
        let is_any = self.packets() + self.lent != 0;
        is_any && self.packets() == batch.slots.len() && self.parked.is_none()
    }

    #[inline]
    fn packets(&self) -> usize {
        self.sealed + self.opened + self.forwarded
    }

    /// After `decrypt`, which they had here: the packets that turned out to be others take their places again.
    #[inline]
    pub(crate) fn unpark(&self, batch: &mut Batch<'_>) {
        if let Some(at) = self.parked {
            let at = at.min(batch.slots.len());
            batch.returned += batch.parked.len();
            batch.slots.splice(at..at, batch.parked.drain(..));
        }
    }
}

impl Trails {
    /// Seals, opens and forwards the packets of a batch that follow.
    #[inline]
    pub(crate) fn follow<'v>(
        &mut self,
        batch: &mut Batch<'v>,
        version: u64,
        view: &'v View,
        turn: &mut Turn<'_>,
    ) -> Followed {
        let mut followed = Followed::default();
        // Packets that wait go first, if they go.
        if turn.hold.may_go(view, turn.now_ns) {
            return followed;
        }
        // How many had followed when the others were sorted first, if they may be.
        let mut sorted = None;
        let mut orders = sorting::ORDERS.iter();
        // Only as long as no packet is left behind: all stay in the order in which they came, or were sorted.
        loop {
            let at = followed.packets();
            let slots = &mut batch.slots[at..];
            let sealed = self.seal(slots, version, view, turn);
            let (opened, parked) = self.open(&mut slots[sealed..], version, view, turn);
            followed.sealed += sealed;
            followed.opened += opened;
            if parked != 0 {
                let at = followed.packets();
                followed.parked = Some(at);
                batch.parked.extend(batch.slots.drain(at..at + parked));
                break;
            }
            let lane = self.forwarding.as_mut();
            let slots = &mut slots[sealed + opened..];
            let forwarded = lane.map_or(0, |lane| lane.follow(slots, version, view, turn));
            followed.forwarded += forwarded;
            let taken = sealed + opened + forwarded;
            let rest = &mut batch.slots[followed.packets()..];
            if rest.is_empty() {
                break;
            }
            // A few of one kind before one of another.
            if taken < lane::WORTH && self.has_lane(version) {
                let at = followed.packets();
                let is_sorted =
                    *sorted.get_or_insert_with(|| self.unsorted.is_over().then_some(at));
                if is_sorted.is_some() && orders.any(|sort| sort(rest, view)) {
                    continue;
                }
            }
            if taken == 0 {
                break;
            }
        }
        if sorted.flatten() == Some(followed.packets()) {
            self.unsorted.begin();
        }
        self.end_batch();
        if followed.packets() != 0 {
            turn.counters.count_followed(followed.packets() as u64);
        }
        followed
    }

    /// Seals those of the first packets that follow, and those behind them that the lane takes; how many.
    #[inline]
    fn seal<'v>(
        &mut self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &mut Turn<'_>,
    ) -> usize {
        let mut sealed = self.sealed.follow(slots, version, view, turn);
        sealed += self.sealed_v6.follow(&mut slots[sealed..], version, view, turn);
        sealed += self.gather(&mut slots[sealed..], version, view, turn);
        let slots = &mut slots[sealed..];
        let Some(lane) = &mut self.sealing else { return sealed };
        let passed = lane.follow(slots, version, view, turn);
        let (v4, v6) = (&mut self.sealed, &mut self.sealed_v6);
        lane.busy.leave(slots, |pair| leave_sealed(v4, v6, pair, version, view, turn));
        sealed + passed
    }

    /// After a batch.
    #[inline]
    fn end_batch(&mut self) {
        // While nothing is gathered, that comes to the lanes as well.
        let pauses = [&mut self.gathering, &mut self.gathering_esp];
        let pauses = pauses.map(|trial| trial.end_batch(GATHERED));
        if let Some(lane) = &mut self.sealing {
            lane.hours.trial.end_batch(lane::sealing::WORTH);
            if pauses[0] {
                lane.hours.trial = Trial::default();
            }
        }
        if let Some(lane) = &mut self.opening {
            lane.hours.trial.end_batch(lane::opening::WORTH);
            if pauses[1] {
                lane.hours.trial = Trial::default();
            }
        }
        if let Some(lane) = &mut self.forwarding {
            lane.hours.trial.end_batch(lane::forwarding::WORTH);
        }
    }

    /// Whether there is a lane for packets of any kind.
    fn has_lane(&self, version: u64) -> bool {
        let hours = [
            self.sealing.as_ref().map(|lane| &lane.hours),
            self.opening.as_ref().map(|lane| &lane.hours),
            self.forwarding.as_ref().map(|lane| &lane.hours),
        ];
        hours.into_iter().flatten().any(|hours| hours.are_open(version))
    }

    /// Seals those that follow from among others that come before them and between them; how many.
    #[inline]
    fn gather<'v>(
        &mut self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &mut Turn<'_>,
    ) -> usize {
        let knows_any = self.sealed.are_of(version) || self.sealed_v6.are_of(version);
        if slots.len() < lane::WORTH || !knows_any || !self.gathering.is_on() {
            return 0;
        }
        let trial = &mut self.gathering;
        let sealed = self.sealed.gather(slots, version, view, turn, trial);
        sealed + self.sealed_v6.gather(&mut slots[sealed..], version, view, turn, trial)
    }

    /// Trails of two packets that the stages sealed or opened, if others may follow them.
    fn leave_trails(
        &mut self,
        pair: [&Slot<'_>; 2],
        version: u64,
        view: &View,
        turn: &mut Turn<'_>,
    ) {
        leave_sealed(&mut self.sealed, &mut self.sealed_v6, pair, version, view, turn);
        self.opened.leave(pair, version, view, turn);
    }

    /// Opens those of the first packets that follow, and those behind them that the lane takes: how many, and how many behind
    /// them are to be parked.
    #[inline]
    fn open<'v>(
        &mut self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &mut Turn<'_>,
    ) -> (usize, usize) {
        let (mut opened, mut parked) = (0, 0);
        if self.opened.are_of(version) {
            (opened, parked) = self.opened.follow(slots, view, turn);
            let rest = &mut slots[opened..];
            if parked == 0 && rest.len() >= lane::WORTH && self.gathering_esp.is_on() {
                let trial = &mut self.gathering_esp;
                let (gathered, others) = self.opened.gather(rest, view, turn, trial);
                (opened, parked) = (opened + gathered, others);
            }
        }
        let Some(lane) = self.opening.as_mut().filter(|_| parked == 0) else {
            return (opened, parked);
        };
        let slots = &mut slots[opened..];
        let (passed, parked) = lane.follow(slots, version, view, turn);
        lane.busy.leave(slots, |pair| self.opened.leave(pair, version, view, turn));
        (opened + passed, parked)
    }

    /// Opens the lanes, if they are not, of which the stages have dealt with one packet.
    fn open_lanes(&mut self, slots: &[Slot<'_>], version: u64, view: &View) {
        use lane::{forwarding, opening, sealing};
        let is_open = |hours: Option<&Hours>| hours.is_some_and(|hours| hours.are_of(version));
        if !is_open(self.sealing.as_ref().map(|lane| &lane.hours)) {
            let found = slots.iter().find_map(|slot| sealing::Lane::of(slot, version, view));
            self.sealing = found.or(self.sealing.take());
        }
        if !is_open(self.opening.as_ref().map(|lane| &lane.hours)) {
            let found = slots.iter().find_map(|slot| opening::Lane::of(slot, version, view));
            self.opening = found.or(self.opening.take());
        }
        if !is_open(self.forwarding.as_ref().map(|lane| &lane.hours)) {
            let found = slots.iter().find_map(|slot| forwarding::Lane::of(slot, version, view));
            self.forwarding = found.or(self.forwarding.take());
        }
    }

    /// Takes note of what became of a batch, where some of it did not follow.
    #[inline]
    pub(crate) fn learn(
        &mut self,
        followed: &Followed,
        batch: &Batch<'_>,
        version: u64,
        view: &View,
        turn: &mut Turn<'_>,
    ) {
        let slots = &batch.slots[..];
        if slots.len() < 2 {
            return;
        }
        self.open_lanes(slots, version, view);
        self.leave_busy(&slots[followed.packets()..], version, view, turn);
        // It may be the first of another family inside.
        if let Some(other) = followed.parked.and_then(|at| slots.get(at)) {
            self.opened.leave([other, other], version, view, turn);
        }
        // Packets of one port lie together: those of the first port and of the last. Of what followed no stage has read the headers.
        let read_from = followed.packets();
        for at in [0, slots.len() - 2].into_iter().filter(|at| at + 1 >= read_from) {
            let pair = [&slots[at], &slots[at + 1]];
            self.leave_trails(pair, version, view, turn);
            // Two of one SA may be of two families.
            let [before, last] = pair;
            if at >= read_from && Family::of(before.flow.src) != Family::of(last.flow.src) {
                self.leave_trails([last, before], version, view, turn);
            }
        }
    }
}

/// A trail of two packets that were sealed, if others may follow them; whether it is left now. Out of line, as it is
/// seldom done, and nothing of it is to take registers from packets.
#[inline(never)]
fn leave_sealed(
    v4: &mut sealing::Trails<ipv4::Plain>,
    v6: &mut sealing::Trails<ipv6::Plain>,
    pair: [&Slot<'_>; 2],
    version: u64,
    view: &View,
    turn: &mut Turn<'_>,
) -> bool {
    match Family::of(pair[1].flow.src) {
        Family::V4 => v4.leave(pair, version, view, turn),
        Family::V6 => v6.leave(pair, version, view, turn),
    }
}

/// Whether no policy of a side says anything of a flow, and so it may pass.
fn accepts_all(side: &Side<'_>, flow: &Flow) -> bool {
    let found = || side.spd().lookup(side.direction(), flow);
    side.is_silent() || matches!(found(), Lookup::Default(DefaultAction::Accept))
}

/// Seals a packet that is still as it came, or [ready](envelope::ready), and says where it leaves. Its SA is a
/// [simple](crate::sa::Traits::is_simple) tunnel, with that outer header if it is [usual](Hot::usual_outer). One that is ready was found
/// to be short enough for the way.
///
/// # Errors
///
/// It is too big for the way, or there is no room for what goes around it: then it is not encrypted, and must not leave.
#[inline(always)]
#[must_use = "a packet that was not encrypted must not leave"]
fn seal<P: PlainHeader, const READY: bool>(
    slot: &mut Slot<'_>,
    hot: &Hot,
    usual_outer: Option<&ipv4::Template>,
    numbers: (u64, u64),
    way: &Way,
) -> Result<(), Verdict> {
    match usual_outer.map(Outer::V4) {
        Some(outer) => seal_behind::<P, READY, FRONT_V4_LEN>(slot, hot, outer, numbers, way),
        None => seal_other::<P, READY>(slot, hot, numbers, way),
    }
}

/// Out of line, so that nothing of it takes registers from what most packets are.
#[inline(never)]
fn seal_other<P: PlainHeader, const READY: bool>(
    slot: &mut Slot<'_>,
    hot: &Hot,
    numbers: (u64, u64),
    way: &Way,
) -> Result<(), Verdict> {
    match hot.outer() {
        outer @ Outer::V4(_) => {
            seal_behind::<P, READY, FRONT_V4_UDP_LEN>(slot, hot, outer, numbers, way)
        }
        outer @ Outer::V6(_) => {
            seal_behind::<P, READY, FRONT_V6_LEN>(slot, hot, outer, numbers, way)
        }
    }
}

#[inline(always)]
fn seal_behind<P: PlainHeader, const READY: bool, const FRONT_LEN: usize>(
    slot: &mut Slot<'_>,
    hot: &Hot,
    outer: Outer<'_>,
    numbers: (u64, u64),
    way: &Way,
) -> Result<(), Verdict> {
    let header: P = parse::reread(&slot.frame, ethernet::HEADER_LEN).ok_or(Verdict::NoRoom)?;
    let content_len = usize::from(header.total_len());
    if !READY && envelope::len_behind(FRONT_LEN, content_len) > way.mtu() {
        return Err(Verdict::TooBig);
    }
    let frame = &mut slot.frame;
    let frame = envelope::frame::<P, READY, FRONT_LEN>(frame, &header, hot, outer, numbers);
    let frame = frame.ok_or(Verdict::NoRoom)?;
    way.write(frame.link);
    encrypt_data(hot, numbers, frame.enveloped);
    slot.egress = Some(way.port());
    slot.decide(Verdict::Sealed);
    Ok(())
}
