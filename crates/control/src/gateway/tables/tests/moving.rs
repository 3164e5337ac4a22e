//! SAs that an IKE daemon moves (GETAE, DELSA, NEWSA), and the ports on which ESP arrives.

use std::time::{Duration, Instant};

use super::*;
use dataplane::sa::SaConfig;
use wire::xfrm::address::Be16;
use wire::xfrm::lifetime::LifetimeCurrent;
use wire::xfrm::number::encap_type;
use wire::xfrm::replay::ReplayStateEsn;
use wire::xfrm::sa::{EncapTmpl, UsersaFlush};

const NORTH: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));

fn udp(source: u16, destination: u16) -> EncapTmpl {
    EncapTmpl {
        encap_type: encap_type::ESPINUDP,
        encap_sport: Be16::new(source),
        encap_dport: Be16::new(destination),
        ..EncapTmpl::default()
    }
}

impl Fixture {
    fn add_udp_sa(&mut self, spi: u32, to: IpAddr, ports: (u16, u16), numbers: ReplayState) {
        let encap = udp(ports.0, ports.1);
        let more = [(attr::ENCAP, encap.as_bytes()), (attr::REPLAY_VAL, numbers.as_bytes())];
        self.send_sa(msg::NEWSA, spi, 7, to, mode::TUNNEL, &more);
    }

    /// The first half of a move.
    fn take_away(&mut self, spi: u32, to: IpAddr) {
        let sa_id = sa_id(spi, to);
        self.send(msg::GETAE, &AeventId { sa_id, ..AeventId::default() }, &[]);
        self.send(msg::DELSA, &sa_id, &[]);
    }

    fn listed(&self, spi: u32, to: IpAddr) -> Option<(u16, u16)> {
        let udp = self.view.sad.get(spi, to)?.encapsulation()?;
        Some((udp.source_port, udp.destination_port))
    }

    pub(super) fn end_all_departures(&mut self) {
        let end = Instant::now() + Duration::from_secs(10);
        while !self.tables.end_departures(&mut self.view) {
            assert!(Instant::now() < end, "the grace never ends");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn start() -> (tempfile::TempDir, Fixture) {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Fixture::start(directory.path());
    gateway.send(msg::NEWPOLICY, &policy(action::ALLOW), &[(attr::TMPL, template(7).as_bytes())]);
    (directory, gateway)
}

#[test]
fn a_moved_sa_is_in_force_all_the_while_and_takes_no_number_twice() {
    let (_directory, mut gateway) = start();
    gateway.add_udp_sa(0x101, EAST, (4500, 4500), ReplayState::default());
    let old = gateway.view.sad.get(0x101, EAST).unwrap().clone();
    old.take_numbers().unwrap();
    gateway.take_away(0x101, EAST);
    // Packets meanwhile: later numbers than were read.
    let last = old.take_numbers().unwrap();
    assert_eq!(gateway.listed(0x101, EAST), Some((4500, 4500)), "opens still");
    assert_eq!(gateway.chosen(), Some(0x101), "seals still");
    let read = ReplayState { oseq: 1, ..ReplayState::default() };
    gateway.add_udp_sa(0x101, EAST, (4500, 1024), read);
    assert_eq!(gateway.listed(0x101, EAST), Some((4500, 1024)));
    let new = gateway.view.sad.get(0x101, EAST).unwrap().clone();
    assert_eq!(gateway.chosen(), Some(0x101));
    assert_eq!(new.take_numbers().unwrap(), (last.0 + 1, last.1 + 1));
    assert_eq!(gateway.tables.sas().count(), 1);
    // Its time is over without anything left to end.
    assert!(!gateway.tables.end_departures(&mut gateway.view));
}

#[test]
fn to_another_address_the_old_end_goes_with_the_same_view() {
    let (_directory, mut gateway) = start();
    gateway.add_udp_sa(0x101, EAST, (4500, 4500), ReplayState::default());
    gateway.take_away(0x101, EAST);
    gateway.add_udp_sa(0x101, NORTH, (4500, 4500), ReplayState::default());
    assert_eq!(gateway.listed(0x101, EAST), None);
    assert_eq!(gateway.listed(0x101, NORTH), Some((4500, 4500)));
}

#[test]
fn one_that_does_not_come_back_is_out_of_force_soon_and_remembered_for_a_while() {
    let (_directory, mut gateway) = start();
    let numbers = ReplayState { oseq: 90, seq: 80, bitmap: 1 };
    gateway.add_udp_sa(0x101, EAST, (4500, 4500), numbers);
    gateway.take_away(0x101, EAST);
    gateway.end_all_departures();
    assert_eq!((gateway.listed(0x101, EAST), gateway.chosen()), (None, None));
    // Older numbers than it had do not bring back what it had.
    gateway.add_udp_sa(0x101, EAST, (4500, 1024), ReplayState::default());
    let stats = gateway.sa(0x101).sa.stats();
    assert_eq!((stats.sent, stats.received), (90, 80));
}

#[test]
fn an_sa_that_opens_elsewhere_goes_at_once_and_leaves_nothing() {
    let (_directory, mut gateway) = start();
    let numbers = ReplayState { oseq: 90, seq: 80, bitmap: 1 };
    gateway.add_udp_sa(0x101, EAST, (4500, 4500), numbers);
    gateway.send(msg::DELSA, &sa_id(0x101, EAST), &[]);
    assert_eq!((gateway.listed(0x101, EAST), gateway.chosen()), (None, None));
    assert_eq!(gateway.tables.sas().count(), 0);
    gateway.add_udp_sa(0x101, EAST, (4500, 4500), ReplayState::default());
    let stats = gateway.sa(0x101).sa.stats();
    assert_eq!((stats.sent, stats.received), (0, 0), "it is a new one, as in a kernel");
}

#[test]
fn a_deleted_sa_opens_for_the_grace_and_seals_no_more() {
    let (_directory, mut gateway) = start();
    gateway.view.local.insert(EAST);
    gateway.add_udp_sa(0x101, EAST, (4500, 61_000), ReplayState::default());
    gateway.send(msg::DELSA, &sa_id(0x101, EAST), &[]);
    assert_eq!((gateway.listed(0x101, EAST), gateway.chosen()), (Some((4500, 61_000)), None));
    assert!(gateway.view.encapsulation_ports.contains(61_000));
    assert_eq!(gateway.tables.sas().count(), 0, "nobody sees it any more");
    gateway.end_all_departures();
    assert_eq!(gateway.listed(0x101, EAST), None);
    assert!(!gateway.view.encapsulation_ports.contains(61_000));
    // Flushed, an SA opens no more at once: nobody agreed with its peer.
    gateway.add_udp_sa(0x102, EAST, (4500, 4500), ReplayState::default());
    gateway.send(msg::FLUSHSA, &UsersaFlush { proto: IPPROTO_ESP }, &[]);
    assert_eq!(gateway.listed(0x102, EAST), None);
}

#[test]
fn the_successor_of_a_deleted_sa_is_not_ended_with_it() {
    let (_directory, mut gateway) = start();
    gateway.view.local.insert(EAST);
    let numbers = ReplayState { oseq: 90, seq: 80, bitmap: 1 };
    gateway.add_udp_sa(0x101, EAST, (4500, 4500), numbers);
    gateway.send(msg::DELSA, &sa_id(0x101, EAST), &[]);
    gateway.add_udp_sa(0x101, EAST, (4500, 999), ReplayState::default());
    let stats = gateway.view.sad.get(0x101, EAST).unwrap().stats();
    assert_eq!((stats.sent, stats.received), (0, 0), "it is a new one, as in a kernel");
    gateway.end_all_departures();
    assert_eq!(gateway.listed(0x101, EAST), Some((4500, 999)));
    assert_eq!(gateway.chosen(), Some(0x101));
    assert!(gateway.view.encapsulation_ports.contains(999));
}

#[test]
fn another_key_is_another_sa() {
    let (_directory, mut gateway) = start();
    let numbers = ReplayState { oseq: 90, seq: 80, bitmap: 1 };
    gateway.add_udp_sa(0x101, EAST, (4500, 4500), numbers);
    gateway.take_away(0x101, EAST);
    gateway.key = 9;
    gateway.add_udp_sa(0x101, EAST, (4500, 4500), ReplayState::default());
    assert_eq!(gateway.view.sad.get(0x101, EAST).unwrap().stats().sent, 0);
    // The old one's time ends, and takes nothing of the new one with it.
    gateway.end_all_departures();
    assert_eq!(gateway.listed(0x101, EAST), Some((4500, 4500)));
    assert_eq!(gateway.chosen(), Some(0x101));
}

#[test]
fn with_another_window_it_keeps_its_tunnel_its_place_and_its_counters() {
    remake(false);
}

#[test]
fn so_it_does_when_it_leaves_and_comes_back_in_one_batch() {
    remake(true);
}

/// An SA moves and gets another window.
fn remake(in_one_batch: bool) {
    let (directory, mut gateway) = start();
    let mut options = std::fs::File::options();
    options.read(true).write(true).create_new(true);
    let file = options.open(directory.path().join("ledger")).unwrap();
    let ledger = Ledger::open(xsk::Region::open(file).unwrap(), 1);
    gateway.tables.keep_in(ledger, HashMap::new());
    let numbers = ReplayState { oseq: 90, seq: 80, bitmap: 1 };
    gateway.add_udp_sa(0x101, EAST, (4500, 4500), numbers);
    gateway.sa(0x101).sa.count(3, 300, 1, false);
    if in_one_batch {
        let sa_id = sa_id(0x101, EAST);
        gateway.ask(msg::GETAE, &AeventId { sa_id, ..AeventId::default() }, &[]);
        gateway.ask(msg::DELSA, &sa_id, &[]);
    } else {
        gateway.take_away(0x101, EAST);
    }
    // A worker that has the view before seals and opens once more.
    let old = gateway.sa(0x101).sa.clone();
    gateway.last = Some((old, |old| {
        assert_eq!(old.take_numbers().unwrap().0, 91);
        let heard =
            SaConfig { received: 85, received_bitmap: Some([1 << 20].into()), ..old.config() };
        old.moved(heard).unwrap();
        assert_eq!(old.stats().received, 85);
    }));
    let head = ReplayStateEsn { bmp_len: 4, replay_window: 128, ..ReplayStateEsn::default() };
    let window = [head.as_bytes(), &[0; 16]].concat();
    let encap = udp(4500, 999);
    let tunnel = 9u32.to_ne_bytes();
    let more = [
        (attr::ENCAP, encap.as_bytes()),
        (attr::REPLAY_ESN_VAL, &window[..]),
        (attr::IF_ID, &tunnel[..]),
    ];
    gateway.send_sa(msg::NEWSA, 0x101, 7, EAST, mode::TUNNEL, &more);
    let installed = gateway.sa(0x101);
    let stats = installed.sa.stats();
    assert_eq!((stats.sent, stats.received), (91, 85), "none is sent or accepted twice");
    assert_eq!((installed.sa.if_id(), installed.sa.replay().window()), (9, 128));
    assert!(installed.sa.place().is_some(), "the next process finds it");
    assert_eq!((stats.usage.packets, installed.before()), (3, (3, 300)), "limits go on");
}

#[test]
fn counters_begin_anew_and_limits_do_not() {
    let (_directory, mut gateway) = start();
    gateway.add_udp_sa(0x101, EAST, (4500, 4500), ReplayState::default());
    let id = gateway.name(0x101);
    gateway.tables.sas.get_mut(id.0).unwrap().before = None;
    gateway.take_away(0x101, EAST);
    gateway.add_udp_sa(0x101, EAST, (4500, 999), ReplayState::default());
    let sa = gateway.sa(0x101).sa.clone();
    let shown = gateway.tables.sa(gateway.name(0x101)).unwrap();
    assert_eq!((shown.packets, shown.bytes), (0, 0));
    assert_eq!(sa.stats().usage.packets, gateway.sa(0x101).before().0);
}

#[test]
fn a_hard_limit_that_is_reached_after_a_move_ends_the_sa() {
    let (_directory, mut gateway) = start();
    gateway.limits.hard_packet_limit = 10;
    gateway.add_udp_sa(0x101, EAST, (4500, 4500), ReplayState::default());
    let old = gateway.sa(0x101).sa.clone();
    old.count(6, 600, 1, false);
    gateway.take_away(0x101, EAST);
    // As a daemon copies what it read, while packets go on.
    old.count(2, 200, 1, false);
    let encap = udp(4500, 999);
    let read = LifetimeCurrent { packets: 6, bytes: 600, ..LifetimeCurrent::default() };
    let more = [(attr::ENCAP, encap.as_bytes()), (attr::LTIME_VAL, read.as_bytes())];
    gateway.send_sa(msg::NEWSA, 0x101, 7, EAST, mode::TUNNEL, &more);
    let (id, new) = (gateway.name(0x101), gateway.sa(0x101).sa.clone());
    gateway.server.tick(1_700_000_001, &gateway.tables);
    assert!(!new.expired() && gateway.server.take_changes().is_empty());
    new.count(2, 200, 1, false);
    assert!(new.expired(), "nothing passes any more");
    gateway.server.tick(1_700_000_002, &gateway.tables);
    assert_eq!(gateway.server.take_changes(), [Change::SaRemoved(id)], "and it is said");
}

#[test]
fn ports_are_those_of_sas_that_end_here() {
    let (_directory, mut gateway) = start();
    let has = |gateway: &Fixture, port| gateway.view.encapsulation_ports.contains(port);
    gateway.add_udp_sa(0x101, EAST, (1, 4500), ReplayState::default());
    assert!(!has(&gateway, 4500), "the far end's");
    gateway.view.local.insert(EAST);
    gateway.tables.relocate(&mut gateway.view);
    assert!(has(&gateway, 4500));
    gateway.add_udp_sa(0x102, EAST, (1, 61_000), ReplayState::default());
    assert!(has(&gateway, 61_000));
    let encap = udp(1, 62_000);
    gateway.send_sa(msg::UPDSA, 0x102, 7, EAST, mode::TUNNEL, &[(attr::ENCAP, encap.as_bytes())]);
    assert!(!has(&gateway, 61_000) && has(&gateway, 62_000));
    assert_eq!(gateway.listed(0x102, EAST), Some((1, 62_000)));
    gateway.send(msg::DELSA, &sa_id(0x102, EAST), &[]);
    gateway.end_all_departures();
    assert!(!has(&gateway, 62_000) && has(&gateway, 4500));
}
