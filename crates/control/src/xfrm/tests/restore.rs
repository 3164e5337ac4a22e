//! A server that is restored from what was written down is the server that wrote it.

use dataplane::ledger::Place;
use proptest::collection::vec;
use proptest::prelude::*;
use wire::xfrm::address::Mark;
use wire::xfrm::number::{AF_INET6, attr, default_action, direction, msg, sa_direction};
use wire::xfrm::policy::UserpolicyDefault;
use wire::xfrm::replay::ReplayStateEsn;
use wire::xfrm::sa::UsersaInfo;

use super::super::{Bytes, Change, Entries, Flow, Places, SaId, Server, Settings, Walk};
use super::bench::*;
use super::properties::{nearly_good, soup};
use super::timers::{counted, hardness};

/// Every SA has a place.
struct Everywhere;

impl Places for Everywhere {
    fn place(&self, id: SaId) -> Option<Place> {
        Some(Place { cell: id.0 as u32, tag: id.0 + 1 })
    }
}

/// What changed since the last call, as entries.
fn touched(server: &mut Server) -> Vec<u8> {
    let mut out = Bytes::reusable(0);
    server.write_touched(&Everywhere, &mut out);
    out.to_vec()
}

/// Everything that is to outlive the process, as entries, a few at a time.
fn image(server: &Server) -> Vec<u8> {
    let (mut out, mut walk) = (Bytes::reusable(0), Walk::default());
    while server.write_some(&mut walk, 3, &Everywhere, &mut out) != 0 {}
    out.to_vec()
}

fn entries(bytes: &[u8]) -> Entries<'_> {
    let mut entries = Entries::default();
    entries.add(bytes).unwrap();
    entries
}

/// A server as the entries say, and what it tells the data plane.
fn restored(bytes: &[u8]) -> (Server, Vec<Change>) {
    let mut server = Server::new(Settings { cpus: 4, acquire_expires_s: 30, seed: 9 });
    let restored = server.restore(&entries(bytes));
    assert_eq!(restored.lost, 0);
    (server, restored.changes)
}

/// The journal says what the server says, and an image of it does as well.
#[track_caller]
fn check(server: &Server, journal: &[u8]) {
    for bytes in [journal, &image(server)[..]] {
        let (again, _) = restored(bytes);
        assert_eq!(image(&again), image(server));
        assert_eq!(again.sizes(), server.sizes());
        assert_eq!(again.defaults, server.defaults);
        assert!(super::super::spd::consistent(&again.spd));
    }
}

fn rich_sa(spi: u32) -> Request {
    let head = ReplayStateEsn { bmp_len: 4, replay_window: 128, seq: 9, ..Default::default() };
    let replay = [zerocopy::IntoBytes::as_bytes(&head), &[0; 16]].concat();
    new_sa(spi)
        .change(|info: &mut UsersaInfo| {
            info.flags |= 128;
            info.lft.soft_add_expires_seconds = 100;
            info.lft.hard_add_expires_seconds = 200;
            info.lft.hard_byte_limit = 1 << 40;
        })
        .with(attr::MARK, &Mark { v: 5, m: 7 })
        .with(attr::SET_MARK, &3u32)
        .with(attr::IF_ID, &8u32)
        .with(attr::SA_DIR, &sa_direction::IN)
        .with(attr::SA_PCPU, &1u32)
        .with(attr::REPLAY_ESN_VAL, &replay[..])
        .with(attr::REPLAY_THRESH, &77u32)
}

#[test]
fn everything_that_can_be_installed_comes_back() {
    let mut bench = Bench::new();
    bench.accept(&rich_sa(1));
    bench.accept(&new_sa(2));
    bench.accept(&new_policy("10.2.0.1", direction::OUT));
    bench.accept(&new_policy("10.2.0.2", direction::FWD));
    let blocked = UserpolicyDefault { input: 0, forward: default_action::BLOCK, output: 0 };
    bench.accept(&Request::new(msg::SETDEFAULT, &blocked));
    let mut journal = touched(&mut bench.server);
    bench.tick(50);
    bench.accept(&delete_sa(2));
    journal.extend(touched(&mut bench.server));
    assert!(!bench.server.has_changes() || !bench.changes().is_empty());
    check(&bench.server, &journal);

    let (server, changes) = restored(&journal);
    let kinds = changes.iter().map(|change| match change {
        Change::SaInstalled(record) => format!("sa {}", record.id.0),
        Change::PolicyInstalled(record) => format!("policy {}", record.index),
        Change::DefaultsChanged(defaults) => format!("forward {}", defaults.forward),
        other => panic!("{other:?}"),
    });
    let kinds: Vec<String> = kinds.collect();
    assert_eq!(kinds, ["sa 0", "policy 1", "policy 10", "forward 1"]);
    assert!(!server.has_changes(), "nothing is news to the journal");
}

#[test]
fn default_actions_outlive_the_process_with_nothing_installed() {
    let mut bench = Bench::new();
    let blocked = UserpolicyDefault { input: 0, forward: default_action::BLOCK, output: 0 };
    bench.accept(&Request::new(msg::SETDEFAULT, &blocked));
    let journal = touched(&mut bench.server);
    check(&bench.server, &journal);
    let (_, changes) = restored(&image(&bench.server));
    assert!(matches!(changes[..], [Change::DefaultsChanged(_)]));
}

/// A bench whose server goes on where the journal ends.
fn taken_over(bench: &Bench, journal: &[u8]) -> Bench {
    let (server, _) = restored(journal);
    let mut after = Bench { server, now: bench.now, ..Bench::new() };
    after.server.set_listeners(u32::MAX);
    after
}

#[test]
fn time_goes_on_where_it_was() {
    let mut bench = Bench::new();
    bench.accept(&rich_sa(1));
    bench.tick(100);
    let mut journal = touched(&mut bench.server);
    let mut after = taken_over(&bench, &journal);
    // Whoever listens has to notice first that the server is another one. Then the soft limit, which
    // was announced before the kill and may not have been heard, is announced again, and only once.
    assert_eq!(after.tick(48).events.len(), 0);
    assert_eq!(after.tick(1).events.len(), 0);
    assert_eq!(hardness(&after.tick(1)), [0]);
    assert_eq!(after.tick(1).events.len(), 0);
    assert_eq!(hardness(&after.tick(59)), [1], "the hard limit is met in time");
    assert_eq!(after.server.sizes(), (0, 0));
    journal.extend(touched(&mut after.server));
    assert_eq!(restored(&journal).0.sizes(), (0, 0));
}

#[test]
fn a_limit_that_passes_while_nobody_serves_is_announced_to_those_who_come_back() {
    let mut bench = Bench::new();
    bench.accept(&rich_sa(1));
    let journal = touched(&mut bench.server);
    let mut after = taken_over(&bench, &journal);
    assert_eq!(after.tick(150).events.len(), 0, "nobody can have come back yet");
    assert_eq!(after.server.next_deadline(), Some(after.now + 2));
    let beyond = counted(1 << 50, 1);
    let id = after.server.sad.ids().next().expect("the SA");
    after.figures.sas.insert(id, beyond);
    assert!(after.server.limit_reached(id, &after.figures).is_empty());
    after.figures.sas.clear();
    assert_eq!(hardness(&after.tick(2)), [0], "to rekey");
    assert_eq!(hardness(&after.tick(50)), [1]);
}

#[test]
fn reservations_and_acquires_outlive_the_process() {
    let mut bench = Bench::new();
    bench.accept(&allocate(0x100, 0x100));
    bench.accept(&new_policy("10.2.0.1", direction::OUT));
    let policy = bench.server.spd.policies().next().unwrap().0;
    let flow = Flow {
        addresses: ([10, 1, 0, 1].into(), [10, 2, 0, 1].into()),
        protocol: 17,
        ports: (1, 2),
        cpu: None,
    };
    bench.server.acquire(policy, &flow, bench.now, &bench.figures);
    let journal = touched(&mut bench.server);
    check(&bench.server, &journal);

    let (server, changes) = restored(&journal);
    assert_eq!(changes.len(), 1, "larval SAs are not the data plane's");
    let mut after = Bench { server, ..Bench::new() };
    assert!(after.server.acquire(policy, &flow, after.now, &after.figures).is_empty(), "asked");
    after.accept(&update_sa(0x100));
    assert!(matches!(after.changes()[..], [Change::SaInstalled(_)]));
    // Numbers go on: no SA or ACQUIRE takes the name of an earlier one.
    assert!(after.server.sad.next_id().0 > 2 && after.server.next_acquire() > 1);
}

#[test]
fn what_makes_no_sense_is_lost_and_forgotten() {
    let mut bench = Bench::new();
    bench.accept(&new_sa(0x1122_3344));
    bench.accept(&new_sa(2));
    let mut journal = touched(&mut bench.server);
    // The mode of the first SA's message becomes one that is not carried.
    let at = journal.windows(4).position(|w| w == 0x1122_3344u32.to_be_bytes()).unwrap();
    let mode_at = at + (214 - 72);
    assert_eq!(journal[mode_at], 1);
    journal[mode_at] = 200;
    let mut server = Server::new(Settings { cpus: 4, acquire_expires_s: 30, seed: 9 });
    let restored = server.restore(&entries(&journal));
    assert_eq!((restored.sas, restored.lost), (1, 1));
    assert!(server.has_changes(), "the journal learns that it is gone");
    journal.extend(touched(&mut server));
    assert_eq!(entries(&journal).sizes(), (1, 0));
}

#[test]
fn an_sa_without_a_place_does_not_come_back() {
    let mut bench = Bench::new();
    bench.accept(&new_sa(1));
    let mut out = Bytes::reusable(0);
    bench.server.write_touched(&(), &mut out);
    let mut server = Server::new(Settings::default());
    let restored = server.restore(&entries(&out));
    assert_eq!((restored.lost, restored.changes.len(), server.sizes()), (1, 0, (0, 0)));
}

#[test]
fn six_is_carried_like_four() {
    let mut bench = Bench::new();
    let v6 = new_sa(7).change(|info: &mut UsersaInfo| {
        info.family = AF_INET6;
        info.saddr = address("2001:db8::1");
        info.id.daddr = address("2001:db8::2");
    });
    bench.accept(&v6);
    let journal = touched(&mut bench.server);
    check(&bench.server, &journal);
}

proptest! {
    #[test]
    fn whatever_was_asked_the_journal_says_what_is(
        requests in vec(prop_oneof![soup().prop_map(|r| r.bytes()), nearly_good()], 1..60),
        seconds in 0u64..60,
    ) {
        let mut bench = Bench::new();
        let mut journal = Vec::new();
        for request in requests {
            bench.handle(&request);
            journal.extend(touched(&mut bench.server));
            bench.tick(seconds);
            journal.extend(touched(&mut bench.server));
        }
        check(&bench.server, &journal);
    }

    #[test]
    fn no_bytes_panic(bytes in vec(any::<u8>(), 0..600), at in any::<prop::sample::Index>()) {
        let mut server = Server::new(Settings::default());
        let mut any = Entries::default();
        let _ = any.add(&bytes);
        server.restore(&any);
        // The same in the place of good ones.
        let mut bench = Bench::new();
        bench.accept(&rich_sa(1));
        bench.accept(&new_policy("10.2.0.1", direction::OUT));
        let mut journal = touched(&mut bench.server);
        let at = at.index(journal.len());
        let len = bytes.len().min(journal.len() - at).min(8);
        journal[at..at + len].copy_from_slice(&bytes[..len]);
        let mut changed = Entries::default();
        let _ = changed.add(&journal);
        let mut server = Server::new(Settings::default());
        server.restore(&changed);
        assert!(super::super::spd::consistent(&server.spd));
    }
}
