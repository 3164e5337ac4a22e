//! Two gateways with a router between them, and a host behind each that answers for a whole network.
//!
//! ```text
//!             10.1/16, fd01::/32                                      10.2/16, fd02::/32
//!   left host ── 172.16.1.0/30 ── west ── 192.0.2.0/24 ── wan ── 198.51.100.0/24 ── east ── 172.16.2.0/30 ── right host
//!                 fd00:1::/64             2001:db8:a::/64        2001:db8:b::/64            fd00:2::/64
//! ```
//!
//! The hosts are kernels: they ping, and they answer for every address of their networks. No daemon
//! is started here.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use lab::topology::{Namespace, Veth};

use super::stream::stream;
use super::wire::Wire;
use crate::gateway::{Cores, Gateway};

/// How long traffic may take to flow once everything is in place, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Packets of a burst.
const BURST: usize = 64;

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that tests initiate from.
    West,
    /// The other one.
    East,
}

impl Side {
    /// Its number in inner addresses.
    pub fn number(self) -> u8 {
        match self {
            Side::West => 1,
            Side::East => 2,
        }
    }

    /// The other end.
    pub fn other(self) -> Side {
        match self {
            Side::West => Side::East,
            Side::East => Side::West,
        }
    }

    /// Its IKE identity.
    pub fn id(self) -> &'static str {
        match self {
            Side::West => "west",
            Side::East => "east",
        }
    }

    /// Its outer IPv4 or IPv6 address.
    pub fn outer(self, v6: bool) -> &'static str {
        match (self, v6) {
            (Side::West, false) => "192.0.2.2",
            (Side::East, false) => "198.51.100.2",
            (Side::West, true) => "2001:db8:a::2",
            (Side::East, true) => "2001:db8:b::2",
        }
    }

    /// Its inner network of this number: 10.1.n.0/24 or fd01:0:n::/48.
    pub fn network(self, n: u8, v6: bool) -> String {
        match v6 {
            false => format!("10.{}.{n}.0/24", self.number()),
            true => format!("fd0{}:0:{n}::/48", self.number()),
        }
    }

    /// An address in that network.
    pub fn host(self, n: u8, v6: bool) -> String {
        match v6 {
            false => format!("10.{}.{n}.1", self.number()),
            true => format!("fd0{}:0:{n}::1", self.number()),
        }
    }
}

/// One end: a gateway, and the host behind it.
pub struct End {
    /// The gateway.
    pub gateway: Gateway,
    /// The namespace of the gateway and its daemon.
    pub namespace: Namespace,
    /// The host behind it.
    pub host: Namespace,
}

/// The whole network.
pub struct Pair {
    /// The west end.
    pub west: End,
    /// The east end.
    pub east: End,
    /// The router between them.
    pub wan: Namespace,
}

impl Pair {
    /// Two gateways of one worker each.
    pub fn new() -> Pair {
        Pair::with(Cores::Any(0), "")
    }

    /// Two gateways with these cores, and more lines for their configuration.
    pub fn with(cores: Cores<'_>, lines: &str) -> Pair {
        let wan = Namespace::new("wan").expect("a namespace");
        for family in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
            wan.sysctl(&format!("net.{family}"), "1").expect("a router");
        }
        let west = end(Side::West, &wan, cores, lines);
        let east = end(Side::East, &wan, cores, lines);
        Pair { west, east, wan }
    }

    /// One of the ends.
    pub fn end(&self, side: Side) -> &End {
        match side {
            Side::West => &self.west,
            Side::East => &self.east,
        }
    }

    /// One packet and its answer between the networks of this number, asked for by `from`.
    pub fn ping_once(&self, from: Side, n: u8, v6: bool) -> bool {
        self.pings(from, n, v6, 1) == 1
    }

    /// Sends so many echo requests; how many were answered.
    pub fn pings(&self, from: Side, n: u8, v6: bool, count: u32) -> u32 {
        let family = if v6 { "-6" } else { "-4" };
        let line = format!(
            "{family} -n -q -i 0.02 -W 1 -c {count} -I {} {}",
            from.host(n, v6),
            from.other().host(n, v6)
        );
        ping(&self.end(from).host, &line)
    }

    /// The same in IPv4, five a second, waiting long for each answer.
    pub fn pings_patiently(&self, from: Side, n: u8, count: u32) -> u32 {
        let (here, there) = (from.host(n, false), from.other().host(n, false));
        let line = format!("-n -q -i 0.2 -W 10 -c {count} -I {here} {there}");
        ping(&self.end(from).host, &line)
    }

    /// Echo requests that a gateway itself sends, from the address that its routes choose; how many
    /// were answered.
    pub fn own_pings(&self, from: Side, to: &str, count: u32) -> u32 {
        let line = format!("-n -q -i 0.02 -W 1 -c {count} {to}");
        ping(&self.end(from).namespace, &line)
    }

    /// Pings from a namespace until an answer comes.
    #[track_caller]
    pub fn reaches(&self, from: &Namespace, line: &str) {
        let end = Instant::now() + PATIENCE;
        while ping(from, &format!("-n -q -c 1 -W 1 {line}")) == 0 {
            assert!(
                Instant::now() < end,
                "no answer of {line}\nwest: {}\neast: {}",
                account(&self.west.gateway),
                account(&self.east.gateway)
            );
        }
    }

    /// The gateways get to know their neighbours, so that no packet of a test has to wait for that.
    pub fn acquaint(&self) {
        for side in [Side::West, Side::East] {
            let namespace = &self.end(side).namespace;
            let n = side.number();
            let outer = [side.outer(false), side.outer(true)].map(router);
            let inner = [format!("172.16.{n}.1"), format!("fd00:{n}::1")];
            for neighbour in outer.iter().chain(&inner) {
                let answers = ping(namespace, &format!("-n -q -c 1 -W 10 {neighbour}"));
                assert_eq!(answers, 1, "{neighbour} answers {}", side.id());
            }
        }
    }

    /// Pings until an answer comes: neighbours are resolved afterwards.
    #[track_caller]
    pub fn flows(&self, n: u8, v6: bool) {
        let end = Instant::now() + PATIENCE;
        while !self.ping_once(Side::West, n, v6) {
            assert!(
                Instant::now() < end,
                "no answer from {}\nwest: {}\neast: {}",
                Side::East.host(n, v6),
                account(&self.west.gateway),
                account(&self.east.gateway)
            );
        }
    }

    /// Sends bursts between the IPv4 networks of these numbers in turn, from the west, until each gateway has dealt with many
    /// of the packets in fewer steps than with the first.
    #[track_caller]
    pub fn follows(&self, networks: &[u8]) {
        // On any port: one that was just closed may still be open in a process that is only being started.
        let bind = |address: &str| UdpSocket::bind((address, 0)).expect("a socket");
        // Of what comes nothing is read: what is too much is lost there, behind the gateways.
        let sink = self.east.host.scope(|| bind("0.0.0.0")).expect("the namespace");
        let port = sink.local_addr().expect("its port").port();
        let source = |n: &u8| {
            let [here, there] = [Side::West, Side::East].map(|side| side.host(*n, false));
            let source = self.west.host.scope(|| bind(&here)).expect("the namespace");
            source.connect((there.as_str(), port)).expect("a way");
            source
        };
        let sources: Vec<UdpSocket> = networks.iter().map(source).collect();
        let followed = || [&self.west, &self.east].map(|end| followed(&end.gateway));
        let before = followed();
        self.west.gateway.wait("packets that follow", |_| {
            for source in sources.iter().cycle().take(BURST) {
                source.send(&[0x5a; 100]).expect("the host's kernel takes packets");
            }
            followed().iter().zip(before).all(|(now, before)| *now >= before + BURST as u64)
        });
    }

    /// Looks at both ends' links for packets that a tcpdump filter describes while something is done;
    /// there must be none.
    pub fn unseen(&self, filter: &str, during: impl FnOnce()) {
        let wires = ["west", "east"].map(|interface| Wire::start(&self.wan, interface, filter));
        during();
        for wire in wires {
            let text = wire.finish();
            let clear: Vec<&str> = text.lines().filter(|line| line.contains(" IP")).collect();
            assert!(clear.is_empty(), "in clear: {clear:?}");
        }
    }

    /// A TCP stream from one namespace, or an address of it, to an address of another, and back.
    #[track_caller]
    pub fn streams(&self, from: (&Namespace, Option<&str>), to: (&Namespace, &str)) {
        stream(from, to, || account(&self.west.gateway) + &account(&self.east.gateway));
    }
}

/// Packets that a gateway dealt with as with those before them.
fn followed(gateway: &Gateway) -> u64 {
    let workers = gateway.show("workers");
    let each = workers.as_array().into_iter().flatten();
    each.filter_map(|worker| worker["followed_packets"].as_u64()).sum()
}

/// What a gateway did with its packets and where it lost any, what it is doing, and what it logged.
pub fn account(gateway: &Gateway) -> String {
    let drops = crate::gateway::verdicts(&gateway.show("drops"));
    let met: Vec<_> = drops.into_iter().filter(|(_, count)| *count != 0).collect();
    let mut lost = Vec::new();
    for port in gateway.show("ports").as_array().into_iter().flatten() {
        for group in ["steering", "losses"] {
            for one in port[group].as_array().into_iter().flatten() {
                if one["count"].as_u64() != Some(0) {
                    lost.push(format!("{} {}: {}", port["name"], one["name"], one["count"]));
                }
            }
        }
    }
    let shown = ["status", "workers", "neighbours"].map(|what| gateway.show(what).to_string());
    format!("{met:?}\n{lost:?}\n{}\n{}", shown.join("\n"), gateway.log())
}

/// What the kernels around a gateway know of its links: neighbours, and what they sent and lost.
pub fn surroundings(end: &End) -> String {
    let look = |namespace: &Namespace, line: &str| {
        namespace.ip(line).unwrap_or_else(|error| error.to_string())
    };
    [&end.namespace, &end.host]
        .map(|namespace| look(namespace, "neigh") + &look(namespace, "-s link"))
        .concat()
}

/// How many answers a `ping` line gets.
fn ping(namespace: &Namespace, line: &str) -> u32 {
    let out = namespace.command("ping").args(line.split(' ')).output().expect("ping runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    // For the message of a test that fails.
    println!("ping {line}: {}", text.lines().find(|line| line.contains("received")).unwrap_or("?"));
    let answers = text
        .split(", ")
        .find_map(|part| part.strip_suffix(" received"))
        .and_then(|count| count.parse().ok());
    answers.unwrap_or_else(|| {
        panic!("ping {line} printed {text}{}", String::from_utf8_lossy(&out.stderr))
    })
}

fn end(side: Side, wan: &Namespace, cores: Cores<'_>, lines: &str) -> End {
    let namespace = Namespace::new(side.id()).expect("a namespace");
    let host = Namespace::new(if side == Side::West { "left" } else { "right" }).expect("one");
    let queues = cores.queues();
    Veth::new((&namespace, "red0"), (&host, "eth0"), queues).expect("a veth pair");
    Veth::new((&namespace, "black0"), (wan, side.id()), queues).expect("a veth pair");
    let n = side.number();
    let (outer, outer6) = (side.outer(false), side.outer(true));
    let (hop, hop6) = (router(outer), router(outer6));
    let batch = |namespace: &Namespace, lines: &[String]| {
        namespace.ip_batch(lines).unwrap_or_else(|e| panic!("{e}"));
    };
    batch(
        wan,
        &[
            format!("address add {hop}/24 dev {}", side.id()),
            format!("address add {hop6}/64 dev {} nodad", side.id()),
        ],
    );
    batch(
        &namespace,
        &[
            format!("address add {outer}/24 dev black0"),
            format!("address add {outer6}/64 dev black0 nodad"),
            format!("address add 172.16.{n}.2/30 dev red0"),
            format!("address add fd00:{n}::2/64 dev red0 nodad"),
            format!("route add default via {hop}"),
            format!("route add ::/0 via {hop6}"),
            format!("route add 10.{n}.0.0/16 via 172.16.{n}.1"),
            format!("route add fd0{n}::/32 via fd00:{n}::1"),
        ],
    );
    // ping binds to the address it is told to use, also to one that is there by a local route only.
    host.sysctl("net.ipv6.ip_nonlocal_bind", "1").expect("a setting");
    batch(
        &host,
        &[
            format!("address add 172.16.{n}.1/30 dev eth0"),
            format!("address add fd00:{n}::1/64 dev eth0 nodad"),
            format!("route add default via 172.16.{n}.2"),
            format!("route add ::/0 via fd00:{n}::2"),
            // A local route makes the host answer for the whole network.
            format!("route add local 10.{n}.0.0/16 dev lo"),
            format!("route add local fd0{n}::/32 dev lo"),
        ],
    );
    let gateway = Gateway::start_with(&namespace, &["red0", "black0"], cores, lines);
    End { gateway, namespace, host }
}

/// The router's address on an end's outer network.
fn router(outer: &str) -> String {
    let network = outer.strip_suffix('2').expect("the ends are number two");
    format!("{network}1")
}
