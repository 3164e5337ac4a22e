//! Dumps: parts, filters, ends, and changes while one runs.

use rustix::io::Errno;
use wire::xfrm::address::AddressFilter;
use wire::xfrm::netlink::{NLM_F_DUMP, NLM_F_MULTI, NLM_F_REQUEST, NLMSG_DONE};
use wire::xfrm::number::{AF_INET, IPPROTO_AH, attr, direction, msg};
use wire::xfrm::policy::UserpolicyInfo;
use wire::xfrm::sa::UsersaInfo;
use zerocopy::FromBytes;

use super::super::Bytes;
use super::super::dump::PART_MAX;
use super::super::secret::REPLY_CAPACITY;
use super::bench::*;

fn dump(kind: u16) -> Request {
    // Without a fixed part, as `ip` asks.
    let request = Request::new(kind, &[0u8; 0]);
    request.flags(NLM_F_REQUEST | NLM_F_DUMP)
}

/// The entries of all parts; checks sizes, flags and the end.
#[track_caller]
fn entries<T: FromBytes>(parts: &[Bytes]) -> Vec<T> {
    let (last, parts) = parts.split_last().unwrap();
    assert_eq!((header(last).kind, header(last).flags), (NLMSG_DONE, NLM_F_MULTI));
    assert_eq!((last.len(), &last[16..20]), (20, &[0; 4][..]));
    let mut entries = Vec::new();
    for part in parts {
        assert!(part.len() <= 4096, "{}", part.len());
        for message in messages(part) {
            assert_eq!(message.header.flags, NLM_F_MULTI);
            assert_eq!((message.header.seq, message.header.pid), (5, 77));
            entries.push(message.fixed().unwrap());
        }
    }
    entries
}

fn spis(bench: &mut Bench, request: &Request) -> Vec<u32> {
    let parts = bench.dump(request);
    entries::<UsersaInfo>(&parts).iter().map(|info| info.id.spi.get()).collect()
}

#[test]
fn empty_tables_end_at_once() {
    let mut bench = Bench::new();
    for kind in [msg::GETSA, msg::GETPOLICY] {
        assert_eq!(bench.dump(&dump(kind)).len(), 1);
    }
}

#[test]
fn all_entries_newest_first_in_parts() {
    let mut bench = Bench::new();
    for spi in 1..=100 {
        bench.accept(&new_sa(spi));
        bench.accept(&new_policy(&format!("10.2.0.{spi}"), direction::OUT));
    }
    assert_eq!(spis(&mut bench, &dump(msg::GETSA)), (1..=100).rev().collect::<Vec<_>>());
    let parts = bench.dump(&dump(msg::GETPOLICY));
    assert!(parts.len() > 5);
    let policies: Vec<UserpolicyInfo> = entries(&parts);
    assert_eq!(policies.len(), 100);
    assert_eq!(policies[0].sel, selector("10.2.0.100"));
}

#[test]
fn a_part_never_moves_and_leaves_no_key_where_it_was() {
    let mut bench = Bench::new();
    for spi in 1..=100 {
        let words = if spi % 3 == 0 { 128 } else { 4 };
        bench.accept(&new_sa(spi).with(attr::REPLAY_ESN_VAL, &esn(words * 32, words)[..]));
    }
    let mut parts = bench.dump(&dump(msg::GETSA));
    assert!(parts.len() > 5 && parts.pop().is_some());
    for mut part in parts {
        assert_eq!(part.vec().capacity(), PART_MAX + REPLY_CAPACITY);
    }
}

#[test]
fn filters() {
    let mut bench = Bench::new();
    bench.accept(&new_sa(1));
    let other = |info: &mut UsersaInfo| info.saddr = address("198.51.100.1");
    bench.accept(&new_sa(2).change(other));
    let filter = AddressFilter {
        saddr: address("192.0.2.0"),
        family: AF_INET,
        splen: 24,
        ..AddressFilter::default()
    };
    let with = |filter: AddressFilter| dump(msg::GETSA).with(attr::ADDRESS_FILTER, &filter);
    assert_eq!(spis(&mut bench, &with(filter)), [1]);
    assert!(spis(&mut bench, &with(AddressFilter { family: 10, ..filter })).is_empty());
    assert_eq!(spis(&mut bench, &with(AddressFilter { splen: 0, ..filter })), [2, 1]);
    let to = AddressFilter { splen: 0, daddr: address("192.0.2.3"), dplen: 32, ..filter };
    assert!(spis(&mut bench, &with(to)).is_empty());
    assert!(spis(&mut bench, &dump(msg::GETSA).with(attr::PROTO, &IPPROTO_AH)).is_empty());
    assert_eq!(spis(&mut bench, &dump(msg::GETSA).with(attr::PROTO, &255u8)), [2, 1]);
}

#[test]
fn a_wrong_filter_ends_the_dump_with_an_error() {
    let mut bench = Bench::new();
    bench.accept(&new_sa(1));
    let filter = AddressFilter { splen: 129, ..AddressFilter::default() };
    let long = dump(msg::GETSA).with(attr::ADDRESS_FILTER, &filter);
    let short = dump(msg::GETSA).with(attr::ADDRESS_FILTER, &[0u8; 35]);
    for (request, errno) in [(long, Errno::INVAL), (short, Errno::RANGE)] {
        let parts = bench.dump(&request);
        assert_eq!((parts.len(), header(&parts[0]).kind), (1, NLMSG_DONE));
        assert_eq!(parts[0][16..20], (-errno.raw_os_error()).to_ne_bytes());
    }
}

#[test]
fn one_dump_at_a_time() {
    let mut bench = Bench::new();
    for spi in 1..=100 {
        bench.accept(&new_sa(spi));
    }
    let bytes = [dump(msg::GETSA).bytes(), dump(msg::GETPOLICY).bytes()].concat();
    let handled = bench.handle(&bytes);
    assert!(handled.dump.is_some());
    let answer = Answer::new(handled.deliveries);
    assert_eq!(answer.result(), Err((Errno::BUSY, String::new())));
    bench.client.dumping = true;
    bench.refuse(&dump(msg::GETSA), Errno::BUSY, "");
}

#[test]
fn changes_while_a_dump_runs() {
    let mut bench = Bench::new();
    for spi in 1..=100 {
        bench.accept(&new_sa(spi));
    }
    let handled = bench.handle(&dump(msg::GETSA).bytes());
    let mut parts: Vec<Bytes> = Answer::new(handled.deliveries).replies;
    let mut running = handled.dump.unwrap();
    for spi in 1..=50 {
        bench.accept(&delete_sa(spi));
        bench.accept(&new_sa(1000 + spi));
    }
    while let Some(part) = bench.server.dump_next(&mut running, &bench.figures) {
        parts.push(part);
    }
    assert!(running.is_over());
    let spis: Vec<_> = entries::<UsersaInfo>(&parts).iter().map(|info| info.id.spi.get()).collect();
    assert_eq!(spis, (51..=100).rev().collect::<Vec<_>>());
}
