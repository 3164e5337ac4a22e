//! Stage `route`, between `encrypt` and `send`: where the packet leaves, and the link header it leaves with.
//!
//! A sealed packet is routed by the far end of its tunnel, any other by its own destination. What
//! has an egress after this stage has a success for a verdict, which counts once it is sent.

#[cfg(test)]
mod twin;

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use wire::Overlay;
use wire::ethernet::{EtherType, HEADER_LEN, Header, MacAddr};
use xsk::Frame;

use crate::batch::{Batch, Slot, Turn, is_same};
use crate::fib::{MANY, NextHop, Route};
use crate::plain::PlainHeader;
use crate::prefix::Block;
use crate::punt::punt;
use crate::sa::Sa;
use crate::verdict::Verdict;
use crate::view::View;
use crate::vrfs::{MAIN, UNKNOWN};

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

/// Where packets leave, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    port: u16,
    mtu: usize,
    /// The link header's first eight bytes, and its last.
    header: [u64; 2],
}

/// As many bits as two destinations never have in common that are not the same.
const ALL: u32 = 128;

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
enum AsNoted {}

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
struct Ahead {
    /// Destinations of packets, in their order; those of packets that follow each other once.
    destinations: [IpAddr; MANY],
    codes: [u32; MANY],
    /// Those that are still to come; `None` until they are looked up.
    rest: Option<Range<usize>>,
}

impl Ahead {
    const NOTHING: Ahead = Ahead {
        destinations: [IpAddr::V4(Ipv4Addr::UNSPECIFIED); MANY],
        codes: [0; MANY],
        rest: None,
    };

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
    fn code<B: Bound, const VRFS: bool>(
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
            ahead.rest = None;
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

/// Leaves of a frame so many bytes of it behind its first `at`, and room for a link header in front of them.
#[inline(always)]
pub(crate) fn leave_framed(frame: &mut Frame, at: usize, len: usize) -> Option<&mut [u8]> {
    frame.narrow(at.checked_sub(HEADER_LEN)?, HEADER_LEN + len)
}

impl Way {
    /// The bytes that a packet may have, without a link header.
    #[inline(always)]
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// The port that packets leave by.
    #[inline(always)]
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Writes a packet's link header.
    #[inline(always)]
    pub(crate) fn write(&self, link: &mut [u8; HEADER_LEN]) {
        link[..8].copy_from_slice(&self.header[0].to_ne_bytes());
        link[HEADER_LEN - 8..].copy_from_slice(&self.header[1].to_ne_bytes());
    }

    /// Takes a hop from the packet that begins behind the first `at` bytes of a frame, gives it a link header in the last of
    /// those, and says where it leaves. It was found to be plain before, with such a header.
    #[inline(always)]
    pub(crate) fn pass_on(
        &self,
        slot: &mut Slot<'_>,
        at: usize,
        header: &impl PlainHeader,
    ) -> Result<(), Verdict> {
        let len = usize::from(header.total_len());
        if len > self.mtu {
            return Err(Verdict::TooBig);
        }
        let framed = leave_framed(&mut slot.frame, at, len);
        self.lead(framed.ok_or(Verdict::EthernetTruncated)?, header)?;
        slot.egress = Some(self.port);
        Ok(())
    }

    /// The same of one that has room for a link header in front of it, and nothing else around it.
    #[inline(always)]
    pub(crate) fn pass_on_framed(
        &self,
        slot: &mut Slot<'_>,
        header: &impl PlainHeader,
    ) -> Result<(), Verdict> {
        if slot.frame.len() > HEADER_LEN + self.mtu {
            return Err(Verdict::TooBig);
        }
        self.lead(slot.frame.bytes_mut(), header)?;
        slot.egress = Some(self.port);
        Ok(())
    }

    /// Takes a hop from a packet behind its link header, and writes that.
    #[inline(always)]
    fn lead(&self, framed: &mut [u8], header: &impl PlainHeader) -> Result<(), Verdict> {
        let (link, packet) = framed.split_first_chunk_mut().ok_or(Verdict::EthernetTruncated)?;
        header.take_hop_of(packet).ok_or(Verdict::TtlExpired)?;
        self.write(link);
        Ok(())
    }

    /// Gives a packet its link header, and says where it leaves.
    #[inline(always)]
    pub(crate) fn send_off(&self, slot: &mut Slot<'_>) -> Result<(), Verdict> {
        if slot.frame.len() > self.mtu {
            return Err(Verdict::TooBig);
        }
        let room = slot.frame.push_front(HEADER_LEN).and_then(|room| room.first_chunk_mut());
        self.write(room.ok_or(Verdict::NoRoom)?);
        slot.egress = Some(self.port);
        Ok(())
    }
}

/// The code of a packet's route that was looked up already: `choose` asked whether it leads into a tunnel.
#[inline]
fn known(slot: &Slot<'_>) -> Option<u32> {
    if slot.outbound.is_none() { slot.lead.code() } else { None }
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
    let mut header = [0; HEADER_LEN];
    let written = Header::new(mac, port.mac, ethertype).emit(&mut header);
    written.map_err(|_| Verdict::NoRoom)?;
    let piece = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    let header = [piece(&header), piece(&header[HEADER_LEN - 8..])];
    let is_shared = hop.gateway.is_some();
    Ok(Last {
        sa: None,
        vrf,
        destination,
        block: ALL,
        alike: Block::ALL,
        code,
        is_shared,
        way: Way { port: hop.port, mtu: port.mtu as usize, header },
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
