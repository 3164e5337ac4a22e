//! The fixed part of every XFRM message, and the attributes behind it.

use zerocopy::FromBytes;

use super::attribute::AttributeIter;
use super::event::{UserAcquire, UserExpire, UserPolexpire, UserReport};
use super::netlink::{HEADER_LEN, Header, align};
use super::number::msg;
use super::policy::{UserpolicyDefault, UserpolicyId, UserpolicyInfo};
use super::sa::{AeventId, UsersaFlush, UsersaId, UsersaInfo, UserspiInfo};

/// Length of the fixed part that the kernel demands of a request, `None` for a type that is not
/// of this family. Types that only the kernel sends and never checks have length 0, as there.
pub const fn fixed_len(kind: u16) -> Option<usize> {
    Some(match kind {
        msg::NEWSA | msg::UPDSA => size_of::<UsersaInfo>(),
        msg::DELSA | msg::GETSA => size_of::<UsersaId>(),
        msg::NEWPOLICY | msg::UPDPOLICY => size_of::<UserpolicyInfo>(),
        msg::DELPOLICY | msg::GETPOLICY | msg::MIGRATE => size_of::<UserpolicyId>(),
        msg::ALLOCSPI => size_of::<UserspiInfo>(),
        msg::ACQUIRE => size_of::<UserAcquire>(),
        msg::EXPIRE => size_of::<UserExpire>(),
        msg::POLEXPIRE => size_of::<UserPolexpire>(),
        msg::FLUSHSA => size_of::<UsersaFlush>(),
        msg::FLUSHPOLICY | msg::NEWSADINFO | msg::MAPPING => 0,
        msg::NEWAE | msg::GETAE => size_of::<AeventId>(),
        msg::REPORT => size_of::<UserReport>(),
        msg::GETSADINFO | msg::NEWSPDINFO | msg::GETSPDINFO => size_of::<u32>(),
        msg::SETDEFAULT | msg::GETDEFAULT => size_of::<UserpolicyDefault>(),
        _ => return None,
    })
}

/// The name of a message type, for logs and errors.
pub const fn name(kind: u16) -> &'static str {
    match kind {
        msg::NEWSA => "NEWSA",
        msg::DELSA => "DELSA",
        msg::GETSA => "GETSA",
        msg::NEWPOLICY => "NEWPOLICY",
        msg::DELPOLICY => "DELPOLICY",
        msg::GETPOLICY => "GETPOLICY",
        msg::ALLOCSPI => "ALLOCSPI",
        msg::ACQUIRE => "ACQUIRE",
        msg::EXPIRE => "EXPIRE",
        msg::UPDPOLICY => "UPDPOLICY",
        msg::UPDSA => "UPDSA",
        msg::POLEXPIRE => "POLEXPIRE",
        msg::FLUSHSA => "FLUSHSA",
        msg::FLUSHPOLICY => "FLUSHPOLICY",
        msg::NEWAE => "NEWAE",
        msg::GETAE => "GETAE",
        msg::REPORT => "REPORT",
        msg::MIGRATE => "MIGRATE",
        msg::NEWSADINFO => "NEWSADINFO",
        msg::GETSADINFO => "GETSADINFO",
        msg::NEWSPDINFO => "NEWSPDINFO",
        msg::GETSPDINFO => "GETSPDINFO",
        msg::MAPPING => "MAPPING",
        msg::SETDEFAULT => "SETDEFAULT",
        msg::GETDEFAULT => "GETDEFAULT",
        _ => "unknown",
    }
}

/// A message whose length was checked: the fixed part that its type demands is there.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Its netlink header.
    pub header: Header,
    body: &'a [u8],
    fixed_len: usize,
}

impl<'a> Message<'a> {
    /// Takes a message as [`super::Datagram`] yields it, expecting a fixed part of `fixed_len`
    /// bytes. `None` when it is shorter.
    pub fn new(header: Header, bytes: &'a [u8], fixed_len: usize) -> Option<Self> {
        let body = bytes.get(HEADER_LEN..).filter(|body| body.len() >= fixed_len)?;
        Some(Self { header, body, fixed_len })
    }

    /// The fixed part. `None` only when `T` is longer than the part that was asked for.
    pub fn fixed<T: FromBytes>(&self) -> Option<T> {
        T::read_from_prefix(&self.body[..self.fixed_len]).ok().map(|(value, _)| value)
    }

    /// The bytes of the attributes.
    pub fn attribute_bytes(&self) -> &'a [u8] {
        &self.body[self.attributes_at().min(self.body.len())..]
    }

    /// Where the attributes begin, counted from the message's header.
    pub fn attributes_offset(&self) -> usize {
        HEADER_LEN + self.attributes_at()
    }

    /// The attributes.
    pub fn attributes(&self) -> AttributeIter<'a> {
        AttributeIter::new(self.attribute_bytes())
    }

    fn attributes_at(&self) -> usize {
        align(self.fixed_len)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::super::builder::Builder;
    use super::super::netlink::Datagram;
    use super::super::number::attr;
    use super::*;

    #[test]
    fn every_type_of_the_family_has_a_length_and_a_name() {
        for kind in msg::BASE..=msg::MAX {
            assert!(fixed_len(kind).is_some(), "{kind}");
            assert_ne!(name(kind), "unknown", "{kind}");
        }
        assert_eq!(fixed_len(msg::BASE - 1), None);
        assert_eq!(fixed_len(msg::MAX + 1), None);
    }

    #[test]
    fn fixed_part_and_attributes_are_found() {
        let mut out = Vec::new();
        let id = UsersaId { proto: 50, family: 2, ..UsersaId::default() };
        Builder::new(&mut out, Header { kind: msg::GETSA, ..Header::default() })
            .fixed(&id)
            .attribute(attr::IF_ID, &3u32)
            .finish();
        let (header, bytes) = Datagram::new(&out).next().unwrap();
        let message = Message::new(header, bytes, fixed_len(header.kind).unwrap()).unwrap();
        assert_eq!(message.fixed::<UsersaId>(), Some(id));
        assert_eq!(message.fixed::<UsersaInfo>(), None);
        assert_eq!(message.attributes().next().unwrap().read(), Some(3u32));
        assert_eq!(message.attributes_offset(), 40);
    }

    #[test]
    fn a_short_message_is_refused_and_an_unpadded_one_has_no_attributes() {
        let header = Header { len: 17, kind: msg::FLUSHSA, ..Header::default() };
        let mut bytes = header.as_bytes().to_vec();
        assert!(Message::new(header, &bytes, 1).is_none());
        bytes.push(50);
        let message = Message::new(header, &bytes, 1).unwrap();
        assert_eq!(message.fixed::<UsersaFlush>(), Some(UsersaFlush { proto: 50 }));
        assert_eq!(message.attributes().count(), 0);
    }
}
