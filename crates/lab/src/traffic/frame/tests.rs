//! Frames: written, read back, and damaged in every way.

use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

fn spec(ipv6: bool, kind: Kind, size: u16) -> FrameSpec {
    FrameSpec {
        destination_mac: [2, 0, 0, 0, 0, 1],
        source_mac: [2, 0, 0, 0, 0, 2],
        ipv6,
        port: 1,
        kind,
        size,
    }
}

fn addresses(ipv6: bool, n: u32) -> Addresses {
    let (src, dst) = if ipv6 {
        (
            IpAddr::V6(Ipv6Addr::from(0xfd00_0016_u128 << 96 | u128::from(n))),
            IpAddr::V6(Ipv6Addr::from(0xfd00_0048_u128 << 96 | u128::from(n))),
        )
    } else {
        (
            IpAddr::V4(Ipv4Addr::from(0x1000_0001_u32.wrapping_add(n))),
            IpAddr::V4(Ipv4Addr::from(0x3000_0001_u32.wrapping_add(n))),
        )
    };
    Addresses { tunnel: 0, flow: 0, src, dst }
}

fn written(ipv6: bool, kind: Kind, size: u16, sequence: u64) -> Vec<u8> {
    let template = Template::new(&spec(ipv6, kind, size)).unwrap();
    let mut frame = vec![0xaa; usize::from(size)];
    let n = (sequence & 0xffff) as u32;
    let length =
        write_frame(&template, &mut frame, &addresses(ipv6, n), sequence, sequence ^ 0x5555);
    assert_eq!(length, Ok(usize::from(size)));
    frame
}

#[test]
fn the_smallest_sizes() {
    assert_eq!((min_frame_bytes(false), min_frame_bytes(true)), (70, 90));
    assert!(Template::new(&spec(false, Kind::Load, 70)).is_ok());
    assert_eq!(
        Template::new(&spec(true, Kind::Load, 89)).unwrap_err().to_string(),
        "a test frame needs at least 90 bytes (L2 without FCS), 89 were asked for"
    );
    assert_eq!(written(false, Kind::Load, 70, 7).len(), 70);
}

#[test]
fn a_short_buffer_and_the_wrong_family_are_refused() {
    let template = Template::new(&spec(false, Kind::Load, 114)).unwrap();
    let mut short = [0; 113];
    assert_eq!(
        write_frame(&template, &mut short, &addresses(false, 0), 0, 0),
        Err(FrameError::Buffer { found: 113, needed: 114 })
    );
    let mut frame = [0; 200];
    assert_eq!(
        write_frame(&template, &mut frame, &addresses(true, 0), 0, 0),
        Err(FrameError::Family("IPv4"))
    );
}

#[test]
fn an_independent_parser_agrees() {
    for (ipv6, kind, size, ports) in [
        (false, Kind::Load, 114, (6001, 7001)),
        (true, Kind::Load, 1428, (6001, 7001)),
        (false, Kind::Probe, 742, (1025, 9)),
    ] {
        let frame = written(ipv6, kind, size, 0x0123_4567_89ab_cdef);
        let packet = etherparse::SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(etherparse::TransportSlice::Udp(udp)) = packet.transport else {
            panic!("no UDP in {:?}", packet.net)
        };
        assert_eq!((udp.source_port(), udp.destination_port()), ports);
        let header = udp.to_header();
        let expected = match packet.net.unwrap() {
            etherparse::NetSlice::Ipv4(ip) => {
                let ip_header = ip.header().to_header();
                assert_eq!(ip_header.header_checksum, ip_header.calc_header_checksum());
                header.calc_checksum_ipv4(&ip_header, udp.payload())
            }
            etherparse::NetSlice::Ipv6(ip) => {
                header.calc_checksum_ipv6(&ip.header().to_header(), udp.payload())
            }
            other => panic!("unexpected {other:?}"),
        };
        assert_eq!(udp.checksum(), expected.unwrap());
    }
}

#[test]
fn what_is_not_ours_is_nothing() {
    let frame = written(false, Kind::Load, 114, 1);
    for cut in 0..frame.len() {
        assert_eq!(parse_frame(&frame[..cut]), None, "cut at {cut}");
    }
    let mut arp = frame.clone();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(parse_frame(&arp), None);
    let mut foreign = frame.clone();
    foreign[42] ^= 1;
    assert_eq!(parse_frame(&foreign), None, "signature");
    let mut fragment = frame;
    fragment[20] = 0x20;
    assert_eq!(parse_frame(&fragment), None, "more fragments follow");
}

#[test]
fn padding_tags_and_a_hop_are_no_damage() {
    let plain = written(false, Kind::Load, 114, 1);
    let stamp = parse_frame(&plain).unwrap();
    let mut padded = plain.clone();
    padded.extend([0; 6]);
    assert_eq!(parse_frame(&padded), Some(stamp));
    let mut tagged = plain[..12].to_vec();
    tagged.extend([0x81, 0x00, 0x01, 0xf6]);
    tagged.extend(&plain[12..]);
    assert_eq!(parse_frame(&tagged), Some(stamp));
    // A router takes one off the TTL and adds 0x0100 to the checksum (RFC 1141).
    let mut routed = plain;
    routed[22] -= 1;
    let checksum = u32::from(u16::from_be_bytes([routed[24], routed[25]])) + 0x0100;
    let checksum = (checksum + (checksum >> 16)) as u16;
    routed[24..26].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(parse_frame(&routed), Some(Stamp { ttl: 63, ..stamp }));
}

#[test]
fn a_missing_checksum_is_damage() {
    let mut frame = written(false, Kind::Load, 114, 1);
    frame[40..42].copy_from_slice(&[0, 0]);
    assert!(!parse_frame(&frame).unwrap().intact);
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        ipv6 in any::<bool>(),
        probe in any::<bool>(),
        size in 90u16..1600,
        sequence in any::<u64>(),
    ) {
        let kind = if probe { Kind::Probe } else { Kind::Load };
        let stamp = parse_frame(&written(ipv6, kind, size, sequence)).unwrap();
        let n = (sequence & 0xffff) as u32;
        prop_assert_eq!(stamp, Stamp {
            stream: if probe { 3 } else { 2 },
            kind,
            sequence,
            sent_ns: sequence ^ 0x5555,
            src: addresses(ipv6, n).src,
            dst: addresses(ipv6, n).dst,
            ttl: 64,
            size,
            intact: true,
        });
        prop_assert_eq!(stamp.port(), 1);
    }

    /// Any single flipped bit after the Ethernet header is seen, or the frame is not ours at all.
    #[test]
    fn no_flipped_bit_passes(
        ipv6 in any::<bool>(),
        size in 90u16..400,
        sequence in any::<u64>(),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let mut frame = written(ipv6, Kind::Load, size, sequence);
        let byte = ETHERNET_BYTES + at.index(frame.len() - ETHERNET_BYTES);
        frame[byte] ^= 1 << bit;
        // IPv6 has no checksum over its first word and the hop limit (RFC 8200 §8.1).
        prop_assume!(!(ipv6 && ((14..18).contains(&byte) || byte == 21)));
        prop_assert!(parse_frame(&frame).is_none_or(|stamp| !stamp.intact));
    }

    #[test]
    fn arbitrary_bytes_never_panic(frame in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_frame(&frame);
        let mut ours = written(false, Kind::Load, 114, 1);
        let n = frame.len().min(60);
        ours[12..12 + n].copy_from_slice(&frame[..n]);
        let _ = parse_frame(&ours);
    }
}
