//! Nonce and AAD of a packet, in the machine's words.

use super::block::BLOCK_LEN;
use super::opaque::apart;
use crate::NONCE_LEN;

/// Blocks of data with which every counter of a packet, the tag's included, fits into a byte: the first has number 2.
pub const BYTE_COUNTERS: usize = 254;

/// Nonce and AAD of a packet as ESP has them, words as the machine has them.
pub struct Head {
    /// The first counter block without its counter.
    pub nonce: [u64; 2],
    /// The AAD as GHASH takes it, which is 12 bytes at most. In the four bytes that it leaves stand the lengths:
    /// the first three have the data's length in bits, the fourth the AAD's.
    pub ends: [u64; 2],
}

impl Head {
    /// `None` if ESP has no such packet: AAD has 8 or 12 bytes, and the counters fit into a byte.
    #[inline]
    pub fn new(nonce: &[u8; NONCE_LEN], aad: &[u8], data_len: usize) -> Option<Head> {
        let word = |at: usize| {
            let bytes = [aad[at], aad[at + 1], aad[at + 2], aad[at + 3]];
            u64::from(apart(u32::from_be_bytes(bytes)))
        };
        if data_len > BYTE_COUNTERS * BLOCK_LEN {
            return None;
        }
        let (high, low) = match aad.len() {
            8 => (word(0) << 32 | word(4), 0),
            12 => (word(0) << 32 | word(4), word(8) << 32),
            _ => return None,
        };
        let lengths = (data_len as u64 * 8) | ((aad.len() as u64 * 8) << 24);
        Some(Head { nonce: nonce_words(nonce), ends: [low | lengths, high] })
    }
}

/// The first counter block without its counter.
///
/// Read in the lengths that ESP writes, salt and IV: a CPU hands a store on to a later load only if
/// the load lies within it. A load of all 12 bytes at once would wait until both stores have
/// reached the cache, which is after all that went before has retired; packets would no longer
/// overlap.
#[inline]
pub fn nonce_words(nonce: &[u8; NONCE_LEN]) -> [u64; 2] {
    let (salt, iv) = nonce.split_first_chunk::<4>().expect("twelve bytes");
    let iv = u64::from_le_bytes(*iv.first_chunk().expect("eight bytes"));
    [u64::from(u32::from_le_bytes(*salt)) | iv << 32, iv >> 32]
}
