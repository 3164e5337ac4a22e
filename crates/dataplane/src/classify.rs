//! Stage `classify`, between `parse` and `open`: is it ESP for this host, and which SA opens it?
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
use crate::cpu::asked_cache;
use crate::hop::take_hop;
use crate::inspect::check_addresses;
use crate::punt::punt;
use crate::sad;
use crate::verdict::Verdict;
use crate::view::View;

/// Finds the SA of every ESP packet for this host, and ends what else is for this host. Where every packet
/// in clear is welcome, those that go on are done with here: `inspect` and `hop` need not look at them.
///
/// 1. Each packet's headers: what is its SA called? Ask for the database's memory there.
/// 2. By then it has come: look the SAs up, and ask for their memory.
pub(crate) fn classify<'v>(batch: &mut Batch<'v>, view: &'v View) {
    let Batch { slots, named, .. } = batch;
    named.clear();
    let (mut known, mut spi) = (None, None);
    let cache = asked_cache();
    let (has_host, welcomes_clear) = (view.has_host(), view.welcomes_clear());
    for (index, slot) in slots.iter_mut().enumerate() {
        if slot.verdict.is_some() || has_host && slot.is_hosts(view) {
            continue;
        }
        // Most are for the address that the one before was for. By reference, as what `parse` has written in
        // pieces would be copied as a whole, and the processor would wait.
        if known.as_ref() != Some(&slot.flow.dst) {
            if !is_local(&slot.flow.dst, view) {
                if welcomes_clear && let Err(verdict) = pass_on(slot) {
                    slot.decide(verdict);
                }
                continue;
            }
            (known, spi) = (Some(slot.flow.dst), None);
        }
        let Some(other) = name_one(slot, view) else { continue };
        // Packets of one SA often come together.
        if spi != Some(other) {
            spi = Some(other);
            let key = sad::Key::new(other, slot.flow.dst);
            named.push(Named { slot: index, hash: view.sad.prefetch(&key, cache), key });
        }
    }
    for (at, Named { slot: first, key, hash }) in named.iter().enumerate() {
        let end = named.get(at + 1).map_or(slots.len(), |next| next.slot);
        let sa = view.sad.get_hashed(*hash, key).map(|sa| &**sa);
        if let Some(sa) = sa {
            sa.prefetch(cache);
        }
        // Between them there may be packets that are not for this host.
        let run = slots[*first..end].iter_mut();
        for slot in run.filter(|slot| slot.esp_at != 0 && slot.verdict.is_none()) {
            slot.inbound = sa;
            if sa.is_none() {
                slot.decide(Verdict::NoState);
            }
        }
    }
}

/// A packet that goes on, where nothing is to be asked about it.
#[inline(always)]
fn pass_on(slot: &mut Slot<'_>) -> Result<(), Verdict> {
    check_addresses(&slot.flow)?;
    take_hop(slot)
}

/// The SPI of a packet for this host, which with its destination names its SA; `None` if it is decided now.
#[inline(never)]
fn name_one(slot: &mut Slot<'_>, view: &View) -> Option<u32> {
    let header_len = usize::from(slot.flow.header_len);
    let named = match slot.flow.protocol {
        protocol::ESP => name_at(slot, header_len),
        protocol::UDP if view.encapsulation_ports.contains(slot.flow.dst_port) => {
            name_in_udp(slot, header_len)
        }
        _ => Err(punt(false)),
    };
    named.map_err(|verdict| slot.decide(verdict)).ok()
}

/// The SPI of ESP in UDP.
#[inline(never)]
fn name_in_udp(slot: &mut Slot<'_>, header_len: usize) -> Result<u32, Verdict> {
    let payload = slot.frame.bytes().get(header_len..).unwrap_or(&[]);
    let esp_len = esp_in_udp(payload, slot.flow.fragment)?.len();
    let esp_at = header_len + udp::HEADER_LEN;
    // Bytes behind the datagram's end are no part of it, as in Linux.
    slot.frame.truncate(esp_at + esp_len);
    name_at(slot, esp_at)
}

/// The SPI of the ESP packet that begins there.
#[inline(always)]
fn name_at(slot: &mut Slot<'_>, esp_at: usize) -> Result<u32, Verdict> {
    // RFC 4303 §3.4.1: a fragment must be reassembled before ESP; we do not reassemble.
    if slot.flow.fragment != Fragment::Whole {
        return Err(Verdict::FragmentEsp);
    }
    let esp = slot.frame.bytes().get(esp_at..).ok_or(Verdict::EspTruncated)?;
    let (header, _) = esp::Header::over(esp).map_err(|_| Verdict::EspTruncated)?;
    let spi = header.spi();
    // An IP header and UDP's are shorter than any frame.
    slot.esp_at = esp_at as u16;
    Ok(spi)
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
pub(crate) fn is_local(address: &IpAddr, view: &View) -> bool {
    view.local.contains(address)
}
