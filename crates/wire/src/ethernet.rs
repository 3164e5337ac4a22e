//! Ethernet II (IEEE 802.3 clause 3): addresses, EtherTypes, the 14-byte header. VLAN tags are
//! in [`vlan`](crate::vlan), which is also where a received frame is parsed. No frame check
//! sequence: the kernel and the hardware keep it to themselves.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;
use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Malformed, Overlay};

/// Length in bytes of the header without tags.
pub const HEADER_LEN: usize = 14;

const _: () = assert!(size_of::<Header>() == HEADER_LEN);

/// A 48-bit hardware address.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All ones.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);
    /// All zeros: what the kernel reports where there is no address.
    pub const ZERO: MacAddr = MacAddr([0; 6]);

    /// The address in the lower 48 bits of a number, for comparing.
    #[inline]
    pub const fn bits(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    /// The [bits](MacAddr::bits) of the address that these bytes begin with, read in one piece.
    #[inline]
    pub const fn bits_at_front(bytes: [u8; 8]) -> u64 {
        u64::from_le_bytes(bytes) & (u64::MAX >> 16)
    }

    /// Whether the group bit is set: multicast, and broadcast too.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not a hardware address.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("expected a MAC address such as 02:00:5e:10:00:01")]
pub struct BadMacAddr;

impl FromStr for MacAddr {
    type Err = BadMacAddr;

    fn from_str(text: &str) -> Result<MacAddr, BadMacAddr> {
        let mut address = MacAddr::ZERO;
        let mut parts = text.split(':');
        for byte in &mut address.0 {
            let part = parts.next().ok_or(BadMacAddr)?;
            // `from_str_radix` alone would also take "+f".
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(BadMacAddr);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| BadMacAddr)?;
        }
        if parts.next().is_some() { Err(BadMacAddr) } else { Ok(address) }
    }
}

/// What an Ethernet frame carries, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: EtherType = EtherType(0x0800);
    /// ARP.
    pub const ARP: EtherType = EtherType(0x0806);
    /// An IEEE 802.1Q customer tag follows.
    pub const VLAN: EtherType = EtherType(0x8100);
    /// IPv6.
    pub const IPV6: EtherType = EtherType(0x86dd);
    /// An IEEE 802.1ad service tag follows.
    pub const SERVICE_VLAN: EtherType = EtherType(0x88a8);

    /// Whether a VLAN tag follows.
    #[inline]
    pub const fn is_tag(self) -> bool {
        matches!(self, EtherType::VLAN | EtherType::SERVICE_VLAN)
    }
}

/// The untagged Ethernet header.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// Destination address.
    pub destination: MacAddr,
    /// Source address.
    pub source: MacAddr,
    ethertype: U16,
}

impl Overlay for Header {}

impl Header {
    /// A header ready to write.
    #[inline]
    pub const fn new(destination: MacAddr, source: MacAddr, ethertype: EtherType) -> Header {
        Header { destination, source, ethertype: U16::new(ethertype.0) }
    }

    /// What follows the header: a type, a tag or, below 0x0600, a length.
    #[inline]
    pub fn ethertype(&self) -> EtherType {
        EtherType(self.ethertype.get())
    }
}

/// A frame seen as untagged: what follows the 14 bytes is payload, a tag included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The header.
    pub header: &'a Header,
    /// What follows it, padding to the smallest frame included.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Splits a frame.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] if there are fewer than 14 bytes.
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let (header, payload) = Header::over(frame)?;
        Ok(Packet { header, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of an ARP request, and two bytes of it.
    const PACKET_BYTES: [u8; 16] = [
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0x42, 0xac, 0x11, 0x00, 0x02, 0x08, 0x06, 0x00,
        0x01,
    ];

    #[test]
    fn packet_bytes() {
        let packet = Packet::parse(&PACKET_BYTES).unwrap();
        assert_eq!(packet.header.destination, MacAddr::BROADCAST);
        assert!(packet.header.destination.is_multicast());
        assert_eq!(packet.header.source.to_string(), "02:42:ac:11:00:02");
        assert!(!packet.header.source.is_multicast());
        assert_eq!(packet.header.ethertype(), EtherType::ARP);
        assert_eq!(packet.payload, [0x00, 0x01]);
    }

    #[test]
    fn written_header_is_the_same() {
        let source = MacAddr([0x02, 0x42, 0xac, 0x11, 0x00, 0x02]);
        let mut bytes = [0; 16];
        let rest =
            Header::new(MacAddr::BROADCAST, source, EtherType::ARP).emit(&mut bytes).unwrap();
        rest.copy_from_slice(&PACKET_BYTES[14..]);
        assert_eq!(bytes, PACKET_BYTES);
    }

    #[test]
    fn short_frames_and_short_buffers_are_refused() {
        for len in 0..HEADER_LEN {
            assert_eq!(Packet::parse(&PACKET_BYTES[..len]), Err(Malformed::Truncated));
            let header = Header::new(MacAddr::ZERO, MacAddr::ZERO, EtherType::IPV4);
            assert_eq!(header.emit(&mut vec![0; len]), Err(Malformed::Truncated));
        }
    }

    #[test]
    fn addresses_as_text() {
        let text = "02:00:5e:10:00:ff";
        assert_eq!(text.parse::<MacAddr>().unwrap().to_string(), text);
        assert_eq!("02:00:5E:10:00:FF".parse(), text.parse::<MacAddr>());
        for bad in ["", "02:00:5e:10:00", "02:00:5e:10:00:ff:00", "2:0:5e:10:0:f", "+2:00:5e:1:0:f"]
        {
            assert_eq!(bad.parse::<MacAddr>(), Err(BadMacAddr), "{bad:?}");
        }
        assert_eq!("+2:00:5e:10:00:ff".parse::<MacAddr>(), Err(BadMacAddr));
    }

    #[test]
    fn tags_are_told_from_types() {
        assert!(EtherType::VLAN.is_tag() && EtherType::SERVICE_VLAN.is_tag());
        assert!(!EtherType::IPV4.is_tag());
    }
}
