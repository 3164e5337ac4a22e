//! Type of service across a tunnel: DSCP (RFC 2983, RFC 4301 §5.1.2) and ECN (RFC 6040).
//!
//! Only the arithmetic on the eight bits; the headers are changed by `envelope` and `content`.

use crate::sa::SaFlags;

const ECN: u8 = 0b11;
const NOT_ECT: u8 = 0b00;
const ECT_1: u8 = 0b01;
/// Congestion met.
pub(crate) const CE: u8 = 0b11;

/// An outer mark of congestion on an inner packet whose sender would not understand it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotCapable;

/// The bits of the inner header's byte that an SA's outer header has as well: all of them in normal mode
/// (RFC 6040 §4.1). The others are zero there.
pub(crate) fn copied(flags: &SaFlags) -> u8 {
    let dscp = if flags.dont_encap_dscp { 0 } else { !ECN };
    let ecn = if flags.no_ecn { NOT_ECT } else { ECN };
    dscp | ecn
}

/// Whether [`decapsulate`] changes no inner byte, whatever that is. So it is where nobody on the way has marked anything: senders that
/// know of ECN mostly say ECT(0).
#[inline]
pub(crate) fn leaves_alone(outer: u8, flags: &SaFlags) -> bool {
    // Not-ECT, or ECT(0).
    outer & ECT_1 == 0 && !flags.decap_dscp
}

/// The inner header's byte after opening: the table of RFC 6040 §4.2, figure 4.
#[inline]
pub(crate) fn decapsulate(inner: u8, outer: u8, flags: &SaFlags) -> Result<u8, NotCapable> {
    let dscp = if flags.decap_dscp { outer & !ECN } else { inner & !ECN };
    if flags.no_ecn {
        return Ok(dscp | inner & ECN);
    }
    let ecn = match (inner & ECN, outer & ECN) {
        (NOT_ECT, CE) => return Err(NotCapable),
        (NOT_ECT, _) => NOT_ECT,
        (_, CE) => CE,
        (CE, _) => CE,
        (_, ECT_1) => ECT_1,
        (inner, _) => inner,
    };
    Ok(dscp | ecn)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ECT_0: u8 = 0b10;

    /// All that an SA may say of decapsulation.
    fn decapsulating() -> impl Iterator<Item = SaFlags> {
        (0..4).map(|bits: u8| SaFlags {
            decap_dscp: bits & 1 != 0,
            no_ecn: bits & 2 != 0,
            ..SaFlags::default()
        })
    }

    #[test]
    fn decapsulation_is_the_table_of_rfc_6040() {
        // Rows: inner; columns: outer Not-ECT, ECT(0), ECT(1), CE.
        let outer = [NOT_ECT, ECT_0, ECT_1, CE];
        let table = [
            (NOT_ECT, [Ok(NOT_ECT), Ok(NOT_ECT), Ok(NOT_ECT), Err(NotCapable)]),
            (ECT_0, [Ok(ECT_0), Ok(ECT_0), Ok(ECT_1), Ok(CE)]),
            (ECT_1, [Ok(ECT_1), Ok(ECT_1), Ok(ECT_1), Ok(CE)]),
            (CE, [Ok(CE), Ok(CE), Ok(CE), Ok(CE)]),
        ];
        let flags = SaFlags::default();
        for (inner, row) in table {
            for (outer, expected) in outer.into_iter().zip(row) {
                assert_eq!(decapsulate(inner, outer, &flags), expected, "{inner:02b} {outer:02b}");
                // The inner DSCP is kept, whatever the outer one is.
                let with_dscp = decapsulate(0xb8 | inner, 0x28 | outer, &flags);
                assert_eq!(with_dscp, expected.map(|ecn| 0xb8 | ecn));
            }
        }
    }

    #[test]
    fn decapsulating_once_more_changes_nothing() {
        for (flags, outer, inner) in decapsulating().flat_map(|flags| {
            (0..=0xff).flat_map(move |outer| (0..=0xff).map(move |inner| (flags, outer, inner)))
        }) {
            let once = decapsulate(inner, outer, &flags);
            assert_eq!(once.and_then(|once| decapsulate(once, outer, &flags)), once);
        }
    }

    #[test]
    fn what_is_left_alone_is_what_decapsulation_leaves() {
        for (flags, outer) in
            decapsulating().flat_map(|flags| (0..=0xff).map(move |outer| (flags, outer)))
        {
            let leaves = |inner| decapsulate(inner, outer, &flags) == Ok(inner);
            if leaves_alone(outer, &flags) {
                assert!((0..=0xff).all(leaves), "{outer:02x} {flags:?}");
            }
        }
        let mostly = SaFlags::default();
        assert_eq!(
            [0x00, 0xb8, 0x02, 0x01, 0x03].map(|outer| leaves_alone(outer, &mostly)),
            [true, true, true, false, false]
        );
    }

    #[test]
    fn encapsulation_copies_unless_told_otherwise() {
        let flags =
            |dont_encap_dscp, no_ecn| SaFlags { dont_encap_dscp, no_ecn, ..SaFlags::default() };
        let expected = [
            ((false, false), 0xff),
            ((true, false), 0x03),
            ((false, true), 0xfc),
            ((true, true), 0),
        ];
        for ((dont_encap_dscp, no_ecn), bits) in expected {
            assert_eq!(copied(&flags(dont_encap_dscp, no_ecn)), bits);
        }
    }

    #[test]
    fn flags_change_decapsulation() {
        let no_ecn = SaFlags { no_ecn: true, ..SaFlags::default() };
        assert_eq!(decapsulate(0xb8, CE, &no_ecn), Ok(0xb8));
        let decap_dscp = SaFlags { decap_dscp: true, ..SaFlags::default() };
        assert_eq!(decapsulate(0xb8 | ECT_0, 0x28 | CE, &decap_dscp), Ok(0x28 | CE));
    }
}
