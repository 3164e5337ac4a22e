//! Test keys that a seed determines, so that captures of a run can be decrypted later.
//!
//! They protect nothing: whoever knows the recipe knows the keys. Never use them outside the lab.

/// `bytes` bytes of key and salt for one SA of a lab run.
pub fn test_key(seed: u64, spi: u32, bytes: usize) -> Vec<u8> {
    let mut state = seed ^ (u64::from(spi) << 32 | u64::from(spi));
    let mut key = Vec::with_capacity(bytes + 7);
    while key.len() < bytes {
        key.extend(split_mix(&mut state).to_be_bytes());
    }
    key.truncate(bytes);
    key
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, and never a row of equal or zero words.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_generator_is_split_mix() {
        // First two outputs for seed 1234567, from the reference implementation.
        let mut state = 1_234_567;
        assert_eq!(split_mix(&mut state), 6_457_827_717_110_365_317);
        assert_eq!(split_mix(&mut state), 3_203_168_211_198_807_973);
    }

    #[test]
    fn every_sa_and_seed_has_its_own_key() {
        let keys: HashSet<Vec<u8>> = (0..1000u32)
            .flat_map(|spi| {
                [test_key(1, 0x1000_0000 + spi, 36), test_key(2, 0x1000_0000 + spi, 36)]
            })
            .collect();
        assert_eq!(keys.len(), 2000);
        assert_eq!(test_key(1, 7, 20), test_key(1, 7, 36)[..20]);
    }
}
