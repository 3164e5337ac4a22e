//! TCP (RFC 9293): ports, numbers and flags. A gateway looks, it does not take part: options,
//! windows and checksums are left alone.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Malformed, Overlay};

/// Length in bytes of the header without options.
pub const HEADER_LEN: usize = 20;

const _: () = assert!(size_of::<Header>() == HEADER_LEN);

/// The fixed part of the header.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Header {
    source: U16,
    destination: U16,
    sequence: U32,
    acknowledgment: U32,
    offset: u8,
    flags: u8,
    window: U16,
    checksum: U16,
    urgent: U16,
}

impl Overlay for Header {}

impl Header {
    /// The sender has finished.
    pub const FIN: u8 = 0x01;
    /// The connection opens.
    pub const SYN: u8 = 0x02;
    /// The connection is torn down.
    pub const RST: u8 = 0x04;
    /// The acknowledgment number counts.
    pub const ACK: u8 = 0x10;

    /// The port the segment comes from.
    #[inline]
    pub fn source(&self) -> u16 {
        self.source.get()
    }

    /// The port the segment goes to.
    #[inline]
    pub fn destination(&self) -> u16 {
        self.destination.get()
    }

    /// The sequence number.
    #[inline]
    pub fn sequence(&self) -> u32 {
        self.sequence.get()
    }

    /// All flags, FIN the lowest bit.
    #[inline]
    pub const fn flags(&self) -> u8 {
        self.flags
    }

    /// Length of the header with its options, in bytes.
    #[inline]
    pub const fn header_len(&self) -> usize {
        (self.offset >> 4) as usize * 4
    }
}

/// A segment whose header length holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The fixed part of the header.
    pub header: &'a Header,
    /// What the segment carries.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks the header length against 20 bytes and against the segment.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] below 20 bytes; [`Malformed::BadHeaderLength`] if the header's is less, or more than
    /// there is.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let (header, _) = Header::over(bytes)?;
        if header.header_len() < HEADER_LEN {
            return Err(Malformed::BadHeaderLength);
        }
        let payload = bytes.get(header.header_len()..).ok_or(Malformed::BadHeaderLength)?;
        Ok(Packet { header, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A SYN as Linux sends it, with 20 bytes of options.
    const PACKET_BYTES: [u8; 40] = [
        0xc3, 0x50, 0x01, 0xbb, 0x11, 0x22, 0x33, 0x44, 0x00, 0x00, 0x00, 0x00, 0xa0, 0x02, 0xfa,
        0xf0, 0xfe, 0x30, 0x00, 0x00, 0x02, 0x04, 0x05, 0xb4, 0x04, 0x02, 0x08, 0x0a, 0x87, 0x65,
        0x43, 0x21, 0x00, 0x00, 0x00, 0x00, 0x01, 0x03, 0x03, 0x07,
    ];

    #[test]
    fn packet_bytes() {
        let packet = Packet::parse(&PACKET_BYTES).unwrap();
        assert_eq!((packet.header.source(), packet.header.destination()), (50000, 443));
        assert_eq!((packet.header.sequence(), packet.header.flags()), (0x1122_3344, Header::SYN));
        assert_eq!((packet.header.header_len(), packet.payload.len()), (40, 0));
    }

    #[test]
    fn malformed_packets() {
        assert_eq!(Packet::parse(&PACKET_BYTES[..19]), Err(Malformed::Truncated));
        assert_eq!(Packet::parse(&PACKET_BYTES[..39]), Err(Malformed::BadHeaderLength));
        let mut bytes = PACKET_BYTES;
        bytes[12] = 0x40;
        assert_eq!(Packet::parse(&bytes), Err(Malformed::BadHeaderLength));
        bytes[12] = 0x90;
        assert_eq!(Packet::parse(&bytes).unwrap().payload, &PACKET_BYTES[36..]);
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(packet) = Packet::parse(&bytes) {
                prop_assert_eq!(packet.header.header_len() + packet.payload.len(), bytes.len());
            }
        }

        #[test]
        fn headers_written_back_are_the_same(bytes: [u8; 20]) {
            let (header, _) = Header::over(&bytes).unwrap();
            let mut copy = [0; 20];
            header.emit(&mut copy).unwrap();
            prop_assert_eq!(bytes, copy);
        }
    }
}
