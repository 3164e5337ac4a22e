//! Algorithm attributes: a name, a key length in bits, and the key behind them.
//!
//! The headers here never hold the key, so that they may be printed.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `alg_name`: bytes up to the first zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Name(pub [u8; 64]);

impl Name {
    /// From text; what does not fit into 63 bytes is cut off.
    pub fn new(text: &str) -> Self {
        let mut bytes = [0; 64];
        let len = text.len().min(63);
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self(bytes)
    }

    /// The name as text; the last byte counts as the terminator whatever it holds, as the kernel
    /// does. Empty when it is not UTF-8, which no algorithm's name is.
    pub fn as_str(&self) -> &str {
        let text = &self.0[..63];
        let len = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        std::str::from_utf8(&text[..len]).unwrap_or("")
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

/// Bytes that a key of `bits` takes.
pub const fn key_bytes(bits: u32) -> u64 {
    (bits as u64).div_ceil(8)
}

/// `xfrm_algo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Algorithm {
    /// Name.
    pub name: Name,
    /// Key length in bits.
    pub key_len: u32,
}

/// `xfrm_algo_auth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AlgorithmAuth {
    /// Name.
    pub name: Name,
    /// Key length in bits.
    pub key_len: u32,
    /// Length of the truncated ICV in bits.
    pub trunc_len: u32,
}

/// `xfrm_algo_aead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AlgorithmAead {
    /// Name.
    pub name: Name,
    /// Key length in bits; RFC 4106 algorithms count the 32-bit salt at its end.
    pub key_len: u32,
    /// Length of the ICV in bits.
    pub icv_len: u32,
}

const _: () = assert!(size_of::<Algorithm>() == 68);
const _: () = assert!(size_of::<AlgorithmAuth>() == 72);
const _: () = assert!(size_of::<AlgorithmAead>() == 72);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_at_the_first_zero_or_at_byte_63() {
        assert_eq!(Name::new("rfc4106(gcm(aes))").as_str(), "rfc4106(gcm(aes))");
        assert_eq!(Name([b'a'; 64]).as_str().len(), 63);
        assert_eq!(Name([0xff; 64]).as_str(), "");
        assert_eq!(Name::new(&"b".repeat(100)).as_str().len(), 63);
    }

    #[test]
    fn key_bytes_round_up_without_wrapping() {
        assert_eq!(key_bytes(0), 0);
        assert_eq!(key_bytes(161), 21);
        assert_eq!(key_bytes(u32::MAX), 536_870_912);
    }
}
