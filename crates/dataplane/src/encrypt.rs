//! Stage `encrypt`, between `seal` and `route`: packets that `seal` numbered get their envelope, are encrypted in
//! place, and get their ICV.
//!
//! This stage is the parallel part: it changes nothing but the packet, needs no order, and of the SA only
//! reads.

use std::net::IpAddr;

use wire::esp::{self, ICV_LEN};
use wire::{Overlay, checksum, protocol, udp};

use crate::batch::Slot;
use crate::cpu::asked_cache;
use crate::envelope::{self, Enveloped, PREFIX_LEN};
use crate::keys::Supply;
use crate::sa::{Hot, Mode, Sa};
use crate::verdict::Verdict;

/// Bytes of ESP that are not encrypted.
pub(crate) const OVERHEAD_LEN: usize = PREFIX_LEN + ICV_LEN;

/// Padding and trailer, at most: what is encrypted beside the packet.
pub(crate) const TAIL_LEN_MAX: usize = esp::ALIGNMENT - 1 + esp::TRAILER_LEN;

/// Encrypts every packet that `seal` numbered.
pub(crate) fn encrypt(slots: &mut [Slot<'_>]) {
    let keys = Supply::of(slots, need, asked_cache());
    for at in 0..slots.len() {
        keys.step(slots, at);
        let slot = &mut slots[at];
        if slot.verdict.is_some() {
            continue;
        }
        let Some(sa) = slot.outbound else { continue };
        if encrypt_one(slot, sa).is_none() {
            // `seal` left nothing of the kind; whatever it is, it does not leave in clear.
            slot.refuse(Some(sa), Verdict::NoRoom);
        }
    }
}

/// What it takes to encrypt a packet.
#[inline(always)]
pub(crate) fn need<'v>(slot: &Slot<'v>) -> Option<(&'v Sa, usize)> {
    Some((slot.outbound?, slot.frame.len() + TAIL_LEN_MAX))
}

/// Encrypts one packet that [`seal`](crate::seal::seal) numbered, behind the headers that stay legible.
/// `None` if there is no room for them.
#[inline(always)]
#[must_use = "a packet that was not encrypted must not leave"]
fn encrypt_one(slot: &mut Slot<'_>, sa: &Sa) -> Option<()> {
    let numbers = (slot.sequence, slot.iv);
    encrypt_data(sa.hot(), numbers, envelope::put(slot, sa)?);
    if sa.hot().traits.is_encapsulated() { fill_udp_checksum(slot, sa) } else { Some(()) }
}

/// Encrypts what is in an envelope that has the same sequence number and IV, and writes the ICV.
#[inline(always)]
pub(crate) fn encrypt_data(hot: &Hot, (sequence, iv): (u64, u64), enveloped: Enveloped<'_>) {
    let Enveloped { data, icv } = enveloped;
    // Not from the packet, where they were only just written.
    let nonce = esp::gcm_nonce(hot.salt, iv.to_be_bytes());
    if hot.replay.is_extended() {
        hot.key.seal(&nonce, &esp::aad_esn(hot.spi, sequence), data, icv);
    } else {
        hot.key.seal(&nonce, &esp::aad(hot.spi, sequence as u32), data, icv);
    }
}

/// The UDP checksum over IPv6, as Linux sends it: its receivers drop datagrams without one (RFC 8200
/// §8.1) unless their socket allows it (RFC 6935), which those of IKE daemons do not.
#[inline(never)]
fn fill_udp_checksum(slot: &mut Slot<'_>, sa: &Sa) -> Option<()> {
    let ends = match sa.hot().traits.mode() {
        Mode::Tunnel => (sa.source(), sa.destination()),
        Mode::Transport => (slot.flow.src, slot.flow.dst),
    };
    let (IpAddr::V6(source), IpAddr::V6(destination)) = ends else { return Some(()) };
    let udp_at = usize::from(slot.esp_at).checked_sub(udp::HEADER_LEN)?;
    let datagram = slot.frame.bytes_mut().get_mut(udp_at..)?;
    let pseudo = checksum::pseudo_v6(source, destination, protocol::UDP, datagram.len() as u32);
    let (header, payload) = udp::Header::over_mut(datagram).ok()?;
    header.fill_checksum(pseudo, payload);
    Some(())
}
