//! Stands in for `ipsec_mb.rs` where the engine could not be built: a key of it cannot exist.

use crate::{Cache, NONCE_LEN, TAG_LEN};

const REASON: &str =
    "this build has no ipsec-mb (it needs x86_64 Linux, and libipsec-mb-dev at build time)";

/// Never: the reason is that the engine was not built.
pub fn available() -> Result<(), String> {
    Err(REASON.to_owned())
}

/// No version, because there is no library.
pub fn version() -> Result<String, String> {
    Err(REASON.to_owned())
}

/// A key that nothing can make.
pub enum Key {}

impl Key {
    /// Always refused.
    pub fn new(_key: &[u8]) -> Result<Key, String> {
        Err(REASON.to_owned())
    }

    /// Unreachable by type.
    pub fn prefetch(&self, _: Cache) {
        match *self {}
    }

    /// Unreachable by type.
    pub fn seal(&self, _: &[u8; NONCE_LEN], _: &[u8], _: &mut [u8], _: &mut [u8; TAG_LEN]) {
        match *self {}
    }

    /// Unreachable by type.
    pub fn open_unwiped(
        &self,
        _: &[u8; NONCE_LEN],
        _: &[u8],
        _: &mut [u8],
        _: &[u8; TAG_LEN],
    ) -> bool {
        match *self {}
    }
}
