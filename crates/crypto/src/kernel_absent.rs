//! Stands in for `vaes512.rs` and `vaes256.rs` on other architectures: a key of theirs cannot exist.

use crate::vaes::Schedule;
use crate::{NONCE_LEN, TAG_LEN};

/// Never there.
#[derive(Clone, Copy)]
pub enum Supported {}

/// Never: the reason is the architecture.
pub fn supported() -> Result<Supported, String> {
    Err("it exists for x86_64 only".to_owned())
}

impl Supported {
    /// Unreachable by type.
    pub fn expand(self, _: &[u8], _: &mut Schedule) {
        match self {}
    }

    /// Unreachable by type.
    pub fn seal(
        self,
        _: u16,
        _: &Schedule,
        _: &[u8; NONCE_LEN],
        _: &[u8],
        _: &mut [u8],
        _: &mut [u8; TAG_LEN],
    ) {
        match self {}
    }

    /// Unreachable by type.
    pub fn open_unwiped(
        self,
        _: u16,
        _: &Schedule,
        _: &[u8; NONCE_LEN],
        _: &[u8],
        _: &mut [u8],
        _: &[u8; TAG_LEN],
    ) -> bool {
        match self {}
    }
}
