//! The libipsec-mb engine: the fastest library for AES-GCM on x86_64.
//!
//! It uses the library's *direct* calls, one packet each: for GCM they beat its job queue by 16–20
//! ns a packet (the queue pays for CBC with HMAC only). The shim `ipsec_mb.c` hides the library's
//! structs.
//!
//! Prefer release 1.4 or later for many cores: 1.3 stores into one word of its own on every call,
//! so that all cores fight for one cache line. Measured with two cores, 48-byte packets, AES-256:
//! 49 ns a packet alone, 59 ns each together; nothing to see from 500 bytes on. Later releases read
//! before they store.
//!
//! What this file does not do: compare key lengths with anything negotiated, or check the length of
//! the data; `key.rs` has done that.

use std::ffi::{CStr, c_char, c_void};
use std::hint::black_box;
use std::sync::OnceLock;

use zeroize::{Zeroize, Zeroizing};

use crate::{Cache, NONCE_LEN, TAG_LEN};

unsafe extern "C" {
    static peregrine_mb_key_len: usize;
    fn peregrine_mb_new(arch: *mut *const c_char, error: *mut *const c_char) -> *const c_void;
    fn peregrine_mb_version() -> *const c_char;
    fn peregrine_mb_expand(
        manager: *const c_void,
        key: *const u8,
        key_len: usize,
        expanded: *mut CacheLine,
    );
    fn peregrine_mb_seal(
        manager: *const c_void,
        expanded: *const CacheLine,
        key_len: usize,
        nonce: *const u8,
        aad: *const u8,
        aad_len: usize,
        data: *mut u8,
        data_len: usize,
        tag: *mut u8,
    );
    fn peregrine_mb_decrypt(
        manager: *const c_void,
        expanded: *const CacheLine,
        key_len: usize,
        nonce: *const u8,
        aad: *const u8,
        aad_len: usize,
        data: *mut u8,
        data_len: usize,
        tag: *mut u8,
    );
}

/// The library's table of functions for this CPU; one per process, kept as long as the process.
struct Manager {
    pointer: *const c_void,
    architecture: String,
    /// Bit n: sealing a short packet reads the nth cache line of an expanded key.
    lines_read: u64,
}

// SAFETY: the manager is written by `peregrine_mb_new` only, before `OnceLock` publishes it. The
// direct GCM calls read nothing of it but function pointers; its job queues, which are not
// thread-safe, are never used. What the calls share besides is the library's private error word:
// 1.3 stores zero into it on every call (an aligned 32-bit store by all threads of the same value),
// 1.4 and later read it first; nothing here reads it after `peregrine_mb_new`.
unsafe impl Send for Manager {}
// SAFETY: as above: shared use is read-only.
unsafe impl Sync for Manager {}

fn manager() -> Result<&'static Manager, String> {
    static MANAGER: OnceLock<Result<Manager, String>> = OnceLock::new();
    MANAGER.get_or_init(new_manager).as_ref().map_err(Clone::clone)
}

fn new_manager() -> Result<Manager, String> {
    let mut architecture = std::ptr::null();
    let mut error = std::ptr::null();
    // SAFETY: both pointers are valid for one write each; `OnceLock` makes this the only call.
    let pointer = unsafe { peregrine_mb_new(&mut architecture, &mut error) };
    if pointer.is_null() {
        // SAFETY: the shim sets `error` to a static string whenever it returns null.
        return Err(unsafe { text(error) });
    }
    // SAFETY: the shim sets `architecture` to a static string whenever it returns a manager.
    let architecture = unsafe { text(architecture) };
    let mut manager = Manager { pointer, architecture, lines_read: 0 };
    manager.lines_read = manager.lines_read();
    Ok(manager)
}

/// Bytes of the packet that decides which lines are worth a prefetch. Long packets read more, one
/// line after the other, which the CPU's own prefetcher sees coming.
const PROBE_LEN: usize = 96;

impl Manager {
    /// Finds out which lines of an expanded key a short packet needs, by spoiling one after the
    /// other: the layout is the library's own affair and has changed with every major release.
    fn lines_read(&self) -> u64 {
        let mut expanded = vec![CacheLine([0; 64]); key_lines()];
        // SAFETY: as in `Key::new`.
        unsafe {
            peregrine_mb_expand(self.pointer, [0x36; 32].as_ptr(), 32, expanded.as_mut_ptr())
        };
        let tag = self.probe(&expanded);
        let mut lines_read = 0;
        for line in 0..expanded.len().min(64) {
            for unit in 0..4 {
                expanded[line].0[16 * unit + 7] ^= 0x10;
                lines_read |= u64::from(self.probe(&expanded) != tag) << line;
                expanded[line].0[16 * unit + 7] ^= 0x10;
            }
        }
        lines_read
    }

    /// The tag of a short packet.
    fn probe(&self, expanded: &[CacheLine]) -> [u8; TAG_LEN] {
        let (mut data, mut tag) = ([0x5c; PROBE_LEN], [0; TAG_LEN]);
        // SAFETY: as in `Key::seal`; any bytes are an expanded key, the library only calculates
        // with them.
        unsafe {
            peregrine_mb_seal(
                self.pointer,
                expanded.as_ptr(),
                32,
                [0x0f; NONCE_LEN].as_ptr(),
                [0xf0; 12].as_ptr(),
                12,
                data.as_mut_ptr(),
                data.len(),
                tag.as_mut_ptr(),
            );
        }
        tag
    }
}

/// Cache lines of an expanded key.
fn key_lines() -> usize {
    // SAFETY: a constant of the shim.
    unsafe { peregrine_mb_key_len }.div_ceil(size_of::<CacheLine>())
}

/// # Safety
/// `pointer` is a NUL-terminated string that lives as long as the process.
unsafe fn text(pointer: *const c_char) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// Whether this CPU and this library can run the engine; the reason if not.
pub fn available() -> Result<(), String> {
    manager().map(drop)
}

/// The library's version and the instruction set it took, for example `1.3.0 (avx512)`.
pub fn version() -> Result<String, String> {
    let manager = manager()?;
    // SAFETY: the library returns a static string.
    let version = unsafe { text(peregrine_mb_version()) };
    Ok(format!("{} ({})", version.trim_start_matches('v'), manager.architecture))
}

/// 64 bytes, the alignment the library wants for expanded keys.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

impl Zeroize for CacheLine {
    fn zeroize(&mut self) {
        self.0.zeroize();
    }
}

/// Round keys and powers of the hash key: 1,008 bytes with 1.3, 1,264 with 2.0; wiped on drop.
pub struct Key {
    manager: &'static Manager,
    expanded: Zeroizing<Box<[CacheLine]>>,
    key_len: usize,
}

impl Key {
    /// Expands `key`, which has 16, 24 or 32 bytes.
    pub fn new(key: &[u8]) -> Result<Key, String> {
        debug_assert!(matches!(key.len(), 16 | 24 | 32));
        let manager = manager()?;
        let lines = vec![CacheLine([0; 64]); key_lines()];
        let mut expanded = Zeroizing::new(lines.into_boxed_slice());
        // SAFETY: `key` is readable for its length; `expanded` has at least `peregrine_mb_key_len`
        // bytes, aligned to 64, and is ours alone.
        unsafe {
            peregrine_mb_expand(manager.pointer, key.as_ptr(), key.len(), expanded.as_mut_ptr());
        }
        Ok(Key { manager, expanded, key_len: key.len() })
    }

    /// Asks for the cache lines that a short packet will need, of the 16 to 20 that there are.
    #[inline]
    pub fn prefetch(&self, cache: Cache) {
        let mut lines = self.manager.lines_read;
        while lines != 0 {
            let line = &raw const self.expanded[lines.trailing_zeros() as usize];
            cache.ask(line.cast());
            lines &= lines - 1;
        }
    }

    /// Encrypts `data` in place and writes its tag.
    #[inline]
    pub fn seal(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
        tag: &mut [u8; TAG_LEN],
    ) {
        // SAFETY: every pointer comes from a live slice or array and goes with its length; no
        // length makes the library look beyond it. `data` and `tag` are exclusive borrows. Empty
        // slices give non-null pointers, which the library insists on. `expanded` was filled by
        // `new` for `key_len` and is only read.
        unsafe {
            peregrine_mb_seal(
                self.manager.pointer,
                self.expanded.as_ptr(),
                self.key_len,
                nonce.as_ptr(),
                aad.as_ptr(),
                aad.len(),
                data.as_mut_ptr(),
                data.len(),
                tag.as_mut_ptr(),
            );
        }
    }

    /// Decrypts `data` in place, and says whether its tag was right. On `false` the data holds
    /// plaintext that nobody vouches for: the caller wipes it.
    #[inline]
    pub fn open_unwiped(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        data: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> bool {
        let mut computed = [0; TAG_LEN];
        // SAFETY: as in `seal`; `computed` has the 16 bytes that are written.
        unsafe {
            peregrine_mb_decrypt(
                self.manager.pointer,
                self.expanded.as_ptr(),
                self.key_len,
                nonce.as_ptr(),
                aad.as_ptr(),
                aad.len(),
                data.as_mut_ptr(),
                data.len(),
                computed.as_mut_ptr(),
            );
        }
        equal_in_constant_time(&computed, tag)
    }
}

/// All 16 bytes are combined before anything is decided, and `black_box` keeps the compiler from
/// turning that into a comparison that stops at the first difference.
#[inline]
fn equal_in_constant_time(a: &[u8; TAG_LEN], b: &[u8; TAG_LEN]) -> bool {
    black_box(u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Round keys come first in every release; and powers of the hash key for a packet that short
    /// are a part of the table.
    #[test]
    fn a_short_packet_reads_the_round_keys_and_a_part_of_the_rest() {
        let lines_read = manager().expect("this machine builds the engine").lines_read;
        assert_eq!(lines_read & 0b1111, 0b1111, "{lines_read:b}");
        assert!(lines_read >> 4 != 0 && lines_read.count_ones() <= 12, "{lines_read:b}");
        Key::new(&[0x5a; 16]).unwrap().prefetch(Cache::First);
    }

    #[test]
    fn tags_are_equal_only_when_every_bit_is() {
        let tag: [u8; TAG_LEN] = std::array::from_fn(|i| i as u8);
        assert!(equal_in_constant_time(&tag, &tag.clone()));
        for bit in 0..8 * TAG_LEN {
            let mut other = tag;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!equal_in_constant_time(&tag, &other), "bit {bit}");
        }
    }

    /// `Zeroizing` runs this same `zeroize` when the key is dropped.
    #[test]
    fn an_expanded_key_is_aligned_and_can_be_wiped_whole() {
        let mut key = Key::new(&[0x5a; 32]).expect("this machine builds the engine");
        assert_eq!(key.expanded.as_ptr() as usize % 64, 0);
        assert!(key.expanded.iter().flat_map(|line| line.0).any(|byte| byte != 0));
        key.expanded.zeroize();
        assert!(key.expanded.iter().flat_map(|line| line.0).all(|byte| byte == 0));
    }
}
