//! Stage `follow`, between `receive` and `parse`: packets that are sealed just as those before them were.
//!
//! Each packet of one fat tunnel is asked the same questions and gives the same answers. Once the other stages
//! have sealed packets with one SA, the worker keeps what they found out as a *trail*: what packets have to
//! have in common with those to be sealed as they were, with which SA, and where they leave. Those that have it are
//! sealed here, each read and written once.
//!
//! ```text
//!  receive ─► follow ─┬─ as those before ──────────────────────────► send
//!                     └─ from the first other one on ─► parse ─► … ─► route
//!                                                                └─ leaves a trail
//! ```
//!
//! A trail ends with its version of the view: of what the view says, no answer is ever out of date. What packets
//! themselves say, each is asked; whose the SA's words are, every turn. Whatever is out of the ordinary
//! (limits, VRFs, UDP around ESP, IPv6, packets that wait or are out with other workers) is left to the other
//! stages, and so is each packet that is to be dropped: nothing is refused here.

use std::net::IpAddr;

use wire::flow::{Flow, Fragment};
use wire::{ethernet, ipv4};
use xsk::Frame;

use crate::batch::{Batch, Slot, Turn, is_same};
use crate::claim::Access;
use crate::classify::is_local;
use crate::encrypt::encrypt_data;
use crate::envelope;
use crate::fib::Fib;
use crate::inspect::may_be_martians;
use crate::parse::{self, plain};
use crate::policy::{Direction, Fields, Kind, Policy, Words};
use crate::prefix::Family;
use crate::route::{Way, way_of};
use crate::sa::Sa;
use crate::spd::{DefaultAction, Lookup};
use crate::verdict::Verdict;
use crate::view::View;
use crate::vrfs::MAIN;

/// What became of the packets before, and what those have in common with them that are to follow.
pub(crate) struct Trail {
    /// The version of the view that says so.
    version: u64,
    /// The port that they come in by, and its address as bits.
    ingress: u16,
    mac: u64,
    /// Those bits of a flow that policies and routes look at, and what they are.
    mask: Words,
    flow: Words,
    /// The number of the policy that protects them; `None` if their route leads into a tunnel.
    policy: Option<u32>,
    /// The slot in which their SA is.
    slot: u32,
    /// Where they leave.
    way: Way,
}

/// Who seals the packets of a trail in this turn.
struct Sealer<'v> {
    sa: &'v Sa,
    template: &'v ipv4::Template,
    policy: Option<&'v Policy>,
}

impl Trail {
    /// The trail of a batch's last packets; `None` if none may follow them.
    pub(crate) fn of(
        batch: &Batch<'_>,
        version: u64,
        view: &View,
        turn: &mut Turn<'_>,
    ) -> Option<Trail> {
        // Where each packet has an SA of its own, the next one's is another.
        let [.., before, last] = &batch.slots[..] else { return None };
        let sa = last.outbound.filter(|sa| is_same(before.outbound, sa))?;
        // It came in clear, and not from the host.
        let is_plain = last.verdict == Some(Verdict::Sealed)
            && last.flow.src.is_ipv4()
            && last.flow.fragment == Fragment::Whole;
        if !is_plain || view.vrfs.in_use() || envelope::plain_outer(sa.hot()).is_none() {
            return None;
        }
        // Policies that welcomed it would have to be counted.
        let forward = view.spd.side(Direction::Forward);
        if !forward.is_silent()
            && !matches!(
                view.spd.lookup(Direction::Forward, &last.flow),
                Lookup::Default(DefaultAction::Accept)
            )
        {
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
        let trail = Trail {
            version,
            ingress: last.ingress,
            mac: parse::mac_bits(last, view),
            mask,
            flow: words(&last.flow).under(mask),
            policy,
            slot,
            way: way_of(last, view, turn)?,
        };
        trail.sealer(view).is_some_and(|sealer| is_same(Some(sealer.sa), sa)).then_some(trail)
    }

    /// Seals the packets of a batch that follow, up to the first of their port that does not; how many.
    pub(crate) fn follow<'v>(
        &self,
        batch: &mut Batch<'v>,
        version: u64,
        view: &'v View,
        turn: &Turn<'_>,
    ) -> usize {
        // Packets that wait go first.
        if self.version != version || turn.hold.len() != 0 {
            return 0;
        }
        let mut slots =
            batch.slots.iter_mut().filter(|slot| slot.ingress == self.ingress).peekable();
        let mut known = None;
        if slots.peek().is_none_or(|slot| self.admit(&slot.frame, &mut known, view).is_none()) {
            return 0;
        }
        let Some(Sealer { sa, template, policy }) = self.sealer(view) else { return 0 };
        if sa.hot().counted || sa.access(turn) != Access::Alone {
            return 0;
        }
        let (mut packets, mut bytes) = (0, 0);
        let taken = sa.take_alone(|numbers| {
            for slot in slots {
                let Some(flow) = self.admit(&slot.frame, &mut known, view) else { break };
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
            turn.counters.count_followed(packets);
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
    fn admit(&self, frame: &Frame, known: &mut Option<u32>, view: &View) -> Option<Flow> {
        let flow = plain(frame, self.mac)?;
        let follows = self.mask.agree(self.flow, words(&flow));
        if !follows || flow.ttl <= 1 || may_be_martians(&flow) {
            return None;
        }
        // Most are for the address that the one before was for.
        let destination = words(&flow).destination();
        if *known != Some(destination) {
            if is_for_host(destination, view) {
                return None;
            }
            *known = Some(destination);
        }
        let len = usize::from(flow.total_len);
        let tail_len = envelope::tail_len(len);
        // Its link header makes room for another.
        let has_room = frame.headroom() >= envelope::FRONT_V4_LEN
            && frame.tailroom() + (frame.len() - ethernet::HEADER_LEN - len) >= tail_len
            && envelope::FRONT_V4_LEN + len + tail_len <= self.way.mtu();
        has_room.then_some(flow)
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
        (sequence, iv): (u64, u64),
    ) -> Option<()> {
        slot.frame.narrow(ethernet::HEADER_LEN, usize::from(flow.total_len))?;
        if !ipv4::decrement_ttl(slot.frame.bytes_mut()) {
            return None;
        }
        let enveloped = envelope::put_v4(&mut slot.frame, sa.hot(), template, (sequence, iv))?;
        encrypt_data(sa.hot(), (sequence, iv), enveloped);
        self.way.send_off(slot).ok()
    }
}

/// By value, and out of line: a flow that a reference leads to would be written to memory for each packet.
#[inline(never)]
fn is_for_host(destination: u32, view: &View) -> bool {
    is_local(&IpAddr::V4(destination.into()), view)
}

#[inline(always)]
fn words(flow: &Flow) -> Words {
    Words::of(&Fields::of(flow, 0))
}
