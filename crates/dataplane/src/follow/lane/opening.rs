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

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use arrayvec::ArrayVec;
use wire::{Overlay, esp, ethernet, ipv4, ipv6, udp};
use xsk::Frame;

use super::inquiry::is_quick;
use crate::batch::{BATCH_PACKETS, Slot, Turn};
use crate::claim::Access;
use crate::classify::is_local;
use crate::decrypt::decrypt_or_refuse;
use crate::envelope::PREFIX_LEN;
use crate::follow::busy::Busy;
use crate::follow::hours::Hours;
use crate::follow::opening::{Marks, has_moved, is_plain, park, take_up};
use crate::keys::{self, Supply};
use crate::open::refusal;
use crate::parse::{self, IN_UDP_AT, LastMac, PlainEsp};
use crate::plain::PlainHeader;
use crate::policy::{Direction, Policy};
use crate::replay::Refusal;
use crate::route::Router;
use crate::sa::Sa;
use crate::sad::{AskedV4, Key};
use crate::verdict::Verdict;
use crate::view::View;

use inside::{Answers, Inside};

/// It is worth it where it takes more than one packet of so many: the others are decrypted for nothing but to be parked.
pub(in crate::follow) const WORTH: usize = 2;

/// That ESP may come here.
pub(in crate::follow) struct Lane {
    pub(in crate::follow) hours: Hours,
    /// Of packets that came, those that others may follow.
    pub(in crate::follow) busy: Busy,
}

/// What a packet's SA is called, and was asked for by.
enum Asked<'v> {
    V4(AskedV4<'v>),
    /// The hash of a key that is so long that it is read anew.
    V6(u64),
}

/// A packet's SA, which was asked for, and the number that it shows.
struct Named<'v> {
    asked: Asked<'v>,
    received: u32,
    /// Its bytes, those that are encrypted, its type of service, and where ESP begins.
    len: u16,
    ciphertext_len: u16,
    tos: u8,
    esp_at: u8,
}

impl<'v> Named<'v> {
    #[inline(always)]
    fn of(esp: &PlainEsp, asked: Asked<'v>) -> Named<'v> {
        Named {
            asked,
            received: esp.sequence,
            len: esp.len() as u16,
            ciphertext_len: esp.ciphertext_len as u16,
            tos: esp.tos,
            esp_at: esp.at as u8,
        }
    }

    fn is_in_udp(&self) -> bool {
        usize::from(self.esp_at) == IN_UDP_AT
    }

    /// The SA that was asked for.
    #[inline(always)]
    fn find(&self, slot: &Slot<'_>, view: &'v View) -> Option<&'v Arc<Sa>> {
        match self.asked {
            Asked::V4(asked) => view.sad.find_v4(asked),
            Asked::V6(hash) => find_v6(hash, slot, view),
        }
    }
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
        let named = name(slots, view);
        let named_len = named.len();
        let slots = &mut slots[..named_len];
        let (checked, marks) = check_all(slots, &named, view, turn);
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

/// What the SAs of the first packets are called that may come here.
#[inline(always)]
fn name<'v>(slots: &mut [Slot<'_>], view: &'v View) -> ArrayVec<Named<'v>, BATCH_PACKETS> {
    let mut named: ArrayVec<Named<'_>, BATCH_PACKETS> = ArrayVec::new();
    let packets = slots.len();
    let (mut known, mut known_v6, mut mac) = (None, None, LastMac::new());
    for slot in slots.iter_mut().take(BATCH_PACKETS) {
        let mac = mac.bits(slot, view);
        let frame = &slot.frame;
        let esp = parse::plain_esp(frame, mac).or_else(|| in_udp(frame, mac, view));
        let one = match esp {
            Some((destination, esp)) => {
                if known != Some(destination) {
                    if !is_local(&destination.into(), view) {
                        break;
                    }
                    known = Some(destination);
                }
                Named::of(&esp, Asked::V4(view.sad.ask_v4(esp.spi, destination)))
            }
            None => match over_v6(frame, mac, &mut known_v6, view) {
                Some(one) => one,
                None => break,
            },
        };
        // What its key is needed for.
        slot.counted = one.ciphertext_len;
        named.push(one);
    }
    if named.len() < super::WORTH.min(packets) {
        named.clear();
    }
    named
}

/// What ESP in UDP shows. Out of line, so that nothing of it takes registers from what most are.
#[inline(never)]
fn in_udp(frame: &Frame, mac: u64, view: &View) -> Option<(Ipv4Addr, PlainEsp)> {
    parse::plain_esp_in_udp(frame, mac, &view.encapsulation_ports)
}

/// What ESP over IPv6 shows, and its SA is called.
#[inline(never)]
fn over_v6<'v>(
    frame: &Frame,
    mac: u64,
    known: &mut Option<Ipv6Addr>,
    view: &View,
) -> Option<Named<'v>> {
    let (destination, esp) = parse::plain_esp_v6(frame, mac)?;
    if *known != Some(destination) {
        if !is_local(&destination.into(), view) {
            return None;
        }
        *known = Some(destination);
    }
    let hash = view.sad.prefetch(&Key::new(esp.spi, destination.into()));
    Some(Named::of(&esp, Asked::V6(hash)))
}

/// The SA that was asked for so.
#[inline(never)]
fn find_v6<'v>(hash: u64, slot: &Slot<'_>, view: &'v View) -> Option<&'v Arc<Sa>> {
    let packet = slot.frame.bytes().get(ethernet::HEADER_LEN..)?;
    let (outer, rest) = ipv6::Header::over(packet).ok()?;
    let (esp, _) = esp::Header::over(rest).ok()?;
    view.sad.get_hashed(hash, &Key::new(esp.spi(), outer.destination().into()))
}

/// Finds the SAs of packets, up to the first that has to take the stages, and asks their windows. Some are refused, by those or as
/// there is no such SA. How many packets there are, and of which something may be carried inwards.
#[inline(always)]
fn check_all<'v>(
    slots: &mut [Slot<'v>],
    named: &[Named<'v>],
    view: &'v View,
    turn: &Turn<'_>,
) -> (usize, Marks) {
    for (slot, named) in slots.iter_mut().zip(named) {
        if let Some(sa) = named.find(slot, view) {
            sa.prefetch();
            slot.inbound = Some(sa);
        }
    }
    let (mut plain, mut marks) = (0, Marks::default());
    loop {
        (plain, marks) = ask_windows(slots, named, plain, marks);
        let Some((slot, named)) = slots.get_mut(plain).zip(named.get(plain)) else { break };
        if !pass_over(slot, named) {
            break;
        }
        plain += 1;
    }
    let slots = &mut slots[..plain];
    keys::ask_first(slots, need);
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
/// that is, and of which before it something may be carried inwards.
#[inline(always)]
fn ask_windows(
    slots: &[Slot<'_>],
    named: &[Named<'_>],
    first: usize,
    mut marks: Marks,
) -> (usize, Marks) {
    let mut plain = first;
    for (slot, named) in slots[first..].iter().zip(&named[first..]) {
        let Some(sa) = slot.inbound.filter(|sa| is_plain(sa)) else { break };
        if sa.hot().traits.is_encapsulated() != named.is_in_udp() {
            break;
        }
        marks.note(plain, named.tos, sa);
        sa.prefetch_to_open();
        sa.replay().prefetch(named.received);
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
    let accepted = match inside.has_v6() {
        false => accept_all::<false>(&mut slots[..looked], &inside, view, turn),
        true => accept_mixed(&mut slots[..looked], &inside, view, turn),
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
    let keys = Supply::of(slots, need);
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

/// Accepts packets of which some are of IPv6. Out of line, so that nothing of it takes registers where there are none.
#[inline(never)]
fn accept_mixed<'v>(
    slots: &mut [Slot<'v>],
    inside: &Inside<'v>,
    view: &'v View,
    turn: &mut Turn<'_>,
) -> usize {
    accept_all::<true>(slots, inside, view, turn)
}

/// Accepts packets, and says where they leave, up to the first that has to be parked; how many.
#[inline(always)]
fn accept_all<'v, const MIXED: bool>(
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
        let accepted = accept::<MIXED>(slot, sa, later, policy, &mut router, view, turn);
        slot.decide(accepted.err().unwrap_or(Verdict::Opened));
    }
    slots.len()
}

/// Accepts a packet, and says where it leaves.
#[inline(always)]
fn accept<'v, const MIXED: bool>(
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
    router.way::<false>(slot, later, view, turn)?.send_off(slot)
}

/// Takes a hop from a packet that has some left, and the header that nearly every packet has.
#[inline(always)]
fn take_hop<P: PlainHeader>(frame: &mut Frame) -> Result<(), Verdict> {
    let header: P = parse::reread(frame, 0).ok_or(Verdict::InnerMalformed)?;
    header.take_hop_of(frame.bytes_mut()).ok_or(Verdict::TtlExpired)
}
