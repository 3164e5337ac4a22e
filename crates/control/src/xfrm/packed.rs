//! Bytes as what of them differs from what they usually are, which in XFRM's structs is little: halves of
//! addresses are unused, counters have counted nothing yet, limits do not limit.
//!
//! ```text
//!  32 bytes of input, eight words   ─▶   dddddddd  which of them differ, one bit each
//!                                        the differing words, four bytes each, as `word ^ usual`
//! ```
//!
//! Words rather than runs: which words differ is computed, not searched for, so that packing an SA of 400
//! bytes takes a tenth of a microsecond.

/// Bytes of a word.
const WORD: usize = 4;

/// Bytes that share a mask.
const GROUP: usize = 8 * WORD;

/// Appends what of `bytes` differs from `usual`, which is as long: whole words.
pub(super) fn pack(bytes: &[u8], usual: &[u8], out: &mut Vec<u8>) {
    debug_assert!(bytes.len() == usual.len() && bytes.len().is_multiple_of(WORD));
    let (groups, last) = bytes.as_chunks::<GROUP>();
    let (usual_groups, usual_last) = usual.as_chunks::<GROUP>();
    for (group, usual) in groups.iter().zip(usual_groups) {
        // Most are as usual, and always the same ones.
        match group == usual {
            true => out.push(0),
            false => pack_group(group, usual, out),
        }
    }
    if !last.is_empty() {
        pack_group(last, usual_last, out);
    }
}

fn pack_group(bytes: &[u8], usual: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 1 + GROUP]);
    let (mut mask, mut count) = (0u8, 0);
    if let Some((place, room)) = out[start..].split_first_mut() {
        let room = room.as_chunks_mut().0;
        let words = bytes.as_chunks().0.iter().zip(usual.as_chunks().0);
        for (at, (word, usual)) in words.enumerate() {
            let difference = u32::from_ne_bytes(*word) ^ u32::from_ne_bytes(*usual);
            // Written in any case, and only kept if it is one: there is nothing to guess for the processor.
            room[count % (GROUP / WORD)] = difference.to_ne_bytes();
            mask |= u8::from(difference != 0) << at;
            count += usize::from(difference != 0);
        }
        *place = mask;
    }
    out.truncate(start + 1 + count * WORD);
}

/// Makes of `out`, which is as it usually is, what [`pack`] was given; the rest. `None`, with `out` half
/// changed, for bytes that it did not make.
pub(super) fn unpack<'a>(packed: &'a [u8], out: &mut [u8]) -> Option<&'a [u8]> {
    let mut rest = packed;
    for group in out.chunks_mut(GROUP) {
        let (&mask, words) = rest.split_first()?;
        let mut left = mask;
        rest = words;
        while left != 0 {
            let (difference, behind) = rest.split_first_chunk::<WORD>()?;
            let word = group.as_chunks_mut::<WORD>().0.get_mut(left.trailing_zeros() as usize)?;
            *word = (u32::from_ne_bytes(*word) ^ u32::from_ne_bytes(*difference)).to_ne_bytes();
            rest = behind;
            left &= left - 1;
        }
    }
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words() -> impl Strategy<Value = Vec<u32>> {
        let word = || prop_oneof![2 => Just(0), 1 => Just(u32::MAX), 1 => any::<u32>()];
        prop::collection::vec(word(), 0..150)
    }

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    proptest! {
        #[test]
        fn comes_back_as_it_was(is in words(), usual in words()) {
            let len = is.len().min(usual.len());
            let (is, usual) = (bytes(&is[..len]), bytes(&usual[..len]));
            let mut packed = Vec::new();
            pack(&is, &usual, &mut packed);
            prop_assert!(packed.len() <= is.len() + is.len().div_ceil(GROUP));
            packed.push(7);
            let mut back = usual.clone();
            prop_assert_eq!(unpack(&packed, &mut back), Some(&[7][..]));
            prop_assert_eq!(back, is);
        }

        #[test]
        fn nothing_panics_on_any_bytes(
            packed in prop::collection::vec(any::<u8>(), 0..200), words in 0..80usize,
        ) {
            unpack(&packed, &mut vec![0; words * WORD]);
        }
    }

    #[test]
    fn what_is_as_usual_takes_a_bit() {
        let usual = bytes(&[9, 0, u32::MAX, 4, 5, 6, 7, 8, 1, 2]);
        let mut packed = Vec::new();
        pack(&usual, &usual, &mut packed);
        assert_eq!(packed, [0, 0]);
        let mut other = usual.clone();
        other[4] = 3;
        packed.clear();
        pack(&other, &usual, &mut packed);
        assert_eq!(packed, [0b10, 3, 0, 0, 0, 0]);
    }
}
