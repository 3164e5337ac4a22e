//! Eighth stage: where the packet leaves, and the link header it leaves with.
//!
//! A sealed packet is routed by the far end of its tunnel, any other by its own destination. What
//! has an egress after this stage has a success for a verdict, which counts once it is sent.

use std::net::IpAddr;

use wire::Overlay;
use wire::ethernet::{EtherType, HEADER_LEN, Header, MacAddr};

use crate::batch::{Batch, Slot, Turn};
use crate::fib::{NextHop, Route};
use crate::punt::punt;
use crate::verdict::Verdict;
use crate::view::View;

/// Where the packet before left. Packets of one tunnel leave as one did, and most others by the same
/// router, so little has to be looked up again. It ends with the batch, and so cannot be out of date.
struct Last {
    destination: IpAddr,
    hop: NextHop,
    mtu: usize,
    header: [u8; HEADER_LEN],
}

/// Routes every packet.
pub(crate) fn route(batch: &mut Batch<'_>, view: &View, turn: &mut Turn<'_>) {
    let mut last = None;
    for slot in batch.undecided() {
        let verdict = match route_one(slot, view, turn, &mut last) {
            Ok(()) => success(slot, view),
            Err(verdict) => verdict,
        };
        slot.decide(verdict);
    }
}

#[inline]
fn route_one(
    slot: &mut Slot<'_>,
    view: &View,
    turn: &mut Turn<'_>,
    last: &mut Option<Last>,
) -> Result<(), Verdict> {
    let destination = match slot.outbound {
        Some(sa) => sa.destination(),
        None => slot.flow.dst,
    };
    if last.as_ref().is_none_or(|last| last.destination != destination) {
        look_up(slot, destination, view, turn, last)?;
    }
    let Some(last) = last else { return Err(Verdict::NoRoute) };
    if slot.frame.len() > last.mtu {
        return Err(Verdict::TooBig);
    }
    let room = slot.frame.push_front(HEADER_LEN).ok_or(Verdict::NoRoom)?;
    room.copy_from_slice(&last.header);
    slot.egress = Some(last.hop.port);
    Ok(())
}

fn look_up(
    slot: &Slot<'_>,
    destination: IpAddr,
    view: &View,
    turn: &mut Turn<'_>,
    last: &mut Option<Last>,
) -> Result<(), Verdict> {
    let hop = match view.fib.lookup(destination) {
        Some(Route::Via(hop)) => hop,
        Some(other) => return Err(refused(other, slot)),
        None => return Err(Verdict::NoRoute),
    };
    if let Some(last) = last
        && last.hop == hop
        && hop.gateway.is_some()
        && last.destination.is_ipv4() == destination.is_ipv4()
    {
        last.destination = destination;
        return Ok(());
    }
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
    *last = Some(Last { destination, hop, mtu, header });
    Ok(())
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
    }
}

fn success(slot: &Slot<'_>, view: &View) -> Verdict {
    if slot.is_hosts(view) {
        return if slot.outbound.is_some() { Verdict::HostSealed } else { Verdict::HostForwarded };
    }
    match (slot.was_opened(), slot.outbound.is_some()) {
        (false, false) => Verdict::Forwarded,
        (false, true) => Verdict::Sealed,
        (true, false) => Verdict::Opened,
        (true, true) => Verdict::Resealed,
    }
}
