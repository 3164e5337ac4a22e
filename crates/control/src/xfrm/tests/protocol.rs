//! Netlink itself: headers, flags, acknowledgements, errors.

use rustix::io::Errno;
use wire::xfrm::netlink::{Header, NLM_F_ACK, NLM_F_CAPPED, NLM_F_REQUEST};
use wire::xfrm::number::{attr, msg};
use zerocopy::IntoBytes;

use super::super::Client;
use super::bench::*;

#[test]
fn what_is_no_request_is_acknowledged_at_most() {
    let mut bench = Bench::new();
    for (kind, flags, answered) in [
        (msg::GETSADINFO, 0, false),
        (msg::GETSADINFO, NLM_F_ACK, true),
        (1, NLM_F_REQUEST | NLM_F_ACK, true),
        (3, NLM_F_REQUEST, false),
        (15, NLM_F_REQUEST | NLM_F_ACK, true),
    ] {
        let request = Request::new(kind, &0u32).flags(flags);
        let answer = bench.send(&request);
        assert_eq!(answer.replies.len(), usize::from(answered), "{kind} {flags}");
        assert_eq!(answer.result(), Ok(()));
    }
}

#[test]
fn types_that_nobody_may_send_are_invalid() {
    let mut bench = Bench::new();
    for kind in [msg::MAX + 1, 0x2a, 0xff, u16::MAX, msg::MAPPING, msg::NEWSADINFO] {
        bench.refuse(&Request::new(kind, &[0u8; 0]), Errno::INVAL, "");
    }
    bench.refuse(&Request::new(msg::REPORT, &[0u8; 60]), Errno::INVAL, "");
    bench.refuse(&Request::new(msg::MIGRATE, &[0u8; 64]), Errno::INVAL, "");
}

#[test]
fn a_fixed_part_that_is_short_is_refused_for_every_type() {
    let mut bench = Bench::new();
    for kind in msg::BASE..=msg::MAX {
        let needed = wire::xfrm::message::fixed_len(kind).unwrap();
        if needed == 0 {
            continue;
        }
        let request = Request { fixed: vec![0; needed - 1], ..Request::new(kind, &0u8) };
        let mut bytes = request.bytes();
        // Padding must not count as payload.
        bytes[..4].copy_from_slice(&(16 + needed as u32 - 1).to_ne_bytes());
        let answer = Answer::new(bench.handle(&bytes).deliveries);
        let expected = Err((Errno::INVAL, "Invalid header length".to_owned()));
        assert_eq!(answer.result(), expected, "{kind:#x}");
    }
}

#[test]
fn several_requests_in_one_datagram_are_answered_in_order() {
    let mut bench = Bench::new();
    let mut datagram = Vec::new();
    for (seq, request) in [new_sa(1), new_sa(1), delete_sa(1), delete_sa(1)].into_iter().enumerate()
    {
        let mut request = request;
        request.header.seq = seq as u32;
        datagram.extend(request.bytes());
    }
    // What follows cannot be read and is ignored.
    datagram.extend(Header { len: 5000, ..Header::default() }.as_bytes());
    let answer = Answer::new(bench.handle(&datagram).deliveries);
    let results: Vec<_> = answer
        .replies
        .iter()
        .map(|reply| (header(reply).seq, result_of(reply).map_err(|(errno, _)| errno)))
        .collect();
    let expected = [(0, Ok(())), (1, Err(Errno::EXIST)), (2, Ok(())), (3, Err(Errno::SRCH))];
    assert_eq!(results, expected);
}

#[test]
fn errors_quote_the_request_and_name_the_attribute() {
    let mut bench = Bench::new();
    let request = new_sa(1).with(attr::IF_ID, &[1u8, 2, 3]);
    let bytes = request.bytes();
    let answer = bench.send(&request);
    let error = &answer.replies[0];
    assert_eq!(header(error).pid, 77);
    assert_eq!(error[20..20 + bytes.len()], bytes);
    let details = error_attributes(error);
    assert_eq!(details[&1], b"Attribute failed policy validation\0");
    let at = u32::from_ne_bytes(details[&2][..].try_into().unwrap()) as usize;
    assert_eq!(bytes[at..at + 4], [7, 0, attr::IF_ID as u8, 0]);
    // Nested: the range of a u32.
    assert_eq!(details[&4].len(), 32);
    assert_eq!(result_of(error).unwrap_err().0, Errno::RANGE);
}

#[test]
fn clients_choose_what_errors_hold() {
    let mut bench = Bench::new();
    let request = delete_sa(1);
    for (cap_ack, len) in [(false, 36 + 24), (true, 36)] {
        bench.client = Client { port: 1, cap_ack, ..Client::default() };
        let answer = bench.send(&request);
        assert_eq!(answer.replies[0].len(), len);
        let flags = if cap_ack { NLM_F_CAPPED } else { 0 };
        assert_eq!(header(&answer.replies[0]).flags, flags);
    }
    // No texts without being asked for them.
    bench.client = Client::default();
    let answer = bench.send(&new_sa(1).without(attr::ALG_AEAD));
    assert_eq!(answer.result(), Err((Errno::INVAL, String::new())));
}

#[test]
fn leftover_bytes_are_warned_of() {
    let mut bench = Bench::new();
    let mut bytes = new_sa(1).bytes();
    bytes.extend([1, 0]);
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    let answer = Answer::new(bench.handle(&bytes).deliveries);
    let details = error_attributes(&answer.replies[0]);
    assert_eq!(details[&1], b"bytes leftover after parsing attributes\0");
    assert_eq!(answer.result(), Ok(()));
    // A failure without a text of its own shows it as well.
    let answer = Answer::new(bench.handle(&bytes).deliveries);
    let text = "bytes leftover after parsing attributes".to_owned();
    assert_eq!(answer.result(), Err((Errno::EXIST, text)));
}

#[test]
fn unknown_attributes_are_ignored() {
    let mut bench = Bench::new();
    bench.accept(&new_sa(1).with(0, &7u32).with(attr::MAX + 1, &7u32).with(0x3fff, &[0u8; 9]));
}

#[test]
fn newer_attributes_are_strict() {
    let mut bench = Bench::new();
    let cases: [(u16, &[u8], Errno, &str); 6] = [
        (attr::SA_DIR, &[1, 2], Errno::INVAL, "invalid attribute length"),
        (attr::SA_DIR, &[3], Errno::RANGE, "integer out of range"),
        (attr::SA_DIR | 0x8000, &[1], Errno::INVAL, "NLA_F_NESTED isn't expected"),
        (attr::SA_PCPU, &[1], Errno::INVAL, "invalid attribute length"),
        (attr::SA_PCPU, &[4, 0, 0, 0], Errno::RANGE, "pCPU number too big"),
        (attr::IPTFS_DONT_FRAG, &[1], Errno::RANGE, "Attribute failed policy validation"),
    ];
    for (kind, value, errno, text) in cases {
        bench.refuse(&new_sa(1).with(kind, value), errno, text);
    }
    bench.accept(&new_sa(1).with(attr::SA_DIR, &1u8).with(attr::SA_PCPU, &3u32));
    let text = "Invalid attribute SA_PCPU";
    bench.refuse(&delete_sa(1).with(attr::SA_PCPU, &3u32), Errno::INVAL, text);
    let text = "Invalid attribute SA_DIR";
    bench.refuse(&delete_sa(1).with(attr::SA_DIR, &1u8), Errno::INVAL, text);
}
