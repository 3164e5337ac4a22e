//! Sixth stage: a packet that is forwarded has one hop less to live.
//!
//! Once per gateway, on the inner packet: before it is sealed into a tunnel, or after it was opened
//! out of one, as in Linux. The outer header starts afresh. What the host itself sends is at its first
//! hop. No ICMP is sent.

use wire::{ipv4, ipv6};

use crate::batch::Batch;
use crate::verdict::Verdict;
use crate::view::View;

/// Takes one hop from every packet.
pub(crate) fn hop(batch: &mut Batch<'_>, view: &View) {
    let has_host = view.has_host();
    for slot in batch.undecided().filter(|slot| !has_host || !slot.is_hosts(view)) {
        let packet = slot.frame.bytes_mut();
        let alive = match slot.flow.is_ipv6() {
            false => ipv4::decrement_ttl(packet),
            true => ipv6::decrement_hop_limit(packet),
        };
        if alive {
            slot.flow.ttl -= 1;
        } else {
            slot.decide(Verdict::TtlExpired);
        }
    }
}
