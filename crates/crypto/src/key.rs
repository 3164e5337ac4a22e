//! A key, expanded once for one engine, that seals and opens packets in place.
//!
//! It does not choose nonces. A nonce used twice under one key breaks AES-GCM altogether (SP
//! 800-38D §8): whoever seals owns a counter and the key's lifetime.

use std::fmt;
use std::sync::atomic::AtomicU32;

use crate::cache::Cache;
use crate::engine::{Engine, EngineError};
use crate::vaes::Schedule;
use crate::{aws_lc, ipsec_mb, vaes256, vaes512};

/// Bytes of a nonce: in ESP the 4 bytes of salt, then the 8 bytes of IV (RFC 4106 §4).
pub const NONCE_LEN: usize = 12;

/// Bytes of a tag, ESP's ICV. RFC 4106 §6 makes 16 mandatory; 8 and 12 are not offered.
pub const TAG_LEN: usize = 16;

/// Bytes that one call can take: 2^39 − 256 bits (SP 800-38D §5.2.1.1). After that the block
/// counter would wrap and key stream repeat. No packet comes near it.
pub const DATA_LEN_MAX: u64 = (1 << 36) - 32;

/// Bytes of AAD that one call can take, 1 MiB. ESP has 8 or 12.
pub const AAD_LEN_MAX: usize = 1 << 20;

/// An AES-GCM key with a 16-byte tag, expanded for one engine.
///
/// Any number of threads may use it at once; all of it but the engine and size is secret, so that
/// is all that `Debug` shows. Dropping it wipes the expanded key.
///
/// With the engines `vaes512` and `vaes256` it is one dense record of eight cache lines that may be part of a
/// larger one; the libraries' keys are elsewhere. Moving it copies the secret: put it where it will
/// stay.
#[repr(C, align(64))]
pub struct Key {
    /// Used by our own engines, zeros otherwise.
    schedule: Schedule,
    /// There if `form` says so.
    library: Option<Box<Library>>,
    /// How many [`SharedKey`](crate::SharedKey)s there are of it.
    pub(crate) users: AtomicU32,
    bits: u16,
    form: Form,
}

/// Cache lines are what a key costs at scale.
#[cfg(target_arch = "x86_64")]
const _: () = assert!(size_of::<Key>() == 512);

/// Whose the expanded key is.
enum Form {
    /// One of our own engines', in the schedule; with the proof that it can be used.
    Vaes512(vaes512::Supported),
    Vaes256(vaes256::Supported),
    /// A library's, elsewhere. Not with a pointer to it: that would take a word for itself.
    Library,
}

/// A key that was expanded by a library.
enum Library {
    IpsecMb(ipsec_mb::Key),
    AwsLc(aws_lc::Key),
}

/// Why no key was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// AES has three key sizes and this is none of them. The salt is not part of the key.
    #[error("an AES-GCM key has 16, 24 or 32 bytes without the salt; this one has {0}")]
    Length(usize),
    /// The engine cannot be used here.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Key {
    /// Expands a key of 16, 24 or 32 bytes. Wiping `key` itself stays with the caller.
    ///
    /// # Errors
    ///
    /// [`KeyError`] for a key of another length, or an engine that does not work here.
    pub fn new(engine: Engine, key: &[u8]) -> Result<Key, KeyError> {
        let mut new = Key::unexpanded(engine, key)?;
        new.expand(key);
        Ok(new)
    }

    /// A key for an engine, to be expanded where it will stay. What a library expanded stays in its box.
    pub(crate) fn unexpanded(engine: Engine, key: &[u8]) -> Result<Key, KeyError> {
        let bits = match key.len() {
            16 | 24 | 32 => 8 * key.len() as u16,
            other => return Err(KeyError::Length(other)),
        };
        let unavailable = |reason| engine.unavailable(reason);
        let (form, library) = match engine {
            Engine::Vaes512 => (Form::Vaes512(vaes512::supported().map_err(unavailable)?), None),
            Engine::Vaes256 => (Form::Vaes256(vaes256::supported().map_err(unavailable)?), None),
            Engine::IpsecMb => {
                let key = ipsec_mb::Key::new(key).map_err(unavailable)?;
                (Form::Library, Some(Library::IpsecMb(key)))
            }
            Engine::AwsLc => {
                let key = aws_lc::Key::new(key).ok_or(KeyError::Length(key.len()))?;
                (Form::Library, Some(Library::AwsLc(key)))
            }
        };
        let (schedule, library) = (Schedule::empty(), library.map(Box::new));
        Ok(Key { schedule, library, users: AtomicU32::new(1), bits, form })
    }

    /// Fills the schedule, if it is the engine's.
    pub(crate) fn expand(&mut self, key: &[u8]) {
        match self.form {
            Form::Vaes512(cpu) => cpu.expand(key, &mut self.schedule),
            Form::Vaes256(cpu) => cpu.expand(key, &mut self.schedule),
            Form::Library => {}
        }
    }

    /// The library's key, where it has one.
    fn library(&self) -> &Library {
        self.library.as_deref().expect("a library's key where the form says so")
    }

    /// The engine this key was expanded for.
    #[must_use]
    pub fn engine(&self) -> Engine {
        match &self.form {
            Form::Vaes512(_) => Engine::Vaes512,
            Form::Vaes256(_) => Engine::Vaes256,
            Form::Library => self.library().engine(),
        }
    }

    /// The key's size: 128, 192 or 256.
    #[must_use]
    pub fn bits(&self) -> u16 {
        self.bits
    }

    /// Asks the CPU for the cache lines that sealing or opening one packet with `data_len` bytes of data will
    /// read, so that other work hides the wait for memory; a hint without any other effect. A short packet
    /// reads less, and where 50 000 keys come from the last cache in random order, six lines of eight are
    /// a fifth of the time.
    ///
    /// It reads nothing of the key, not even its engine, as that would be to wait. So it cannot know where a library
    /// keeps what it expanded: [`Key::prefetch_library`] asks for that.
    #[inline]
    pub fn prefetch_for(&self, data_len: usize, cache: Cache) {
        self.schedule.prefetch(data_len, cache);
    }

    /// Asks for what libipsec-mb expanded, if it did: for later than [`Key::prefetch_for`], by when the line has come
    /// that says where it is. AWS-LC keeps its expanded keys to itself.
    #[inline]
    pub fn prefetch_library(&self, cache: Cache) {
        if let Some(key) = self.ipsec_mb() {
            key.prefetch(cache);
        }
    }

    /// Whether [`Key::prefetch_library`] does anything.
    #[inline]
    #[must_use]
    pub fn has_library_lines(&self) -> bool {
        self.ipsec_mb().is_some()
    }

    /// What libipsec-mb expanded, if it did.
    #[inline]
    fn ipsec_mb(&self) -> Option<&ipsec_mb::Key> {
        let Key { library, .. } = self;
        match library.as_deref()? {
            Library::IpsecMb(key) => Some(key),
            Library::AwsLc(_) => None,
        }
    }

    /// Encrypts `data` in place, and writes the tag over it and `aad`.
    ///
    /// `nonce` must never have been used with this key before. In ESP `aad` is SPI and sequence
    /// number, 8 bytes, or 12 with extended sequence numbers (RFC 4106 §5); other lengths work too.
    ///
    /// # Panics
    /// If `data` is longer than [`DATA_LEN_MAX`], 64 GiB, or `aad` than [`AAD_LEN_MAX`], 1 MiB.
    // Inlined, nonce and AAD go to our own engine in registers.
    #[inline(always)]
    pub fn seal(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
        tag: &mut [u8; TAG_LEN],
    ) {
        match &self.form {
            Form::Vaes512(cpu) => cpu.seal(self.bits, &self.schedule, nonce, aad, data, tag),
            Form::Vaes256(cpu) => cpu.seal(self.bits, &self.schedule, nonce, aad, data, tag),
            Form::Library => self.library().seal(nonce, aad, data, tag),
        }
    }

    /// Decrypts `data` in place if `tag` proves that it and `aad` are what was sealed.
    ///
    /// On `false` every byte of `data` is zero: the engines decrypt before they know the tag, and
    /// plaintext that nobody vouches for must not outlive the call (SP 800-38D §7.2). The tag is
    /// compared in constant time.
    #[inline(always)]
    #[must_use]
    pub fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> bool {
        let genuine = match &self.form {
            Form::Vaes512(cpu) => {
                cpu.open_unwiped(self.bits, &self.schedule, nonce, aad, data, tag)
            }
            Form::Vaes256(cpu) => {
                cpu.open_unwiped(self.bits, &self.schedule, nonce, aad, data, tag)
            }
            Form::Library => self.library().open_unwiped(nonce, aad, data, tag),
        };
        if !genuine {
            wipe(data);
        }
        genuine
    }
}

impl Library {
    fn engine(&self) -> Engine {
        match self {
            Library::IpsecMb(_) => Engine::IpsecMb,
            Library::AwsLc(_) => Engine::AwsLc,
        }
    }

    #[inline(never)]
    fn seal(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], data: &mut [u8], tag: &mut [u8; TAG_LEN]) {
        assert!(is_within_limits(aad, data), "data or AAD beyond what can be sealed");
        match self {
            Library::IpsecMb(key) => key.seal(nonce, aad, data, tag),
            Library::AwsLc(key) => key.seal(nonce, aad, data, tag),
        }
    }

    /// Nothing is wiped.
    #[inline(never)]
    fn open_unwiped(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> bool {
        if !is_within_limits(aad, data) {
            return false;
        }
        match self {
            Library::IpsecMb(key) => key.open_unwiped(nonce, aad, data, tag),
            Library::AwsLc(key) => key.open_unwiped(nonce, aad, data, tag),
        }
    }
}

/// Whether AES-GCM allows for so much data, and so much AAD is offered. What ESP has is far from it.
pub(crate) fn is_within_limits(aad: &[u8], data: &[u8]) -> bool {
    data.len() as u64 <= DATA_LEN_MAX && aad.len() <= AAD_LEN_MAX
}

/// Plain stores at memory speed, because a forger chooses how often this runs. They cannot be optimised away:
/// the caller can read `data`.
#[cold]
fn wipe(data: &mut [u8]) {
    data.fill(0);
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(AES-GCM-{}, {})", self.bits(), self.engine())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_three_key_sizes_of_aes_make_a_key() {
        for engine in Engine::ALL {
            for len in (0..64).filter(|len| ![16, 24, 32].contains(len)) {
                assert_eq!(Key::new(engine, &vec![7; len]).unwrap_err(), KeyError::Length(len));
            }
        }
    }

    #[test]
    fn debug_shows_size_and_engine_alone() {
        let key = Key::new(Engine::AwsLc, &[0xa5; 24]).unwrap();
        assert_eq!(format!("{key:?}"), "Key(AES-GCM-192, aws-lc)");
    }

    #[test]
    fn keys_may_be_shared_between_threads() {
        fn shareable<T: Send + Sync>() {}
        shareable::<Key>();
    }
}
