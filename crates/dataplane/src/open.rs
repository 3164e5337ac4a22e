//! Fourth stage: ESP packets become the packets they carry.
//!
//! For each packet, in this order (RFC 4303 §3.4):
//!
//! 1. see that it came in UDP if and only if its SA says so, split it into header, IV, ciphertext and
//!    ICV;
//! 2. ask the replay window, which changes nothing;
//! 3. decrypt and verify in place;
//! 4. accept the sequence number, now that it is proved authentic, and tell control if the peer's
//!    address or port has changed;
//! 5. take off padding and trailer, and silently consume dummies;
//! 6. read the inner headers, trim traffic flow padding after the inner packet's end; in transport
//!    mode, give the packet its own header back (`transport`);
//! 7. carry the outer header's congestion mark inwards (RFC 6040).
//!
//! Whether the inner packet may come through this SA at all is decided by `inspect`.

use wire::esp::{self, ESP_HEADER_LEN, GCM_IV_LEN, ICV_LEN};
use wire::{Malformed, Overlay, ipv4, ipv6, protocol};

use crate::batch::{Batch, Slot, Turn};
use crate::ecn;
use crate::parse::parse_ip;
use crate::replay::Refusal;
use crate::sa::{Mode, Sa};
use crate::transport;
use crate::verdict::Verdict;

/// Bytes in front of the ciphertext.
const PREFIX_LEN: usize = ESP_HEADER_LEN + GCM_IV_LEN;

/// Opens every packet that `classify` found an SA for.
pub(crate) fn open(batch: &mut Batch<'_>, turn: &mut Turn<'_>) {
    for slot in batch.undecided() {
        let Some(sa) = slot.inbound else { continue };
        if let Err(verdict) = open_one(slot, sa, turn) {
            if verdict != Verdict::Dummy {
                sa.count_error(verdict);
            }
            slot.decide(verdict);
        }
        if let Some(token) = sa.limit_crossed() {
            turn.events.limit_reached(token, turn.counters);
        }
    }
}

fn open_one(slot: &mut Slot<'_>, sa: &Sa, turn: &mut Turn<'_>) -> Result<(), Verdict> {
    let encapsulation = sa.config().encapsulation;
    // As in Linux: who can send only one of the two must not get through with the other.
    if encapsulation.is_some() != (slot.flow.protocol == protocol::UDP) {
        return Err(Verdict::EncapsulationMismatch);
    }
    let outer_len = slot.esp_at;
    let payload = slot.frame.bytes_mut().get_mut(outer_len..).ok_or(Verdict::EspTruncated)?;
    let plaintext_len = decrypt(payload, sa)?;
    if let Some(encapsulation) = encapsulation
        && encapsulation.moved(sa.config().source, slot.flow.src, slot.flow.src_port)
    {
        turn.events.mapping_changed(sa, &slot.flow, turn.now_ns, turn.counters);
    }
    let plaintext = &payload[PREFIX_LEN..PREFIX_LEN + plaintext_len];

    let (content, trailer) = esp::Trailer::parse(plaintext).map_err(|_| Verdict::EspPadding)?;
    let (content_len, next_header) = (content.len(), trailer.next_header);
    sa.count(content_len, turn.now_ns);
    if sa.config().mode == Mode::Transport {
        let content_at = outer_len + PREFIX_LEN;
        return open_transport(slot, sa, content_at, content_len, next_header);
    }
    let is_v6 = match next_header {
        protocol::IPV4 => false,
        protocol::IPV6 => true,
        protocol::NO_NEXT_HEADER => return Err(Verdict::Dummy),
        _ => return Err(Verdict::EspNextHeader),
    };
    let inner = parse_ip(content).map_err(inner_verdict)?;
    if inner.is_ipv6() != is_v6 || !slot.frame.pull_front(outer_len + PREFIX_LEN) {
        return Err(Verdict::InnerMalformed);
    }
    slot.frame.truncate(usize::from(inner.total_len));

    let tos = ecn::decapsulate(inner.tos, slot.flow.tos, &sa.config().flags)
        .map_err(|_| Verdict::EcnNotCapable)?;
    slot.flow = inner;
    if tos != inner.tos {
        set_tos(slot.frame.bytes_mut(), is_v6, tos);
        slot.flow.tos = tos;
    }
    Ok(())
}

/// Step 6 in transport mode. What the padding for traffic flow confidentiality hides cannot be told
/// from content there; no sender adds it (RFC 4303 §2.7).
fn open_transport(
    slot: &mut Slot<'_>,
    sa: &Sa,
    content_at: usize,
    content_len: usize,
    next_header: u8,
) -> Result<(), Verdict> {
    if next_header == protocol::NO_NEXT_HEADER {
        return Err(Verdict::Dummy);
    }
    let frame = &mut slot.frame;
    transport::restore(frame, &slot.flow, content_at, content_len, next_header)
        .ok_or(Verdict::InnerMalformed)?;
    slot.flow = parse_ip(frame.bytes()).map_err(inner_verdict)?;
    if sa.config().encapsulation.is_some() {
        transport::mend_checksum(frame.bytes_mut(), &slot.flow);
    }
    Ok(())
}

fn inner_verdict(reason: Malformed) -> Verdict {
    match reason {
        Malformed::SourceRoute => Verdict::SourceRoute,
        _ => Verdict::InnerMalformed,
    }
}

/// Steps 1 to 4: what follows the outer header is decrypted in place. The length of the plaintext,
/// which starts after [`PREFIX_LEN`] bytes.
fn decrypt(payload: &mut [u8], sa: &Sa) -> Result<usize, Verdict> {
    let packet = esp::Packet::parse(payload).map_err(|reason| match reason {
        Malformed::BadAlignment => Verdict::EspAlignment,
        _ => Verdict::EspTruncated,
    })?;
    if sa.expired() {
        return Err(Verdict::InSaExpired);
    }
    let config = sa.config();
    let sequence = sa.replay().check(packet.header.sequence()).map_err(refusal)?;
    let nonce = esp::gcm_nonce(config.salt, *packet.iv);
    let icv: [u8; ICV_LEN] = *packet.icv;
    let plaintext_len = packet.ciphertext.len();
    let data = &mut payload[PREFIX_LEN..PREFIX_LEN + plaintext_len];
    let genuine = if config.extended_sequence {
        config.key.open(&nonce, &esp::aad_esn(config.spi, sequence), data, &icv)
    } else {
        config.key.open(&nonce, &esp::aad(config.spi, sequence as u32), data, &icv)
    };
    if !genuine {
        return Err(Verdict::IntegrityFailed);
    }
    // Two copies of one packet may both have passed the check above; one of them stops here.
    sa.replay().commit(sequence).map_err(refusal)?;
    Ok(plaintext_len)
}

fn refusal(refusal: Refusal) -> Verdict {
    match refusal {
        Refusal::Zero => Verdict::SequenceZero,
        Refusal::Old => Verdict::ReplayOld,
        Refusal::Duplicate => Verdict::Replayed,
    }
}

/// Changes the type of service byte of a packet whose headers were read before.
fn set_tos(packet: &mut [u8], is_v6: bool, tos: u8) {
    if is_v6 {
        if let Ok((header, _)) = ipv6::Header::over_mut(packet) {
            header.set_traffic_class(tos);
        }
    } else if let Ok((header, _)) = ipv4::Header::over_mut(packet) {
        header.set_tos(tos);
    }
}
