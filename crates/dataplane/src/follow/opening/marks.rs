//! What the outer headers of ESP packets say that is carried inwards once they are decrypted: marks of congestion (RFC 6040
//! §4.2), and the DSCP where an SA is told to.
//!
//! Whoever opens packets takes note of what all of them say together, and only if any of them may have marks are they gone over, when
//! all are decrypted: a look at what only just was would keep the processor waiting.

use wire::{ipv4, ipv6};

use crate::batch::Slot;
use crate::content;
use crate::ecn;
use crate::parse;
use crate::plain::PlainHeader;
use crate::sa::{Sa, SaFlags};

/// What the outer types of service of packets say, one over the other.
#[derive(Clone, Copy, Default)]
pub(in crate::follow) struct Marks(u8);

impl Marks {
    /// Takes note of that of a packet.
    #[inline(always)]
    pub(in crate::follow) fn note(&mut self, tos: u8) {
        self.0 |= tos;
    }

    /// Takes note of an SA that packets come through: what it carries inwards of each counts as a mark.
    #[inline(always)]
    pub(in crate::follow) fn note_sa(&mut self, sa: &Sa) {
        if sa.hot().traits.flags().decap_dscp {
            self.0 |= ecn::CE;
        }
    }

    /// Carries it inwards, of packets that were [taken up](super::take_up) and decrypted, each by the SA that `of` names; how many there
    /// are before the first that is to be parked.
    #[inline(always)]
    pub(in crate::follow) fn carry_inwards<'v>(
        self,
        slots: &mut [Slot<'v>],
        of: impl Fn(usize, &Slot<'v>) -> Option<&'v Sa>,
    ) -> usize {
        let leaves_alone = ecn::leaves_alone(self.0, &SaFlags::default());
        if leaves_alone { slots.len() } else { carry_all(slots, of) }
    }
}

#[inline(never)]
fn carry_all<'v>(slots: &mut [Slot<'v>], of: impl Fn(usize, &Slot<'v>) -> Option<&'v Sa>) -> usize {
    let mut carried = slots.len();
    for (at, slot) in slots.iter_mut().enumerate().filter(|(_, slot)| slot.verdict.is_none()) {
        // Behind one to be parked as well, as it may be that they will be.
        if of(at, slot).is_some_and(|sa| carry_one(slot, sa).is_none()) {
            carried = carried.min(at);
        }
    }
    carried
}

/// Carries what a packet's outer header says inwards. `None`, and nothing inside is changed, if that is not as nearly all is, or
/// does not understand the mark. Whoever takes it out does the same once more, and finds what is wrong or nothing to change.
#[inline(always)]
fn carry_one(slot: &mut Slot<'_>, sa: &Sa) -> Option<()> {
    let outer_tos = match parse::is_v6(&slot.frame, 0) {
        false => outer_tos::<ipv4::Plain>(slot),
        true => outer_tos::<ipv6::Plain>(slot),
    }?;
    if ecn::leaves_alone(outer_tos, &sa.hot().traits.flags()) {
        return Some(());
    }
    // What taking the content out looks at.
    slot.flow.tos = outer_tos;
    let (at, inner_tos) = inside::<ipv4::Plain>(slot).or_else(|| inside::<ipv6::Plain>(slot))?;
    let tos = ecn::decapsulate(inner_tos, outer_tos, &sa.hot().traits.flags()).ok()?;
    if tos != inner_tos {
        let is_v6 = parse::is_v6(&slot.frame, at);
        content::set_tos(slot.frame.bytes_mut().get_mut(at..)?, is_v6, tos);
    }
    Some(())
}

/// The type of service of a packet's outer header, which was found to be plain.
#[inline(always)]
fn outer_tos<P: PlainHeader>(slot: &Slot<'_>) -> Option<u8> {
    parse::reread::<P>(&slot.frame, 0).map(|header| header.flow().tos)
}

/// Where a packet's content begins, if it is of the family and as nearly all is, and its type of service.
#[inline(always)]
fn inside<P: PlainHeader>(slot: &Slot<'_>) -> Option<(usize, u8)> {
    let content = content::plain_behind::<P>(slot.esp_at.into(), slot)?;
    Some((content.at, content.header.flow().tos))
}
