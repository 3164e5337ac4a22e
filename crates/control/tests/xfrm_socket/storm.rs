//! Many of them at once.

use std::process::Command;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wire::xfrm::netlink::{Datagram, NLM_F_ACK, NLMSG_DONE, NLMSG_ERROR, NLMSG_OVERRUN};
use wire::xfrm::number::{group, msg};
use zerocopy::FromBytes;

use crate::world::*;

/// Connections that the server keeps, as the user's book says.
const CONNECTIONS_MAX: usize = 1024;

/// Tells the test that it is the process with few descriptors.
const FEW: &str = "PEREGRINE_TEST_FEW_DESCRIPTORS";

fn with_sequence(mut request: Vec<u8>, sequence: u32) -> Vec<u8> {
    request[8..12].copy_from_slice(&sequence.to_ne_bytes());
    request
}

fn errno_of(bytes: &[u8]) -> i32 {
    assert_eq!(header(bytes).kind, NLMSG_ERROR);
    i32::read_from_bytes(&bytes[16..20]).unwrap()
}

#[test]
fn many_dumps_at_once_are_all_complete_and_stop_nobody() {
    const PROGRAMS: usize = 40;
    const SAS: u32 = 20_000;
    let mut world = World::new();
    world.fill(SAS);
    let (honest, deaf) = (world.connect(), world.connect());
    let programs: Vec<_> = (0..PROGRAMS).map(|_| world.connect()).collect();
    deaf.send(&dump());
    programs.iter().for_each(|program| program.send(&dump()));
    let mut entries = [0; PROGRAMS];
    let mut done = [false; PROGRAMS];
    let (started, mut asked) = (Instant::now(), 0);
    while !done.iter().all(|done| *done) {
        // Somebody else's request is answered after a turn or two, not after the dumps.
        honest.send(&new_sa(1_000_000 + asked));
        asked += 1;
        let mut answer = None;
        for _ in 0..3 {
            world.turn();
            answer = answer.or_else(|| honest.receive());
        }
        assert_eq!(errno_of(&answer.expect("an answer within three turns")), 0);
        for (at, program) in programs.iter().enumerate() {
            while let Some(part) = program.receive() {
                for (header, _) in Datagram::new(&part) {
                    entries[at] += usize::from(header.kind == msg::NEWSA);
                    done[at] |= header.kind == NLMSG_DONE;
                }
            }
        }
        assert!(started.elapsed() < PATIENCE, "{entries:?}");
    }
    // New ones are shown to nobody: a dump goes from the newest to the oldest.
    assert!(entries.iter().all(|count| *count >= SAS as usize), "{entries:?}");
    assert!(entries.iter().all(|count| *count <= SAS as usize + 1), "{entries:?}");
}

#[test]
fn requests_of_a_shared_connection_are_told_apart_by_their_numbers() {
    // What fork leaves: two programs with one connection, each with requests under way.
    let mut world = World::new();
    let parent = world.connect();
    let child = Program { fd: parent.fd.try_clone().unwrap() };
    for n in 0..50 {
        parent.send(&with_sequence(new_sa(1 + n), 1000 + n));
        // Refused: there is no such SA.
        child.send(&with_sequence(delete_sa(5000 + n), 2000 + n));
    }
    let (mut made, mut refused) = (Vec::new(), Vec::new());
    let started = Instant::now();
    while made.len() + refused.len() < 100 {
        world.turn();
        for reader in [&parent, &child] {
            while let Some(bytes) = reader.receive() {
                match errno_of(&bytes) {
                    0 => made.push(header(&bytes).seq),
                    errno => {
                        assert_eq!(errno, -Errno::SRCH.raw_os_error());
                        refused.push(header(&bytes).seq);
                    }
                }
            }
        }
        assert!(started.elapsed() < PATIENCE);
    }
    assert_eq!(made, (1000..1050).collect::<Vec<_>>());
    assert_eq!(refused, (2000..2050).collect::<Vec<_>>());
    // When one of the two leaves, the other stays.
    drop(parent);
    child.send(&flush());
    world.settle();
    assert_eq!(child.errno(), 0);
    drop(child);
    world.settle();
    assert!(world.clients.is_empty());
}

#[test]
fn a_datagram_of_many_requests_is_answered_one_by_one_up_to_where_it_breaks() {
    let mut world = World::new();
    let program = world.connect();
    let quiet = request(msg::FLUSHSA, 0, &[0]);
    let mut datagram = Vec::new();
    for (sequence, one) in
        (1..).zip([new_sa(1), quiet.clone(), new_sa(2), delete_sa(7), delete_sa(2), new_sa(3)])
    {
        datagram.extend(with_sequence(one, sequence));
        datagram.resize(datagram.len().next_multiple_of(4), 0);
    }
    // The next one promises more than there is: it and what follows is ignored, as by the kernel.
    let mut broken = new_sa(4);
    broken[..4].copy_from_slice(&100_000_u32.to_ne_bytes());
    datagram.extend(broken);
    datagram.extend(new_sa(5));
    program.send(&datagram);
    world.settle();
    let answers: Vec<_> = std::iter::from_fn(|| program.receive())
        .map(|bytes| (header(&bytes).seq, errno_of(&bytes)))
        .collect();
    let missing = -Errno::SRCH.raw_os_error();
    assert_eq!(answers, [(1, 0), (3, 0), (4, missing), (5, 0), (6, 0)]);
    assert_eq!(world.server.sizes().0, 1);
}

#[test]
fn a_turn_counts_requests_and_not_datagrams() {
    let mut world = World::new();
    let (many, other) = (world.connect(), world.connect());
    for first in (0..200).step_by(40) {
        let mut datagram = Vec::new();
        for spi in first..first + 40 {
            datagram.extend(new_sa(spi + 1));
            datagram.resize(datagram.len().next_multiple_of(4), 0);
        }
        many.send(&datagram);
    }
    other.send(&new_sa(1000));
    world.turn();
    assert_eq!(other.errno(), 0);
    // 64 requests are a turn, and a datagram that has begun is ended.
    assert_eq!(std::iter::from_fn(|| many.receive()).count(), 80);
    world.settle();
    assert_eq!(std::iter::from_fn(|| many.receive()).count(), 120);
    assert_eq!(world.server.sizes().0, 201);
}

#[test]
fn several_requests_under_way_are_answered_in_order() {
    // strongSwan's parallel_xfrm: the next request goes out before the last answer is in.
    let mut world = World::new();
    let program = world.connect();
    for sequence in 0..200 {
        let one = if sequence % 2 == 0 { new_sa(sequence + 1) } else { delete_sa(sequence) };
        program.send(&with_sequence(one, sequence));
        if sequence % 40 == 39 {
            world.turn();
        }
    }
    let (mut next, started) = (0, Instant::now());
    while next < 200 {
        world.turn();
        while let Some(bytes) = program.receive() {
            assert_eq!((header(&bytes).seq, errno_of(&bytes)), (next, 0));
            next += 1;
        }
        assert!(started.elapsed() < PATIENCE);
    }
}

#[test]
fn connections_beyond_the_limit_are_closed_and_the_others_served() {
    if is_one_of_few() {
        return;
    }
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < 4096) {
        return;
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let mut world = World::new();
    let first = world.connect();
    let many: Vec<_> = (0..CONNECTIONS_MAX + 20).map(|_| world.connect()).collect();
    assert_eq!(world.clients.len(), CONNECTIONS_MAX);
    let closed = many.iter().filter(|program| program.is_closed()).count();
    assert_eq!(closed, many.len() + 1 - CONNECTIONS_MAX);
    first.send(&flush());
    world.settle();
    assert_eq!(first.errno(), 0);
    // Who leaves makes room: at once, unless another test starts a program at that moment, which has these descriptors as well for as
    // long as it is not loaded.
    drop(many);
    let started = Instant::now();
    while world.clients.len() > 1 {
        world.settle();
        assert!(started.elapsed() < PATIENCE, "{} are still there", world.clients.len());
    }
    let late = world.connect();
    late.send(&flush());
    world.settle();
    assert_eq!((late.errno(), world.clients.len()), (0, 2));
}

#[test]
fn without_descriptors_nobody_is_accepted_and_nobody_spins() {
    // The limit belongs to the process, so this test needs one for itself.
    if !is_one_of_few() {
        let name = "storm::without_descriptors_nobody_is_accepted_and_nobody_spins";
        let test = std::env::current_exe().unwrap();
        let output = Command::new(test).args(["--exact", name]).env(FEW, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let mut world = World::new();
    let served = world.connect();
    let waiting: Vec<_> = (0..3).map(|_| connect_to(&world.path).unwrap()).collect();
    let limit = getrlimit(Resource::Nofile);
    // One more descriptor than what is open would be one to accept with.
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
    world.turn();
    assert!(!readable(&world.clients), "there is nothing that could be done");
    assert_eq!(world.clients.len(), 1);
    served.send(&flush());
    world.settle();
    assert_eq!(served.errno(), 0);
    // With descriptors it goes on by itself.
    setrlimit(Resource::Nofile, limit).unwrap();
    let started = Instant::now();
    while world.clients.len() < 1 + waiting.len() {
        world.turn();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(started.elapsed() < PATIENCE);
    }
}

fn is_one_of_few() -> bool {
    std::env::var_os(FEW).is_some()
}

#[test]
fn answers_to_requests_without_an_acknowledgement_are_refusals_only() {
    let mut world = World::new();
    let program = world.connect();
    let quiet = |mut bytes: Vec<u8>| {
        bytes[6..8].copy_from_slice(&1_u16.to_ne_bytes());
        bytes
    };
    program.send(&quiet(new_sa(1)));
    program.send(&quiet(new_sa(1)));
    program.send(&request(msg::GETSADINFO, NLM_F_ACK, &[0; 4]));
    world.settle();
    assert_eq!(program.errno(), -Errno::EXIST.raw_os_error());
    assert_eq!(header(&program.receive().unwrap()).kind, msg::NEWSADINFO);
    assert_eq!(program.errno(), 0);
}

#[test]
fn of_thousands_that_expire_together_each_is_heard_of_by_who_reads() {
    const SAS: usize = 5000;
    let mut world = World::new();
    for spi in 1..=SAS as u32 {
        let request = new_sa_that_lasts(spi, 10);
        world.server.handle(&Default::default(), &request, NOW, &());
    }
    let (reader, deaf) = (world.connect(), world.connect());
    reader.bind(1, group::bit(group::EXPIRE));
    deaf.bind(2, group::bit(group::EXPIRE));
    world.settle();
    let (mut heard, mut now, started) = (0, NOW + 10, Instant::now());
    while heard < SAS {
        // As the gateway's own loop does, of which a second are a few turns here.
        for is_new in [true, false, false, false] {
            world.turn();
            if is_new || world.server.has_more_due() && !world.clients.are_behind(group::EXPIRE) {
                let deliveries = world.server.tick(now, &());
                world.clients.deliver(deliveries, &world.server, &());
            }
            while let Some(event) = reader.receive() {
                assert_eq!(header(&event).kind, msg::EXPIRE, "after {heard}");
                heard += 1;
            }
        }
        now += 1;
        assert!(started.elapsed() < PATIENCE, "{heard} were heard of");
    }
    assert_eq!(world.server.sizes().0, 0);
    let seconds = now - NOW - 10;
    assert!(seconds < 20, "who never reads holds nobody up for long: {seconds} s");
    let kinds: Vec<_> = std::iter::from_fn(|| {
        world.settle();
        deaf.receive().map(|event| header(&event).kind)
    })
    .collect();
    assert_eq!(kinds.last(), Some(&NLMSG_OVERRUN), "and is told that it lost some");
}
