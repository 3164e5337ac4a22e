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

use std::net::IpAddr;

use wire::ethernet::HEADER_LEN;
use wire::{Overlay, ipv4, ipv6, udp};

use super::inquiry::is_quick;
use crate::batch::{Slot, Turn};
use crate::claim::Access;
use crate::cpu::{Cache, asked_cache};
use crate::decrypt::decrypt_known;
use crate::envelope::PREFIX_LEN;
use crate::follow::busy::Busy;
use crate::follow::hours::Hours;
use crate::follow::opening::{Marks, has_moved, is_plain, park, take_up};
use crate::keys::{self, Supply};
use crate::open::refusal;
use crate::parse;
use crate::plain::PlainHeader;
use crate::policy::{Address, Direction, Policy};
use crate::replay::Refusal;
use crate::route::{Bound, Router};
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
        let Checked { packets: checked, alone, marks } =
            check_all(slots, &named, view, turn, cache);
        let (slots, rest) = slots.split_at_mut(checked);
        // What `classify` is to find out is not there yet.
        rest.iter_mut().for_each(|slot| slot.inbound = None);
        decrypt::<SECOND>(slots);
        let opened = let_in(slots, alone, marks, view, turn);
        self.hours.trial.note(if checked == 0 { named_len } else { checked }, opened);
        // What they are is only to be seen now.
        self.busy.look(&mut slots[..opened], |slot| slot.inbound);
        (opened, checked - opened)
    }
}

/// The first packets, whose SAs are known and whose windows were asked.
struct Checked {
    packets: usize,
    /// All SAs are this worker's alone, until the turn is over.
    alone: bool,
    /// What their outer headers say.
    marks: Marks,
}

/// Finds the SAs of packets, up to the first that has to take the stages, and asks their windows. Some are refused, by those or as
/// there is no such SA.
#[inline(always)]
fn check_all<'v>(
    slots: &mut [Slot<'v>],
    named: &[Named<'v>],
    view: &'v View,
    turn: &Turn<'_>,
    cache: Cache,
) -> Checked {
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
    let (mut checked, mut alone) = (0, true);
    loop {
        checked += take_up_all(&mut slots[checked..], &named[checked..], &mut alone, turn);
        let Some((slot, named)) = slots.get_mut(checked).zip(named.get(checked)) else { break };
        if !refuses(slot, named, view, turn) {
            break;
        }
        checked += 1;
    }
    Checked { packets: checked, alone, marks }
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

/// Takes packets up whose windows let them pass, up to the first for which [`refuses`] is to look: how many.
#[inline(always)]
fn take_up_all(
    slots: &mut [Slot<'_>],
    named: &[Named<'_>],
    alone: &mut bool,
    turn: &Turn<'_>,
) -> usize {
    let mut taken = 0;
    for (slot, named) in slots.iter_mut().zip(named) {
        let Some((Ok(sequence), is_alone)) = check(slot, named, turn) else { break };
        if take_up(slot, named.esp_at.into(), named.len.into(), sequence).is_none() {
            break;
        }
        *alone &= is_alone;
        taken += 1;
    }
    taken
}

/// What the window of a packet's SA says of its number, and whether that is this worker's alone; `None` if it has to take the stages.
#[inline(always)]
fn check(
    slot: &Slot<'_>,
    named: &Named<'_>,
    turn: &Turn<'_>,
) -> Option<(Result<u64, Refusal>, bool)> {
    let sa = slot.inbound?;
    let alone = sa.free_access_to_open(turn)?;
    let stays = !(named.is_in_udp() && has_moved(slot, sa));
    stays.then(|| (sa.replay().check(named.received), alone))
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
    let Some((Err(refused), _)) = check(slot, named, turn) else { return false };
    slot.refuse(slot.inbound, refusal(refused));
    slot.inbound = None;
    true
}

/// What it takes to decrypt a packet.
#[inline(always)]
fn need<'v>(slot: &Slot<'v>) -> Option<(&'v Sa, usize)> {
    Some((slot.inbound?, usize::from(slot.counted)))
}

/// Decrypts packets that the windows let pass; a function for each cache that memory is asked for into.
#[inline(never)]
fn decrypt<'v, const SECOND: bool>(slots: &mut [Slot<'v>]) {
    let keys = Supply::of(slots, need, Cache::second_if(SECOND));
    for at in 0..slots.len() {
        keys.step(slots, at);
        let slot = &mut slots[at];
        if let Some(sa) = slot.inbound {
            let (esp_at, len, sequence) = (slot.esp_at, slot.counted, slot.sequence);
            decrypt_known(slot, sa, esp_at.into(), len.into(), sequence);
        }
    }
}

/// Lets packets in that were decrypted; how many, up to the first that has to be parked.
#[inline(never)]
fn let_in<'v>(
    slots: &mut [Slot<'v>],
    alone: bool,
    marks: Marks,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> usize {
    let carried = marks.carry_inwards(slots, |_, slot| slot.inbound);
    let mut inside = Inside::of(view, turn);
    let looked = inside.look_at_all(&mut slots[..carried]);
    let accepted = match (inside.has_v6(), view.vrfs.in_use()) {
        (false, false) => {
            accept_all::<false, false>(&mut slots[..looked], alone, &inside, view, turn)
        }
        (true, false) => accept_mixed::<false>(&mut slots[..looked], alone, &inside, view, turn),
        (_, true) => accept_mixed::<true>(&mut slots[..looked], alone, &inside, view, turn),
    };
    if accepted < slots.len() {
        let (plain, other) = slots[accepted..].split_at_mut(looked - accepted);
        park_all(plain, other);
    }
    accepted
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
    if slot.verdict.is_some() || !slot.frame.pull_front(HEADER_LEN) {
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
    alone: bool,
    inside: &Inside<'v>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> usize {
    accept_all::<true, VRFS>(slots, alone, inside, view, turn)
}

/// Accepts packets, and says where they leave, up to the first that has to be parked; how many. They may be of SAs that are all this
/// worker's `alone`.
#[inline(always)]
fn accept_all<'v, const MIXED: bool, const VRFS: bool>(
    slots: &mut [Slot<'v>],
    alone: bool,
    inside: &Inside<'v>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> usize {
    let mut answers = Answers::<MIXED>::to(inside);
    let mut router = Router::new();
    // Not asked for anew, so that what is reckoned from it is reckoned once.
    let now_ns = turn.now_ns;
    let packets = slots.len();
    let mut rest = slots;
    while let Some((slot, later)) = rest.split_first_mut() {
        if slot.verdict.is_none() {
            let at = packets - later.len() - 1;
            let passed = slot.inbound.and_then(|sa| Some((sa, answers.let_pass(at, sa)?)));
            let Some((sa, policy)) = passed else { return answers.end_at(at) };
            let accepted = accept(slot, sa, policy, alone, now_ns, turn).and_then(|()| {
                match MIXED && parse::is_v6(&slot.frame, HEADER_LEN) {
                    false => pass_on::<ipv4::Plain, VRFS>(slot, later, &mut router, view, turn),
                    true => pass_on::<ipv6::Plain, VRFS>(slot, later, &mut router, view, turn),
                }
            });
            slot.decide(accepted.err().unwrap_or(Verdict::Opened));
        }
        rest = later;
    }
    packets
}

/// Accepts a packet.
#[inline(always)]
fn accept(
    slot: &Slot<'_>,
    sa: &Sa,
    policy: Option<&Policy>,
    alone: bool,
    now_ns: u64,
    turn: &Turn<'_>,
) -> Result<(), Verdict> {
    let alone = alone || sa.access(turn) == Access::Alone;
    if let Err(refused) = sa.replay().commit_as(slot.sequence, alone) {
        sa.count_error(refusal(refused));
        return Err(refusal(refused));
    }
    sa.count(1, slot.counted.into(), now_ns, alone);
    if let Some(policy) = policy {
        policy.count(turn.seat, 1, slot.frame.len().saturating_sub(HEADER_LEN) as u64, now_ns);
    }
    Ok(())
}

/// Takes a hop from a packet, and says where it leaves.
#[inline(always)]
fn pass_on<'v, P: PlainHeader, const VRFS: bool>(
    slot: &mut Slot<'v>,
    later: &[Slot<'v>],
    router: &mut Router<'v>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> Result<(), Verdict> {
    let header: P = parse::reread(&slot.frame, HEADER_LEN).ok_or(Verdict::InnerMalformed)?;
    let destination = header.destination().address();
    let way = match VRFS {
        false => router.way_in_clear::<AsRead>(destination, slot, later, view, turn)?,
        true => {
            let code = slot.lead.code().ok_or(Verdict::NoRoute)?;
            router.way_by(code, destination, slot, view, turn)?
        }
    };
    way.pass_on_framed(slot, &header)
}

/// Packets that were looked at are routed by the destination in them: noted, it would be written to a line of its own.
enum AsRead {}

impl Bound for AsRead {
    #[inline(always)]
    fn destination(slot: &Slot<'_>) -> IpAddr {
        parse::destination_again(&slot.frame, HEADER_LEN)
    }
}
