//! The netlink frame around every message: header, alignment, errors, end of dump.
//!
//! A datagram holds any number of messages, each rounded up to four bytes. [`Datagram`] walks over
//! them the way the kernel does, including where it gives up.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Length of [`Header`].
pub const HEADER_LEN: usize = 16;

/// `nlmsg_type` of a message that says nothing.
pub const NLMSG_NOOP: u16 = 1;
/// `nlmsg_type` of an error, or of an acknowledgement when the error is 0.
pub const NLMSG_ERROR: u16 = 2;
/// `nlmsg_type` at the end of a dump.
pub const NLMSG_DONE: u16 = 3;
/// `nlmsg_type` that says that messages were lost.
pub const NLMSG_OVERRUN: u16 = 4;
/// First `nlmsg_type` that belongs to a family.
pub const NLMSG_MIN_TYPE: u16 = 16;

/// It is a request.
pub const NLM_F_REQUEST: u16 = 0x01;
/// Part of several messages that end in `NLMSG_DONE`.
pub const NLM_F_MULTI: u16 = 0x02;
/// Answer even when all is well.
pub const NLM_F_ACK: u16 = 0x04;
/// Replace what is there (new requests).
pub const NLM_F_REPLACE: u16 = 0x100;
/// Do not touch what is there (new requests).
pub const NLM_F_EXCL: u16 = 0x200;
/// Return all of them (get requests). Either bit of the two starts a dump.
pub const NLM_F_DUMP: u16 = 0x300;
/// The request quoted in an error is only its header.
pub const NLM_F_CAPPED: u16 = 0x100;
/// Attributes follow the quoted request.
pub const NLM_F_ACK_TLVS: u16 = 0x200;

/// Attribute of an error: text.
pub const NLMSGERR_ATTR_MSG: u16 = 1;
/// Attribute of an error: offset of the bad attribute in the request.
pub const NLMSGERR_ATTR_OFFS: u16 = 2;
/// Attribute of an error: what the bad attribute's value should have been, nested.
pub const NLMSGERR_ATTR_POLICY: u16 = 4;
/// Flag of an attribute's type: its value is attributes.
pub const NLA_F_NESTED: u16 = 0x8000;

/// `NLA_ALIGN` and `NLMSG_ALIGN`: the next multiple of four.
pub const fn align(len: usize) -> usize {
    len.saturating_add(3) & !3
}

/// `nlmsghdr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Header {
    /// Length of header and payload.
    pub len: u32,
    /// Message type.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// Sequence number, chosen by who asks.
    pub seq: u32,
    /// Port of who sends, 0 for the kernel.
    pub pid: u32,
}

const _: () = assert!(size_of::<Header>() == HEADER_LEN);

/// The value of `NLMSGERR_ATTR_POLICY` for an integer: its range and its kind, as attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, packed)]
pub struct AttributePolicy {
    min_head: [u16; 2],
    min: u64,
    max_head: [u16; 2],
    max: u64,
    kind_head: [u16; 2],
    kind: u32,
}

impl AttributePolicy {
    /// For an unsigned integer of `bytes` bytes.
    pub const fn integer(bytes: usize, min: u64, max: u64) -> Self {
        /// `NL_POLICY_TYPE_ATTR_MIN_VALUE_U`, `_MAX_VALUE_U` and `_TYPE`.
        const KINDS: [u16; 3] = [4, 5, 1];
        // `NL_ATTR_TYPE_U8` is 2, and so on in powers of two.
        let kind = bytes.trailing_zeros() + 2;
        let [min_kind, max_kind, kind_kind] = KINDS;
        Self {
            min_head: [12, min_kind],
            min,
            max_head: [12, max_kind],
            max,
            kind_head: [8, kind_kind],
            kind,
        }
    }
}

const _: () = assert!(size_of::<AttributePolicy>() == 32);

/// The messages of one datagram.
///
/// The walk stops at the first message whose length is less than a header or more than what is
/// left: whatever follows cannot be told apart and is ignored, as the kernel ignores it.
#[derive(Clone, Debug)]
pub struct Datagram<'a> {
    rest: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Over the bytes of one datagram.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Datagram<'a> {
    /// The header, and the whole message that it begins.
    type Item = (Header, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, _) = Header::read_from_prefix(self.rest).ok()?;
        let len = header.len as usize;
        if len < HEADER_LEN || len > self.rest.len() {
            self.rest = &[];
            return None;
        }
        let message = &self.rest[..len];
        self.rest = &self.rest[align(len).min(self.rest.len())..];
        Some((header, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(len: u32, kind: u16) -> Vec<u8> {
        Header { len, kind, ..Header::default() }.as_bytes().to_vec()
    }

    #[test]
    fn walks_over_padded_messages() {
        let mut bytes = message(18, 1);
        bytes.extend([7, 8, 0, 0]);
        bytes.extend(message(16, 2));
        let seen: Vec<_> = Datagram::new(&bytes).map(|(h, m)| (h.kind, m.len())).collect();
        assert_eq!(seen, [(1, 18), (2, 16)]);
    }

    #[test]
    fn the_last_message_may_lack_its_padding() {
        let mut bytes = message(18, 1);
        bytes.extend([7, 8]);
        assert_eq!(Datagram::new(&bytes).count(), 1);
    }

    #[test]
    fn stops_at_lengths_that_cannot_be() {
        for len in [0, 15, 17, u32::MAX] {
            let mut bytes = message(16, 1);
            bytes.extend(message(len, 2));
            assert_eq!(Datagram::new(&bytes).count(), 1, "length {len}");
        }
        assert_eq!(Datagram::new(&[0; 15]).count(), 0);
    }
}
