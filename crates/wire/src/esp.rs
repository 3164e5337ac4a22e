//! Encapsulating Security Payload (RFC 4303) with AES-GCM and a 16-byte ICV (RFC 4106): where
//! the fields are, how much padding, which nonce and which associated data. No cryptography, no
//! sequence numbers' meaning: that is `crypto`'s and the data path's.
//!
//! ```text
//!  8 bytes       8 bytes         n bytes                                  16 bytes
//! ┌─────┬──────┬───────────────┬─────────┬─────┬─────────┬─────────┬────┬─────────┐
//! │ SPI │ seq. │ explicit IV   │ payload │ TFC │ 1,2,3,… │ pad len │ nh │ ICV     │
//! └─────┴──────┴───────────────┴─────────┴─────┴─────────┴─────────┴────┴─────────┘
//!  └─ associated data           └── encrypted, a multiple of 4 bytes ──┘
//! ```

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Malformed, Overlay};

/// Length in bytes of SPI and sequence number.
pub const ESP_HEADER_LEN: usize = 8;
/// Length in bytes of the explicit IV of AES-GCM (RFC 4106 §3.1).
pub const GCM_IV_LEN: usize = 8;
/// Length in bytes of the implicit part of the nonce, the last bytes of the keying material
/// (RFC 4106 §8.1).
pub const GCM_SALT_LEN: usize = 4;
/// Length in bytes of a whole nonce.
pub const GCM_NONCE_LEN: usize = GCM_SALT_LEN + GCM_IV_LEN;
/// Length in bytes of the integrity check value.
pub const ICV_LEN: usize = 16;
/// Length in bytes of pad length and next header.
pub const TRAILER_LEN: usize = 2;
/// What the encrypted part is a multiple of, in bytes (RFC 4303 §2.4). AES-GCM asks for no more.
pub const ALIGNMENT: usize = 4;
/// The most padding the pad length can count. [`pad_len`] asks for at most three.
pub const PAD_LEN_MAX: usize = 255;

const _: () = assert!(size_of::<Header>() == ESP_HEADER_LEN);
const _: () = assert!(size_of::<Trailer>() == TRAILER_LEN);

/// SPI and sequence number.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Header {
    spi: U32,
    sequence: U32,
}

impl Overlay for Header {}

impl Header {
    /// A header ready to write; `sequence` is the lower half of an extended number.
    #[inline]
    pub const fn new(spi: u32, sequence: u32) -> Header {
        Header { spi: U32::new(spi), sequence: U32::new(sequence) }
    }

    /// The security parameters index. Zero never names an SA; 1–255 are reserved (RFC 4303
    /// §2.1), which is for the table of SAs to know.
    #[inline]
    pub fn spi(&self) -> u32 {
        self.spi.get()
    }

    /// The lower 32 bits of the sequence number.
    #[inline]
    pub fn sequence(&self) -> u32 {
        self.sequence.get()
    }
}

/// Pad length and next header, the last two encrypted bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Trailer {
    /// How many padding bytes precede this trailer.
    pub pad_len: u8,
    /// What the payload is.
    pub next_header: u8,
}

impl Overlay for Trailer {}

impl Trailer {
    /// Takes decrypted bytes apart: the payload, any TFC padding still behind it (RFC 4303 §2.7:
    /// the payload's own length says where it ends), and the trailer.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] if there is no room for a trailer, [`Malformed::BadPadding`] if the padding
    /// does not fit or is not 1, 2, 3, …, which a receiver should check (RFC 4303 §2.4).
    #[inline]
    pub fn parse(plaintext: &[u8]) -> Result<(&[u8], Trailer), Malformed> {
        let (rest, &[pad_len, next_header]) =
            plaintext.split_last_chunk().ok_or(Malformed::Truncated)?;
        let trailer = Trailer { pad_len, next_header };
        let payload_len =
            rest.len().checked_sub(usize::from(pad_len)).ok_or(Malformed::BadPadding)?;
        let (payload, padding) = rest.split_at(payload_len);
        if padding.iter().zip(1..=u8::MAX).all(|(byte, number)| *byte == number) {
            Ok((payload, trailer))
        } else {
            Err(Malformed::BadPadding)
        }
    }
}

/// A received packet, still encrypted, whose lengths hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// SPI and sequence number.
    pub header: &'a Header,
    /// The explicit IV.
    pub iv: &'a [u8; GCM_IV_LEN],
    /// The encrypted payload, padding and trailer; never empty, a multiple of four bytes.
    pub ciphertext: &'a [u8],
    /// The integrity check value.
    pub icv: &'a [u8; ICV_LEN],
}

impl<'a> Packet<'a> {
    /// Splits the payload of an IP packet, or of a UDP datagram (RFC 3948), that is ESP.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] if header, IV, any ciphertext or ICV is missing,
    /// [`Malformed::BadAlignment`] if the ciphertext is not of whole [`ALIGNMENT`] bytes (RFC 4303 §2.4).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let (header, rest) = Header::over(bytes)?;
        let (iv, rest) = rest.split_first_chunk().ok_or(Malformed::Truncated)?;
        let (ciphertext, icv) = rest.split_last_chunk().ok_or(Malformed::Truncated)?;
        if ciphertext.is_empty() {
            return Err(Malformed::Truncated);
        }
        if ciphertext.len() % ALIGNMENT != 0 {
            return Err(Malformed::BadAlignment);
        }
        Ok(Packet { header, iv, ciphertext, icv })
    }
}

/// How many padding bytes a payload needs so that payload, padding and trailer end on a 4-byte
/// boundary (RFC 4303 §2.4): 0–3.
#[inline]
pub const fn pad_len(payload_len: usize) -> usize {
    (payload_len + TRAILER_LEN).wrapping_neg() % ALIGNMENT
}

/// Length in bytes of the whole ESP packet, header to ICV, around a payload.
#[inline]
pub const fn sealed_len(payload_len: usize) -> usize {
    let plaintext_len = payload_len + pad_len(payload_len) + TRAILER_LEN;
    ESP_HEADER_LEN + GCM_IV_LEN + plaintext_len + ICV_LEN
}

/// The longest payload whose ESP packet fits into `sealed_len_max` bytes; 0 if none does.
#[inline]
pub const fn payload_len_max(sealed_len_max: usize) -> usize {
    let plaintext_len_max = sealed_len_max.saturating_sub(ESP_HEADER_LEN + GCM_IV_LEN + ICV_LEN);
    (plaintext_len_max & !(ALIGNMENT - 1)).saturating_sub(TRAILER_LEN)
}

/// Fills `tail` with padding 1, 2, 3, … and the trailer. `tail` is what follows the payload:
/// [`pad_len`] and [`TRAILER_LEN`] bytes.
///
/// # Errors
///
/// [`Malformed::BadPadding`] if `tail` is shorter than the trailer or longer than the pad length can count.
#[inline]
pub fn write_trailer(tail: &mut [u8], next_header: u8) -> Result<(), Malformed> {
    let pad_len = tail.len().checked_sub(TRAILER_LEN).ok_or(Malformed::BadPadding)?;
    let pad_len = u8::try_from(pad_len).map_err(|_| Malformed::BadPadding)?;
    let (padding, trailer) = tail.split_at_mut(usize::from(pad_len));
    for (byte, number) in padding.iter_mut().zip(1..=u8::MAX) {
        *byte = number;
    }
    trailer.copy_from_slice(Trailer { pad_len, next_header }.as_bytes());
    Ok(())
}

/// Padding of [`pad_len`] bytes and the trailer, in the first `pad_len + TRAILER_LEN` bytes; those that
/// follow are zero. All of it in one number, for a sender that has room for eight bytes anyway.
#[inline]
pub const fn short_trailer(pad_len: usize, next_header: u8) -> [u8; 8] {
    const PADDING: [u64; ALIGNMENT] = [0x00, 0x01_01, 0x02_02_01, 0x03_03_02_01];
    let pad_len = pad_len % ALIGNMENT;
    (PADDING[pad_len] | (next_header as u64) << (8 * (pad_len + 1))).to_le_bytes()
}

/// [`short_trailer`]s with a next header, by the padding before them.
pub const fn short_trailers(next_header: u8) -> [[u8; 8]; ALIGNMENT] {
    let mut trailers = [[0; 8]; ALIGNMENT];
    let mut pad_len = 0;
    while pad_len < trailers.len() {
        trailers[pad_len] = short_trailer(pad_len, next_header);
        pad_len += 1;
    }
    trailers
}

/// ESP header and explicit IV, as they stand in front of the payload; `sequence` is the lower half of an
/// extended number.
#[inline]
pub const fn prefix(spi: u32, sequence: u32, iv: u64) -> [u8; ESP_HEADER_LEN + GCM_IV_LEN] {
    ((spi as u128) << 96 | (sequence as u128) << 64 | iv as u128).to_be_bytes()
}

/// The payload of decrypted bytes that end with what [`short_trailer`] makes of a next header, of eight bytes and
/// more, of which the last are compared as one number. `None` for others, good or bad.
#[inline(always)]
pub fn short_payload<const NEXT_HEADER: u8>(plaintext: &[u8]) -> Option<&[u8]> {
    let last = u64::from_le_bytes(*plaintext.last_chunk()?);
    let pad_len = usize::from((last >> 48) as u8);
    let expected = *const { &short_trailers(NEXT_HEADER) }.get(pad_len)?;
    let tail_len = pad_len + TRAILER_LEN;
    let is_it = last >> (8 * (8 - tail_len)) == u64::from_le_bytes(expected);
    is_it.then(|| &plaintext[..plaintext.len() - tail_len])
}

/// The nonce of AES-GCM: salt, then explicit IV (RFC 4106 §4).
#[inline]
pub fn gcm_nonce(salt: [u8; GCM_SALT_LEN], iv: [u8; GCM_IV_LEN]) -> [u8; GCM_NONCE_LEN] {
    let mut nonce = [0; GCM_NONCE_LEN];
    nonce[..GCM_SALT_LEN].copy_from_slice(&salt);
    nonce[GCM_SALT_LEN..].copy_from_slice(&iv);
    nonce
}

/// Associated data with a 32-bit sequence number: the ESP header itself (RFC 4106 §5).
#[inline]
pub fn aad(spi: u32, sequence: u32) -> [u8; 8] {
    let mut aad = [0; 8];
    aad[..4].copy_from_slice(&spi.to_be_bytes());
    aad[4..].copy_from_slice(&sequence.to_be_bytes());
    aad
}

/// Associated data with an extended sequence number, all 64 bits of it, although only the lower
/// half is on the wire (RFC 4106 §5).
#[inline]
pub fn aad_esn(spi: u32, sequence: u64) -> [u8; 12] {
    let mut aad = [0; 12];
    aad[..4].copy_from_slice(&spi.to_be_bytes());
    aad[4..].copy_from_slice(&sequence.to_be_bytes());
    aad
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A packet as it would be on the wire around four encrypted bytes.
    const PACKET_BYTES: [u8; 36] = [
        0xc0, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x2a, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x2a, 0xde, 0xad, 0xbe, 0xef, 0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9,
        0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff,
    ];

    #[test]
    fn packet_bytes() {
        let packet = Packet::parse(&PACKET_BYTES).unwrap();
        assert_eq!((packet.header.spi(), packet.header.sequence()), (0xc000_0001, 42));
        assert_eq!(packet.iv, &[0, 1, 0, 0, 0, 0, 0, 42]);
        assert_eq!(packet.ciphertext, [0xde, 0xad, 0xbe, 0xef]);
        assert_eq!((packet.icv[0], packet.icv[15]), (0xf0, 0xff));
        assert_eq!(packet.header, &Header::new(0xc000_0001, 42));
    }

    #[test]
    fn malformed_packets() {
        for len in 0..=32 {
            assert_eq!(Packet::parse(&PACKET_BYTES[..len]), Err(Malformed::Truncated), "{len}");
        }
        for len in 33..36 {
            assert_eq!(Packet::parse(&PACKET_BYTES[..len]), Err(Malformed::BadAlignment));
        }
    }

    #[test]
    fn padding() {
        let pads: Vec<usize> = (0..8).map(pad_len).collect();
        assert_eq!(pads, [2, 1, 0, 3, 2, 1, 0, 3]);
        let plaintext = [9, 9, 9, 1, 2, 3, 3, 4];
        let trailer = Trailer { pad_len: 3, next_header: 4 };
        assert_eq!(Trailer::parse(&plaintext), Ok((&plaintext[..3], trailer)));
        for (bytes, reason) in [
            (&[][..], Malformed::Truncated),
            (&[4], Malformed::Truncated),
            (&[1, 2, 3, 4], Malformed::BadPadding),
            (&[9, 2, 1, 4], Malformed::BadPadding),
            (&[9, 1, 1, 2, 4], Malformed::BadPadding),
        ] {
            assert_eq!(Trailer::parse(bytes), Err(reason), "{bytes:?}");
        }
        assert_eq!(Trailer::parse(&[0, 59]).unwrap().0, []);
    }

    #[test]
    fn trailers_of_impossible_length() {
        assert_eq!(write_trailer(&mut [0; 1], 4), Err(Malformed::BadPadding));
        assert_eq!(write_trailer(&mut [0; 258], 4), Err(Malformed::BadPadding));
        let mut longest = [0; PAD_LEN_MAX + TRAILER_LEN];
        write_trailer(&mut longest, 4).unwrap();
        assert_eq!(longest[254..], [255, 255, 4]);
        assert_eq!(Trailer::parse(&longest).unwrap().0, []);
    }

    #[test]
    fn a_short_trailer_is_the_long_one_in_one_piece() {
        for payload_len in 0..8 {
            let mut tail = vec![0; pad_len(payload_len) + TRAILER_LEN];
            write_trailer(&mut tail, 41).unwrap();
            let short = short_trailer(pad_len(payload_len), 41);
            assert_eq!(short[..tail.len()], tail);
            assert!(short[tail.len()..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn nonce_and_associated_data() {
        assert_eq!(
            gcm_nonce([1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11, 12]),
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
        );
        assert_eq!(aad(0xc000_0001, 42), PACKET_BYTES[..8]);
        assert_eq!(prefix(0xc000_0001, 42, 0x0001_0000_0000_002a), PACKET_BYTES[..16]);
        assert_eq!(aad_esn(0xc000_0001, 1 << 32 | 42), [0xc0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 42]);
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Packet::parse(&bytes);
            let _ = Trailer::parse(&bytes);
        }

        #[test]
        fn written_trailers_parse_back(
            payload in prop::collection::vec(any::<u8>(), 0..300), next_header: u8,
        ) {
            let pad_len = pad_len(payload.len());
            let mut plaintext = payload.clone();
            plaintext.resize(payload.len() + pad_len + TRAILER_LEN, 0);
            write_trailer(&mut plaintext[payload.len()..], next_header).unwrap();
            prop_assert_eq!(plaintext.len() % ALIGNMENT, 0);
            prop_assert_eq!(
                sealed_len(payload.len()), ESP_HEADER_LEN + GCM_IV_LEN + ICV_LEN + plaintext.len()
            );
            let trailer = Trailer { pad_len: pad_len as u8, next_header };
            prop_assert_eq!(Trailer::parse(&plaintext), Ok((&payload[..], trailer)));
        }

        #[test]
        fn short_trailers_are_those_that_any_reader_takes(
            mut plaintext in prop::collection::vec(any::<u8>(), 0..24), pad_len in 0u8..6,
            next_header in prop_oneof![3 => Just(41), 1 => any::<u8>()],
            flip in prop::option::weighted(0.3, 0usize..12),
        ) {
            let trailer = Trailer { pad_len, next_header };
            plaintext.extend(1..=pad_len);
            plaintext.extend_from_slice(trailer.as_bytes());
            let len = plaintext.len();
            if let Some(at) = flip.filter(|at| *at < len) {
                plaintext[len - 1 - at] ^= 4;
            }
            let parsed = Trailer::parse(&plaintext).ok();
            let is_it = |trailer: &Trailer| {
                usize::from(trailer.pad_len) < ALIGNMENT && trailer.next_header == 41 && len >= 8
            };
            let payload = parsed.filter(|(_, trailer)| is_it(trailer)).map(|(payload, _)| payload);
            prop_assert_eq!(short_payload::<41>(&plaintext), payload);
        }

        #[test]
        fn longest_payload_is_the_longest(space in 0usize..3000) {
            let longest = payload_len_max(space);
            prop_assert!(longest == 0 || sealed_len(longest) <= space);
            prop_assert!(sealed_len(longest + 1) > space);
        }
    }
}
