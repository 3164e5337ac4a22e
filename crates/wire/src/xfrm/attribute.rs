//! Attributes: type, length, value, padded to four bytes.
//!
//! [`AttributeIter`] is bounded by the bytes it was given and by nothing that they say.
//! [`Attributes`] is the table that the kernel's parser fills: the last of each type wins, types
//! out of range are skipped, trailing garbage is ignored.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::netlink::align;
use super::number::attr;

/// Length of the header of an attribute.
pub const ATTRIBUTE_HEADER_LEN: usize = 4;

/// The bits of `nla_type` that are the type; the others say "nested" and "network order".
const TYPE_MASK: u16 = 0x3fff;
/// The bit of `nla_type` that says "nested".
const NESTED: u16 = 0x8000;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct AttributeHeader {
    pub(super) len: u16,
    pub(super) kind: u16,
}

/// One attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Type, without its flag bits.
    pub kind: u16,
    /// Whether the sender set the flag bit for nested attributes.
    pub nested: bool,
    /// Value without padding.
    pub payload: &'a [u8],
    /// Where the attribute's header begins, counted from the start of the bytes walked over.
    pub offset: usize,
}

impl Attribute<'_> {
    /// The value's first bytes as a `T`; `None` when there are too few. More are allowed, as the
    /// kernel allows them.
    pub fn read<T: FromBytes>(&self) -> Option<T> {
        T::read_from_prefix(self.payload).ok().map(|(value, _)| value)
    }
}

/// Walks over attributes.
#[derive(Clone, Debug)]
pub struct AttributeIter<'a> {
    bytes: &'a [u8],
    at: usize,
    leftover: bool,
}

impl<'a> AttributeIter<'a> {
    /// Over the bytes behind a message's fixed part.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, leftover: false }
    }
}

impl<'a> Iterator for AttributeIter<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..)?;
        let header = AttributeHeader::read_from_prefix(rest).ok().map(|(header, _)| header);
        let len = header.as_ref().map_or(0, |header| usize::from(header.len));
        let (Some(header), true) = (header, (ATTRIBUTE_HEADER_LEN..=rest.len()).contains(&len))
        else {
            self.leftover |= !rest.is_empty();
            self.at = self.bytes.len();
            return None;
        };
        let attribute = Attribute {
            kind: header.kind & TYPE_MASK,
            nested: header.kind & NESTED != 0,
            payload: &rest[ATTRIBUTE_HEADER_LEN..len],
            offset: self.at,
        };
        self.at += align(len);
        Some(attribute)
    }
}

/// The attributes of one message, by type.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    by_type: [Option<Attribute<'a>>; attr::MAX as usize + 1],
    /// Bytes were left over behind the last attribute that could be read.
    pub leftover: bool,
}

impl<'a> Attributes<'a> {
    /// Fills the table from `bytes`; `check` sees every attribute whose type is in range, in order,
    /// and may stop the parse.
    ///
    /// # Errors
    ///
    /// The first that `check` returns.
    pub fn parse<E>(
        bytes: &'a [u8],
        max: u16,
        mut check: impl FnMut(&Attribute<'a>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut by_type = [None; attr::MAX as usize + 1];
        let max = max.min(attr::MAX);
        let mut attributes = AttributeIter::new(bytes);
        for attribute in attributes.by_ref() {
            if attribute.kind == 0 || attribute.kind > max {
                continue;
            }
            check(&attribute)?;
            by_type[usize::from(attribute.kind)] = Some(attribute);
        }
        Ok(Self { by_type, leftover: attributes.leftover })
    }

    /// The attribute of a type, if it was there.
    pub fn get(&self, kind: u16) -> Option<&Attribute<'a>> {
        self.by_type.get(usize::from(kind))?.as_ref()
    }

    /// Whether it was there.
    pub fn has(&self, kind: u16) -> bool {
        self.get(kind).is_some()
    }

    /// Its value as a `T`; `None` when it is absent or too short.
    pub fn read<T: FromBytes>(&self, kind: u16) -> Option<T> {
        self.get(kind)?.read()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn parse(bytes: &[u8]) -> Attributes<'_> {
        let Ok(table) = Attributes::parse(bytes, attr::MAX, |_| Ok::<(), Infallible>(()));
        table
    }

    fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(((payload.len() + 4) as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(payload);
        bytes.resize(align(bytes.len()), 0);
        bytes
    }

    #[test]
    fn last_one_wins_and_unknown_ones_are_skipped() {
        let mut bytes = attribute(attr::IF_ID, &1u32.to_ne_bytes());
        bytes.extend(attribute(900, &[1, 2, 3]));
        bytes.extend(attribute(0, &[]));
        bytes.extend(attribute(attr::IF_ID, &2u32.to_ne_bytes()));
        assert_eq!(parse(&bytes).read::<u32>(attr::IF_ID), Some(2));
    }

    #[test]
    fn flag_bits_are_not_part_of_the_type() {
        let table = attribute(attr::IF_ID | 0x8000, &[0; 4]);
        assert!(parse(&table).get(attr::IF_ID).unwrap().nested);
    }

    #[test]
    fn impossible_lengths_end_the_walk() {
        for len in [0u16, 3, 9, u16::MAX] {
            let mut bytes = attribute(attr::IF_ID, &[0; 4]);
            bytes.extend(len.to_ne_bytes());
            bytes.extend(attr::MARK.to_ne_bytes());
            bytes.extend([0; 4]);
            let table = parse(&bytes);
            assert!(table.has(attr::IF_ID) && !table.has(attr::MARK), "length {len}");
            assert!(table.leftover, "length {len}");
        }
        assert!(!parse(&attribute(attr::IF_ID, &[0; 3])).leftover);
    }

    #[test]
    fn short_values_read_as_absent() {
        let bytes = attribute(attr::IF_ID, &[1, 2]);
        assert_eq!(parse(&bytes).read::<u32>(attr::IF_ID), None);
        assert_eq!(parse(&bytes).read::<u32>(attr::MARK), None);
        assert_eq!(parse(&bytes).get(u16::MAX), None);
    }
}
