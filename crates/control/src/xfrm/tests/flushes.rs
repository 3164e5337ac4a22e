//! A long flush goes on in parts, and others have their turns in between.

use wire::xfrm::number::{direction, msg};
use wire::xfrm::sa::UsersaFlush;

use super::super::{Delivery, Flush};
use super::bench::*;

const COUNT: u32 = 1000;

/// Begins a flush of more than a part.
fn begin(bench: &mut Bench, request: &Request) -> Flush {
    let handled = bench.handle(&request.bytes());
    assert!(handled.deliveries.is_empty(), "neither answered nor announced before it is over");
    handled.flush.expect("the rest of it")
}

/// Goes on to the end; what came of it.
fn end(bench: &mut Bench, mut flush: Flush) -> Answer {
    let mut deliveries: Vec<Delivery> = Vec::new();
    while !bench.server.flush_next(&mut flush, &mut deliveries) {
        assert!(deliveries.is_empty());
    }
    deliveries.extend(flush.answer());
    Answer::new(deliveries)
}

#[test]
fn what_comes_while_sas_are_flushed_stays() {
    let mut bench = Bench::new();
    (0..COUNT).for_each(|number| drop(bench.accept(&new_sa(0x1000 + number))));
    bench.changes();
    let flush = begin(&mut bench, &Request::new(msg::FLUSHSA, &UsersaFlush { proto: 0 }));
    let (left, _) = bench.server.sizes();
    assert!((1..COUNT as usize).contains(&left), "{left}");
    // The oldest is still there, the newest is gone, and may come again.
    bench.accept(&get_sa(0x1000));
    bench.accept(&new_sa(0x1000 + COUNT - 1));
    let answer = end(&mut bench, flush);
    assert_eq!((answer.result(), answer.events.len()), (Ok(()), 1));
    assert_eq!(bench.server.sizes(), (1, 0));
    bench.accept(&get_sa(0x1000 + COUNT - 1));
    assert_eq!(bench.changes().len(), COUNT as usize + 1);
}

#[test]
fn policies_are_flushed_in_parts_too_and_requests_behind_in_the_datagram_wait() {
    let mut bench = Bench::new();
    let fill = |bench: &mut Bench| {
        for number in 0..COUNT {
            let to = std::net::Ipv4Addr::from(0x0a02_0000 + number).to_string();
            bench.accept(&new_policy(&to, direction::OUT));
        }
    };
    fill(&mut bench);
    let request = Request::new(msg::FLUSHPOLICY, &[0u8; 0]);
    let flush = begin(&mut bench, &request);
    let answer = end(&mut bench, flush);
    assert_eq!((answer.result(), answer.events.len()), (Ok(()), 1));
    assert_eq!(bench.server.sizes(), (0, 0));
    fill(&mut bench);
    let both = [request.bytes(), new_policy("10.9.0.0", direction::OUT).bytes()].concat();
    let handled = bench.handle(&both);
    assert!(handled.flush.is_none());
    assert_eq!(bench.server.sizes(), (0, 1));
    let is_event = |delivery: &Delivery| matches!(delivery, Delivery::Event(_));
    let order: Vec<bool> = handled.deliveries.iter().map(is_event).collect();
    assert_eq!(order, [true, false, true, false], "each event before its answer, in order");
}
