//! In which routing table packets are looked up: VRFs (virtual routing and forwarding, RFC 4364 §3), led to
//! by ports and by tunnels.
//!
//! ```text
//!  in clear ──► the port it came in by ──┐
//!  opened, policy mode ──► that port, too ├─► a VRF ─► its table in the FIB, and no other
//!  opened, route mode ──► its tunnel ────┘
//!  sealed, policy mode ──► the inner packet's VRF
//!  sealed, route mode ──► the one in which its tunnel's far ends are
//! ```
//!
//! A packet's VRF follows from how it came in, so nothing is written down for it. What has a VRF that
//! nobody knows is not forwarded at all ([`UNKNOWN`]), and no table is asked in another's place. Without
//! VRFs, as on most gateways, everything is in the main table and nobody asks here.
//!
//! Who is led where, control decides. Policies are not a VRF's: as in Linux they hold in all of them.

use std::sync::Arc;

use crate::batch::{Batch, Slot};
use crate::sa::Sa;
use crate::tunnel::Tunnels;
use crate::verdict::Verdict;
use crate::view::View;

/// The main table.
pub const MAIN: u32 = 0;

/// No table: packets of it end as `vrf_unknown`.
pub const UNKNOWN: u32 = u32::MAX;

/// Where a port leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortVrf {
    /// The table of what comes in by it; of a group of tunnels' device, also of what its tunnels bring.
    pub inner: u32,
    /// Of a group of tunnels' device: the table in which far ends are looked up.
    pub outer: u32,
}

/// The VRFs of ports and tunnels. Empty where all are in the main table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vrfs {
    ports: Arc<[PortVrf]>,
    /// The table of tunnels that no device is known of.
    stray: u32,
}

impl Vrfs {
    /// The VRF of each port, the host's and the groups' devices among them, and that of tunnels of which
    /// no route has told to which device they belong.
    pub fn new(ports: Vec<PortVrf>, stray: u32) -> Vrfs {
        let main = PortVrf::default();
        if stray == MAIN && ports.iter().all(|port| *port == main) {
            return Vrfs::default();
        }
        Vrfs { ports: ports.into(), stray }
    }

    /// Whether anything is led to a VRF.
    #[inline]
    pub fn in_use(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Where a port leads to.
    #[inline]
    pub fn port(&self, port: u16) -> PortVrf {
        let unknown = PortVrf { inner: UNKNOWN, outer: UNKNOWN };
        match self.in_use() {
            true => self.ports.get(usize::from(port)).copied().unwrap_or(unknown),
            false => PortVrf::default(),
        }
    }

    /// Where a tunnel of route mode leads to.
    #[inline]
    fn tunnel(&self, if_id: u32, tunnels: &Tunnels) -> PortVrf {
        let stray = PortVrf { inner: self.stray, outer: self.stray };
        tunnels.device(if_id).map_or(stray, |port| self.port(port))
    }
}

impl View {
    /// The table of a packet's own destination.
    #[inline]
    pub(crate) fn vrf_of(&self, slot: &Slot<'_>) -> u32 {
        if !self.vrfs.in_use() {
            return MAIN;
        }
        match slot.came_by_tunnel() {
            0 => self.vrfs.port(slot.ingress).inner,
            if_id => self.vrfs.tunnel(if_id, &self.tunnels).inner,
        }
    }

    /// The table in which it is looked up where a packet leaves: by its tunnel's far end if it was sealed.
    #[inline]
    pub(crate) fn vrf_out_of(&self, slot: &Slot<'_>) -> u32 {
        match slot.outbound.map_or(0, Sa::if_id) {
            0 => self.vrf_of(slot),
            if_id => self.vrfs.tunnel(if_id, &self.tunnels).outer,
        }
    }
}

/// Ends what has a VRF that is not known.
#[cold]
pub(crate) fn refuse_unknown(batch: &mut Batch<'_>, view: &View) {
    for slot in batch.undecided() {
        if view.vrf_of(slot) == UNKNOWN {
            slot.refuse(slot.inbound, Verdict::VrfUnknown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_in_the_main_table_is_no_vrf_at_all() {
        let main = Vrfs::new(vec![PortVrf::default(); 4], MAIN);
        assert!(!main.in_use());
        assert_eq!((main.port(3), main.port(9)), (PortVrf::default(), PortVrf::default()));
    }

    #[test]
    fn what_is_not_known_is_never_the_main_table() {
        let led = PortVrf { inner: 2, outer: 1 };
        let vrfs = Vrfs::new(vec![PortVrf::default(), led], UNKNOWN);
        let mut tunnels = Tunnels::default();
        tunnels.set_device(7, 1);
        assert_eq!((vrfs.port(0).inner, vrfs.port(1), vrfs.port(2).inner), (MAIN, led, UNKNOWN));
        assert_eq!((vrfs.tunnel(7, &tunnels), vrfs.tunnel(8, &tunnels).inner), (led, UNKNOWN));
        let strict = Vrfs::new(vec![PortVrf::default()], UNKNOWN);
        assert!(strict.in_use(), "a stray tunnel is not to come up in the main table");
    }
}
