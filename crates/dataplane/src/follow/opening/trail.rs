//! The packets of one SA that are opened just as those before them were.

use std::net::IpAddr;
use std::sync::Arc;

use wire::{ipv4, ipv6};

use super::inside::{Counting, Inner};
use super::marks::Marks;
use super::{has_moved, is_plain, park, refuses_stray, take_up};
use crate::batch::{Slot, Turn, is_same};
use crate::cpu::LINE;
use crate::decrypt::decrypt_known;
use crate::follow::accepts_all;
use crate::follow::like::Entry;
use crate::open::refusal;
use crate::parse::{self, PlainEsp};
use crate::policy::Direction;
use crate::prefix::Family;
use crate::sa::Sa;
use crate::verdict::Verdict;
use crate::view::View;

/// What became of those of one SA.
pub(super) struct Trail {
    entry: Entry,
    /// What their SA is called, and whether they come in UDP.
    spi: u32,
    pub(super) destination: IpAddr,
    pub(super) in_udp: bool,
    /// If they are [bare](Trail::is_bare): both as they stand in one.
    ends: u64,
    /// What those of a family have in common with them that are to follow, once they are opened.
    pub(super) v4: Option<Arc<Inner<ipv4::Plain>>>,
    pub(super) v6: Option<Arc<Inner<ipv6::Plain>>>,
}

/// Who opens the packets of a trail in this turn.
pub(super) struct Opener<'t, 'v> {
    pub(super) sa: &'v Sa,
    pub(super) v4: Option<(&'t Inner<ipv4::Plain>, Counting<'v>)>,
    pub(super) v6: Option<(&'t Inner<ipv6::Plain>, Counting<'v>)>,
}

/// Packets from the one whose first two lines are fetched into the cache of level 1 to the one that is decrypted: where packets are long
/// none has stayed there, and what the cipher begins with is in their headers.
const AHEAD: usize = 2;

impl Trail {
    /// The trail of packets like two that came through an SA; `None` if none may follow them.
    pub(super) fn of(
        sa: &Sa,
        pair: [&Slot<'_>; 2],
        view: &View,
        turn: &mut Turn<'_>,
    ) -> Option<Trail> {
        let [_, slot] = pair;
        let out = view.spd.side(Direction::Out);
        let is_simple = slot.verdict == Some(Verdict::Opened) && is_plain(sa);
        if !is_simple || !accepts_all(&out, &slot.flow) {
            return None;
        }
        let (v4, v6) = match Family::of(slot.flow.src) {
            Family::V4 => (Some(Arc::new(Inner::of(pair, sa, view, turn)?)), None),
            Family::V6 => (None, Some(Arc::new(Inner::of(pair, sa, view, turn)?))),
        };
        let (spi, destination) = (sa.hot().spi, sa.destination());
        let in_udp = sa.hot().traits.is_encapsulated();
        let ends = match destination {
            IpAddr::V4(ours) => parse::bare_ends(ours, spi),
            IpAddr::V6(_) => 0,
        };
        let trail = Trail { entry: Entry::of(slot, view), spi, destination, in_udp, ends, v4, v6 };
        is_same(trail.sa(view), sa).then_some(trail)
    }

    /// Whether it says which packets follow that have a family inside.
    pub(super) fn knows(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.v4.is_some(),
            Family::V6 => self.v6.is_some(),
        }
    }

    /// The SA of its packets.
    fn sa<'v>(&self, view: &'v View) -> Option<&'v Sa> {
        view.sad.get(self.spi, self.destination).filter(|sa| is_plain(sa)).map(|sa| &**sa)
    }

    /// Who opens in this turn, found by names: a trail refers to nothing in the view.
    pub(super) fn opener<'v>(&self, view: &'v View, turn: &Turn<'_>) -> Option<Opener<'_, 'v>> {
        let sa = self.sa(view)?;
        let v4 =
            self.v4.as_deref().and_then(|inner| Some((inner, inner.counting(sa, view, turn)?)));
        let v6 =
            self.v6.as_deref().and_then(|inner| Some((inner, inner.counting(sa, view, turn)?)));
        let is_known = v4.is_some() || v6.is_some();
        (is_known && sa.free_access_to_open(turn) == Some(true)).then_some(Opener { sa, v4, v6 })
    }

    /// Opens those of the first packets that follow: how many, and how many behind them are to be parked.
    pub(super) fn follow<'v>(
        &self,
        opener: &Opener<'_, 'v>,
        slots: &mut [Slot<'v>],
        view: &'v View,
        turn: &Turn<'_>,
    ) -> (usize, usize) {
        let Opener { sa, v4, v6 } = *opener;
        let (decrypted, odd) = match self.is_bare() {
            true => self.decrypt::<true>(slots, sa, view),
            false => self.decrypt::<false>(slots, sa, view),
        };
        let welcome = &mut slots[..decrypted];
        let mut looked = 0;
        loop {
            let before = looked;
            if let Some((inner, counting)) = v4 {
                looked += inner.let_in(&mut welcome[looked..], sa, counting, view, turn);
            }
            if let Some((inner, counting)) = v6 {
                looked += inner.let_in(&mut welcome[looked..], sa, counting, view, turn);
            }
            if looked == before || looked == welcome.len() {
                break;
            }
        }
        let others = &mut slots[looked..decrypted + odd];
        others.iter_mut().for_each(|slot| park(slot, sa));
        (looked, others.len())
    }

    /// Whether its packets are over IPv4 and in no UDP, as most are.
    pub(super) fn is_bare(&self) -> bool {
        self.destination.is_ipv4() && !self.in_udp
    }

    /// An ESP packet of the SA, whose packets are bare.
    #[inline(always)]
    pub(super) fn names_bare(&self, slot: &Slot<'_>) -> Option<PlainEsp> {
        let is_its = slot.ingress == self.entry.ingress;
        is_its.then(|| parse::bare_esp(&slot.frame, self.entry.mac, self.ends))?
    }

    /// An ESP packet of the SA.
    #[inline(always)]
    fn names(&self, slot: &Slot<'_>, view: &View) -> Option<PlainEsp> {
        if self.is_bare() {
            return self.names_bare(slot);
        }
        if slot.ingress != self.entry.ingress {
            return None;
        }
        let (frame, mac) = (&slot.frame, self.entry.mac);
        let (is_ours, esp) = match self.destination {
            IpAddr::V4(ours) => {
                let in_udp = parse::plain_esp_in_udp(frame, mac, &view.encapsulation_ports);
                let (destination, esp) = in_udp?;
                (destination == ours, esp)
            }
            IpAddr::V6(ours) => {
                let (destination, esp) = parse::plain_esp_v6(frame, mac)?;
                (destination == ours, esp)
            }
        };
        (is_ours && esp.spi == self.spi).then_some(esp)
    }

    /// The same from where the SA has its peer.
    #[inline(always)]
    pub(super) fn takes(&self, slot: &Slot<'_>, sa: &Sa, view: &View) -> Option<PlainEsp> {
        let esp = self.names(slot, view)?;
        (!(self.in_udp && has_moved(slot, sa))).then_some(esp)
    }

    /// Refuses such a packet if its SA's window does; whether it did.
    fn refuses(&self, slot: &mut Slot<'_>, sa: &Sa, view: &View) -> bool {
        let checked = self.takes(slot, sa, view).map(|esp| sa.replay().check(esp.sequence));
        if let Some(Err(refused)) = checked {
            slot.refuse(Some(sa), refusal(refused));
        }
        matches!(checked, Some(Err(_)))
    }

    /// Decrypts the first packets that are their SA's, which may be `BARE`: how many, and how many more are decrypted to be parked.
    #[inline(never)]
    fn decrypt<'v, const BARE: bool>(
        &self,
        slots: &mut [Slot<'v>],
        sa: &'v Sa,
        view: &View,
    ) -> (usize, usize) {
        decrypt_each::<BARE>(slots, [sa].into_iter(), view, |_| Some((self, sa)))
    }
}

/// Whose a packet is, if it is of a trail's SA.
type Whose<'t, 'v> = Option<(&'t Trail, &'v Sa)>;

/// Decrypts packets of the trails and SAs that `of` names, and of no other SAs than `sas`; the packets of all trails may be `BARE`.
/// But for those of which a window does not want to hear, or that no SA is for, up to one that is another's: how many, and how many
/// more are decrypted to be parked.
#[inline(always)]
pub(super) fn decrypt_each<'t, 'v, const BARE: bool>(
    slots: &mut [Slot<'v>],
    sas: impl Iterator<Item = &'v Sa>,
    view: &View,
    of: impl Fn(usize) -> Whose<'t, 'v>,
) -> (usize, usize) {
    let (mut looked, mut marks) = (0, Marks::default());
    sas.for_each(|sa| marks.note_sa(sa));
    loop {
        (looked, marks) = decrypt_welcome::<BARE>(slots, looked, marks, view, &of);
        let Some(slot) = slots.get_mut(looked) else { break };
        if !refuses(slot, of(looked), view) {
            break;
        }
        looked += 1;
    }
    let carried = marks.carry_inwards(&mut slots[..looked], |at, _| of(at).map(|(_, sa)| sa));
    (carried, looked - carried)
}

/// Refuses a packet if the window of its trail's SA does, or if no SA is for it; whether it did.
#[cold]
#[inline(never)]
fn refuses(slot: &mut Slot<'_>, whose: Whose<'_, '_>, view: &View) -> bool {
    whose.is_some_and(|(trail, sa)| trail.refuses(slot, sa, view)) || refuses_stray(slot, view)
}

/// The same from one on, up to one that is to be refused, if any: a loop that goes on behind such would keep less in registers. Where that
/// is, and what the outer headers before it say.
#[inline(always)]
fn decrypt_welcome<'t, 'v, const BARE: bool>(
    slots: &mut [Slot<'v>],
    first: usize,
    mut marks: Marks,
    view: &View,
    of: &impl Fn(usize) -> Whose<'t, 'v>,
) -> (usize, Marks) {
    let mut looked = first;
    for at in first..slots.len() {
        if let Some(later) = slots.get(at + AHEAD) {
            later.frame.fetch(0);
            later.frame.fetch(LINE);
        }
        let slot = &mut slots[at];
        let Some((trail, sa)) = of(at) else { break };
        let esp = if BARE { trail.names_bare(slot) } else { trail.takes(slot, sa, view) };
        let Some(esp) = esp else { break };
        let Ok(sequence) = sa.replay().check(esp.sequence) else { break };
        if take_up(slot, esp.at, esp.len(), sequence).is_none() {
            break;
        }
        marks.note(esp.tos);
        decrypt_known(slot, sa, esp.at, esp.ciphertext_len, sequence);
        looked += 1;
    }
    (looked, marks)
}
