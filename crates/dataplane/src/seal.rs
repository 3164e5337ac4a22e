//! Eighth stage: packets that are to be protected get their numbers and headers, and then `encrypt`
//! does the rest.
//!
//! The steps of RFC 4303 §3.3:
//!
//! 1. see that the frame has room, so that no number is taken in vain;
//! 2. take a sequence number and an IV, which nobody gets again;
//! 3. append padding, trailer and room for the ICV, put ESP header and IV in front;
//! 4. put the outer headers in front: UDP where the SA says so (RFC 3948 §2.1), and IP;
//! 5. encrypt, and write the ICV: `encrypt`.
//!
//! In transport mode there is no outer header: before step 3 the packet's own steps aside, and in
//! step 4 it comes back (`transport`).
//!
//! This stage is the serial part: whoever seals one SA's packets does so in their order, in a few
//! lines of each. Consecutive packets of one SA take their numbers in one step and are counted
//! together. What is left to encrypt needs no order, and nothing but the slot.

use wire::esp::{self, ESP_HEADER_LEN, GCM_IV_LEN, ICV_LEN, TRAILER_LEN};
use wire::{Overlay, ipv4, ipv6, protocol, udp};
use xsk::Frame;

use crate::batch::{Batch, Slot, Turn, is_same, run_len};
use crate::claim::Access;
use crate::ecn;
use crate::hold::Stay;
use crate::sa::{Mode, Numbers, OuterTemplate, Sa, SealRefusal};
use crate::transport;
use crate::verdict::Verdict;

/// Bytes in front of the plaintext.
pub(crate) const PREFIX_LEN: usize = ESP_HEADER_LEN + GCM_IV_LEN;

/// Numbers and headers for every packet that `choose` found an SA for.
pub(crate) fn seal(batch: &mut Batch<'_>, turn: &mut Turn<'_>) {
    let mut asked: Option<&Sa> = None;
    for slot in batch.undecided() {
        if let Some(sa) = slot.outbound.filter(|sa| !is_same(asked, sa)) {
            sa.prefetch_words();
            asked = Some(sa);
        }
    }
    let mut rest = &mut batch.slots[..];
    while let Some((first, _)) = rest.split_first() {
        let Some(sa) = first.outbound.filter(|_| first.verdict.is_none()) else {
            rest = &mut rest[1..];
            continue;
        };
        // Where limits are counted, the packet that finds one reached is told from the one before.
        let run = match sa.hot().counted {
            true => 1,
            false => run_len(rest, |slot| is_same(slot.outbound, sa)),
        };
        let access = sa.access(turn);
        if access == Access::Wait {
            keep_back(rest, sa, turn);
            continue;
        }
        let (now, later) = rest.split_at_mut(run);
        seal_run(now, sa, access == Access::Alone, turn);
        rest = later;
    }
}

/// Another worker is about to leave the SA to all. Its packets wait for the next turn, all of them, so that
/// they stay in order.
#[cold]
fn keep_back(slots: &mut [Slot<'_>], sa: &Sa, turn: &Turn<'_>) {
    let waits = |slot: &&mut Slot<'_>| slot.verdict.is_none() && is_same(slot.outbound, sa);
    for slot in slots.iter_mut().filter(waits) {
        let policy = slot.policy.map_or(0, |policy| policy.config().index);
        slot.stay = Some(Stay::briefly(slot, policy, turn.now_ns));
        slot.decide(Verdict::NoSa);
    }
}

/// Consecutive packets of one SA.
fn seal_run(slots: &mut [Slot<'_>], sa: &Sa, alone: bool, turn: &mut Turn<'_>) {
    let expired = sa.expired();
    // 1. Room, in front and behind.
    let mut wanted = 0;
    for slot in &mut *slots {
        match if expired { Err(Verdict::OutSaExpired) } else { fit(slot, sa) } {
            Ok(()) => wanted += 1,
            Err(verdict) => refuse(slot, sa, verdict),
        }
    }
    let (mut packets, mut bytes, mut numbers) = (0, 0, Numbers::NONE);
    for slot in slots.iter_mut().filter(|slot| slot.verdict.is_none()) {
        // 2. Numbers.
        let (sequence, iv) = match next_numbers(&mut numbers, sa, wanted, alone) {
            Ok(next) => next,
            Err(refusal) => {
                refuse(slot, sa, refusal_verdict(refusal));
                continue;
            }
        };
        wanted -= 1;
        // 3. and 4. Headers.
        let framed = match sa.hot().mode {
            Mode::Tunnel => frame_tunnel(slot, sa, sequence, iv),
            Mode::Transport => frame_transport(slot, sa, sequence, iv),
        };
        match framed {
            Some(inner_len) => {
                packets += 1;
                bytes += inner_len as u64;
            }
            // Step 1 excluded it.
            None => refuse(slot, sa, Verdict::NoRoom),
        }
    }
    if packets != 0 {
        sa.count(packets, bytes, turn.now_ns, alone);
        if let Some(token) = sa.limit_crossed() {
            turn.events.limit_reached(token, turn.counters);
        }
    }
}

#[cold]
fn refuse(slot: &mut Slot<'_>, sa: &Sa, verdict: Verdict) {
    sa.count_error(verdict);
    slot.decide(verdict);
}

/// The next of the numbers that were taken, or of new ones.
#[inline]
fn next_numbers(
    numbers: &mut Numbers,
    sa: &Sa,
    wanted: u32,
    alone: bool,
) -> Result<(u64, u64), SealRefusal> {
    if let Some(next) = numbers.next() {
        return Ok(next);
    }
    *numbers = sa.take_run(wanted, alone)?;
    numbers.next().ok_or(SealRefusal::SequenceExhausted)
}

fn refusal_verdict(refusal: SealRefusal) -> Verdict {
    match refusal {
        SealRefusal::SequenceExhausted => Verdict::SequenceExhausted,
        SealRefusal::NonceExhausted => Verdict::NonceExhausted,
    }
}

/// Step 1.
#[inline]
fn fit(slot: &Slot<'_>, sa: &Sa) -> Result<(), Verdict> {
    let hot = sa.hot();
    let udp_len = if hot.encapsulated { udp::HEADER_LEN } else { 0 };
    let (outer_len, content_len) = match (hot.mode, &hot.outer) {
        (Mode::Tunnel, OuterTemplate::V4(_)) => (ipv4::HEADER_LEN, slot.frame.len()),
        (Mode::Tunnel, OuterTemplate::V6(_)) => (ipv6::HEADER_LEN, slot.frame.len()),
        (Mode::Transport, _) => {
            let header = transport::Header::of(&slot.frame, &slot.flow)?;
            (0, slot.frame.len() - header.len())
        }
    };
    let tail_len = esp::pad_len(content_len) + TRAILER_LEN + ICV_LEN;
    let fits = slot.frame.headroom() >= outer_len + udp_len + PREFIX_LEN
        && slot.frame.tailroom() >= tail_len;
    if fits { Ok(()) } else { Err(Verdict::NoRoom) }
}

/// Steps 3 and 4 in tunnel mode; the bytes that the SA counts.
#[inline]
fn frame_tunnel(slot: &mut Slot<'_>, sa: &Sa, sequence: u64, iv: u64) -> Option<usize> {
    let inner_len = slot.frame.len();
    let inner = InnerHeader::read(&slot.frame, slot.flow.is_ipv6(), slot.flow.tos);
    let next_header = if inner.is_v6 { protocol::IPV6 } else { protocol::IPV4 };
    wrap(slot, sa, sequence, iv, next_header)?;
    if sa.hot().encapsulated {
        put_udp(&mut slot.frame, sa)?;
    }
    put_outer(&mut slot.frame, sa, sequence, &inner)?;
    Some(inner_len)
}

/// The same in transport mode.
fn frame_transport(slot: &mut Slot<'_>, sa: &Sa, sequence: u64, iv: u64) -> Option<usize> {
    let header = transport::Header::of(&slot.frame, &slot.flow).ok()?;
    let payload_len = slot.frame.len() - header.len();
    let encapsulated = sa.hot().encapsulated;
    let udp_len = if encapsulated { udp::HEADER_LEN } else { 0 };
    header.step_aside(&mut slot.frame, udp_len + PREFIX_LEN)?;
    wrap(slot, sa, sequence, iv, header.next_header)?;
    if encapsulated {
        put_udp(&mut slot.frame, sa)?;
    }
    let carried = if encapsulated { protocol::UDP } else { protocol::ESP };
    header.return_to(&mut slot.frame, carried)?;
    // As Linux counts: without the IP header.
    Some(payload_len)
}

/// Step 3: the frame becomes an ESP packet, still in clear.
#[inline]
fn wrap(slot: &mut Slot<'_>, sa: &Sa, sequence: u64, iv: u64, next_header: u8) -> Option<()> {
    let frame = &mut slot.frame;
    let pad_len = esp::pad_len(frame.len());
    let tail = frame.push_back(pad_len + TRAILER_LEN + ICV_LEN)?;
    // What is behind the trailer, the ICV overwrites.
    *tail.first_chunk_mut()? = esp::short_trailer(pad_len, next_header);
    let prefix = frame.push_front(PREFIX_LEN)?;
    let rest = esp::Header::new(sa.hot().spi, sequence as u32).emit(prefix).ok()?;
    rest.copy_from_slice(&iv.to_be_bytes());
    slot.esp_len = u16::try_from(frame.len()).ok()?;
    slot.sequence = sequence;
    Some(())
}

/// What the outer header takes over from the inner one, read before it is encrypted.
struct InnerHeader {
    is_v6: bool,
    tos: u8,
    /// IPv6 is never fragmented by routers, which Linux maps to DF.
    dont_fragment: bool,
    /// The flow label of IPv6, or 0.
    flow_label: u32,
}

impl InnerHeader {
    #[inline]
    fn read(frame: &Frame, is_v6: bool, tos: u8) -> InnerHeader {
        let bytes = frame.bytes();
        let (dont_fragment, flow_label) = match is_v6 {
            true => (true, ipv6::Header::over(bytes).map_or(0, |(inner, _)| inner.flow_label())),
            false => (ipv4::Header::over(bytes).is_ok_and(|(inner, _)| inner.dont_fragment()), 0),
        };
        InnerHeader { is_v6, tos, dont_fragment, flow_label }
    }
}

/// Step 4; `None` only if there is no room, which step 1 excluded.
#[inline]
fn put_outer(frame: &mut Frame, sa: &Sa, sequence: u64, inner: &InnerHeader) -> Option<()> {
    let flags = &sa.hot().flags;
    let tos = ecn::encapsulate(inner.tos, flags);
    let payload_len = frame.len();
    match &sa.hot().outer {
        OuterTemplate::V4(template) => {
            let total_len = u16::try_from(ipv4::HEADER_LEN + payload_len).ok()?;
            let dont_fragment = inner.dont_fragment && !flags.no_pmtu_discovery;
            // RFC 6864 §4: only a packet that may be fragmented needs an identification, which
            // must not repeat soon; the sequence number does so after 65 536 packets.
            let id = if dont_fragment { 0 } else { sequence as u16 };
            let room = frame.push_front(ipv4::HEADER_LEN)?;
            template.stamp_into(room, total_len, id, tos, dont_fragment).ok()?;
        }
        OuterTemplate::V6(template) => {
            let header = template.stamp(u16::try_from(payload_len).ok()?, tos, inner.flow_label);
            header.emit(frame.push_front(ipv6::HEADER_LEN)?).ok()?;
        }
    }
    Some(())
}

/// The UDP header of step 4. RFC 3948 §2.1 wants no checksum, and over IPv4 there is none; over IPv6
/// `encrypt` puts it in, as it covers what is encrypted.
fn put_udp(frame: &mut Frame, sa: &Sa) -> Option<()> {
    let encapsulation = sa.config().encapsulation?;
    let len = u16::try_from(udp::HEADER_LEN + frame.len()).ok()?;
    let (source, destination) = (encapsulation.source_port, encapsulation.destination_port);
    let header = udp::Header::new(source, destination, len);
    header.emit(frame.push_front(udp::HEADER_LEN)?).ok()?;
    Some(())
}
