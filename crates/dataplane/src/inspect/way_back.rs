//! What came through an SA of route mode and no policy lets in: does the route to its source lead into the
//! tunnel that it came out of?
//!
//! The routes of all such packets are looked up together. That a tunnel is the SA's own is found out once
//! and remembered in the SA (`Hot::welcome_by`).

use std::net::{IpAddr, Ipv4Addr};

use arrayvec::ArrayVec;

use crate::batch::{BATCH_PACKETS, Slot};
use crate::cpu::{asked_cache, prefetch};
use crate::fib::{Fib, MANY};
use crate::policy::Direction;
use crate::punt::to_host;
use crate::runs::Run;
use crate::sa::Sa;
use crate::tunnel::is_of;
use crate::verdict::Verdict;
use crate::view::View;
use crate::vrfs::MAIN;

const _: () = assert!(BATCH_PACKETS <= MANY, "their routes are looked up in one go");

/// Decides on all packets of the runs that only routes can let in.
#[inline(never)]
pub(super) fn decide<'a, 'v: 'a>(
    runs: impl Iterator<Item = &'a mut Run<'v>>,
    slots: &mut [Slot<'v>],
    view: &'v View,
) {
    // Where they come from; once, where packets from one follow each other.
    let mut sources = [IpAddr::V4(Ipv4Addr::UNSPECIFIED); MANY];
    let mut vrfs = [MAIN; MANY];
    let mut count = 0;
    // Of each packet the slot, the number of its source, and its run's direction and verdict.
    let mut packets = [(0, 0, Direction::Forward, Verdict::NoPolicy); BATCH_PACKETS];
    let mut len = 0;
    for run in runs {
        let Some(verdict) = run.unwelcome else { continue };
        // Its packets came through one SA.
        let vrf = view.vrf_of(run.first(slots));
        for (at, slot) in run.undecided(slots) {
            if count == 0 || sources[count - 1] != slot.flow.src || vrfs[count - 1] != vrf {
                (sources[count], vrfs[count]) = (slot.flow.src, vrf);
                count += 1;
            }
            packets[len] = (at, count - 1, run.direction, verdict);
            len += 1;
        }
    }
    let mut codes = [0; MANY];
    if view.vrfs.in_use() {
        for (code, (vrf, source)) in codes.iter_mut().zip(vrfs.iter().zip(&sources[..count])) {
            *code = view.fib.code_in(*vrf, *source);
        }
    } else {
        view.fib.codes_of(&sources[..count], &mut codes);
    }
    let back = Back::by(&codes[..count], view);
    for (at, source, direction, verdict) in packets.into_iter().take(len) {
        let slot = &mut slots[at];
        let leads_back = slot.inbound.is_some_and(|sa| back.leads_into(source, sa, view));
        let end = match leads_back {
            false => Err(verdict),
            true if direction == Direction::In => to_host(slot, view),
            true => Ok(()),
        };
        if let Err(verdict) = end {
            slot.refuse(slot.inbound, verdict);
        }
    }
}

/// Whether no policy can say who comes through tunnels of route mode, so that the routes alone do.
pub(crate) fn do_routes_decide_alone(view: &View) -> bool {
    view.spd.side_of(Direction::Forward, true).is_silent()
}

/// The tunnels, by their rows, into which the routes to sources lead that were asked about together.
#[derive(Default)]
pub(crate) struct Back<'v>(ArrayVec<Option<(u32, &'v u64)>, MANY>);

impl<'v> Back<'v> {
    /// By what the routes say. Asks for the memory of who the tunnels are.
    pub(crate) fn by(codes: &[u32], view: &'v View) -> Back<'v> {
        let cache = asked_cache();
        let row = |code: &u32| {
            let number = Fib::tunnel_of(*code)?;
            let id = view.tunnels.id(number)?;
            prefetch(id, cache);
            Some((number, id))
        };
        Back(codes.iter().map(row).collect())
    }

    /// Whether the route to a source leads into the tunnel that an SA belongs to.
    #[inline]
    pub(crate) fn leads_into(&self, source: usize, sa: &Sa, view: &View) -> bool {
        let row = self.0.get(source).copied().flatten();
        row.is_some_and(|(number, id)| is_known(sa, number, *id, view))
    }
}

/// Whether an SA belongs to the tunnel of a row. Neither of the two ever changes, so what was once found
/// goes on being so.
#[inline]
fn is_known(sa: &Sa, number: u32, id: u64, view: &View) -> bool {
    sa.hot().is_welcomed_by(id) || becomes_known(sa, number, id, view)
}

#[cold]
fn becomes_known(sa: &Sa, number: u32, id: u64, view: &View) -> bool {
    let is_of = is_of(sa, number, view);
    if is_of {
        sa.hot().welcome_by(id);
    }
    is_of
}
