//! ESP for this host in tunnels, with packets inside that go on in clear.
//!
//! 1. Is it such a packet? What its SA is called; ask for the database's memory there.
//! 2. Its SA; ask for the memory of that.
//! 3. Are its packets what most are? Ask for the memory of the SA's words.
//! 4. What the window says of its number.
//! 5. Decrypt it. If its outer header is marked, carry that inwards. Is what is inside as nearly all is? What the policies are
//!    asked about it; ask for the memory of their answer.
//! 6. Do they let it in, and go on?
//! 7. Its number is accepted. Where does it leave?
//!
//! Before 5 nothing about a packet is changed. From the first one on that is something else inside, all are *parked*: they
//! are as `decrypt` would have left them.

mod inside;
mod named;

use wire::{Overlay, ipv4, ipv6, udp};
use xsk::Frame;

use super::inquiry::is_quick;
use crate::batch::{Slot, Turn};
use crate::claim::Access;
use crate::cpu::{Cache, asked_cache};
use crate::decrypt::decrypt_or_refuse;
use crate::envelope::PREFIX_LEN;
use crate::follow::busy::Busy;
use crate::follow::hours::Hours;
use crate::follow::opening::{Marks, has_moved, is_plain, park, take_up};
use crate::keys::{self, Supply};
use crate::open::refusal;
use crate::parse;
use crate::plain::PlainHeader;
use crate::policy::{Direction, Policy};
use crate::replay::Refusal;
use crate::route::Router;
use crate::sa::Sa;
use crate::verdict::Verdict;
use crate::view::View;

use inside::{Answers, Inside};
use named::{Named, name};

/// It is worth it where it takes more than one packet of so many: the others are decrypted for nothing but to be parked.
pub(in crate::follow) const WORTH: usize = 2;

/// That ESP may come here.
pub(in crate::follow) struct Lane {
    pub(in crate::follow) hours: Hours,
    /// Of packets that came, those that others may follow.
    pub(in crate::follow) busy: Busy,
}

impl Lane {
    /// The lane for packets that come behind one that the stages have opened.
    pub(in crate::follow) fn of(slot: &Slot<'_>, version: u64, view: &View) -> Option<Lane> {
        let sa = slot.inbound.filter(|_| slot.verdict == Some(Verdict::Opened))?;
        let out = view.spd.side(Direction::Out);
        let forward = view.spd.side(Direction::Forward);
        let is_let_in = sa.hot().if_id != 0 || is_quick(&forward);
        let is_it = is_plain(sa) && is_let_in && (out.is_silent() || is_quick(&out));
        is_it.then(|| Lane { hours: Hours::of(version), busy: Busy::default() })
    }

    /// Opens those of the first packets that may come here: how many, and how many behind them are to be parked.
    pub(in crate::follow) fn follow<'v>(
        &mut self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &mut Turn<'_>,
    ) -> (usize, usize) {
        if slots.is_empty() || !self.hours.are_open(version) {
            return (0, 0);
        }
        match asked_cache() {
            Cache::First => self.pass::<false>(slots, view, turn),
            Cache::Second => self.pass::<true>(slots, view, turn),
        }
    }

    /// The same where memory is asked for into the `SECOND` cache, or the first: a function for each, as for what is sealed.
    #[inline(never)]
    fn pass<'v, const SECOND: bool>(
        &mut self,
        slots: &mut [Slot<'v>],
        view: &'v View,
        turn: &mut Turn<'_>,
    ) -> (usize, usize) {
        let cache = Cache::second_if(SECOND);
        let named = name(slots, view, cache);
        let named_len = named.len();
        let slots = &mut slots[..named_len];
        let (checked, marks) = check_all(slots, &named, view, turn, cache);
        let (slots, rest) = slots.split_at_mut(checked);
        // What `classify` is to find out is not there yet.
        rest.iter_mut().for_each(|slot| slot.inbound = None);
        let opened = open(slots, marks, view, turn);
        self.hours.trial.note(if checked == 0 { named_len } else { checked }, opened);
        // What they are is only to be seen now.
        self.busy.look(&mut slots[..opened], |slot| slot.inbound);
        (opened, checked - opened)
    }
}

/// Finds the SAs of packets, up to the first that has to take the stages, and asks their windows. Some are refused, by those or as
/// there is no such SA. How many packets there are, and what their outer headers say.
#[inline(always)]
fn check_all<'v>(
    slots: &mut [Slot<'v>],
    named: &[Named<'v>],
    view: &'v View,
    turn: &Turn<'_>,
    cache: Cache,
) -> (usize, Marks) {
    for (slot, named) in slots.iter_mut().zip(named) {
        if let Some(sa) = named.find(slot, view) {
            sa.prefetch(cache);
            slot.inbound = Some(sa);
        }
    }
    let (mut plain, mut marks) = (0, Marks::default());
    loop {
        (plain, marks) = ask_windows(slots, named, plain, marks, cache);
        let Some((slot, named)) = slots.get_mut(plain).zip(named.get(plain)) else { break };
        if !pass_over(slot, named) {
            break;
        }
        plain += 1;
    }
    let slots = &mut slots[..plain];
    keys::ask_first(slots, need, cache);
    let mut checked = 0;
    loop {
        for (slot, named) in slots.iter_mut().zip(named).skip(checked) {
            let Some(Ok(sequence)) = check(slot, named, turn) else { break };
            if take_up(slot, named.esp_at.into(), named.len.into(), sequence).is_none() {
                break;
            }
            checked += 1;
        }
        let Some((slot, named)) = slots.get_mut(checked).zip(named.get(checked)) else { break };
        if !refuses(slot, named, view, turn) {
            break;
        }
        checked += 1;
    }
    (checked, marks)
}

/// Asks for what tells whether windows want to hear of packets, from one on up to the first that [`pass_over`] is to look at: where
/// that is, and what the outer headers before it say.
#[inline(always)]
fn ask_windows(
    slots: &[Slot<'_>],
    named: &[Named<'_>],
    first: usize,
    mut marks: Marks,
    cache: Cache,
) -> (usize, Marks) {
    let mut plain = first;
    for (slot, named) in slots[first..].iter().zip(&named[first..]) {
        let Some(sa) = slot.inbound.filter(|sa| is_plain(sa)) else { break };
        if sa.hot().traits.is_encapsulated() != named.is_in_udp() {
            break;
        }
        marks.note(named.tos);
        marks.note_sa(sa);
        sa.prefetch_to_open(cache);
        sa.replay().prefetch(named.received, cache);
        plain += 1;
    }
    (plain, marks)
}

/// Passes over what there is no SA for, or not in that form; whether it did. It is without an SA now, and refused later: who has a
/// verdict must not be sorted.
#[cold]
#[inline(never)]
fn pass_over(slot: &mut Slot<'_>, named: &Named<'_>) -> bool {
    let is_its = |sa: &&Sa| sa.hot().traits.is_encapsulated() == named.is_in_udp();
    slot.inbound = slot.inbound.filter(|sa| is_its(sa) || !is_plain(sa));
    slot.inbound.is_none()
}

/// What the window of a packet's SA says of its number; `None` if it has to take the stages.
#[inline(always)]
fn check(slot: &Slot<'_>, named: &Named<'_>, turn: &Turn<'_>) -> Option<Result<u64, Refusal>> {
    let sa = slot.inbound.filter(|sa| sa.free_access(turn).is_some())?;
    let stays = !(named.is_in_udp() && has_moved(slot, sa));
    stays.then(|| sa.replay().check(named.received))
}

/// Refuses a packet if its SA's window does, which then has nothing more to do with the packet, or if none is for it; whether it did.
#[cold]
#[inline(never)]
fn refuses(slot: &mut Slot<'_>, named: &Named<'_>, view: &View, turn: &Turn<'_>) -> bool {
    if slot.inbound.is_none() {
        // See `pass_over`.
        let sa = named.find(slot, view).map(|sa| &**sa);
        slot.refuse(sa, sa.map_or(Verdict::NoState, |_| Verdict::EncapsulationMismatch));
        return true;
    }
    let Some(Err(refused)) = check(slot, named, turn) else { return false };
    slot.refuse(slot.inbound, refusal(refused));
    slot.inbound = None;
    true
}

/// What it takes to decrypt a packet.
#[inline(always)]
fn need<'v>(slot: &Slot<'v>) -> Option<(&'v Sa, usize)> {
    Some((slot.inbound?, usize::from(slot.counted)))
}

/// Opens packets that the windows let pass; how many, up to the first that has to be parked.
#[inline(never)]
fn open<'v>(slots: &mut [Slot<'v>], marks: Marks, view: &'v View, turn: &mut Turn<'_>) -> usize {
    decrypt(slots);
    let carried = marks.carry_inwards(slots, |_, slot| slot.inbound);
    let mut inside = Inside::of(view, turn);
    let looked = inside.look_at_all(&mut slots[..carried]);
    let accepted = match (inside.has_v6(), view.vrfs.in_use()) {
        (false, false) => accept_all::<false, false>(&mut slots[..looked], &inside, view, turn),
        (true, false) => accept_mixed::<false>(&mut slots[..looked], &inside, view, turn),
        (_, true) => accept_mixed::<true>(&mut slots[..looked], &inside, view, turn),
    };
    if accepted < slots.len() {
        let (plain, other) = slots[accepted..].split_at_mut(looked - accepted);
        park_all(plain, other);
    }
    accepted
}

/// Decrypts packets.
#[inline(always)]
fn decrypt<'v>(slots: &mut [Slot<'v>]) {
    let keys = Supply::of(slots, need, asked_cache());
    for at in 0..slots.len() {
        keys.step(slots, at);
        let slot = &mut slots[at];
        if let Some(sa) = slot.inbound {
            decrypt_or_refuse(slot, sa);
        }
    }
}

/// Parks packets whose content was looked at and is as nearly all is, and others.
#[cold]
#[inline(never)]
fn park_all<'v>(plain: &mut [Slot<'v>], other: &mut [Slot<'v>]) {
    plain.iter_mut().for_each(park_plain);
    for slot in other {
        if let Some(sa) = slot.inbound {
            park(slot, sa);
        }
    }
}

fn park_plain(slot: &mut Slot<'_>) {
    if slot.verdict.is_some() {
        return;
    }
    if slot.inbound.is_some_and(|sa| sa.hot().traits.is_encapsulated()) && put_back(slot).is_none()
    {
        slot.decide(Verdict::InnerMalformed);
    }
    if let Some(flow) = parse::flow_again(&slot.frame, 0) {
        slot.flow = flow;
    }
}

/// Puts what was in UDP back inside, out of which `accept` takes it. `None` only if there were no headers around it.
fn put_back(slot: &mut Slot<'_>) -> Option<()> {
    slot.frame.grow(usize::from(slot.esp_at) + PREFIX_LEN, 0)?;
    let (datagram, _) = udp::Header::over(slot.frame.bytes().get(ipv4::HEADER_LEN..)?).ok()?;
    let len = ipv4::HEADER_LEN + usize::from(datagram.datagram_len());
    slot.frame.grow(0, len.checked_sub(slot.frame.len())?)
}

/// Accepts packets of which some are of IPv6, or of VRFs. Out of line, so that nothing of it takes registers where there are none.
#[inline(never)]
fn accept_mixed<'v, const VRFS: bool>(
    slots: &mut [Slot<'v>],
    inside: &Inside<'v>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> usize {
    accept_all::<true, VRFS>(slots, inside, view, turn)
}

/// Accepts packets, and says where they leave, up to the first that has to be parked; how many.
#[inline(always)]
fn accept_all<'v, const MIXED: bool, const VRFS: bool>(
    slots: &mut [Slot<'v>],
    inside: &Inside<'v>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> usize {
    let mut answers = Answers::<MIXED>::to(inside);
    let mut router = Router::new();
    for at in 0..slots.len() {
        let Some((slot, later)) = slots[at..].split_first_mut() else { break };
        if slot.verdict.is_some() {
            continue;
        }
        let passed = slot.inbound.and_then(|sa| Some((sa, answers.let_pass(at, sa)?)));
        let Some((sa, policy)) = passed else { return answers.end_at(at) };
        let accepted = accept::<MIXED, VRFS>(slot, sa, later, policy, &mut router, view, turn);
        slot.decide(accepted.err().unwrap_or(Verdict::Opened));
    }
    slots.len()
}

/// Accepts a packet, and says where it leaves.
#[inline(always)]
fn accept<'v, const MIXED: bool, const VRFS: bool>(
    slot: &mut Slot<'v>,
    sa: &Sa,
    later: &[Slot<'v>],
    policy: Option<&Policy>,
    router: &mut Router<'v>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> Result<(), Verdict> {
    let alone = sa.access(turn) == Access::Alone;
    if let Err(refused) = sa.replay().commit_as(slot.sequence, alone) {
        sa.count_error(refusal(refused));
        return Err(refusal(refused));
    }
    sa.count(1, slot.counted.into(), turn.now_ns, alone);
    if let Some(policy) = policy {
        policy.count(turn.seat, 1, slot.frame.len() as u64, turn.now_ns);
    }
    if MIXED && parse::is_v6(&slot.frame, 0) {
        take_hop::<ipv6::Plain>(&mut slot.frame)?;
    } else {
        take_hop::<ipv4::Plain>(&mut slot.frame)?;
    }
    let way = match VRFS {
        false => router.way::<false>(slot, later, view, turn)?,
        true => {
            let code = slot.lead.code().ok_or(Verdict::NoRoute)?;
            router.way_by(code, slot.flow.dst, slot, view, turn)?
        }
    };
    way.send_off(slot)
}

/// Takes a hop from a packet that has some left, and the header that nearly every packet has.
#[inline(always)]
fn take_hop<P: PlainHeader>(frame: &mut Frame) -> Result<(), Verdict> {
    let header: P = parse::reread(frame, 0).ok_or(Verdict::InnerMalformed)?;
    header.take_hop_of(frame.bytes_mut()).ok_or(Verdict::TtlExpired)
}
