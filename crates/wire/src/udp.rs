//! UDP (RFC 768). UDP-Lite (RFC 3828) has the same ports but another length field and is not
//! read here. A checksum is computed and verified only on request: routers do neither.

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::Sum;
use crate::{Malformed, Overlay};

/// Length in bytes of the header.
pub const HEADER_LEN: usize = 8;

const _: () = assert!(size_of::<Header>() == HEADER_LEN);

/// The header.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Header {
    source: U16,
    destination: U16,
    len: U16,
    checksum: U16,
}

impl Overlay for Header {}

impl Header {
    /// A header without checksum (zero), which IPv4 allows always and IPv6 for tunnels
    /// (RFC 6936), ESP in UDP among them (RFC 3948 §2.1). `len` counts the header too.
    #[inline]
    pub const fn new(source: u16, destination: u16, len: u16) -> Header {
        Header {
            source: U16::new(source),
            destination: U16::new(destination),
            len: U16::new(len),
            checksum: U16::ZERO,
        }
    }

    /// The port the datagram comes from.
    #[inline]
    pub fn source(&self) -> u16 {
        self.source.get()
    }

    /// The port the datagram goes to.
    #[inline]
    pub fn destination(&self) -> u16 {
        self.destination.get()
    }

    /// Length of the datagram, header included, in bytes.
    #[inline]
    pub fn datagram_len(&self) -> u16 {
        self.len.get()
    }

    /// The checksum as it stands; zero means none.
    #[inline]
    pub fn checksum(&self) -> u16 {
        self.checksum.get()
    }

    /// Computes and stores the checksum over the pseudo header, this header and `payload`.
    /// A sum that comes out as zero is stored as all ones (RFC 768), since zero means none.
    pub fn fill_checksum(&mut self, pseudo: Sum, payload: &[u8]) {
        self.checksum = U16::ZERO;
        let checksum = pseudo.bytes(self.as_bytes()).bytes(payload).checksum();
        self.checksum = U16::new(if checksum == 0 { 0xffff } else { checksum });
    }
}

/// A datagram whose length holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The header.
    pub header: &'a Header,
    /// What the datagram carries, without the bytes that may follow its length.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks the length.
    ///
    /// # Errors
    ///
    /// [`Malformed::BadTotalLength`] if the length is less than the header's: zero, too, which only a
    /// jumbogram (RFC 2675 §4) may have. [`Malformed::Truncated`] if the header or any of the payload is
    /// missing.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let (header, rest) = Header::over(bytes)?;
        let payload_len = usize::from(header.datagram_len())
            .checked_sub(HEADER_LEN)
            .ok_or(Malformed::BadTotalLength)?;
        let payload = rest.get(..payload_len).ok_or(Malformed::Truncated)?;
        Ok(Packet { header, payload })
    }

    /// Whether there is no checksum or it is right.
    pub fn checksum_holds(&self, pseudo: Sum) -> bool {
        let sum = pseudo.bytes(self.header.as_bytes()).bytes(self.payload);
        self.header.checksum() == 0 || sum.checksum() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{checksum, protocol};
    use core::net::Ipv4Addr;
    use proptest::prelude::*;

    /// A datagram from 192.0.2.1:4500 to 192.0.2.2:4500 with an odd payload, then padding.
    const PACKET_BYTES: [u8; 12] =
        [0x11, 0x94, 0x11, 0x94, 0x00, 0x09, 0x59, 0xaf, 0xff, 0xaa, 0xaa, 0xaa];

    fn pseudo(len: u16) -> Sum {
        let (source, destination) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
        checksum::pseudo_v4(source, destination, protocol::UDP, len)
    }

    #[test]
    fn packet_bytes() {
        let packet = Packet::parse(&PACKET_BYTES).unwrap();
        assert_eq!((packet.header.source(), packet.header.destination()), (4500, 4500));
        assert_eq!((packet.header.datagram_len(), packet.payload), (9, &[0xff][..]));
        assert!(packet.checksum_holds(pseudo(9)), "{:04x}", packet.header.checksum());
        let mut bytes = PACKET_BYTES;
        bytes[8] = 0xfe;
        assert!(!Packet::parse(&bytes).unwrap().checksum_holds(pseudo(9)));
        bytes[6..8].fill(0);
        assert!(Packet::parse(&bytes).unwrap().checksum_holds(pseudo(9)));
    }

    #[test]
    fn malformed_packets() {
        for len in 0..9 {
            assert_eq!(Packet::parse(&PACKET_BYTES[..len]), Err(Malformed::Truncated));
        }
        let mut bytes = PACKET_BYTES;
        for len in 0..8 {
            bytes[5] = len;
            assert_eq!(Packet::parse(&bytes), Err(Malformed::BadTotalLength));
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = Packet::parse(&bytes);
        }

        #[test]
        fn written_headers_parse_back(
            source: u16, destination: u16, payload in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let len = (payload.len() + HEADER_LEN) as u16;
            let mut header = Header::new(source, destination, len);
            header.fill_checksum(pseudo(len), &payload);
            prop_assert_ne!(header.checksum(), 0);
            let mut bytes = vec![0; usize::from(len)];
            header.emit(&mut bytes).unwrap().copy_from_slice(&payload);
            let packet = Packet::parse(&bytes).unwrap();
            prop_assert_eq!(packet, Packet { header: &header, payload: &payload });
            prop_assert!(packet.checksum_holds(pseudo(len)));
        }
    }
}
