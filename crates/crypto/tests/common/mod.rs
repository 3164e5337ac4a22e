//! What the integration tests share: the engines of this machine, and bytes from hex or thin air.

#![allow(dead_code, reason = "each test binary uses its own part of this module")]

use crypto::{Engine, Key};

/// Every engine that works here.
pub fn engines() -> impl Iterator<Item = Engine> {
    Engine::ALL.into_iter().filter(|engine| Engine::select(Some(engine.name())).is_ok())
}

/// One key for every engine that works here.
pub fn keys(bytes: &[u8]) -> Vec<Key> {
    engines().map(|engine| Key::new(engine, bytes).expect("a key of a valid length")).collect()
}

/// The bytes written in `hex`; spaces are ignored.
pub fn hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b' ').collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).expect("hex digits"))
        .collect()
}

/// `len` bytes without a pattern, the same for the same seed (Knuth's MMIX generator, high byte).
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    std::iter::repeat_with(|| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(len)
    .collect()
}
