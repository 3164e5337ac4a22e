//! Packets that are opened just as those before them were.
//!
//! 1. Is it their SA's? What the window says of its number.
//! 2. Decrypt it.
//! 3. Has what was inside in common with those before what it has to? Then its number is accepted, and it leaves.
//!
//! Each is a loop over the batch, that it may have the registers for itself. Whether a packet follows is only known once it is
//! decrypted: from the first on that does not, all are *parked*. They are as `decrypt` would have left them, their
//! numbers not accepted yet, and take their places again where that stage ends.

use std::net::IpAddr;

use wire::esp::ESP_HEADER_LEN;
use wire::{ethernet, ipv4, ipv6};

use super::accepts_all;
use super::hours::Hours;
use super::like::{Entry, Known, Like};
use crate::batch::{Slot, Turn, is_same};
use crate::content;
use crate::cpu::LINE;
use crate::decrypt::{decrypt_data, pass_or_refuse};
use crate::ecn;
use crate::fib::Route;
use crate::inspect::{Back, Standing, do_routes_decide_alone, is_welcome};
use crate::open::refusal;
use crate::parse::{self, PlainEsp};
use crate::plain::PlainHeader;
use crate::policy::{Direction, Fields, Kind, Policy};
use crate::prefix::Family;
use crate::replay::run::Run;
use crate::route::way_of;
use crate::sa::Sa;
use crate::spd::Lookup;
use crate::verdict::Verdict;
use crate::view::View;
use crate::vrfs::MAIN;

/// What became of the packets before.
pub(super) struct Trail {
    entry: Entry,
    /// What their SA is called, and whether they come in UDP.
    spi: u32,
    destination: IpAddr,
    in_udp: bool,
    /// What those of a family have in common with them that are to follow, once they are opened.
    v4: Option<Inner<ipv4::Plain>>,
    v6: Option<Inner<ipv6::Plain>>,
    pub(super) hours: Hours,
}

/// What was inside, of one family.
struct Inner<P: PlainHeader> {
    like: Like<P>,
    by: By,
}

/// By whose word they come in.
#[derive(Clone, Copy)]
enum By {
    /// That of a policy, which has this number.
    Policy(u32),
    /// Everything is welcome that comes through the SA.
    Standing,
    /// The route to where they come from leads into the SA's tunnel.
    Route,
}

/// Packets from the one whose first two lines are fetched into the cache of level 1 to the one that is decrypted: where packets are long
/// none has stayed there, and what the cipher begins with is in their headers.
const AHEAD: usize = 2;

/// Who counts what comes in, if a policy does.
type Counting<'v> = Option<&'v Policy>;

/// Whether a packet in UDP comes from elsewhere than its SA says. Out of line, as most are not in UDP.
#[inline(never)]
pub(super) fn has_moved(slot: &Slot<'_>, sa: &Sa) -> bool {
    let outer = parse::reread::<ipv4::Plain>(&slot.frame, ethernet::HEADER_LEN);
    outer.is_none_or(|outer| sa.has_moved(outer.source().into(), outer.ports().0))
}

/// Whether an SA's packets are of the kind that may follow.
pub(super) fn is_plain(sa: &Sa) -> bool {
    sa.hot().traits.is_simple() && !sa.is_selective()
}

impl Trail {
    /// The trail of two packets, one after the other; `None` if none may follow them.
    pub(super) fn of(
        [before, last]: [&Slot<'_>; 2],
        version: u64,
        view: &View,
        turn: &mut Turn<'_>,
    ) -> Option<Trail> {
        let sa = last.inbound.filter(|sa| is_same(before.inbound, sa))?;
        let out = view.spd.side(Direction::Out);
        let is_simple = last.verdict == Some(Verdict::Opened) && is_plain(sa);
        if !is_simple || !accepts_all(&out, &last.flow) {
            return None;
        }
        let (v4, v6) = match Family::of(last.flow.src) {
            Family::V4 => (Some(Inner::of(last, sa, view, turn)?), None),
            Family::V6 => (None, Some(Inner::of(last, sa, view, turn)?)),
        };
        let (entry, hours) = (Entry::of(last, view), Hours::of(version));
        let (spi, destination) = (sa.hot().spi, sa.destination());
        let in_udp = sa.hot().traits.is_encapsulated();
        let trail = Trail { entry, spi, destination, in_udp, v4, v6, hours };
        is_same(trail.sa(view), sa).then_some(trail)
    }

    /// Whether none takes its place that packets with a family inside leave: it says itself, in this version of the view, which of
    /// them follow, and is of use or pauses.
    pub(super) fn keeps_place(&self, family: Family, is_of_use: bool, version: u64) -> bool {
        let knows = match family {
            Family::V4 => self.v4.is_some(),
            Family::V6 => self.v6.is_some(),
        };
        knows && self.hours.are_of(version) && (is_of_use || self.hours.are_paused(version))
    }

    /// Whether it is of packets of the same SA as another.
    pub(super) fn is_beside(&self, other: &Trail) -> bool {
        self.hours.are_of(other.hours.version)
            && (self.spi, self.destination) == (other.spi, other.destination)
            && self.entry.ingress == other.entry.ingress
    }

    /// With what another that is [beside](Trail::is_beside) says of the family of which it says nothing itself.
    pub(super) fn with(self, other: Trail) -> Trail {
        Trail { v4: self.v4.or(other.v4), v6: self.v6.or(other.v6), ..self }
    }

    /// The SA of its packets.
    fn sa<'v>(&self, view: &'v View) -> Option<&'v Sa> {
        view.sad.get(self.spi, self.destination).filter(|sa| is_plain(sa)).map(|sa| &**sa)
    }

    /// Opens those of the first packets that follow: how many, and how many behind them are to be parked.
    pub(super) fn follow<'v>(
        &mut self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &Turn<'_>,
    ) -> (usize, usize) {
        let leads = |slot: &Slot<'_>| self.names(slot, view).is_some();
        let leads = self.hours.are_of(version) && slots.first().is_some_and(leads);
        if !leads || !self.hours.open(version) {
            return (0, 0);
        }
        let Some(sa) = self.sa(view) else { return (0, 0) };
        let v4 = self.v4.as_ref().and_then(|inner| Some((inner, inner.counting(sa, view, turn)?)));
        let v6 = self.v6.as_ref().and_then(|inner| Some((inner, inner.counting(sa, view, turn)?)));
        if v4.is_none() && v6.is_none() || sa.free_access(turn) != Some(true) {
            return (0, 0);
        }
        let decrypted = self.decrypt(slots, sa, view);
        let slots = &mut slots[..decrypted];
        let mut looked = 0;
        loop {
            let before = looked;
            if let Some((inner, counting)) = v4 {
                looked += inner.let_in(&mut slots[looked..], sa, counting, view, turn);
            }
            if let Some((inner, counting)) = v6 {
                looked += inner.let_in(&mut slots[looked..], sa, counting, view, turn);
            }
            if looked == before || looked == slots.len() {
                break;
            }
        }
        let others = &mut slots[looked..];
        others.iter_mut().for_each(|slot| park(slot, sa));
        if looked < others.len() {
            self.hours.pause();
        }
        (looked, others.len())
    }

    /// An ESP packet of the SA.
    #[inline(always)]
    fn names(&self, slot: &Slot<'_>, view: &View) -> Option<PlainEsp> {
        if slot.ingress != self.entry.ingress {
            return None;
        }
        let (frame, mac) = (&slot.frame, self.entry.mac);
        let (is_ours, esp) = match self.destination {
            IpAddr::V4(ours) => {
                let (destination, esp) = match self.in_udp {
                    false => parse::plain_esp(frame, mac)?,
                    true => parse::plain_esp_in_udp(frame, mac, &view.encapsulation_ports)?,
                };
                (destination == ours, esp)
            }
            IpAddr::V6(ours) => {
                let (destination, esp) = parse::plain_esp_v6(frame, mac)?;
                (destination == ours, esp)
            }
        };
        (is_ours && esp.spi == self.spi).then_some(esp)
    }

    /// Decrypts the first packets that are their SA's, up to one of which its window may not want to hear; how many.
    #[inline(never)]
    fn decrypt(&self, slots: &mut [Slot<'_>], sa: &Sa, view: &View) -> usize {
        let mut packets = 0;
        for at in 0..slots.len() {
            if let Some(later) = slots.get(at + AHEAD) {
                later.frame.fetch(0);
                later.frame.fetch(LINE);
            }
            let slot = &mut slots[at];
            let Some(esp) = self.names(slot, view) else { break };
            if !ecn::leaves_alone(esp.tos, &sa.hot().traits.flags())
                || self.in_udp && has_moved(slot, sa)
            {
                break;
            }
            let Ok(sequence) = sa.replay().check(esp.sequence) else { break };
            if take_up(slot, esp.at, esp.len(), sequence).is_none() {
                break;
            }
            let payload = slot.frame.bytes_mut().get_mut(esp.at + ESP_HEADER_LEN..);
            let decrypted = payload.and_then(|payload| {
                decrypt_data(sa.hot(), esp.spi, sequence, payload, esp.ciphertext_len)
            });
            pass_or_refuse(slot, sa, decrypted);
            packets += 1;
        }
        packets
    }
}

impl<P: PlainHeader> Inner<P> {
    /// What packets have in common with one that came through an SA; `None` if none may follow it.
    fn of(slot: &Slot<'_>, sa: &Sa, view: &View, turn: &mut Turn<'_>) -> Option<Inner<P>> {
        let (out, forward) = (view.spd.side(Direction::Out), view.spd.side(Direction::Forward));
        let (code, block) = view.fib.block_in(MAIN, slot.flow.dst);
        let Some(Route::Via(hop)) = view.fib.route_of(code) else { return None };
        // Without a router between, each destination has a link address of its own.
        let bits = if hop.gateway.is_some() { block } else { u32::MAX };
        let mut mask = P::seen(&out).with(P::seen(&forward)).with(&Fields::of_destination(bits));
        let by = match sa.hot().if_id {
            0 => match view.spd.lookup_numbered(Direction::Forward, &slot.flow) {
                (Lookup::Policy(_), number) => By::Policy(number?),
                _ => return None,
            },
            _ if do_routes_decide_alone(view) => {
                let (code, block) = view.fib.block_in(MAIN, slot.flow.src);
                if !Back::by(&[code], view).leads_into(0, sa, view) {
                    return None;
                }
                mask = mask.with(&Fields::of_source(block));
                By::Route
            }
            _ => By::Standing,
        };
        let like = Like::of(slot, mask, way_of(slot, view, turn)?)?;
        let inner = Inner { like, by };
        inner.counting(sa, view, turn).is_some().then_some(inner)
    }

    /// Who counts what comes in, if what comes through the SA is still welcome in this turn.
    #[inline]
    fn counting<'v>(&self, sa: &Sa, view: &'v View, turn: &Turn<'_>) -> Option<Counting<'v>> {
        match self.by {
            By::Policy(number) => match view.spd.numbered(number, Direction::Forward) {
                Lookup::Policy(policy) => {
                    let lets_in = policy.kind() == Kind::Protect && is_welcome(policy, sa);
                    lets_in.then_some(Some(policy))
                }
                _ => None,
            },
            By::Standing => Standing::of(view, turn).lets_in(sa, P::FAMILY).then_some(None),
            // Of this version of the view that was found out.
            By::Route => Some(None),
        }
    }

    /// Looks at what was inside of packets and lets those go on that follow, unless they are replays, up to the first that is another,
    /// of which nothing is changed; how many there were before it.
    #[inline(never)]
    fn let_in(
        &self,
        slots: &mut [Slot<'_>],
        sa: &Sa,
        counting: Counting<'_>,
        view: &View,
        turn: &Turn<'_>,
    ) -> usize {
        let (mut looked, mut known) = (0, Known::of_none());
        let mut numbers = Run::new(sa.replay());
        // Their bytes as the SA counts them, and as the policy does.
        let (mut packets, mut contents, mut bytes) = (0, 0, 0);
        for slot in slots {
            if slot.verdict.is_none() {
                let content = content::plain_behind(usize::from(slot.esp_at), slot);
                let Some(content) = content else { break };
                if !self.like.admits(&content.header, &mut known, view) {
                    break;
                }
                match numbers.commit(slot.sequence) {
                    Ok(()) => {
                        packets += 1;
                        contents += u64::from(content.len);
                        bytes += u64::from(content.header.total_len());
                        let sent_off = self.send_off(slot, &content);
                        slot.decide(sent_off.err().unwrap_or(Verdict::Opened));
                    }
                    Err(refused) => slot.refuse(Some(sa), refusal(refused)),
                }
            }
            looked += 1;
        }
        drop(numbers);
        if packets != 0 {
            sa.count(packets, contents, turn.now_ns, true);
            if let Some(policy) = counting {
                policy.count(turn.seat, packets, bytes, turn.now_ns);
            }
        }
        looked
    }

    /// Takes a packet's content out, and a hop from it, and sends it off.
    #[inline(always)]
    fn send_off(&self, slot: &mut Slot<'_>, content: &content::Plain<P>) -> Result<(), Verdict> {
        let len = usize::from(content.header.total_len());
        slot.frame.narrow(content.at, len).ok_or(Verdict::InnerMalformed)?;
        content.header.take_hop_of(slot.frame.bytes_mut()).ok_or(Verdict::TtlExpired)?;
        self.like.way.send_off(slot)
    }
}

/// Leaves a packet as `open` would have: of so many bytes behind its link header, ESP among them from there on, with that
/// number. `None`, and no change, if there are fewer. Its type of service is left out, as nothing of it is carried inwards.
#[inline(always)]
pub(super) fn take_up(slot: &mut Slot<'_>, esp_at: usize, len: usize, sequence: u64) -> Option<()> {
    slot.frame.narrow(ethernet::HEADER_LEN, len)?;
    (slot.sequence, slot.esp_at) = (sequence, esp_at as u16);
    Some(())
}

/// Leaves a packet that was decrypted as `decrypt` would have.
#[cold]
#[inline(never)]
pub(super) fn park<'v>(slot: &mut Slot<'v>, sa: &'v Sa) {
    slot.inbound = Some(sa);
    if slot.verdict.is_some() {
        return;
    }
    if !sa.hot().traits.is_encapsulated() {
        slot.flaw = content::take(slot, sa).err();
    } else if let Some(outer) = parse::reread::<ipv4::Plain>(&slot.frame, 0) {
        // It is still inside: `accept` takes it out, and asks the headers around it where they come from.
        slot.flow = outer.flow();
    }
}
