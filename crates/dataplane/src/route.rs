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

/// Routes every packet.
pub(crate) fn route(batch: &mut Batch<'_>, view: &View, turn: &mut Turn<'_>) {
    for slot in batch.undecided() {
        let verdict = match route_one(slot, view, turn) {
            Ok(()) => success(slot, view),
            Err(verdict) => verdict,
        };
        slot.decide(verdict);
    }
}

fn route_one(slot: &mut Slot<'_>, view: &View, turn: &mut Turn<'_>) -> Result<(), Verdict> {
    let destination = match slot.outbound {
        Some(sa) => sa.config().destination,
        None => slot.flow.dst,
    };
    let hop = match view.fib.lookup(destination) {
        Some(Route::Via(hop)) => hop,
        Some(other) => return Err(refused(other, slot)),
        None => return Err(Verdict::NoRoute),
    };
    let port = view.ports.get(usize::from(hop.port)).ok_or(Verdict::RouteNotAPort)?;
    if !port.up {
        return Err(Verdict::PortDown);
    }
    if slot.frame.len() > port.mtu as usize {
        return Err(Verdict::TooBig);
    }
    let mac = resolve(hop, destination, view, turn)?;
    let ethertype = if destination.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    let room = slot.frame.push_front(HEADER_LEN).ok_or(Verdict::NoRoom)?;
    Header::new(mac, port.mac, ethertype).emit(room).map_err(|_| Verdict::NoRoom)?;
    slot.egress = Some(hop.port);
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
