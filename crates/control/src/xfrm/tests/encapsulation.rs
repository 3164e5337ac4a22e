//! ESP in UDP: what is accepted, how it is shown, and MAPPING.

use rustix::io::Errno;
use wire::xfrm::address::Be16;
use wire::xfrm::event::UserMapping;
use wire::xfrm::netlink::{NLM_F_ACK, NLM_F_REPLACE, NLM_F_REQUEST};
use wire::xfrm::number::{attr, encap_type, group, msg, sa_direction};
use wire::xfrm::sa::{AeventId, EncapTmpl, UsersaInfo};
use zerocopy::{FromBytes, IntoBytes};

use super::super::{Change, Mapping};
use super::bench::*;

fn udp(source: u16, destination: u16) -> EncapTmpl {
    EncapTmpl {
        encap_type: encap_type::ESPINUDP,
        encap_sport: Be16::new(source),
        encap_dport: Be16::new(destination),
        ..EncapTmpl::default()
    }
}

#[test]
fn udp_is_accepted_and_shown_and_other_types_are_not() {
    let mut bench = Bench::new();
    let encap = EncapTmpl { encap_oa: address("198.51.100.1"), ..udp(4500, 12345) };
    let request = new_sa(1).with(attr::ENCAP, &encap).with(attr::MTIMER_THRESH, &9u32);
    let answer = bench.accept(&request);
    for shown in [&answer.events[0].bytes, &bench.send(&get_sa(1)).replies[0]] {
        let found = attributes(shown);
        assert_eq!(found[&attr::ENCAP], encap.as_bytes());
        assert_eq!(found[&attr::MTIMER_THRESH], 9u32.as_bytes());
    }
    let changes = bench.changes();
    let [Change::SaInstalled(record)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(record.parameters.encapsulation, Some(encap));
    for kind in [0, encap_type::ESPINUDP_NON_IKE, 3, encap_type::ESPINTCP, u16::MAX] {
        let encap = EncapTmpl { encap_type: kind, ..udp(4500, 4500) };
        let text = "Unsupported encapsulation type for ESP";
        bench.refuse(&new_sa(2).with(attr::ENCAP, &encap), Errno::INVAL, text);
    }
    let keepalives =
        new_sa(3).with(attr::ENCAP, &udp(4500, 4500)).with(attr::NAT_KEEPALIVE_INTERVAL, &20u32);
    bench.refuse(&keepalives, Errno::OPNOTSUPP, "NAT keepalives are the IKE daemon's here");
    let outbound = new_sa(3)
        .with(attr::ENCAP, &udp(4500, 4500))
        .with(attr::MTIMER_THRESH, &9u32)
        .with(attr::SA_DIR, &sa_direction::OUT);
    let text = "MTIMER_THRESH attribute should not be set on output SA";
    bench.refuse(&outbound, Errno::INVAL, text);
}

#[test]
fn an_update_moves_ports_and_neither_gives_nor_takes_udp() {
    let mut bench = Bench::new();
    bench.accept(&new_sa(1).with(attr::ENCAP, &udp(4500, 4500)));
    bench.accept(&new_sa(2));
    bench.changes();
    bench.accept(&update_sa(1).with(attr::ENCAP, &udp(4501, 4502)));
    let changes = bench.changes();
    let [Change::SaUpdated(record)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(record.parameters.encapsulation, Some(udp(4501, 4502)));
    let without = update_sa(1).change(|info: &mut UsersaInfo| info.lft.hard_packet_limit = 10);
    bench.refuse(&without, Errno::INVAL, "");
    bench.refuse(&update_sa(2).with(attr::ENCAP, &udp(1, 2)), Errno::INVAL, "");
    assert!(bench.changes().is_empty());
    assert_eq!(shown_sa(&mut bench, 1).lft.hard_packet_limit, u64::MAX, "nothing was changed");
}

fn from(source: &str, port: u16) -> Mapping {
    let destination = "192.0.2.2".parse().unwrap();
    Mapping { spi: 1, destination, source: source.parse().unwrap(), port }
}

fn heard(bench: &mut Bench, mapping: &Mapping, now: u64) -> Vec<UserMapping> {
    let answer = Answer::new(bench.server.mapping_changed(mapping, now));
    assert!(answer.replies.is_empty());
    assert!(answer.kinds().iter().all(|kind| *kind == (group::MAPPING, msg::MAPPING)));
    // A kernel counts no fixed part of this message: it is never sent to one.
    let body = |bytes: &[u8]| UserMapping::read_from_bytes(&bytes[16..]).unwrap();
    answer.events.iter().map(|event| body(&event.bytes)).collect()
}

#[test]
fn a_mapping_says_what_was_and_what_is() {
    let mut bench = Bench::new();
    bench.accept(&new_sa(1).with(attr::ENCAP, &udp(4500, 4501)));
    let [said] = heard(&mut bench, &from("203.0.113.7", 1024), NOW)[..] else { panic!() };
    assert_eq!(said.id, sa_id(1));
    assert_eq!(said.reqid, 1);
    assert_eq!((said.old_saddr, said.old_sport.get()), (address("192.0.2.1"), 4500));
    assert_eq!((said.new_saddr, said.new_sport.get()), (address("203.0.113.7"), 1024));
    // Without an age each one is told.
    assert_eq!(heard(&mut bench, &from("203.0.113.7", 1024), NOW).len(), 1);
    // What the SA says meanwhile is no news, nor is anything of an SA that is gone or never was in UDP.
    assert!(heard(&mut bench, &from("192.0.2.1", 4500), NOW).is_empty());
    bench.accept(&delete_sa(1));
    assert!(heard(&mut bench, &from("203.0.113.7", 1024), NOW).is_empty());
    bench.accept(&new_sa(1));
    assert!(heard(&mut bench, &from("203.0.113.7", 1024), NOW).is_empty());
}

#[test]
fn an_age_keeps_the_same_mapping_quiet_and_the_largest_all() {
    let mut bench = Bench::new();
    let sa = new_sa(1).with(attr::ENCAP, &udp(4500, 4501));
    bench.accept(&sa.with(attr::MTIMER_THRESH, &5u32));
    let count = |bench: &mut Bench, port, now| heard(bench, &from("192.0.2.1", port), now).len();
    assert_eq!(count(&mut bench, 1024, NOW), 1);
    assert_eq!(count(&mut bench, 1024, NOW + 5), 0);
    assert_eq!(count(&mut bench, 1025, NOW + 5), 1, "another port is other news");
    assert_eq!(count(&mut bench, 1025, NOW + 11), 1, "too long ago");
    let never = AeventId { sa_id: sa_id(1), ..AeventId::default() };
    let request = Request::new(msg::NEWAE, &never)
        .flags(NLM_F_REQUEST | NLM_F_ACK | NLM_F_REPLACE)
        .with(attr::REPLAY_THRESH, &2u32)
        .with(attr::MTIMER_THRESH, &u32::MAX);
    bench.accept(&request);
    assert_eq!(count(&mut bench, 1026, NOW + 100), 0);
    let answer = bench.send(&get_sa(1));
    assert_eq!(attributes(&answer.replies[0])[&attr::MTIMER_THRESH], [0xff; 4]);
}

#[test]
fn only_what_was_read_just_before_is_on_the_move() {
    let read = |bench: &mut Bench| {
        let wanted = AeventId { sa_id: sa_id(1), ..AeventId::default() };
        bench.send(&Request::new(msg::GETAE, &wanted));
    };
    let delete = |bench: &mut Bench| {
        bench.accept(&delete_sa(1));
        bench.changes().pop()
    };
    for (what, reads, pause, moving) in [
        ("never read", false, 0, false),
        ("just read", true, 0, true),
        ("read a second ago", true, 1, true),
        ("read long ago", true, 2, false),
    ] {
        let mut bench = Bench::new();
        bench.accept(&new_sa(1));
        if reads {
            read(&mut bench);
        }
        bench.now += pause;
        let change = delete(&mut bench);
        let departed = matches!(change, Some(Change::SaDeparted(_)));
        assert_eq!(departed, moving, "{what}: {change:?}");
        bench.refuse(&get_sa(1), Errno::SRCH, "");
    }
}
