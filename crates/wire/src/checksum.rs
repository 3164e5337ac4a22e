//! The Internet checksum (RFC 1071): one's complement sums, incremental change (RFC 1624) and
//! the pseudo headers of IPv4 and IPv6. Where a checksum is stored, and what a stored zero
//! means, is the protocol files' business.

use core::net::{Ipv4Addr, Ipv6Addr};

/// A running one's complement sum of 16-bit big-endian words, not yet folded.
///
/// 64 bits hold the sum of more than 2^31 32-bit words, so no packet can overflow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The empty sum.
    pub const ZERO: Sum = Sum(0);

    /// Adds one 16-bit word.
    #[inline]
    pub const fn word(self, word: u16) -> Sum {
        Sum(self.0 + word as u64)
    }

    /// Adds two 16-bit words held in one number.
    #[inline]
    pub const fn long(self, long: u32) -> Sum {
        Sum(self.0 + long as u64)
    }

    /// Adds four 16-bit words held in one number.
    #[inline]
    pub const fn long_long(self, long_long: u64) -> Sum {
        self.long((long_long >> 32) as u32).long(long_long as u32)
    }

    /// Adds bytes that start on a word boundary. An odd last byte is padded with zero on the
    /// right, so only the last piece of a message may be odd.
    #[inline]
    pub fn bytes(self, bytes: &[u8]) -> Sum {
        // Halves of a 32-bit word are congruent to their sum modulo 2^16 - 1, hence adding
        // whole 32-bit words and folding at the end is the same sum in half the steps.
        let (longs, rest) = bytes.as_chunks::<4>();
        let mut sum = longs.iter().fold(self.0, |sum, l| sum + u64::from(u32::from_be_bytes(*l)));
        let (words, last) = rest.as_chunks::<2>();
        for word in words {
            sum += u64::from(u16::from_be_bytes(*word));
        }
        if let [byte] = last {
            sum += u64::from(*byte) << 8;
        }
        Sum(sum)
    }

    /// The sum folded to 16 bits with end-around carry.
    #[inline]
    pub const fn fold(self) -> u16 {
        // A number plus itself with its halves exchanged has in its upper half the sum of both halves and
        // their carry.
        let sum = (self.0.wrapping_add(self.0.rotate_right(32)) >> 32) as u32;
        (sum.wrapping_add(sum.rotate_right(16)) >> 16) as u16
    }

    /// The value for the checksum field: the complement of the folded sum.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }
}

/// The checksum of `bytes`. Zero over bytes that contain their own correct checksum.
#[inline]
pub fn of(bytes: &[u8]) -> u16 {
    Sum::ZERO.bytes(bytes).checksum()
}

/// The checksum after one 16-bit word of the message changed from `old` to `new`: equation 3 of
/// RFC 1624 §3, which unlike that of RFC 1141 cannot turn a right checksum into a wrong one.
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::ZERO.word(!checksum).word(!old).word(new).checksum()
}

/// The sum of the IPv4 pseudo header (RFC 768, RFC 9293 §3.1). `len` is the length in bytes of
/// the transport header and its data.
#[inline]
pub fn pseudo_v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: u16) -> Sum {
    Sum::ZERO.long(source.to_bits()).long(destination.to_bits()).word(u16::from(protocol)).word(len)
}

/// The sum of the IPv6 pseudo header (RFC 8200 §8.1). `len` is the length in bytes of the
/// upper-layer header and its data, `next_header` the upper-layer protocol.
#[inline]
pub fn pseudo_v6(source: Ipv6Addr, destination: Ipv6Addr, next_header: u8, len: u32) -> Sum {
    Sum::ZERO
        .bytes(&source.octets())
        .bytes(&destination.octets())
        .long(len)
        .word(u16::from(next_header))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of RFC 1071 §3: 0001 f203 f4f5 f6f7 sums to ddf2.
    const PACKET_BYTES: [u8; 8] = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];

    /// The definition, word by word with the carry added at once.
    fn slow_fold(bytes: &[u8]) -> u16 {
        bytes.chunks(2).fold(0u16, |sum, pair| {
            let word = u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]);
            let (sum, carry) = sum.overflowing_add(word);
            sum + u16::from(carry)
        })
    }

    #[test]
    fn example_of_rfc_1071() {
        assert_eq!(Sum::ZERO.bytes(&PACKET_BYTES).fold(), 0xddf2);
        assert_eq!(of(&PACKET_BYTES), !0xddf2);
    }

    /// RFC 1624 §4: the case in which the method of RFC 1141 yields 0xffff.
    #[test]
    fn example_of_rfc_1624() {
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    proptest! {
        #[test]
        fn sum_agrees_with_the_definition(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(Sum::ZERO.bytes(&bytes).fold(), slow_fold(&bytes));
        }

        #[test]
        fn long_sums_fold_completely(longs in prop::collection::vec(any::<u32>(), 0..200)) {
            let bytes: Vec<u8> = longs.iter().flat_map(|long| long.to_be_bytes()).collect();
            let sum = longs.iter().fold(Sum::ZERO, |sum, long| sum.long(*long));
            prop_assert_eq!(sum.fold(), slow_fold(&bytes));
        }

        // A first word that is not zero keeps the message off the all-zero sum, whose checksum
        // has two spellings. Every IP header has one: its version.
        #[test]
        fn incremental_equals_full(
            mut words in prop::collection::vec(any::<u16>(), 2..40), at: usize, new: u16,
        ) {
            words[0] |= 0x4000;
            let at = 1 + at % (words.len() - 1);
            let whole = |words: &[u16]| {
                words.iter().fold(Sum::ZERO, |sum, word| sum.word(*word)).checksum()
            };
            let before = whole(&words);
            let old = words[at];
            words[at] = new;
            prop_assert_eq!(update(before, old, new), whole(&words));
        }
    }
}
