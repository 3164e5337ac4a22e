//! Stage `decrypt`, between `open` and `accept`: ESP packets are decrypted in place, proved to be authentic,
//! and become what they carry.
//!
//! This stage is the parallel part of opening: it changes nothing but the packet, needs no order, and of the
//! SA only reads. A packet that fails is wiped by the cipher. One that is authentic may still be a
//! replay, so what is wrong with its content is only noted, for `accept` to decide. What came in UDP
//! keeps its outer headers until then, because control has to hear of them.

use wire::esp::{self, ESP_HEADER_LEN, ICV_LEN};

use crate::batch::Slot;
use crate::content;
use crate::cpu::asked_cache;
use crate::encrypt::OVERHEAD_LEN;
use crate::keys::Supply;
use crate::sa::{Hot, Sa};
use crate::verdict::Verdict;

/// Decrypts every packet that `open` let pass.
pub(crate) fn decrypt(slots: &mut [Slot<'_>]) {
    let keys = Supply::of(slots, need, asked_cache());
    let mut decrypted = None;
    for at in 0..slots.len() {
        keys.step(slots, at);
        let slot = &mut slots[at];
        let Some(sa) = slot.inbound.filter(|_| slot.verdict.is_none()) else { continue };
        if decrypt_or_refuse(slot, sa) && !sa.hot().traits.is_encapsulated() {
            // One behind: what was only just decrypted would keep the processor waiting.
            if let Some(before) = decrypted.replace(at) {
                take_content(&mut slots[before]);
            }
        }
    }
    if let Some(last) = decrypted {
        take_content(&mut slots[last]);
    }
}

/// What it takes to decrypt a packet.
#[inline(always)]
pub(crate) fn need<'v>(slot: &Slot<'v>) -> Option<(&'v Sa, usize)> {
    let outside = usize::from(slot.esp_at) + OVERHEAD_LEN;
    Some((slot.inbound?, slot.frame.len().saturating_sub(outside)))
}

#[inline]
fn take_content(slot: &mut Slot<'_>) {
    if let Some(sa) = slot.inbound {
        slot.flaw = content::take(slot, sa).err();
    }
}

/// Decrypts a packet, which ends here if it is not authentic; whether it is.
#[inline(always)]
pub(crate) fn decrypt_or_refuse(slot: &mut Slot<'_>, sa: &Sa) -> bool {
    let decrypted = decrypt_one(slot, sa);
    pass_or_refuse(slot, sa, decrypted)
}

/// Ends a packet that turned out not to be authentic, or not to be ESP; whether it is authentic.
#[inline(always)]
fn pass_or_refuse(slot: &mut Slot<'_>, sa: &Sa, decrypted: Option<bool>) -> bool {
    let is_authentic = decrypted == Some(true);
    if !is_authentic {
        slot.refuse(Some(sa), Verdict::IntegrityFailed);
    }
    is_authentic
}

/// Whether a packet is authentic, whose number is known; of a copy of it, so that it stays as it is.
#[cold]
pub(crate) fn is_authentic(slot: &Slot<'_>, sa: &Sa) -> bool {
    let sealed = slot.frame.bytes().get(usize::from(slot.esp_at)..);
    let Some(mut copy) = sealed.map(<[u8]>::to_vec) else { return false };
    decrypt_payload(&mut copy, sa, slot.sequence) == Some(true)
}

/// Decrypts one packet that [`open`](crate::open::open) let pass: whether it is authentic, or `None`
/// if there is no ESP.
#[inline(always)]
#[must_use = "a packet that is not authentic must go no further"]
fn decrypt_one(slot: &mut Slot<'_>, sa: &Sa) -> Option<bool> {
    let payload = slot.frame.bytes_mut().get_mut(usize::from(slot.esp_at)..)?;
    decrypt_payload(payload, sa, slot.sequence)
}

#[inline(always)]
fn decrypt_payload(payload: &mut [u8], sa: &Sa, sequence: u64) -> Option<bool> {
    let packet = esp::Packet::parse(payload).ok()?;
    let (spi, plaintext_len) = (packet.header.spi(), packet.ciphertext.len());
    decrypt_data(sa.hot(), spi, sequence, payload.get_mut(ESP_HEADER_LEN..)?, plaintext_len)
}

/// Decrypts a packet of which it is known where ESP begins, how much of it is encrypted, and its number. It ends here if it is not
/// authentic, or shorter.
#[inline(always)]
pub(crate) fn decrypt_known(
    slot: &mut Slot<'_>,
    sa: &Sa,
    esp_at: usize,
    plaintext_len: usize,
    sequence: u64,
) {
    let hot = sa.hot();
    let decrypted = match slot.frame.bytes_mut().get_mut(esp_at..) {
        // Asked once, instead of by each who takes a part of it.
        Some(sealed) if sealed.len() >= OVERHEAD_LEN + plaintext_len => {
            decrypt_data(hot, hot.spi, sequence, &mut sealed[ESP_HEADER_LEN..], plaintext_len)
        }
        _ => None,
    };
    pass_or_refuse(slot, sa, decrypted);
}

/// Decrypts what is behind the header of a packet of ESP: whether it is authentic, or `None` if there is too little.
#[inline(always)]
#[must_use = "a packet that is not authentic must go no further"]
fn decrypt_data(
    hot: &Hot,
    spi: u32,
    sequence: u64,
    payload: &mut [u8],
    plaintext_len: usize,
) -> Option<bool> {
    let (iv, payload) = payload.split_first_chunk_mut()?;
    let (data, icv) = payload.split_at_mut_checked(plaintext_len)?;
    let (nonce, icv) = (esp::gcm_nonce(hot.salt, *iv), icv.first_chunk::<ICV_LEN>()?);
    Some(if hot.replay.is_extended() {
        hot.key.open(&nonce, &esp::aad_esn(spi, sequence), data, icv)
    } else {
        hot.key.open(&nonce, &esp::aad(spi, sequence as u32), data, icv)
    })
}
