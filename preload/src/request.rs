//! What a program's datagram makes the server answer.
//!
//! Netlink answers before `send` returns, and programs rely on it: they send, and read without
//! blocking. So a hook waits for the answer, and has to know whether one comes.

use libc::iovec;

/// What comes back for a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// One message, at least, with this sequence number.
    Certain(u32),
    /// Perhaps none, perhaps several: only the server knows when it is done.
    Unknown,
}

const HEADER_LEN: usize = 16;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;

/// Types whose success is answered with a message: GETSA, GETPOLICY, ALLOCSPI, GETAE, GETSADINFO,
/// GETSPDINFO, GETDEFAULT (linux/xfrm.h). A failure is always answered. All that make lists are among them, so the
/// flags of a list need no look: on other types they mean something else (`NLM_F_REPLACE`, `NLM_F_EXCL`).
const ANSWERED: [u16; 7] = [0x12, 0x15, 0x16, 0x1f, 0x23, 0x25, 0x28];

/// Looks at the netlink header of a datagram.
///
/// A datagram of several messages, or of none that netlink would take, is `Unknown`.
///
/// # Safety
///
/// `parts` must be buffers that are readable for their length.
pub unsafe fn answer(parts: &[iovec]) -> Answer {
    // SAFETY: the caller's promise.
    let Some(header) = (unsafe { gather::<HEADER_LEN>(parts) }) else { return Answer::Unknown };
    let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let (kind, flags) = (word(4), word(6));
    let whole = len >= HEADER_LEN && len.next_multiple_of(4) >= total_len(parts);
    let asks = flags & NLM_F_ACK != 0 || flags & NLM_F_REQUEST != 0 && ANSWERED.contains(&kind);
    let number = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
    if whole && len <= total_len(parts) && asks { Answer::Certain(number) } else { Answer::Unknown }
}

/// Bytes of a datagram in parts.
pub fn total_len(parts: &[iovec]) -> usize {
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.iov_len))
}

/// The first bytes of a datagram, wherever its parts are cut.
///
/// # Safety
///
/// `parts` must be buffers that are readable for their length.
pub unsafe fn gather<const LEN: usize>(parts: &[iovec]) -> Option<[u8; LEN]> {
    let mut header = [0; LEN];
    let mut have = 0;
    for part in parts {
        let take = part.iov_len.min(LEN - have);
        if take > 0 {
            // SAFETY: `take` is at most the part's length, which the caller promises readable,
            // and at most what is left of `header`.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    part.iov_base.cast::<u8>(),
                    header.as_mut_ptr().add(have),
                    take,
                );
            }
            have += take;
        }
    }
    (have == LEN).then_some(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(len: u32, kind: u16, flags: u16, extra: usize) -> Vec<u8> {
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(7_u32.to_ne_bytes());
        bytes.extend(vec![0; 4 + extra]);
        bytes
    }

    fn of(bytes: &[u8], cut: usize) -> Answer {
        let (first, second) = bytes.split_at(cut);
        let part = |b: &[u8]| iovec { iov_base: b.as_ptr() as *mut _, iov_len: b.len() };
        // SAFETY: both parts are slices.
        unsafe { answer(&[part(first), part(second)]) }
    }

    #[test]
    fn an_acknowledged_request_is_answered() {
        for cut in [0, 1, 15, 16, 20] {
            assert_eq!(of(&message(40, 0x11, 5, 24), cut), Answer::Certain(7));
            assert_eq!(of(&message(40, 0x11, 1, 24), cut), Answer::Unknown);
        }
    }

    #[test]
    fn a_query_is_answered_without_asking() {
        assert_eq!(of(&message(40, 0x12, 1, 24), 0), Answer::Certain(7));
        assert_eq!(of(&message(40, 0x12, 0, 24), 0), Answer::Unknown);
        assert_eq!(of(&message(16, 0x15, 0x301, 0), 0), Answer::Certain(7));
        assert_eq!(of(&message(16, 0x12, 0x301, 0), 0), Answer::Certain(7));
    }

    #[test]
    fn a_change_is_no_list_whatever_its_flags() {
        // NEWAE that replaces; NEWSA that makes, and must be the first.
        assert_eq!(of(&message(64, 0x1e, 0x101, 48), 0), Answer::Unknown);
        assert_eq!(of(&message(240, 0x10, 0x601, 224), 0), Answer::Unknown);
        assert_eq!(of(&message(240, 0x10, 0x701, 224), 0), Answer::Unknown);
    }

    #[test]
    fn odd_datagrams_are_left_to_the_server() {
        assert_eq!(of(&[], 0), Answer::Unknown);
        assert_eq!(of(&[5; 15], 3), Answer::Unknown);
        // Two messages; one that ends before it begins; one that is longer than the datagram.
        let two = [message(16, 0x12, 5, 0), message(16, 0x12, 5, 0)].concat();
        assert_eq!(of(&two, 0), Answer::Unknown);
        assert_eq!(of(&message(15, 0x12, 5, 0), 0), Answer::Unknown);
        assert_eq!(of(&message(17, 0x12, 5, 0), 0), Answer::Unknown);
        assert_eq!(of(&message(u32::MAX, 0x12, 5, 0), 0), Answer::Unknown);
    }
}
