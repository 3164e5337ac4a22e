//! What arrives on the UDP port of NAT traversal (RFC 3948 §2): ESP, IKE behind a marker, or a
//! keepalive. UDP itself has been taken off before.

use crate::{Malformed, esp};

/// The UDP port of IKE and ESP behind a NAT (RFC 3948 §2, RFC 7296 §2.23).
pub const PORT: u16 = 4500;

/// Where the SPI of ESP would be, IKE has zero (RFC 3948 §2.2).
pub const NON_ESP_MARKER: [u8; 4] = [0; 4];

/// The whole payload of a keepalive (RFC 3948 §2.3).
pub const KEEPALIVE: [u8; 1] = [0xff];

/// The payload of a datagram on port 4500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram<'a> {
    /// ESP from its SPI on. Only the header's length has been checked.
    Esp(&'a [u8]),
    /// IKE, without the marker.
    Ike(&'a [u8]),
    /// Nothing but a sign of life; a receiver ignores it.
    Keepalive,
}

impl<'a> Datagram<'a> {
    /// Tells the three apart.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] if `payload` is none of them: empty, or too short for a marker or for an
    /// ESP header.
    #[inline]
    pub fn parse(payload: &'a [u8]) -> Result<Datagram<'a>, Malformed> {
        if payload == KEEPALIVE {
            return Ok(Datagram::Keepalive);
        }
        match payload.split_first_chunk() {
            Some((&NON_ESP_MARKER, ike)) => Ok(Datagram::Ike(ike)),
            Some(_) if payload.len() >= esp::ESP_HEADER_LEN => Ok(Datagram::Esp(payload)),
            _ => Err(Malformed::Truncated),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of an ESP packet.
    const PACKET_BYTES: [u8; 10] = [0xc0, 0, 0, 1, 0, 0, 0, 42, 0, 1];

    #[test]
    fn three_kinds() {
        assert_eq!(Datagram::parse(&PACKET_BYTES), Ok(Datagram::Esp(&PACKET_BYTES)));
        assert_eq!(Datagram::parse(&[0, 0, 0, 0, 7, 8]), Ok(Datagram::Ike(&[7, 8])));
        assert_eq!(Datagram::parse(&[0, 0, 0, 0]), Ok(Datagram::Ike(&[])));
        assert_eq!(Datagram::parse(&[0xff]), Ok(Datagram::Keepalive));
    }

    #[test]
    fn none_of_the_three() {
        for bytes in [&[][..], &[0], &[0xfe], &[0xff, 0xff], &[0, 0, 0], &PACKET_BYTES[..7]] {
            assert_eq!(Datagram::parse(bytes), Err(Malformed::Truncated), "{bytes:?}");
        }
        // Eight bytes of 0xff are an ESP header with an SPI, not a keepalive.
        assert_eq!(Datagram::parse(&[0xff; 8]), Ok(Datagram::Esp(&[0xff; 8])));
    }
}
