//! Seventh stage: the outbound policy, and ESP where it asks for it.
//!
//! First pass: every packet's policy, and its SA. Second pass, for each packet with an SA
//! (RFC 4303 §3.3):
//!
//! 1. see that the frame has room, so that no number is taken in vain;
//! 2. take a sequence number and an IV, which nobody gets again;
//! 3. append padding and trailer, put ESP header and IV in front;
//! 4. encrypt, and append the ICV;
//! 5. put the outer headers in front: UDP where the SA says so (RFC 3948 §2.1), and IP.
//!
//! In transport mode there is no outer header: before step 3 the packet's own steps aside, and in
//! step 5 it comes back (`transport`).
//!
//! Packets without a protect policy leave in clear. Routes are not looked at.

use std::net::IpAddr;

use wire::esp::{self, ESP_HEADER_LEN, GCM_IV_LEN, ICV_LEN, TRAILER_LEN};
use wire::flow::Flow;
use wire::{Overlay, checksum, ipv4, ipv6, protocol, udp};
use xsk::Frame;

use crate::batch::{Batch, Slot, Turn};
use crate::bundles::Whose;
use crate::ecn;
use crate::encapsulation::UdpEncapsulation;
use crate::hold::Stay;
use crate::inspect::check_ports_known;
use crate::policy::{Action, Direction, Policy, Template};
use crate::sa::{Mode, OuterTemplate, Sa, SealRefusal};
use crate::spd::{DefaultAction, Lookup};
use crate::transport;
use crate::tunnel;
use crate::verdict::Verdict;
use crate::view::View;

/// Bytes in front of the plaintext.
const PREFIX_LEN: usize = ESP_HEADER_LEN + GCM_IV_LEN;

/// Applies the outbound policy to every packet, and seals those that are to be protected.
pub(crate) fn seal<'v>(batch: &mut Batch<'v>, view: &'v View, turn: &mut Turn<'_>) {
    for slot in batch.undecided() {
        match choose_one(slot, view, turn) {
            // Whatever the policies say now: a packet that waited to be protected is not for clear.
            Ok(()) if slot.stay.is_some() && slot.outbound.is_none() => {
                slot.decide(Verdict::HoldPolicyGone);
            }
            Ok(()) => {}
            Err(verdict) => slot.decide(verdict),
        }
    }
    for slot in batch.undecided() {
        let Some(sa) = slot.outbound else { continue };
        let sealed = match sa.config().mode {
            Mode::Tunnel => seal_one(slot, sa, turn.now_ns),
            Mode::Transport => seal_transport(slot, sa, turn.now_ns),
        };
        if let Err(verdict) = sealed {
            sa.count_error(verdict);
            slot.decide(verdict);
        } else if let Some(token) = sa.limit_crossed() {
            turn.events.limit_reached(token, turn.counters);
        }
    }
}

/// The first pass: sets the SA of a packet that must be sealed.
fn choose_one<'v>(slot: &mut Slot<'v>, view: &'v View, turn: &mut Turn<'_>) -> Result<(), Verdict> {
    let flow = &slot.flow;
    let policy = match view.spd.lookup(Direction::Out, flow) {
        Lookup::Policy(policy) => policy,
        Lookup::PortsNeeded => return Err(Verdict::FragmentOfPortPolicy),
        Lookup::Default(DefaultAction::Accept) => return tunnel::enter(slot, view, turn),
        Lookup::Default(DefaultAction::Block) => return Err(Verdict::OutPolicyBlock),
    };
    check_ports_known(flow, &policy.config().selector)?;
    match policy.config().action {
        Action::Discard => return Err(Verdict::OutPolicyBlock),
        Action::Bypass => policy.count(slot.frame.len(), turn.now_ns),
        Action::Protect { template, bundle } => {
            protect(slot, policy, &template, bundle, view, turn)?;
        }
    }
    // What no policy sealed may still have a route into a tunnel.
    if slot.outbound.is_none() { tunnel::enter(slot, view, turn) } else { Ok(()) }
}

/// Finds the SA that a policy wants for a packet, in the slot `bundle` or by the packet's own ends.
/// Without one, and without an error, the policy is content with clear.
pub(crate) fn protect<'v>(
    slot: &mut Slot<'v>,
    policy: &Policy,
    template: &Template,
    bundle: Option<u32>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> Result<(), Verdict> {
    let flow = &slot.flow;
    let bundle = match template.mode {
        Mode::Tunnel => bundle,
        Mode::Transport => transport::slot(&view.transport, template, flow),
    };
    let chosen = bundle.and_then(|slot| view.bundles.choose(slot, turn.worker));
    match chosen.filter(|(sa, _)| carries(sa, slot)) {
        Some(_) if slot.stay.is_none() && turn.hold.must_follow(policy.config().index) => {
            slot.stay = Some(Stay::begin(slot, policy.config().index, turn.now_ns));
            return Err(Verdict::NoSa);
        }
        Some((sa, whose)) => {
            note_whose(whose, policy, flow, turn);
            slot.outbound = Some(sa);
        }
        None if template.optional => {}
        None => return Err(missing_sa(policy, slot, view, turn)),
    }
    policy.count(slot.frame.len(), turn.now_ns);
    Ok(())
}

/// Whether the SA's own selector admits the packet.
#[inline]
pub(crate) fn carries(sa: &Sa, slot: &Slot<'_>) -> bool {
    sa.config().selector.is_none_or(|selector| selector.matches(&slot.flow))
}

/// RFC 9611 §3: a packet leaves by the SA for all while its worker has none of its own, and one is
/// asked for if the policy says so.
#[inline]
fn note_whose(whose: Whose, policy: &Policy, flow: &Flow, turn: &mut Turn<'_>) {
    match whose {
        Whose::Own => turn.counters.count_own_sa(),
        Whose::Everybodys if !policy.config().own_sas => {}
        Whose::Everybodys | Whose::Fallback => {
            turn.counters.count_fallback_sa();
            if let Some(cpu) = turn.cpu.filter(|_| policy.config().own_sas) {
                turn.events.need_own_sa(policy, flow, cpu, turn.now_ns, turn.counters);
            }
        }
    }
}

#[cold]
fn missing_sa(policy: &Policy, slot: &mut Slot<'_>, view: &View, turn: &mut Turn<'_>) -> Verdict {
    turn.events.need_sa(policy, &slot.flow, turn.now_ns, turn.counters);
    // There is no use in waiting where nobody is asked, or where no SA would do.
    let may_come = view.acquire_is_heard && policy.can_have_sa();
    slot.stay = may_come.then(|| Stay::begin(slot, policy.config().index, turn.now_ns));
    Verdict::NoSa
}

fn seal_one(slot: &mut Slot<'_>, sa: &Sa, now_ns: u64) -> Result<(), Verdict> {
    if sa.expired() {
        return Err(Verdict::OutSaExpired);
    }
    // 1. Room, in front and behind.
    let frame = &mut slot.frame;
    let inner_len = frame.len();
    let tail_len = esp::pad_len(inner_len) + TRAILER_LEN;
    let ip_len = match sa.outer() {
        OuterTemplate::V4(_) => ipv4::HEADER_LEN,
        OuterTemplate::V6(_) => ipv6::HEADER_LEN,
    };
    let outer_len = ip_len + sa.config().encapsulation.map_or(0, |_| udp::HEADER_LEN);
    if frame.headroom() < outer_len + PREFIX_LEN || frame.tailroom() < tail_len + ICV_LEN {
        return Err(Verdict::NoRoom);
    }
    let inner = InnerHeader::read(frame, slot.flow.is_ipv6(), slot.flow.tos);
    // 2. Numbers.
    let (sequence, iv) = sa.take_numbers().map_err(refusal)?;
    // 3. and 4. The ESP packet.
    let next_header = if inner.is_v6 { protocol::IPV6 } else { protocol::IPV4 };
    encrypt(frame, sa, sequence, iv.to_be_bytes(), next_header).ok_or(Verdict::NoRoom)?;
    // 5. The outer headers.
    put_outer(frame, sa, sequence, &inner).ok_or(Verdict::NoRoom)?;
    sa.count(inner_len, now_ns);
    Ok(())
}

/// The same five steps in transport mode.
fn seal_transport(slot: &mut Slot<'_>, sa: &Sa, now_ns: u64) -> Result<(), Verdict> {
    if sa.expired() {
        return Err(Verdict::OutSaExpired);
    }
    let frame = &mut slot.frame;
    let header = transport::Header::of(frame, &slot.flow)?;
    let payload_len = frame.len() - header.len();
    let tail_len = esp::pad_len(payload_len) + TRAILER_LEN;
    let encapsulation = sa.config().encapsulation;
    let udp_len = encapsulation.map_or(0, |_| udp::HEADER_LEN);
    if frame.headroom() < udp_len + PREFIX_LEN || frame.tailroom() < tail_len + ICV_LEN {
        return Err(Verdict::NoRoom);
    }
    let (sequence, iv) = sa.take_numbers().map_err(refusal)?;
    header.step_aside(frame, udp_len + PREFIX_LEN).ok_or(Verdict::NoRoom)?;
    encrypt(frame, sa, sequence, iv.to_be_bytes(), header.next_header).ok_or(Verdict::NoRoom)?;
    let carried = match &encapsulation {
        Some(udp) => {
            put_udp(frame, (slot.flow.src, slot.flow.dst), udp).ok_or(Verdict::NoRoom)?;
            protocol::UDP
        }
        None => protocol::ESP,
    };
    header.return_to(frame, carried).ok_or(Verdict::NoRoom)?;
    // As Linux counts: without the IP header.
    sa.count(payload_len, now_ns);
    Ok(())
}

fn refusal(refusal: SealRefusal) -> Verdict {
    match refusal {
        SealRefusal::SequenceExhausted => Verdict::SequenceExhausted,
        SealRefusal::NonceExhausted => Verdict::NonceExhausted,
    }
}

/// Steps 3 and 4; `None` only if there is no room, which step 1 excluded.
fn encrypt(
    frame: &mut Frame,
    sa: &Sa,
    sequence: u64,
    iv: [u8; GCM_IV_LEN],
    next_header: u8,
) -> Option<()> {
    let config = sa.config();
    let tail_len = esp::pad_len(frame.len()) + TRAILER_LEN;
    let tail = frame.push_back(tail_len + ICV_LEN)?;
    esp::write_trailer(&mut tail[..tail_len], next_header).ok()?;
    let prefix = frame.push_front(PREFIX_LEN)?;
    let rest = esp::Header::new(config.spi, sequence as u32).emit(prefix).ok()?;
    rest.copy_from_slice(&iv);

    let (_, sealed) = frame.bytes_mut().split_at_mut(PREFIX_LEN);
    let (data, icv) = sealed.split_last_chunk_mut::<ICV_LEN>()?;
    let nonce = esp::gcm_nonce(config.salt, iv);
    if config.extended_sequence {
        config.key.seal(&nonce, &esp::aad_esn(config.spi, sequence), data, icv);
    } else {
        config.key.seal(&nonce, &esp::aad(config.spi, sequence as u32), data, icv);
    }
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
    fn read(frame: &Frame, is_v6: bool, tos: u8) -> InnerHeader {
        let bytes = frame.bytes();
        let (dont_fragment, flow_label) = match is_v6 {
            true => (true, ipv6::Header::over(bytes).map_or(0, |(inner, _)| inner.flow_label())),
            false => (ipv4::Header::over(bytes).is_ok_and(|(inner, _)| inner.dont_fragment()), 0),
        };
        InnerHeader { is_v6, tos, dont_fragment, flow_label }
    }
}

/// Step 5; `None` only if there is no room, which step 1 excluded.
fn put_outer(frame: &mut Frame, sa: &Sa, sequence: u64, inner: &InnerHeader) -> Option<()> {
    let config = sa.config();
    let flags = &config.flags;
    if let Some(encapsulation) = &config.encapsulation {
        put_udp(frame, (config.source, config.destination), encapsulation)?;
    }
    let tos = ecn::encapsulate(inner.tos, flags);
    let payload_len = frame.len();
    match sa.outer() {
        OuterTemplate::V4(template) => {
            let total_len = u16::try_from(ipv4::HEADER_LEN + payload_len).ok()?;
            let dont_fragment = inner.dont_fragment && !flags.no_pmtu_discovery;
            // RFC 6864 §4: only a packet that may be fragmented needs an identification, which
            // must not repeat soon; the sequence number does so after 65 536 packets.
            let id = if dont_fragment { 0 } else { sequence as u16 };
            let header = template.stamp(total_len, id, tos, dont_fragment);
            header.emit(frame.push_front(ipv4::HEADER_LEN)?).ok()?;
        }
        OuterTemplate::V6(template) => {
            let header = template.stamp(u16::try_from(payload_len).ok()?, tos, inner.flow_label);
            header.emit(frame.push_front(ipv6::HEADER_LEN)?).ok()?;
        }
    }
    Some(())
}

/// The UDP header of step 5. RFC 3948 §2.1 wants no checksum, and over IPv4 there is none. Over IPv6
/// there is, as Linux sends it: its receivers drop datagrams without one (RFC 8200 §8.1) unless their
/// socket allows it (RFC 6935), which those of IKE daemons do not.
fn put_udp(
    frame: &mut Frame,
    ends: (IpAddr, IpAddr),
    encapsulation: &UdpEncapsulation,
) -> Option<()> {
    let UdpEncapsulation { source_port, destination_port } = *encapsulation;
    let len = u16::try_from(udp::HEADER_LEN + frame.len()).ok()?;
    let mut header = udp::Header::new(source_port, destination_port, len);
    if let (IpAddr::V6(source), IpAddr::V6(destination)) = ends {
        let pseudo = checksum::pseudo_v6(source, destination, protocol::UDP, len.into());
        header.fill_checksum(pseudo, frame.bytes());
    }
    header.emit(frame.push_front(udp::HEADER_LEN)?).ok()?;
    Some(())
}
