//! IPv6 headers as nearly all are, in as few pieces as they can be read.

use core::net::Ipv6Addr;

use super::HEADER_LEN;

/// The header of a packet, and the four bytes behind it, as nearly every packet begins: read in pieces, from whose registers
/// the fields come.
///
/// ```text
///   first    version, traffic class, flow label, payload length, next header, hop limit
///   ends     source, in two; destination, in two; and the first four bytes of what is carried
/// ```
#[derive(Clone, Copy)]
pub struct Plain {
    first: u64,
    source: [u64; 2],
    destination: [u64; 2],
    ports: u32,
}

impl Plain {
    /// Bytes that are read.
    pub const LEN: usize = HEADER_LEN + 4;

    /// The beginning of a packet, if it is of this version. Lengths are not looked at.
    #[inline(always)]
    pub fn read(bytes: &[u8; Plain::LEN]) -> Option<Plain> {
        let header = Plain::reread(bytes);
        (header.first & 0xf0 == 0x60).then_some(header)
    }

    /// The header of a packet that was read before, and of which nothing is asked anew.
    #[inline(always)]
    pub fn reread(bytes: &[u8; Plain::LEN]) -> Plain {
        let piece = |at: usize| {
            let mut piece = [0; 8];
            piece.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(piece)
        };
        let mut ports = [0; 4];
        ports.copy_from_slice(&bytes[HEADER_LEN..]);
        Plain {
            first: piece(0),
            source: [piece(8), piece(16)],
            destination: [piece(24), piece(32)],
            ports: u32::from_le_bytes(ports),
        }
    }

    /// What tells packets of different flows apart, as it stands in the pieces; with it stands what the first one has beside, and of
    /// protocols without ports what they have there.
    #[inline(always)]
    pub const fn ends(&self) -> [u64; 6] {
        let ([source, source_end], [destination, destination_end]) =
            (self.source, self.destination);
        [self.first, source, source_end, destination, destination_end, self.ports as u64]
    }

    /// The same of a flow, or of a mask over it: nothing stands with it. `ports` are the source's and the destination's.
    #[inline]
    pub const fn ends_of(protocol: u8, source: u128, destination: u128, ports: u32) -> [u64; 6] {
        let (source, destination) = (source.swap_bytes(), destination.swap_bytes());
        [
            (protocol as u64) << 48,
            source as u64,
            (source >> 64) as u64,
            destination as u64,
            (destination >> 64) as u64,
            ports.swap_bytes() as u64,
        ]
    }

    /// Takes a hop from the packet that begins with this header. `None`, and no change, if it has none left.
    #[inline(always)]
    #[must_use = "a packet without a hop left is not forwarded"]
    pub fn take_hop(&self, packet: &mut [u8; HEADER_LEN]) -> Option<()> {
        if self.hop_limit() <= 1 {
            return None;
        }
        // In one piece, as what is written is soon read in no smaller ones.
        packet[..8].copy_from_slice(&(self.first - (1 << 56)).to_le_bytes());
        Some(())
    }

    /// The traffic class: DSCP and ECN.
    #[inline]
    pub const fn traffic_class(&self) -> u8 {
        ((self.first as u16).swap_bytes() >> 4) as u8
    }

    /// The flow label, 20 bits.
    #[inline]
    pub const fn flow_label(&self) -> u32 {
        (self.first as u32).swap_bytes() & super::FLOW_LABEL_MASK
    }

    /// Length in bytes of all that follows the header.
    #[inline]
    pub const fn payload_len(&self) -> u16 {
        ((self.first >> 32) as u16).swap_bytes()
    }

    /// What follows the header.
    #[inline]
    pub const fn next_header(&self) -> u8 {
        (self.first >> 48) as u8
    }

    /// Hops left.
    #[inline]
    pub const fn hop_limit(&self) -> u8 {
        (self.first >> 56) as u8
    }

    /// The address the packet comes from.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        Plain::address(self.source)
    }

    /// The address the packet goes to.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        Plain::address(self.destination)
    }

    #[inline]
    fn address([first, second]: [u64; 2]) -> Ipv6Addr {
        Ipv6Addr::from_bits((u128::from(second) << 64 | u128::from(first)).swap_bytes())
    }

    /// The two words behind the header: the ports of those protocols that have them there.
    #[inline]
    pub const fn ports(&self) -> (u16, u16) {
        ((self.ports as u16).swap_bytes(), ((self.ports >> 16) as u16).swap_bytes())
    }
}
