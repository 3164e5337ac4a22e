//! Second stage: the link layer comes off, and the IP headers become a flow.
//!
//! After it, a slot's frame is exactly the IP packet: no Ethernet header before it, no padding
//! after it. Nothing is looked up but the port's own address.

use wire::Malformed;
use wire::ethernet::EtherType;
use wire::flow::{self, Flow, Fragment};
use wire::{protocol, vlan};

use crate::batch::{Batch, Slot};
use crate::verdict::Verdict;
use crate::view::View;

/// Parses every packet.
pub(crate) fn parse(batch: &mut Batch<'_>, view: &View) {
    for slot in batch.undecided() {
        if let Err(verdict) = parse_one(slot, view) {
            slot.decide(verdict);
        }
    }
}

fn parse_one(slot: &mut Slot<'_>, view: &View) -> Result<(), Verdict> {
    // 0. What the host sends has no Ethernet header.
    if slot.is_hosts(view) {
        slot.flow = parse_ip(slot.frame.bytes()).map_err(ip_verdict)?;
        slot.frame.truncate(usize::from(slot.flow.total_len));
        return Ok(());
    }
    // 1. Ethernet: for us, without a VLAN (a tag of VLAN 0 carries only a priority), IP inside.
    let port = view.ports.get(usize::from(slot.ingress)).ok_or(Verdict::PortDown)?;
    let link = vlan::Packet::parse(slot.frame.bytes()).map_err(|reason| match reason {
        Malformed::TooManyTags => Verdict::VlanUnknown,
        _ => Verdict::EthernetTruncated,
    })?;
    if link.ethernet.destination != port.mac {
        return Err(Verdict::NotForUs);
    }
    if link.inner.is_some() || link.outer.is_some_and(|tag| tag.vlan() != 0) {
        return Err(Verdict::VlanUnknown);
    }
    let v6 = match link.ethertype {
        EtherType::IPV4 => false,
        EtherType::IPV6 => true,
        _ => return Err(Verdict::NotIp),
    };
    // 2. IP: whole, and of the version that the EtherType says.
    let flow = parse_ip(link.payload).map_err(ip_verdict)?;
    if flow.is_ipv6() != v6 {
        return Err(Verdict::IpVersion);
    }
    // 3. The frame becomes the packet. The link header is there, as it was just read.
    let header_len = link.header_len;
    if !slot.frame.pull_front(header_len) {
        return Err(Verdict::EthernetTruncated);
    }
    slot.frame.truncate(usize::from(flow.total_len));
    slot.flow = flow;
    Ok(())
}

/// As [`flow::parse`], but refuses what a policy could be fooled with: a later IPv6 fragment that
/// begins with an extension header hides which protocol it belongs to.
#[inline]
pub(crate) fn parse_ip(packet: &[u8]) -> Result<Flow, Malformed> {
    let flow = flow::parse(packet)?;
    let hides_protocol = flow.fragment == Fragment::Later
        && flow.is_ipv6()
        && matches!(
            flow.protocol,
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS
        );
    if hides_protocol { Err(Malformed::MisplacedExtension) } else { Ok(flow) }
}

/// The verdict on a packet with malformed IP headers.
fn ip_verdict(reason: Malformed) -> Verdict {
    match reason {
        Malformed::Truncated | Malformed::TruncatedTransport => Verdict::IpTruncated,
        Malformed::BadVersion => Verdict::IpVersion,
        Malformed::BadHeaderLength => Verdict::IpHeaderLength,
        Malformed::BadTotalLength | Malformed::Jumbogram => Verdict::IpTotalLength,
        Malformed::BadChecksum => Verdict::IpChecksum,
        Malformed::SourceRoute => Verdict::SourceRoute,
        Malformed::TinyFragment | Malformed::OversizeFragment => Verdict::IpFragment,
        Malformed::BadOption
        | Malformed::TooManyOptions
        | Malformed::TooManyExtensions
        | Malformed::MisplacedExtension => Verdict::IpExtensions,
        // Reasons of other layers, which the IP parser does not give.
        Malformed::TooManyTags | Malformed::BadAlignment | Malformed::BadPadding => {
            Verdict::IpTruncated
        }
    }
}
