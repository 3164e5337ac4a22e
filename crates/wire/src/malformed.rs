//! The reasons to refuse bytes. One variant per reason, so that each can have its own counter;
//! no variant carries data, so that naming a reason costs nothing on the data path.

use thiserror::Error;

/// Why bytes are not the packet they claim to be.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Malformed {
    /// A length field, or a fixed header, reaches past the end of the bytes.
    #[error("the packet ends before its headers or its length field say")]
    Truncated,
    /// The IP version is neither 4 nor 6, or not the one asked for.
    #[error("the IP version is not the one expected")]
    BadVersion,
    /// The IPv4 or TCP header length is below the fixed 20 bytes, or the TCP header is longer
    /// than its segment.
    #[error("the header length is impossible")]
    BadHeaderLength,
    /// The total, payload or UDP length is shorter than the header it must cover, is zero where
    /// only a jumbo or an offloaded packet has zero, or makes the packet exceed 65 535 bytes.
    #[error("the length field is impossible")]
    BadTotalLength,
    /// The IPv4 header checksum is wrong.
    #[error("the header checksum is wrong")]
    BadChecksum,
    /// An IPv4 option, or an IPv6 hop-by-hop option, has an impossible length.
    #[error("an option has an impossible length")]
    BadOption,
    /// More than [`MAX_OPTIONS`](crate::ipv6_ext::MAX_OPTIONS) hop-by-hop options, or more than
    /// [`MAX_PADDING`](crate::ipv6_ext::MAX_PADDING) padding options in a row.
    #[error("too many hop-by-hop options")]
    TooManyOptions,
    /// More than [`MAX_EXTENSIONS`](crate::ipv6_ext::MAX_EXTENSIONS) IPv6 extension headers.
    #[error("too many IPv6 extension headers")]
    TooManyExtensions,
    /// A hop-by-hop header that is not the first, or a second fragment header.
    #[error("an IPv6 extension header stands where it must not")]
    MisplacedExtension,
    /// An IPv6 jumbogram (RFC 2675): payload length zero in front of a hop-by-hop header, or a
    /// Jumbo Payload option.
    #[error("the packet is an IPv6 jumbogram")]
    Jumbogram,
    /// A source route that has hops left: an IPv4 LSRR or SSRR option (RFC 7126 §4.3, §4.4), or
    /// an IPv6 routing header of type 0 (RFC 5095). The destination that a policy would be
    /// asked about is not where the packet goes.
    #[error("the packet carries a source route with hops left")]
    SourceRoute,
    /// A first fragment too short to hold its whole header chain and ports (RFC 7112 §5,
    /// RFC 1858 §3), or a TCP fragment at offset 8, which could overwrite flags (RFC 3128).
    #[error("the fragment cuts through the transport header")]
    TinyFragment,
    /// A fragment that reaches past 65 535 bytes once reassembled.
    #[error("the fragment reaches past the largest packet")]
    OversizeFragment,
    /// A whole packet that ends before the ports of its transport header.
    #[error("the packet ends inside its transport header")]
    TruncatedTransport,
    /// More than two VLAN tags.
    #[error("more than two VLAN tags")]
    TooManyTags,
    /// An ESP packet whose ciphertext is not a multiple of four bytes (RFC 4303 §2.4).
    #[error("the ESP payload is not aligned to four bytes")]
    BadAlignment,
    /// An ESP pad length that exceeds the plaintext, or padding that is not 1, 2, 3, …
    #[error("the ESP padding is wrong")]
    BadPadding,
}

impl Malformed {
    /// Every reason, in order; `ALL[reason as usize] == reason`.
    pub const ALL: [Malformed; 17] = [
        Malformed::Truncated,
        Malformed::BadVersion,
        Malformed::BadHeaderLength,
        Malformed::BadTotalLength,
        Malformed::BadChecksum,
        Malformed::BadOption,
        Malformed::TooManyOptions,
        Malformed::TooManyExtensions,
        Malformed::MisplacedExtension,
        Malformed::Jumbogram,
        Malformed::SourceRoute,
        Malformed::TinyFragment,
        Malformed::OversizeFragment,
        Malformed::TruncatedTransport,
        Malformed::TooManyTags,
        Malformed::BadAlignment,
        Malformed::BadPadding,
    ];

    /// The reason as counters spell it, for example `bad_checksum`.
    pub const fn name(self) -> &'static str {
        match self {
            Malformed::Truncated => "truncated",
            Malformed::BadVersion => "bad_version",
            Malformed::BadHeaderLength => "bad_header_length",
            Malformed::BadTotalLength => "bad_total_length",
            Malformed::BadChecksum => "bad_checksum",
            Malformed::BadOption => "bad_option",
            Malformed::TooManyOptions => "too_many_options",
            Malformed::TooManyExtensions => "too_many_extensions",
            Malformed::MisplacedExtension => "misplaced_extension",
            Malformed::Jumbogram => "jumbogram",
            Malformed::SourceRoute => "source_route",
            Malformed::TinyFragment => "tiny_fragment",
            Malformed::OversizeFragment => "oversize_fragment",
            Malformed::TruncatedTransport => "truncated_transport",
            Malformed::TooManyTags => "too_many_tags",
            Malformed::BadAlignment => "bad_alignment",
            Malformed::BadPadding => "bad_padding",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_in_order_and_names_are_distinct() {
        for (index, reason) in Malformed::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
            let same = Malformed::ALL.iter().filter(|other| other.name() == reason.name());
            assert_eq!(same.count(), 1, "{} is named twice", reason.name());
        }
    }
}
