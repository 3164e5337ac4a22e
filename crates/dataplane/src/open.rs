//! Stage `open`, between `classify` and `decrypt`: may this ESP packet be opened, as far as can be told
//! without opening it?
//!
//! The steps of RFC 4303 §3.4 are three stages; this one takes the first two.
//!
//! 1. see that it came in UDP if and only if its SA says so, that header, IV, ciphertext and ICV are
//!    there, and that the SA's limits are not reached;
//! 2. ask the replay window, which changes nothing;
//! 3. decrypt and verify in place: `decrypt`, the parallel part;
//! 4. accept the sequence number, now that it is proved authentic, and count: `accept`.
//!
//! Of the packet only the ESP header is read here. What was inside is read by `content`, which `decrypt` calls, or
//! `accept` for what came in UDP.

use wire::{Malformed, esp, protocol};

use crate::batch::{Batch, Slot, Turn, is_same};
use crate::claim::Access;
use crate::cpu::asked_cache;
use crate::decrypt;
use crate::keys;
use crate::replay::Refusal;
use crate::sa::Sa;
use crate::verdict::Verdict;

/// Checks every packet that `classify` found an SA for.
pub(crate) fn open(batch: &mut Batch<'_>, turn: &mut Turn<'_>) {
    if batch.named.is_empty() {
        return;
    }
    let cache = asked_cache();
    let mut asked: Option<&Sa> = None;
    for slot in &batch.slots {
        let Some(sa) = slot.inbound else { continue };
        if slot.verdict.is_some() || is_same(asked, sa) {
            continue;
        }
        asked = Some(sa);
        sa.prefetch_to_open(cache);
        if let Some(header) = slot.frame.bytes().get(usize::from(slot.esp_at)..)
            && let Some(number) = header.get(4..).and_then(<[u8]>::first_chunk)
        {
            sa.replay().prefetch(u32::from_be_bytes(*number), cache);
        }
    }
    keys::ask_first(&batch.slots, decrypt::need, cache);
    let (mut known, mut waiting): (Option<&Sa>, bool) = (None, false);
    for slot in &mut batch.slots {
        let Some(sa) = slot.inbound else { continue };
        if slot.verdict.is_some() {
            continue;
        }
        if !is_same(known, sa) {
            if sa.access_if_free(turn).is_none()
                && let Err(verdict) = check_closely(slot, sa)
            {
                slot.refuse(Some(sa), verdict);
                continue;
            }
            if sa.access(turn) == Access::Wait {
                waiting = true;
                break;
            }
            known = Some(sa);
        }
        if let Err(verdict) = check_one(slot, sa) {
            slot.refuse(Some(sa), verdict);
        }
    }
    if waiting {
        keep_back(batch, turn);
    }
}

/// Whether a packet is authentic whose SA is another worker's: that one leaves the SA to all, for good, for no packet that only says its
/// name. Nothing of the packet is changed, which may have to wait.
#[cold]
fn check_closely(slot: &mut Slot<'_>, sa: &Sa) -> Result<(), Verdict> {
    let checked = check_one(slot, sa);
    let is_authentic = checked.is_ok() && decrypt::is_authentic(slot, sa);
    slot.sequence = 0;
    checked?;
    if is_authentic { Ok(()) } else { Err(Verdict::IntegrityFailed) }
}

/// Another worker is about to leave an SA to all. What is not checked yet waits for the next turn, as it
/// came in, and all of it, so that it stays in order.
#[cold]
fn keep_back(batch: &mut Batch<'_>, turn: &mut Turn<'_>) {
    let waits = |slot: &mut Slot<'_>| {
        slot.verdict.is_none()
            && slot.inbound.is_some()
            && slot.sequence == 0
            && slot.frame.push_front(usize::from(slot.link_len)).is_some()
    };
    let kept = batch.slots.extract_if(.., waits);
    turn.late.extend(kept.map(|slot| (slot.frame, slot.ingress)));
}

#[inline]
fn check_one(slot: &mut Slot<'_>, sa: &Sa) -> Result<(), Verdict> {
    // As in Linux: who can send only one of the two must not get through with the other.
    if sa.hot().traits.is_encapsulated() != (slot.flow.protocol == protocol::UDP) {
        return Err(Verdict::EncapsulationMismatch);
    }
    let payload = slot.frame.bytes().get(usize::from(slot.esp_at)..);
    let packet = esp::Packet::parse(payload.ok_or(Verdict::EspTruncated)?);
    let packet = packet.map_err(|reason| match reason {
        Malformed::BadAlignment => Verdict::EspAlignment,
        _ => Verdict::EspTruncated,
    })?;
    if sa.expired() {
        return Err(Verdict::InSaExpired);
    }
    slot.sequence = sa.replay().check(packet.header.sequence()).map_err(refusal)?;
    Ok(())
}

/// The verdict on a packet that the replay window refuses.
pub(crate) fn refusal(refusal: Refusal) -> Verdict {
    match refusal {
        Refusal::Zero => Verdict::SequenceZero,
        Refusal::Old => Verdict::ReplayOld,
        Refusal::Duplicate => Verdict::Replayed,
    }
}
