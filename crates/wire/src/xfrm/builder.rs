//! Builds messages into a vector, one after the other.

use zerocopy::{Immutable, IntoBytes};

use super::attribute::{ATTRIBUTE_HEADER_LEN, AttributeHeader};
use super::netlink::{Header, align};

/// One message under construction. [`Builder::finish`] writes its length, and so ends every message.
#[derive(Debug)]
#[must_use = "a message without its length is not one"]
pub struct Builder<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Builder<'a> {
    /// Starts a message at the end of `out`. `header.len` is ignored.
    pub fn new(out: &'a mut Vec<u8>, header: Header) -> Self {
        let start = out.len();
        out.extend_from_slice(header.as_bytes());
        Self { out, start }
    }

    /// Adds a fixed part, and pads it.
    pub fn fixed<T: IntoBytes + Immutable>(self, value: &T) -> Self {
        self.raw(value.as_bytes())
    }

    /// Adds bytes, and pads them.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.out.extend_from_slice(bytes);
        self.pad();
        self
    }

    /// Adds an attribute with a value.
    pub fn attribute<T: IntoBytes + Immutable + ?Sized>(self, kind: u16, value: &T) -> Self {
        self.attribute_parts(kind, &[value.as_bytes()])
    }

    /// Adds an attribute when there is a value.
    pub fn attribute_if<T: IntoBytes + Immutable>(self, kind: u16, value: Option<T>) -> Self {
        match value {
            Some(value) => self.attribute(kind, &value),
            None => self,
        }
    }

    /// Adds an attribute whose value is the given pieces, one after the other. A value too long
    /// for the 16-bit length of an attribute is left out: half of it would be a lie.
    pub fn attribute_parts(mut self, kind: u16, parts: &[&[u8]]) -> Self {
        let len = ATTRIBUTE_HEADER_LEN + parts.iter().map(|part| part.len()).sum::<usize>();
        let Ok(len) = u16::try_from(len) else {
            return self;
        };
        self.out.extend_from_slice(AttributeHeader { len, kind }.as_bytes());
        for part in parts {
            self.out.extend_from_slice(part);
        }
        self.pad();
        self
    }

    /// Length of the message so far.
    pub fn message_len(&self) -> usize {
        self.out.len() - self.start
    }

    /// Writes the length into the header.
    pub fn finish(self) {
        let len = self.message_len() as u32;
        self.out[self.start..self.start + 4].copy_from_slice(&len.to_ne_bytes());
    }

    fn pad(&mut self) {
        // Relative to the message: netlink pads within a message, and messages start aligned.
        let len = align(self.message_len());
        self.out.resize(self.start + len, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::netlink::Datagram;
    use super::super::{attribute::AttributeIter, number::attr};
    use super::*;

    #[test]
    fn what_is_built_is_read_back() {
        let mut out = Vec::new();
        Builder::new(&mut out, Header { kind: 0x10, seq: 9, ..Header::default() })
            .fixed(&[1u8, 2, 3])
            .attribute(attr::IF_ID, &7u32)
            .attribute_if::<u32>(attr::SA_PCPU, None)
            .attribute_parts(attr::PROTO, &[&[5], &[6]])
            .finish();
        let (header, message) = Datagram::new(&out).next().unwrap();
        assert_eq!((header.kind, header.seq, message.len()), (0x10, 9, 16 + 4 + 8 + 8));
        let seen: Vec<_> =
            AttributeIter::new(&message[20..]).map(|a| (a.kind, a.payload)).collect();
        assert_eq!(seen, [(attr::IF_ID, &7u32.to_ne_bytes()[..]), (attr::PROTO, &[5, 6])]);
    }

    #[test]
    fn a_value_that_cannot_fit_is_left_out() {
        let mut out = Vec::new();
        let message = Builder::new(&mut out, Header::default());
        let message = message.attribute_parts(1, &[&[0; 70_000]]);
        assert_eq!(message.message_len(), 16);
    }
}
