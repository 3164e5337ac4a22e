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

use crate::batch::{Batch, Named, Slot};
use crate::punt::punt;
use crate::sa::Sa;
use crate::sad;
use crate::verdict::Verdict;
use crate::view::View;

/// Finds the SA of every ESP packet for this host, and ends what else is for this host.
///
/// 1. Each packet's headers: what is its SA called? Ask for the database's memory there.
/// 2. By then it has come: look the SAs up, and ask for their memory.
pub(crate) fn classify<'v>(batch: &mut Batch<'v>, view: &'v View) {
    let Batch { slots, named, .. } = batch;
    named.clear();
    let mut known = None;
    for (index, slot) in slots.iter_mut().enumerate() {
        if slot.verdict.is_some() || slot.is_hosts(view) {
            continue;
        }
        match name_one(slot, view, &mut known) {
            Ok(None) => {}
            Ok(Some(key)) => {
                // Packets of one SA often come together.
                let last = named.last().filter(|last| last.key == key);
                let hash = last.map_or_else(|| view.sad.prefetch(&key), |last| last.hash);
                named.push(Named { slot: index, hash, key });
            }
            Err(verdict) => slot.decide(verdict),
        }
    }
    let mut found: Option<(sad::Key, &Sa)> = None;
    for Named { slot, key, hash } in named {
        let Some(slot) = slots.get_mut(*slot) else { continue };
        let sa = match found {
            Some((known, sa)) if known == *key => sa,
            _ => match view.sad.get_hashed(*hash, key) {
                Some(sa) => {
                    sa.prefetch_inbound();
                    sa
                }
                None => {
                    slot.decide(Verdict::NoState);
                    continue;
                }
            },
        };
        slot.inbound = Some(sa);
        found = Some((*key, sa));
    }
}

/// What the SA of a packet is called; `None` for one that is not for this host. Most are for the address
/// that the one before was for, which is `known` to be this host's.
#[inline]
fn name_one(
    slot: &mut Slot<'_>,
    view: &View,
    known: &mut Option<IpAddr>,
) -> Result<Option<sad::Key>, Verdict> {
    if *known != Some(slot.flow.dst) {
        if !is_local(slot.flow.dst, view) {
            return Ok(None);
        }
        *known = Some(slot.flow.dst);
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
    let key = sad::Key::new(header.spi(), slot.flow.dst);
    // Bytes behind the datagram's end are no part of it, as in Linux.
    let end = esp_at + esp.len();
    slot.frame.truncate(end);
    // An IP header and UDP's are shorter than any frame.
    slot.esp_at = esp_at as u16;
    Ok(Some(key))
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
    view.local.contains(address)
}
