//! Packets that are opened just as others before them were.
//!
//! Most often those of one tunnel come one after the other; then all that can be is done once for all of them. Where several tunnels
//! are as busy, packets are opened in the order in which they came, each by its tunnel's trail.
//!
//! 1. Is it their SA's? What the window says of its number.
//! 2. Decrypt it. If its outer header is marked, carry that inwards.
//! 3. Has what was inside in common with those before what it has to? Then its number is accepted, and it leaves.
//!
//! Each is a loop over the batch, that it may have the registers for itself. Whether a packet follows is only known once it is
//! decrypted: from the first on that does not, all are *parked*. They are as `decrypt` would have left them, their
//! numbers not accepted yet, and take their places again where that stage ends.

pub(super) mod inside;
mod lending;
mod marks;
mod trail;

use std::array;
use std::net::IpAddr;

use wire::{ethernet, ipv4};

use super::aside::gather;
use super::hours::{Growing, Trial};
use super::like::Known;
use super::several::{Several, Shares, TRAILS, worth};
use crate::batch::{Slot, Turn, is_same};
use crate::classify::is_local;
use crate::content;
use crate::parse::{self, LastMac, PlainEsp};
use crate::plain::PlainHeader;
use crate::prefix::Family;
use crate::replay::run::Run;
use crate::sa::Sa;
use crate::verdict::Verdict;
use crate::view::View;
use inside::Tally;
pub(super) use marks::Marks;
use trail::{Opener, Trail, decrypt_each};

/// What became of the packets before.
pub(super) struct Trails {
    /// The version of the view that says so.
    version: Option<u64>,
    several: Several<Trail>,
    /// Of each trail, in following it.
    pauses: [Growing; TRAILS],
}

/// What a trail has to open of a batch.
struct Share<'t, 'v> {
    trail: &'t Trail,
    opener: Opener<'t, 'v>,
    numbers: Run<'v>,
    known: Known<u32>,
    tally: Tally,
    /// The same of IPv6.
    known_v6: Known<u128>,
    tally_v6: Tally,
}

/// Whether a packet in UDP comes from elsewhere than its SA says. Out of line, as most are not in UDP.
#[inline(never)]
pub(super) fn has_moved(slot: &Slot<'_>, sa: &Sa) -> bool {
    let outer = parse::reread::<ipv4::Plain>(&slot.frame, ethernet::HEADER_LEN);
    outer.is_none_or(|outer| sa.has_moved(outer.source().into(), outer.ports().0))
}

/// Whether an SA's packets are of the kind that may follow.
pub(super) fn is_plain(sa: &Sa) -> bool {
    sa.hot().traits.is_simple() && !sa.is_selective()
}

impl Default for Trails {
    fn default() -> Trails {
        let pauses = array::from_fn(|_| Growing::default());
        Trails { version: None, several: Several::none(), pauses }
    }
}

impl Trails {
    /// Whether they are those of a version of the view.
    pub(super) fn are_of(&self, version: u64) -> bool {
        self.version == Some(version)
    }

    /// Leaves a trail of two packets of one SA, if others may follow them. One that is there has its place, but learns of the other
    /// family inside; whether anything was learnt. Out of line, as that of what is sealed.
    #[inline(never)]
    pub(super) fn leave(
        &mut self,
        pair: [&Slot<'_>; 2],
        version: u64,
        view: &View,
        turn: &mut Turn<'_>,
    ) -> bool {
        let [before, last] = pair;
        let Some(sa) = last.inbound.filter(|sa| is_same(before.inbound, sa)) else { return false };
        if !self.are_of(version) {
            *self = Trails { version: Some(version), ..Trails::default() };
        }
        let key = key(sa.hot().spi, last.ingress);
        let known = self.several.find(key);
        let trail = known.and_then(|number| self.several.get(number));
        let trail = trail.filter(|trail| trail.destination == sa.destination());
        let is_known = trail.is_some_and(|trail| trail.knows(Family::of(last.flow.src)));
        if is_known || known.is_none() && !self.several.has_room() {
            return false;
        }
        let Some(mut new) = Trail::of(sa, pair, view, turn) else { return false };
        match known.and_then(|number| self.several.get_mut(number)) {
            Some(trail) if trail.destination == new.destination => {
                (trail.v4, trail.v6) =
                    (trail.v4.take().or(new.v4.take()), trail.v6.take().or(new.v6.take()));
            }
            _ => {
                let number = self.several.put(key, new);
                self.pauses[number] = Growing::default();
            }
        }
        true
    }

    /// Opens those of the first packets that follow, up to one of another trail than the first: how many, and how many behind them
    /// are to be parked.
    pub(super) fn follow<'v>(
        &mut self,
        slots: &mut [Slot<'v>],
        view: &'v View,
        turn: &Turn<'_>,
    ) -> (usize, usize) {
        let mut strays = 0;
        let number = loop {
            let Some(first) = slots.get_mut(strays) else { return (strays, 0) };
            match find(&self.several, first, parse::mac_bits(first, view), view) {
                Some(number) => break number,
                None if refuses_stray(first, view) => strays += 1,
                None => return (strays, 0),
            }
        };
        let slots = &mut slots[strays..];
        let trail = self.several.get(number).filter(|_| self.pauses[number].is_over());
        let Some((trail, opener)) =
            trail.and_then(|trail| Some((trail, trail.opener(view, turn)?)))
        else {
            return (strays, 0);
        };
        let (looked, others) = trail.follow(&opener, slots, view, turn);
        if looked < others {
            self.pauses[number].begin();
        }
        (strays + looked, others)
    }

    /// Opens those that follow any trail from among others, but for such as come behind another between the same hosts: how many, and
    /// how many behind them are to be parked.
    #[inline(never)]
    pub(super) fn gather<'v>(
        &mut self,
        slots: &mut [Slot<'v>],
        view: &'v View,
        turn: &Turn<'_>,
        trial: &mut Trial,
    ) -> (usize, usize) {
        let Trails { several, pauses, .. } = self;
        let several = &*several;
        let mut shares = Shares::none();
        let mut mac = LastMac::new();
        let gathered = gather(slots, Some(&view.encapsulation_ports), |_, slot| {
            let Some(number) = find(several, slot, mac.bits(slot, view), view) else {
                return is_stray(slot, view).then_some(STRAY);
            };
            let share = shares.of(number, |others| {
                let trail = several.get(number).filter(|_| pauses[number].is_over())?;
                Share::of(trail, others, view, turn)
            });
            share.map(|(share, _)| share)
        });
        let (decrypted, odd) =
            decrypt_all(&mut slots[..gathered.len()], &gathered, &shares.all, view);
        let mut looked = 0;
        for (slot, share) in slots[..decrypted].iter_mut().zip(&gathered) {
            let share = shares.all.get_mut(usize::from(*share));
            let is_let_in =
                slot.verdict.is_some() || share.is_some_and(|share| share.let_one_in(slot, view));
            if !is_let_in {
                break;
            }
            looked += 1;
        }
        let decrypted = decrypted + odd;
        if looked < decrypted {
            if let Some(trail) = shares.trail(gathered[looked]) {
                pauses[trail].begin();
            }
            for (slot, share) in slots[looked..decrypted].iter_mut().zip(&gathered[looked..]) {
                if let Some(share) = shares.all.get(usize::from(*share)) {
                    park(slot, share.opener.sa);
                }
            }
        }
        trial.note(slots.len(), worth(looked, shares.all.len(), slots.len() - looked));
        shares.all.into_iter().for_each(|share| share.end(turn));
        (looked, decrypted - looked)
    }
}

/// In the place of a share's number, for packets that no SA is for.
const STRAY: u8 = TRAILS as u8;

/// The number of the trail that an ESP packet may follow.
#[inline(always)]
fn find(several: &Several<Trail>, slot: &Slot<'_>, mac: u64, view: &View) -> Option<usize> {
    let Some((destination, esp)) = parse::plain_esp(&slot.frame, mac) else {
        return find_other(several, slot, mac, view);
    };
    let number = several.find(key(esp.spi, slot.ingress))?;
    let trail = several.get(number)?;
    (trail.destination == destination && !trail.in_udp).then_some(number)
}

/// The same of one in UDP, or over IPv6. Out of line, so that nothing of it takes registers from what most are.
#[inline(never)]
fn find_other(several: &Several<Trail>, slot: &Slot<'_>, mac: u64, view: &View) -> Option<usize> {
    let (destination, esp, in_udp) = other_esp(slot, mac, view)?;
    let number = several.find(key(esp.spi, slot.ingress))?;
    let trail = several.get(number)?;
    (trail.destination == destination && trail.in_udp == in_udp).then_some(number)
}

/// What ESP in UDP or over IPv6 is for and shows, and whether it is in UDP.
fn other_esp(slot: &Slot<'_>, mac: u64, view: &View) -> Option<(IpAddr, PlainEsp, bool)> {
    let frame = &slot.frame;
    let in_udp = parse::plain_esp_in_udp(frame, mac, &view.encapsulation_ports);
    let in_udp = in_udp.map(|(ours, esp)| (ours.into(), esp, true));
    let over_v6 = || parse::plain_esp_v6(frame, mac).map(|(ours, esp)| (ours.into(), esp, false));
    in_udp.or_else(over_v6)
}

/// Refuses a packet that no SA is for; whether it is such.
#[cold]
#[inline(never)]
fn refuses_stray(slot: &mut Slot<'_>, view: &View) -> bool {
    let is_stray = is_stray(slot, view);
    if is_stray {
        slot.decide(Verdict::NoState);
    }
    is_stray
}

/// Whether a packet is ESP for this host that no SA is for.
#[cold]
#[inline(never)]
fn is_stray(slot: &Slot<'_>, view: &View) -> bool {
    let mac = parse::mac_bits(slot, view);
    let v4 = parse::plain_esp(&slot.frame, mac).map(|(ours, esp)| (ours.into(), esp, false));
    let esp = v4.or_else(|| other_esp(slot, mac, view));
    esp.is_some_and(|(destination, esp, _)| {
        view.sad.get(esp.spi, destination).is_none() && is_local(&destination, view)
    })
}

/// The key of the trail of an SA whose packets come by a port.
#[inline(always)]
fn key(spi: u32, ingress: u16) -> u64 {
    u64::from(ingress) << u32::BITS | u64::from(spi)
}

impl<'t, 'v> Share<'t, 'v> {
    /// That of a trail beside others, if it can open in this turn. Of several trails of one SA, whose packets come by several ports, only
    /// the first has one: beside a run of numbers nobody may write to the window.
    fn of(
        trail: &'t Trail,
        others: &[Share<'_, '_>],
        view: &'v View,
        turn: &Turn<'_>,
    ) -> Option<Share<'t, 'v>> {
        let opener = trail.opener(view, turn)?;
        if others.iter().any(|other| is_same(Some(other.opener.sa), opener.sa)) {
            return None;
        }
        let numbers = Run::new(opener.sa.replay());
        let (known, known_v6) = (Known::of_none(), Known::of_none());
        let (tally, tally_v6) = (Tally::default(), Tally::default());
        Some(Share { trail, opener, numbers, known, tally, known_v6, tally_v6 })
    }

    /// Looks at what was inside of a packet and lets it go on if it follows, unless it is a replay; whether it does.
    #[inline(always)]
    fn let_one_in(&mut self, slot: &mut Slot<'_>, view: &View) -> bool {
        let Share { opener, numbers, known, tally, .. } = self;
        let is_v4 = opener.v4.is_some_and(|(inner, _)| {
            inner.let_one_in(slot, opener.sa, numbers, known, tally, view)
        });
        is_v4 || self.let_v6_in(slot, view)
    }

    /// The same of IPv6. Out of line, so that nothing of it takes registers from what most are.
    #[inline(never)]
    fn let_v6_in(&mut self, slot: &mut Slot<'_>, view: &View) -> bool {
        let Share { opener, numbers, known_v6, tally_v6, .. } = self;
        opener.v6.is_some_and(|(inner, _)| {
            inner.let_one_in(slot, opener.sa, numbers, known_v6, tally_v6, view)
        })
    }

    /// After a batch.
    fn end(self, turn: &Turn<'_>) {
        let Share { opener: Opener { sa, v4, v6 }, numbers, tally, tally_v6, .. } = self;
        drop(numbers);
        tally.count(sa, v4.and_then(|(_, counting)| counting), true, turn);
        tally_v6.count(sa, v6.and_then(|(_, counting)| counting), true, turn);
    }
}

/// Decrypts the packets of shares, in their order: how many, and how many more are decrypted to be parked.
#[inline(never)]
fn decrypt_all<'v>(
    slots: &mut [Slot<'v>],
    gathered: &[u8],
    shares: &[Share<'_, 'v>],
    view: &View,
) -> (usize, usize) {
    let of = |at: usize| {
        let Share { trail, opener, .. } = shares.get(usize::from(gathered[at]))?;
        Some((*trail, opener.sa))
    };
    let sas = shares.iter().map(|share| share.opener.sa);
    match shares.iter().all(|share| share.trail.is_bare()) {
        true => decrypt_each::<true>(slots, sas, view, of),
        false => decrypt_each::<false>(slots, sas, view, of),
    }
}

/// Leaves a packet as `open` would have: of so many bytes behind its link header, ESP among them from there on, with that
/// number. `None`, and no change, if there are fewer. Its type of service is left out, as mostly nothing of it is carried inwards.
#[inline(always)]
pub(super) fn take_up(slot: &mut Slot<'_>, esp_at: usize, len: usize, sequence: u64) -> Option<()> {
    slot.frame.narrow(ethernet::HEADER_LEN, len)?;
    (slot.sequence, slot.esp_at) = (sequence, esp_at as u16);
    Some(())
}

/// Leaves a packet that was decrypted as `decrypt` would have.
#[cold]
#[inline(never)]
pub(super) fn park<'v>(slot: &mut Slot<'v>, sa: &'v Sa) {
    if slot.verdict.is_some() {
        return;
    }
    slot.inbound = Some(sa);
    if !sa.hot().traits.is_encapsulated() {
        slot.flaw = content::take(slot, sa).err();
    } else if let Some(outer) = parse::reread::<ipv4::Plain>(&slot.frame, 0) {
        // It is still inside: `accept` takes it out, and asks the headers around it where they come from.
        slot.flow = outer.flow();
    }
}
