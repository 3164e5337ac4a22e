//! Packets that are sealed just as others before them were.
//!
//! Most often those of one tunnel come one after the other; then all that can be is done once for all of them. Where several tunnels
//! are as busy, packets are sealed in the order in which they came, each by its tunnel's trail.

use wire::ipv4;

use super::aside::gather;
use super::hours::Trial;
use super::lent;
use super::like::{Entry, Known, Like, Mask};
use super::several::{Several, Shares, worth};
use super::{accepts_all, seal};
use crate::batch::{BATCH_PACKETS, Slot, Turn, is_same};
use crate::envelope;
use crate::fib::Fib;
use crate::parse::{self, LastMac};
use crate::plain::PlainHeader;
use crate::policy::{Direction, Fields, Policy};
use crate::route::{Way, way_of};
use crate::sa::{Numbers, Sa};
use crate::spd::{DefaultAction, Lookup};
use crate::verdict::Verdict;
use crate::view::View;

/// What became of the packets of a family before.
pub(super) struct Trails<P: PlainHeader> {
    /// The version of the view that says so.
    version: Option<u64>,
    /// What tells apart of which trail packets are.
    mask: Mask<P>,
    several: Several<Trail<P>>,
}

/// What became of those of one kind.
struct Trail<P: PlainHeader> {
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

/// What a trail has to seal of a batch.
struct Share<'t, 'v, P: PlainHeader> {
    trail: &'t Trail<P>,
    sealer: Sealer<'v>,
    /// Which share has the numbers of the SA: several may be of one.
    lender: usize,
    numbers: Numbers,
    known: Known<P::Bits>,
    packets: u64,
    bytes: u64,
}

impl<P: PlainHeader> Default for Trails<P> {
    fn default() -> Trails<P> {
        Trails { version: None, mask: Mask::of(Fields::none()), several: Several::none() }
    }
}

impl<P: PlainHeader> Trails<P> {
    /// Whether there are some of a version of the view.
    pub(super) fn are_of(&self, version: u64) -> bool {
        self.version == Some(version) && !self.several.is_empty()
    }

    /// Leaves a trail of two packets of one SA, the last of them of the family, if others may follow them; whether it was not there.
    pub(super) fn leave(
        &mut self,
        pair: [&Slot<'_>; 2],
        version: u64,
        view: &View,
        turn: &mut Turn<'_>,
    ) -> bool {
        let [_, last] = pair;
        if self.version != Some(version) {
            *self = Trails { version: Some(version), ..Trails::default() };
        }
        // As nearly always where several tunnels are busy.
        let is_known = self.several.find(self.mask.key_of(last.flow, last.ingress)).is_some();
        if is_known || !self.several.has_room() {
            return false;
        }
        let Some(trail) = Trail::of(pair, &self.mask.fields, view, turn) else { return false };
        if trail.like.mask().fields != self.mask.fields {
            (self.mask, self.several) = (*trail.like.mask(), Several::none());
        }
        self.several.put(trail.like.key(trail.entry.ingress), trail);
        true
    }

    /// Seals those of the first packets that follow, up to one of another trail than the first; how many.
    #[inline]
    pub(super) fn follow<'v>(
        &self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &Turn<'_>,
    ) -> usize {
        let Some(first) = slots.first().filter(|_| self.are_of(version)) else { return 0 };
        let number = self.number(first, parse::mac_bits(first, view), view);
        let trail = number.and_then(|(number, _)| self.several.get(number));
        trail.map_or(0, |trail| trail.follow(slots, view, turn))
    }

    /// Seals those that follow any trail from among others, but for such as come behind another between the same hosts; how many.
    #[inline(never)]
    pub(super) fn gather<'v>(
        &self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &Turn<'_>,
        trial: &mut Trial,
    ) -> usize {
        if !self.are_of(version) {
            return 0;
        }
        let mut shares = Shares::none();
        let numbers = self.share::<true>(slots, &mut shares, view, turn);
        let shares = &mut shares.all;
        lend(shares);
        for (slot, number) in slots.iter_mut().zip(&numbers) {
            let numbers = next_numbers(shares, *number);
            let Share { trail, sealer, .. } = &shares[usize::from(*number)];
            let is_sealed = numbers.is_some_and(|numbers| {
                let (hot, way) = (sealer.sa.hot(), &trail.like.way);
                seal::<P, true>(slot, hot, sealer.usual_outer, numbers, way).is_ok()
            });
            if !is_sealed {
                slot.refuse(Some(sealer.sa), Verdict::NoRoom);
            }
        }
        shares.iter().for_each(|share| share.count(turn));
        let others = slots.len() - numbers.len();
        trial.note(slots.len(), worth(numbers.len(), shares.len(), others));
        numbers.len()
    }

    /// Puts packets first that follow any trail, gives them their numbers, and leaves the rest to whoever has time: how many they are,
    /// and what is to be done.
    pub(super) fn lend<'v>(
        &self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &Turn<'_>,
        trial: &mut Trial,
    ) -> Option<(usize, lent::Sealing)> {
        if !self.are_of(version) {
            return None;
        }
        let first = slots.first()?;
        let number = self.number(first, parse::mac_bits(first, view), view);
        let trail = number.and_then(|(number, _)| self.several.get(number));
        if let Some(way) = trail.and_then(|trail| trail.lend(slots, view, turn)) {
            return Some((slots.len(), lent::Sealing::of_one(slots.len(), way)));
        }
        if !trial.is_on() {
            return None;
        }
        let mut shares = Shares::none();
        let numbers = self.share::<false>(slots, &mut shares, view, turn);
        let shares = &mut shares.all;
        trial.note(slots.len(), numbers.len());
        if numbers.len() < lent::WORTH.min(slots.len()) {
            return None;
        }
        lend(shares);
        for (slot, number) in slots.iter_mut().zip(&numbers) {
            let sa = shares[usize::from(*number)].sealer.sa;
            match next_numbers(shares, *number) {
                Some(numbers) => give(slot, sa, numbers),
                None => slot.refuse(Some(sa), Verdict::NoRoom),
            }
        }
        shares.iter().for_each(|share| share.count(turn));
        let ways = shares.iter().map(|share| share.trail.like.way).collect();
        Some((numbers.len(), lent::Sealing { shares: numbers, ways }))
    }

    /// Puts packets first that follow any trail, but for such as come behind another between the same hosts, and makes them `READY`: which
    /// share each is of.
    #[inline(always)]
    fn share<'t, 'v, const READY: bool>(
        &'t self,
        slots: &mut [Slot<'v>],
        shares: &mut Shares<Share<'t, 'v, P>>,
        view: &'v View,
        turn: &Turn<'_>,
    ) -> lent::Numbers {
        let mut mac = LastMac::new();
        gather(slots, None, |_, slot| {
            let (number, header) = self.number(slot, mac.bits(slot, view), view)?;
            let trail = self.several.get(number)?;
            let share = shares.of(number, |others| Share::of(trail, others, view, turn));
            let (share_number, share) = share?;
            let follows = slot.ingress == trail.entry.ingress
                && trail.admits(&header, &mut share.known, view);
            if !follows || READY && envelope::ready(&mut slot.frame, &header).is_none() {
                return None;
            }
            slot.counted = header.total_len();
            share.packets += 1;
            share.bytes += u64::from(slot.counted);
            Some(share_number)
        })
    }

    /// The number of the trail that a packet may follow, and its header.
    #[inline(always)]
    fn number(&self, slot: &Slot<'_>, mac: u64, view: &View) -> Option<(usize, P)> {
        let header: P = parse::any_header(&slot.frame, mac, view)?;
        Some((self.several.find(self.mask.key(&header, slot.ingress))?, header))
    }
}

impl<'t, 'v, P: PlainHeader> Share<'t, 'v, P> {
    /// That of a trail beside others, if it can seal in this turn.
    fn of(trail: &'t Trail<P>, others: &[Self], view: &'v View, turn: &Turn<'_>) -> Option<Self> {
        let sealer = trail.sealer(view, turn)?;
        let lender = others.iter().position(|other| is_same(Some(other.sealer.sa), sealer.sa));
        // However many of the batch are of the SA, there are numbers for them.
        let is_enough = |numbers: &mut Numbers| numbers.len() >= BATCH_PACKETS;
        if lender.is_none() && sealer.sa.take_alone(is_enough) != Ok(true) {
            return None;
        }
        let lender = lender.unwrap_or(others.len());
        let (numbers, known) = (Numbers::NONE, Known::of_none());
        Some(Share { trail, sealer, lender, numbers, known, packets: 0, bytes: 0 })
    }

    /// Counts its packets.
    fn count(&self, turn: &Turn<'_>) {
        if self.packets != 0 {
            self.sealer.count(self.trail.is_own, self.packets, self.bytes, turn);
        }
    }
}

/// Gives a packet that is lent its numbers.
#[inline(always)]
fn give<'v>(slot: &mut Slot<'v>, sa: &'v Sa, numbers: (u64, u64)) {
    (slot.sequence, slot.iv) = numbers;
    slot.outbound = Some(sa);
}

/// The next numbers for a packet of a share.
#[inline(always)]
fn next_numbers<P: PlainHeader>(shares: &mut [Share<'_, '_, P>], number: u8) -> Option<(u64, u64)> {
    let lender = shares[usize::from(number)].lender;
    shares[lender].numbers.next()
}

/// Takes the numbers for all packets of shares.
fn lend<P: PlainHeader>(shares: &mut [Share<'_, '_, P>]) {
    for lender in 0..shares.len() {
        let of_it = shares.iter().filter(|share| share.lender == lender);
        let packets: u64 = of_it.map(|share| share.packets).sum();
        if packets != 0 {
            let taken =
                shares[lender].sealer.sa.take_alone(|numbers| numbers.take(packets as usize));
            shares[lender].numbers = taken.unwrap_or(Numbers::NONE);
        }
    }
}

impl<P: PlainHeader> Trail<P> {
    /// The trail of two packets, of which at least what a mask looks at tells others apart; `None` if none may follow them.
    fn of(
        [before, last]: [&Slot<'_>; 2],
        mask: &Fields<P::Bits>,
        view: &View,
        turn: &mut Turn<'_>,
    ) -> Option<Trail<P>> {
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
        let seen = P::seen(&out).with(P::seen(&forward)).with(mask);
        let found = view.spd.lookup_numbered(Direction::Out, &last.flow);
        let (policy, slot, mask) = match found {
            (Lookup::Policy(policy), number) => (Some(number?), policy.bundle()?, seen),
            (Lookup::Default(DefaultAction::Accept), _) => {
                let (code, block) = view.fib.block_in(view.vrf_of(last), last.flow.dst);
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
        let trail = Trail { entry, like, policy, slot, is_own, front_len };
        trail.sealer(view, turn).is_some_and(|sealer| is_same(Some(sealer.sa), sa)).then_some(trail)
    }

    /// Seals those of the first packets that follow; how many.
    fn follow<'v>(&self, slots: &mut [Slot<'v>], view: &'v View, turn: &Turn<'_>) -> usize {
        let mut known = Known::of_none();
        let leads = |slot: &Slot<'_>| self.admit(slot, &mut known, view).is_some();
        if !slots.first().is_some_and(leads) {
            return 0;
        }
        let Some(sealer) = self.sealer(view, turn) else { return 0 };
        let (sa, usual_outer) = (sealer.sa, sealer.usual_outer);
        let hot = sa.hot();
        let numbers = sa.take_alone(|numbers| {
            let most = slots.len().min(numbers.len());
            numbers.take(self.followers::<true>(&mut slots[..most], &mut known, view))
        });
        let Some(mut numbers) = numbers.ok().filter(|numbers| numbers.len() != 0) else { return 0 };
        let (mut sealed, mut bytes) = (0, 0);
        for slot in slots {
            let Some(numbers) = numbers.next() else { break };
            if seal::<P, true>(slot, hot, usual_outer, numbers, &self.like.way).is_err() {
                slot.refuse(Some(sa), Verdict::NoRoom);
            }
            sealed += 1;
            bytes += u64::from(slot.counted);
        }
        sealer.count(self.is_own, sealed, bytes, turn);
        sealed as usize
    }

    /// Gives packets their numbers that are to be lent, and says where they leave; `None`, and nothing is done, if any does not follow.
    fn lend<'v>(&self, slots: &mut [Slot<'v>], view: &'v View, turn: &Turn<'_>) -> Option<Way> {
        let sealer = self.sealer(view, turn)?;
        let numbers = sealer.sa.take_alone(|numbers| {
            let is_all = numbers.len() >= slots.len()
                && self.followers::<false>(slots, &mut Known::of_none(), view) == slots.len();
            numbers.take(if is_all { slots.len() } else { 0 })
        });
        let mut numbers = numbers.ok().filter(|numbers| numbers.len() == slots.len())?;
        let mut bytes = 0;
        for slot in &mut *slots {
            bytes += u64::from(slot.counted);
            let Some(numbers) = numbers.next() else { break };
            give(slot, sealer.sa, numbers);
        }
        sealer.count(self.is_own, slots.len() as u64, bytes, turn);
        Some(self.like.way)
    }

    /// Who seals in this turn, found by numbers: a trail refers to nothing in the view. `None` if its SA is not free, or not there.
    #[inline]
    fn sealer<'v>(&self, view: &'v View, turn: &Turn<'_>) -> Option<Sealer<'v>> {
        let sa = match self.is_own {
            true => view.bundles.own(self.slot, turn.worker)?,
            false => view.bundles.sa(self.slot)?,
        };
        let policy = match self.policy {
            Some(number) => match view.spd.numbered(number, Direction::Out) {
                Lookup::Policy(policy) => Some(policy),
                _ => return None,
            },
            None => None,
        };
        let sealer = Sealer { sa, usual_outer: sa.hot().usual_outer(), policy };
        (sa.free_access(turn) == Some(true)).then_some(sealer)
    }

    /// How many of the first packets follow, which are made `READY`.
    ///
    /// Out of line, so that nothing else takes registers from who asks each of them.
    #[inline(never)]
    fn followers<const READY: bool>(
        &self,
        slots: &mut [Slot<'_>],
        known: &mut Known<P::Bits>,
        view: &View,
    ) -> usize {
        let mut packets = 0;
        for slot in slots {
            let Some(header) = self.admit(slot, known, view) else { break };
            slot.counted = header.total_len();
            if READY && envelope::ready(&mut slot.frame, &header).is_none() {
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
        let header: P = parse::any_header(&slot.frame, self.entry.mac, view)?;
        self.admits(&header, known, view).then_some(header)
    }

    /// Whether a packet with this header follows that came by that port.
    #[inline(always)]
    fn admits(&self, header: &P, known: &mut Known<P::Bits>, view: &View) -> bool {
        let len = envelope::len_behind(self.front_len, usize::from(header.total_len()));
        len <= self.like.way.mtu() && self.like.admits(header, known, view)
    }
}

impl Sealer<'_> {
    /// Counts what was sealed, by an SA of the worker's own or not.
    #[inline(always)]
    fn count(&self, is_own: bool, packets: u64, bytes: u64, turn: &Turn<'_>) {
        self.sa.count(packets, bytes, turn.now_ns, true);
        if let Some(policy) = self.policy {
            policy.count(turn.seat, packets, bytes, turn.now_ns);
        }
        if is_own {
            turn.counters.count_own_sa(packets);
        }
    }
}
