//! What is inside of packets that are opened, and by whose word it comes in.

use crate::batch::{Slot, Turn};
use crate::content;
use crate::fib::Route;
use crate::follow::like::{Known, Like};
use crate::inspect::{Back, Standing, do_routes_decide_alone, is_welcome};
use crate::open::refusal;
use crate::plain::PlainHeader;
use crate::policy::{Direction, Fields, Kind, Policy};
use crate::prefix::Family;
use crate::replay::run::Run;
use crate::route::way_of;
use crate::sa::Sa;
use crate::spd::Lookup;
use crate::verdict::Verdict;
use crate::view::View;

/// What was inside, of one family.
pub(in crate::follow) struct Inner<P: PlainHeader> {
    like: Like<P>,
    by: By,
}

/// By whose word they come in.
#[derive(Clone, Copy)]
enum By {
    /// That of a policy, which has this number.
    Policy(u32),
    /// Everything is welcome that comes through the SA.
    Standing,
    /// The route to where they come from leads into the SA's tunnel.
    Route,
}

/// Who counts what comes in, if a policy does.
pub(in crate::follow) type Counting<'v> = Option<&'v Policy>;

/// Packets that were let in, their bytes as the SA counts them, and as the policy does.
#[derive(Default)]
pub(in crate::follow) struct Tally {
    packets: u64,
    contents: u64,
    bytes: u64,
}

impl<P: PlainHeader> Inner<P> {
    /// What packets have in common with two that came through an SA; `None` if none may follow them.
    pub(super) fn of(
        pair: [&Slot<'_>; 2],
        sa: &Sa,
        view: &View,
        turn: &mut Turn<'_>,
    ) -> Option<Inner<P>> {
        let [before, slot] = pair;
        let (out, forward) = (view.spd.side(Direction::Out), view.spd.side(Direction::Forward));
        // The same for all that come by this port through this SA.
        let vrf = view.vrf_of(slot);
        let (code, block) = view.fib.block_in(vrf, slot.flow.dst);
        let Some(Route::Via(hop)) = view.fib.route_of(code) else { return None };
        // Without a router between, each destination has a link address of its own.
        let bits = if hop.gateway.is_some() { block } else { u32::MAX };
        let mut mask = P::seen(&out).with(P::seen(&forward)).with(&Fields::of_destination(bits));
        let by = match sa.hot().if_id {
            0 => match view.spd.lookup_numbered(Direction::Forward, &slot.flow) {
                (Lookup::Policy(_), number) => By::Policy(number?),
                _ => return None,
            },
            _ if do_routes_decide_alone(view) => {
                let (code, block) = view.fib.block_in(vrf, slot.flow.src);
                if !Back::by(&[code], view).leads_into(0, sa, view) {
                    return None;
                }
                mask = mask.with(&Fields::of_source(block));
                By::Route
            }
            _ => By::Standing,
        };
        let like = Like::<P>::of(slot, mask, way_of(slot, view, turn)?)?;
        // What else comes through the SA would be decrypted to be parked. Of the other family it may be.
        if Family::of(before.flow.src) == P::FAMILY && !like.is_of(before) {
            return None;
        }
        let inner = Inner { like, by };
        inner.counting(sa, view, turn).is_some().then_some(inner)
    }

    /// Who counts what comes in, if what comes through the SA is still welcome in this turn.
    #[inline]
    pub(super) fn counting<'v>(
        &self,
        sa: &Sa,
        view: &'v View,
        turn: &Turn<'_>,
    ) -> Option<Counting<'v>> {
        match self.by {
            By::Policy(number) => match view.spd.numbered(number, Direction::Forward) {
                Lookup::Policy(policy) => {
                    let lets_in = policy.kind() == Kind::Protect && is_welcome(policy, sa);
                    lets_in.then_some(Some(policy))
                }
                _ => None,
            },
            By::Standing => Standing::of(view, turn).lets_in(sa, P::FAMILY).then_some(None),
            // Of this version of the view that was found out.
            By::Route => Some(None),
        }
    }

    /// Looks at what was inside of packets and lets those go on that follow, unless they are replays, up to the first that is another,
    /// of which nothing is changed; how many there were before it.
    #[inline(never)]
    pub(super) fn let_in(
        &self,
        slots: &mut [Slot<'_>],
        sa: &Sa,
        counting: Counting<'_>,
        view: &View,
        turn: &Turn<'_>,
    ) -> usize {
        let (mut looked, mut known, mut tally) = (0, Known::of_none(), Tally::default());
        let mut numbers = Run::new(sa.replay());
        for slot in slots {
            let is_let_in = slot.verdict.is_some()
                || self.let_one_in(slot, sa, &mut numbers, &mut known, &mut tally, view);
            if !is_let_in {
                break;
            }
            looked += 1;
        }
        drop(numbers);
        tally.count(sa, counting, true, turn);
        looked
    }

    /// The same of one packet; whether it follows.
    #[inline(always)]
    pub(super) fn let_one_in(
        &self,
        slot: &mut Slot<'_>,
        sa: &Sa,
        numbers: &mut Run<'_>,
        known: &mut Known<P::Bits>,
        tally: &mut Tally,
        view: &View,
    ) -> bool {
        let content = content::any_behind(usize::from(slot.esp_at), slot, view);
        let Some(content) = content else { return false };
        if !self.like.admits(&content.header, known, view) {
            return false;
        }
        match numbers.commit(slot.sequence) {
            Ok(()) => {
                tally.add(content.len, content.header.total_len().into());
                // In front of it is what it was opened from.
                let sent_off = self.like.way.pass_on(slot, content.at, &content.header);
                slot.decide(sent_off.err().unwrap_or(Verdict::Opened));
            }
            Err(refused) => slot.refuse(Some(sa), refusal(refused)),
        }
        true
    }

    /// Makes a packet ready to leave whose number is still to be accepted, if it follows and is short enough; else nothing of it is
    /// changed.
    #[inline(always)]
    pub(in crate::follow) fn pass(
        &self,
        slot: &mut Slot<'_>,
        known: &mut Known<P::Bits>,
        view: &View,
    ) -> bool {
        let content = content::any_behind::<P>(usize::from(slot.esp_at), slot, view);
        let Some(content) = content else { return false };
        let is_short = usize::from(content.header.total_len()) <= self.like.way.mtu();
        if !is_short || !self.like.admits(&content.header, known, view) {
            return false;
        }
        slot.counted = content.len;
        if let Err(verdict) = self.like.way.pass_on(slot, content.at, &content.header) {
            slot.refuse(slot.inbound, verdict);
        }
        // As long as its number is not accepted, it goes nowhere.
        slot.egress = None;
        true
    }

    /// Where packets leave.
    pub(in crate::follow) fn port(&self) -> u16 {
        self.like.way.port()
    }
}

impl Tally {
    /// Adds a packet: its bytes as the SA counts them, and as the policy does.
    #[inline(always)]
    pub(in crate::follow) fn add(&mut self, content: u16, bytes: u64) {
        self.packets += 1;
        self.contents += u64::from(content);
        self.bytes += bytes;
    }

    /// Counts them, `alone` where nobody else counts the SA's.
    #[inline(always)]
    pub(in crate::follow) fn count(
        self,
        sa: &Sa,
        counting: Counting<'_>,
        alone: bool,
        turn: &Turn<'_>,
    ) {
        if self.packets == 0 {
            return;
        }
        sa.count(self.packets, self.contents, turn.now_ns, alone);
        if let Some(policy) = counting {
            policy.count(turn.seat, self.packets, self.bytes, turn.now_ns);
        }
    }
}
