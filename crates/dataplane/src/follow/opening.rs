//! Packets that are opened just as those before them were.
//!
//! 1. Is it their SA's? What the window says of its number.
//! 2. Decrypt it.
//! 3. Has what was inside in common with those before what it has to?
//! 4. Its number is accepted, and it leaves.
//!
//! Each is a loop over the batch, that it may have the registers for itself. Whether a packet follows is only known once it is
//! decrypted: from the first on that does not, all are *parked*. They are as `decrypt` would have left them, their
//! numbers not accepted yet, and take their places again where that stage ends.

use std::net::{IpAddr, Ipv4Addr};

use wire::{ethernet, flow, ipv4};
use xsk::Frame;

use super::{Hours, Known, Like, accepts_all};
use crate::batch::{Slot, Turn, is_same};
use crate::content;
use crate::decrypt::decrypt_or_refuse;
use crate::fib::Route;
use crate::inspect::{Standing, is_welcome};
use crate::open::refusal;
use crate::parse::{self, PlainEsp};
use crate::policy::{Direction, Kind, Policy, Words};
use crate::prefix::Family;
use crate::replay::run::Run;
use crate::route::way_of;
use crate::sa::{Mode, Sa};
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
    destination: Ipv4Addr,
    in_udp: bool,
    /// The number of the policy that lets them in; `None` if everything that comes through the SA is welcome.
    policy: Option<u32>,
    pub(super) hours: Hours,
}

/// Who opens the packets of a trail in this turn.
struct Opener<'v> {
    sa: &'v Sa,
    policy: Option<&'v Policy>,
}

/// Whether a packet in UDP with that outer header comes from elsewhere than its SA says. Out of line, as most are not in UDP.
#[inline(never)]
pub(super) fn has_moved(outer: &ipv4::Plain, sa: &Sa) -> bool {
    let (port, _) = outer.ports();
    sa.has_moved(outer.source().into(), port)
}

/// Whether an SA's packets are of the kind that may follow.
pub(super) fn is_plain(sa: &Sa) -> bool {
    sa.hot().mode == Mode::Tunnel && !sa.is_selective()
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
        let mask = seen.with(Words::of_destination(bits));
        let policy = match sa.hot().if_id {
            0 => match view.spd.lookup_numbered(Direction::Forward, &last.flow) {
                (Lookup::Policy(_), number) => Some(number?),
                _ => return None,
            },
            _ => None,
        };
        let like = Like::of(last, mask, way_of(last, view, turn)?, view)?;
        let (spi, IpAddr::V4(destination)) = (sa.hot().spi, sa.destination()) else { return None };
        let (in_udp, hours) = (sa.hot().encapsulated, Hours::of(version));
        let trail = Trail { like, spi, destination, in_udp, policy, hours };
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
        let Some(Opener { sa, policy }) = self.opener(view, turn) else { return (0, 0) };
        if sa.free_access(turn) != Some(true) {
            return (0, 0);
        }
        let followers = self.followers(slots, sa, view);
        let slots = &mut slots[..followers];
        decrypt(slots, sa);
        let looked = self.look(slots, sa, view);
        let (slots, others) = slots.split_at_mut(looked);
        self.accept(slots, sa, policy, turn);
        others.iter_mut().for_each(|slot| park(slot, sa));
        if looked < others.len() {
            self.hours.pause();
        }
        (looked, others.len())
    }

    /// Who opens in this turn, if what comes through the SA is still welcome.
    #[inline]
    fn opener<'v>(&self, view: &'v View, turn: &Turn<'_>) -> Option<Opener<'v>> {
        let sa = view.sad.get(self.spi, self.destination.into()).filter(|sa| is_plain(sa))?;
        let policy = match self.policy {
            Some(number) => match view.spd.numbered(number, Direction::Forward) {
                Lookup::Policy(policy)
                    if policy.kind() == Kind::Protect && is_welcome(policy, sa) =>
                {
                    Some(policy)
                }
                _ => return None,
            },
            None if Standing::of(view, turn).lets_in(sa, Family::V4) => None,
            None => return None,
        };
        Some(Opener { sa, policy })
    }

    /// An ESP packet of the SA.
    #[inline(always)]
    fn names(&self, slot: &Slot<'_>, view: &View) -> Option<PlainEsp> {
        if slot.ingress != self.like.ingress {
            return None;
        }
        let mac = self.like.mac;
        let esp = match self.in_udp {
            false => parse::plain_esp(&slot.frame, mac)?,
            true => parse::plain_esp_in_udp(&slot.frame, mac, &view.encapsulation_ports)?,
        };
        let is_it = esp.spi == self.spi && esp.outer.destination() == self.destination;
        is_it.then_some(esp)
    }

    /// How many of the first packets are to be decrypted, which are left as `open` would have left them.
    #[inline(never)]
    fn followers(&self, slots: &mut [Slot<'_>], sa: &Sa, view: &View) -> usize {
        let mut packets = 0;
        for slot in slots {
            let Some(esp) = self.names(slot, view) else { break };
            if self.in_udp && has_moved(&esp.outer, sa) {
                break;
            }
            let Ok(sequence) = sa.replay().check(esp.sequence) else { break };
            if take_up(slot, esp.at, esp.len(), esp.outer.tos(), sequence).is_none() {
                break;
            }
            packets += 1;
        }
        packets
    }

    /// Looks at what was inside of packets, up to the first that is another, of which nothing is changed; how many it looked at.
    #[inline(never)]
    fn look(&self, slots: &mut [Slot<'_>], sa: &Sa, view: &View) -> usize {
        let (mut packets, mut known) = (0, Known::default());
        for slot in slots {
            if slot.verdict.is_none() {
                let content = content::plain_behind(usize::from(slot.esp_at), slot, sa);
                let Some(content) = content else { break };
                let len = usize::from(content.header.total_len());
                if !self.like.admits(&content.header, &mut known, view)
                    || slot.frame.narrow(content.at, len).is_none()
                {
                    break;
                }
                slot.counted = content.len;
            }
            packets += 1;
        }
        packets
    }

    /// Accepts packets, which leave, unless they are replays.
    #[inline(never)]
    fn accept(&self, slots: &mut [Slot<'_>], sa: &Sa, policy: Option<&Policy>, turn: &Turn<'_>) {
        let mut numbers = Run::new(sa.replay());
        // Their bytes as the SA counts them, and as the policy does.
        let (mut packets, mut contents, mut bytes) = (0, 0, 0);
        for slot in slots.iter_mut().filter(|slot| slot.verdict.is_none()) {
            if let Err(refused) = numbers.commit(slot.sequence) {
                slot.refuse(Some(sa), refusal(refused));
                continue;
            }
            packets += 1;
            contents += u64::from(slot.counted);
            bytes += slot.frame.len() as u64;
            let sent_off = take_hop(&mut slot.frame).and_then(|()| self.like.way.send_off(slot));
            slot.decide(sent_off.err().unwrap_or(Verdict::Opened));
        }
        if packets != 0 {
            sa.count(packets, contents, turn.now_ns, true);
            if let Some(policy) = policy {
                policy.count(turn.seat, packets, bytes, turn.now_ns);
            }
        }
    }
}

/// Leaves a packet as `open` would have: of so many bytes behind its link header, ESP among them from there on, with that type
/// of service and number. `None`, and no change, if there are fewer.
#[inline(always)]
pub(super) fn take_up(
    slot: &mut Slot<'_>,
    esp_at: usize,
    len: usize,
    tos: u8,
    sequence: u64,
) -> Option<()> {
    slot.frame.narrow(ethernet::HEADER_LEN, len)?;
    (slot.sequence, slot.esp_at, slot.flow.tos) = (sequence, esp_at as u16, tos);
    Some(())
}

/// Decrypts packets of one SA.
#[inline(always)]
fn decrypt(slots: &mut [Slot<'_>], sa: &Sa) {
    for slot in slots {
        decrypt_or_refuse(slot, sa);
    }
}

/// Takes a hop from a packet that has some left, and the header that nearly every packet has.
#[inline(always)]
pub(super) fn take_hop(frame: &mut Frame) -> Result<(), Verdict> {
    let header = frame.bytes_mut().first_chunk_mut::<{ ipv4::Plain::LEN }>();
    let header = header.ok_or(Verdict::InnerMalformed)?;
    let plain = ipv4::Plain::reread(header);
    header.first_chunk_mut().and_then(|header| plain.take_hop(header)).ok_or(Verdict::TtlExpired)
}

/// Leaves a packet that was decrypted as `decrypt` would have.
#[cold]
#[inline(never)]
pub(super) fn park<'v>(slot: &mut Slot<'v>, sa: &'v Sa) {
    slot.inbound = Some(sa);
    if slot.verdict.is_some() {
        return;
    }
    if !sa.hot().encapsulated {
        slot.flaw = content::take(slot, sa).err();
    } else if let Some(outer) = parse::reread(&slot.frame, 0) {
        // It is still inside: `accept` takes it out, and asks the headers around it where they come from.
        slot.flow = flow::of_plain_v4(&outer);
    }
}
