//! The journal's bytes: a header, then frames, each with its length and checksum.
//!
//! ```text
//!  header   magic 8 │ format u32 │ epoch u32 │ boot id 16 │ CRC-32 u32 │ zero u32
//!  frame    length u32 │ CRC-32 of the payload u32 │ payload: what one answer stands for
//! ```
//!
//! The epoch is that of the process which made the file; who takes it up adds its own. An epoch is
//! claimed at every start, so that a gap in them tells of a process that knew nothing of this journal:
//! what it did to keys that are in here, too, nobody can know any more.
//!
//! A frame is the unit of truth: what was changed together comes back together or not at all. Reading
//! ends at the first byte that cannot be right, and everything before it is good. The byte order is
//! the machine's, since a journal never leaves it. What the payload means is `xfrm`'s.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version of the whole format: header, frames, entries, and the ledger's layout.
pub const FORMAT: u32 = 3;

const MAGIC: [u8; 8] = *b"peregrJ\n";

/// The longest payload that is believed. The longest real one says that 100 000 SAs are gone, 2 MB.
const PAYLOAD_MAX: u32 = 256 << 20;

/// Which boot of the machine a journal belongs to: its SAs end with it.
pub type BootId = [u8; 16];

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    format: u32,
    epoch: u32,
    boot: BootId,
    crc: u32,
    zero: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct FrameHead {
    len: u32,
    crc: u32,
}

/// Bytes in front of a payload.
pub const FRAME_HEAD_LEN: usize = size_of::<FrameHead>();

/// Why reading ended before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file does not begin as a journal does.
    #[error("it does not begin as a journal does")]
    NotAJournal,
    /// It is a journal, of another version.
    #[error(
        "it has format {0} and this peregrine knows format {FORMAT}; the SAs in it can only be \
         had back with the peregrine that wrote it"
    )]
    OtherFormat(u32),
    /// The machine was booted since.
    #[error("it is from before the machine was booted, when sequence numbers were others")]
    OtherBoot,
    /// A process ran that did not take it up.
    #[error("it is not of the last run: since then a gateway ran that knew nothing of it")]
    OtherRun,
    /// It has nothing that a server says, not even its default actions: what it was is not known.
    #[error("it says nothing, not even what the default actions were")]
    Empty,
    /// The last frame is not whole, as a kill in the middle of writing leaves it.
    #[error("it ends in the middle of a record")]
    Cut,
    /// A checksum is wrong.
    #[error("a record's checksum is wrong")]
    Checksum,
    /// A frame with the right checksum holds what is no entry.
    #[error("a record makes no sense")]
    Meaning,
}

/// The header of a new journal.
pub fn header(boot: BootId, epoch: u16) -> impl AsRef<[u8]> {
    let epoch = epoch.into();
    let mut header = Header { magic: MAGIC, format: FORMAT, epoch, boot, crc: 0, zero: 0 };
    header.crc = header_crc(&header);
    let mut bytes = [0; size_of::<Header>()];
    bytes.copy_from_slice(header.as_bytes());
    bytes
}

fn header_crc(header: &Header) -> u32 {
    crc32fast::hash(Header { crc: 0, ..*header }.as_bytes())
}

/// Fills in the head of a frame: `frame` begins with [`FRAME_HEAD_LEN`] bytes that are free.
pub fn finish(frame: &mut [u8]) {
    if let Some((head, payload)) = frame.split_at_mut_checked(FRAME_HEAD_LEN) {
        let value = FrameHead { len: payload.len() as u32, crc: crc32fast::hash(payload) };
        head.copy_from_slice(value.as_bytes());
    }
}

/// Reads a journal from its beginning, giving each payload to `take`, which says whether it makes
/// sense. How many bytes are good, and what is wrong with the next, if there is one.
pub fn read<'a>(
    bytes: &'a [u8],
    boot: BootId,
    mut take: impl FnMut(&'a [u8]) -> bool,
) -> (usize, Option<Problem>) {
    let mut rest = match read_header(bytes, boot) {
        Ok(rest) => rest,
        Err(problem) => return (0, Some(problem)),
    };
    while !rest.is_empty() {
        let good = bytes.len() - rest.len();
        match read_frame(rest) {
            Err(problem) => return (good, Some(problem)),
            Ok((payload, _)) if !take(payload) => return (good, Some(Problem::Meaning)),
            Ok((_, after)) => rest = after,
        }
    }
    (bytes.len(), None)
}

fn read_header(bytes: &[u8], boot: BootId) -> Result<&[u8], Problem> {
    let (header, rest) = Header::read_from_prefix(bytes).map_err(|_| Problem::NotAJournal)?;
    if header.magic != MAGIC {
        return Err(Problem::NotAJournal);
    }
    // The version comes before the checksum: another version may have another one.
    if header.format != FORMAT {
        return Err(Problem::OtherFormat(header.format));
    }
    if header.crc != header_crc(&header) {
        return Err(Problem::Checksum);
    }
    if header.boot != boot {
        return Err(Problem::OtherBoot);
    }
    Ok(rest)
}

/// The boot and the epoch that a journal says it is from.
pub(super) fn origin(bytes: &[u8]) -> Option<(BootId, u32)> {
    Header::read_from_prefix(bytes).ok().map(|(header, _)| (header.boot, header.epoch))
}

fn read_frame(bytes: &[u8]) -> Result<(&[u8], &[u8]), Problem> {
    let (head, rest) = FrameHead::read_from_prefix(bytes).map_err(|_| Problem::Cut)?;
    if head.len > PAYLOAD_MAX {
        return Err(Problem::Checksum);
    }
    let (payload, rest) = rest.split_at_checked(head.len as usize).ok_or(Problem::Cut)?;
    if crc32fast::hash(payload) != head.crc {
        return Err(Problem::Checksum);
    }
    Ok((payload, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: BootId = [7; 16];

    fn journal(payloads: &[&[u8]]) -> Vec<u8> {
        let mut bytes = header(BOOT, 1).as_ref().to_vec();
        for payload in payloads {
            let mut frame = vec![0; FRAME_HEAD_LEN];
            frame.extend_from_slice(payload);
            finish(&mut frame);
            bytes.extend_from_slice(&frame);
        }
        bytes
    }

    fn all(bytes: &[u8]) -> (Vec<Vec<u8>>, usize, Option<Problem>) {
        let mut payloads = Vec::new();
        let (good, problem) = read(bytes, BOOT, |payload| {
            payloads.push(payload.to_vec());
            true
        });
        (payloads, good, problem)
    }

    const PAYLOADS: [&[u8]; 4] = [b"first", b"", b"the third one", b"4"];

    #[test]
    fn frames_come_back_in_order() {
        let bytes = journal(&PAYLOADS);
        let (payloads, good, problem) = all(&bytes);
        assert_eq!(
            (payloads, good, problem),
            (PAYLOADS.map(<[u8]>::to_vec).to_vec(), bytes.len(), None)
        );
    }

    #[test]
    fn cut_at_any_byte_the_whole_frames_before_are_good() {
        let whole = journal(&PAYLOADS);
        for len in 0..whole.len() {
            let (payloads, good, problem) = all(&whole[..len]);
            assert_eq!(payloads, PAYLOADS[..payloads.len()], "cut at {len}");
            assert!(good <= len);
            match problem {
                Some(Problem::NotAJournal) => assert!(len < size_of::<Header>() && good == 0),
                Some(Problem::Cut) => assert!(good < len),
                None => assert_eq!(good, len, "cut between two frames"),
                other => panic!("{other:?} at {len}"),
            }
        }
    }

    #[test]
    fn a_flipped_bit_ends_the_good_part_before_its_frame() {
        let whole = journal(&PAYLOADS);
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (payloads, good, problem) = all(&bytes);
            assert!(problem.is_some(), "bit {bit} went unnoticed");
            assert!(good <= bit / 8, "bit {bit} is in what is said to be good");
            assert_eq!(payloads, PAYLOADS[..payloads.len()], "bit {bit}");
        }
    }

    #[test]
    fn another_format_and_another_boot_are_named() {
        let mut bytes = journal(&PAYLOADS);
        assert_eq!(read(&bytes, [8; 16], |_| true), (0, Some(Problem::OtherBoot)));
        bytes[8] = 9;
        assert_eq!(read(&bytes, BOOT, |_| true), (0, Some(Problem::OtherFormat(9))));
        assert!(Problem::OtherFormat(9).to_string().contains("format 9"));
    }

    #[test]
    fn what_makes_no_sense_ends_it() {
        let bytes = journal(&PAYLOADS);
        let (good, problem) = read(&bytes, BOOT, |payload| payload.len() < 10);
        assert_eq!(problem, Some(Problem::Meaning));
        assert_eq!(good, journal(&PAYLOADS[..2]).len());
    }
}
