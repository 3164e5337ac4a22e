//! Sixth stage: authentic ESP packets become the packets they carry.
//!
//! For each packet, in the order in which they came:
//!
//! 1. accept the sequence number, and tell control if the peer's address or port has changed;
//! 2. take off padding and trailer, and silently consume dummies;
//! 3. read the inner headers, trim traffic flow padding after the inner packet's end; in transport
//!    mode, give the packet its own header back (`transport`);
//! 4. carry the outer header's congestion mark inwards (RFC 6040).
//!
//! This is the serial part of opening: one SA's packets pass here one after the other. Whether the
//! inner packet may come through this SA at all is decided by `inspect`.

use wire::esp::{self, ICV_LEN};
use wire::{Malformed, Overlay, ipv4, ipv6, protocol};

use crate::batch::{Batch, Slot, Turn, is_same};
use crate::claim::Access;
use crate::ecn;
use crate::encapsulation::UdpEncapsulation;
use crate::open::refusal;
use crate::parse::read_flow;
use crate::sa::{Mode, Sa};
use crate::seal::PREFIX_LEN;
use crate::transport;
use crate::verdict::Verdict;

/// What consecutive packets of one SA are to count, added up before it is written.
struct Opened<'v> {
    sa: Option<&'v Sa>,
    /// Whether nobody else may change its words.
    alone: bool,
    packets: u64,
    bytes: u64,
}

/// Accepts every packet that `decrypt` found authentic.
pub(crate) fn accept(batch: &mut Batch<'_>, turn: &mut Turn<'_>) {
    if batch.named.is_empty() && batch.returned == 0 {
        return;
    }
    let mut opened = Opened { sa: None, alone: false, packets: 0, bytes: 0 };
    for slot in batch.undecided() {
        let Some(sa) = slot.inbound else { continue };
        if !is_same(opened.sa, sa) || sa.hot().counted {
            opened.settle(turn);
            // `open` let none pass that has to wait, and an owner, also one whose packets were out
            // for a few turns, leaves to nobody but all.
            (opened.sa, opened.alone) = (Some(sa), sa.access(turn) == Access::Alone);
        }
        if let Err(verdict) = accept_one(slot, sa, &mut opened, turn) {
            if verdict != Verdict::Dummy {
                sa.count_error(verdict);
            }
            slot.decide(verdict);
        }
    }
    opened.settle(turn);
}

impl Opened<'_> {
    /// Writes the sum.
    #[inline]
    fn settle(&mut self, turn: &mut Turn<'_>) {
        let Some(sa) = self.sa.take() else { return };
        if self.packets != 0 {
            sa.count(self.packets, self.bytes, turn.now_ns, self.alone);
            (self.packets, self.bytes) = (0, 0);
            if let Some(token) = sa.limit_crossed() {
                turn.events.limit_reached(token, turn.counters);
            }
        }
    }
}

#[inline]
fn accept_one(
    slot: &mut Slot<'_>,
    sa: &Sa,
    opened: &mut Opened<'_>,
    turn: &mut Turn<'_>,
) -> Result<(), Verdict> {
    // Packets before this one in the batch may have used up what `open` still saw left.
    if sa.expired() {
        return Err(Verdict::InSaExpired);
    }
    // Two copies of one packet may both have passed `open`; one of them stops here.
    let committed = match opened.alone {
        true => sa.replay().commit_alone(slot.sequence),
        false => sa.replay().commit(slot.sequence),
    };
    committed.map_err(refusal)?;
    if sa.hot().encapsulated {
        note_move(slot, sa, turn);
    }
    let content_at = usize::from(slot.esp_at) + PREFIX_LEN;
    let bytes = slot.frame.bytes();
    let plaintext = bytes.get(content_at..bytes.len().saturating_sub(ICV_LEN));
    let parsed = plaintext.map(esp::Trailer::parse);
    let Some(Ok((content, trailer))) = parsed else { return Err(Verdict::EspPadding) };
    let (content_len, next_header) = (content.len(), trailer.next_header);
    opened.packets += 1;
    opened.bytes += content_len as u64;
    if sa.hot().mode == Mode::Transport {
        return open_transport(slot, sa, content_at, content_len, next_header);
    }
    let is_v6 = match next_header {
        protocol::IPV4 => false,
        protocol::IPV6 => true,
        protocol::NO_NEXT_HEADER => return Err(Verdict::Dummy),
        _ => return Err(Verdict::EspNextHeader),
    };
    let outer_tos = slot.flow.tos;
    read_flow(&mut slot.flow, content).map_err(inner_verdict)?;
    if slot.flow.is_ipv6() != is_v6 || !slot.frame.pull_front(content_at) {
        return Err(Verdict::InnerMalformed);
    }
    slot.frame.truncate(usize::from(slot.flow.total_len));

    let inner_tos = slot.flow.tos;
    let tos = ecn::decapsulate(inner_tos, outer_tos, &sa.hot().flags)
        .map_err(|_| Verdict::EcnNotCapable)?;
    if tos != inner_tos {
        set_tos(slot.frame.bytes_mut(), is_v6, tos);
        slot.flow.tos = tos;
    }
    Ok(())
}

/// Tells control if the packet came from elsewhere than the SA says.
fn note_move(slot: &Slot<'_>, sa: &Sa, turn: &mut Turn<'_>) {
    let config = sa.config();
    let moved =
        |udp: &UdpEncapsulation| udp.moved(config.source, slot.flow.src, slot.flow.src_port);
    if config.encapsulation.as_ref().is_some_and(moved) {
        turn.events.mapping_changed(sa, &slot.flow, turn.now_ns, turn.counters);
    }
}

/// Step 3 in transport mode. What the padding for traffic flow confidentiality hides cannot be told
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
fn set_tos(packet: &mut [u8], is_v6: bool, tos: u8) {
    if is_v6 {
        if let Ok((header, _)) = ipv6::Header::over_mut(packet) {
            header.set_traffic_class(tos);
        }
    } else if let Ok((header, _)) = ipv4::Header::over_mut(packet) {
        header.set_tos(tos);
    }
}
