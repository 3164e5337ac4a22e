//! SAs and policies that get other ends.

use rustix::io::Errno;
use wire::xfrm::address::Be16;
use wire::xfrm::number::{
    AF_INET, AF_INET6, IPPROTO_ESP, attr, direction, encap_type, group, mode, msg,
};
use wire::xfrm::policy::{UserMigrate, UserTmpl, UserpolicyId, UserpolicyInfo};
use wire::xfrm::sa::{EncapTmpl, UsersaInfo};
use zerocopy::{FromBytes, IntoBytes};

use super::super::{Change, PolicyId, SaId};
use super::bench::*;

/// From 192.0.2.1 → 192.0.2.2, which SAs and policies here have, to other ends.
fn entry(source: &str, destination: &str) -> UserMigrate {
    UserMigrate {
        old_daddr: address("192.0.2.2"),
        old_saddr: address("192.0.2.1"),
        new_daddr: address(destination),
        new_saddr: address(source),
        proto: IPPROTO_ESP,
        mode: mode::TUNNEL,
        reserved: 0,
        reqid: 1,
        old_family: AF_INET,
        new_family: if destination.contains(':') { AF_INET6 } else { AF_INET },
    }
}

fn migrate(entries: &[UserMigrate]) -> Request {
    let sel = selector("10.2.0.1");
    let id = UserpolicyId { sel, dir: direction::OUT, ..UserpolicyId::default() };
    Request::new(msg::MIGRATE, &id).with(attr::MIGRATE, entries)
}

fn policy() -> Request {
    new_policy("10.2.0.1", direction::OUT)
}

fn templates(bench: &mut Bench) -> Vec<UserTmpl> {
    let id =
        UserpolicyId { sel: selector("10.2.0.1"), dir: direction::OUT, ..UserpolicyId::default() };
    let answer = bench.accept(&Request::new(msg::GETPOLICY, &id).flags(1));
    let value = &attributes(&answer.replies[0])[&attr::TMPL];
    value.chunks_exact(64).map(|one| UserTmpl::read_from_bytes(one).unwrap()).collect()
}

#[test]
fn an_sa_and_its_policy_move_together_and_are_announced() {
    let mut bench = Bench::new();
    bench.accept(&policy());
    bench.accept(&new_sa(1).with(attr::SA_PCPU, &0u32));
    bench.changes();
    let moved = entry("198.51.100.7", "192.0.2.2");
    let kilometre = [7u8; 40];
    let answer = bench.accept(&migrate(&[moved]).with(attr::KMADDRESS, &kilometre[..]));

    let changes = bench.changes();
    let [Change::SaMoved(sa), Change::PolicyRemoved(gone), Change::PolicyInstalled(policy)] =
        &changes[..]
    else {
        panic!("{changes:?}")
    };
    assert_eq!(sa.id, SaId(0), "it is the same SA");
    assert_eq!(sa.parameters.source(), std::net::IpAddr::from([198, 51, 100, 7]));
    assert_eq!((sa.parameters.spi(), sa.parameters.cpu), (1, Some(0)));
    assert_eq!((*gone, policy.id), (PolicyId(0), PolicyId(0)));
    assert_eq!(templates(&mut bench)[0].saddr, address("198.51.100.7"));

    assert_eq!(answer.kinds(), [(group::MIGRATE, msg::MIGRATE)]);
    let event = &answer.events[0].bytes;
    assert_eq!((header(event).seq, header(event).pid), (0, 0));
    let told = attributes(event);
    assert_eq!(told[&attr::KMADDRESS], kilometre);
    assert_eq!(told[&attr::MIGRATE], moved.as_bytes());
    assert!(told.contains_key(&attr::POLICY_TYPE));
}

#[test]
fn a_new_destination_is_where_the_sa_is_found_from_then_on() {
    let mut bench = Bench::new();
    bench.accept(&policy());
    bench.accept(&new_sa(1));
    bench.accept(&migrate(&[entry("2001:db8::1", "2001:db8::2")]));
    bench.refuse(&get_sa(1), Errno::SRCH, "");
    let mut id = sa_id(1);
    (id.daddr, id.family) = (address("2001:db8::2"), AF_INET6);
    let answer = bench.accept(&Request::new(msg::GETSA, &id).flags(1));
    let info: UsersaInfo = messages(&answer.replies[0])[0].fixed().unwrap();
    assert_eq!((info.family, info.saddr), (AF_INET6, address("2001:db8::1")));
    let template = templates(&mut bench)[0];
    assert_eq!((template.family, template.id.daddr), (AF_INET6, address("2001:db8::2")));
    // Once more, from there: the old entry is about nothing any more.
    bench.refuse(&migrate(&[entry("192.0.2.9", "192.0.2.8")]), Errno::NODATA, "");
    bench.accept(&new_sa(1));
}

#[test]
fn encapsulation_comes_with_the_move_or_stays() {
    let encap = |sport: u16| EncapTmpl {
        encap_type: encap_type::ESPINUDP,
        encap_sport: Be16::new(sport),
        encap_dport: Be16::new(4500),
        ..EncapTmpl::default()
    };
    let mut bench = Bench::new();
    bench.accept(&policy());
    bench.accept(&new_sa(1));
    let ports = |bench: &mut Bench| {
        let answer = bench.accept(&get_sa(1));
        let value = attributes(&answer.replies[0]).remove(&attr::ENCAP);
        value.map(|value| EncapTmpl::read_from_bytes(&value).unwrap().encap_sport.get())
    };
    let here = entry("192.0.2.7", "192.0.2.2");
    let there = UserMigrate { old_saddr: here.new_saddr, ..entry("192.0.2.8", "192.0.2.2") };
    let answer = bench.accept(&migrate(&[here]).with(attr::ENCAP, &encap(4501)));
    assert!(attributes(&answer.events[0].bytes).contains_key(&attr::ENCAP));
    assert_eq!(ports(&mut bench), Some(4501));
    bench.accept(&migrate(&[there]));
    assert_eq!(ports(&mut bench), Some(4501));
    // The same ends with another port, as behind a NAT.
    let again = UserMigrate { old_saddr: there.new_saddr, ..there };
    let tcp = EncapTmpl { encap_type: 7, ..encap(1) };
    bench.refuse(&migrate(&[again]).with(attr::ENCAP, &tcp), Errno::NODATA, "");
    bench.accept(&migrate(&[again]).with(attr::ENCAP, &encap(4502)));
    assert_eq!(ports(&mut bench), Some(4502));
}

#[test]
fn the_newest_of_several_sas_moves_first() {
    let mut bench = Bench::new();
    bench.accept(&policy());
    bench.accept(&new_sa(1));
    bench.accept(&new_sa(2));
    bench.accept(&new_sa(3).change(|info: &mut UsersaInfo| info.reqid = 9));
    bench.changes();
    bench.accept(&migrate(&[entry("192.0.2.7", "192.0.2.2")]));
    let moved = |bench: &mut Bench| {
        let spis = bench.changes().into_iter().filter_map(|change| match change {
            Change::SaMoved(record) => Some(record.parameters.spi()),
            _ => None,
        });
        spis.collect::<Vec<_>>()
    };
    assert_eq!(moved(&mut bench), [2]);
}

#[test]
fn nothing_moves_unless_everything_can() {
    let mut bench = Bench::new();
    let to = |destination| entry("198.51.100.7", destination);
    bench.refuse(&migrate(&[to("192.0.2.2")]), Errno::NOENT, "");
    bench.accept(&policy());
    bench.accept(&new_sa(1));
    // Another SA is there already.
    let other = |info: &mut UsersaInfo| info.id.daddr = address("192.0.2.50");
    bench.accept(&new_sa(1).change(other));
    bench.changes();
    bench.refuse(&migrate(&[to("192.0.2.50")]), Errno::NODATA, "");
    // No template is meant.
    let foreign = UserMigrate { reqid: 5, ..to("192.0.2.60") };
    bench.refuse(&migrate(&[foreign]), Errno::NODATA, "");
    assert!(bench.changes().is_empty());
}

#[test]
fn a_bad_list_is_refused() {
    let mut bench = Bench::new();
    bench.accept(&policy());
    let good = entry("198.51.100.7", "192.0.2.2");
    let refuse = |bench: &mut Bench, entries: &[UserMigrate]| {
        bench.refuse(&migrate(entries), Errno::INVAL, "");
    };
    refuse(&mut bench, &[good, good]);
    refuse(&mut bench, &[entry("0.0.0.0", "192.0.2.2")]);
    refuse(&mut bench, &[entry("192.0.2.1", "0.0.0.0")]);
    refuse(&mut bench, &[UserMigrate { new_family: 99, ..good }]);
    let many: Vec<UserMigrate> = (1..=7).map(|reqid| UserMigrate { reqid, ..good }).collect();
    refuse(&mut bench, &many);
    bench.refuse(&migrate(&[good]).without(attr::MIGRATE), Errno::INVAL, "");
    let wrong = migrate(&[good]).change(|id: &mut UserpolicyId| id.dir = direction::MAX);
    bench.refuse(&wrong, Errno::INVAL, "");
    assert_eq!(bench.changes().len(), 1, "the policy's installation");
}

#[test]
fn the_policy_is_found_whatever_its_mark_and_by_any_protocol() {
    let mut bench = Bench::new();
    bench.accept(&policy().with(attr::MARK, &[7u32, 7]));
    bench.accept(&migrate(&[entry("192.0.2.7", "192.0.2.2")]));
    let udp = policy().change(|info: &mut UserpolicyInfo| info.sel.proto = 17);
    bench.accept(&udp);
    let any = migrate(&[entry("192.0.2.7", "192.0.2.2")]);
    let any = any.change(|id: &mut UserpolicyId| id.sel.proto = 255);
    bench.changes();
    // The first of equal priority, which has moved already.
    bench.refuse(&any, Errno::NODATA, "");
    let sel = selector("10.2.0.1");
    let id = UserpolicyId { sel, dir: direction::OUT, ..UserpolicyId::default() };
    bench.accept(&Request::new(msg::DELPOLICY, &id).with(attr::MARK, &[7u32, 7]));
    bench.accept(&any);
}
