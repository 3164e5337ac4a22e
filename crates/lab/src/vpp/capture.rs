//! Packets that one VPP has made, as another takes them: a pcap file, whose order may be changed.

use std::io;

/// Bytes of the file's header, and of each packet's.
const FILE_HEADER_LEN: usize = 24;
const PACKET_HEADER_LEN: usize = 16;
/// Where in a packet's header its length stands, in the order of the machine that wrote it.
const LENGTH_AT: usize = 8;

/// The packets of a file, each with its header.
fn packets(bytes: &[u8]) -> io::Result<(&[u8], Vec<&[u8]>)> {
    let truncated =
        || io::Error::new(io::ErrorKind::UnexpectedEof, "a capture that ends in a packet");
    let (head, mut rest) = bytes.split_at_checked(FILE_HEADER_LEN).ok_or_else(truncated)?;
    let mut packets = vec![];
    while !rest.is_empty() {
        let length = rest.get(LENGTH_AT..).and_then(|rest| rest.first_chunk());
        let length = u32::from_ne_bytes(*length.ok_or_else(truncated)?) as usize;
        let (packet, after) =
            rest.split_at_checked(PACKET_HEADER_LEN + length).ok_or_else(truncated)?;
        packets.push(packet);
        rest = after;
    }
    Ok((head, packets))
}

/// How many packets a file has.
///
/// # Errors
/// If it ends in the middle of one.
pub fn count(bytes: &[u8]) -> io::Result<usize> {
    Ok(packets(bytes)?.1.len())
}

/// The same file with its packets in another order, which looks like chance and is always the same.
///
/// # Errors
/// If it ends in the middle of a packet.
pub fn shuffled(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let (head, mut packets) = packets(bytes)?;
    // Fisher and Yates, with Marsaglia's xorshift64.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (1..packets.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        packets.swap(at, (state % (at as u64 + 1)) as usize);
    }
    Ok([head, &packets.concat()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(packets: u32) -> Vec<u8> {
        let mut bytes = vec![7; FILE_HEADER_LEN];
        for number in 0..packets {
            let len = 4 + number % 3;
            bytes.extend([0; 8]);
            bytes.extend(len.to_ne_bytes());
            bytes.extend(len.to_ne_bytes());
            bytes.extend(number.to_ne_bytes());
            bytes.extend(vec![1; (len - 4) as usize]);
        }
        bytes
    }

    #[test]
    fn another_order_has_the_same_packets() {
        let bytes = file(1000);
        let other = shuffled(&bytes).unwrap();
        assert_eq!(other, shuffled(&bytes).unwrap());
        let ((head, before), (other_head, after)) =
            (packets(&bytes).unwrap(), packets(&other).unwrap());
        assert_eq!(head, other_head);
        let stays = before.iter().zip(&after).filter(|(before, after)| before == after).count();
        assert!(stays < 10, "{stays} packets are where they were");
        let sorted = |mut packets: Vec<&[u8]>| {
            packets.sort_unstable();
            packets.concat()
        };
        assert_eq!(sorted(before), sorted(after));
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        let bytes = file(2);
        assert_eq!(count(&bytes).unwrap(), 2);
        assert_eq!(count(&file(0)).unwrap(), 0);
        let ends = [FILE_HEADER_LEN, FILE_HEADER_LEN + PACKET_HEADER_LEN + 4];
        for len in (0..bytes.len()).filter(|len| !ends.contains(len)) {
            assert!(count(&bytes[..len]).is_err() && shuffled(&bytes[..len]).is_err(), "{len}");
        }
    }
}
