//! Fifth stage: ESP packets are decrypted in place, proved to be authentic, and become what they carry.
//!
//! This stage is the parallel part of opening: it changes nothing but the packet, needs no order, and of the
//! SA only reads. A packet that fails is wiped by the cipher. One that is authentic may still be a
//! replay, so what is wrong with its content is only noted, for `accept` to decide. What came in UDP
//! keeps its outer headers until then, because control has to hear of them.

use wire::esp::{self, ICV_LEN};

use crate::batch::{Slot, is_same};
use crate::content;
use crate::encrypt::{KEYS_AHEAD, OVERHEAD_LEN};
use crate::envelope::PREFIX_LEN;
use crate::sa::Sa;
use crate::verdict::Verdict;

/// Decrypts every packet that `open` let pass.
pub(crate) fn decrypt(slots: &mut [Slot<'_>]) {
    let mut asked = None;
    slots.iter().take(KEYS_AHEAD).for_each(|slot| ask_for_key(slot, &mut asked));
    let mut decrypted = None;
    for at in 0..slots.len() {
        if let Some(ahead) = slots.get(at + KEYS_AHEAD) {
            ask_for_key(ahead, &mut asked);
        }
        let slot = &mut slots[at];
        let Some(sa) = slot.inbound.filter(|_| slot.verdict.is_none()) else { continue };
        if decrypt_one(slot, sa) != Some(true) {
            sa.count_error(Verdict::IntegrityFailed);
            slot.decide(Verdict::IntegrityFailed);
        } else if !sa.hot().encapsulated {
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

/// Asks for the key of a packet, if it is another than the one before had.
#[inline(always)]
fn ask_for_key<'v>(slot: &Slot<'v>, asked: &mut Option<&'v Sa>) {
    if let Some(sa) = slot.inbound
        && !is_same(*asked, sa)
    {
        let outside = usize::from(slot.esp_at) + OVERHEAD_LEN;
        sa.hot().key.prefetch_for(slot.frame.len().saturating_sub(outside));
        *asked = Some(sa);
    }
}

#[inline]
fn take_content(slot: &mut Slot<'_>) {
    if let Some(sa) = slot.inbound {
        slot.flaw = content::take(slot, sa).err();
    }
}

/// Decrypts one packet that [`open`](crate::open::open) let pass: whether it is authentic, or `None`
/// if there is no ESP.
#[inline]
#[must_use = "a packet that is not authentic must go no further"]
fn decrypt_one(slot: &mut Slot<'_>, sa: &Sa) -> Option<bool> {
    let hot = sa.hot();
    let payload = slot.frame.bytes_mut().get_mut(usize::from(slot.esp_at)..)?;
    let packet = esp::Packet::parse(payload).ok()?;
    let nonce = esp::gcm_nonce(hot.salt, *packet.iv);
    let (spi, icv): (u32, [u8; ICV_LEN]) = (packet.header.spi(), *packet.icv);
    let plaintext_len = packet.ciphertext.len();
    let data = payload.get_mut(PREFIX_LEN..PREFIX_LEN + plaintext_len)?;
    Some(if hot.replay.is_extended() {
        hot.key.open(&nonce, &esp::aad_esn(spi, slot.sequence), data, &icv)
    } else {
        hot.key.open(&nonce, &esp::aad(spi, slot.sequence as u32), data, &icv)
    })
}
