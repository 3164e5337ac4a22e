//! Packets that are opened just as those before them were.
//!
//! Whether a packet follows is only known once it is decrypted. One that does not is parked: it is as `decrypt`
//! would have left it, its number not accepted yet, and takes its place again where that stage ends.

use std::net::{IpAddr, Ipv4Addr};

use wire::{esp, ethernet, ipv4, protocol};

use super::{Known, Like, accepts_all};
use crate::batch::{Slot, Turn, is_same};
use crate::claim::Access;
use crate::content;
use crate::decrypt::decrypt_one;
use crate::fib::Route;
use crate::inspect::{Standing, is_welcome};
use crate::open::refusal;
use crate::policy::{Direction, Kind, Policy, Words};
use crate::prefix::Family;
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
    /// What their SA is called.
    spi: u32,
    destination: Ipv4Addr,
    /// The number of the policy that lets them in; `None` if everything that comes through the SA is welcome.
    policy: Option<u32>,
}

/// Who opens the packets of a trail in this turn.
struct Opener<'v> {
    sa: &'v Sa,
    policy: Option<&'v Policy>,
}

/// Whether an SA's packets are of the kind that may follow.
fn is_plain(sa: &Sa) -> bool {
    let hot = sa.hot();
    hot.mode == Mode::Tunnel && !hot.encapsulated && !sa.is_selective()
}

/// What the packets of a turn are to count.
#[derive(Default)]
struct Opened {
    packets: u64,
    /// Their bytes as the SA counts them, and as the policy does.
    contents: u64,
    bytes: u64,
}

/// How a packet ended that is the SA's.
enum End {
    Opened(content::Plain),
    Refused(Verdict),
    /// It was decrypted, and is another.
    Parked,
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
        let like = Like::of(last, version, mask, way_of(last, view, turn)?, view)?;
        let (spi, IpAddr::V4(destination)) = (sa.hot().spi, sa.destination()) else { return None };
        let trail = Trail { like, spi, destination, policy };
        trail.opener(view, turn).is_some_and(|opener| is_same(Some(opener.sa), sa)).then_some(trail)
    }

    /// Opens those of the first packets that follow: how many, and whether the next one is to be parked.
    pub(super) fn follow<'v>(
        &self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &Turn<'_>,
    ) -> (usize, bool) {
        let leads = |slot: &Slot<'_>| self.names(slot).is_some();
        if self.like.version != version || !slots.first().is_some_and(leads) {
            return (0, false);
        }
        let Some(Opener { sa, policy }) = self.opener(view, turn) else { return (0, false) };
        if sa.hot().counted || sa.access(turn) != Access::Alone {
            return (0, false);
        }
        let (mut known, mut opened) = (Known::default(), Opened::default());
        let (mut done, mut is_parked) = (0, false);
        for slot in slots {
            let Some((outer, received)) = self.names(slot) else { break };
            let Ok(sequence) = sa.replay().check(received) else { break };
            match self.open(slot, &outer, sequence, sa, &mut known, view) {
                End::Opened(content) => {
                    opened.packets += 1;
                    opened.contents += u64::from(content.len);
                    opened.bytes += u64::from(content.header.total_len());
                    slot.decide(Verdict::Opened);
                }
                End::Refused(verdict) => slot.refuse(Some(sa), verdict),
                End::Parked => {
                    slot.inbound = Some(sa);
                    slot.flaw = content::take(slot, sa).err();
                    is_parked = true;
                    break;
                }
            }
            done += 1;
        }
        if opened.packets != 0 {
            sa.count(opened.packets, opened.contents, turn.now_ns, true);
            if let Some(policy) = policy {
                policy.count(turn.seat, opened.packets, opened.bytes, turn.now_ns);
            }
        }
        (done, is_parked)
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

    /// The outer flow of an ESP packet with the SA's name, and the number that it shows. Nothing is changed, so that
    /// any other is as it came.
    #[inline(always)]
    fn names(&self, slot: &Slot<'_>) -> Option<(ipv4::Plain, u32)> {
        let outer = self.like.outer(slot)?;
        if outer.protocol() != protocol::ESP || outer.destination() != self.destination {
            return None;
        }
        let frame =
            slot.frame.bytes().get(..ethernet::HEADER_LEN + usize::from(outer.total_len()))?;
        let packet = frame.get(ethernet::HEADER_LEN + ipv4::HEADER_LEN..)?;
        let header = esp::Packet::parse(packet).ok()?.header;
        (header.spi() == self.spi).then(|| (outer, header.sequence()))
    }

    /// Opens a packet.
    #[inline(always)]
    fn open(
        &self,
        slot: &mut Slot<'_>,
        outer: &ipv4::Plain,
        sequence: u64,
        sa: &Sa,
        known: &mut Known,
        view: &View,
    ) -> End {
        if slot.frame.narrow(ethernet::HEADER_LEN, usize::from(outer.total_len())).is_none() {
            return End::Refused(Verdict::EspTruncated);
        }
        slot.link_len = ethernet::HEADER_LEN as u8;
        (slot.sequence, slot.esp_at, slot.flow.tos) =
            (sequence, ipv4::HEADER_LEN as u16, outer.tos());
        if decrypt_one(slot, sa) != Some(true) {
            return End::Refused(Verdict::IntegrityFailed);
        }
        let content = content::plain_in(slot, sa).filter(|content| {
            usize::from(content.header.total_len()) <= self.like.way.mtu()
                && self.like.admits(&content.header, known, view)
        });
        let Some(content) = content else { return End::Parked };
        if let Err(refused) = sa.replay().commit_alone(sequence) {
            return End::Refused(refusal(refused));
        }
        match self.send_off(slot, &content) {
            Some(()) => End::Opened(content),
            None => End::Refused(Verdict::NoRoom),
        }
    }

    /// The packet inside leaves. `None` if there is no room for its link header.
    #[inline(always)]
    fn send_off(&self, slot: &mut Slot<'_>, content: &content::Plain) -> Option<()> {
        slot.frame.narrow(content.at, usize::from(content.header.total_len()))?;
        let changed = slot.frame.bytes_mut().first_chunk_mut::<{ ipv4::HEADER_LEN }>()?;
        changed[8..16].copy_from_slice(&content.header.after_hop()?);
        self.like.way.send_off(slot).ok()
    }
}
