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

use crate::batch::{Notes, Slot};
use crate::ecn;
use crate::envelope::PREFIX_LEN;
use crate::parse::{is_fragment_alike, read_flow};
use crate::plain::PlainHeader;
use crate::sa::{Mode, Sa};
use crate::transport;
use crate::verdict::Verdict;
use crate::view::View;

/// Takes the content out of a packet that was decrypted.
#[inline]
pub(crate) fn take(slot: &mut Slot<'_>, sa: &Sa) -> Result<(), Verdict> {
    match take_plain(slot, sa) {
        Some(()) => Ok(()),
        None => take_any(slot, sa),
    }
}

/// What nearly every tunnel's packet has inside, in a few branches: IPv4, whole and without options, and nothing
/// to be carried inwards. `None`, and no change, for any other, good or bad.
#[inline(always)]
fn take_plain(slot: &mut Slot<'_>, sa: &Sa) -> Option<()> {
    let hot = sa.hot();
    if hot.traits.mode() != Mode::Tunnel || !ecn::leaves_alone(slot.flow.tos, &hot.traits.flags()) {
        return None;
    }
    let content = plain_behind::<ipv4::Plain>(usize::from(slot.esp_at), slot);
    let Plain { at, len, header } = content?;
    slot.flow = header.flow();
    slot.frame.narrow(at, usize::from(slot.flow.total_len))?;
    slot.counted = len;
    Some(())
}

/// What nearly every tunnel's packet has inside.
pub(crate) struct Plain<P> {
    /// Where in the packet it begins.
    pub(crate) at: usize,
    /// Its bytes, with those that may lie behind it.
    pub(crate) len: u16,
    pub(crate) header: P,
}

/// The same while it is still inside, of a packet of a tunnel with `esp_at` bytes in front of ESP, into which nothing is to be carried.
#[inline(always)]
pub(crate) fn plain_behind<P: PlainHeader>(esp_at: usize, slot: &Slot<'_>) -> Option<Plain<P>> {
    read_behind(esp_at, slot, P::read)
}

/// The same also of a fragment, where that is to policies what a whole packet is.
#[inline(always)]
pub(crate) fn any_behind<P: PlainHeader>(
    esp_at: usize,
    slot: &Slot<'_>,
    view: &View,
) -> Option<Plain<P>> {
    let read = |content: &[u8]| P::read_any(content, || is_fragment_alike(content, view));
    read_behind(esp_at, slot, read)
}

#[inline(always)]
fn read_behind<P: PlainHeader>(
    esp_at: usize,
    slot: &Slot<'_>,
    read: impl FnOnce(&[u8]) -> Option<P>,
) -> Option<Plain<P>> {
    let at = esp_at + PREFIX_LEN;
    let behind = slot.frame.bytes().get(at..)?;
    // The shortest content that is plain: asked once, instead of by each who takes a part of it.
    if behind.len() < ipv4::Plain::LEN + ICV_LEN {
        return None;
    }
    let (plaintext, _) = behind.split_last_chunk::<ICV_LEN>()?;
    let content = P::within(plaintext)?;
    Some(Plain { at, len: content.len() as u16, header: read(content)? })
}

/// Any content, step by step.
#[inline(never)]
fn take_any(slot: &mut Slot<'_>, sa: &Sa) -> Result<(), Verdict> {
    // 1.
    let content_at = usize::from(slot.esp_at) + PREFIX_LEN;
    let bytes = slot.frame.bytes();
    let plaintext = bytes.get(content_at..bytes.len().saturating_sub(ICV_LEN));
    let parsed = plaintext.map(esp::Trailer::parse);
    let Some(Ok((content, trailer))) = parsed else { return Err(Verdict::EspPadding) };
    let (content_len, next_header) = (content.len(), trailer.next_header);
    // No longer than a frame.
    slot.counted = content_len as u16;
    if sa.hot().traits.mode() == Mode::Transport {
        return take_transport(slot, sa, content_at, content_len, next_header);
    }
    let is_v6 = match next_header {
        protocol::IPV4 => false,
        protocol::IPV6 => true,
        protocol::NO_NEXT_HEADER => return Err(Verdict::Dummy),
        _ => return Err(Verdict::EspNextHeader),
    };
    // 2.
    let (frame, Notes { flow, .. }) = slot.parts();
    let outer_tos = flow.tos;
    let content = frame.bytes().get(content_at..).and_then(|rest| rest.get(..content_len));
    read_flow(flow, content.unwrap_or_default()).map_err(inner_verdict)?;
    if flow.is_ipv6() != is_v6 || !frame.pull_front(content_at) {
        return Err(Verdict::InnerMalformed);
    }
    frame.truncate(usize::from(flow.total_len));
    // 3.
    let inner_tos = flow.tos;
    let tos = ecn::decapsulate(inner_tos, outer_tos, &sa.hot().traits.flags())
        .map_err(|_| Verdict::EcnNotCapable)?;
    if tos != inner_tos {
        set_tos(frame.bytes_mut(), is_v6, tos);
        flow.tos = tos;
    }
    Ok(())
}

/// Step 2 in transport mode. What the padding for traffic flow confidentiality hides cannot be told
/// from content there; it is left to who reads a length of its own, as in UDP (RFC 4303 §2.7).
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
    let (frame, Notes { flow, .. }) = slot.parts();
    transport::restore(frame, flow, content_at, content_len, next_header)
        .ok_or(Verdict::InnerMalformed)?;
    read_flow(flow, frame.bytes()).map_err(inner_verdict)?;
    if sa.hot().traits.is_encapsulated() {
        transport::mend_checksum(frame.bytes_mut(), flow);
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
pub(crate) fn set_tos(packet: &mut [u8], is_v6: bool, tos: u8) {
    if is_v6 {
        if let Ok((header, _)) = ipv6::Header::over_mut(packet) {
            header.set_traffic_class(tos);
        }
    } else if let Ok((header, _)) = ipv4::Header::over_mut(packet) {
        header.set_tos(tos);
    }
}

#[cfg(test)]
mod tests {

    use crypto::{Engine, SharedKey};
    use proptest::prelude::*;
    use xsk::Umem;

    use super::*;
    use crate::batch::BatchMemory;
    use crate::sa::{HardLimits, SaConfig, SaFlags};

    const OUTER_LEN: usize = ipv4::HEADER_LEN;

    fn sa(mode: Mode, decap_dscp: bool, no_ecn: bool) -> Sa {
        let config = SaConfig {
            spi: 0x101,
            mode,
            source: [192, 0, 2, 1].into(),
            destination: [192, 0, 2, 2].into(),
            reqid: 1,
            key: SharedKey::new(Engine::AwsLc, &[7; 16]).unwrap(),
            salt: [0; 4],
            extended_sequence: true,
            replay_window: 64,
            selector: None,
            flags: SaFlags { decap_dscp, no_ecn, ..SaFlags::default() },
            encapsulation: None,
            limits: HardLimits::NONE,
            sent: 0,
            received: 0,
            received_bitmap: None,
            if_id: 0,
            added_ns: 5,
        };
        Sa::new(config).unwrap()
    }

    /// What was decrypted: a packet, perhaps padding for traffic flow confidentiality, the trailer.
    fn plaintext() -> impl Strategy<Value = Vec<u8>> {
        let inner = (any::<u8>(), prop::collection::vec(any::<u8>(), 0..30));
        let next_header = prop::sample::select(vec![4, 4, 4, 41, 59, 17]);
        let flip = prop::option::weighted(0.3, 0usize..60);
        (inner, 0usize..6, 0u8..6, next_header, flip).prop_map(
            |((tos, payload), hidden, pad_len, next_header, flip)| {
                let ends = ([10, 0, 0, 1].into(), [10, 9, 0, 1].into());
                let template = ipv4::Template::new(ends.0, ends.1, protocol::UDP, 64);
                let len = ipv4::HEADER_LEN + payload.len();
                let mut bytes = vec![0; ipv4::HEADER_LEN];
                template.stamp(len as u16, 0, tos, true).emit(&mut bytes).unwrap();
                bytes.extend(payload);
                bytes.extend(vec![0; hidden]);
                bytes.extend(1..=pad_len);
                bytes.extend([pad_len, next_header]);
                if let Some(at) = flip.filter(|at| *at < bytes.len()) {
                    bytes[at] ^= 1;
                }
                bytes
            },
        )
    }

    proptest! {
        #[test]
        fn content_is_what_it_is_step_by_step(
            plaintext in plaintext(), outer_tos: u8, decap_dscp: bool, no_ecn: bool,
            is_tunnel in prop::bool::weighted(0.9),
        ) {
            let mode = if is_tunnel { Mode::Tunnel } else { Mode::Transport };
            let sa = sa(mode, decap_dscp, no_ecn);
            let umem = Umem::new(2, 2048, false).unwrap();
            let mut pool = umem.pool(0..2);
            let mut memory = BatchMemory::new();
            let mut batch = memory.begin();
            for _ in 0..2 {
                let mut frame = pool.take().unwrap();
                let len = OUTER_LEN + PREFIX_LEN + plaintext.len() + ICV_LEN;
                let bytes = frame.push_back(len).unwrap();
                bytes.fill(0);
                bytes[0] = 0x45;
                bytes[OUTER_LEN + PREFIX_LEN..][..plaintext.len()].copy_from_slice(&plaintext);
                batch.extend(std::iter::once(frame), 0);
            }
            for slot in &mut batch.slots {
                slot.esp_at = OUTER_LEN as u16;
                (slot.flow.header_len, slot.flow.tos) = (OUTER_LEN as u16, outer_tos);
                (slot.flow.src, slot.flow.dst) = (sa.source(), sa.destination());
            }
            let [quick, steps] = &mut batch.slots[..] else { unreachable!("two were added") };
            let ends = [take(quick, &sa), take_any(steps, &sa)];
            prop_assert_eq!(ends[0], ends[1]);
            if ends[0].is_ok() {
                prop_assert_eq!(quick.flow, steps.flow);
                prop_assert_eq!(quick.frame.bytes(), steps.frame.bytes());
                prop_assert_eq!(quick.counted, steps.counted);
            }
            batch.slots.drain(..).for_each(|slot| pool.give(slot.frame));
        }
    }
}
