//! Packets that are sealed just as those before them were.

use wire::ipv4;

use super::aside::gather;
use super::like::{Entry, Known, Like};
use super::{accepts_all, seal};
use crate::batch::{Slot, Turn, is_same};
use crate::envelope;
use crate::fib::Fib;
use crate::parse;
use crate::plain::PlainHeader;
use crate::policy::{Direction, Fields, Kind, Policy};
use crate::prefix::Family;
use crate::route::way_of;
use crate::sa::Sa;
use crate::spd::{DefaultAction, Lookup};
use crate::verdict::Verdict;
use crate::view::View;
use crate::vrfs::MAIN;

/// What became of the packets of a family before.
pub(super) struct Trail<P: PlainHeader> {
    /// The version of the view that says so.
    version: u64,
    entry: Entry,
    /// What those have in common with them that are to follow.
    like: Like<P>,
    /// The number of the policy that protects them; `None` if their route leads into a tunnel.
    policy: Option<u32>,
    /// The slot in which their SA is.
    slot: u32,
    /// It is there for this worker alone (RFC 9611).
    is_own: bool,
    /// Bytes of its envelopes in front of packets.
    front_len: usize,
}

/// Who seals the packets of a trail in this turn.
struct Sealer<'v> {
    sa: &'v Sa,
    usual_outer: Option<&'v ipv4::Template>,
    policy: Option<&'v Policy>,
}

impl<P: PlainHeader> Trail<P> {
    /// The trail of two packets, one after the other, the last of them of the family; `None` if none may follow them.
    pub(super) fn of(
        [before, last]: [&Slot<'_>; 2],
        version: u64,
        view: &View,
        turn: &mut Turn<'_>,
    ) -> Option<Trail<P>> {
        if Family::of(last.flow.src) != P::FAMILY {
            return None;
        }
        // Where each packet has an SA of its own, the next one's is another. This says, too, that it came in
        // clear, and not from the host.
        let sa = last.outbound.filter(|sa| is_same(before.outbound, sa))?;
        if last.verdict != Some(Verdict::Sealed) || !sa.hot().traits.is_simple() {
            return None;
        }
        let front_len = envelope::front_len(sa.hot());
        // Policies that welcomed it would have to be counted.
        let forward = view.spd.side(Direction::Forward);
        if !accepts_all(&forward, &last.flow) {
            return None;
        }
        let out = view.spd.side(Direction::Out);
        let seen = P::seen(&out).with(P::seen(&forward));
        let found = view.spd.lookup_numbered(Direction::Out, &last.flow);
        let (policy, slot, mask) = match found {
            (Lookup::Policy(policy), number) => {
                let slot = policy.bundle().filter(|_| policy.kind() == Kind::Protect);
                (Some(number?), slot?, seen)
            }
            (Lookup::Default(DefaultAction::Accept), _) => {
                let (code, block) = view.fib.block_in(MAIN, last.flow.dst);
                let row = view.tunnels.slots(Fib::tunnel_of(code)?)?;
                (None, row.slot(P::FAMILY)?, seen.with(&Fields::of_destination(block)))
            }
            _ => return None,
        };
        let is_own = view.bundles.own(slot, turn.worker).is_some();
        // With each packet by the SA for all this worker asks for one of its own.
        let wants_own = matches!(found.0, Lookup::Policy(policy) if policy.wants_own_sas());
        if wants_own && !is_own {
            return None;
        }
        let (entry, like) =
            (Entry::of(last, view), Like::of(last, mask, way_of(last, view, turn)?)?);
        let trail = Trail { version, entry, like, policy, slot, is_own, front_len };
        trail.sealer(view, turn).is_some_and(|sealer| is_same(Some(sealer.sa), sa)).then_some(trail)
    }

    /// Whether it is that of a version of the view.
    pub(super) fn is_of(&self, version: u64) -> bool {
        self.version == version
    }

    /// Seals those of the first packets that follow; how many.
    pub(super) fn follow<'v>(
        &self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &Turn<'_>,
    ) -> usize {
        let mut known = Known::of_none();
        let leads = |slot: &Slot<'_>| self.admit(slot, &mut known, view).is_some();
        if self.version != version || !slots.first().is_some_and(leads) {
            return 0;
        }
        let Some(Sealer { sa, usual_outer, policy }) = self.sealer(view, turn) else { return 0 };
        let hot = sa.hot();
        if sa.free_access(turn) != Some(true) {
            return 0;
        }
        let numbers = sa.take_alone(|numbers| {
            let most = slots.len().min(numbers.len());
            numbers.take(self.followers(&mut slots[..most], &mut known, view))
        });
        let Some(mut numbers) = numbers.ok().filter(|numbers| numbers.len() != 0) else { return 0 };
        let (mut sealed, mut bytes) = (0, 0);
        for slot in slots {
            let Some(numbers) = numbers.next() else { break };
            if seal::<P, true>(slot, hot, usual_outer, numbers, &self.like.way).is_none() {
                slot.refuse(Some(sa), Verdict::NoRoom);
            }
            sealed += 1;
            bytes += u64::from(slot.counted);
        }
        sa.count(sealed, bytes, turn.now_ns, true);
        if let Some(policy) = policy {
            policy.count(turn.seat, sealed, bytes, turn.now_ns);
        }
        if self.is_own {
            turn.counters.count_own_sa(sealed);
        }
        sealed as usize
    }

    /// Seals those that follow from among others, but for such as come behind another between the same hosts; how many.
    #[inline(never)]
    pub(super) fn gather<'v>(
        &self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &Turn<'_>,
    ) -> usize {
        let sealer =
            || self.sealer(view, turn).filter(|sealer| sealer.sa.free_access(turn) == Some(true));
        if !self.is_of(version) || sealer().is_none() {
            return 0;
        }
        let mut known = Known::of_none();
        let gathered = gather(slots, |_, slot| self.admit(slot, &mut known, view).map(drop)).len();
        self.follow(&mut slots[..gathered], version, view, turn)
    }

    /// Who seals in this turn, found by numbers: a trail refers to nothing in the view.
    #[inline]
    fn sealer<'v>(&self, view: &'v View, turn: &Turn<'_>) -> Option<Sealer<'v>> {
        let sa = match self.is_own {
            true => view.bundles.own(self.slot, turn.worker)?,
            false => view.bundles.sole(self.slot)?.sa()?,
        };
        let policy = match self.policy {
            Some(number) => match view.spd.numbered(number, Direction::Out) {
                Lookup::Policy(policy) => Some(policy),
                _ => return None,
            },
            None => None,
        };
        Some(Sealer { sa, usual_outer: sa.hot().usual_outer(), policy })
    }

    /// How many of the first packets follow, which are made ready.
    ///
    /// Out of line, so that nothing else takes registers from who asks each of them.
    #[inline(never)]
    fn followers(&self, slots: &mut [Slot<'_>], known: &mut Known<P::Bits>, view: &View) -> usize {
        let mut packets = 0;
        for slot in slots {
            let Some(header) = self.admit(slot, known, view) else { break };
            slot.counted = header.total_len();
            if envelope::ready(&mut slot.frame, &header).is_none() {
                break;
            }
            packets += 1;
        }
        packets
    }

    /// The header of a packet that follows.
    #[inline(always)]
    fn admit(&self, slot: &Slot<'_>, known: &mut Known<P::Bits>, view: &View) -> Option<P> {
        if slot.ingress != self.entry.ingress {
            return None;
        }
        let header: P = parse::plain_header(&slot.frame, self.entry.mac)?;
        let len = envelope::len_behind(self.front_len, usize::from(header.total_len()));
        let follows = len <= self.like.way.mtu() && self.like.admits(&header, known, view);
        follows.then_some(header)
    }
}
