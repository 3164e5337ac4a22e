//! The Internet checksum, for the instrument's own frames (RFC 1071).
//!
//! The gateway has its own; sharing it would let one mistake hide on both sides.

/// A one's complement sum of 16-bit words in network order, not yet folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sum(u64);

impl Sum {
    /// The sum of `bytes`; an odd last byte is followed by a zero (RFC 1071 §1).
    pub fn of(bytes: &[u8]) -> Sum {
        // RFC 1071 §2 (B): the sum may be taken in either byte order and swapped at the end, so
        // the words are added as the machine reads them, which vectorises.
        let words = bytes.chunks_exact(4);
        let mut tail = [0; 4];
        let rest = words.remainder();
        tail[..rest.len()].copy_from_slice(rest);
        let total: u64 = words
            .map(|word| u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]])))
            .sum();
        let folded = fold(total + u64::from(u32::from_ne_bytes(tail)));
        Sum(u64::from(u16::from_be(folded)))
    }

    /// The sum of one 64-bit number as it stands in a packet.
    pub fn of_u64(value: u64) -> Sum {
        Sum((value >> 48) + (value >> 32 & 0xffff) + (value >> 16 & 0xffff) + (value & 0xffff))
    }

    /// The sum of one 16-bit number.
    pub fn of_u16(value: u16) -> Sum {
        Sum(value.into())
    }

    /// Both sums together.
    pub fn plus(self, other: Sum) -> Sum {
        Sum(self.0 + other.0)
    }

    /// The same words `times` times over; `times` stays far below 2³² in any frame.
    pub fn times(self, times: u32) -> Sum {
        Sum(u64::from(fold(self.0)) * u64::from(times))
    }

    /// The value of the checksum field over these words.
    pub fn checksum(self) -> u16 {
        !fold(self.0)
    }

    /// Whether a sum that includes the checksum field is right: all ones (RFC 1071 §1).
    pub fn is_valid(self) -> bool {
        fold(self.0) == 0xffff
    }
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 word by word.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071_section_3() {
        assert_eq!(Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).checksum(), !0xddf2);
    }

    proptest! {
        #[test]
        fn equals_the_naive_sum(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(Sum::of(&bytes).checksum(), naive(&bytes));
        }

        #[test]
        fn repeated_words_multiply(word in any::<u64>(), times in 0u32..200) {
            let bytes = word.to_be_bytes().repeat(times as usize);
            let (a, b) = (Sum::of_u64(word).times(times).checksum(), naive(&bytes));
            // Zero has two representations; only an all-zero packet can reach the other one.
            prop_assert!(a == b || (a | b) == 0xffff && (a & b) == 0);
        }
    }
}
