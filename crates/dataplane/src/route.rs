//! Eighth stage: where the packet leaves, and the link header it leaves with.
//!
//! A sealed packet is routed by the far end of its tunnel, any other by its own destination. What
//! has an egress after this stage has a success for a verdict, which counts once it is sent.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use wire::Overlay;
use wire::ethernet::{EtherType, HEADER_LEN, Header, MacAddr};

use crate::batch::{Batch, Slot, Turn, is_same};
use crate::fib::{MANY, NextHop, Route};
use crate::punt::punt;
use crate::sa::Sa;
use crate::verdict::Verdict;
use crate::view::View;
use crate::vrfs::{MAIN, UNKNOWN};

/// Where the packet before left. Packets of one tunnel leave as one did, and most others by the same
/// router, so little has to be looked up again. It ends with the batch, and so cannot be out of date.
struct Last<'v> {
    /// The SA that it was sealed with, outside of VRFs.
    sa: Option<&'v Sa>,
    vrf: u32,
    destination: IpAddr,
    /// How many first bits of the destination decided on the route; [`ALL`] if that is not known.
    block: u32,
    /// Of the route, and whether all that it leads are sent to one router.
    code: u32,
    is_shared: bool,
    port: u16,
    mtu: usize,
    /// The link header's first eight bytes, and its last.
    header: [u64; 2],
}

/// As many bits as two destinations never have in common that are not the same.
const ALL: u32 = 128;

/// Routes that were looked up ahead, side by side, where the table is too large for the cache.
struct Ahead {
    /// Destinations of packets, in their order; those of packets that follow each other once.
    destinations: [IpAddr; MANY],
    codes: [u32; MANY],
    /// Those that are still to come.
    rest: Range<usize>,
}

impl Ahead {
    const NOTHING: Ahead = Ahead {
        destinations: [IpAddr::V4(Ipv4Addr::UNSPECIFIED); MANY],
        codes: [0; MANY],
        rest: 0..0,
    };

    /// Looks up the routes of the next packets, at most [`MANY`].
    fn look<const VRFS: bool>(&mut self, slots: &[Slot<'_>], view: &View) {
        let mut count = 0;
        let is_asked = |slot: &&Slot<'_>| {
            slot.verdict.is_none() && known(slot).is_none() && vrf_of::<VRFS>(slot, view) == MAIN
        };
        for slot in slots.iter().filter(is_asked) {
            if count == 0 || !leads_to(slot, &self.destinations[count - 1]) {
                self.destinations[count] = destination(slot);
                count += 1;
            }
        }
        self.rest = 0..count;
        if count != 0 {
            view.fib.codes_of(&self.destinations[..count], &mut self.codes);
        }
    }

    /// The code of the route of a packet's destination, which is asked for in the order of the packets.
    #[inline]
    fn code(&mut self, vrf: u32, slot: &Slot<'_>, view: &View) -> u32 {
        if vrf == MAIN
            && let Some(at) = self.rest.find(|at| leads_to(slot, &self.destinations[*at]))
        {
            return self.codes[at];
        }
        view.fib.code_in(vrf, destination(slot))
    }
}

/// Routes every packet.
pub(crate) fn route(batch: &mut Batch<'_>, view: &View, turn: &mut Turn<'_>) {
    // Who has no VRF is not to pay for them.
    match view.vrfs.in_use() {
        false => route_all::<false>(batch, view, turn),
        true => route_all::<true>(batch, view, turn),
    }
}

/// The table in which a packet's destination is looked up.
#[inline(always)]
fn vrf_of<const VRFS: bool>(slot: &Slot<'_>, view: &View) -> u32 {
    if VRFS { view.vrf_out_of(slot) } else { MAIN }
}

#[inline(always)]
fn route_all<const VRFS: bool>(batch: &mut Batch<'_>, view: &View, turn: &mut Turn<'_>) {
    let mut last = None;
    let mut ahead = view.fib.is_large().then_some(Ahead::NOTHING);
    let has_host = view.has_host();
    for slots in batch.slots.chunks_mut(MANY) {
        if let Some(ahead) = &mut ahead {
            ahead.look::<VRFS>(slots, view);
        }
        for slot in slots.iter_mut().filter(|slot| slot.verdict.is_none()) {
            let verdict = match route_one::<VRFS>(slot, view, turn, &mut last, ahead.as_mut()) {
                Ok(()) => success(slot, has_host && slot.is_hosts(view)),
                Err(verdict) => verdict,
            };
            slot.decide(verdict);
        }
    }
}

/// Where a packet is routed to.
#[inline]
fn destination(slot: &Slot<'_>) -> IpAddr {
    match slot.outbound {
        Some(sa) => sa.destination(),
        None => slot.flow.dst,
    }
}

/// Whether that is an address.
#[inline]
fn leads_to(slot: &Slot<'_>, address: &IpAddr) -> bool {
    match slot.outbound {
        Some(sa) => sa.leads_to(address),
        None => slot.flow.dst == *address,
    }
}

/// The code of a packet's route that was looked up already: `choose` asked whether it leads into a tunnel.
#[inline]
fn known(slot: &Slot<'_>) -> Option<u32> {
    if slot.outbound.is_none() { slot.lead.code() } else { None }
}

#[inline]
fn route_one<'v, const VRFS: bool>(
    slot: &mut Slot<'v>,
    view: &View,
    turn: &mut Turn<'_>,
    last: &mut Option<Last<'v>>,
    ahead: Option<&mut Ahead>,
) -> Result<(), Verdict> {
    // Packets of one SA have one destination.
    let follows = |last: &Last<'_>| last.sa.is_some_and(|sa| is_same(slot.outbound, sa));
    match last {
        Some(last) if follows(last) => {}
        Some(last) if !VRFS && leads_to(slot, &last.destination) => last.sa = slot.outbound,
        _ => find::<VRFS>(slot, view, turn, last, ahead)?,
    }
    let Some(last) = last else { return Err(Verdict::NoRoute) };
    if slot.frame.len() > last.mtu {
        return Err(Verdict::TooBig);
    }
    let room = slot.frame.push_front(HEADER_LEN).ok_or(Verdict::NoRoom)?;
    room[..8].copy_from_slice(&last.header[0].to_ne_bytes());
    room[HEADER_LEN - 8..].copy_from_slice(&last.header[1].to_ne_bytes());
    slot.egress = Some(last.port);
    Ok(())
}

/// Where a packet leaves that goes elsewhere than the one before.
#[inline]
fn find<'v, const VRFS: bool>(
    slot: &Slot<'v>,
    view: &View,
    turn: &mut Turn<'_>,
    last: &mut Option<Last<'v>>,
    ahead: Option<&mut Ahead>,
) -> Result<(), Verdict> {
    let (vrf, to) = (vrf_of::<VRFS>(slot, view), destination(slot));
    // Two tunnels of different VRFs may share an SA's address, and packets of one VRF an SA.
    let sa = slot.outbound.filter(|_| !VRFS);
    if let Some(last) = last
        && last.destination == to
        && last.vrf == vrf
    {
        return Ok(());
    }
    let (code, block) = match (known(slot), ahead) {
        (Some(code), _) => (code, ALL),
        (None, Some(ahead)) => (ahead.code(vrf, slot, view), ALL),
        // What was known of the block is mostly of this destination, too: it has not to be looked up.
        (None, None) => match last {
            Some(last) if last.vrf == vrf && in_common(&last.destination, &to) >= last.block => {
                (last.code, last.block)
            }
            _ => view.fib.block_in(vrf, to),
        },
    };
    match last {
        // Others of one network have the same route.
        Some(last)
            if last.code == code
                && last.is_shared
                && last.destination.is_ipv4() == to.is_ipv4() =>
        {
            (last.sa, last.vrf, last.destination, last.block) = (sa, vrf, to, block);
        }
        _ => *last = Some(Last { sa, block, ..look_up(slot, (vrf, to), code, view, turn)? }),
    }
    Ok(())
}

/// How many first bits two addresses have in common; none if they are of two families.
#[inline]
fn in_common(one: &IpAddr, other: &IpAddr) -> u32 {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => 0,
    }
}

fn look_up<'v>(
    slot: &Slot<'_>,
    (vrf, destination): (u32, IpAddr),
    code: u32,
    view: &View,
    turn: &mut Turn<'_>,
) -> Result<Last<'v>, Verdict> {
    let hop = match view.fib.route_of(code) {
        Some(Route::Via(hop)) => hop,
        Some(other) => return Err(refused(other, slot)),
        None if vrf == UNKNOWN => return Err(Verdict::VrfUnknown),
        None => return Err(Verdict::NoRoute),
    };
    let port = view.ports.get(usize::from(hop.port)).ok_or(Verdict::RouteNotAPort)?;
    if !port.up {
        return Err(Verdict::PortDown);
    }
    let mtu = port.mtu as usize;
    if slot.frame.len() > mtu {
        return Err(Verdict::TooBig);
    }
    let mac = resolve(hop, destination, view, turn)?;
    let ethertype = if destination.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    let mut header = [0; HEADER_LEN];
    let written = Header::new(mac, port.mac, ethertype).emit(&mut header);
    written.map_err(|_| Verdict::NoRoom)?;
    let piece = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| header[at + byte]));
    let (is_shared, header) = (hop.gateway.is_some(), [piece(0), piece(HEADER_LEN - 8)]);
    Ok(Last {
        sa: None,
        vrf,
        destination,
        block: ALL,
        code,
        is_shared,
        port: hop.port,
        mtu,
        header,
    })
}

fn resolve(
    hop: NextHop,
    destination: IpAddr,
    view: &View,
    turn: &mut Turn<'_>,
) -> Result<MacAddr, Verdict> {
    let address = hop.gateway.unwrap_or(destination);
    view.neighbours.resolve(hop.port, address).ok_or_else(|| {
        turn.events.need_neighbour(hop.port, address, turn.now_ns, turn.counters);
        Verdict::NeighbourUnresolved
    })
}

/// The verdict of a route that leads nowhere.
fn refused(route: Route, slot: &Slot<'_>) -> Verdict {
    match route {
        Route::Local if slot.outbound.is_some() => Verdict::TunnelToSelf,
        Route::Local => punt(slot.inbound.is_some()),
        // The outer packet of a tunnel does not go into another.
        Route::Via(_) | Route::NotAPort | Route::Tunnel(_) => Verdict::RouteNotAPort,
        Route::Blackhole => Verdict::RouteBlackhole,
        Route::Unreachable => Verdict::RouteUnreachable,
        Route::Prohibit => Verdict::RouteProhibit,
        Route::OutOfVrf => Verdict::RouteOutOfVrf,
    }
}

#[inline]
fn success(slot: &Slot<'_>, is_hosts: bool) -> Verdict {
    if is_hosts {
        return if slot.outbound.is_some() { Verdict::HostSealed } else { Verdict::HostForwarded };
    }
    match (slot.was_opened(), slot.outbound.is_some()) {
        (false, false) => Verdict::Forwarded,
        (false, true) => Verdict::Sealed,
        (true, false) => Verdict::Opened,
        (true, true) => Verdict::Resealed,
    }
}
