//! Stage `parse`, between `receive` and `classify`: the link layer comes off, and the IP headers become a flow.
//!
//! After it, a slot's frame is exactly the IP packet: no Ethernet header before it, no padding
//! after it. Nothing is looked up but the port's own address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::ethernet::{self, EtherType, MacAddr};
use wire::flow::{self, Flow, Fragment};
use wire::natt::Datagram;
use wire::{Malformed, Overlay, esp, ipv4, ipv6, protocol, udp, vlan};
use xsk::Frame;

use crate::batch::{Batch, Notes, Slot};
use crate::encapsulation::PortSet;
use crate::encrypt::OVERHEAD_LEN;
use crate::plain::PlainHeader;
use crate::verdict::Verdict;
use crate::view::View;

/// What is to be known of the port that a packet came in by.
#[derive(Clone, Copy)]
struct Door {
    /// It is the host's.
    is_hosts: bool,
    /// Its address; `None` if the port is none of the view's.
    mac: Option<MacAddr>,
}

impl Door {
    fn of(slot: &Slot<'_>, view: &View) -> Door {
        let mac = view.ports.get(usize::from(slot.ingress)).map(|port| port.mac);
        Door { is_hosts: slot.is_hosts(view), mac }
    }
}

/// The address of a packet's port as bits, which those of its destination are only if it is for us and with a
/// link header.
///
/// Out of line, so that what it asks the view takes no registers while packets are read.
#[inline(never)]
pub(crate) fn mac_bits(slot: &Slot<'_>, view: &View) -> u64 {
    let door = Door::of(slot, view);
    door.mac.filter(|_| !door.is_hosts).map_or(u64::MAX, MacAddr::bits)
}

/// What [`mac_bits`] says of the port by which the packet before came, as most packets come by that.
pub(crate) struct LastMac {
    ingress: u32,
    bits: u64,
}

impl LastMac {
    /// That of a port by which none comes.
    pub(crate) fn new() -> LastMac {
        LastMac { ingress: u32::MAX, bits: u64::MAX }
    }

    /// What it says of a packet's.
    #[inline(always)]
    pub(crate) fn bits(&mut self, slot: &Slot<'_>, view: &View) -> u64 {
        if self.ingress != u32::from(slot.ingress) {
            (self.ingress, self.bits) = (u32::from(slot.ingress), mac_bits(slot, view));
        }
        self.bits
    }
}

/// Parses every packet.
pub(crate) fn parse(batch: &mut Batch<'_>, view: &View) {
    let mut mac = LastMac::new();
    for slot in &mut batch.slots {
        if slot.verdict.is_some() {
            continue;
        }
        if parse_plain(slot, mac.bits(slot, view)).is_none() {
            slot.verdict = parse_one(slot, view).err();
        }
    }
}

/// What nearly every packet is, in a few branches: IPv4, whole and without options, behind an Ethernet header
/// for us without a tag. `None` for any other, good or bad.
#[inline(always)]
fn plain(frame: &Frame, mac: u64) -> Option<Flow> {
    plain_header::<ipv4::Plain>(frame, mac).map(|header| header.flow())
}

/// Whether what begins at so many bytes of a frame, which was found to be a packet before, is of IPv6.
#[inline(always)]
pub(crate) fn is_v6(frame: &Frame, at: usize) -> bool {
    frame.bytes().get(at).is_some_and(|first| first >> 4 != 4)
}

/// The summary of a packet whose header begins at so many bytes of a frame, and was found to be plain before, or such a fragment.
#[inline(never)]
pub(crate) fn flow_again(frame: &Frame, at: usize) -> Option<Flow> {
    match is_v6(frame, at) {
        false => reread::<ipv4::Plain>(frame, at).map(|header| header.any_flow()),
        true => reread::<ipv6::Plain>(frame, at).map(|header| header.any_flow()),
    }
}

/// The header of such a packet, or of one of IPv6.
#[inline(always)]
pub(crate) fn plain_header<P: PlainHeader>(frame: &Frame, mac: u64) -> Option<P> {
    P::read(behind_link(frame, mac, P::ETHERTYPE)?)
}

/// The same also of a fragment, where that is to policies what a whole packet is.
#[inline(always)]
pub(crate) fn any_header<P: PlainHeader>(frame: &Frame, mac: u64, view: &View) -> Option<P> {
    let packet = behind_link(frame, mac, P::ETHERTYPE)?;
    P::read_any(packet, || is_fragment_alike(packet, view))
}

/// Whether a packet is a sound fragment of IPv4, and to policies what a whole one is. Out of line, so that nothing of it takes registers
/// from what most packets are.
#[cold]
#[inline(never)]
pub(crate) fn is_fragment_alike(packet: &[u8], view: &View) -> bool {
    flow::is_sound_fragment(packet) && view.spd.is_portless()
}

/// The header that begins at so many bytes of a frame, which was found to be plain before.
#[inline(always)]
pub(crate) fn reread<P: PlainHeader>(frame: &Frame, at: usize) -> Option<P> {
    P::reread(frame.bytes().get(at..)?)
}

/// Where a packet goes whose header begins at so many bytes of a frame, and was found to be plain before, or such a fragment.
#[inline(always)]
pub(crate) fn destination_again(frame: &Frame, at: usize) -> IpAddr {
    let address = match is_v6(frame, at) {
        false => reread::<ipv4::Plain>(frame, at).map(|header| header.destination().into()),
        true => reread::<ipv6::Plain>(frame, at).map(|header| header.destination().into()),
    };
    address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// Bytes of a link header, and of a plain header behind it.
const BEGIN_LEN: usize = ethernet::HEADER_LEN + ipv4::Plain::LEN;

/// What is behind the link header of a packet of such a kind for us, without a tag; `None` too if it is shorter than any of IPv4 that is
/// plain.
#[inline(always)]
fn behind_link(frame: &Frame, mac: u64, ethertype: EtherType) -> Option<&[u8]> {
    // The length is asked once, and the address read in one piece.
    let begin = frame.bytes().first_chunk::<BEGIN_LEN>()?;
    let (link, _) = ethernet::Header::over(begin).ok()?;
    let is_ours =
        MacAddr::bits_at_front(*begin.first_chunk()?) == mac && link.ethertype() == ethertype;
    is_ours.then(|| &frame.bytes()[ethernet::HEADER_LEN..])
}

/// What such a packet shows that has ESP in it.
pub(crate) struct PlainEsp {
    /// The outer type of service.
    pub(crate) tos: u8,
    pub(crate) spi: u32,
    pub(crate) sequence: u32,
    /// Where in the packet ESP begins.
    pub(crate) at: usize,
    /// Bytes of what is encrypted.
    pub(crate) ciphertext_len: usize,
}

impl PlainEsp {
    /// Bytes of the packet, without those that may lie behind a datagram.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.at + OVERHEAD_LEN + self.ciphertext_len
    }

    #[inline(always)]
    fn read(tos: u8, at: usize, esp: &[u8]) -> Option<PlainEsp> {
        let packet = esp::Packet::parse(esp).ok()?;
        let (spi, sequence) = (packet.header.spi(), packet.header.sequence());
        let ciphertext_len = packet.ciphertext.len();
        Some(PlainEsp { tos, spi, sequence, at, ciphertext_len })
    }
}

/// Reads a packet with ESP behind its IP header: that header, too.
#[inline(always)]
fn bare(frame: &Frame, mac: u64) -> Option<(ipv4::Plain, PlainEsp)> {
    let packet = behind_link(frame, mac, EtherType::IPV4)?;
    let outer = flow::plain_header_v4_of::<{ protocol::ESP }>(packet)?;
    let esp = packet.get(ipv4::HEADER_LEN..usize::from(outer.total_len()))?;
    Some((outer, PlainEsp::read(outer.tos(), ipv4::HEADER_LEN, esp)?))
}

/// The same, and where it goes.
#[inline(always)]
pub(crate) fn plain_esp(frame: &Frame, mac: u64) -> Option<(Ipv4Addr, PlainEsp)> {
    bare(frame, mac).map(|(outer, esp)| (outer.destination(), esp))
}

/// The same of one whose destination and SPI stand in it as [`bare_ends`] has them.
#[inline(always)]
pub(crate) fn bare_esp(frame: &Frame, mac: u64, ends: u64) -> Option<PlainEsp> {
    let (outer, esp) = bare(frame, mac)?;
    (outer.ends()[1] == ends).then_some(esp)
}

/// A destination, and behind it an SPI, as they stand in a packet with ESP behind its IP header.
pub(crate) fn bare_ends(destination: Ipv4Addr, spi: u32) -> u64 {
    let [_, ends] = ipv4::Plain::ends_of(protocol::ESP, 0, destination.to_bits(), spi);
    ends
}

/// What [`plain_esp`] reads, of IPv6 without extension headers.
#[inline(always)]
pub(crate) fn plain_esp_v6(frame: &Frame, mac: u64) -> Option<(Ipv6Addr, PlainEsp)> {
    let packet = ipv6::Packet::parse(behind_link(frame, mac, EtherType::IPV6)?).ok()?;
    let outer = packet.header;
    let is_sound = outer.next_header() == protocol::ESP
        && packet.payload.len() <= usize::from(u16::MAX) - ipv6::HEADER_LEN;
    let destination = is_sound.then(|| outer.destination())?;
    let esp = PlainEsp::read(outer.traffic_class(), ipv6::HEADER_LEN, packet.payload)?;
    Some((destination, esp))
}

/// Where ESP in UDP begins, behind a plain header.
pub(crate) const IN_UDP_AT: usize = ipv4::HEADER_LEN + udp::HEADER_LEN;

/// Reads a packet with ESP in UDP, to a port where that arrives.
#[inline(always)]
pub(crate) fn plain_esp_in_udp(
    frame: &Frame,
    mac: u64,
    ports: &PortSet,
) -> Option<(Ipv4Addr, PlainEsp)> {
    let packet = behind_link(frame, mac, EtherType::IPV4)?;
    let outer = flow::plain_header_v4_of::<{ protocol::UDP }>(packet)?;
    let (_, port) = outer.ports();
    if !ports.contains(port) {
        return None;
    }
    let datagram = packet.get(ipv4::HEADER_LEN..usize::from(outer.total_len()))?;
    let datagram = udp::Packet::parse(datagram).ok()?;
    match Datagram::parse(datagram.payload) {
        Ok(Datagram::Esp(esp)) => {
            Some((outer.destination(), PlainEsp::read(outer.tos(), IN_UDP_AT, esp)?))
        }
        _ => None,
    }
}

/// The same in a slot, which it does not change if it is any other.
#[inline(always)]
fn parse_plain(slot: &mut Slot<'_>, mac: u64) -> Option<()> {
    slot.flow = plain(&slot.frame, mac)?;
    slot.frame.narrow(ethernet::HEADER_LEN, usize::from(slot.flow.total_len))?;
    slot.link_len = ethernet::HEADER_LEN as u8;
    Some(())
}

/// Any packet, step by step.
#[inline(never)]
fn parse_one(slot: &mut Slot<'_>, view: &View) -> Result<(), Verdict> {
    let door = Door::of(slot, view);
    // 0. What the host sends has no Ethernet header.
    if door.is_hosts {
        return parse_hosts(slot);
    }
    // 1. Ethernet: for us, without a VLAN, IP inside.
    let mac = door.mac.ok_or(Verdict::PortDown)?;
    let (frame, Notes { flow, .. }) = slot.parts();
    let link = ethernet::Header::over(frame.bytes());
    let (link, payload) = link.map_err(|_| Verdict::EthernetTruncated)?;
    let (ethertype, header_len, payload) = match link.ethertype() {
        ethertype if ethertype.is_tag() => untag(frame.bytes(), mac)?,
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
    read_flow(flow, payload).map_err(ip_verdict)?;
    if flow.is_ipv6() != v6 {
        return Err(Verdict::IpVersion);
    }
    // 3. The frame becomes the packet. The link header is there, as it was just read.
    if !frame.pull_front(header_len) {
        return Err(Verdict::EthernetTruncated);
    }
    frame.truncate(usize::from(flow.total_len));
    // 14 or 18.
    slot.link_len = header_len as u8;
    Ok(())
}

/// Out of line, so that reading IP headers is not there twice.
#[inline(never)]
fn parse_hosts(slot: &mut Slot<'_>) -> Result<(), Verdict> {
    let (frame, Notes { flow, .. }) = slot.parts();
    read_flow(flow, frame.bytes()).map_err(ip_verdict)?;
    frame.truncate(usize::from(flow.total_len));
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::{checksum, ipv4};
    use xsk::Umem;

    use super::*;
    use crate::batch::{BATCH_PACKETS, BatchMemory};
    use crate::view::{PortInfo, View};

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);

    /// A sound packet: its frame.
    fn sound(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let len = ipv4::HEADER_LEN + payload.len();
        let template =
            ipv4::Template::new([10, 0, 0, 1].into(), [10, 9, 0, 1].into(), protocol, 64);
        let mut frame = vec![0; ethernet::HEADER_LEN + len];
        let link = ethernet::Header::new(MAC, MacAddr([2, 0, 0, 0, 0, 8]), EtherType::IPV4);
        link.emit(&mut frame).unwrap();
        let header = template.stamp(len as u16, 3, 0, true);
        header.emit(&mut frame[ethernet::HEADER_LEN..]).unwrap();
        frame[ethernet::HEADER_LEN + ipv4::HEADER_LEN..].copy_from_slice(payload);
        frame
    }

    fn frame() -> impl Strategy<Value = Vec<u8>> {
        let protocol = prop::sample::select(vec![6, 17, 50, 1, 4]);
        let payload = prop::collection::vec(any::<u8>(), 0..40);
        let changes = prop::collection::vec((0usize..40, any::<u8>()), 0..3);
        let mended = any::<bool>();
        let tail = -30isize..20;
        (protocol, payload, changes, mended, tail).prop_map(
            |(protocol, payload, changes, mended, tail)| {
                let mut frame = sound(protocol, &payload);
                for (at, byte) in changes {
                    if let Some(place) = frame.get_mut(at) {
                        *place = byte;
                    }
                }
                let header = ethernet::HEADER_LEN..ethernet::HEADER_LEN + ipv4::HEADER_LEN;
                if mended {
                    frame[header.start + 10..][..2].fill(0);
                    let sum = checksum::Sum::ZERO.bytes(&frame[header.clone()]).checksum();
                    frame[header.start + 10..][..2].copy_from_slice(&sum.to_be_bytes());
                }
                frame.resize(frame.len().saturating_add_signed(tail), 0xee);
                frame
            },
        )
    }

    fn view() -> View {
        let port = |mac| PortInfo { ifindex: 1, name: "p".to_owned(), mac, mtu: 1500, up: true };
        View {
            ports: [port(MAC), port(MacAddr([2, 0, 0, 0, 0, 9]))].into(),
            host: Some(2),
            ..View::default()
        }
    }

    proptest! {
        /// However quickly, and whatever comes before it.
        #[test]
        fn packets_are_what_they_are_step_by_step(
            frames in prop::collection::vec((frame(), 0u16..4), 1..BATCH_PACKETS),
        ) {
            let umem = Umem::new(2 * BATCH_PACKETS, 2048, false).unwrap();
            let mut pool = umem.pool(0..2 * BATCH_PACKETS);
            let view = view();
            let mut memory = [BatchMemory::new(), BatchMemory::new()];
            let mut batches = memory.each_mut().map(BatchMemory::begin);
            for batch in &mut batches {
                for (bytes, ingress) in &frames {
                    let mut frame = pool.take().unwrap();
                    frame.push_back(bytes.len()).unwrap().copy_from_slice(bytes);
                    batch.extend(std::iter::once(frame), *ingress);
                }
            }
            let [quick, steps] = &mut batches;
            parse(quick, &view);
            for slot in &mut steps.slots {
                slot.verdict = parse_one(slot, &view).err();
            }
            for (quick, steps) in quick.slots.iter().zip(&steps.slots) {
                prop_assert_eq!(quick.verdict, steps.verdict);
                if quick.verdict.is_none() {
                    prop_assert_eq!(quick.flow, steps.flow);
                    prop_assert_eq!(quick.frame.bytes(), steps.frame.bytes());
                    prop_assert_eq!(quick.link_len, steps.link_len);
                }
            }
            let frames = batches.iter_mut().flat_map(|batch| batch.slots.drain(..));
            frames.for_each(|slot| pool.give(slot.frame));
        }

        #[test]
        fn esp_over_ipv6_is_what_it_is_step_by_step(
            payload in prop::collection::vec(any::<u8>(), 20..70),
            next_header in prop::sample::select(vec![50, 50, 50, 17, 0, 43, 44, 60]),
            changes in prop::collection::vec((0usize..62, any::<u8>()), 0..3),
            tail in -30isize..20,
        ) {
            let (source, destination) = (Ipv6Addr::LOCALHOST, Ipv6Addr::from_bits(7));
            let template = ipv6::Template::new(source, destination, next_header, 64);
            let mut bytes = vec![0; ethernet::HEADER_LEN];
            let link = ethernet::Header::new(MAC, MacAddr([2, 0, 0, 0, 0, 8]), EtherType::IPV6);
            link.emit(&mut bytes).unwrap();
            bytes.extend([0; ipv6::HEADER_LEN]);
            let header = template.stamp(payload.len() as u16, 0xb8, 5);
            header.emit(&mut bytes[ethernet::HEADER_LEN..]).unwrap();
            bytes.extend(&payload);
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            bytes.resize(bytes.len().saturating_add_signed(tail), 0xee);
            let umem = Umem::new(2, 2048, false).unwrap();
            let mut pool = umem.pool(0..2);
            let mut frame = pool.take().unwrap();
            frame.push_back(bytes.len()).unwrap().copy_from_slice(&bytes);
            let mut memory = BatchMemory::new();
            let mut batch = memory.begin();
            batch.extend(std::iter::once(frame), 0);
            let view = view();
            let slot = &mut batch.slots[0];
            let quick = plain_esp_v6(&slot.frame, mac_bits(slot, &view));
            let parsed = parse_one(slot, &view);
            let flow = &slot.flow;
            let is_plain = parsed.is_ok()
                && flow.is_ipv6()
                && flow.protocol == protocol::ESP
                && usize::from(flow.header_len) == ipv6::HEADER_LEN
                && flow.fragment == Fragment::Whole;
            let esp = slot.frame.bytes().get(ipv6::HEADER_LEN..).map(esp::Packet::parse);
            match (quick, esp) {
                (Some((destination, quick)), Some(Ok(esp))) => {
                    prop_assert!(is_plain);
                    prop_assert_eq!((destination.into(), quick.tos), (flow.dst, flow.tos));
                    prop_assert_eq!((quick.spi, quick.sequence), (esp.header.spi(), esp.header.sequence()));
                    prop_assert_eq!((quick.at, quick.len()), (ipv6::HEADER_LEN, flow.total_len.into()));
                }
                (quick, esp) => prop_assert!(quick.is_none() && !(is_plain && matches!(esp, Some(Ok(_))))),
            }
            batch.slots.drain(..).for_each(|slot| pool.give(slot.frame));
        }
    }
}
