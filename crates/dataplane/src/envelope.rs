//! The envelope of a packet that is sealed: ESP header and IV in front of it, padding and trailer behind it,
//! and around that the outer headers, UDP where the SA says so (RFC 3948 §2.1), and IP.
//!
//! In transport mode there is no outer header: the packet's own steps aside and comes back (`transport`).
//!
//! All that it needs is in the slot, the packet and the SA's hot lines, so any worker may put it on, at any
//! time. Nothing is encrypted here; `encrypt` is, right after.

use wire::esp::{self, ESP_HEADER_LEN, GCM_IV_LEN, ICV_LEN, TRAILER_LEN};
use wire::{Overlay, ethernet, ipv4, ipv6, protocol, udp};
use xsk::Frame;

use crate::batch::Slot;
use crate::encapsulation::UdpEncapsulation;
use crate::plain::{HEADER_LEN_MAX, PlainHeader};
use crate::sa::{Hot, Mode, Outer, Sa};
use crate::transport;
use crate::verdict::Verdict;

/// Bytes in front of the plaintext.
pub(crate) const PREFIX_LEN: usize = ESP_HEADER_LEN + GCM_IV_LEN;

/// Bytes of a tunnel's envelope in front of a packet: over IPv4, without UDP and with it, and over IPv6.
pub(crate) const FRONT_V4_LEN: usize = ipv4::HEADER_LEN + PREFIX_LEN;
pub(crate) const FRONT_V4_UDP_LEN: usize = FRONT_V4_LEN + udp::HEADER_LEN;
pub(crate) const FRONT_V6_LEN: usize = ipv6::HEADER_LEN + PREFIX_LEN;

/// The room in front of a packet that the envelopes of an SA take.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    front: usize,
    is_tunnel: bool,
}

impl Room {
    /// That of an SA.
    #[inline]
    pub(crate) fn of(hot: &Hot) -> Room {
        let udp_len = if hot.traits.is_encapsulated() { udp::HEADER_LEN } else { 0 };
        let outer_len = match (hot.traits.mode(), hot.outer()) {
            (Mode::Tunnel, Outer::V4(_)) => ipv4::HEADER_LEN,
            (Mode::Tunnel, Outer::V6(_)) => ipv6::HEADER_LEN,
            (Mode::Transport, _) => 0,
        };
        Room {
            front: outer_len + udp_len + PREFIX_LEN,
            is_tunnel: hot.traits.mode() == Mode::Tunnel,
        }
    }

    /// Whether a packet has it, in front and behind: the bytes of it that the SA counts, which are, as in
    /// Linux, those without the IP header in transport mode.
    #[inline]
    pub(crate) fn fit(self, slot: &Slot<'_>) -> Result<u16, Verdict> {
        let header_len =
            if self.is_tunnel { 0 } else { transport::Header::of(&slot.frame, &slot.flow)?.len() };
        let content_len = slot.frame.len() - header_len;
        let fits =
            slot.frame.headroom() >= self.front && slot.frame.tailroom() >= tail_len(content_len);
        u16::try_from(content_len).ok().filter(|_| fits).ok_or(Verdict::NoRoom)
    }
}

/// Bytes of an envelope behind so many of a packet.
#[inline(always)]
pub(crate) fn tail_len(content_len: usize) -> usize {
    esp::pad_len(content_len) + TRAILER_LEN + ICV_LEN
}

/// Bytes of a [simple](crate::sa::Traits::is_simple) tunnel's envelope in front of a packet.
#[inline(always)]
pub(crate) fn front_len(hot: &Hot) -> usize {
    match hot.traits {
        traits if traits.is_v6() => FRONT_V6_LEN,
        traits if traits.is_encapsulated() => FRONT_V4_UDP_LEN,
        _ => FRONT_V4_LEN,
    }
}

/// Bytes of a packet of so many in an envelope with so many in front of it.
#[inline(always)]
pub(crate) fn len_behind(front_len: usize, content_len: usize) -> usize {
    front_len + content_len + tail_len(content_len)
}

/// A packet in its envelope: what is to be encrypted, and the room behind it for the ICV.
pub(crate) struct Enveloped<'f> {
    pub(crate) data: &'f mut [u8],
    pub(crate) icv: &'f mut [u8; ICV_LEN],
}

/// Puts the envelope around a packet that has its numbers. `None` only if there is no room, which
/// [`Room::fit`] excluded.
#[inline(always)]
pub(crate) fn put<'f>(slot: &'f mut Slot<'_>, sa: &Sa) -> Option<Enveloped<'f>> {
    match sa.hot().usual_outer() {
        Some(template) => {
            let numbers = (slot.sequence, slot.iv);
            put_v4(&mut slot.frame, sa.hot(), template, numbers)
        }
        None => put_any(slot, sa),
    }
}

/// What most tunnels have, in one go: around a packet with a sequence number and an IV.
#[inline(always)]
fn put_v4<'f>(
    frame: &'f mut Frame,
    hot: &Hot,
    template: &ipv4::Template,
    (sequence, iv): (u64, u64),
) -> Option<Enveloped<'f>> {
    let inner = InnerHeader::read(frame.bytes())?;
    let inner_len = frame.len();
    let pad_len = esp::pad_len(inner_len);
    frame.grow(FRONT_V4_LEN, pad_len + TRAILER_LEN + ICV_LEN)?;
    let total_len = frame.len() as u16;
    let (front, rest) = frame.bytes_mut().split_first_chunk_mut::<FRONT_V4_LEN>()?;
    // What is behind the trailer, the ICV overwrites.
    *rest.get_mut(inner_len..)?.first_chunk_mut()? = inner.trailer(pad_len);
    let (outer, prefix) = front.split_first_chunk_mut::<{ ipv4::HEADER_LEN }>()?;
    prefix.copy_from_slice(&esp::prefix(hot.spi, sequence as u32, iv));
    stamp_v4(outer, template, total_len, sequence, &inner, hot);
    let (data, icv) = rest.split_last_chunk_mut()?;
    Some(Enveloped { data, icv })
}

/// The frame of a packet in its envelope: its link header, which is still to be written.
pub(crate) struct Framed<'f> {
    pub(crate) link: &'f mut [u8; ethernet::HEADER_LEN],
    pub(crate) enveloped: Enveloped<'f>,
}

/// Makes a packet ready for its envelope that is still behind its link header, and has that header: it loses a hop, and gets padding
/// and trailer. `None` if it must not be sealed.
///
/// To be done some time before it is encrypted. What reads bytes in large pieces, of which some were only just written in small
/// ones, waits until those are in the cache, which is after all that went before has retired: packets would not overlap.
#[inline(always)]
#[must_use = "a packet that is not ready must not be sealed"]
pub(crate) fn ready<P: PlainHeader>(frame: &mut Frame, header: &P) -> Option<()> {
    let content_len = usize::from(header.total_len());
    // What is behind the trailer, the ICV overwrites.
    let tail = frame.reach(ethernet::HEADER_LEN + content_len)?;
    *tail = header.inner().trailer(esp::pad_len(content_len));
    header.take_hop_of(frame.reach::<HEADER_LEN_MAX>(ethernet::HEADER_LEN)?)
}

/// What [`put_v4`] does to a packet that is still behind its link header, which makes room for another: it has that header. It
/// is `READY` if [`ready`] has made it so. `FRONT_LEN` is what [`front_len`] says, and `outer` the SA's.
#[inline(always)]
pub(crate) fn frame<'f, P: PlainHeader, const READY: bool, const FRONT_LEN: usize>(
    frame: &'f mut Frame,
    header: &P,
    hot: &Hot,
    outer: Outer<'_>,
    (sequence, iv): (u64, u64),
) -> Option<Framed<'f>> {
    let content_len = usize::from(header.total_len());
    let total_len = len_behind(FRONT_LEN, content_len);
    let bytes = frame.reframe(FRONT_LEN, ethernet::HEADER_LEN + total_len)?;
    let (link, rest) = bytes.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>()?;
    let (front, rest) = rest.split_first_chunk_mut::<FRONT_LEN>()?;
    let inner = header.inner();
    if !READY {
        // As `ready`, but in the frame that is made already: asked for its room again, a packet takes 15 instructions more.
        let (content, tail) = rest.split_at_mut_checked(content_len)?;
        header.take_hop_of(content)?;
        *tail.first_chunk_mut()? = inner.trailer(esp::pad_len(content_len));
    }
    let (front, prefix) = front.split_last_chunk_mut::<PREFIX_LEN>()?;
    *prefix = esp::prefix(hot.spi, sequence as u32, iv);
    match outer {
        Outer::V4(template) => {
            let (ip, between) = front.split_first_chunk_mut()?;
            if FRONT_LEN == FRONT_V4_UDP_LEN {
                udp_header(hot.udp()?, total_len - ipv4::HEADER_LEN)?.emit(between).ok()?;
            }
            stamp_v4(ip, template, total_len as u16, sequence, &inner, hot);
        }
        Outer::V6(template) => {
            stamp_v6(front, template, total_len - ipv6::HEADER_LEN, &inner, hot)?;
        }
    }
    let (data, icv) = rest.split_last_chunk_mut()?;
    Some(Framed { link, enveloped: Enveloped { data, icv } })
}

/// Any other.
#[inline(never)]
fn put_any<'f>(slot: &'f mut Slot<'_>, sa: &Sa) -> Option<Enveloped<'f>> {
    let esp_at = match sa.hot().traits.mode() {
        Mode::Tunnel => put_around(slot, sa),
        Mode::Transport => put_within(slot, sa),
    }?;
    // An IP header and UDP's are shorter than any frame.
    slot.esp_at = esp_at as u16;
    let sealed = slot.frame.bytes_mut().get_mut(esp_at + PREFIX_LEN..)?;
    let (data, icv) = sealed.split_last_chunk_mut()?;
    Some(Enveloped { data, icv })
}

/// Any other tunnel: from the inside to the outside.
fn put_around(slot: &mut Slot<'_>, sa: &Sa) -> Option<usize> {
    let inner = InnerHeader::read(slot.frame.bytes())?;
    wrap(slot, sa, inner.next_header())?;
    if sa.hot().traits.is_encapsulated() {
        put_udp(&mut slot.frame, sa)?;
    }
    let outer_len = put_outer(&mut slot.frame, sa, slot.sequence, &inner)?;
    Some(outer_len + if sa.hot().traits.is_encapsulated() { udp::HEADER_LEN } else { 0 })
}

/// Transport mode.
fn put_within(slot: &mut Slot<'_>, sa: &Sa) -> Option<usize> {
    let header = transport::Header::of(&slot.frame, &slot.flow).ok()?;
    let encapsulated = sa.hot().traits.is_encapsulated();
    let udp_len = if encapsulated { udp::HEADER_LEN } else { 0 };
    header.step_aside(&mut slot.frame, udp_len + PREFIX_LEN)?;
    wrap(slot, sa, header.next_header)?;
    if encapsulated {
        put_udp(&mut slot.frame, sa)?;
    }
    let carried = if encapsulated { protocol::UDP } else { protocol::ESP };
    header.return_to(&mut slot.frame, carried)?;
    Some(header.len() + udp_len)
}

/// The frame becomes an ESP packet, still in clear.
fn wrap(slot: &mut Slot<'_>, sa: &Sa, next_header: u8) -> Option<()> {
    let frame = &mut slot.frame;
    let pad_len = esp::pad_len(frame.len());
    let tail = frame.push_back(pad_len + TRAILER_LEN + ICV_LEN)?;
    *tail.first_chunk_mut()? = esp::short_trailer(pad_len, next_header);
    let prefix = frame.push_front(PREFIX_LEN)?;
    prefix.copy_from_slice(&esp::prefix(sa.hot().spi, slot.sequence as u32, slot.iv));
    Some(())
}

/// What the envelope takes over from the packet's own header.
pub(crate) struct InnerHeader {
    is_v6: bool,
    tos: u8,
    /// IPv6 is never fragmented by routers, which Linux maps to DF.
    dont_fragment: bool,
    /// The flow label of IPv6, or 0.
    flow_label: u32,
}

impl InnerHeader {
    /// Of a packet whose headers were read before: all of it is in the first eight bytes.
    ///
    /// ```text
    ///   IPv4   version 4 · header length 4 · tos 8 · total length 16 · id 16 · reserved 1 · DF 1 · MF 1 · offset 13
    ///   IPv6   version 4 · traffic class 8 · flow label 20 · payload length 16 · next header 8 · hop limit 8
    /// ```
    #[inline]
    fn read(packet: &[u8]) -> Option<InnerHeader> {
        let first = u64::from_be_bytes(*packet.first_chunk()?);
        let is_v6 = first >> 60 != 4;
        Some(InnerHeader {
            is_v6,
            tos: (first >> if is_v6 { 52 } else { 48 }) as u8,
            dont_fragment: is_v6 || first & u64::from(ipv4::DONT_FRAGMENT) != 0,
            flow_label: if is_v6 { (first >> 32) as u32 & 0xf_ffff } else { 0 },
        })
    }

    /// Of a packet of IPv4.
    #[inline(always)]
    pub(crate) fn of_v4(header: &ipv4::Plain) -> InnerHeader {
        let (tos, dont_fragment) = (header.tos(), header.dont_fragment());
        InnerHeader { is_v6: false, tos, dont_fragment, flow_label: 0 }
    }

    /// Of a packet of IPv6.
    #[inline(always)]
    pub(crate) fn of_v6(header: &ipv6::Plain) -> InnerHeader {
        let (tos, flow_label) = (header.traffic_class(), header.flow_label());
        InnerHeader { is_v6: true, tos, dont_fragment: true, flow_label }
    }

    #[inline]
    fn next_header(&self) -> u8 {
        if self.is_v6 { protocol::IPV6 } else { protocol::IPV4 }
    }

    /// Padding and trailer.
    #[inline]
    fn trailer(&self, pad_len: usize) -> [u8; 8] {
        // Not constants, of which each packet would copy both.
        static TRAILERS: [[[u8; 8]; esp::ALIGNMENT]; 2] =
            [esp::short_trailers(protocol::IPV4), esp::short_trailers(protocol::IPV6)];
        TRAILERS[usize::from(self.is_v6)][pad_len % esp::ALIGNMENT]
    }
}

/// The outer header; its length.
fn put_outer(frame: &mut Frame, sa: &Sa, sequence: u64, inner: &InnerHeader) -> Option<usize> {
    let hot = sa.hot();
    let payload_len = frame.len();
    match hot.outer() {
        Outer::V4(template) => {
            let total_len = u16::try_from(ipv4::HEADER_LEN + payload_len).ok()?;
            let room = frame.push_front(ipv4::HEADER_LEN)?.first_chunk_mut()?;
            stamp_v4(room, template, total_len, sequence, inner, hot);
            Some(ipv4::HEADER_LEN)
        }
        Outer::V6(template) => {
            let room = frame.push_front(ipv6::HEADER_LEN)?;
            stamp_v6(room, template, payload_len, inner, hot)?;
            Some(ipv6::HEADER_LEN)
        }
    }
}

#[inline]
fn stamp_v4(
    room: &mut [u8; ipv4::HEADER_LEN],
    template: &ipv4::Template,
    total_len: u16,
    sequence: u64,
    inner: &InnerHeader,
    hot: &Hot,
) {
    let tos = inner.tos & hot.copied_tos;
    let dont_fragment = inner.dont_fragment && !hot.traits.flags().no_pmtu_discovery;
    // RFC 6864 §4: only a packet that may be fragmented needs an identification, which must not repeat
    // soon; the sequence number does so after 65 536 packets.
    let id = if dont_fragment { 0 } else { sequence as u16 };
    template.stamp_onto(room, total_len, id, tos, dont_fragment);
}

#[inline]
fn stamp_v6(
    room: &mut [u8],
    template: &ipv6::Template,
    payload_len: usize,
    inner: &InnerHeader,
    hot: &Hot,
) -> Option<()> {
    let tos = inner.tos & hot.copied_tos;
    let header = template.stamp(u16::try_from(payload_len).ok()?, tos, inner.flow_label);
    header.emit(room).ok().map(|_| ())
}

/// The UDP header. RFC 3948 §2.1 wants no checksum, and over IPv4 there is none; over IPv6 `encrypt` puts
/// it in, as it covers what is encrypted.
fn put_udp(frame: &mut Frame, sa: &Sa) -> Option<()> {
    let header = udp_header(sa.encapsulation()?, udp::HEADER_LEN + frame.len())?;
    header.emit(frame.push_front(udp::HEADER_LEN)?).ok()?;
    Some(())
}

/// That of a datagram of so many bytes.
#[inline(always)]
fn udp_header(udp: UdpEncapsulation, len: usize) -> Option<udp::Header> {
    Some(udp::Header::new(udp.source_port, udp.destination_port, u16::try_from(len).ok()?))
}
