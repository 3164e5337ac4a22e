//! Second stage: the link layer comes off, and the IP headers become a flow.
//!
//! After it, a slot's frame is exactly the IP packet: no Ethernet header before it, no padding
//! after it. Nothing is looked up but the port's own address.

use wire::ethernet::{self, EtherType, MacAddr};
use wire::flow::{self, Flow, Fragment};
use wire::{Malformed, Overlay, protocol, vlan};

use crate::batch::{Batch, Slot};
use crate::verdict::Verdict;
use crate::view::View;

/// What is to be known of the port that a packet came in by.
#[derive(Clone, Copy)]
struct Door {
    ingress: u16,
    /// It is the host's.
    is_hosts: bool,
    /// Its address; `None` if the port is none of the view's.
    mac: Option<MacAddr>,
}

impl Door {
    fn of(slot: &Slot<'_>, view: &View) -> Door {
        let mac = view.ports.get(usize::from(slot.ingress)).map(|port| port.mac);
        Door { ingress: slot.ingress, is_hosts: slot.is_hosts(view), mac }
    }
}

/// Parses every packet.
pub(crate) fn parse(batch: &mut Batch<'_>, view: &View) {
    let mut last: Option<Door> = None;
    for slot in batch.undecided() {
        // Most come by the port by which the one before came.
        let door = match last {
            Some(door) if door.ingress == slot.ingress => door,
            _ => *last.insert(Door::of(slot, view)),
        };
        if let Err(verdict) = parse_one(slot, door) {
            slot.decide(verdict);
        }
    }
}

#[inline]
fn parse_one(slot: &mut Slot<'_>, door: Door) -> Result<(), Verdict> {
    // 0. What the host sends has no Ethernet header.
    if door.is_hosts {
        return parse_hosts(slot);
    }
    // 1. Ethernet: for us, without a VLAN, IP inside.
    let mac = door.mac.ok_or(Verdict::PortDown)?;
    let link = ethernet::Header::over(slot.frame.bytes());
    let (link, payload) = link.map_err(|_| Verdict::EthernetTruncated)?;
    let (ethertype, header_len, payload) = match link.ethertype() {
        ethertype if ethertype.is_tag() => untag(slot.frame.bytes(), mac)?,
        ethertype => (ethertype, ethernet::HEADER_LEN, payload),
    };
    if link.destination != mac {
        return Err(Verdict::NotForUs);
    }
    let v6 = match ethertype {
        EtherType::IPV4 => false,
        EtherType::IPV6 => true,
        _ => return Err(Verdict::NotIp),
    };
    // 2. IP: whole, and of the version that the EtherType says.
    read_flow(&mut slot.flow, payload).map_err(ip_verdict)?;
    if slot.flow.is_ipv6() != v6 {
        return Err(Verdict::IpVersion);
    }
    // 3. The frame becomes the packet. The link header is there, as it was just read.
    if !slot.frame.pull_front(header_len) {
        return Err(Verdict::EthernetTruncated);
    }
    slot.frame.truncate(usize::from(slot.flow.total_len));
    // 14 or 18.
    slot.link_len = header_len as u8;
    Ok(())
}

/// Out of line, so that reading IP headers is not there twice.
#[inline(never)]
fn parse_hosts(slot: &mut Slot<'_>) -> Result<(), Verdict> {
    read_flow(&mut slot.flow, slot.frame.bytes()).map_err(ip_verdict)?;
    slot.frame.truncate(usize::from(slot.flow.total_len));
    Ok(())
}

/// A frame with a tag: that of VLAN 0 carries only a priority, and what follows it is as good as any.
#[cold]
fn untag(frame: &[u8], mac: MacAddr) -> Result<(EtherType, usize, &[u8]), Verdict> {
    let link = vlan::Packet::parse(frame).map_err(|reason| match reason {
        Malformed::TooManyTags => Verdict::VlanUnknown,
        _ => Verdict::EthernetTruncated,
    })?;
    if link.ethernet.destination != mac {
        return Err(Verdict::NotForUs);
    }
    if link.inner.is_some() || link.outer.is_some_and(|tag| tag.vlan() != 0) {
        return Err(Verdict::VlanUnknown);
    }
    Ok((link.ethertype, link.header_len, link.payload))
}

/// As [`flow::parse_into`], but refuses what a policy could be fooled with: a later IPv6 fragment that
/// begins with an extension header hides which protocol it belongs to.
#[inline(always)]
pub(crate) fn read_flow(flow: &mut Flow, packet: &[u8]) -> Result<(), Malformed> {
    flow::parse_into(flow, packet)?;
    if flow.fragment == Fragment::Later && hides_protocol(flow) {
        return Err(Malformed::MisplacedExtension);
    }
    Ok(())
}

#[cold]
fn hides_protocol(flow: &Flow) -> bool {
    flow.is_ipv6()
        && matches!(
            flow.protocol,
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS
        )
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
