//! `wire` against etherparse, an independent parser: on random packets, whole and damaged, both
//! must read the same, but for the differences that [`compare::Difference`] names, each of which
//! has a test here that shows it is real.

mod compare;
mod packets;

use compare::Difference;
use proptest::prelude::*;
use wire::flow::{self, Fragment};
use wire::{Malformed, ipv4, ipv6, protocol};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn packets_are_read_alike(packet in packets::packet()) {
        if let Err(disagreement) = compare::ip(&packet) {
            prop_assert!(false, "{disagreement}");
        }
    }

    #[test]
    fn frames_are_read_alike(frame in packets::frame()) {
        if let Err(disagreement) = compare::link(&frame) {
            prop_assert!(false, "{disagreement}");
        }
    }

    #[test]
    fn random_bytes_are_read_alike(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for disagreement in [compare::ip(&bytes), compare::link(&bytes)] {
            prop_assert!(disagreement.is_ok(), "{disagreement:?}");
        }
    }

    #[test]
    fn summaries_stay_in_bounds_and_ignore_padding(packet in packets::packet(), byte: u8) {
        let Ok(flow) = flow::parse(&packet) else { return Ok(()) };
        prop_assert!(flow.header_len <= flow.total_len);
        prop_assert!(usize::from(flow.total_len) <= packet.len());
        if flow.fragment == Fragment::Later {
            prop_assert_eq!((flow.src_port, flow.dst_port), (0, 0));
        }
        let exact = &packet[..usize::from(flow.total_len)];
        prop_assert_eq!(flow::parse(exact), Ok(flow));
        prop_assert_eq!(flow::parse(&[exact, &[byte; 7]].concat()), Ok(flow));
    }

    #[test]
    fn a_hop_changes_the_hops_left_and_nothing_else(mut packet in packets::packet()) {
        let Ok(flow) = flow::parse(&packet) else { return Ok(()) };
        let forwarded = match flow.is_ipv6() {
            true => ipv6::decrement_hop_limit(&mut packet),
            false => ipv4::decrement_ttl(&mut packet),
        };
        prop_assert_eq!(forwarded, flow.ttl > 1);
        let ttl = flow.ttl - u8::from(forwarded);
        prop_assert_eq!(flow::parse(&packet), Ok(flow::Flow { ttl, ..flow }));
    }
}

/// The generator must reach what it is there for, or the comparison above is idle.
#[test]
fn generated_packets_meet_every_outcome() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut accepted, mut refused, mut seen) = (0, 0, vec![]);
    for _ in 0..40_000 {
        let packet = packets::packet().new_tree(&mut runner).unwrap().current();
        let outcome = match flow::parse(&packet) {
            Ok(flow) => {
                accepted += 1;
                format!("{:?} v6={} options={}", flow.fragment, flow.is_ipv6(), flow.has_options)
            }
            Err(reason) => {
                refused += 1;
                reason.name().to_owned()
            }
        };
        if !seen.contains(&outcome) {
            seen.push(outcome);
        }
    }
    assert!(accepted > 20_000 && refused > 5_000, "{accepted} accepted, {refused} refused");
    // All reasons but those of other layers: tags, ESP alignment, ESP padding.
    let reasons = Malformed::ALL.len() - 3;
    let accepted_kinds = 3 * 2 * 2;
    assert_eq!(seen.len(), reasons + accepted_kinds, "{seen:#?}");
}

/// An IPv6 packet with this chain and payload behind its fixed header.
fn v6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, next_header, 64];
    packet.extend([0x20; 32]);
    packet.extend(payload);
    packet
}

#[test]
fn zero_length_is_not_a_jumbogram() {
    let mut packet = v6(protocol::NO_NEXT_HEADER, &[1, 2, 3]);
    packet[5] = 0;
    assert_eq!(compare::ip(&packet), Ok(Some(Difference::ZeroLength)));
    assert_eq!(flow::parse(&packet).unwrap().total_len, 40);
}

#[test]
fn ah_ends_the_chain() {
    let ah = [17, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0x11, 0x94, 0x11, 0x94, 0, 8, 0, 0];
    let packet = v6(protocol::AH, &ah);
    assert_eq!(compare::ip(&packet), Ok(Some(Difference::BehindAh)));
    let flow = flow::parse(&packet).unwrap();
    assert_eq!((flow.protocol, flow.header_len, flow.src_port), (protocol::AH, 40, 0));
}

#[test]
fn a_later_fragment_ends_the_chain() {
    let later = [60, 0, 0x05, 0xa8, 0, 0, 0, 7, 17, 0, 1, 4, 0, 0, 0, 0, 1, 2, 3, 4];
    let packet = v6(protocol::FRAGMENT, &later);
    assert_eq!(compare::ip(&packet), Ok(Some(Difference::BehindLaterFragment)));
    let flow = flow::parse(&packet).unwrap();
    assert_eq!((flow.protocol, flow.header_len, flow.fragment), (60, 48, Fragment::Later));
    // Data that etherparse takes for a cut-off header.
    let packet = v6(protocol::FRAGMENT, &later[..12]);
    assert_eq!(compare::ip(&packet), Ok(Some(Difference::BehindLaterFragment)));
}

#[test]
fn other_tags_are_payload() {
    let mut frame = vec![2; 12];
    frame.extend([0x91, 0x00, 0, 5, 0x08, 0x00]);
    assert_eq!(compare::link(&frame), Ok(Some(Difference::OtherTags)));
}

#[test]
fn stricter_by_design() {
    let stricter = |packet: &[u8], reason| {
        assert_eq!(compare::ip(packet), Ok(Some(Difference::Stricter(reason))));
    };
    let udp = [0x11, 0x94, 0x11, 0x94, 0, 8, 0, 0];
    stricter(&v6(protocol::UDP, &udp[..3]), Malformed::TruncatedTransport);
    stricter(&v6(0, &[59, 0, 0xc2, 4, 0, 1, 0, 0]), Malformed::Jumbogram);
    stricter(&v6(0, &[59, 0, 1, 9, 0, 0, 0, 0]), Malformed::BadOption);
    stricter(&v6(0, &[&[59, 1][..], &[0; 14]].concat()), Malformed::TooManyOptions);
    stricter(&v6(43, &[59, 0, 0, 1, 0, 0, 0, 0]), Malformed::SourceRoute);
    let first = [44, 0, 0, 1, 0, 0, 0, 7];
    stricter(&v6(44, &[first, [59, 0, 0, 1, 0, 0, 0, 7]].concat()), Malformed::MisplacedExtension);
    stricter(&v6(44, &[17, 0, 0, 1, 0, 0, 0, 7, 1, 2, 3]), Malformed::TinyFragment);
    stricter(&v6(44, &[6, 0, 0, 8, 0, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8]), Malformed::TinyFragment);
    stricter(
        &v6(44, &[17, 0, 0xff, 0xf8, 0, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8]),
        Malformed::OversizeFragment,
    );
    let mut long = [60, 0, 1, 4, 0, 0, 0, 0].repeat(9);
    long[64] = 59;
    stricter(&v6(60, &long), Malformed::TooManyExtensions);
    let mut wrong = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0];
    wrong.extend([10; 8]);
    stricter(&wrong, Malformed::BadChecksum);
    let mut huge = v6(59, &[0; 65_500]);
    huge[4..6].copy_from_slice(&65_500u16.to_be_bytes());
    stricter(&huge, Malformed::BadTotalLength);
}
