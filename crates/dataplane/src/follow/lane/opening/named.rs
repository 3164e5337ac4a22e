//! What the SAs of packets are called.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use arrayvec::ArrayVec;
use wire::{Overlay, esp, ethernet, ipv6};
use xsk::Frame;

use crate::batch::{BATCH_PACKETS, Slot};
use crate::classify::is_local;
use crate::cpu::{Cache, asked_cache};
use crate::follow::lane::WORTH;
use crate::parse::{self, IN_UDP_AT, LastMac, PlainEsp};
use crate::sa::Sa;
use crate::sad::{AskedV4, Key};
use crate::view::View;

/// What a packet's SA is called, and was asked for by.
enum Asked<'v> {
    V4(AskedV4<'v>),
    /// The hash of a key that is so long that it is read anew.
    V6(u64),
}

/// What the SAs of the first packets of a batch are called.
type AllNamed<'v> = ArrayVec<Named<'v>, BATCH_PACKETS>;

/// A packet's SA, which was asked for, and the number that it shows.
pub(super) struct Named<'v> {
    asked: Asked<'v>,
    pub(super) received: u32,
    /// Its bytes, those that are encrypted, its type of service, and where ESP begins.
    pub(super) len: u16,
    ciphertext_len: u16,
    pub(super) tos: u8,
    pub(super) esp_at: u8,
}

impl<'v> Named<'v> {
    #[inline(always)]
    fn of(esp: &PlainEsp, asked: Asked<'v>) -> Named<'v> {
        Named {
            asked,
            received: esp.sequence,
            len: esp.len() as u16,
            ciphertext_len: esp.ciphertext_len as u16,
            tos: esp.tos,
            esp_at: esp.at as u8,
        }
    }

    #[inline(always)]
    pub(super) fn is_in_udp(&self) -> bool {
        usize::from(self.esp_at) == IN_UDP_AT
    }

    /// The SA that was asked for.
    #[inline(always)]
    pub(super) fn find(&self, slot: &Slot<'_>, view: &'v View) -> Option<&'v Arc<Sa>> {
        match self.asked {
            Asked::V4(asked) => view.sad.find_v4(asked),
            Asked::V6(hash) => find_v6(hash, slot, view),
        }
    }
}

/// What the SAs of the first packets are called that may come here.
#[inline(always)]
pub(super) fn name<'v>(slots: &mut [Slot<'_>], view: &'v View, cache: Cache) -> AllNamed<'v> {
    let mut named = AllNamed::new();
    let packets = slots.len();
    let (mut known, mut others, mut mac) = (None, Others::default(), LastMac::new());
    for slot in slots.iter_mut().take(BATCH_PACKETS) {
        let mac = mac.bits(slot, view);
        let is_named = match parse::plain_esp(&slot.frame, mac) {
            Some((destination, esp)) => {
                let one = name_v4(destination, &esp, &mut known, view, cache);
                put(one, slot, &mut named)
            }
            None => others.put(slot, mac, view, &mut named),
        };
        if !is_named {
            break;
        }
    }
    if named.len() < WORTH.min(packets) {
        named.clear();
    }
    named
}

/// Puts down what a packet's SA is called; whether that is known.
#[inline(always)]
fn put<'v>(one: Option<Named<'v>>, slot: &mut Slot<'_>, named: &mut AllNamed<'v>) -> bool {
    let Some(one) = one else { return false };
    // What its key is needed for.
    slot.counted = one.ciphertext_len;
    named.push(one);
    true
}

/// What the SA of an ESP packet to an address is called, if that is this host's; asks for the database's memory there.
#[inline(always)]
fn name_v4<'v>(
    destination: Ipv4Addr,
    esp: &PlainEsp,
    known: &mut Option<Ipv4Addr>,
    view: &'v View,
    cache: Cache,
) -> Option<Named<'v>> {
    is_ours(destination, known, view)
        .then(|| Named::of(esp, Asked::V4(view.sad.ask_v4(esp.spi, destination, cache))))
}

/// Whether an address is this host's; the last one that is stays known.
#[inline(always)]
fn is_ours<A: Copy + Eq + Into<IpAddr>>(address: A, known: &mut Option<A>, view: &View) -> bool {
    if *known != Some(address) {
        if !is_local(&address.into(), view) {
            return false;
        }
        *known = Some(address);
    }
    true
}

/// What was found out about packets that are not as most are.
#[derive(Default)]
struct Others {
    known: Option<Ipv4Addr>,
    known_v6: Option<Ipv6Addr>,
}

impl Others {
    /// Puts down what a packet's SA is called. Out of line, and all of it, so that nothing of it takes registers from what most are, or has
    /// them written to memory twice.
    #[inline(never)]
    fn put<'v>(
        &mut self,
        slot: &mut Slot<'_>,
        mac: u64,
        view: &'v View,
        named: &mut AllNamed<'v>,
    ) -> bool {
        put(self.name(&slot.frame, mac, view), slot, named)
    }

    /// What the SA of ESP in UDP is called, or over IPv6.
    fn name<'v>(&mut self, frame: &Frame, mac: u64, view: &'v View) -> Option<Named<'v>> {
        let in_udp = parse::plain_esp_in_udp(frame, mac, &view.encapsulation_ports);
        if let Some((destination, esp)) = in_udp {
            return name_v4(destination, &esp, &mut self.known, view, asked_cache());
        }
        let (destination, esp) = parse::plain_esp_v6(frame, mac)?;
        if !is_ours(destination, &mut self.known_v6, view) {
            return None;
        }
        let hash = view.sad.prefetch(&Key::new(esp.spi, destination.into()), asked_cache());
        Some(Named::of(&esp, Asked::V6(hash)))
    }
}

/// The SA that was asked for so.
#[inline(never)]
fn find_v6<'v>(hash: u64, slot: &Slot<'_>, view: &'v View) -> Option<&'v Arc<Sa>> {
    let packet = slot.frame.bytes().get(ethernet::HEADER_LEN..)?;
    let (outer, rest) = ipv6::Header::over(packet).ok()?;
    let (esp, _) = esp::Header::over(rest).ok()?;
    view.sad.get_hashed(hash, &Key::new(esp.spi(), outer.destination().into()))
}
