//! The engines against each other: each is the others' oracle.
//!
//! Where AWS-LC is the only one, the vectors are the oracle.

mod common;

use common::{keys, noise};
use crypto::{AAD_LEN_MAX, Key, NONCE_LEN, TAG_LEN};
use proptest::prelude::*;
use proptest::sample::Index;

/// A jumbo frame's payload: the longest that a port hands over.
const DATA_LEN_MAX: usize = 9000;

/// Bytes kept on both sides of the data, to see writes beyond it.
const FENCE_LEN: usize = 64;
const FENCE: u8 = 0xf5;

/// A copy of `data` between two fences, at an address that is `shift` off a fence's length.
fn fenced(data: &[u8], shift: usize) -> Vec<u8> {
    let fence = [FENCE; FENCE_LEN];
    [&fence[..], &fence[..shift], data, &fence[..]].concat()
}

fn assert_fences(buffer: &[u8], start: usize, len: usize) {
    let outside = buffer[..start].iter().chain(&buffer[start + len..]);
    assert!(outside.copied().all(|byte| byte == FENCE), "a write outside the data");
}

/// Every length up to a jumbo frame, the three key sizes, both AAD sizes of ESP, all alignments.
#[test]
fn the_engines_agree_on_every_length() {
    let plain = noise(1, DATA_LEN_MAX);
    let aad_12 = noise(2, 12);
    for key_len in [16, 24, 32] {
        let keys = keys(&noise(3, key_len));
        for (aad, len) in [8, 12].into_iter().flat_map(|aad_len| {
            let aad = &aad_12[..aad_len];
            (0..=DATA_LEN_MAX).map(move |len| (aad, len))
        }) {
            let mut nonce = [0; NONCE_LEN];
            nonce[4..].copy_from_slice(&(len as u64).to_be_bytes());
            let plain = &plain[..len];
            let start = FENCE_LEN + len % FENCE_LEN;
            let data = start..start + len;

            let seal = |key: &Key| {
                let mut buffer = fenced(plain, len % FENCE_LEN);
                let mut tag = [0; TAG_LEN];
                key.seal(&nonce, aad, &mut buffer[data.clone()], &mut tag);
                assert_fences(&buffer, start, len);
                (buffer, tag)
            };
            let (sealed, tag) = &seal(&keys[0]);
            for key in &keys {
                let (other, other_tag) = seal(key);
                assert!(other == *sealed, "{len} bytes, {} of AAD, {key:?}", aad.len());
                assert!(other_tag == *tag, "tag of {len} bytes, {} of AAD, {key:?}", aad.len());

                let mut buffer = sealed.clone();
                let opened = key.open(&nonce, aad, &mut buffer[data.clone()], tag);
                assert!(opened && buffer[data.clone()] == *plain, "{len} by {key:?}");
                assert_fences(&buffer, start, len);

                buffer.copy_from_slice(sealed);
                let mut forged = *tag;
                forged[len % TAG_LEN] ^= 1;
                let opened = key.open(&nonce, aad, &mut buffer[data.clone()], &forged);
                assert!(!opened, "forged {len} by {key:?}");
                assert!(buffer[data.clone()].iter().all(|byte| *byte == 0), "{len} by {key:?}");
                assert_fences(&buffer, start, len);
            }
        }
    }
}

/// Counters that carry into their third byte, and AAD of the greatest length.
#[test]
fn the_engines_agree_on_what_is_too_long_for_a_packet() {
    let (plain, aad) = (noise(4, 16 * 65_536 + 100), noise(5, AAD_LEN_MAX));
    let keys = keys(&noise(6, 32));
    let seal = |key: &Key, aad: &[u8]| {
        let (mut data, mut tag) = (plain.clone(), [0; TAG_LEN]);
        key.seal(&[7; NONCE_LEN], aad, &mut data, &mut tag);
        (data, tag)
    };
    for aad_len in [0, 15, 16, 17, 32, 1000, AAD_LEN_MAX] {
        let (sealed, tag) = seal(&keys[0], &aad[..aad_len]);
        for key in &keys {
            assert!(seal(key, &aad[..aad_len]) == (sealed.clone(), tag), "{aad_len}, {key:?}");
            let mut data = sealed.clone();
            assert!(key.open(&[7; NONCE_LEN], &aad[..aad_len], &mut data, &tag), "{key:?}");
            assert!(data == plain, "{aad_len}, {key:?}");
        }
    }
}

/// Longer AAD is nothing that anybody has sealed.
#[test]
fn too_much_aad_is_refused() {
    for key in keys(&noise(7, 16)) {
        let mut data = [1; 20];
        let aad = vec![0; AAD_LEN_MAX + 1];
        assert!(!key.open(&[0; NONCE_LEN], &aad, &mut data, &[0; TAG_LEN]), "{key:?}");
        assert_eq!(data, [0; 20]);
    }
}

/// What the attacker of a property test changes.
#[derive(Debug, Clone, Copy)]
enum Target {
    Tag,
    Data,
    Aad,
    Nonce,
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![Just(Target::Tag), Just(Target::Data), Just(Target::Aad), Just(Target::Nonce)]
}

fn key_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![Just(16usize), Just(24), Just(32)]
        .prop_flat_map(|len| prop::collection::vec(any::<u8>(), len))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Any shape of input, AAD lengths that ESP has no use for included.
    #[test]
    fn the_engines_agree_and_undo_each_other(
        key in key_bytes(),
        nonce: [u8; NONCE_LEN],
        aad in prop::collection::vec(any::<u8>(), 0..300),
        plain in prop::collection::vec(any::<u8>(), 0..3000),
    ) {
        let keys = keys(&key);
        for sealer in &keys {
            let mut sealed = plain.clone();
            let mut tag = [0; TAG_LEN];
            sealer.seal(&nonce, &aad, &mut sealed, &mut tag);
            for opener in &keys {
                let mut data = sealed.clone();
                prop_assert!(opener.open(&nonce, &aad, &mut data, &tag), "{sealer:?} {opener:?}");
                prop_assert_eq!(&data, &plain);
            }
        }
    }

    /// One flipped bit anywhere: all refuse, and none leaves a byte of what it deciphered.
    #[test]
    fn one_flipped_bit_is_refused_and_wiped(
        key in key_bytes(),
        nonce: [u8; NONCE_LEN],
        aad in prop::collection::vec(any::<u8>(), 1..20),
        plain in prop::collection::vec(any::<u8>(), 1..2000),
        target in target(),
        byte: Index,
        bit in 0..8u32,
    ) {
        let keys = keys(&key);
        let (mut nonce, mut aad, mut sealed, mut tag) = (nonce, aad, plain, [0; TAG_LEN]);
        keys[0].seal(&nonce, &aad, &mut sealed, &mut tag);
        let field: &mut [u8] = match target {
            Target::Tag => &mut tag,
            Target::Data => &mut sealed,
            Target::Aad => &mut aad,
            Target::Nonce => &mut nonce,
        };
        field[byte.index(field.len())] ^= 1u8 << bit;
        for key in &keys {
            let mut data = sealed.clone();
            prop_assert!(!key.open(&nonce, &aad, &mut data, &tag), "{key:?}");
            prop_assert!(data.iter().all(|byte| *byte == 0), "{key:?}");
        }
    }
}
