//! A standing welcome: what comes out of a tunnel of route mode is mostly let in by one policy that covers
//! everything there, and then nobody need ask for each packet.
//!
//! That it is so is remembered in the SA (`Hot::welcome_by`), as a number that stands for these very policies
//! and this half of a second. So whoever wants to know when the policy was last of use is told to the
//! second, as by Linux; its packets are counted only where it is asked, and all of them by the SA.
//!
//! ```text
//!  63  62                        27  26                    1   0
//! ┌───┬────────────────────────────┬────────────────────────┬────────┐
//! │ 1 │ version of the policies    │ time in 0.54 s         │ family │    ids of policies and rows begin with 0
//! └───┴────────────────────────────┴────────────────────────┴────────┘
//! ```
//!
//! Two that are not the same look alike only to an SA that carried nothing for 417 days to the half second, while
//! policies changed a multiple of 2³⁶ times.

use wire::flow::Flow;

use super::{Sides, check_addresses, inspect_opened, is_for_routes};
use crate::batch::{BATCH_PACKETS, Slot, Turn};
use crate::classify::is_local;
use crate::cpu::asked_cache;
use crate::policy::{Direction, Policy};
use crate::prefix::Family;
use crate::runs::Run;
use crate::sa::{Mode, Sa};
use crate::spd::{Lookup, Side};
use crate::view::View;

const MARK: u64 = 1 << 63;
const VERSION_BITS: u32 = 36;
const TIME_BITS: u32 = 26;

/// Half a second, as a power of two of nanoseconds.
const TIME_SHIFT: u32 = 29;

const _: () = assert!(BATCH_PACKETS <= u64::BITS as usize);
const _: () = assert!(1 + VERSION_BITS + TIME_BITS + 1 == u64::BITS);

/// By whose word a packet may come in.
pub(crate) enum Word<'v> {
    Policy(&'v Policy),
    /// That of the route to its source, which is still to be asked.
    Routes,
}

/// What is remembered of SAs in this turn.
#[derive(Clone, Copy)]
pub(crate) struct Standing(u64);

impl Standing {
    #[inline]
    pub(crate) fn of(view: &View, turn: &Turn<'_>) -> Standing {
        let low = |bits: u64, count: u32| bits & ((1 << count) - 1);
        let version = low(view.spd.version(), VERSION_BITS) << (TIME_BITS + 1);
        Standing(MARK | version | low(turn.now_ns >> TIME_SHIFT, TIME_BITS) << 1)
    }

    #[inline]
    fn of_family(self, family: Family) -> u64 {
        self.0 | family.index() as u64
    }

    /// Whether packets of a family are welcome that come through an SA and go on.
    #[inline(always)]
    pub(crate) fn lets_in(self, sa: &Sa, family: Family) -> bool {
        sa.hot().is_welcomed_by(self.of_family(family))
    }

    /// The slots whose packets go on and are welcome, as bits; but those of addresses that nobody may have
    /// are decided.
    #[inline(never)]
    pub(super) fn welcome(self, slots: &mut [Slot<'_>], view: &View) -> u64 {
        let mut welcome = 0;
        for (at, slot) in slots.iter_mut().enumerate() {
            if slot.verdict.is_none()
                && let Some(sa) = slot.inbound
                && self.lets_in(sa, Family::of(slot.flow.src))
                && !is_local(&slot.flow.dst, view)
            {
                match check_addresses(&slot.flow) {
                    Ok(()) => welcome |= 1 << at,
                    Err(verdict) => slot.refuse(slot.inbound, verdict),
                }
            }
        }
        welcome
    }

    /// Remembers of an SA that the policy which let the packets of a run pass lets all of its packets pass, if
    /// that is so.
    #[inline(never)]
    pub(super) fn note(self, run: &Run<'_>, slots: &[Slot<'_>], sides: &Sides<'_>) {
        let slot = run.first(slots);
        if let Lookup::Policy(policy) = run.found
            && run.direction == Direction::Forward
            && slot.verdict.is_none()
            && run.unwelcome.is_none()
            && let Some(sa) = slot.inbound
            && sa.hot().if_id != 0
        {
            let side = sides.side(sa.hot().if_id, run.direction);
            self.remember(policy, side, sa, Family::of(slot.flow.src));
        }
    }

    /// By whose word a packet is welcome that came through an SA of route mode and goes on; remembers if a policy says so
    /// of all others. `None` if it is not welcome.
    #[inline(never)]
    pub(crate) fn ask<'v>(self, flow: &Flow, sa: &Sa, view: &'v View) -> Option<Word<'v>> {
        let (side, if_id) = (view.spd.side_of(Direction::Forward, true), sa.hot().if_id);
        let asked = side.ask(if_id, flow, asked_cache());
        let presumed = side.presume(if_id, flow, asked, asked_cache());
        let found = side.lookup(if_id, flow, asked, presumed);
        match inspect_opened(flow, sa, found) {
            Ok(policy) => {
                let policy = policy?;
                self.remember(policy, &side, sa, Family::of(flow.src));
                Some(Word::Policy(policy))
            }
            Err(verdict) => is_for_routes(verdict, sa, found).then_some(Word::Routes),
        }
    }

    /// Remembers of an SA of route mode that a policy lets all of its packets pass, if that is so.
    fn remember(self, policy: &Policy, side: &Side<'_>, sa: &Sa, family: Family) {
        let hot = sa.hot();
        if hot.traits.mode() == Mode::Tunnel
            && !sa.is_selective()
            && side.is_for_all(policy, family)
        {
            hot.welcome_by(self.of_family(family));
        }
    }
}
