//! VLAN tags (IEEE 802.1Q, 802.1ad): none, one or two, hence a link header of 14, 18 or 22
//! bytes. Tags that the kernel or the NIC strips into metadata never reach these bytes. The
//! mix of 0x8100 and 0x88a8 is not judged: two 0x8100 tags are common in the field.

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ethernet::{self, EtherType};
use crate::{Malformed, Overlay};

/// Length in bytes of one tag: control information and the EtherType after it.
pub const TAG_LEN: usize = 4;

const _: () = assert!(size_of::<Header>() == TAG_LEN);

/// Tag control information, in host byte order: priority, drop eligible bit, VLAN number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tci(pub u16);

impl Tci {
    /// The VLAN number, 0–4095; 0 means that only the priority counts, 4095 is reserved.
    #[inline]
    pub const fn vlan(self) -> u16 {
        self.0 & 0x0fff
    }

    /// The priority code point, 0–7.
    #[inline]
    pub const fn priority(self) -> u8 {
        (self.0 >> 13) as u8
    }
}

/// One tag, seen from behind the EtherType that announces it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Header {
    tci: U16,
    ethertype: U16,
}

impl Overlay for Header {}

impl Header {
    /// A tag ready to write.
    #[inline]
    pub const fn new(tci: Tci, ethertype: EtherType) -> Header {
        Header { tci: U16::new(tci.0), ethertype: U16::new(ethertype.0) }
    }

    /// The control information.
    #[inline]
    pub fn tci(&self) -> Tci {
        Tci(self.tci.get())
    }

    /// What follows the tag.
    #[inline]
    pub fn ethertype(&self) -> EtherType {
        EtherType(self.ethertype.get())
    }
}

/// A frame with its tags taken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The Ethernet addresses; its EtherType is that of the first tag, if there is one.
    pub ethernet: &'a ethernet::Header,
    /// The only tag, or the outer of two.
    pub outer: Option<Tci>,
    /// The inner of two tags.
    pub inner: Option<Tci>,
    /// What the frame carries.
    pub ethertype: EtherType,
    /// Length in bytes of everything before the payload: 14, 18 or 22.
    pub header_len: usize,
    /// What the frame carries, padding to the smallest frame included.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Splits a frame after at most two tags.
    ///
    /// # Errors
    ///
    /// [`Malformed::TooManyTags`] if there is a third, [`Malformed::Truncated`] if the header or a tag is
    /// not whole.
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let (ethernet, payload) = ethernet::Header::over(frame)?;
        let ethertype = ethernet.ethertype();
        let header_len = ethernet::HEADER_LEN;
        let plain = Packet { ethernet, outer: None, inner: None, ethertype, header_len, payload };
        if ethertype.is_tag() { plain.untag() } else { Ok(plain) }
    }

    fn untag(mut self) -> Result<Packet<'a>, Malformed> {
        let (tag, rest) = Header::over(self.payload)?;
        self.outer = Some(tag.tci());
        self.header_len += TAG_LEN;
        (self.ethertype, self.payload) = (tag.ethertype(), rest);
        if self.ethertype.is_tag() {
            let (tag, rest) = Header::over(self.payload)?;
            self.inner = Some(tag.tci());
            self.header_len += TAG_LEN;
            (self.ethertype, self.payload) = (tag.ethertype(), rest);
        }
        if self.ethertype.is_tag() { Err(Malformed::TooManyTags) } else { Ok(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::MacAddr;

    /// Service tag 100 with priority 3, customer tag 4094 drop eligible, then IPv6.
    const PACKET_BYTES: [u8; 24] = [
        0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x88, 0xa8, 0x60, 0x64, 0x81, 0x00, 0x1f, 0xfe,
        0x86, 0xdd, 0x60, 0x00,
    ];

    #[test]
    fn two_tags() {
        let packet = Packet::parse(&PACKET_BYTES).unwrap();
        let (outer, inner) = (packet.outer.unwrap(), packet.inner.unwrap());
        assert_eq!((outer.vlan(), outer.priority()), (100, 3));
        assert_eq!((inner.vlan(), inner.priority()), (4094, 0));
        assert_eq!((packet.header_len, packet.ethertype), (22, EtherType::IPV6));
        assert_eq!(packet.payload, [0x60, 0x00]);
        assert_eq!(packet.ethernet.destination, MacAddr([0x02, 0, 0, 0, 0, 1]));
    }

    #[test]
    fn one_tag_or_none() {
        let mut bytes = PACKET_BYTES;
        bytes[16..18].copy_from_slice(&[0x08, 0x00]);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!((packet.header_len, packet.ethertype), (18, EtherType::IPV4));
        assert_eq!((packet.outer.map(Tci::vlan), packet.inner), (Some(100), None));
        bytes[12..14].copy_from_slice(&[0x08, 0x06]);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!((packet.header_len, packet.ethertype), (14, EtherType::ARP));
        assert_eq!((packet.outer, packet.inner), (None, None));
    }

    #[test]
    fn a_third_tag_and_cut_tags_are_refused() {
        let mut bytes = [PACKET_BYTES.as_slice(), &[0; 4]].concat();
        bytes[20..22].copy_from_slice(&[0x81, 0x00]);
        assert_eq!(Packet::parse(&bytes), Err(Malformed::TooManyTags));
        for len in 0..22 {
            assert_eq!(Packet::parse(&PACKET_BYTES[..len]), Err(Malformed::Truncated));
        }
    }

    #[test]
    fn written_tags_are_the_same() {
        let packet = Packet::parse(&PACKET_BYTES).unwrap();
        let mut bytes = PACKET_BYTES;
        bytes[14..22].fill(0);
        let rest = Header::new(packet.outer.unwrap(), EtherType::VLAN).emit(&mut bytes[14..]);
        Header::new(packet.inner.unwrap(), packet.ethertype).emit(rest.unwrap()).unwrap();
        assert_eq!(bytes, PACKET_BYTES);
    }
}
