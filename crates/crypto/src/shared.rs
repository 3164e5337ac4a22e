//! A key with several owners.
//!
//! It is what `Arc<Key>` would be, but for where the owners are counted: `Arc` puts its counts in front,
//! which takes a line of memory for each key, of which there are 100 000. A key has room for one at its end.

use std::fmt;
use std::ops::Deref;
use std::process::abort;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use crate::engine::Engine;
use crate::key::{Key, KeyError};

/// Owners at which the program ends before the count could begin anew, as `Arc`'s does.
const OWNERS_MAX: u32 = u32::MAX / 2;

/// An owner of a key, which stays where it was expanded and is wiped after the last of them.
pub struct SharedKey {
    key: NonNull<Key>,
}

// SAFETY: what it gives is `&Key`, which all threads may have, and the last owner, on whichever thread, drops
// what nobody else has.
unsafe impl Send for SharedKey where Key: Send + Sync {}

// SAFETY: as above.
unsafe impl Sync for SharedKey where Key: Send + Sync {}

impl SharedKey {
    /// Expands a key of 16, 24 or 32 bytes where it will stay, so that nothing of it is left behind on
    /// the stack. Wiping `key` itself stays with the caller.
    ///
    /// # Errors
    ///
    /// As of [`Key::new`].
    pub fn new(engine: Engine, key: &[u8]) -> Result<SharedKey, KeyError> {
        let mut shared = Box::new(Key::unexpanded(engine, key)?);
        shared.expand(key);
        Ok(SharedKey { key: NonNull::from(Box::leak(shared)) })
    }

    /// Whether two are owners of the same key, not of one like it.
    #[must_use]
    pub fn is(&self, other: &SharedKey) -> bool {
        self.key == other.key
    }
}

impl Deref for SharedKey {
    type Target = Key;

    #[inline]
    fn deref(&self) -> &Key {
        // SAFETY: it is there as long as it has an owner, and nobody changes it but for the count.
        unsafe { self.key.as_ref() }
    }
}

impl Clone for SharedKey {
    fn clone(&self) -> SharedKey {
        // As in `Arc`: who makes an owner is one, so nothing needs to be seen in order.
        if self.users.fetch_add(1, Relaxed) > OWNERS_MAX {
            abort();
        }
        SharedKey { key: self.key }
    }
}

impl Drop for SharedKey {
    fn drop(&mut self) {
        if self.users.fetch_sub(1, Release) != 1 {
            return;
        }
        // All that the other owners did with it comes before it is wiped.
        fence(Acquire);
        // SAFETY: it came from a box, and this was its last owner.
        drop(unsafe { Box::from_raw(self.key.as_ptr()) });
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: [u8; 12] = [3; 12];

    fn sealed(key: &Key) -> ([u8; 40], [u8; 16]) {
        let (mut data, mut tag) = ([9; 40], [0; 16]);
        key.seal(&NONCE, &[1; 8], &mut data, &mut tag);
        (data, tag)
    }

    #[test]
    fn it_is_the_key_that_it_was_made_of() {
        for engine in
            Engine::ALL.into_iter().filter(|engine| Engine::select(Some(engine.name())).is_ok())
        {
            for len in [16, 24, 32] {
                let bytes: Vec<u8> = (0..len).collect();
                let shared = SharedKey::new(engine, &bytes).unwrap();
                let key = Key::new(engine, &bytes).unwrap();
                assert_eq!((shared.engine(), shared.bits()), (engine, 8 * u16::from(len)));
                assert_eq!(sealed(&shared), sealed(&key));
                let other = SharedKey::new(engine, &bytes).unwrap();
                assert!(shared.is(&shared.clone()) && !shared.is(&other));
            }
        }
        let length = SharedKey::new(Engine::AwsLc, &[0; 20]).unwrap_err();
        assert_eq!(length, KeyError::Length(20));
    }

    #[test]
    fn owners_on_all_threads_are_counted() {
        let shared = SharedKey::new(Engine::AwsLc, &[7; 32]).unwrap();
        let expected = sealed(&shared);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let mine = shared.clone();
                scope.spawn(move || {
                    for _ in 0..1000 {
                        let (one, two) = (mine.clone(), mine.clone());
                        drop(one);
                        assert_eq!(sealed(&two), expected);
                    }
                });
            }
        });
        assert_eq!(shared.users.load(Relaxed), 1);
        let last = shared.clone();
        drop(shared);
        assert_eq!((last.users.load(Relaxed), sealed(&last)), (1, expected));
    }
}
