//! Bytes without their runs of zeros and ones, which are most of what XFRM's structs consist of: unused
//! halves of addresses, counters that nothing counted yet, limits that do not limit.
//!
//! ```text
//!  0lllllll  l + 1 bytes follow as they are
//!  10nnnnnn  n + 1 bytes of 0x00
//!  11nnnnnn  n + 1 bytes of 0xff
//! ```

const LITERALS_MAX: usize = 128;
const RUN_MAX: usize = 64;
const ZEROS: u8 = 0x80;
const ONES: u8 = 0xc0;

/// A run that is worth a token of its own: a single byte is not, between others.
const RUN_MIN: usize = 2;

/// Appends `bytes` to `out`, packed.
pub(super) fn pack(bytes: &[u8], out: &mut Vec<u8>) {
    let mut rest = bytes;
    while let Some(&first) = rest.first() {
        let run = run_of(rest);
        if is_run(first, run) {
            let len = run.min(RUN_MAX);
            out.push(if first == 0 { ZEROS } else { ONES } | (len - 1) as u8);
            rest = &rest[len..];
            continue;
        }
        let mut len = run;
        while len < rest.len().min(LITERALS_MAX) {
            let next = run_of(&rest[len..]);
            if is_run(rest[len], next) {
                break;
            }
            len += next;
        }
        let len = len.min(LITERALS_MAX);
        out.push((len - 1) as u8);
        out.extend_from_slice(&rest[..len]);
        rest = &rest[len..];
    }
}

fn run_of(bytes: &[u8]) -> usize {
    let first = bytes.first();
    bytes.iter().take_while(|byte| Some(*byte) == first).count()
}

fn is_run(byte: u8, len: usize) -> bool {
    matches!(byte, 0x00 | 0xff) && len >= RUN_MIN
}

/// Fills `out` from what [`pack`] made of as many bytes; the rest. `None`, with `out` half filled, for
/// bytes that it did not make.
pub(super) fn unpack<'a>(mut packed: &'a [u8], out: &mut [u8]) -> Option<&'a [u8]> {
    let mut out = out;
    while !out.is_empty() {
        let (&token, rest) = packed.split_first()?;
        let len = match token {
            ..ZEROS => usize::from(token) + 1,
            _ => usize::from(token % RUN_MAX as u8) + 1,
        };
        let (now, later) = out.split_at_mut_checked(len)?;
        if token < ZEROS {
            let (literals, rest) = rest.split_at_checked(len)?;
            now.copy_from_slice(literals);
            packed = rest;
        } else {
            now.fill(if token < ONES { 0x00 } else { 0xff });
            packed = rest;
        }
        out = later;
    }
    Some(packed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn comes_back_as_it_was(
            runs in prop::collection::vec(
                (prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 1..300usize), 0..20),
        ) {
            let bytes: Vec<u8> =
                runs.iter().flat_map(|(byte, len)| std::iter::repeat_n(*byte, *len)).collect();
            let mut packed = Vec::new();
            pack(&bytes, &mut packed);
            prop_assert!(packed.len() <= bytes.len() + bytes.len().div_ceil(LITERALS_MAX));
            packed.push(7);
            let mut back = vec![0x55; bytes.len()];
            prop_assert_eq!(unpack(&packed, &mut back), Some(&[7][..]));
            prop_assert_eq!(back, bytes);
        }

        #[test]
        fn nothing_panics_on_any_bytes(packed in prop::collection::vec(any::<u8>(), 0..200)) {
            unpack(&packed, &mut [0; 300]);
        }
    }

    #[test]
    fn runs_take_a_byte() {
        let mut packed = Vec::new();
        pack(&[&[1, 2, 0, 3][..], &[0; 64], &[0xff; 65], &[9]].concat(), &mut packed);
        assert_eq!(packed, [3, 1, 2, 0, 3, ZEROS | 63, ONES | 63, 1, 0xff, 9]);
    }
}
