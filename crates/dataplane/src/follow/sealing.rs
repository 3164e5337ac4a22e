//! Packets that are sealed just as those before them were.

use wire::flow::Flow;
use wire::ipv4;

use super::{Known, Like, accepts_all, has_room};
use crate::batch::{Slot, Turn, is_same};
use crate::claim::Access;
use crate::encrypt::encrypt_data;
use crate::envelope;
use crate::fib::Fib;
use crate::policy::{Direction, Kind, Policy, Words};
use crate::prefix::Family;
use crate::route::way_of;
use crate::sa::Sa;
use crate::spd::{DefaultAction, Lookup};
use crate::verdict::Verdict;
use crate::view::View;
use crate::vrfs::MAIN;

/// What became of the packets before.
pub(super) struct Trail {
    /// What those have in common with them that are to follow.
    like: Like,
    /// The number of the policy that protects them; `None` if their route leads into a tunnel.
    policy: Option<u32>,
    /// The slot in which their SA is.
    slot: u32,
}

/// Who seals the packets of a trail in this turn.
struct Sealer<'v> {
    sa: &'v Sa,
    template: &'v ipv4::Template,
    policy: Option<&'v Policy>,
}

impl Trail {
    /// The trail of two packets, one after the other; `None` if none may follow them.
    pub(super) fn of(
        [before, last]: [&Slot<'_>; 2],
        version: u64,
        view: &View,
        turn: &mut Turn<'_>,
    ) -> Option<Trail> {
        // Where each packet has an SA of its own, the next one's is another. This says, too, that it came in
        // clear, and not from the host.
        let sa = last.outbound.filter(|sa| is_same(before.outbound, sa))?;
        if last.verdict != Some(Verdict::Sealed) || envelope::plain_outer(sa.hot()).is_none() {
            return None;
        }
        // Policies that welcomed it would have to be counted.
        let forward = view.spd.side(Direction::Forward);
        if !accepts_all(&forward, &last.flow) {
            return None;
        }
        let out = view.spd.side(Direction::Out);
        let seen = out.seen_v4().with(forward.seen_v4());
        let (policy, slot, mask) = match view.spd.lookup_numbered(Direction::Out, &last.flow) {
            (Lookup::Policy(policy), number) => {
                let is_simple = policy.kind() == Kind::Protect && !policy.wants_own_sas();
                (Some(number?), policy.bundle().filter(|_| is_simple)?, seen)
            }
            (Lookup::Default(DefaultAction::Accept), _) => {
                let (code, block) = view.fib.block_in(MAIN, last.flow.dst);
                let row = view.tunnels.slots(Fib::tunnel_of(code)?)?;
                (None, row.slot(Family::V4)?, seen.with(Words::of_destination(block)))
            }
            _ => return None,
        };
        let like = Like::of(last, version, mask, way_of(last, view, turn)?, view)?;
        let trail = Trail { like, policy, slot };
        trail.sealer(view).is_some_and(|sealer| is_same(Some(sealer.sa), sa)).then_some(trail)
    }

    /// Seals those of the first packets that follow; how many.
    pub(super) fn follow<'v>(
        &self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &Turn<'_>,
    ) -> usize {
        let mut known = Known::default();
        let leads = |slot: &Slot<'_>| self.admit(slot, &mut known, view).is_some();
        if self.like.version != version || !slots.first().is_some_and(leads) {
            return 0;
        }
        let Some(Sealer { sa, template, policy }) = self.sealer(view) else { return 0 };
        if sa.hot().counted || sa.access(turn) != Access::Alone {
            return 0;
        }
        let (mut packets, mut bytes) = (0, 0);
        let taken = sa.take_alone(|numbers| {
            for slot in slots {
                let Some(flow) = self.admit(slot, &mut known, view) else { break };
                let Some(number) = numbers.next() else { break };
                match self.seal(slot, &flow, sa, template, number) {
                    Some(()) => slot.decide(Verdict::Sealed),
                    // `admit` left nothing of the kind; whatever it is, it does not leave in clear.
                    None => slot.refuse(Some(sa), Verdict::NoRoom),
                }
                packets += 1;
                bytes += u64::from(flow.total_len);
            }
        });
        // Without a number, nothing was done.
        if taken.is_ok() && packets != 0 {
            sa.count(packets, bytes, turn.now_ns, true);
            if let Some(policy) = policy {
                policy.count(turn.seat, packets, bytes, turn.now_ns);
            }
        }
        packets as usize
    }

    /// Who seals in this turn, found by numbers: a trail refers to nothing in the view.
    #[inline]
    fn sealer<'v>(&self, view: &'v View) -> Option<Sealer<'v>> {
        let sa = view.bundles.sole(self.slot)?.sa()?;
        let template = envelope::plain_outer(sa.hot())?;
        let policy = match self.policy {
            Some(number) => match view.spd.numbered(number, Direction::Out) {
                Lookup::Policy(policy) => Some(policy),
                _ => return None,
            },
            None => None,
        };
        Some(Sealer { sa, template, policy })
    }

    /// The flow of a packet that follows. Nothing is changed, so that any other is as it came.
    #[inline(always)]
    fn admit(&self, slot: &Slot<'_>, known: &mut Known, view: &View) -> Option<Flow> {
        let flow = self.like.outer(slot)?;
        if !self.like.admits(&flow, known, view) {
            return None;
        }
        let fits = envelope::len_v4(usize::from(flow.total_len)) <= self.like.way.mtu();
        (fits && has_room(&slot.frame, flow.total_len)).then_some(flow)
    }

    /// Seals a packet. `None` if there is no room for what goes around it.
    #[inline(always)]
    #[must_use = "a packet that was not encrypted must not leave"]
    fn seal(
        &self,
        slot: &mut Slot<'_>,
        flow: &Flow,
        sa: &Sa,
        template: &ipv4::Template,
        numbers: (u64, u64),
    ) -> Option<()> {
        let (hot, way) = (sa.hot(), &self.like.way);
        let frame = envelope::frame_v4(&mut slot.frame, flow.total_len, hot, template, numbers)?;
        way.write(frame.link);
        encrypt_data(hot, numbers, frame.enveloped);
        slot.egress = Some(way.port());
        Some(())
    }
}
