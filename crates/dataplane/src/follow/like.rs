//! What packets have in common that follow each other.

use wire::flow::{self, Flow, Fragment};

use super::several::MIXER;
use crate::batch::Slot;
use crate::classify::is_local;
use crate::inspect::may_be_martians;
use crate::parse;
use crate::plain::PlainHeader;
use crate::policy::{Address, Fields};
use crate::prefix::Family;
use crate::route::Way;
use crate::view::View;

/// The port that packets come in by, and its address as bits.
pub(super) struct Entry {
    pub(super) ingress: u16,
    pub(super) mac: u64,
}

impl Entry {
    /// That of a packet.
    pub(super) fn of(slot: &Slot<'_>, view: &View) -> Entry {
        Entry { ingress: slot.ingress, mac: parse::mac_bits(slot, view) }
    }
}

/// Those bits of a flow of a family that policies and routes look at.
#[derive(Clone, Copy)]
pub(super) struct Mask<P: PlainHeader> {
    pub(super) fields: Fields<P::Bits>,
    /// The same as they stand in a header.
    ends: P::Ends,
}

/// What packets of a family have in common that follow each other, and where they leave.
pub(super) struct Like<P: PlainHeader> {
    /// The bits that are looked at, and what they are.
    mask: Mask<P>,
    flow: Fields<P::Bits>,
    /// The same as they stand in a header.
    ends: P::Ends,
    /// The mask looks at where addresses begin, so that one is a martian as little as another.
    knows_beginnings: bool,
    pub(super) way: Way,
}

/// The destination that is known not to be of this host, as the unspecified one is, which none has.
pub(super) struct Known<A>(A);

impl<P: PlainHeader> Mask<P> {
    pub(super) fn of(fields: Fields<P::Bits>) -> Mask<P> {
        Mask { fields, ends: P::ends_of(&fields) }
    }

    /// The key of the trail that a packet follows which came by a port, if there is one.
    #[inline(always)]
    pub(super) fn key(&self, header: &P, ingress: u16) -> u64 {
        match flow::shows_ports(header.protocol()) {
            true => key(&header.ends_under(&self.ends), ingress),
            false => self.key_of(header.flow(), ingress),
        }
    }

    /// The same of one that has no ports where others have them.
    #[cold]
    pub(super) fn key_of(&self, flow: Flow, ingress: u16) -> u64 {
        key(&P::ends_of(&Fields::of(&flow, 0).under(&self.fields)), ingress)
    }
}

/// What ends and a port come to, each word by a number of its own.
#[inline(always)]
fn key(ends: &impl AsRef<[u64]>, ingress: u16) -> u64 {
    let words = ends.as_ref().iter().zip(0..);
    words.fold(ingress.into(), |sum: u64, (word, nth)| {
        sum.wrapping_add(word.wrapping_mul(MIXER.rotate_left(11 * nth) | 1))
    })
}

impl<P: PlainHeader> Like<P> {
    /// What a packet of the family has in common with others; `None` if it is of a kind that none follows.
    pub(super) fn of(slot: &Slot<'_>, mask: Fields<P::Bits>, way: Way) -> Option<Like<P>> {
        // Where ports are looked at, fragments are something else, and those of IPv6 are not read here.
        let is_whole = slot.flow.fragment == Fragment::Whole;
        if !is_whole && (mask.ports != 0 || P::FAMILY == Family::V6) {
            return None;
        }
        let mask = Mask::of(mask);
        let flow = Fields::of(&slot.flow, 0).under(&mask.fields);
        let ends = P::ends_of(&flow);
        let knows_beginnings = mask.fields.has_beginnings() && !may_be_martians(&slot.flow);
        Some(Like { mask, flow, ends, knows_beginnings, way })
    }

    /// Whether a packet of the family has that in common, too.
    pub(super) fn is_of(&self, slot: &Slot<'_>) -> bool {
        Fields::of(&slot.flow, 0).under(&self.mask.fields) == self.flow
    }

    pub(super) fn mask(&self) -> &Mask<P> {
        &self.mask
    }

    /// The key of the trail of packets with this in common that came by a port.
    pub(super) fn key(&self, ingress: u16) -> u64 {
        key(&self.ends, ingress)
    }

    /// Whether a packet that is to be forwarded follows.
    #[inline(always)]
    pub(super) fn admits(&self, header: &P, known: &mut Known<P::Bits>, view: &View) -> bool {
        if !flow::shows_ports(header.protocol()) {
            return self.admits_flow(header.flow(), known, view);
        }
        !header.differs(&self.ends, &self.mask.ends)
            && header.hops() > 1
            && (self.knows_beginnings || !may_be_martians(&header.flow()))
            && !known.is_for_host(header.destination(), view)
    }

    /// The same of one that has no ports where others have them. Fewer are such, so that what they are asked is out of the way.
    #[cold]
    fn admits_flow(&self, flow: Flow, known: &mut Known<P::Bits>, view: &View) -> bool {
        let fields = Fields::of(&flow, 0);
        fields.under(&self.mask.fields) == self.flow
            && flow.ttl > 1
            && !may_be_martians(&flow)
            && !known.is_for_host(fields.destination, view)
    }
}

impl<A: Address> Known<A> {
    /// No destination yet.
    pub(super) fn of_none() -> Known<A> {
        Known(A::of(0))
    }

    /// Whether packets to a destination are this host's.
    #[inline(always)]
    pub(super) fn is_for_host(&mut self, destination: A, view: &View) -> bool {
        // Most are for the address that the one before was for.
        if self.0 != destination {
            if view.local.may_contain(&destination.address()) && is_for_host(destination, view) {
                return true;
            }
            self.0 = destination;
        }
        false
    }
}

/// By value, and out of line: a flow that a reference leads to would be written to memory for each packet.
#[inline(never)]
fn is_for_host<A: Address>(destination: A, view: &View) -> bool {
    is_local(&destination.address(), view)
}
