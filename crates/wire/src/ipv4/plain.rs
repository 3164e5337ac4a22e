//! IPv4 headers as nearly all are, in as few pieces as they can be read.

use core::net::Ipv4Addr;

use super::{HEADER_LEN, VERSION_IHL_PLAIN};

/// Of the first piece of a header: version and header length; more fragments, and the offset.
const BEGIN: u64 = 0xff;
const PART: u64 = 0xff3f << 48;

/// The header of a packet without options that is no fragment, and the four bytes behind it, as nearly
/// every packet begins: read in three pieces, from whose registers the fields come.
///
/// ```text
///   first    version, tos, total length, identification, flags and offset
///   second   ttl, protocol, checksum, source
///   third    destination, and the first four bytes of what is carried
/// ```
#[derive(Clone, Copy)]
pub struct Plain {
    first: u64,
    second: u64,
    third: u64,
}

impl Plain {
    /// Bytes that are read.
    pub const LEN: usize = HEADER_LEN + 4;

    /// The beginning of a packet, if it is so plain and its checksum is right. Lengths are not looked at.
    #[inline(always)]
    pub fn read(bytes: &[u8; Plain::LEN]) -> Option<Plain> {
        Plain::read_any(bytes, || false)
    }

    /// The same also of a fragment, if `may_be` says that it may be one of those who ask. It is asked of what is no whole packet, before
    /// anything else is looked at: what is read before a call is kept somewhere else meanwhile.
    #[inline(always)]
    pub fn read_any(bytes: &[u8; Plain::LEN], may_be: impl FnOnce() -> bool) -> Option<Plain> {
        let Plain { first, second, third } = Plain::reread(bytes);
        if first & (BEGIN | PART) != u64::from(VERSION_IHL_PLAIN) && !may_be() {
            return None;
        }
        // A sum is all ones when it is a multiple of 65 535 and not zero, and no header with a version
        // is zero; that holds in either byte order (RFC 1071 §2.B), and for sums of longer words whose carries
        // come back in at the other end (§2.C), so nothing is swapped or folded.
        let (sum, carry) = first.overflowing_add(second);
        let (sum, one) = sum.overflowing_add(third & 0xffff_ffff);
        let (sum, other) = sum.overflowing_add(carry.into());
        let sum = sum + u64::from(one | other);
        sum.is_multiple_of(0xffff).then_some(Plain { first, second, third })
    }

    /// Whether it is the header of a fragment, and without options.
    #[inline]
    pub const fn is_plain_fragment(&self) -> bool {
        self.first & BEGIN == VERSION_IHL_PLAIN as u64 && self.is_fragment()
    }

    /// Whether it is the header of a fragment.
    #[inline(always)]
    pub const fn is_fragment(&self) -> bool {
        self.first & PART != 0
    }

    /// Where in its packet a fragment begins, in bytes.
    #[inline]
    pub const fn fragment_offset(&self) -> u16 {
        ((self.first >> 48) as u16).swap_bytes() << 3
    }

    /// The header of a packet that was read before, and of which nothing is asked anew.
    #[inline(always)]
    pub fn reread(bytes: &[u8; Plain::LEN]) -> Plain {
        let piece = |at: usize| {
            let mut piece = [0; 8];
            piece.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(piece)
        };
        Plain { first: piece(0), second: piece(8), third: piece(16) }
    }

    /// What tells packets of different flows apart, as it stands in the last two pieces; with it stands what routers change, and
    /// of protocols without ports what they have there.
    #[inline(always)]
    pub const fn ends(&self) -> [u64; 2] {
        [self.second, self.third]
    }

    /// Those of a flow, or of a mask over it: nothing stands with them. `ports` are the source's and the destination's.
    #[inline]
    pub const fn ends_of(protocol: u8, source: u32, destination: u32, ports: u32) -> [u64; 2] {
        let second = (protocol as u64) << 8 | (source.swap_bytes() as u64) << 32;
        [second, destination.swap_bytes() as u64 | (ports.swap_bytes() as u64) << 32]
    }

    /// A header of which nothing is known but its ends.
    #[inline]
    pub const fn with_ends([second, third]: [u64; 2]) -> Plain {
        Plain { first: VERSION_IHL_PLAIN as u64, second, third }
    }

    /// Takes a hop from the packet that begins with this header. `None`, and no change, if it has none left.
    #[inline(always)]
    #[must_use = "a packet without a hop left is not forwarded"]
    pub fn take_hop(&self, packet: &mut [u8; HEADER_LEN]) -> Option<()> {
        if self.ttl() <= 1 {
            return None;
        }
        // As `Header::decrement_ttl`, in the four bytes from the time to live to the checksum: one less at their one end
        // and one more at the other, where a carry falls off and comes back in as another one.
        let changed = self.second as u32;
        let carry = (changed >= 0xfffe_0000) as u32;
        let changed = changed.wrapping_sub(1).wrapping_add((1 + carry) << 16);
        packet[8..12].copy_from_slice(&changed.to_le_bytes());
        Some(())
    }

    /// Whether the packet must not be fragmented.
    #[inline(always)]
    pub const fn dont_fragment(&self) -> bool {
        self.first >> 48 & 0x40 != 0
    }

    /// The type of service byte.
    #[inline]
    pub const fn tos(&self) -> u8 {
        (self.first >> 8) as u8
    }

    /// Length of the packet, header included, in bytes.
    #[inline]
    pub const fn total_len(&self) -> u16 {
        ((self.first >> 16) as u16).swap_bytes()
    }

    /// Time to live.
    #[inline]
    pub const fn ttl(&self) -> u8 {
        self.second as u8
    }

    /// The protocol of the payload.
    #[inline]
    pub const fn protocol(&self) -> u8 {
        (self.second >> 8) as u8
    }

    /// The address the packet comes from.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from(((self.second >> 32) as u32).to_le_bytes())
    }

    /// The address the packet goes to.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from((self.third as u32).to_le_bytes())
    }

    /// The two words behind the header: the ports of those protocols that have them there.
    #[inline]
    pub const fn ports(&self) -> (u16, u16) {
        (((self.third >> 32) as u16).swap_bytes(), ((self.third >> 48) as u16).swap_bytes())
    }
}
