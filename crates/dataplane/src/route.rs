//! Stage `route`, between `encrypt` and `send`: where the packet leaves, and the link header it leaves with.
//!
//! A sealed packet is routed by the far end of its tunnel, any other by its own destination. What
//! has an egress after this stage has a success for a verdict, which counts once it is sent.

mod ahead;
#[cfg(test)]
mod twin;
mod way;

use std::net::IpAddr;

use wire::ethernet::{EtherType, MacAddr};

use crate::batch::{Batch, Slot, Turn, is_same};
use crate::fib::{MANY, NextHop, Route};
use crate::prefix::Block;
use crate::punt::punt;
use crate::sa::Sa;
use crate::verdict::Verdict;
use crate::view::View;
use crate::vrfs::{MAIN, UNKNOWN};

use ahead::{Ahead, AsNoted, known};

pub(crate) use ahead::Bound;
pub(crate) use way::{Way, leave_framed};

/// Where the packet before left. Packets of one tunnel leave as one did, and most others by the same
/// router, so little has to be looked up again. It ends with the batch, and so cannot be out of date.
///
/// What a look-up fails of lies over the first field, which therefore is none that each packet reads: the compiler
/// would put it together from pieces for each.
#[repr(C)]
struct Last<'v> {
    vrf: u32,
    /// The SA that it was sealed with, outside of VRFs.
    sa: Option<&'v Sa>,
    destination: IpAddr,
    /// How many first bits of the destination decided on the route; [`ALL`] if that is not known.
    block: u32,
    /// Of a destination of IPv4 those that leave alike.
    alike: Block,
    /// Of the route, and whether all that it leads are sent to one router.
    code: u32,
    is_shared: bool,
    way: Way,
}

/// As many bits as two destinations never have in common that are not the same.
const ALL: u32 = 128;

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
    let mut router = Router::new();
    let has_host = view.has_host();
    for mut slots in batch.slots.chunks_mut(MANY) {
        router.begin();
        while let Some((slot, later)) = slots.split_first_mut() {
            if slot.verdict.is_none() {
                let way = router.way::<VRFS>(slot, later, view, turn);
                let sent_off = way.and_then(|way| way.send_off(slot));
                let success = success(slot, has_host && slot.is_hosts(view));
                slot.decide(sent_off.err().unwrap_or(success));
            }
            slots = later;
        }
    }
}

/// Where packets leave, asked for one after the other.
pub(crate) struct Router<'v> {
    last: Option<Last<'v>>,
    ahead: Option<Ahead>,
}

impl<'v> Router<'v> {
    /// One that knows of no packet yet.
    pub(crate) fn new() -> Router<'v> {
        Router { last: None, ahead: None }
    }

    /// Before the first of at most [`MANY`] packets.
    fn begin(&mut self) {
        if let Some(ahead) = &mut self.ahead {
            ahead.forget();
        }
    }

    /// Where a packet leaves behind which others come.
    #[inline(always)]
    pub(crate) fn way<const VRFS: bool>(
        &mut self,
        slot: &Slot<'v>,
        later: &[Slot<'v>],
        view: &View,
        turn: &mut Turn<'_>,
    ) -> Result<&Way, Verdict> {
        let Router { last, ahead } = self;
        if !last.as_mut().is_some_and(|last| last.is_way_of::<VRFS>(slot)) {
            find::<AsNoted, VRFS>(slot, later, view, turn, last, ahead)?;
        }
        self.last_way()
    }

    /// The same of one in clear by the main table that goes to an address, of which nothing is noted, as of those behind it.
    #[inline(always)]
    pub(crate) fn way_in_clear<B: Bound>(
        &mut self,
        destination: IpAddr,
        slot: &Slot<'v>,
        later: &[Slot<'v>],
        view: &View,
        turn: &mut Turn<'_>,
    ) -> Result<&Way, Verdict> {
        let Router { last, ahead } = self;
        if !last.as_ref().is_some_and(|last| last.is_way_to(&destination)) {
            find::<B, false>(slot, later, view, turn, last, ahead)?;
        }
        self.last_way()
    }

    #[inline(always)]
    fn last_way(&self) -> Result<&Way, Verdict> {
        self.last.as_ref().map(|last| &last.way).ok_or(Verdict::NoRoute)
    }

    /// Where a packet in clear leaves by a route of the main table that has that code.
    #[inline(always)]
    pub(crate) fn way_by(
        &mut self,
        code: u32,
        destination: IpAddr,
        slot: &Slot<'_>,
        view: &View,
        turn: &mut Turn<'_>,
    ) -> Result<&Way, Verdict> {
        if !self.last.as_ref().is_some_and(|last| last.is_way_by(code, &destination)) {
            self.last = Some(look_up(slot, (MAIN, destination), code, view, turn)?);
        }
        self.last_way()
    }
}

impl<'v> Last<'v> {
    /// Whether all that go to an address by a route of that code leave as the one before did.
    #[inline(always)]
    fn is_way_by(&self, code: u32, destination: &IpAddr) -> bool {
        self.code == code
            && self.destination.is_ipv4() == destination.is_ipv4()
            && (self.is_shared || self.destination == *destination)
    }

    /// Whether what is routed to an address leaves as the one before did, without a look at its route.
    #[inline(always)]
    fn is_way_to(&self, destination: &IpAddr) -> bool {
        match destination {
            IpAddr::V4(v4) => self.alike.has(v4.to_bits()),
            IpAddr::V6(_) => *destination == self.destination,
        }
    }

    /// Whether a packet leaves as the one before did.
    #[inline(always)]
    fn is_way_of<const VRFS: bool>(&mut self, slot: &Slot<'v>) -> bool {
        // Packets of one SA have one destination.
        if self.sa.is_some_and(|sa| is_same(slot.outbound, sa)) {
            return true;
        }
        let follows = !VRFS
            && match slot.outbound {
                Some(sa) => sa.leads_within(self.alike, &self.destination),
                None => self.is_way_to(&slot.flow.dst),
            };
        if follows {
            self.sa = slot.outbound;
        }
        follows
    }

    /// Goes on with packets to another destination, whose first bits decided on the same route.
    #[inline]
    fn go_on(&mut self, sa: Option<&'v Sa>, vrf: u32, destination: IpAddr, block: u32) {
        (self.sa, self.vrf, self.destination, self.block) = (sa, vrf, destination, block);
        self.alike = match destination {
            // Without a router between, each has a link address of its own.
            IpAddr::V4(v4) => Block::of(v4.to_bits(), if self.is_shared { block } else { ALL }),
            IpAddr::V6(_) => Block::NONE,
        };
    }
}

/// Where a packet leaves that goes elsewhere than the one before.
#[inline]
fn find<'v, B: Bound, const VRFS: bool>(
    slot: &Slot<'v>,
    later: &[Slot<'v>],
    view: &View,
    turn: &mut Turn<'_>,
    last: &mut Option<Last<'v>>,
    ahead: &mut Option<Ahead>,
) -> Result<(), Verdict> {
    let (vrf, to) = (vrf_of::<VRFS>(slot, view), B::destination(slot));
    // Two tunnels of different VRFs may share an SA's address, and packets of one VRF an SA.
    let sa = slot.outbound.filter(|_| !VRFS);
    if let Some(last) = last
        && last.destination == to
        && last.vrf == vrf
    {
        return Ok(());
    }
    let (code, block) = match (known(slot), &last) {
        (Some(code), _) => (code, ALL),
        // As long as all leave alike, there is nothing to look up ahead.
        (None, Some(_)) if view.fib.is_large() => {
            let ahead = ahead.get_or_insert(Ahead::NOTHING);
            (ahead.code::<B, VRFS>(vrf, slot, later, view), ALL)
        }
        // What was known of the block is mostly of this destination, too: it has not to be looked up.
        (None, Some(last))
            if last.vrf == vrf && in_common(&last.destination, &to) >= last.block =>
        {
            (last.code, last.block)
        }
        _ => view.fib.block_in(vrf, to),
    };
    match last {
        // Others of one network have the same route.
        Some(last) if last.is_way_by(code, &to) => {
            last.go_on(sa, vrf, to, block);
        }
        _ => last.insert(look_up(slot, (vrf, to), code, view, turn)?).go_on(sa, vrf, to, block),
    }
    Ok(())
}

/// Where a packet leaves: by the far end of the SA that it is sealed with, or by its own destination.
pub(crate) fn way_of(slot: &Slot<'_>, view: &View, turn: &mut Turn<'_>) -> Option<Way> {
    let mut last = None;
    // Not of each packet, so that it may be asked for VRFs where there are none, too.
    find::<AsNoted, true>(slot, &[], view, turn, &mut last, &mut None).ok()?;
    last.map(|last| last.way)
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
    let mac = resolve(hop, destination, view, turn)?;
    let ethertype = if destination.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    let way = Way::by(hop.port, port, mac, ethertype).ok_or(Verdict::NoRoom)?;
    let is_shared = hop.gateway.is_some();
    Ok(Last { sa: None, vrf, destination, block: ALL, alike: Block::ALL, code, is_shared, way })
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
