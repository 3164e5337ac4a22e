//! What the SAs of packets are called.

use std::net::{Ipv4Addr, Ipv6Addr};
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
pub(super) fn name<'v>(
    slots: &mut [Slot<'_>],
    view: &'v View,
    cache: Cache,
) -> ArrayVec<Named<'v>, BATCH_PACKETS> {
    let mut named: ArrayVec<Named<'_>, BATCH_PACKETS> = ArrayVec::new();
    let packets = slots.len();
    let (mut known, mut known_v6, mut mac) = (None, None, LastMac::new());
    for slot in slots.iter_mut().take(BATCH_PACKETS) {
        let mac = mac.bits(slot, view);
        let frame = &slot.frame;
        let esp = parse::plain_esp(frame, mac).or_else(|| in_udp(frame, mac, view));
        let one = match esp {
            Some((destination, esp)) => {
                if known != Some(destination) {
                    if !is_local(&destination.into(), view) {
                        break;
                    }
                    known = Some(destination);
                }
                Named::of(&esp, Asked::V4(view.sad.ask_v4(esp.spi, destination, cache)))
            }
            None => match over_v6(frame, mac, &mut known_v6, view) {
                Some(one) => one,
                None => break,
            },
        };
        // What its key is needed for.
        slot.counted = one.ciphertext_len;
        named.push(one);
    }
    if named.len() < WORTH.min(packets) {
        named.clear();
    }
    named
}

/// What ESP in UDP shows. Out of line, so that nothing of it takes registers from what most are.
#[inline(never)]
fn in_udp(frame: &Frame, mac: u64, view: &View) -> Option<(Ipv4Addr, PlainEsp)> {
    parse::plain_esp_in_udp(frame, mac, &view.encapsulation_ports)
}

/// What ESP over IPv6 shows, and its SA is called.
#[inline(never)]
fn over_v6<'v>(
    frame: &Frame,
    mac: u64,
    known: &mut Option<Ipv6Addr>,
    view: &View,
) -> Option<Named<'v>> {
    let (destination, esp) = parse::plain_esp_v6(frame, mac)?;
    if *known != Some(destination) {
        if !is_local(&destination.into(), view) {
            return None;
        }
        *known = Some(destination);
    }
    let hash = view.sad.prefetch(&Key::new(esp.spi, destination.into()), asked_cache());
    Some(Named::of(&esp, Asked::V6(hash)))
}

/// The SA that was asked for so.
#[inline(never)]
fn find_v6<'v>(hash: u64, slot: &Slot<'_>, view: &'v View) -> Option<&'v Arc<Sa>> {
    let packet = slot.frame.bytes().get(ethernet::HEADER_LEN..)?;
    let (outer, rest) = ipv6::Header::over(packet).ok()?;
    let (esp, _) = esp::Header::over(rest).ok()?;
    view.sad.get_hashed(hash, &Key::new(esp.spi(), outer.destination().into()))
}
