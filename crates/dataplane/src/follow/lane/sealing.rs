//! Packets in clear for tunnels whose envelopes are as simple as nearly all are, and among them such as leave in clear.
//!
//! 1. Is it such a packet? What the policies or routes are asked about it; ask for the memory of their answer.
//! 2. Its policy, or its tunnel; ask for the memory of the slot in which its SA is.
//! 3. Its SA; ask for the memory of that. By routes 2 and 3 are one.
//! 4. Is its envelope so simple? Ask for the memory of the SA's words.
//! 5. Its numbers, which are its own from here on.
//! 6. Where does it leave? Seal it, unless it cannot leave: then it is lost, as by the stages, which ask that last as well.
//!
//! Of what is to leave in clear, as a policy says or none says anything, step 2 finds the route; it has nothing to do with 3 to 5
//! but that its policy counts it, and 6 is what it is in the lane for packets in clear alone (`forwarding`).
//!
//! Before 5 nothing about a packet is changed.

mod find;
mod lending;

use wire::{ethernet, ipv4, ipv6};

use super::admit::of_one_vrf;
use super::forwarding::send_off;
use super::inquiry::is_quick;
use crate::batch::{Slot, Turn};
use crate::cpu::{Cache, asked_cache};
use crate::encrypt::TAIL_LEN_MAX;
use crate::follow::busy::Busy;
use crate::follow::hours::Hours;
use crate::follow::seal;
use crate::keys::{self, Supply};
use crate::parse;
use crate::policy::{Direction, Policy};
use crate::route::{Router, Way};
use crate::sa::Sa;
use crate::verdict::Verdict;
use crate::view::View;

use find::{Found, Mixed};

/// Who says by which SA a packet leaves.
#[derive(Clone, Copy)]
enum By {
    Policies,
    Routes,
}

/// It is worth it where it takes more than one packet of so many: what is asked of the others is little beside what it saves those.
pub(in crate::follow) const WORTH: usize = 8;

/// That packets in clear may come here.
pub(in crate::follow) struct Lane {
    pub(in crate::follow) hours: Hours,
    by: By,
    /// Of packets that came, those that others may follow.
    pub(in crate::follow) busy: Busy,
}

impl Lane {
    /// The lane for packets that come behind one that the stages have sealed.
    pub(in crate::follow) fn of(slot: &Slot<'_>, version: u64, view: &View) -> Option<Lane> {
        let sa = slot.outbound.filter(|_| slot.verdict == Some(Verdict::Sealed))?;
        let (out, forward) = (view.spd.side(Direction::Out), view.spd.side(Direction::Forward));
        if !is_plain(sa) || !forward.is_silent() && !is_quick(&forward) {
            return None;
        }
        let by = match view.has_tunnels() {
            true if out.is_silent() => By::Routes,
            false if is_quick(&out) => By::Policies,
            _ => return None,
        };
        Some(Lane { hours: Hours::of(version), by, busy: Busy::default() })
    }

    /// Seals those of the first packets that may come here, and forwards those among them that leave in clear; how many they
    /// are. Where none is to be sealed and no policy lets any pass, there are quicker ways.
    pub(in crate::follow) fn follow<'v>(
        &mut self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &mut Turn<'_>,
    ) -> usize {
        let of_one = of_one_vrf(slots, view).filter(|_| self.hours.are_open(version));
        let Some((vrf, slots)) = of_one else { return 0 };
        match asked_cache() {
            Cache::First => self.pass::<false>(slots, vrf, view, turn),
            Cache::Second => self.pass::<true>(slots, vrf, view, turn),
        }
    }

    /// The same where memory is asked for into the `SECOND` cache, or the first. A function for each, so that no packet asks which it
    /// is: where both are compiled into their caller, the compiler finds what they have in common and asks again.
    #[inline(never)]
    fn pass<'v, const SECOND: bool>(
        &mut self,
        slots: &mut [Slot<'v>],
        vrf: u32,
        view: &'v View,
        turn: &mut Turn<'_>,
    ) -> usize {
        let mut mixed = Mixed::of(vrf);
        let mut found = self.find::<SECOND, false>(slots, view, &mut mixed);
        let came = found.groups().len();
        let packets = match found.is_mixed() || view.vrfs.in_use() {
            false => seal_all::<false, SECOND>(slots, (&found, &mixed), &mut self.busy, view, turn),
            true => self.seal_mixed::<SECOND>(slots, (&mut found, &mut mixed), view, turn),
        };
        self.hours.trial.note(came, packets);
        packets
    }

    /// Seals packets with which others are mixed, or which may be of VRFs; none if all leave in clear and by no policy, which counts them.
    /// Out of line, so that nothing of it takes registers where there are none.
    #[inline(never)]
    fn seal_mixed<'v, const SECOND: bool>(
        &mut self,
        slots: &mut [Slot<'v>],
        (found, mixed): (&mut Found<'v>, &mut Mixed<'v>),
        view: &'v View,
        turn: &mut Turn<'_>,
    ) -> usize {
        // Some may need the stages.
        let mut packets = found.leaving(mixed);
        if packets != found.groups().len() {
            found.part(slots, mixed, view);
            packets = found.leaving(mixed);
        }
        if !found.seals(packets, mixed) {
            return 0;
        }
        let slots = &mut slots[..packets];
        seal_all::<true, SECOND>(slots, (found, mixed), &mut self.busy, view, turn)
    }

    /// How the first packets leave, `LENT` or not.
    #[inline(always)]
    fn find<'v, const SECOND: bool, const LENT: bool>(
        &self,
        slots: &mut [Slot<'v>],
        view: &'v View,
        mixed: &mut Mixed<'v>,
    ) -> Found<'v> {
        match self.by {
            By::Policies => find::by_policies::<SECOND, LENT>(slots, view, mixed),
            By::Routes => find::by_routes::<SECOND>(slots, view, mixed),
        }
    }
}

/// Whether the envelopes of an SA are as simple as most are.
#[inline(always)]
fn is_plain(sa: &Sa) -> bool {
    sa.hot().traits.is_simple()
}

/// Seals packets of which it is known how they leave, up to the first that has to take the stages; how many.
#[inline(always)]
fn seal_all<'v, const MIXED: bool, const SECOND: bool>(
    slots: &mut [Slot<'v>],
    (found, mixed): (&Found<'v>, &Mixed<'v>),
    busy: &mut Busy,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> usize {
    let cache = Cache::second_if(SECOND);
    let plain = set_sas::<MIXED>(slots, found, mixed, cache);
    keys::ask_first(&slots[..plain], need, cache);
    // Not asked for anew, so that what is reckoned from it is reckoned once.
    let now_ns = turn.now_ns;
    let mut numbered = 0;
    for (slot, group) in slots[..plain].iter_mut().zip(found.groups()) {
        let policy = found.exit::<MIXED>(*group, mixed).and_then(|exit| exit.policy);
        if number::<MIXED>(slot, policy, turn, now_ns).is_none() {
            break;
        }
        numbered += 1;
    }
    let (numbered, rest) = slots[..plain].split_at_mut(numbered);
    // What they are is only to be seen now.
    busy.look(numbered, |slot| slot.outbound);
    match MIXED && view.vrfs.in_use() {
        false => encrypt::<MIXED, false, SECOND>(numbered, mixed.codes(), view, turn),
        true => encrypt::<MIXED, true, SECOND>(numbered, mixed.codes(), view, turn),
    }
    // What `choose` is to find out is not there yet.
    rest.iter_mut().for_each(|slot| slot.outbound = None);
    numbered.len()
}

/// Sets the SAs of packets, up to the first whose SA is not plain, and asks for their words: how many they and those in clear between
/// them are.
#[inline(always)]
fn set_sas<'v, const MIXED: bool>(
    slots: &mut [Slot<'v>],
    found: &Found<'v>,
    mixed: &Mixed<'v>,
    cache: Cache,
) -> usize {
    let mut plain = 0;
    for (slot, group) in slots.iter_mut().zip(found.groups()) {
        let Some(exit) = found.exit::<MIXED>(*group, mixed) else { break };
        match exit.sa {
            Some(sa) if is_plain(sa) => {
                sa.prefetch_to_seal(cache);
                slot.outbound = Some(sa);
            }
            None if MIXED => {}
            _ => break,
        }
        plain += 1;
    }
    plain
}

/// Gives a packet its numbers if it is to be sealed, and counts it. `None`, and nothing has changed, if it has to take the stages.
#[inline(always)]
fn number<const MIXED: bool>(
    slot: &mut Slot<'_>,
    policy: Option<&Policy>,
    turn: &Turn<'_>,
    now_ns: u64,
) -> Option<()> {
    let bytes = u64::from(slot.counted);
    match slot.outbound {
        Some(sa) => {
            let alone = sa.free_access(turn)?;
            (slot.sequence, slot.iv) = sa.take_one(alone).ok()?;
            sa.count(1, bytes, now_ns, alone);
        }
        None if MIXED => {}
        None => return None,
    }
    if let Some(policy) = policy {
        policy.count(turn.seat, 1, bytes, now_ns);
    }
    Some(())
}

/// Seals packets that have their numbers, and forwards those in clear by routes of these codes.
#[inline(never)]
fn encrypt<'v, const MIXED: bool, const VRFS: bool, const SECOND: bool>(
    slots: &mut [Slot<'v>],
    codes: &[u32],
    view: &'v View,
    turn: &mut Turn<'_>,
) {
    let (mut router, mut router_in_clear) = (Router::new(), Router::new());
    let mut codes = codes.iter();
    let keys = Supply::of(slots, need, Cache::second_if(SECOND));
    for at in 0..slots.len() {
        keys.step(slots, at);
        let Some((slot, later)) = slots[at..].split_first_mut() else { break };
        if MIXED
            && slot.outbound.is_none()
            && let Some(code) = codes.next()
        {
            let is_v6 = parse::is_v6(&slot.frame, ethernet::HEADER_LEN);
            send_off(slot, *code, is_v6, &mut router_in_clear, view, turn);
            continue;
        }
        if let Err(verdict) = encrypt_one::<MIXED, VRFS>(slot, later, &mut router, view, turn) {
            slot.decide(verdict);
        }
    }
}

/// Seals a packet, and says where it leaves.
#[inline(always)]
fn encrypt_one<'v, const MIXED: bool, const VRFS: bool>(
    slot: &mut Slot<'v>,
    later: &[Slot<'v>],
    router: &mut Router<'v>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> Result<(), Verdict> {
    let sa = slot.outbound.ok_or(Verdict::NoRoom)?;
    let way = router.way::<VRFS>(slot, later, view, turn)?;
    let numbers = (slot.sequence, slot.iv);
    let sealed = match MIXED && parse::is_v6(&slot.frame, ethernet::HEADER_LEN) {
        false => seal::<ipv4::Plain, false>(slot, sa.hot(), sa.hot().usual_outer(), numbers, way),
        true => seal_v6(slot, sa, numbers, way),
    };
    match sealed {
        Err(Verdict::NoRoom) => {
            slot.refuse(Some(sa), Verdict::NoRoom);
            Ok(())
        }
        other => other,
    }
}

/// Out of line, so that nothing of it takes registers from what most packets are.
#[inline(never)]
fn seal_v6(slot: &mut Slot<'_>, sa: &Sa, numbers: (u64, u64), way: &Way) -> Result<(), Verdict> {
    seal::<ipv6::Plain, false>(slot, sa.hot(), sa.hot().usual_outer(), numbers, way)
}

/// What it takes to encrypt a packet.
#[inline(always)]
pub(in crate::follow) fn need<'v>(slot: &Slot<'v>) -> Option<(&'v Sa, usize)> {
    Some((slot.outbound?, usize::from(slot.counted) + TAIL_LEN_MAX))
}
