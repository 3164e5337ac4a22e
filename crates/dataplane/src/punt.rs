//! What becomes of packets for this host.
//!
//! The steering program passes the host's own traffic to the kernel before the data plane sees it.
//! What comes out of a tunnel for an address of this host goes up by the host's port, as it is. What
//! else reaches a worker has nobody to go to, and ends under a name of its own. The data plane
//! answers nothing by itself: no ICMP, no ARP.

use crate::batch::Slot;
use crate::verdict::Verdict;
use crate::view::View;

/// Hands a packet that was opened, and may come in, to the host.
#[inline]
pub(crate) fn to_host(slot: &mut Slot<'_>, view: &View) -> Result<(), Verdict> {
    // What a tunnel of route mode brought comes up where the host's answers go down.
    let if_id = slot.inbound.map_or(0, |sa| sa.hot().if_id);
    let device = if if_id == 0 { None } else { view.tunnels.device(if_id) };
    slot.egress = Some(device.or(view.host).ok_or(Verdict::HostUnreached)?);
    slot.decide(Verdict::HostOpened);
    Ok(())
}

/// The end of a packet for this host that cannot be handed to it.
#[inline]
pub(crate) fn punt(was_sealed: bool) -> Verdict {
    if was_sealed { Verdict::HostUnreached } else { Verdict::HostClear }
}
