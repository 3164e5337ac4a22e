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
use wire::{ethernet, flow};

use super::{Hours, Known, Like, accepts_all};
use crate::batch::{Slot, Turn, is_same};
use crate::content;
use crate::cpu::LINE;
use crate::decrypt::{decrypt_data, pass_or_refuse};
use crate::ecn;
use crate::fib::Route;
use crate::inspect::{Back, Standing, do_routes_decide_alone, is_welcome};
use crate::open::refusal;
use crate::parse::{self, PlainEsp};
use crate::policy::{Direction, Kind, Policy, Words};
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
    /// What those have in common with them that are to follow, once they are opened.
    like: Like,
    /// What their SA is called, and whether they come in UDP.
    spi: u32,
    destination: IpAddr,
    in_udp: bool,
    by: By,
    pub(super) hours: Hours,
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

/// Who opens the packets of a trail in this turn.
struct Opener<'v> {
    sa: &'v Sa,
    policy: Option<&'v Policy>,
}

/// Whether a packet in UDP comes from elsewhere than its SA says. Out of line, as most are not in UDP.
#[inline(never)]
pub(super) fn has_moved(slot: &Slot<'_>, sa: &Sa) -> bool {
    parse::reread(&slot.frame, ethernet::HEADER_LEN).is_none_or(|outer| {
        let (port, _) = outer.ports();
        sa.has_moved(outer.source().into(), port)
    })
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
        let (code, block) = view.fib.block_in(MAIN, last.flow.dst);
        let Some(Route::Via(hop)) = view.fib.route_of(code) else { return None };
        // Without a router between, each destination has a link address of its own.
        let bits = if hop.gateway.is_some() { block } else { u32::BITS };
        let forward = view.spd.side(Direction::Forward);
        let seen = out.seen_v4().with(forward.seen_v4());
        let mut mask = seen.with(Words::of_destination(bits));
        let by = match sa.hot().if_id {
            0 => match view.spd.lookup_numbered(Direction::Forward, &last.flow) {
                (Lookup::Policy(_), number) => By::Policy(number?),
                _ => return None,
            },
            _ if do_routes_decide_alone(view) => {
                let (code, block) = view.fib.block_in(MAIN, last.flow.src);
                if !Back::by(&[code], view).leads_into(0, sa, view) {
                    return None;
                }
                mask = mask.with(Words::of_source(block));
                By::Route
            }
            _ => By::Standing,
        };
        let like = Like::of(last, mask, way_of(last, view, turn)?, view)?;
        let (spi, destination) = (sa.hot().spi, sa.destination());
        let (in_udp, hours) = (sa.hot().traits.is_encapsulated(), Hours::of(version));
        let trail = Trail { like, spi, destination, in_udp, by, hours };
        trail.opener(view, turn).is_some_and(|opener| is_same(Some(opener.sa), sa)).then_some(trail)
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
        let Some(opener) = self.opener(view, turn) else { return (0, 0) };
        let sa = opener.sa;
        if sa.free_access(turn) != Some(true) {
            return (0, 0);
        }
        let decrypted = self.decrypt(slots, sa, view);
        let slots = &mut slots[..decrypted];
        let looked = self.let_in(slots, &opener, view, turn);
        let others = &mut slots[looked..];
        others.iter_mut().for_each(|slot| park(slot, sa));
        if looked < others.len() {
            self.hours.pause();
        }
        (looked, others.len())
    }

    /// Who opens in this turn, if what comes through the SA is still welcome.
    #[inline]
    fn opener<'v>(&self, view: &'v View, turn: &Turn<'_>) -> Option<Opener<'v>> {
        let sa = view.sad.get(self.spi, self.destination).filter(|sa| is_plain(sa))?;
        let policy = match self.by {
            By::Policy(number) => match view.spd.numbered(number, Direction::Forward) {
                Lookup::Policy(policy)
                    if policy.kind() == Kind::Protect && is_welcome(policy, sa) =>
                {
                    Some(policy)
                }
                _ => return None,
            },
            By::Standing if Standing::of(view, turn).lets_in(sa, Family::V4) => None,
            By::Standing => return None,
            // Of this version of the view that was found out.
            By::Route => None,
        };
        Some(Opener { sa, policy })
    }

    /// An ESP packet of the SA.
    #[inline(always)]
    fn names(&self, slot: &Slot<'_>, view: &View) -> Option<PlainEsp> {
        if slot.ingress != self.like.ingress {
            return None;
        }
        let (frame, mac) = (&slot.frame, self.like.mac);
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

    /// Looks at what was inside of packets and lets those go on that follow, unless they are replays, up to the first that is another,
    /// of which nothing is changed; how many there were before it.
    #[inline(never)]
    fn let_in(
        &self,
        slots: &mut [Slot<'_>],
        opener: &Opener<'_>,
        view: &View,
        turn: &Turn<'_>,
    ) -> usize {
        let Opener { sa, policy } = *opener;
        let (mut looked, mut known) = (0, Known::default());
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
            if let Some(policy) = policy {
                policy.count(turn.seat, packets, bytes, turn.now_ns);
            }
        }
        looked
    }

    /// Takes a packet's content out, and a hop from it, and sends it off.
    #[inline(always)]
    fn send_off(&self, slot: &mut Slot<'_>, content: &content::Plain) -> Result<(), Verdict> {
        let len = usize::from(content.header.total_len());
        slot.frame.narrow(content.at, len).ok_or(Verdict::InnerMalformed)?;
        let packet = slot.frame.bytes_mut().first_chunk_mut().ok_or(Verdict::InnerMalformed)?;
        content.header.take_hop(packet).ok_or(Verdict::TtlExpired)?;
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
    } else if let Some(outer) = parse::reread(&slot.frame, 0) {
        // It is still inside: `accept` takes it out, and asks the headers around it where they come from.
        slot.flow = flow::of_plain_v4(&outer);
    }
}
