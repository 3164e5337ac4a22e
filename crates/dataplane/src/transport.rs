//! ESP in transport mode (RFC 4303 §3.1.1): the packet keeps its IP header, and what the header
//! carries is sealed.
//!
//! ```text
//!   IP header │ payload      ──►  IP header │ ESP header, IV │ payload, trailer │ ICV
//! ```
//!
//! What differs from tunnel mode is here: how the SA of a packet is found, how the header makes room
//! and is mended, and what a NAT on the way did to the checksum inside. Encrypting and decrypting is
//! `encrypt`'s and `decrypt`'s. Only whole datagrams are sealed: a fragment would have to be reassembled
//! first (RFC 4303 §3.3.4).

use std::net::IpAddr;

use wire::flow::{Flow, Fragment};
use wire::ipv6_ext::Joint;
use wire::{Overlay, checksum, ipv4, ipv6, protocol, udp};
use xsk::Frame;

use crate::policy::{Policy, Template};
use crate::table::Table;
use crate::verdict::Verdict;

/// What identifies the SAs that a packet of a policy in transport mode may take. The ends are the
/// packet's own addresses, whatever the policy's template says (`xfrm_tmpl_resolve_one`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// The packet's source.
    pub source: IpAddr,
    /// The packet's destination.
    pub destination: IpAddr,
    /// The policy's `if_id`: with another, SAs are other tunnels'.
    pub if_id: u32,
    /// The policy's reqid.
    pub reqid: u32,
    /// The SPI that the policy insists on; 0 for none.
    pub spi: u32,
}

/// The slots of [`View::bundles`](crate::view::View::bundles) that hold SAs in transport mode.
pub type TransportSlots = Table<Ends, u32>;

/// The slot for a packet of a policy with a template, if an SA was ever there. An SA whose source is
/// unspecified takes packets from any address.
#[inline]
pub(crate) fn slot(
    slots: &TransportSlots,
    policy: &Policy,
    template: &Template,
    flow: &Flow,
) -> Option<u32> {
    let (if_id, reqid, spi) = (policy.if_id(), template.reqid, template.spi);
    let ends = Ends { source: flow.src, destination: flow.dst, if_id, reqid, spi };
    slots.get(&ends).or_else(|| slots.get(&Ends { source: any(flow.src), ..ends })).copied()
}

fn any(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    }
}

/// The header of a packet that is being sealed: its copy lies in front of the room for ESP.
pub(crate) struct Header {
    len: usize,
    /// What it carried, which the ESP trailer has to say.
    pub(crate) next_header: u8,
    /// In IPv6, the byte that says what follows.
    link: usize,
}

impl Header {
    /// The header of a packet whose headers were read before, and where ESP goes: behind all that
    /// routers look at. As in Linux, that includes destination options unless they follow a routing
    /// header (RFC 4303 §3.1.1 allows both sides of ESP).
    pub(crate) fn of(frame: &Frame, flow: &Flow) -> Result<Header, Verdict> {
        if flow.fragment != Fragment::Whole {
            return Err(Verdict::FragmentTransport);
        }
        if !flow.is_ipv6() {
            let len = usize::from(flow.header_len);
            return Ok(Header { len, next_header: flow.protocol, link: 0 });
        }
        let bytes = frame.bytes();
        let Joint { offset, link } = Joint::behind_routed(bytes).ok_or(Verdict::IpExtensions)?;
        let next_header = bytes.get(link).copied().ok_or(Verdict::IpExtensions)?;
        Ok(Header { len: offset, next_header, link })
    }

    /// Bytes of the header.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Moves the header `room` bytes to the front and out of the frame, which then is what the
    /// header carried. `None`, and nothing changed, without that much headroom.
    pub(crate) fn step_aside(&self, frame: &mut Frame, room: usize) -> Option<()> {
        frame.push_front(room)?;
        frame.bytes_mut().copy_within(room..room + self.len, 0);
        frame.pull_front(room + self.len).then_some(())
    }

    /// Puts the header, which [`step_aside`](Header::step_aside) moved just as far as the frame grew
    /// since, in front again; it carries `protocol` now.
    pub(crate) fn return_to(&self, frame: &mut Frame, protocol: u8) -> Option<()> {
        // The bytes are where they were put: the headroom between grew into the frame.
        frame.push_front(self.len)?;
        carry(frame.bytes_mut(), self.link, protocol)
    }
}

/// Makes a packet that was opened in transport mode whole again: the IP header of `ip_len` bytes
/// moves up to its content, which starts at `content_at` and has `content_len` bytes.
pub(crate) fn restore(
    frame: &mut Frame,
    flow: &Flow,
    content_at: usize,
    content_len: usize,
    next_header: u8,
) -> Option<()> {
    let ip_len = usize::from(flow.header_len);
    let shift = content_at.checked_sub(ip_len)?;
    frame.bytes_mut().copy_within(..ip_len, shift);
    if !frame.pull_front(shift) {
        return None;
    }
    frame.truncate(ip_len + content_len);
    let link = match flow.is_ipv6() {
        true => Joint::at(frame.bytes(), ip_len)?.link,
        false => 0,
    };
    carry(frame.bytes_mut(), link, next_header)
}

/// Makes an IP header say what it carries now: `protocol`, up to the end of `packet`.
fn carry(packet: &mut [u8], link: usize, protocol: u8) -> Option<()> {
    let total_len = packet.len();
    if packet.first()? >> 4 == 4 {
        let (header, _) = ipv4::Header::over_mut(packet).ok()?;
        header.set_payload(protocol, u16::try_from(total_len).ok()?);
        return Some(());
    }
    *packet.get_mut(link)? = protocol;
    let (header, _) = ipv6::Header::over_mut(packet).ok()?;
    header.set_payload_len(u16::try_from(total_len - ipv6::HEADER_LEN).ok()?);
    Some(())
}

/// Computes the checksum of TCP, UDP and ICMPv6 anew: a NAT changed an address that it covers, and could not
/// mend it as it was sealed (RFC 3948 §3.1.2). The packet is authentic, so nothing is covered up.
pub(crate) fn mend_checksum(packet: &mut [u8], flow: &Flow) {
    let at = match flow.protocol {
        protocol::TCP => 16,
        protocol::UDP => 6,
        protocol::ICMPV6 if flow.is_ipv6() => 2,
        _ => return,
    };
    let Some(payload) = packet.get_mut(usize::from(flow.header_len)..) else { return };
    let payload = match (flow.protocol, payload.get(4..6)) {
        // It says itself where it ends: padding that hides how long it is may follow (RFC 4303 §2.7).
        (protocol::UDP, Some(&[high, low])) => {
            let len = usize::from(u16::from_be_bytes([high, low]));
            let len = if len < udp::HEADER_LEN { payload.len() } else { len.min(payload.len()) };
            &mut payload[..len]
        }
        _ => payload,
    };
    let Ok(len) = u16::try_from(payload.len()) else { return };
    let Some(field) = payload.get(at..at + 2) else { return };
    // RFC 768: zero says that the sender made none; IPv6 does not allow that.
    if flow.protocol == protocol::UDP && !flow.is_ipv6() && field == [0, 0] {
        return;
    }
    payload[at..at + 2].fill(0);
    let pseudo = match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => checksum::pseudo_v4(src, dst, flow.protocol, len),
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            checksum::pseudo_v6(src, dst, flow.protocol, len.into())
        }
        _ => return,
    };
    let sum = match pseudo.bytes(payload).checksum() {
        0 if flow.protocol == protocol::UDP => u16::MAX,
        sum => sum,
    };
    payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use wire::flow::parse;

    use super::*;

    /// A packet of 20 bytes of payload, and `behind` more behind what UDP says is its end; the field of its checksum.
    fn packet(v6: bool, protocol: u8, behind: usize) -> (Vec<u8>, usize) {
        let at = match protocol {
            protocol::TCP => 16,
            protocol::UDP => 6,
            _ => 2,
        };
        let mut content = vec![0x17; 20 + behind];
        if protocol == protocol::UDP {
            content[4..6].copy_from_slice(&20u16.to_be_bytes());
        }
        let len = content.len() as u8;
        let mut packet = if v6 {
            let mut header = vec![0x60, 0, 0, 0, 0, len, protocol, 64];
            header.extend([0x20; 16].into_iter().chain([0x21; 16]));
            header
        } else {
            let total = len + 20;
            vec![0x45, 0, 0, total, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 1, 0, 1, 10, 2, 0, 1]
        };
        let field = packet.len() + at;
        packet.extend(content);
        if !v6 {
            let sum = checksum::of(&packet[..20]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (packet, field)
    }

    #[test]
    fn checksums_behind_a_nat_are_over_what_the_protocol_itself_covers() {
        let cases = [
            (false, protocol::TCP),
            (false, protocol::UDP),
            (true, protocol::TCP),
            (true, protocol::UDP),
            (true, protocol::ICMPV6),
        ];
        for (v6, protocol) in cases {
            for behind in [0, 9] {
                let (mut packet, field) = packet(v6, protocol, behind);
                let flow = parse(&packet).unwrap();
                mend_checksum(&mut packet, &flow);
                let content = &packet[usize::from(flow.header_len)..];
                let covered = if protocol == protocol::UDP { &content[..20] } else { content };
                let len = covered.len();
                let pseudo = match (flow.src, flow.dst) {
                    (IpAddr::V4(src), IpAddr::V4(dst)) => {
                        checksum::pseudo_v4(src, dst, protocol, len as u16)
                    }
                    (IpAddr::V6(src), IpAddr::V6(dst)) => {
                        checksum::pseudo_v6(src, dst, protocol, len as u32)
                    }
                    _ => unreachable!(),
                };
                assert_eq!(pseudo.bytes(covered).checksum(), 0, "{v6} {protocol} {behind}");
                assert_ne!(packet[field..field + 2], [0x17; 2], "{v6} {protocol}");
            }
        }
        let (mut packet, field) = packet(false, protocol::ICMP, 0);
        let flow = parse(&packet).unwrap();
        mend_checksum(&mut packet, &flow);
        assert_eq!(packet[field..field + 2], [0x17; 2], "it covers no address");
    }
}
