//! ICMP (RFC 792) and ICMPv6 (RFC 4443): type and code, which is what a selector can ask for.
//! Messages are not built and their checksums not verified here.

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Malformed, Overlay};

/// Length in bytes of what all messages have in common.
pub const HEADER_LEN: usize = 4;

const _: () = assert!(size_of::<Header>() == HEADER_LEN);

/// Types of ICMP for IPv4.
pub mod v4 {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Code of [`UNREACHABLE`]: fragmentation needed (RFC 1191 §4).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
}

/// Types of ICMPv6.
pub mod v6 {
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;

    /// Whether the type is one of neighbour discovery's five (RFC 4861): the kernel's own.
    #[inline]
    pub const fn is_neighbour_discovery(kind: u8) -> bool {
        matches!(kind, 133..=137)
    }
}

/// What all messages have in common.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Header {
    kind: u8,
    code: u8,
    checksum: U16,
}

impl Overlay for Header {}

impl Header {
    /// The message type.
    #[inline]
    pub const fn kind(&self) -> u8 {
        self.kind
    }

    /// The code, which refines the type.
    #[inline]
    pub const fn code(&self) -> u8 {
        self.code
    }

    /// The checksum as it stands; for ICMPv6 it covers a pseudo header.
    #[inline]
    pub fn checksum(&self) -> u16 {
        self.checksum.get()
    }
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Type, code and checksum.
    pub header: &'a Header,
    /// What follows the checksum.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Splits a message.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] below 4 bytes.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let (header, payload) = Header::over(bytes)?;
        Ok(Packet { header, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum;

    /// An echo request as `ping -s 0` sends it.
    const PACKET_BYTES: [u8; 8] = [0x08, 0x00, 0xe5, 0xca, 0x12, 0x34, 0x00, 0x01];

    #[test]
    fn packet_bytes() {
        let packet = Packet::parse(&PACKET_BYTES).unwrap();
        assert_eq!((packet.header.kind(), packet.header.code()), (v4::ECHO_REQUEST, 0));
        assert_eq!((packet.header.checksum(), packet.payload.len()), (0xe5ca, 4));
        assert_eq!(checksum::of(&PACKET_BYTES), 0);
        for len in 0..HEADER_LEN {
            assert_eq!(Packet::parse(&PACKET_BYTES[..len]), Err(Malformed::Truncated));
        }
        let mut copy = PACKET_BYTES;
        copy[..4].fill(0);
        packet.header.emit(&mut copy).unwrap();
        assert_eq!(copy, PACKET_BYTES);
    }

    #[test]
    fn neighbour_discovery() {
        let found: Vec<u8> = (0..=255).filter(|kind| v6::is_neighbour_discovery(*kind)).collect();
        assert_eq!(found, [133, 134, 135, 136, 137]);
    }
}
