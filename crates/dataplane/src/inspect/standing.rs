//! A standing welcome: what comes out of a tunnel of route mode is mostly let in by one policy that covers
//! everything there, and then nobody need ask for each packet.
//!
//! That it is so is remembered in the SA (`welcomed_by`), as a number that stands for these very policies
//! and this half of a second. So whoever wants to know when the policy was last of use is told to the
//! second, as by Linux, but its packets are counted only when it is asked: those are the SA's.
//!
//! ```text
//!  63  62                        27  26                    1   0
//! ┌───┬────────────────────────────┬────────────────────────┬────────┐
//! │ 1 │ version of the policies    │ time in 0.54 s         │ family │    ids of policies and rows begin with 0
//! └───┴────────────────────────────┴────────────────────────┴────────┘
//! ```
//!
//! Two that are not the same are so alike only for an SA that carried nothing for a year to half a second,
//! while policies changed a multiple of 2³⁶ times.

use std::sync::atomic::Ordering::Relaxed;

use wire::flow::Flow;

use crate::batch::Turn;
use crate::policy::Policy;
use crate::prefix::Family;
use crate::sa::{Mode, Sa};
use crate::spd::Side;
use crate::view::View;

const MARK: u64 = 1 << 63;
const VERSION_BITS: u32 = 36;
const TIME_BITS: u32 = 26;

/// Half a second, as a power of two of nanoseconds.
const TIME_SHIFT: u32 = 29;

const _: () = assert!(1 + VERSION_BITS + TIME_BITS + 1 == u64::BITS);

/// What is remembered of SAs in this turn.
#[derive(Clone, Copy)]
pub(super) struct Standing(u64);

impl Standing {
    #[inline]
    pub(super) fn of(view: &View, turn: &Turn<'_>) -> Standing {
        let low = |bits: u64, count: u32| bits & ((1 << count) - 1);
        let version = low(view.spd.version(), VERSION_BITS) << (TIME_BITS + 1);
        Standing(MARK | version | low(turn.now_ns >> TIME_SHIFT, TIME_BITS) << 1)
    }

    #[inline]
    fn of_family(self, flow: &Flow) -> u64 {
        self.0 | Family::of(flow.src).index() as u64
    }

    /// Whether every packet that came through an SA and goes on is welcome, if its addresses are any.
    #[inline]
    pub(super) fn welcomes(self, sa: &Sa, flow: &Flow) -> bool {
        sa.hot().welcomed_by.load(Relaxed) == self.of_family(flow)
    }

    /// Remembers that `policy` welcomes a packet which came through `sa` and goes on, if it welcomes them all.
    #[inline(never)]
    pub(super) fn note(self, sa: &Sa, flow: &Flow, policy: &Policy, side: &Side<'_>) {
        let welcomes_all = sa.hot().mode == Mode::Tunnel
            && !sa.is_selective()
            && side.is_for_all(policy, Family::of(flow.src));
        if welcomes_all {
            sa.hot().welcomed_by.store(self.of_family(flow), Relaxed);
        }
    }
}
