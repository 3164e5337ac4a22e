//! A directory with a journal in it, through every way in which it can be left.

use super::*;
use crate::xfrm::{Change, Client, SaId, Settings};
use dataplane::ledger::Place;
use rustix::fs::{FlockOperation, flock};
use std::os::unix::fs::PermissionsExt;
use wire::xfrm::Builder;
use wire::xfrm::address::Be32;
use wire::xfrm::algorithm::{AlgorithmAead, Name};
use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::netlink::{Header, NLM_F_REQUEST};
use wire::xfrm::number::{AF_INET, IPPROTO_ESP, attr, default_action, mode, msg};
use wire::xfrm::policy::UserpolicyDefault;
use wire::xfrm::sa::{UsersaId, UsersaInfo};
use zerocopy::IntoBytes;

const BOOT: BootId = [3; 16];

struct Everywhere;

impl Places for Everywhere {
    fn place(&self, id: SaId) -> Option<Place> {
        Some(Place { cell: id.0 as u32, tag: id.0 + 1 })
    }
}

struct Fixture {
    epoch: u16,
    directory: tempfile::TempDir,
    server: Server,
    journal: Journal,
}

impl Fixture {
    fn new() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, mut left) = Journal::open(directory.path(), BOOT).unwrap();
        journal.take_up(&mut left, 1, |_| false).unwrap();
        assert!(!left.is_whole() && left.problem.is_none());
        let server = Server::new(Settings { seed: 1, ..Settings::default() });
        Fixture { epoch: 1, directory, server, journal }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("journal")
    }

    fn commit(&mut self) {
        self.server.take_changes();
        self.journal.commit(&mut self.server, &Everywhere);
    }

    fn handle(&mut self, kind: u16, fixed: &[u8], key: Option<&[u8]>) {
        let mut bytes = Vec::new();
        let header = Header { kind, flags: NLM_F_REQUEST, ..Header::default() };
        let mut message = Builder::new(&mut bytes, header).raw(fixed);
        if let Some(key) = key {
            message = message.attribute_parts(attr::ALG_AEAD, &[key]);
        }
        message.finish();
        let handled = self.server.handle(&Client::default(), &bytes, 1000, &());
        let refused =
            handled.deliveries.iter().any(|d| matches!(d, crate::xfrm::Delivery::Reply(_)));
        assert!(!refused);
        self.commit();
    }

    fn add(&mut self, spi: u32) {
        let mut info = UsersaInfo {
            saddr: std::net::IpAddr::from([192, 0, 2, 1]).into(),
            lft: LifetimeConfig::UNLIMITED,
            family: AF_INET,
            mode: mode::TUNNEL,
            ..UsersaInfo::default()
        };
        info.id.daddr = std::net::IpAddr::from([192, 0, 2, 2]).into();
        info.id.spi = Be32::new(spi);
        info.id.proto = IPPROTO_ESP;
        let head =
            AlgorithmAead { name: Name::new("rfc4106(gcm(aes))"), key_len: 160, icv_len: 128 };
        let key = [head.as_bytes(), &[7; 20]].concat();
        self.handle(msg::NEWSA, info.as_bytes(), Some(&key));
    }

    fn delete(&mut self, spi: u32) {
        let id = UsersaId {
            daddr: std::net::IpAddr::from([192, 0, 2, 2]).into(),
            spi: Be32::new(spi),
            family: AF_INET,
            proto: IPPROTO_ESP,
            pad: 0,
        };
        self.handle(msg::DELSA, id.as_bytes(), None);
    }

    /// The process dies, which gives back its lock and does nothing else, and another takes up what is there.
    fn killed(&mut self) -> Left {
        self.epoch += 1;
        flock(&self.journal.ledger, FlockOperation::Unlock).unwrap();
        let (mut journal, mut left) = Journal::open(self.directory.path(), BOOT).unwrap();
        let before = u32::from(self.epoch) - 1;
        journal.take_up(&mut left, self.epoch, |last| last == before).unwrap();
        // Dropped, it would remove what it has never used.
        std::mem::forget(std::mem::replace(&mut self.journal, journal));
        self.server = Server::new(Settings { seed: 1, ..Settings::default() });
        let restored = self.server.restore(&left.entries());
        assert_eq!(restored.lost, 0);
        left
    }

    fn spis(&mut self) -> Vec<u32> {
        let mut server = Server::new(Settings::default());
        let restored = server.restore(&self.read().entries());
        let spi = |change: &crate::xfrm::Change| match change {
            crate::xfrm::Change::SaInstalled(record) => Some(record.parameters.spi()),
            _ => None,
        };
        restored.changes.iter().filter_map(spi).collect()
    }

    /// What the next process would find.
    fn read(&self) -> Left {
        let mut left = Left::read(self.directory.path(), BOOT).unwrap();
        let last = u32::from(self.epoch);
        left.sort_out(self.directory.path(), |epoch| epoch == last).unwrap();
        left
    }

    fn bad(&self) -> Vec<(u64, PathBuf)> {
        store::bad_files(self.directory.path())
    }
}

#[test]
fn what_was_answered_is_there_after_any_number_of_kills() {
    let mut fixture = Fixture::new();
    assert!(!fixture.path().exists(), "a start that installs nothing leaves nothing");
    for spi in 1..20 {
        fixture.add(spi);
        assert!(fixture.killed().is_whole());
        if spi % 3 == 0 {
            fixture.delete(spi - 1);
        }
    }
    let expected: Vec<u32> = (1..20).filter(|spi| spi % 3 != 2 || *spi == 20).collect();
    assert_eq!(fixture.spis(), expected);
    assert!(fixture.bad().is_empty());
}

#[test]
fn the_file_is_for_its_owner_only_and_goes_with_a_clean_stop() {
    let mut fixture = Fixture::new();
    fixture.add(1);
    let mode = std::fs::metadata(fixture.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let Fixture { directory, journal, .. } = fixture;
    journal.end().unwrap();
    assert!(!directory.path().exists(), "nothing was left in it");
}

#[test]
fn cut_anywhere_the_prefix_is_used_and_the_rest_set_aside() {
    let mut fixture = Fixture::new();
    // As the pid file does, which keeps a run directory there when a journal goes.
    std::fs::write(fixture.directory.path().join("pid"), "1").unwrap();
    let mut sizes = vec![];
    for spi in 1..6 {
        fixture.add(spi);
        sizes.push(std::fs::metadata(fixture.path()).unwrap().len());
    }
    let whole = std::fs::read(fixture.path()).unwrap();
    for len in (0..whole.len()).step_by(7) {
        std::fs::write(fixture.path(), &whole[..len]).unwrap();
        // Written by the process before the one that reads it.
        fixture.epoch = 1;
        let before = fixture.bad();
        let left = fixture.killed();
        let frames = sizes.iter().filter(|size| **size <= len as u64).count() as u32;
        assert_eq!(fixture.spis(), (1..=frames).collect::<Vec<_>>(), "cut at {len}");
        // The good part is a whole journal now, and the rest is where it is said to be.
        let rest = left.set_aside.as_ref().map_or(Vec::new(), |path| std::fs::read(path).unwrap());
        let good =
            if fixture.path().exists() { std::fs::read(fixture.path()).unwrap() } else { vec![] };
        // It begins with what was good, and then says who took it up.
        let was_good = len - rest.len();
        assert!(good.starts_with(&whole[..was_good]) && whole[..len].ends_with(&rest), "{len}");
        assert!(was_good == 0 || good.len() > was_good);
        assert_eq!(left.problem.is_some(), left.set_aside.is_some());
        assert!(fixture.bad().len() <= 4 && (left.problem.is_none() || fixture.bad() != before));
        assert!(fixture.killed().problem.is_none(), "once is enough");
        // It goes on from there.
        fixture.add(77);
        assert_eq!(fixture.spis().last(), Some(&77));
    }
}

#[test]
fn another_version_and_another_boot_are_set_aside_whole() {
    let mut fixture = Fixture::new();
    fixture.add(1);
    let whole = std::fs::read(fixture.path()).unwrap();
    for (at, problem) in [(8, "format"), (16, "boot"), (0, "begin")] {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        if at == 16 {
            // As that boot's process wrote it.
            let mut boot = BOOT;
            boot[0] ^= 0x40;
            bytes[..frame::header(boot, 1).as_ref().len()]
                .copy_from_slice(frame::header(boot, 1).as_ref());
        }
        std::fs::write(fixture.path(), &bytes).unwrap();
        fixture.epoch = 1;
        let left = fixture.killed();
        assert!(left.problem.unwrap().to_string().contains(problem), "{:?}", left.problem);
        assert_eq!(std::fs::read(left.set_aside.unwrap()).unwrap(), bytes);
        assert!(!fixture.path().exists() && !left_is_usable(&fixture));
    }
}

fn left_is_usable(fixture: &Fixture) -> bool {
    fixture.read().is_whole()
}

#[test]
fn a_journal_that_a_run_knew_nothing_of_is_not_taken_up() {
    let mut fixture = Fixture::new();
    fixture.add(1);
    assert!(fixture.killed().is_whole());
    fixture.journal.set_epoch(fixture.epoch + 1);
    fixture.epoch += 1;
    assert!(fixture.killed().is_whole(), "epochs that were claimed meanwhile are in it");
    // A gateway without a journal claimed one.
    fixture.epoch += 1;
    assert_eq!(fixture.killed().problem, Some(Problem::OtherRun));
    assert!(!fixture.path().exists());
}

#[test]
fn a_start_that_is_killed_before_it_takes_up_the_journal_changes_nothing() {
    let mut fixture = Fixture::new();
    std::fs::write(fixture.directory.path().join("pid"), "1").unwrap();
    fixture.add(1);
    fixture.journal.ledger.write_all(b"numbers").unwrap();
    let mut file = File::options().append(true).open(fixture.path()).unwrap();
    for cut in [&[][..], &[0, 0, 1][..]] {
        file.write_all(cut).unwrap();
        let files = |fixture: &Fixture| {
            let read = |name| std::fs::read(fixture.directory.path().join(name)).unwrap();
            (read("journal"), read("ledger"))
        };
        let before = files(&fixture);
        flock(&fixture.journal.ledger, FlockOperation::Unlock).unwrap();
        drop(Journal::open(fixture.directory.path(), BOOT).unwrap());
        assert_eq!(files(&fixture), before);
        assert!(fixture.bad().is_empty());
    }
    let left = fixture.killed();
    assert_eq!((left.problem, left.good_len() != 0), (Some(Problem::Cut), true));
}

#[test]
fn garbage_is_written_out_of_it_while_changes_go_on() {
    let mut fixture = Fixture::new();
    (1..=500).for_each(|spi| fixture.add(spi));
    let mut largest = 0;
    for round in 0..30_000u32 {
        let spi = 1000 + round;
        fixture.add(spi);
        fixture.delete(spi);
        largest = largest.max(fixture.journal.health().bytes);
        if round % 9_001 == 0 {
            // A kill at whatever the journal is doing loses nothing.
            fixture.killed();
            assert_eq!(fixture.server.sizes().0, 500);
        }
    }
    fixture.delete(500);
    assert_eq!(fixture.spis(), (1..500).collect::<Vec<_>>());
    // 60 000 changes of some 600 bytes were written; a journal is never much more than its slack.
    assert!(largest < 12 << 20, "{largest} bytes");
}

#[test]
fn an_idle_gateway_finishes_what_was_begun() {
    let mut fixture = Fixture::new();
    (1..=200).for_each(|spi| fixture.add(spi));
    while fixture.journal.anew.is_none() {
        fixture.add(1000);
        fixture.delete(1000);
    }
    let before = fixture.journal.health().bytes;
    while fixture.journal.anew.is_some() {
        fixture.journal.turn(&fixture.server, &Everywhere);
    }
    assert!(fixture.journal.health().bytes < before / 10);
    assert_eq!(fixture.spis().len(), 200);
}

#[test]
fn a_journal_that_cannot_be_written_is_removed_and_comes_back() {
    let mut fixture = Fixture::new();
    (1..=100).for_each(|spi| fixture.add(spi));
    // A descriptor that refuses every write, as a full file system does.
    let path = fixture.path();
    fixture.journal.log.as_mut().unwrap().file = File::open(path).unwrap();
    fixture.add(101);
    assert!(fixture.journal.health().broken.is_some());
    assert!(!fixture.path().exists(), "a journal that is not true any more is not left behind");
    fixture.add(102);
    assert!(!fixture.path().exists());
    // Later there is space again.
    fixture.journal.broken.as_mut().unwrap().1 = Instant::now().checked_sub(RETRY * 2).unwrap();
    while fixture.journal.health().broken.is_some() {
        fixture.journal.turn(&fixture.server, &Everywhere);
    }
    assert_eq!(fixture.spis(), (1..=102).collect::<Vec<_>>());
}

#[test]
fn a_default_of_block_outlives_a_journal_that_was_written_anew_with_nothing_installed() {
    let mut fixture = Fixture::new();
    fixture.journal.keys_stay = Duration::ZERO;
    let defaults = UserpolicyDefault { input: 0, forward: default_action::BLOCK, output: 0 };
    fixture.handle(msg::SETDEFAULT, defaults.as_bytes(), None);
    fixture.add(1);
    let before = fixture.journal.health().bytes;
    fixture.delete(1);
    (0..5).for_each(|_| fixture.journal.turn(&fixture.server, &Everywhere));
    assert!(fixture.journal.health().bytes < before, "it was written anew");
    let left = fixture.killed();
    assert!(left.is_whole());
    let mut server = Server::new(Settings::default());
    let changes = server.restore(&left.entries()).changes;
    let blocked = |change: &Change| match change {
        Change::DefaultsChanged(defaults) => defaults.forward == default_action::BLOCK,
        _ => false,
    };
    assert!(changes.iter().any(blocked), "{changes:?}");
}

#[test]
fn a_journal_that_does_not_say_the_default_actions_is_not_whole() {
    let mut fixture = Fixture::new();
    // Nothing but a header, and an epoch of who took it up: as a kill left it, or an earlier version.
    let header = frame::header(BOOT, 1);
    std::fs::write(fixture.path(), header.as_ref()).unwrap();
    fixture.journal.log = Some(Log {
        file: File::options().append(true).open(fixture.path()).unwrap(),
        entries: 0,
        bytes: header.as_ref().len() as u64,
    });
    fixture.epoch = 2;
    fixture.journal.set_epoch(2);
    let left = fixture.killed();
    assert!(!left.is_whole(), "the guard holds what it held");
    assert_eq!(left.problem, Some(Problem::Empty));
    assert!(!fixture.path().exists());
    fixture.add(1);
    assert!(fixture.killed().is_whole());
}

/// Two gateways of one name whose run directories differ may share a directory for journals.
#[test]
fn who_comes_to_a_journal_that_is_in_use_touches_nothing() {
    let mut fixture = Fixture::new();
    fixture.add(1);
    let files = |fixture: &Fixture| {
        let entries = std::fs::read_dir(fixture.directory.path()).unwrap();
        let mut files: Vec<_> = entries
            .map(|entry| entry.unwrap().path())
            .map(|path| (std::fs::read(&path).unwrap(), path))
            .collect();
        files.sort();
        files
    };
    let before = files(&fixture);
    let refused = Journal::open(fixture.directory.path(), BOOT).err().unwrap();
    assert!(refused.to_string().contains("another process"), "{refused}");
    assert_eq!(files(&fixture), before);
    fixture.add(2);
    assert_eq!(fixture.spis(), [1, 2]);
}

#[test]
fn the_key_of_an_sa_that_is_gone_does_not_stay_in_a_journal_that_was_cut() {
    let mut fixture = Fixture::new();
    fixture.add(1);
    fixture.delete(1);
    fixture.add(2);
    let mut file = File::options().append(true).open(fixture.path()).unwrap();
    file.write_all(&[0, 0, 1]).unwrap();
    let left = fixture.killed();
    assert!(!left.is_whole() && left.good_len() != 0);
    fixture.journal.keys_stay = Duration::ZERO;
    let before = fixture.journal.health().bytes;
    (0..5).for_each(|_| fixture.journal.turn(&fixture.server, &Everywhere));
    assert!(fixture.journal.health().bytes < before, "it was written anew");
    assert_eq!(fixture.spis(), [2]);
}

#[test]
fn the_key_of_an_sa_that_is_gone_does_not_stay() {
    let mut fixture = Fixture::new();
    fixture.journal.keys_stay = Duration::ZERO;
    for spi in 0x100..0x200 {
        fixture.add(spi);
    }
    let size = |fixture: &Fixture| std::fs::metadata(fixture.path()).unwrap().len();
    let turns = |fixture: &mut Fixture| {
        (0..50).for_each(|_| fixture.journal.turn(&fixture.server, &Everywhere));
    };
    let full = size(&fixture);
    turns(&mut fixture);
    assert_eq!(size(&fixture), full, "nothing is gone, so nothing is written");
    for spi in 0x100..0x1f0 {
        fixture.delete(spi);
    }
    turns(&mut fixture);
    assert!(size(&fixture) < full / 8, "{} of {full} bytes", size(&fixture));
    let written = size(&fixture);
    turns(&mut fixture);
    assert_eq!(size(&fixture), written);
}
