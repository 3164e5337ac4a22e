//! A fixed header laid over bytes. Checks length and nothing else.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;

/// A header of fixed size and alignment one, for which every bit pattern is a value.
///
/// Length is checked when the overlay is made; afterwards no accessor can fail.
pub trait Overlay: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Sized {
    /// Size in bytes.
    const LEN: usize = size_of::<Self>();

    /// The header at the start of `bytes`, and what follows it.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] if there are fewer than [`LEN`](Overlay::LEN) bytes.
    #[inline]
    fn over(bytes: &[u8]) -> Result<(&Self, &[u8]), Malformed> {
        Self::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)
    }

    /// As [`over`](Overlay::over), to change the header in place.
    ///
    /// # Errors
    ///
    /// As of [`over`](Overlay::over).
    #[inline]
    fn over_mut(bytes: &mut [u8]) -> Result<(&mut Self, &mut [u8]), Malformed> {
        Self::mut_from_prefix(bytes).map_err(|_| Malformed::Truncated)
    }

    /// Writes the header to the start of `bytes` and returns what follows it.
    ///
    /// # Errors
    ///
    /// As of [`over`](Overlay::over).
    #[inline]
    fn emit<'a>(&self, bytes: &'a mut [u8]) -> Result<&'a mut [u8], Malformed> {
        let (head, rest) = bytes.split_at_mut_checked(Self::LEN).ok_or(Malformed::Truncated)?;
        head.copy_from_slice(self.as_bytes());
        Ok(rest)
    }
}
