//! Routes that are looked up before their packets' turn.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use super::vrf_of;
use crate::batch::Slot;
use crate::fib::MANY;
use crate::view::View;
use crate::vrfs::MAIN;

/// What packets are routed by.
pub(crate) trait Bound {
    /// Where a packet is routed to.
    fn destination(slot: &Slot<'_>) -> IpAddr;

    /// Whether that is an address.
    #[inline(always)]
    fn leads_to(slot: &Slot<'_>, address: &IpAddr) -> bool {
        Self::destination(slot) == *address
    }
}

/// What is sealed by the far end of its tunnel, any other packet by the destination that was noted.
pub(super) enum AsNoted {}

impl Bound for AsNoted {
    #[inline(always)]
    fn destination(slot: &Slot<'_>) -> IpAddr {
        match slot.outbound {
            Some(sa) => sa.destination(),
            None => slot.flow.dst,
        }
    }

    #[inline(always)]
    fn leads_to(slot: &Slot<'_>, address: &IpAddr) -> bool {
        match slot.outbound {
            Some(sa) => sa.leads_to(address),
            None => slot.flow.dst == *address,
        }
    }
}

/// Routes that were looked up ahead, side by side, where the table is too large for the cache: from the first
/// packet on that leaves elsewhere than the one before.
pub(super) struct Ahead {
    /// Destinations of packets, in their order; those of packets that follow each other once.
    destinations: [IpAddr; MANY],
    codes: [u32; MANY],
    /// Those that are still to come; `None` until they are looked up.
    rest: Option<Range<usize>>,
}

impl Ahead {
    pub(super) const NOTHING: Ahead = Ahead {
        destinations: [IpAddr::V4(Ipv4Addr::UNSPECIFIED); MANY],
        codes: [0; MANY],
        rest: None,
    };

    /// None is looked up any more: other packets come.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.rest = None;
    }

    /// Looks up the routes of a packet and of those behind it, at most [`MANY`] in all; how many they are.
    #[inline(never)]
    fn look<B: Bound, const VRFS: bool>(
        &mut self,
        slot: &Slot<'_>,
        later: &[Slot<'_>],
        view: &View,
    ) -> usize {
        let mut count = 0;
        let is_asked = |slot: &&Slot<'_>| {
            slot.verdict.is_none() && known(slot).is_none() && vrf_of::<VRFS>(slot, view) == MAIN
        };
        for slot in std::iter::once(slot).chain(later).filter(is_asked) {
            if count == 0 || !B::leads_to(slot, &self.destinations[count - 1]) {
                self.destinations[count] = B::destination(slot);
                count += 1;
            }
        }
        if count != 0 {
            view.fib.codes_of(&self.destinations[..count], &mut self.codes);
        }
        count
    }

    /// The code of the route of a packet's destination, which is asked for in the order of the packets.
    #[inline]
    pub(super) fn code<B: Bound, const VRFS: bool>(
        &mut self,
        vrf: u32,
        slot: &Slot<'_>,
        later: &[Slot<'_>],
        view: &View,
    ) -> u32 {
        if vrf == MAIN {
            let mut rest = match self.rest.take() {
                Some(rest) => rest,
                None => 0..self.look::<B, VRFS>(slot, later, view),
            };
            let at = rest.find(|at| B::leads_to(slot, &self.destinations[*at]));
            self.rest = Some(rest);
            if let Some(at) = at {
                return self.codes[at];
            }
        }
        view.fib.code_in(vrf, B::destination(slot))
    }
}

/// The code of a packet's route that was looked up already: `choose` asked whether it leads into a tunnel.
#[inline]
pub(super) fn known(slot: &Slot<'_>) -> Option<u32> {
    if slot.outbound.is_none() { slot.lead.code() } else { None }
}
