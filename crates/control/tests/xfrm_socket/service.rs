//! What a program may expect.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use control::xfrm::{Clients, SocketError};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, socket};
use wire::xfrm::address::Selector;
use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::netlink::{Datagram, Header, NLM_F_ACK, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP};
use wire::xfrm::number::{AF_INET, group, msg};
use wire::xfrm::policy::UserpolicyInfo;
use wire::xfrm::sa::UsersaInfo;
use wire::xfrm::shim;
use zerocopy::IntoBytes;

use crate::world::*;

#[test]
fn only_the_owner_may_enter() {
    let world = World::new();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&world.path), 0o600);
    assert_eq!(mode(world.path.parent().unwrap()), 0o700);

    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o750)).unwrap();
    let error = Clients::bind(&directory.path().join("xfrm.sock")).err().unwrap();
    assert!(matches!(error, SocketError::OpenDirectory(_, 0o750, _)), "{error}");
}

#[test]
fn a_socket_in_use_is_left_alone_and_a_stale_one_replaced() {
    let world = World::new();
    let error = Clients::bind(&world.path).err().unwrap();
    assert!(matches!(error, SocketError::InUse(_)), "{error}");
    let path = world.path.clone();
    assert!(path.exists());
    let World { directory, clients, .. } = world;
    drop(clients);
    assert!(!path.exists(), "a server cleans up after itself");
    // A socket file whose server was killed.
    let stale = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&stale, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    drop(stale);
    assert!(path.exists());
    Clients::bind(&path).unwrap();
    drop(directory);
}

#[test]
fn replies_carry_the_bound_port_and_come_before_the_next_request_is_read() {
    let mut world = World::new();
    let program = world.connect();
    program.bind(4711, 0);
    program.send(&new_sa(1));
    program.send(&new_sa(1));
    program.send(&flush());
    world.settle();
    let first = program.receive().unwrap();
    assert_eq!((header(&first).pid, header(&first).kind), (4711, NLMSG_ERROR));
    assert_eq!(program.errno(), -Errno::EXIST.raw_os_error());
    assert_eq!(program.errno(), 0);
    assert!(program.receive().is_none());
}

#[test]
fn a_frame_that_asks_for_nothing_ends_the_turn() {
    let mut world = World::new();
    let program = world.connect();
    let pause = Header { len: 16, kind: NLMSG_NOOP, ..Header::default() };
    program.send(&new_sa(1));
    program.send(pause.as_bytes());
    program.send(pause.as_bytes());
    world.turn();
    assert_eq!(program.errno(), 0);
    assert!(readable(&world.clients), "what comes after is taken when the answer was sent");
    world.turn();
    assert!(!readable(&world.clients) && program.receive().is_none());
}

#[test]
fn options_change_what_errors_hold() {
    let mut world = World::new();
    let program = world.connect();
    let bad = request(msg::NEWSA, 0, UsersaInfo::default().as_bytes());
    let text = b"Invalid address family";
    let has_text = |bytes: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    for (option, on, with_text, quoted) in [
        (0, 0, false, true),
        (shim::OPTION_EXT_ACK, 1, true, true),
        (shim::OPTION_CAP_ACK, 1, true, false),
        (shim::OPTION_EXT_ACK, 0, false, false),
    ] {
        program.control(shim::OPTION, option, on);
        program.send(&bad);
        world.settle();
        let answer = program.receive().unwrap();
        assert_eq!(has_text(&answer), with_text);
        assert_eq!(answer.len() > 16 + 4 + 224, quoted);
    }
}

#[test]
fn events_reach_those_who_listen_in_datagrams_of_one_message() {
    let mut world = World::new();
    let (asker, listener, other) = (world.connect(), world.connect(), world.connect());
    listener.bind(1, group::bit(group::SA) | group::bit(group::EXPIRE));
    other.bind(2, group::bit(group::POLICY));
    asker.bind(3, 0);
    asker.control(shim::MEMBERSHIP, group::SA, 1);
    asker.send(&[new_sa(1), new_sa(2)].concat());
    world.settle();
    for spi in 1..=2 {
        let event = listener.receive().unwrap();
        assert_eq!(Datagram::new(&event).count(), 1, "{spi}");
        assert_eq!(header(&event).kind, msg::NEWSA);
        // Who asks hears the event first.
        assert_eq!(header(&asker.receive().unwrap()).kind, msg::NEWSA);
        assert_eq!(asker.errno(), 0);
    }
    assert!(listener.receive().is_none() && other.receive().is_none());
    asker.control(shim::MEMBERSHIP, group::SA, 0);
    asker.send(&flush());
    world.settle();
    assert_eq!(asker.errno(), 0);
    assert_eq!(header(&listener.receive().unwrap()).kind, msg::FLUSHSA);
}

#[test]
fn timers_reach_listeners() {
    let mut world = World::new();
    let listener = world.connect();
    listener.bind(1, group::bit(group::EXPIRE));
    let mut info = UserpolicyInfo {
        sel: Selector { family: AF_INET, ..Selector::default() },
        lft: LifetimeConfig::UNLIMITED,
        ..UserpolicyInfo::default()
    };
    info.lft.hard_add_expires_seconds = 5;
    listener.send(&request(msg::NEWPOLICY, NLM_F_ACK, info.as_bytes()));
    world.settle();
    assert_eq!(listener.errno(), 0);
    for after in [1, 5] {
        let deliveries = world.server.tick(NOW + after, &());
        world.clients.deliver(deliveries, &world.server, &());
    }
    assert_eq!(header(&listener.receive().unwrap()).kind, msg::POLEXPIRE);
}

#[test]
fn a_dump_is_continued_as_it_is_read() {
    let mut world = World::new();
    world.fill(5000);
    let program = world.connect();
    for _ in 0..3 {
        program.send(&dump());
        assert_eq!(read_dump(&mut world, &program), 5000);
    }
    // A second dump while the first is not read to its end is refused, as by a netlink socket.
    program.send(&dump());
    program.send(&dump());
    world.settle();
    let mut kinds = Vec::new();
    while let Some(part) = program.receive() {
        kinds.push(header(&part).kind);
        world.settle();
    }
    assert_eq!(kinds.iter().filter(|&&kind| kind == NLMSG_ERROR).count(), 1);
    assert_eq!(kinds.iter().filter(|&&kind| kind == NLMSG_DONE).count(), 1);
}

#[test]
fn a_closed_connection_is_forgotten() {
    let mut world = World::new();
    let program = world.connect();
    program.send(&dump());
    assert_eq!(world.clients.len(), 1);
    drop(program);
    world.settle();
    assert!(world.clients.is_empty());
    let many: Vec<_> = (0..200).map(|_| world.connect()).collect();
    assert_eq!(world.clients.len(), 200);
    drop(many);
    world.settle();
    assert!(world.clients.is_empty());
}

#[test]
fn dropping_the_server_closes_all() {
    let mut world = World::new();
    let program = world.connect();
    drop(world);
    assert!(program.is_closed());
}
