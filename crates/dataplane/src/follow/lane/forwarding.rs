//! Packets in clear that leave in clear, as no policy says anything of that and routes say where to.
//!
//! 1. Is it such a packet? What the policies and routes are asked about it.
//! 2. Do all policies leave it alone, and does its route lead to a neighbour, or nowhere, and not into a tunnel or to this host?
//! 3. Where does it leave? It loses a hop, and gets another link header, unless it cannot leave: then it is lost, as by the
//!    stages.
//!
//! Before 3 nothing about a packet is changed.

use arrayvec::ArrayVec;
use wire::ethernet::HEADER_LEN;
use wire::{ipv4, ipv6};

use super::addresses::Addresses;
use super::admit::{Groups, admit, of_one_vrf};
use super::group::Group;
use super::inquiry::{Free, Inquiry, InquiryV6, Last, is_quick};
use crate::batch::{BATCH_PACKETS, Slot, Turn};
use crate::cpu::asked_cache;
use crate::fib::MANY;
use crate::follow::hours::Hours;
use crate::parse;
use crate::plain::PlainHeader;
use crate::policy::{Address, Direction, Fields};
use crate::route::Router;
use crate::verdict::Verdict;
use crate::view::View;

/// It is worth it where it takes more than one packet of so many: it saves each but a third of what the stages take.
pub(in crate::follow) const WORTH: usize = 2;

/// That packets which leave in clear may come here.
pub(in crate::follow) struct Lane {
    pub(in crate::follow) hours: Hours,
}

impl Lane {
    /// The lane for packets that come behind one that the stages have forwarded in clear.
    pub(in crate::follow) fn of(slot: &Slot<'_>, version: u64, view: &View) -> Option<Lane> {
        let (out, forward) = (view.spd.side(Direction::Out), view.spd.side(Direction::Forward));
        let is_it = slot.verdict == Some(Verdict::Forwarded)
            && (out.is_silent() || is_quick(&out))
            && (forward.is_silent() || is_quick(&forward));
        is_it.then(|| Lane { hours: Hours::of(version) })
    }

    /// Forwards those of the first packets that may come here; how many.
    pub(in crate::follow) fn follow(
        &mut self,
        slots: &mut [Slot<'_>],
        version: u64,
        view: &View,
        turn: &mut Turn<'_>,
    ) -> usize {
        let of_one = of_one_vrf(slots, view).filter(|_| self.hours.are_open(version));
        let Some((vrf, slots)) = of_one else { return 0 };
        let (mut v4, mut v6) = (Addresses::<u32>::default(), Addresses::<u128>::default());
        let out = view.spd.side(Direction::Out);
        let is_asked = !out.is_silent();
        let (mut asked, mut asked_v6) = (Inquiry::of(&out), InquiryV6::of(&out));
        let (mut about, mut about_v6) = (Groups::new(), Groups::new());
        let mut last = Last::default();
        let cache = asked_cache();
        let note = |header: &ipv4::Plain| {
            if is_asked {
                about.push(asked.note(header, &mut last, cache));
            }
            v4.note(header.destination().to_bits())
        };
        let note_v6 = |fields: Fields<u128>| {
            if is_asked {
                about_v6.push(asked_v6.note(fields));
            }
            v6.note(fields.destination)
        };
        let groups = admit(slots, view, cache, note, note_v6);
        let left_alone = match is_asked {
            false => groups.len(),
            true => left_alone(&groups, (&asked, &about), (&asked_v6, &about_v6)),
        };
        let (mut codes, mut codes_v6) = ([0; MANY], [0; MANY]);
        let led = Led {
            codes: v4.codes(vrf, view, &mut codes),
            codes_v6: if v6.is_empty() { &[] } else { v6.codes(vrf, view, &mut codes_v6) },
        };
        let codes = led.away(&groups[..left_alone], view);
        self.hours.trial.note(groups.len(), codes.len());
        let mut router = Router::new();
        for ((slot, code), group) in slots.iter_mut().zip(&codes).zip(&groups) {
            send_off(slot, *code, group.is_v6(), &mut router, view, turn);
        }
        codes.len()
    }
}

/// How many of the first packets of these groups all policies leave alone that were asked about those of each family in turn.
#[inline(never)]
fn left_alone(
    groups: &[Group],
    (asked, about): (&Inquiry<'_>, &[Group]),
    (asked_v6, about_v6): (&InquiryV6<'_>, &[Group]),
) -> usize {
    let free = Free::of(asked, asked_v6);
    let mut about = [about.iter(), about_v6.iter()];
    let is_free = |group: &&Group| {
        let family = usize::from(group.is_v6());
        about[family].next().is_some_and(|question| free.has(*question))
    };
    groups.iter().take_while(is_free).count()
}

/// Where packets are led: the codes of the routes of the groups of a family.
pub(super) struct Led<'c> {
    pub(super) codes: &'c [u32],
    pub(super) codes_v6: &'c [u32],
}

impl Led<'_> {
    /// The code of a group's route.
    #[inline(always)]
    pub(super) fn code(&self, group: Group) -> Option<u32> {
        let codes = if group.is_v6() { self.codes_v6 } else { self.codes };
        codes.get(group.number()).copied()
    }

    /// The codes of the first packets, of these groups, that are led to a neighbour, or nowhere.
    #[inline(always)]
    fn away(&self, groups: &[Group], view: &View) -> ArrayVec<u32, BATCH_PACKETS> {
        let (mut away, mut codes) = (Away::none(), ArrayVec::new());
        for group in groups {
            let Some(code) = self.code(*group).filter(|code| away.is(*code, view)) else { break };
            codes.push(code);
        }
        codes
    }
}

/// The last code that was found to lead away: most packets have the code of the one before.
pub(super) struct Away(Option<u32>);

impl Away {
    pub(super) fn none() -> Away {
        Away(None)
    }

    /// Whether a route of a code [leads away](crate::fib::Fib::leads_away).
    #[inline(always)]
    pub(super) fn is(&mut self, code: u32, view: &View) -> bool {
        if self.0 != Some(code) {
            if !view.fib.leads_away(code) {
                return false;
            }
            self.0 = Some(code);
        }
        true
    }
}

/// Forwards a packet of a family by the route of a code.
#[inline(always)]
pub(super) fn send_off(
    slot: &mut Slot<'_>,
    code: u32,
    is_v6: bool,
    router: &mut Router<'_>,
    view: &View,
    turn: &mut Turn<'_>,
) {
    let sent_off = match is_v6 {
        false => pass_on::<ipv4::Plain>(slot, code, router, view, turn),
        true => pass_on_v6(slot, code, router, view, turn),
    };
    slot.decide(sent_off.err().unwrap_or(Verdict::Forwarded));
}

#[inline(always)]
fn pass_on<P: PlainHeader>(
    slot: &mut Slot<'_>,
    code: u32,
    router: &mut Router<'_>,
    view: &View,
    turn: &mut Turn<'_>,
) -> Result<(), Verdict> {
    let header: P = parse::reread(&slot.frame, HEADER_LEN).ok_or(Verdict::IpTruncated)?;
    let way = router.way_by(code, header.destination().address(), slot, view, turn)?;
    way.pass_on(slot, HEADER_LEN, &header)
}

/// Out of line, so that nothing of it takes registers from what most packets are.
#[inline(never)]
fn pass_on_v6(
    slot: &mut Slot<'_>,
    code: u32,
    router: &mut Router<'_>,
    view: &View,
    turn: &mut Turn<'_>,
) -> Result<(), Verdict> {
    pass_on::<ipv6::Plain>(slot, code, router, view, turn)
}
