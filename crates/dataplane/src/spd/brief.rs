//! What a policy selects as a table of a tuple has it: found by a hash, and compared where it lies.
//!
//! With the references to their policies two of IPv4 are a cache line, of IPv6 two lines.

use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::fields::{Address, Fields, Shape};
use crate::table::Table;

/// A hash of the bits that a mask sees, which names what lies in a place. Others may have the same: what is
/// there is compared anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(pub(super) u32);

/// A table by tags, or by what has one.
pub(super) type Tagged<K, V> = Table<K, V, 2, BuildHasherDefault<OfTag>>;

impl Tag {
    /// A table's hash of it: in the lower half its first bits choose the line, in the upper half its last
    /// ones the shard.
    #[inline]
    pub(super) fn spread(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

impl Hash for Tag {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.spread());
    }
}

/// What hashes a tag for its table: nothing is left to be done.
#[derive(Default)]
pub(super) struct OfTag(u64);

impl Hasher for OfTag {
    /// Not what a tag does.
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A [`Shape`] of which each port counts whole or not at all, as nearly always. It is known by its tag
/// alone: in a table there is one with each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brief<A> {
    source: A,
    destination: A,
    ports: u32,
    if_id: u32,
    pub(super) tag: Tag,
    source_len: u8,
    destination_len: u8,
    protocol: u8,
    whole: Whole,
}

/// Which ports count.
#[derive(Clone, Copy, Debug)]
enum Whole {
    Neither,
    Destination,
    Source,
    Both,
}

impl Whole {
    #[inline]
    fn mask(self) -> u32 {
        static MASKS: [u32; 4] = [0, 0x0000_ffff, 0xffff_0000, 0xffff_ffff];
        MASKS[self as usize]
    }
}

impl<A> PartialEq for Brief<A> {
    fn eq(&self, other: &Brief<A>) -> bool {
        self.tag == other.tag
    }
}

impl<A> Eq for Brief<A> {}

impl<A> Hash for Brief<A> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.tag.hash(state);
    }
}

impl<A: Address> Brief<A> {
    /// A shape, if it can be told so briefly.
    pub(super) fn of(shape: &Shape<A>, tag: Tag) -> Option<Brief<A>> {
        let all = [Whole::Neither, Whole::Destination, Whole::Source, Whole::Both];
        let whole = all.into_iter().find(|whole| whole.mask() == shape.port_mask)?;
        Some(Brief { whole, ..Brief::with(shape, tag) })
    }

    /// One to ask a table by, of which the tag counts.
    pub(super) fn with(shape: &Shape<A>, tag: Tag) -> Brief<A> {
        Brief {
            source: shape.source,
            destination: shape.destination,
            ports: shape.ports,
            if_id: shape.if_id,
            tag,
            source_len: shape.source_len,
            destination_len: shape.destination_len,
            protocol: shape.protocol,
            whole: Whole::Neither,
        }
    }

    /// Whether a flow is selected.
    #[inline(always)]
    pub(super) fn selects(&self, flow: &Fields<A>) -> bool {
        self.shape().selects(flow)
    }

    /// The shape.
    #[inline(always)]
    pub(super) fn shape(&self) -> Shape<A> {
        Shape {
            source: self.source,
            destination: self.destination,
            ports: self.ports,
            port_mask: self.whole.mask(),
            if_id: self.if_id,
            source_len: self.source_len,
            destination_len: self.destination_len,
            protocol: self.protocol,
        }
    }
}
