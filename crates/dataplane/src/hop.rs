//! Stage `hop`, between `inspect` and `choose`: a packet that is forwarded has one hop less to live.
//!
//! Once per gateway, on the inner packet: before it is sealed into a tunnel, or after it was opened
//! out of one, as in Linux. The outer header starts afresh. What the host itself sends is at its first
//! hop. No ICMP is sent.

use wire::{ipv4, ipv6};

use crate::batch::{Batch, Slot};
use crate::verdict::Verdict;
use crate::view::View;

/// Takes one hop from every packet that has not lost it yet: where every packet in clear is welcome,
/// `classify` has taken those of packets in clear.
pub(crate) fn hop(batch: &mut Batch<'_>, view: &View) {
    let is_early = view.welcomes_clear();
    if is_early && !batch.brings_opened() {
        return;
    }
    let has_host = view.has_host();
    let is_due = |slot: &Slot<'_>| {
        slot.verdict.is_none()
            && (!is_early || slot.inbound.is_some())
            && !(has_host && slot.is_hosts(view))
    };
    for slot in &mut batch.slots {
        if is_due(slot)
            && let Err(verdict) = take_hop(slot)
        {
            slot.decide(verdict);
        }
    }
}

/// Takes one hop from a packet.
#[inline(always)]
pub(crate) fn take_hop(slot: &mut Slot<'_>) -> Result<(), Verdict> {
    let (frame, notes) = slot.parts();
    let packet = frame.bytes_mut();
    let alive = match notes.flow.is_ipv6() {
        false => ipv4::decrement_ttl(packet),
        true => ipv6::decrement_hop_limit(packet),
    };
    if !alive {
        return Err(Verdict::TtlExpired);
    }
    notes.flow.ttl -= 1;
    Ok(())
}
