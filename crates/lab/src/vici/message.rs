//! The tree of a VICI message, to bytes and back.
//!
//! ```text
//!   1 length name            section begins       2  section ends
//!   3 length name  LL value  key and value
//!   4 length name            list begins          5  LL value: item     6  list ends
//! ```
//!
//! `length` is one byte, `LL` two in network order. Decoding trusts nothing: depth is limited, and
//! no length is believed before the bytes are there.

use thiserror::Error;

const SECTION_START: u8 = 1;
const SECTION_END: u8 = 2;
const KEY_VALUE: u8 = 3;
const LIST_START: u8 = 4;
const LIST_ITEM: u8 = 5;
const LIST_END: u8 = 6;
/// Deepest nesting that is read; the daemon's own answers have five levels.
const DEPTH_MAX: u32 = 32;

/// An ordered list of named elements: a whole message, or a section of one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    elements: Vec<(String, Element)>,
}

/// What stands under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    /// A value: text, or the bytes of a key.
    Value(Vec<u8>),
    /// Values in order.
    List(Vec<Vec<u8>>),
    /// More elements.
    Section(Message),
}

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// A length points past the end.
    #[error("it ends inside an element")]
    Truncated,
    /// An element type that does not exist, or not there.
    #[error("element type {0} is out of place")]
    Element(u8),
    /// A section or list is not closed, or the nesting is deeper than any daemon's.
    #[error("its sections do not nest")]
    Nesting,
    /// A name that is not text.
    #[error("a name is not text")]
    Name,
}

impl Message {
    /// A message without elements.
    pub fn new() -> Message {
        Message::default()
    }

    /// The same with a value at the end.
    #[must_use]
    pub fn value(mut self, name: &str, value: impl AsRef<[u8]>) -> Message {
        self.elements.push((name.to_owned(), Element::Value(value.as_ref().to_vec())));
        self
    }

    /// The same with a list at the end.
    #[must_use]
    pub fn list<T: AsRef<[u8]>>(
        mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
    ) -> Message {
        let items = items.into_iter().map(|item| item.as_ref().to_vec()).collect();
        self.elements.push((name.to_owned(), Element::List(items)));
        self
    }

    /// The same with a section at the end.
    #[must_use]
    pub fn section(mut self, name: &str, section: Message) -> Message {
        self.elements.push((name.to_owned(), Element::Section(section)));
        self
    }

    /// The elements in order.
    pub fn elements(&self) -> impl Iterator<Item = (&str, &Element)> {
        self.elements.iter().map(|(name, element)| (name.as_str(), element))
    }

    /// The text of a value; nothing if there is no such value or it is not text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.elements().find_map(|(own, element)| match element {
            Element::Value(value) if own == name => std::str::from_utf8(value).ok(),
            _ => None,
        })
    }

    /// A section by its name.
    pub fn part(&self, name: &str) -> Option<&Message> {
        self.parts().find_map(|(own, section)| (own == name).then_some(section))
    }

    /// All sections with their names.
    pub fn parts(&self) -> impl Iterator<Item = (&str, &Message)> {
        self.elements().filter_map(|(name, element)| match element {
            Element::Section(section) => Some((name, section)),
            _ => None,
        })
    }

    /// Appends the encoding. Names longer than 255 bytes and values longer than 65 535, which the
    /// protocol cannot carry, are cut; nothing here writes such.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        for (name, element) in &self.elements {
            match element {
                Element::Value(value) => {
                    put_name(bytes, KEY_VALUE, name);
                    put_value(bytes, value);
                }
                Element::List(items) => {
                    put_name(bytes, LIST_START, name);
                    for item in items {
                        bytes.push(LIST_ITEM);
                        put_value(bytes, item);
                    }
                    bytes.push(LIST_END);
                }
                Element::Section(section) => {
                    put_name(bytes, SECTION_START, name);
                    section.encode(bytes);
                    bytes.push(SECTION_END);
                }
            }
        }
    }

    /// Reads a whole message.
    ///
    /// # Errors
    /// [`DecodeError`] with what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
        let mut reader = Reader { bytes };
        let message = reader.section(0)?;
        if reader.bytes.is_empty() { Ok(message) } else { Err(DecodeError::Nesting) }
    }
}

fn put_name(bytes: &mut Vec<u8>, kind: u8, name: &str) {
    let name = &name.as_bytes()[..name.len().min(usize::from(u8::MAX))];
    bytes.extend([kind, name.len() as u8]);
    bytes.extend(name);
}

fn put_value(bytes: &mut Vec<u8>, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    bytes.extend((value.len() as u16).to_be_bytes());
    bytes.extend(value);
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    /// Elements up to the end of the section; of the whole message at depth 0.
    fn section(&mut self, depth: u32) -> Result<Message, DecodeError> {
        if depth > DEPTH_MAX {
            return Err(DecodeError::Nesting);
        }
        let mut message = Message::new();
        while let Some((&kind, rest)) = self.bytes.split_first() {
            self.bytes = rest;
            let (name, element) = match kind {
                KEY_VALUE => (self.name()?, Element::Value(self.value()?)),
                LIST_START => (self.name()?, Element::List(self.items()?)),
                SECTION_START => (self.name()?, Element::Section(self.section(depth + 1)?)),
                SECTION_END if depth > 0 => return Ok(message),
                other => return Err(DecodeError::Element(other)),
            };
            message.elements.push((name, element));
        }
        if depth == 0 { Ok(message) } else { Err(DecodeError::Nesting) }
    }

    fn items(&mut self) -> Result<Vec<Vec<u8>>, DecodeError> {
        let mut items = Vec::new();
        loop {
            match self.take(1)?[0] {
                LIST_ITEM => items.push(self.value()?),
                LIST_END => return Ok(items),
                other => return Err(DecodeError::Element(other)),
            }
        }
    }

    fn name(&mut self) -> Result<String, DecodeError> {
        let length = self.take(1)?[0];
        let name = self.take(length.into())?;
        String::from_utf8(name.to_vec()).map_err(|_| DecodeError::Name)
    }

    fn value(&mut self) -> Result<Vec<u8>, DecodeError> {
        let length = self.take(2)?;
        let length = u16::from_be_bytes([length[0], length[1]]);
        Ok(self.take(length.into())?.to_vec())
    }

    fn take(&mut self, length: usize) -> Result<&[u8], DecodeError> {
        let (head, rest) = self.bytes.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.bytes = rest;
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example in the protocol's description, byte for byte.
    #[test]
    fn the_documented_example() {
        let message = Message::new().value("key1", "value1").section(
            "section1",
            Message::new()
                .section("sub-section", Message::new().value("key2", "value2"))
                .list("list1", ["item1", "item2"]),
        );
        let bytes = b"\x03\x04key1\x00\x06value1\x01\x08section1\x01\x0bsub-section\x03\x04key2\
            \x00\x06value2\x02\x04\x05list1\x05\x00\x05item1\x05\x00\x05item2\x06\x02";
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        assert_eq!(encoded, bytes);
        assert_eq!(Message::decode(bytes), Ok(message.clone()));
        let section = message.part("section1").unwrap();
        assert_eq!(section.part("sub-section").unwrap().text("key2"), Some("value2"));
        assert_eq!((message.text("key2"), message.part("key1")), (None, None));
    }

    #[test]
    fn what_is_no_message_is_named() {
        for (bytes, error) in [
            (&b"\x03\x04key1\x00\x06val"[..], DecodeError::Truncated),
            (b"\x01\x01a", DecodeError::Nesting),
            (b"\x02", DecodeError::Element(2)),
            (b"\x04\x01a\x03", DecodeError::Element(3)),
            (b"\x03\x01\xff\x00\x00", DecodeError::Name),
            (b"\x00", DecodeError::Element(0)),
        ] {
            assert_eq!(Message::decode(bytes), Err(error), "{bytes:?}");
        }
        let deep: Vec<u8> = b"\x01\x01a".repeat(100_000);
        assert_eq!(Message::decode(&deep), Err(DecodeError::Nesting));
    }

    fn tree() -> impl Strategy<Value = Message> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..20);
        let leaf = prop_oneof![
            bytes().prop_map(Element::Value),
            prop::collection::vec(bytes(), 0..4).prop_map(Element::List),
        ];
        let element = leaf.prop_recursive(4, 40, 5, |inner| {
            prop::collection::vec(("[a-z.-]{1,12}", inner), 0..5)
                .prop_map(|elements| Element::Section(Message { elements }))
        });
        prop::collection::vec(("[a-z.-]{1,12}", element), 0..6)
            .prop_map(|elements| Message { elements })
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(message in tree()) {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            prop_assert_eq!(Message::decode(&bytes), Ok(message));
        }

        #[test]
        fn arbitrary_and_damaged_bytes_never_panic(
            message in tree(),
            noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = vec![0];
            message.encode(&mut bytes);
            for (at, byte) in noise {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let _ = Message::decode(&bytes[1..]);
            let _ = Message::decode(&bytes[..cut.index(bytes.len())]);
        }
    }
}
