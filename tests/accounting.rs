//! Every packet is accounted for, to the packet: what the steering programs gave to the workers is
//! what the ports received and what they lost by name; what they received is the sum of all
//! verdicts; what was delivered is what the ports sent and what arrives at the far ends.

mod gateway;
mod peer;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use gateway::Cores;
use peer::{CLEAR, DELIVERED, Fates, PORTS, Site, since, steered};
use serde_json::Value;

/// Rings that overflow at once: the smallest that the configuration allows, and the frames for
/// one queue of each of three ports.
const TINY: &str = "ring = 64\nframes = 1088";
/// Descriptors of such a ring.
const TINY_RING: u64 = 64;

/// What the gateway has counted, over all ports.
#[derive(Debug, Default, PartialEq)]
struct Books {
    /// Packets that the steering programs gave to the workers.
    to_workers: u64,
    received: u64,
    receive_losses: u64,
    sent: u64,
    send_losses: u64,
    fates: Fates,
    /// The gateway's own sums.
    received_by_workers: u64,
    accounted_for: u64,
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

fn losses(port: &Value, prefix: &str) -> u64 {
    let all = port["losses"].as_array().expect("losses").iter();
    let ours = all.filter(|one| one["name"].as_str().is_some_and(|name| name.starts_with(prefix)));
    ours.map(|one| count(&one["count"])).sum()
}

impl Books {
    fn read(site: &Site) -> Books {
        let mut books = Books::default();
        let ports = site.gateway.show("ports");
        for port in ports.as_array().expect("ports") {
            books.received += count(&port["rx_packets"]);
            books.sent += count(&port["tx_packets"]);
            books.receive_losses += losses(port, "rx_");
            books.send_losses += losses(port, "tx_");
        }
        for port in PORTS {
            for name in ["to_worker_transit", "to_worker_esp", "to_worker_natt"] {
                books.to_workers += steered(&ports, port, name);
            }
        }
        books.fates = site.fates();
        let status = site.gateway.show("status");
        books.received_by_workers = count(&status["received_packets"]);
        books.accounted_for = count(&status["accounted_packets"]);
        books
    }

    fn delivered(&self) -> u64 {
        DELIVERED.iter().filter_map(|name| self.fates.get(*name)).sum()
    }

    /// What does not add up.
    fn gaps(&self) -> Vec<String> {
        let ended: u64 = self.fates.values().sum();
        let equal = |what: &str, left: u64, right: u64| {
            (left != right).then(|| format!("{what}: {left} != {right}"))
        };
        [
            equal(
                "to workers = received + lost",
                self.to_workers,
                self.received + self.receive_losses,
            ),
            equal("ports = workers", self.received, self.received_by_workers),
            equal("received = ended", self.received, ended),
            equal("the gateway's own sum", self.accounted_for, ended),
            equal("delivered = sent", self.delivered(), self.sent),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Waits until the books close, with `offered` packets more than in `before`; then they are final.
fn close(site: &Site, before: &Books, offered: u64) -> Books {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let books = Books::read(site);
        let given = books.to_workers - before.to_workers;
        let gaps = books.gaps();
        if gaps.is_empty() && given >= offered {
            assert_eq!(given, offered, "no worker gets more than was offered");
            assert_eq!(Books::read(site), books, "nothing is under way any more");
            return books;
        }
        assert!(
            Instant::now() < end,
            "{offered} offered, {given} given; open: {gaps:?}\n{books:#?}\n{}",
            site.gateway.log()
        );
    }
}

/// A site with a tunnel from 16/8 to 48/8, all of whose neighbours are known.
fn site(cores: Cores<'_>, mode: &str, lines: &str) -> Site {
    let mut site = Site::with(cores, mode, lines);
    let key = "00112233445566778899aabbccddeeff01020304";
    let state = "proto esp reqid 1 mode tunnel replay-window 32 aead rfc4106(gcm(aes))";
    site.ip("route add 49.0.0.0/8 via 198.51.100.2");
    site.xfrm(&[
        &format!("state add src 192.0.2.1 dst 192.0.2.2 spi 0x101 {state} 0x{key} 128"),
        &format!("state add src 192.0.2.2 dst 192.0.2.1 spi 0x102 {state} 0x{key} 128"),
        "policy add src 16.0.0.0/8 dst 48.0.0.0/8 dir out \
         tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel",
        "policy add src 48.0.0.0/8 dst 16.0.0.0/8 dir fwd \
         tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 1 mode tunnel",
    ]);
    site.peer.ask(&format!("sa('in', 0x102, '192.0.2.2', '192.0.2.1', '{key}')"));
    site.becomes("red0", CLEAR, "sealed");
    site.becomes("red0", &CLEAR.replace("48.", "49."), "forwarded");
    site.becomes("black0", &format!("sealed('in', {BACK})"), "opened");
    site
}

/// A packet of the black side for the red side.
const BACK: &str = "IP(src='48.0.0.1', dst='16.0.0.1')/UDP(sport=7000, dport=6000)/b'back'";

/// Clear packets of many flows: to be sealed, to be forwarded, and for nowhere.
const MANY: &str = "[IP(src=f'16.0.0.{n}', dst=f'{net}.0.0.{n}')/UDP(sport=n)/bytes(n)
    for n in range(1, 100) for net in (48, 49, 60)]";

/// The same number of ESP packets, each with a number of its own, that carry `BACK`.
fn many_sealed(count: usize) -> String {
    format!("[sealed('in', p) for p in [bytes({BACK})] for _ in range({count})]")
}

#[test]
fn the_books_close_at_low_load() {
    for (cores, mode) in [(&[0][..], "native"), (&[0, 1], "native"), (&[0], "generic")] {
        let mut site = site(Cores::These(cores), mode, "");
        let before = Books::read(&site);
        assert_eq!(before.gaps(), Vec::<String>::new());
        let many = format!("[send('red0', p) for p in {MANY}]");
        let back = format!("[send('black0', p) for p in {}]", many_sealed(200));
        for line in [
            many.as_str(),
            back.as_str(),
            "send('red0', *[IP(src='16.0.0.1', dst='48.0.0.1', ttl=1)/UDP()] * 7)",
            &format!("send('black0', *[{BACK}] * 11)"),
            &format!("send('black0', *[edit(sealed('in', {BACK}), 60, '0000')] * 13)"),
            "send('black0', *[edit(IP(dst='192.0.2.1', proto=50)/bytes(64), 20, '00000999')] * 3)",
        ] {
            site.peer.ask(line);
        }
        let books = close(&site, &before, 3 * 99 + 200 + 7 + 11 + 13 + 3);
        let expected = [
            ("sealed", 99),
            ("forwarded", 99),
            ("no_route", 99),
            ("opened", 200),
            ("ttl_expired", 7),
            ("clear_of_protected", 11),
            ("integrity_failed", 13),
            ("no_state", 3),
        ];
        let expected = Fates::from(expected.map(|(name, count)| (name.to_owned(), count)));
        assert_eq!(since(&before.fates, &books.fates), expected);
        assert_eq!(books.receive_losses + books.send_losses, 0, "a low load loses nothing");
        let mut arrived = 0;
        site.wait("what was sent arrives", |peer| {
            arrived += peer.count("arrived()");
            arrived >= 99 + 99 + 200
        });
        assert_eq!(arrived, 99 + 99 + 200);
    }
}

/// Sees what `kill -STOP` or `-CONT` of the gateway has come to for every thread.
fn signal(site: &Site, name: &str, stopped: bool) {
    let pid = site.gateway.pid().to_string();
    let done = Command::new("kill").args([name, &pid]).status();
    assert!(done.is_ok_and(|status| status.success()), "kill {name} {pid}");
    let is_stopped = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The state is the letter after the name in brackets.
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
        if tasks.flatten().all(|task| is_stopped(task) == stopped) {
            return;
        }
        assert!(Instant::now() < end, "the gateway does not follow kill {name}");
    }
}

#[test]
fn a_worker_that_stands_still_loses_by_name_exactly_what_its_ring_cannot_hold() {
    let mut site = site(Cores::These(&[0]), "native", TINY);
    let before = Books::read(&site);
    signal(&site, "-STOP", true);
    let offered = 1000;
    site.peer.ask(&format!("send('red0', *[{CLEAR}] * {offered})"));
    signal(&site, "-CONT", false);
    let books = close(&site, &before, offered);
    assert_eq!(books.received - before.received, TINY_RING);
    assert_eq!(books.receive_losses - before.receive_losses, offered - TINY_RING);
    let sealed = Fates::from([("sealed".to_owned(), TINY_RING)]);
    assert_eq!(since(&before.fates, &books.fates), sealed);
    // It is none the worse for it.
    site.peer.ask(&format!("send('red0', *[{CLEAR}] * 40)"));
    let after = close(&site, &books, 40);
    assert_eq!(after.received - books.received, 40);
}

/// Packets of each worker.
fn worked(site: &Site) -> Vec<u64> {
    let workers = site.gateway.show("workers");
    workers.as_array().expect("workers").iter().map(|one| count(&one["packets"])).collect()
}

/// Both directions at once, clear and ESP, from `senders` processes a side, far more than tiny
/// rings take.
fn overload(cores: Cores<'_>, mode: &str, senders: u64) {
    let mut site = site(cores, mode, TINY);
    let before = Books::read(&site);
    let idle = worked(&site);
    let each = 8000;
    let loads = format!("{{'red0': {MANY}, 'black0': {}}}", many_sealed(1000));
    let offered = site.peer.count(&format!("flood({loads}, {each}, {senders})"));
    assert!(offered > each, "{offered} offered");
    let books = close(&site, &before, offered);
    assert!(books.receive_losses > 0, "an overload: {books:#?}");
    for name in ["sealed", "forwarded", "no_route", "opened"] {
        assert!(books.fates.get(name) > before.fates.get(name), "{name} is there: {books:#?}");
    }
    let after = worked(&site);
    assert_eq!(after.len(), cores.queues() as usize);
    assert!(idle.iter().zip(&after).all(|(idle, after)| idle < after), "{idle:?} {after:?}");
    // What left has arrived, but for what the interfaces refused.
    let delivered = books.delivered() - before.delivered();
    let wanted = delivered - (books.send_losses - before.send_losses);
    let mut arrived = 0;
    site.wait("what was sent arrives", |peer| {
        arrived += peer.count("arrived()");
        arrived >= wanted
    });
    assert_eq!(arrived, wanted);
}

#[test]
fn the_books_of_one_worker_close_under_overload() {
    overload(Cores::These(&[0]), "native", 2);
}

#[test]
fn the_books_of_two_workers_close_under_overload() {
    overload(Cores::These(&[0, 1]), "native", 2);
}

#[test]
fn the_books_of_generic_mode_close_under_overload() {
    overload(Cores::These(&[0]), "generic", 2);
}

#[test]
fn a_packet_longer_than_a_frame_is_lost_by_name() {
    let mut site = site(Cores::These(&[0]), "native", "");
    for namespace in [&site.inside, &site.outside] {
        namespace.ip("link set red0 mtu 9000").expect("a larger MTU");
    }
    let before = Books::read(&site);
    let oversize = site.steered("red0", "drop_oversize");
    // Longer than a chunk of 2048 bytes behind its headroom, but in one buffer; and in several.
    for (bytes, count) in [(2500, 5), (6000, 7)] {
        let packet = format!("IP(src='16.0.0.1', dst='48.0.0.1')/UDP()/bytes({bytes})");
        site.peer.ask(&format!("send('red0', *[{packet}] * {count})"));
    }
    let books = close(&site, &before, 5);
    assert_eq!(books.receive_losses - before.receive_losses, 5);
    assert_eq!(since(&before.fates, &books.fates), Fates::new());
    assert_eq!(site.steered("red0", "drop_oversize") - oversize, 7);
    site.expect("red0", CLEAR, "sealed");
}
