//! The AWS-LC engine: runs on every architecture, and is the other oracle where ipsec-mb runs too.
//!
//! The library keeps the expanded key on its own heap, wipes it when the key is dropped, and
//! compares tags in constant time. This file does not check the length of the data; `key.rs` has
//! done that.

use aws_lc_rs::aead::{AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::{NONCE_LEN, TAG_LEN};

/// The library's version, for example `5.12.0`.
pub fn version() -> String {
    aws_lc_rs::awslc_version().to_owned()
}

/// An expanded key. "Less safe" is the library's word for nonces that the caller chooses, as ESP
/// must.
pub struct Key(LessSafeKey);

impl Key {
    /// Expands `key`; `None` unless it has 16, 24 or 32 bytes.
    pub fn new(key: &[u8]) -> Option<Key> {
        let algorithm = match key.len() {
            16 => &AES_128_GCM,
            24 => &AES_192_GCM,
            32 => &AES_256_GCM,
            _ => return None,
        };
        let unbound = UnboundKey::new(algorithm, key).ok()?;
        Some(Key(LessSafeKey::new(unbound)))
    }

    /// Encrypts `data` in place and writes its tag.
    pub fn seal(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
        tag: &mut [u8; TAG_LEN],
    ) {
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let computed = self
            .0
            .seal_in_place_separate_tag(nonce, Aad::from(aad), data)
            .expect("the library refuses only data longer than DATA_LEN_MAX");
        tag.copy_from_slice(computed.as_ref());
    }

    /// Decrypts `data` in place, and says whether its tag was right. On `false` the caller wipes
    /// the data.
    pub fn open_unwiped(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> bool {
        let nonce = Nonce::assume_unique_for_key(*nonce);
        self.0.open_in_place_separate_tag(nonce, Aad::from(aad), tag, data).is_ok()
    }
}
