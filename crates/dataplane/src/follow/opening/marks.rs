//! What the outer headers of ESP packets say that is carried inwards once they are decrypted: marks of congestion (RFC 6040
//! §4.2), and the DSCP where an SA is told to.
//!
//! Whoever opens packets takes note of those that have any, and goes over them when all are decrypted: a look at what only just
//! was would keep the processor waiting.

use wire::{Overlay, ipv4, ipv6};

use crate::batch::{BATCH_PACKETS, Slot};
use crate::content::{self, Plain};
use crate::ecn;
use crate::plain::PlainHeader;
use crate::sa::Sa;

/// Of which packets of a batch something may be carried inwards: a bit for each.
#[derive(Clone, Copy, Default)]
pub(in crate::follow) struct Marks(u64);

const _: () = assert!(BATCH_PACKETS <= u64::BITS as usize);

impl Marks {
    /// Takes note of the outer type of service of a packet, one of the first of a batch.
    #[inline(always)]
    pub(in crate::follow) fn note(&mut self, at: usize, tos: u8, sa: &Sa) {
        let is_marked = !ecn::leaves_alone(tos, &sa.hot().traits.flags());
        self.0 |= u64::from(is_marked) << at;
    }

    /// Carries it inwards, of packets that were [taken up](super::take_up) and decrypted, each by the SA that `of` names; how many there
    /// are before the first that is to be parked.
    #[inline(always)]
    pub(in crate::follow) fn carry_inwards<'v>(
        self,
        slots: &mut [Slot<'v>],
        of: impl Fn(usize, &Slot<'v>) -> Option<&'v Sa>,
    ) -> usize {
        if self.0 == 0 { slots.len() } else { self.carry_all(slots, of) }
    }

    #[inline(never)]
    fn carry_all<'v>(
        self,
        slots: &mut [Slot<'v>],
        of: impl Fn(usize, &Slot<'v>) -> Option<&'v Sa>,
    ) -> usize {
        let (mut carried, mut left) = (slots.len(), self.0);
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            let Some(slot) = slots.get_mut(at).filter(|slot| slot.verdict.is_none()) else {
                continue;
            };
            // Behind one to be parked as well, as it may be that they will be.
            if of(at, slot).is_some_and(|sa| carry_one(slot, sa).is_none()) {
                carried = carried.min(at);
            }
        }
        carried
    }
}

/// Carries what a packet's outer header says inwards. `None`, and nothing inside is changed, if that is not as nearly all is, or
/// does not understand the mark. Whoever takes it out does the same once more, and finds what is wrong or nothing to change.
#[inline(always)]
fn carry_one(slot: &mut Slot<'_>, sa: &Sa) -> Option<()> {
    let outer_tos = outer_tos(slot.frame.bytes())?;
    // What taking the content out looks at.
    slot.flow.tos = outer_tos;
    let esp_at = usize::from(slot.esp_at);
    let inside = match content::plain_behind::<ipv4::Plain>(esp_at, slot) {
        Some(Plain { at, header, .. }) => (at, header.flow().tos, false),
        None => {
            let Plain { at, header, .. } = content::plain_behind::<ipv6::Plain>(esp_at, slot)?;
            (at, header.flow().tos, true)
        }
    };
    let (at, inner_tos, is_v6) = inside;
    let tos = ecn::decapsulate(inner_tos, outer_tos, &sa.hot().traits.flags()).ok()?;
    if tos != inner_tos {
        content::set_tos(slot.frame.bytes_mut().get_mut(at..)?, is_v6, tos);
    }
    Some(())
}

/// The type of service of a packet's first header.
#[inline(always)]
fn outer_tos(packet: &[u8]) -> Option<u8> {
    match packet.first()? >> 4 {
        4 => ipv4::Header::over(packet).ok().map(|(header, _)| header.tos()),
        _ => ipv6::Header::over(packet).ok().map(|(header, _)| header.traffic_class()),
    }
}
