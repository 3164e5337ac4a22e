//! Programs that mean harm, or are broken.

use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use rustix::io::Errno;
use wire::xfrm::netlink::{Header, NLMSG_DONE, NLMSG_OVERRUN};
use wire::xfrm::number::{group, msg};
use wire::xfrm::shim;
use zerocopy::IntoBytes;

use crate::world::*;

#[test]
fn another_user_is_refused_even_when_the_modes_let_it_in() {
    if !rustix::process::geteuid().is_root() {
        // Only root can become somebody else; the gateway runs as root, and so does CI.
        return;
    }
    let mut world = World::new();
    let open = std::fs::Permissions::from_mode(0o777);
    for path in
        [world.path.clone(), world.path.parent().unwrap().into(), world.directory.path().into()]
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
    let frame = Header { len: 16, kind: shim::BIND, ..Header::default() };
    hostile.send(frame.as_bytes());
    hostile.control(shim::MEMBERSHIP, 0, 1);
    hostile.control(shim::MEMBERSHIP, u32::MAX, 1);
    hostile.control(shim::OPTION, u32::MAX, 1);
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
