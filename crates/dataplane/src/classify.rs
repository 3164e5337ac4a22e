//! Third stage: is it ESP for this host, and which SA opens it?
//!
//! This is the look-up pass of opening: it touches the database for the whole batch before the
//! cipher runs. ESP may be in UDP (RFC 3948), on the ports that SAs use. Transit packets stay as they
//! are. Policies are asked later, by `inspect`.

use std::net::IpAddr;

use wire::Overlay;
use wire::esp;
use wire::flow::Fragment;
use wire::natt::Datagram;
use wire::{protocol, udp};

use crate::batch::{Batch, Slot};
use crate::punt::punt;
use crate::verdict::Verdict;
use crate::view::View;

/// Finds the SA of every ESP packet for this host, and ends what else is for this host.
pub(crate) fn classify<'v>(batch: &mut Batch<'v>, view: &'v View) {
    for slot in batch.undecided().filter(|slot| !slot.is_hosts(view)) {
        if let Err(verdict) = classify_one(slot, view) {
            slot.decide(verdict);
        }
    }
}

fn classify_one<'v>(slot: &mut Slot<'v>, view: &'v View) -> Result<(), Verdict> {
    if !is_local(slot.flow.dst, view) {
        return Ok(());
    }
    let header_len = usize::from(slot.flow.header_len);
    let payload = slot.frame.bytes().get(header_len..).unwrap_or(&[]);
    let (esp_at, esp) = match slot.flow.protocol {
        protocol::ESP => (header_len, payload),
        protocol::UDP if view.encapsulation_ports.contains(slot.flow.dst_port) => {
            (header_len + udp::HEADER_LEN, esp_in_udp(payload, slot.flow.fragment)?)
        }
        _ => return Err(punt(false)),
    };
    // RFC 4303 §3.4.1: a fragment must be reassembled before ESP; we do not reassemble.
    if slot.flow.fragment != Fragment::Whole {
        return Err(Verdict::FragmentEsp);
    }
    let (header, _) = esp::Header::over(esp).map_err(|_| Verdict::EspTruncated)?;
    let sa = view.sad.get(header.spi(), slot.flow.dst).ok_or(Verdict::NoState)?;
    slot.inbound = Some(sa);
    // Bytes behind the datagram's end are no part of it, as in Linux.
    let end = esp_at + esp.len();
    slot.frame.truncate(end);
    slot.esp_at = esp_at;
    Ok(())
}

/// The ESP packet in a datagram (RFC 3948 §2.1). IKE and keepalives are the kernel's: the steering
/// program passed them. The checksum is not looked at, as the packet has one that cannot be forged.
fn esp_in_udp(datagram: &[u8], fragment: Fragment) -> Result<&[u8], Verdict> {
    if fragment != Fragment::Whole {
        return Err(Verdict::FragmentEsp);
    }
    let datagram = udp::Packet::parse(datagram).map_err(|_| Verdict::UdpMalformed)?;
    match Datagram::parse(datagram.payload) {
        Ok(Datagram::Esp(packet)) => Ok(packet),
        Ok(Datagram::Ike(_) | Datagram::Keepalive) => Err(punt(false)),
        Err(_) => Err(Verdict::EspTruncated),
    }
}

/// Whether an address is one of this host's.
#[inline]
pub(crate) fn is_local(address: IpAddr, view: &View) -> bool {
    view.local.get(&address).is_some()
}
