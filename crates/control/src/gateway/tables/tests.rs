//! Requests to a real XFRM server, and what the tables make of its changes.

mod moving;
mod slots;
mod wiped;

use std::net::IpAddr;

use super::*;
use crate::gateway::backstop::Backstop;
use crate::xfrm::{Client, Counters, Server, Settings};
use dataplane::transport::Ends;
use wire::xfrm::Builder;
use wire::xfrm::address::{Be32, Selector as WireSelector};
use wire::xfrm::algorithm::{AlgorithmAead, Name};
use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::netlink::{Header, NLM_F_REPLACE, NLM_F_REQUEST};
use wire::xfrm::number::{
    AF_INET, IPPROTO_ESP, action, attr, default_action, direction, mode, msg,
};
use wire::xfrm::policy::{UserMigrate, UserTmpl, UserpolicyDefault, UserpolicyId, UserpolicyInfo};
use wire::xfrm::replay::ReplayState;
use wire::xfrm::sa::{AeventId, UsersaId, UsersaInfo};
use zerocopy::{Immutable, IntoBytes};

const WEST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const EAST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

/// An SA that parts, and what is done with it.
type Last = (Arc<Sa>, fn(&Sa));

/// A server and the tables behind it, in a directory that outlives them.
struct Fixture {
    server: Server,
    tables: Tables,
    view: View,
    /// Every byte of new SAs' keys.
    key: u8,
    /// Limits of new SAs.
    limits: LifetimeConfig,
    /// What workers do with an SA, by an earlier view, until it has parted.
    last: Option<Last>,
}

impl Fixture {
    fn start(directory: &std::path::Path) -> Fixture {
        let (guard, left) = Guard::open(directory, Backstop::absent()).unwrap();
        let mut epoch = 0;
        let nonces = NonceSpace::new(move || {
            epoch += 1;
            Ok(epoch)
        });
        let mut view = View::default();
        let clock = Clock;
        let tables = Tables::new(Engine::AwsLc, nonces.unwrap(), clock, guard, &left, &mut view);
        let mut server = Server::new(Settings { cpus: 8, ..Settings::default() });
        server.set_listeners(0);
        Fixture { server, tables, view, key: 7, limits: LifetimeConfig::UNLIMITED, last: None }
    }

    /// Sends a request, and brings what it changed into the view.
    fn send<T: IntoBytes + Immutable>(&mut self, kind: u16, fixed: &T, rest: &[(u16, &[u8])]) {
        self.ask(kind, fixed, rest);
        if kind != msg::GETAE {
            self.follow();
        }
    }

    /// Sends a request.
    fn ask<T: IntoBytes + Immutable>(&mut self, kind: u16, fixed: &T, rest: &[(u16, &[u8])]) {
        let flags = NLM_F_REQUEST | if kind == msg::NEWAE { NLM_F_REPLACE } else { 0 };
        let mut bytes = Vec::new();
        let header = Header { kind, flags, seq: 1, ..Header::default() };
        let mut message = Builder::new(&mut bytes, header).fixed(fixed);
        for (kind, value) in rest {
            message = message.attribute_parts(*kind, &[value]);
        }
        message.finish();
        let handled = self.server.handle(&Client::default(), &bytes, 1_700_000_000, &self.tables);
        if kind != msg::GETAE {
            // Nobody listens and no acknowledgement was asked for, so only a refusal is answered.
            assert!(handled.deliveries.is_empty(), "refused: {kind:#x}");
            assert!(self.server.has_changes(), "{kind:#x} changed nothing");
        }
    }

    /// Brings what requests changed into the view.
    fn follow(&mut self) {
        let changes = self.server.take_changes();
        if self.tables.part(&changes, &mut self.view) {
            let (sa, act) = self.last.take().expect("nothing else parts");
            assert!(self.view.sad.get(sa.spi(), sa.destination()).is_none(), "out of force");
            act(&sa);
        }
        self.tables.apply(&changes, &mut self.view).unwrap();
    }

    fn add_sa(&mut self, spi: u32, reqid: u32) {
        self.add_sa_of(spi, reqid, mode::TUNNEL, None);
    }

    fn add_sa_of_mode(&mut self, spi: u32, reqid: u32, mode: u8) {
        self.add_sa_of(spi, reqid, mode, None);
    }

    /// With its mode, and the CPU that it is bound to.
    fn add_sa_of(&mut self, spi: u32, reqid: u32, mode: u8, cpu: Option<u32>) {
        let cpu = cpu.map(u32::to_ne_bytes);
        let more: Vec<(u16, &[u8])> = cpu.iter().map(|cpu| (attr::SA_PCPU, &cpu[..])).collect();
        self.send_sa(msg::NEWSA, spi, reqid, EAST, mode, &more);
    }

    fn send_sa(
        &mut self,
        kind: u16,
        spi: u32,
        reqid: u32,
        to: IpAddr,
        mode: u8,
        more: &[(u16, &[u8])],
    ) {
        let mut info = UsersaInfo {
            saddr: WEST.into(),
            lft: self.limits,
            reqid,
            family: AF_INET,
            mode,
            ..UsersaInfo::default()
        };
        info.id.daddr = to.into();
        info.id.spi = Be32::new(spi);
        info.id.proto = IPPROTO_ESP;
        let head =
            AlgorithmAead { name: Name::new("rfc4106(gcm(aes))"), key_len: 160, icv_len: 128 };
        let key = [head.as_bytes(), &[self.key; 20]].concat();
        let rest = [&[(attr::ALG_AEAD, &key[..])], more].concat();
        self.send(kind, &info, &rest);
    }

    fn delete_sa(&mut self, spi: u32) {
        self.send(msg::DELSA, &sa_name(spi), &[]);
    }

    /// The SPIs that workers 0 and 1 seal with.
    fn chosen_by_each(&self) -> [Option<u32>; 2] {
        let slot = self.tables.slots.numbers().next().unwrap();
        [0, 1].map(|worker| self.view.bundles.choose(slot, worker).map(|(sa, _)| sa.config().spi))
    }

    fn sa(&self, spi: u32) -> &InstalledSa {
        self.tables.sa_of(self.name(spi)).unwrap()
    }

    fn name(&self, spi: u32) -> SaId {
        self.tables.sas().find(|(_, one)| one.sa.config().spi == spi).unwrap().0
    }

    /// The SA that flows of the only protect policy leave by.
    fn chosen(&self) -> Option<u32> {
        let slot = self.tables.slots.numbers().next().unwrap();
        self.view.bundles.get(slot).map(|sa| sa.config().spi)
    }
}

fn sa_name(spi: u32) -> UsersaId {
    sa_id(spi, EAST)
}

fn wire_selector() -> WireSelector {
    WireSelector {
        saddr: IpAddr::from([16, 0, 0, 0]).into(),
        daddr: IpAddr::from([48, 0, 0, 0]).into(),
        prefixlen_s: 8,
        prefixlen_d: 8,
        family: AF_INET,
        ..WireSelector::default()
    }
}

fn policy(action: u8) -> UserpolicyInfo {
    UserpolicyInfo {
        sel: wire_selector(),
        lft: LifetimeConfig::UNLIMITED,
        dir: direction::OUT,
        action,
        ..UserpolicyInfo::default()
    }
}

fn template(reqid: u32) -> UserTmpl {
    let mut template = UserTmpl {
        family: AF_INET,
        saddr: WEST.into(),
        reqid,
        mode: mode::TUNNEL,
        aalgos: u32::MAX,
        ealgos: u32::MAX,
        calgos: u32::MAX,
        ..UserTmpl::default()
    };
    template.id.daddr = EAST.into();
    template.id.proto = IPPROTO_ESP;
    template
}

fn sa_id(spi: u32, to: IpAddr) -> UsersaId {
    UsersaId { daddr: to.into(), spi: Be32::new(spi), family: AF_INET, proto: IPPROTO_ESP, pad: 0 }
}

fn policy_id() -> UserpolicyId {
    UserpolicyId { sel: wire_selector(), dir: direction::OUT, ..UserpolicyId::default() }
}

#[test]
fn a_policy_without_reqid_takes_no_other_tunnels_sa() {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Fixture::start(directory.path());
    gateway.send(msg::NEWPOLICY, &policy(action::ALLOW), &[(attr::TMPL, template(0).as_bytes())]);
    gateway.add_sa(0x101, 7);
    assert_eq!(gateway.chosen(), None, "the SA of reqid 7 is another tunnel's");
    gateway.add_sa(0x102, 0);
    assert_eq!(gateway.chosen(), Some(0x102));
}

#[test]
fn a_policy_for_marked_packets_takes_no_slot() {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Fixture::start(directory.path());
    let (template, mark) = (template(1), [5_u32, 0xff].as_bytes().to_vec());
    let rest = [(attr::TMPL, template.as_bytes()), (attr::MARK, &mark[..])];
    gateway.send(msg::NEWPOLICY, &policy(action::ALLOW), &rest);
    assert_eq!(gateway.tables.slots.numbers().count(), 0, "nobody would give it back");
}

#[test]
fn the_newest_sa_of_the_reqid_is_taken_and_the_older_when_it_goes() {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Fixture::start(directory.path());
    gateway.send(msg::NEWPOLICY, &policy(action::ALLOW), &[(attr::TMPL, template(7).as_bytes())]);
    for spi in [0x103, 0x101, 0x102] {
        gateway.add_sa(spi, 7);
        assert_eq!(gateway.chosen(), Some(spi));
    }
    gateway.delete_sa(0x102);
    assert_eq!(gateway.chosen(), Some(0x101));
}

#[test]
fn sas_of_cpus_go_to_their_workers_and_outlive_the_one_for_all() {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Fixture::start(directory.path());
    gateway.tables = gateway.tables.with_cores(&[5, 2]);
    gateway.send(msg::NEWPOLICY, &policy(action::ALLOW), &[(attr::TMPL, template(7).as_bytes())]);
    gateway.add_sa(0x100, 7);
    assert_eq!(gateway.chosen_by_each(), [Some(0x100); 2]);
    gateway.add_sa_of(0x102, 7, mode::TUNNEL, Some(2));
    assert_eq!(gateway.chosen_by_each(), [Some(0x100), Some(0x102)], "CPU 2 is worker 1");
    // CPU 0 runs no worker: worker 0 uses its SA, until there is a newer one.
    gateway.add_sa_of(0x105, 7, mode::TUNNEL, Some(0));
    assert_eq!(gateway.chosen_by_each(), [Some(0x105), Some(0x102)]);
    gateway.add_sa_of(0x103, 7, mode::TUNNEL, Some(5));
    assert_eq!(gateway.chosen_by_each(), [Some(0x103), Some(0x102)]);
    // A rekey: the successor at once, the old one opens until it is deleted.
    gateway.add_sa_of(0x202, 7, mode::TUNNEL, Some(2));
    assert_eq!(gateway.chosen_by_each(), [Some(0x103), Some(0x202)]);
    assert!(gateway.view.sad.get(0x102, EAST).is_some());
    gateway.delete_sa(0x102);
    gateway.delete_sa(0x103);
    assert_eq!(gateway.chosen_by_each(), [Some(0x105), Some(0x202)]);
    // The SA for all goes: the others stay, and a worker without has none.
    gateway.delete_sa(0x100);
    assert_eq!(gateway.chosen_by_each(), [Some(0x105), Some(0x202)]);
    gateway.delete_sa(0x105);
    assert_eq!(gateway.chosen_by_each(), [None, Some(0x202)]);
    assert_eq!(gateway.sa(0x202).worker, Some(1));
}

#[test]
fn an_sa_for_which_no_epoch_can_be_claimed_is_in_force_and_seals_once_one_can() {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Fixture::start(directory.path());
    let mut claims = 0;
    let nonces = NonceSpace::new(move || {
        claims += 1;
        if claims == 2 { Err(io::Error::other("read-only")) } else { Ok(claims) }
    });
    gateway.tables.nonces = nonces.unwrap();
    while gateway.tables.nonces.take_block().is_some() {}
    gateway.send(msg::NEWPOLICY, &policy(action::ALLOW), &[(attr::TMPL, template(7).as_bytes())]);
    gateway.add_sa(0x101, 7);
    assert_eq!(gateway.chosen(), Some(0x101));
    assert!(gateway.view.sad.get(0x101, EAST).is_some());
    let sa = gateway.sa(0x101).sa.clone();
    assert!(sa.take_numbers().is_err());
    gateway.tables.nonces.replenish(1).unwrap();
    assert_eq!(sa.take_numbers().unwrap().1 >> 48, 3, "with the next epoch");
}

#[test]
fn an_sa_past_a_soft_limit_gives_way_to_one_that_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Fixture::start(directory.path());
    gateway.send(msg::NEWPOLICY, &policy(action::ALLOW), &[(attr::TMPL, template(7).as_bytes())]);
    for spi in [0x101, 0x102] {
        gateway.add_sa(spi, 7);
    }
    let newest = gateway.name(0x102);
    gateway.tables.apply(&[Change::SaDying(newest)], &mut gateway.view).unwrap();
    assert_eq!(gateway.chosen(), Some(0x101));
    gateway.delete_sa(0x101);
    assert_eq!(gateway.chosen(), Some(0x102), "better than none");
    gateway.add_sa(0x103, 7);
    assert_eq!(gateway.chosen(), Some(0x103));
    gateway.delete_sa(0x103);
    assert_eq!(gateway.chosen(), Some(0x102));
}

#[test]
fn an_sa_that_moves_goes_on_with_its_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Fixture::start(directory.path());
    gateway.send(msg::NEWPOLICY, &policy(action::ALLOW), &[(attr::TMPL, template(7).as_bytes())]);
    gateway.add_sa(0x101, 7);
    let before = gateway.sa(0x101).sa.clone();
    let (sequence, iv) = before.take_numbers().unwrap();
    let south = IpAddr::from([192, 0, 2, 77]);
    let entry = UserMigrate {
        old_daddr: EAST.into(),
        old_saddr: WEST.into(),
        new_daddr: south.into(),
        new_saddr: WEST.into(),
        proto: IPPROTO_ESP,
        mode: mode::TUNNEL,
        reqid: 7,
        old_family: AF_INET,
        new_family: AF_INET,
        ..UserMigrate::default()
    };
    gateway.send(msg::MIGRATE, &policy_id(), &[(attr::MIGRATE, entry.as_bytes())]);
    let after = gateway.sa(0x101).sa.clone();
    assert!(after.same_runtime(&before));
    assert_eq!((after.config().source, after.config().destination), (WEST, south));
    // Workers on the old view and on the new one take no number twice.
    let (next, next_iv) = after.take_numbers().unwrap();
    assert!(next == sequence + 1 && next_iv != iv);
    assert!(before.take_numbers().unwrap().0 == next + 1);
    assert!(gateway.view.sad.get(0x101, EAST).is_none());
    assert!(gateway.view.sad.get(0x101, south).is_some());
    assert_eq!(gateway.chosen(), Some(0x101), "by the policy's new template");
    assert_eq!(gateway.tables.slots.numbers().count(), 1);
}

#[test]
fn an_update_leads_an_sa_into_another_tunnel() {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Fixture::start(directory.path());
    let tunnel = 9u32.to_ne_bytes();
    let template = template(7);
    let parts = [(attr::TMPL, template.as_bytes()), (attr::IF_ID, &tunnel[..])];
    gateway.send(msg::NEWPOLICY, &policy(action::ALLOW), &parts);
    gateway.add_sa(0x101, 7);
    assert_eq!(gateway.chosen(), None, "it is no tunnel's");
    let more = [(attr::IF_ID, &tunnel[..])];
    gateway.send_sa(msg::UPDSA, 0x101, 7, EAST, mode::TUNNEL, &more);
    assert_eq!(gateway.chosen(), Some(0x101));
    assert_eq!(gateway.view.sad.get(0x101, EAST).unwrap().if_id(), 9);
}

#[test]
fn new_sequence_numbers_leave_an_sas_counters_alone() {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Fixture::start(directory.path());
    gateway.add_sa(0x101, 7);
    let added_ns = gateway.sa(0x101).sa.stats().added_ns;
    let sa_id = sa_name(0x101);
    let wanted = AeventId { sa_id, saddr: WEST.into(), flags: 0, reqid: 7 };
    let numbers = ReplayState { oseq: 90, seq: 80, bitmap: 1 };
    gateway.send(msg::NEWAE, &wanted, &[(attr::REPLAY_VAL, numbers.as_bytes())]);
    let stats = gateway.sa(0x101).sa.stats();
    assert_eq!((stats.sent, stats.received), (90, 80));
    // What else goes on with it is tested where SAs are.
    assert_eq!(stats.added_ns, added_ns, "the life of the SA goes on");
    let listed = gateway.view.sad.get(0x101, EAST).unwrap();
    assert!(listed.same_runtime(&gateway.sa(0x101).sa));
}

#[test]
fn what_was_blocked_before_a_crash_is_blocked_until_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Fixture::start(directory.path());
    gateway.send(msg::NEWPOLICY, &policy(action::BLOCK), &[]);
    drop(gateway);

    let mut gateway = Fixture::start(directory.path());
    let discards =
        |view: &View| view.spd.iter().filter(|one| one.config().action == Action::Discard).count();
    assert_eq!(discards(&gateway.view), 1, "held by the guard");
    gateway.send(msg::NEWPOLICY, &policy(action::BLOCK), &[]);
    assert_eq!(discards(&gateway.view), 2);
    gateway.send(msg::DELPOLICY, &policy_id(), &[]);
    assert!(gateway.view.spd.is_empty(), "the operator took it back");
}

#[test]
fn a_default_of_block_outlives_a_crash_until_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let defaults = |out| UserpolicyDefault { input: 0, forward: 0, output: out };
    let mut gateway = Fixture::start(directory.path());
    gateway.send(msg::SETDEFAULT, &defaults(default_action::BLOCK), &[]);
    drop(gateway);

    let mut gateway = Fixture::start(directory.path());
    let selectors = |view: &View| {
        let mut held: Vec<_> = view.spd.iter().map(|one| one.config().selector).collect();
        held.sort_by_key(|selector| selector.family() as u8);
        held
    };
    assert_eq!(selectors(&gateway.view), [Selector::any(Family::V4), Selector::any(Family::V6)]);
    gateway.send(msg::SETDEFAULT, &defaults(default_action::BLOCK), &[]);
    gateway.send(msg::SETDEFAULT, &defaults(default_action::ACCEPT), &[]);
    assert!(gateway.view.spd.is_empty());
    assert_eq!(gateway.view.spd.default_action(Direction::Out), DefaultAction::Accept);
}

#[test]
fn in_transport_mode_packets_find_the_newest_sa_between_their_ends() {
    let directory = tempfile::tempdir().unwrap();
    let mut gateway = Fixture::start(directory.path());
    let chosen = |gateway: &Fixture, spi| {
        let ends = Ends { source: WEST, destination: EAST, if_id: 0, reqid: 7, spi };
        let slot = gateway.view.transport.get(&ends)?;
        gateway.view.bundles.get(*slot).map(|sa| sa.config().spi)
    };
    assert_eq!(chosen(&gateway, 0), None);
    for spi in [0x101, 0x102] {
        gateway.add_sa_of_mode(spi, 7, mode::TRANSPORT);
        assert_eq!((chosen(&gateway, 0), chosen(&gateway, spi)), (Some(spi), Some(spi)));
    }
    // A tunnel's SA between the same ends is another thing.
    gateway.add_sa(0x103, 7);
    assert_eq!(chosen(&gateway, 0), Some(0x102));
    gateway.delete_sa(0x102);
    assert_eq!((chosen(&gateway, 0), chosen(&gateway, 0x102)), (Some(0x101), None));
    gateway.delete_sa(0x101);
    assert_eq!(chosen(&gateway, 0), None);
    assert!(gateway.view.transport.is_empty() && gateway.tables.slots.numbers().next().is_none());
}
