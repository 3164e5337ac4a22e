//! What an authentic ESP packet carries: the packet that it becomes.
//!
//! 1. Padding and trailer come off; dummies end here.
//! 2. The inner headers are read, and traffic flow padding after the inner packet's end comes off; in
//!    transport mode the packet gets its own header back (`transport`).
//! 3. The outer header's congestion mark is carried inwards (RFC 6040).
//!
//! All of it is in the packet, so any worker may do it. Whether the packet is a replay is not known
//! here, and so nothing that came of it may go on before `accept` has said so.

use wire::esp::{self, ICV_LEN};
use wire::{Malformed, Overlay, ipv4, ipv6, protocol};

use crate::batch::Slot;
use crate::ecn;
use crate::envelope::PREFIX_LEN;
use crate::parse::read_flow;
use crate::sa::{Mode, Sa};
use crate::transport;
use crate::verdict::Verdict;

/// Takes the content out of a packet that was decrypted.
#[inline]
pub(crate) fn take(slot: &mut Slot<'_>, sa: &Sa) -> Result<(), Verdict> {
    // 1.
    let content_at = usize::from(slot.esp_at) + PREFIX_LEN;
    let bytes = slot.frame.bytes();
    let plaintext = bytes.get(content_at..bytes.len().saturating_sub(ICV_LEN));
    let parsed = plaintext.map(esp::Trailer::parse);
    let Some(Ok((content, trailer))) = parsed else { return Err(Verdict::EspPadding) };
    let (content_len, next_header) = (content.len(), trailer.next_header);
    // No longer than a frame.
    slot.counted = content_len as u16;
    if sa.hot().mode == Mode::Transport {
        return take_transport(slot, sa, content_at, content_len, next_header);
    }
    let is_v6 = match next_header {
        protocol::IPV4 => false,
        protocol::IPV6 => true,
        protocol::NO_NEXT_HEADER => return Err(Verdict::Dummy),
        _ => return Err(Verdict::EspNextHeader),
    };
    // 2.
    let outer_tos = slot.flow.tos;
    read_flow(&mut slot.flow, content).map_err(inner_verdict)?;
    if slot.flow.is_ipv6() != is_v6 || !slot.frame.pull_front(content_at) {
        return Err(Verdict::InnerMalformed);
    }
    slot.frame.truncate(usize::from(slot.flow.total_len));
    // 3.
    let inner_tos = slot.flow.tos;
    let tos = ecn::decapsulate(inner_tos, outer_tos, &sa.hot().flags)
        .map_err(|_| Verdict::EcnNotCapable)?;
    if tos != inner_tos {
        set_tos(slot.frame.bytes_mut(), is_v6, tos);
        slot.flow.tos = tos;
    }
    Ok(())
}

/// Step 2 in transport mode. What the padding for traffic flow confidentiality hides cannot be told
/// from content there; no sender adds it (RFC 4303 §2.7).
fn take_transport(
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
    read_flow(&mut slot.flow, frame.bytes()).map_err(inner_verdict)?;
    if sa.hot().encapsulated {
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

/// Changes the type of service byte of a packet whose headers were read before.
#[cold]
fn set_tos(packet: &mut [u8], is_v6: bool, tos: u8) {
    if is_v6 {
        if let Ok((header, _)) = ipv6::Header::over_mut(packet) {
            header.set_traffic_class(tos);
        }
    } else if let Ok((header, _)) = ipv4::Header::over_mut(packet) {
        header.set_tos(tos);
    }
}
