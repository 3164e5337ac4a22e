//! Packets that are to be opened as those before, by whoever has time.

use arrayvec::ArrayVec;

use super::trail::{Opener, Trail};
use super::{Marks, Trails, find, take_up};
use crate::batch::{Slot, Turn, is_same};
use crate::follow::aside::gather;
use crate::follow::hours::Trial;
use crate::follow::lent;
use crate::follow::several::{Shares, TRAILS};
use crate::open::refusal;
use crate::parse::{self, LastMac, PlainEsp};
use crate::view::View;

impl Trails {
    /// Puts packets first that follow any trail, and leaves the rest to whoever has time: how many they are, and what is to be done.
    pub(in crate::follow) fn lend<'v>(
        &mut self,
        slots: &mut [Slot<'v>],
        version: u64,
        view: &'v View,
        turn: &Turn<'_>,
        trial: &mut Trial,
    ) -> Option<(usize, lent::Opening<'v>)> {
        if !self.are_of(version) {
            return None;
        }
        if let Some(lent) = self.lend_one(slots, view, turn) {
            return Some(lent);
        }
        if !trial.is_on() {
            return None;
        }
        let Trails { several, pauses, .. } = self;
        let several = &*several;
        let mut shares = Shares::none();
        let mut mac = LastMac::new();
        let gathered = gather(slots, Some(&view.encapsulation_ports), |_, slot| {
            let number = find(several, slot, mac.bits(slot, view), view)?;
            let trail = several.get(number)?;
            let share = shares.of(number, |others| {
                let is_over = pauses[number].is_over();
                is_over.then(|| share_of(number, trail, others, view, turn)).flatten()
            });
            let (share_number, share) = share?;
            Some((share_number, trail.takes(slot, share.sa, view)?))
        });
        trial.note(slots.len(), gathered.len());
        if gathered.len() < lent::WORTH.min(slots.len()) {
            return None;
        }
        let mut esp = gathered.into_iter();
        Some(take_all_up(slots, esp.len(), |_| esp.next(), shares.all, view))
    }

    /// The same of the first packets, where as many follow one trail as are worth it.
    fn lend_one<'v>(
        &mut self,
        slots: &mut [Slot<'v>],
        view: &'v View,
        turn: &Turn<'_>,
    ) -> Option<(usize, lent::Opening<'v>)> {
        let first = slots.first()?;
        let number = find(&self.several, first, parse::mac_bits(first, view), view)?;
        let trail = self.several.get(number).filter(|_| self.pauses[number].is_over())?;
        let share = share_of(number, trail, &[], view, turn)?;
        let (packets, sa) = (slots.len(), share.sa);
        let is_its = |slot: &Slot<'_>| trail.takes(slot, sa, view).is_some();
        if !slots.iter().take(lent::WORTH).all(is_its) {
            return None;
        }
        let of = ArrayVec::from_iter([share]);
        Some(match trail.is_bare() {
            true => {
                let take = |slot: &Slot<'_>| Some((0, trail.names_bare(slot)?));
                take_all_up(slots, packets, take, of, view)
            }
            false => {
                let take = |slot: &Slot<'_>| Some((0, trail.takes(slot, sa, view)?));
                take_all_up(slots, packets, take, of, view)
            }
        })
    }

    /// Accepts the numbers of packets that were lent and follow; how many there are.
    pub(in crate::follow) fn accept(
        &mut self,
        opening: &lent::Opening<'_>,
        slots: &mut [Slot<'_>],
        turn: &mut Turn<'_>,
    ) -> usize {
        let followed = opening.accept(slots, turn);
        if let Some(share) = opening.shares.get(followed)
            && followed < slots.len() - followed
        {
            self.pauses[opening.of[usize::from(*share)].trail].begin();
        }
        followed
    }
}

/// Takes up the first packets, so many, with shares of those that `take` names: how many they are, and what is to be done.
#[inline(always)]
fn take_all_up<'v>(
    slots: &mut [Slot<'v>],
    packets: usize,
    mut take: impl FnMut(&Slot<'v>) -> Option<(u8, PlainEsp)>,
    of: ArrayVec<lent::Share<'v>, TRAILS>,
    view: &'v View,
) -> (usize, lent::Opening<'v>) {
    let (mut marks, mut shares) = (Marks::default(), lent::Numbers::new());
    of.iter().for_each(|share| marks.note_sa(share.sa));
    for slot in &mut slots[..packets] {
        let Some((share, esp)) = take(slot) else { break };
        let sa = of[usize::from(share)].sa;
        match sa.replay().check(esp.sequence) {
            Ok(sequence) => {
                if take_up(slot, esp.at, esp.len(), sequence).is_none() {
                    break;
                }
                marks.note(esp.tos);
            }
            Err(refused) => slot.refuse(Some(sa), refusal(refused)),
        }
        slot.inbound = Some(sa);
        shares.push(share);
    }
    (shares.len(), lent::Opening { shares, of, marks, view, follow: 0, v6: 0 })
}

/// The share of a trail beside others, if packets of it can be lent in this turn.
fn share_of<'v>(
    number: usize,
    trail: &Trail,
    others: &[lent::Share<'_>],
    view: &'v View,
    turn: &Turn<'_>,
) -> Option<lent::Share<'v>> {
    let Opener { sa, v4, v6 } = trail.opener(view, turn)?;
    if others.iter().any(|other| is_same(Some(other.sa), sa)) {
        return None;
    }
    let v4 = v4.and_then(|(_, counting)| Some((trail.v4.clone()?, counting)));
    let v6 = v6.and_then(|(_, counting)| Some((trail.v6.clone()?, counting)));
    Some(lent::Share { trail: number, sa, v4, v6 })
}
