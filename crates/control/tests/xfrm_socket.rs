//! The XFRM socket with real clients, the well-behaved and the others.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use control::xfrm::{Clients, Server, Settings, SocketError, control_frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, recv, send, socket,
};
use wire::xfrm::Builder;
use wire::xfrm::address::{Be32, Selector};
use wire::xfrm::algorithm::{AlgorithmAead, Name};
use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::netlink::{
    Datagram, Header, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NLMSG_OVERRUN,
};
use wire::xfrm::number::{AF_INET, IPPROTO_ESP, attr, group, mode, msg};
use wire::xfrm::policy::UserpolicyInfo;
use wire::xfrm::sa::{UsersaFlush, UsersaInfo};
use zerocopy::{FromBytes, IntoBytes};

const NOW: u64 = 1_700_000_000;
/// No step of any test takes this long unless something hangs.
const PATIENCE: Duration = Duration::from_secs(20);

struct World {
    _directory: tempfile::TempDir,
    path: PathBuf,
    server: Server,
    clients: Clients,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("instance/xfrm.sock");
        let clients = Clients::bind(&path).unwrap();
        Self { _directory: directory, path, server: Server::new(Settings::default()), clients }
    }

    /// Lets the server work until it has nothing to do.
    fn settle(&mut self) {
        let started = Instant::now();
        while readable(&self.clients) {
            self.clients.on_ready(&mut self.server, &(), NOW);
            assert!(started.elapsed() < PATIENCE, "the server is never done");
        }
    }

    /// One turn, whether or not there is more to do.
    fn turn(&mut self) {
        self.clients.on_ready(&mut self.server, &(), NOW);
    }

    fn connect(&mut self) -> Program {
        let program = Program { fd: connect_to(&self.path).unwrap() };
        self.settle();
        program
    }

    /// Installs SAs directly, so that dumps have something to show.
    fn fill(&mut self, count: u32) {
        for spi in 1..=count {
            self.server.handle(&Default::default(), &new_sa(spi), NOW, &());
        }
    }
}

fn readable(fd: impl std::os::fd::AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&zero)).unwrap() > 0
}

fn connect_to(path: &Path) -> rustix::io::Result<OwnedFd> {
    let fd = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

struct Program {
    fd: OwnedFd,
}

impl Program {
    fn send(&self, bytes: &[u8]) {
        assert_eq!(self.try_send(bytes), Ok(bytes.len()));
    }

    fn try_send(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    }

    fn bind(&self, port: u32, groups: u32) {
        self.control(control_frame::BIND, port, groups);
    }

    fn control(&self, kind: u16, first: u32, second: u32) {
        let header = Header { len: 24, kind, ..Header::default() };
        self.send(&[header.as_bytes(), first.as_bytes(), second.as_bytes()].concat());
    }

    /// The next datagram, if it is there; no bytes when the connection is closed.
    fn receive(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 128 * 1024];
        match recv(&self.fd, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((_, len)) => Some(buffer[..len].to_vec()),
            Err(Errno::AGAIN) => None,
            Err(Errno::CONNRESET) => Some(Vec::new()),
            Err(errno) => panic!("{errno}"),
        }
    }

    fn is_closed(&self) -> bool {
        self.receive().is_some_and(|bytes| bytes.is_empty())
    }

    /// The error number of the next datagram, which must be an error message.
    #[track_caller]
    fn errno(&self) -> i32 {
        let bytes = self.receive().expect("an answer");
        assert_eq!(header(&bytes).kind, NLMSG_ERROR);
        i32::read_from_bytes(&bytes[16..20]).unwrap()
    }
}

fn header(bytes: &[u8]) -> Header {
    Header::read_from_prefix(bytes).unwrap().0
}

fn request(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let header = Header { kind, flags: flags | NLM_F_REQUEST, seq: 3, ..Header::default() };
    Builder::new(&mut out, header).raw(body).finish();
    out
}

fn new_sa(spi: u32) -> Vec<u8> {
    let mut info = UsersaInfo {
        lft: LifetimeConfig::UNLIMITED,
        family: AF_INET,
        mode: mode::TUNNEL,
        ..UsersaInfo::default()
    };
    info.id.spi = Be32::new(spi);
    info.id.proto = IPPROTO_ESP;
    let head = AlgorithmAead { name: Name::new("rfc4106(gcm(aes))"), key_len: 160, icv_len: 128 };
    let header = Header { kind: msg::NEWSA, flags: NLM_F_REQUEST | NLM_F_ACK, ..Header::default() };
    let mut out = Vec::new();
    Builder::new(&mut out, header)
        .fixed(&info)
        .attribute_parts(attr::ALG_AEAD, &[head.as_bytes(), &[7; 20]])
        .finish();
    out
}

fn dump() -> Vec<u8> {
    request(msg::GETSA, NLM_F_DUMP, &[])
}

fn flush() -> Vec<u8> {
    request(msg::FLUSHSA, NLM_F_ACK, UsersaFlush::default().as_bytes())
}

/// Reads a dump to its end; returns the number of entries.
fn read_dump(world: &mut World, program: &Program) -> usize {
    let started = Instant::now();
    let mut entries = 0;
    loop {
        world.settle();
        while let Some(part) = program.receive() {
            assert!(part.len() <= 4096);
            for (header, _) in Datagram::new(&part) {
                if header.kind == NLMSG_DONE {
                    return entries;
                }
                entries += 1;
            }
        }
        assert!(started.elapsed() < PATIENCE, "the dump does not end");
    }
}

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
fn another_user_is_refused_even_when_the_modes_let_it_in() {
    if !rustix::process::geteuid().is_root() {
        // Only root can become somebody else; the gateway runs as root, and so does CI.
        return;
    }
    let mut world = World::new();
    let open = std::fs::Permissions::from_mode(0o777);
    for path in
        [world.path.clone(), world.path.parent().unwrap().into(), world._directory.path().into()]
    {
        std::fs::set_permissions(path, open.clone()).unwrap();
    }
    let path = world.path.clone();
    // User ids belong to threads in Linux, so this thread alone becomes nobody.
    let stranger = std::thread::spawn(move || {
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        Program { fd: connect_to(&path).unwrap() }
    });
    let stranger = stranger.join().unwrap();
    world.settle();
    assert!(stranger.is_closed());
    assert!(world.clients.is_empty());
    // And the owner is served as before.
    let owner = world.connect();
    owner.send(&flush());
    world.settle();
    assert_eq!(owner.errno(), 0);
}

#[test]
fn a_socket_in_use_is_left_alone_and_a_stale_one_replaced() {
    let world = World::new();
    let error = Clients::bind(&world.path).err().unwrap();
    assert!(matches!(error, SocketError::InUse(_)), "{error}");
    let path = world.path.clone();
    assert!(path.exists());
    let World { _directory: directory, clients, .. } = world;
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
fn options_change_what_errors_hold() {
    let mut world = World::new();
    let program = world.connect();
    let bad = request(msg::NEWSA, 0, UsersaInfo::default().as_bytes());
    let text = b"Invalid address family";
    let has_text = |bytes: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    for (option, on, with_text, quoted) in [
        (0, 0, false, true),
        (control_frame::OPTION_EXT_ACK, 1, true, true),
        (control_frame::OPTION_CAP_ACK, 1, true, false),
        (control_frame::OPTION_EXT_ACK, 0, false, false),
    ] {
        program.control(control_frame::OPTION, option, on);
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
    asker.control(control_frame::MEMBERSHIP, group::SA, 1);
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
    asker.control(control_frame::MEMBERSHIP, group::SA, 0);
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
fn garbage_harms_nobody() {
    let mut world = World::new();
    let (hostile, honest) = (world.connect(), world.connect());
    let mut state = 1u64;
    for len in (1..200).chain([4096, 60_000]) {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        let garbage: Vec<u8> = (0..len).map(|_| next()).collect();
        hostile.send(&garbage);
        world.settle();
        while hostile.receive().is_some_and(|bytes| !bytes.is_empty()) {}
    }
    // Truncated: headers that promise more than there is.
    for cut in [1, 15, 16, 17, 100, 200] {
        hostile.send(&new_sa(1)[..cut]);
    }
    // Control frames without their payload, and for groups that are not.
    let frame = Header { len: 16, kind: control_frame::BIND, ..Header::default() };
    hostile.send(frame.as_bytes());
    hostile.control(control_frame::MEMBERSHIP, 0, 1);
    hostile.control(control_frame::MEMBERSHIP, u32::MAX, 1);
    hostile.control(control_frame::OPTION, u32::MAX, 1);
    world.settle();
    honest.send(&new_sa(9));
    world.settle();
    assert_eq!(honest.errno(), 0);
    assert_eq!(world.server.sizes().0, 1);
}

#[test]
fn a_request_that_is_too_long_is_refused() {
    let mut world = World::new();
    let program = world.connect();
    let mut long = flush();
    long.resize(100_000, 0);
    program.send(&long);
    world.settle();
    assert_eq!(program.errno(), -Errno::MSGSIZE.raw_os_error());
    program.send(&flush());
    world.settle();
    assert_eq!(program.errno(), 0);
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
fn a_thousand_dumps_that_nobody_reads_stop_nobody() {
    let mut world = World::new();
    world.fill(2000);
    let (hostile, honest) = (world.connect(), world.connect());
    for _ in 0..1000 {
        // The socket fills, because the server stops reading from who does not read.
        if hostile.try_send(&dump()).is_err() {
            break;
        }
        world.turn();
    }
    for _ in 0..100 {
        world.turn();
    }
    honest.send(&new_sa(900_000));
    for _ in 0..3 {
        world.turn();
    }
    assert_eq!(honest.errno(), 0);
    // Once it reads, it is served.
    let started = Instant::now();
    let mut done = false;
    while !done && started.elapsed() < PATIENCE {
        world.turn();
        while let Some(part) = hostile.receive() {
            done |= header(&part).kind == NLMSG_DONE;
        }
    }
    assert!(done);
}

#[test]
fn who_does_not_read_its_replies_is_not_read_from() {
    let mut world = World::new();
    let program = world.connect();
    let bad = request(msg::NEWSA, 0, &[0; 1000]);
    let mut sent = 0;
    loop {
        match program.try_send(&bad) {
            Ok(_) => sent += 1,
            Err(Errno::AGAIN) => {
                world.turn();
                // Full although the server had its turn: nothing more is taken in.
                if program.try_send(&bad).is_err() {
                    break;
                }
                sent += 1;
            }
            Err(errno) => panic!("{errno}"),
        }
        assert!(sent < 100_000, "the server takes in whatever comes");
    }
    // Every request has its answer, in the end.
    let (mut received, started) = (0, Instant::now());
    while received < sent && started.elapsed() < PATIENCE {
        world.turn();
        while program.receive().is_some() {
            received += 1;
        }
    }
    assert_eq!(received, sent);
}

#[test]
fn who_does_not_read_its_events_is_told_what_it_lost() {
    let mut world = World::new();
    let (asker, listener) = (world.connect(), world.connect());
    listener.bind(1, group::bit(group::SA));
    world.settle();
    const EVENTS: u32 = 5000;
    for spi in 1..=EVENTS {
        asker.send(&new_sa(spi));
        world.turn();
        assert_eq!(asker.errno(), 0, "a deaf listener must not stop others");
    }
    let (mut events, mut overruns) = (0, 0);
    while let Some(bytes) = listener.receive() {
        match header(&bytes).kind {
            NLMSG_OVERRUN => overruns += 1,
            msg::NEWSA => events += 1,
            kind => panic!("{kind}"),
        }
        world.turn();
    }
    assert_eq!(overruns, 1);
    assert!((100..EVENTS).contains(&events), "{events}");
    // It hears again.
    asker.send(&flush());
    world.settle();
    assert_eq!(header(&listener.receive().unwrap()).kind, msg::FLUSHSA);
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
