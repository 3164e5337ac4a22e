//! What left a gateway, by the two hosts that it is between: all that is between two is in order, and each SA's numbers are.

use std::collections::BTreeMap;

use dataplane::sa::SaConfig;
use wire::{natt, protocol};

use super::case::{Case, IN_UDP, Last};
use super::fixture::*;
use super::steps::ESP;

/// Source and destination, as they stand in a header, and how it came; and what is so between them.
pub type Flows = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

/// Bytes of a link header.
const LINK: usize = 14;

/// Puts what left by a port in order by hosts. Of what was sealed those inside count, and everything in it is kept but the numbers,
/// which have to rise.
pub fn by_hosts(left: &[Vec<u8>], case: &Case) -> Flows {
    let mut flows = Flows::new();
    let mut numbers = BTreeMap::new();
    for frame in left {
        let Some((spi, opened)) = open(&frame[LINK..], case) else {
            flows.entry(ends(&frame[LINK..])).or_default().push(frame.clone());
            continue;
        };
        let before = numbers.insert(spi, opened.sequence);
        assert!(before < Some(opened.sequence), "{spi:#x}: {before:?} before {}", opened.sequence);
        let mut kept = [&frame[..LINK], &opened.outer, &opened.plaintext].concat();
        // The identification goes with the numbers, and the checksum with that.
        if kept[LINK] >> 4 == 4 {
            kept[LINK + 4..][..2].fill(0);
            kept[LINK + 10..][..2].fill(0);
        }
        if opened.outer.len() % 20 == 8 {
            // So does a datagram's checksum, which covers what is encrypted.
            kept[LINK + opened.outer.len() - 2..][..2].fill(0);
        }
        flows.entry(ends(&opened.plaintext)).or_default().push(kept);
    }
    flows
}

/// Source and destination of a packet, and how it came if it was in ESP with something about it.
fn ends(packet: &[u8]) -> Vec<u8> {
    let (ends, data_at) = match packet[0] >> 4 {
        6 if packet[6] == protocol::DESTINATION_OPTIONS => (8..40, 56),
        6 => (8..40, 48),
        _ => (12..20, 28),
    };
    let way = packet.get(data_at..data_at + 2).filter(|way| way[0] >= ESP);
    [&packet[ends], way.unwrap_or(&[])].concat()
}

/// The SPI and the content of a packet that this gateway sealed.
fn open(packet: &[u8], case: &Case) -> Option<(u32, Opened)> {
    let (header_len, kind) = if packet[0] >> 4 == 6 { (40, packet[6]) } else { (20, packet[9]) };
    let at = match kind {
        protocol::ESP => header_len,
        protocol::UDP if is_in_udp(&packet[header_len..]) => header_len + 8,
        _ => return None,
    };
    let spi = u32::from_be_bytes(*packet.get(at..)?.first_chunk()?);
    let towards = [Site::West, Site::East].map(Site::spi);
    let is_own = (0x3000_0000..0x3000_0200).contains(&spi);
    let is_one = |first: u32| (first..first + 100).contains(&spi);
    if !is_own && !towards.into_iter().any(is_one) {
        return None;
    }
    let sa = case.tunnel.sa(Site::East);
    let is_short = is_own && spi & 0xff == 3 && case.own == Some(Last::Exhausted);
    let encapsulation = (at != header_len).then_some(IN_UDP);
    let sa =
        SaConfig { spi, encapsulation, extended_sequence: sa.extended_sequence && !is_short, ..sa };
    Some((spi, Opened::from(packet, &sa, 0)))
}

/// Whether a datagram goes where ESP does.
fn is_in_udp(datagram: &[u8]) -> bool {
    let port = |at: usize| Some(u16::from_be_bytes(*datagram.get(at..)?.first_chunk()?));
    [port(0), port(2)].iter().all(|port| [Some(natt::PORT), Some(61_000)].contains(port))
}
