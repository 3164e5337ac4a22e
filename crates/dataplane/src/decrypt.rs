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
    let mut asked: Option<&Sa> = None;
    for index in 0..slots.len() + KEYS_AHEAD {
        if let Some(ahead) = slots.get(index)
            && let Some(sa) = ahead.inbound
            && !is_same(asked, sa)
        {
            let outside = usize::from(ahead.esp_at) + OVERHEAD_LEN;
            sa.hot().key.prefetch_for(ahead.frame.bytes().len().saturating_sub(outside));
            asked = Some(sa);
        }
        let Some(slot) = index.checked_sub(KEYS_AHEAD).and_then(|at| slots.get_mut(at)) else {
            continue;
        };
        let Some(sa) = slot.inbound.filter(|_| slot.verdict.is_none()) else { continue };
        if decrypt_one(slot, sa) != Some(true) {
            sa.count_error(Verdict::IntegrityFailed);
            slot.decide(Verdict::IntegrityFailed);
        } else if !sa.hot().encapsulated {
            slot.flaw = content::take(slot, sa).err();
        }
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
