//! A NAT between two gateways, which forgets under traffic: the port that the far gateway sees changes,
//! the IKE daemon hears of it (MAPPING) and moves the SAs, and no packet is lost but those that
//! went to the old port before.
//!
//! ```text
//!  left hosts ── [ west ] ── 10.9.0.2 ── NAT ── 192.0.2.254 ─── 192.0.2.1 ── [ east ] ── right hosts
//!   16.0.0.1                :4500       nftables    :1024, :1025, …  :4500              48.0.0.1
//! ```

mod gateway;
mod mobility;

use std::collections::HashMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gateway::{Cores, Gateway, verdicts};
use lab::topology::{Namespace, Veth};
use mobility::{Daemon, Peer};
use serde_json::Value;
use wire::xfrm::address::{Be32, family_of};
use wire::xfrm::number::IPPROTO_ESP;
use wire::xfrm::sa::UsersaId;

/// Port of IKE and ESP behind a NAT.
const PORT: u16 = 4500;
/// The NAT's first port.
const MAPPED: u16 = 1024;
/// How often the NAT forgets. Each is a chance for a packet to be lost or to come twice.
const ROUNDS: u16 = 6;
/// A move that took longer between DELSA and NEWSA than an SA stays in force shows nothing: the
/// machine was busy elsewhere. Other rounds must do.
const MOVE_MAX: Duration = Duration::from_millis(30);
/// Packets between two steps of the test.
const FLOWING: u64 = 100;
const PATIENCE: Duration = Duration::from_secs(30);
/// How packets of an SA end that is out of force because its move was late: those that come, and those that wait for it to leave.
const LATE_IN: &str = "no_state";
const LATE_OUT: [&str; 3] = ["no_sa", "hold_full", "hold_expired"];
const WEST_SPI: u32 = 0x1001;
const EAST_SPI: u32 = 0x2001;

/// The addresses of a family.
struct Addresses {
    west: IpAddr,
    inside: IpAddr,
    outside: IpAddr,
    east: IpAddr,
    prefix: u8,
    nat_family: &'static str,
}

impl Addresses {
    fn v4() -> Addresses {
        Addresses {
            west: IpAddr::from([10, 9, 0, 2]),
            inside: IpAddr::from([10, 9, 0, 1]),
            outside: IpAddr::from([192, 0, 2, 254]),
            east: IpAddr::from([192, 0, 2, 1]),
            prefix: 24,
            nat_family: "ip",
        }
    }

    fn v6() -> Addresses {
        let address = |text: &str| text.parse().expect("an address");
        Addresses {
            west: address("fd09::2"),
            inside: address("fd09::1"),
            outside: address("2001:db8:b::254"),
            east: address("2001:db8:b::1"),
            prefix: 64,
            nat_family: "ip6",
        }
    }
}

/// How often each number arrived.
type Arrived = HashMap<u64, u32>;

/// A numbered flow of UDP packets between hosts behind the gateways.
struct Flow {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    arrived: Arc<AtomicU64>,
    threads: Option<(JoinHandle<()>, JoinHandle<Arrived>)>,
}

impl Flow {
    fn start(from: (&Namespace, &str), to: (&Namespace, &str)) -> Flow {
        let socket = |(namespace, address): (&Namespace, &str)| {
            let bound = namespace.scope(|| UdpSocket::bind((address, 0)));
            bound.expect("the namespace is there").expect("a socket")
        };
        let (sender, receiver) = (socket(from), socket(to));
        // What a busy machine delays must not overflow: a second of packets.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&receiver, 8 << 20)
            .expect("a large buffer");
        sender.connect(receiver.local_addr().expect("an address")).expect("a route");
        let (stop, sent, arrived) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let sending = {
            let (stop, sent) = (stop.clone(), sent.clone());
            thread::spawn(move || {
                while !stop.load(SeqCst) {
                    // Counted first: who reads the count knows that no later packet has a lower number.
                    let number = sent.fetch_add(1, SeqCst);
                    let _ = sender.send(&number.to_be_bytes());
                    thread::sleep(Duration::from_micros(500));
                }
            })
        };
        let receiving = {
            let (stop, arrived) = (stop.clone(), arrived.clone());
            receiver.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
            thread::spawn(move || {
                let mut seen = HashMap::new();
                let mut bytes = [0; 64];
                loop {
                    match receiver.recv(&mut bytes) {
                        Ok(8) => {
                            let number = bytes.first_chunk().expect("eight bytes");
                            *seen.entry(u64::from_be_bytes(*number)).or_default() += 1;
                            arrived.fetch_add(1, SeqCst);
                        }
                        Err(_) if stop.load(SeqCst) => return seen,
                        other => drop(other),
                    }
                }
            })
        };
        Flow { stop, sent, arrived, threads: Some((sending, receiving)) }
    }

    fn sent(&self) -> u64 {
        self.sent.load(SeqCst)
    }

    /// Waits until so many more have arrived.
    fn wait_for_more(&self, what: &str) {
        let (start, end) = (self.arrived.load(SeqCst), Instant::now() + PATIENCE);
        while self.arrived.load(SeqCst) < start + FLOWING {
            assert!(Instant::now() < end, "packets do not arrive {what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends it; how many were sent, and how often each arrived.
    fn end(mut self) -> (u64, Arrived) {
        self.stop.store(true, SeqCst);
        let (sending, receiving) = self.threads.take().expect("it runs");
        sending.join().expect("the sender ends");
        (self.sent(), receiving.join().expect("the receiver ends"))
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
    }
}

struct Bench {
    addresses: Addresses,
    left: Namespace,
    west_space: Namespace,
    nat: Namespace,
    east_space: Namespace,
    right: Namespace,
    west: Gateway,
    east: Gateway,
}

impl Bench {
    fn new(addresses: Addresses) -> Bench {
        let namespace = |name| Namespace::new(name).expect("a namespace");
        let (left, west_space, nat, east_space, right) = (
            namespace("left"),
            namespace("west"),
            namespace("nat"),
            namespace("east"),
            namespace("right"),
        );
        for (one, other) in [
            ((&left, "red0"), (&west_space, "red0")),
            ((&west_space, "black0"), (&nat, "inside")),
            ((&nat, "outside"), (&east_space, "black0")),
            ((&east_space, "red0"), (&right, "red0")),
        ] {
            Veth::new(one, other, 1).expect("a veth pair");
        }
        let Addresses { west, inside, outside, east, prefix, .. } = &addresses;
        let host = |address: &str, far: &str| {
            let gateway = if address.starts_with("16") { "16.0.0.254" } else { "48.0.0.254" };
            vec![
                format!("address add {address}/24 dev red0"),
                format!("route add {far} via {gateway}"),
            ]
        };
        left.ip_batch(&host("16.0.0.1", "48.0.0.0/24")).expect("addresses");
        right.ip_batch(&host("48.0.0.1", "16.0.0.0/24")).expect("addresses");
        west_space
            .ip_batch(&[
                "address add 16.0.0.254/24 dev red0".to_owned(),
                format!("address add {west}/{prefix} dev black0"),
                format!("route add {east} via {inside}"),
            ])
            .expect("addresses");
        east_space
            .ip_batch(&[
                "address add 48.0.0.254/24 dev red0".to_owned(),
                format!("address add {east}/{prefix} dev black0"),
            ])
            .expect("addresses");
        nat.ip_batch(&[
            format!("address add {inside}/{prefix} dev inside"),
            format!("address add {outside}/{prefix} dev outside"),
        ])
        .expect("addresses");
        nat.sysctl("net.ipv4.ip_forward", "1").expect("a router");
        nat.sysctl("net.ipv6.conf.all.forwarding", "1").expect("a router");
        let west = Gateway::start(&west_space, &["red0", "black0"], Cores::Any(0));
        let east = Gateway::start(&east_space, &["red0", "black0"], Cores::Any(0));
        let bench = Bench { addresses, left, west_space, nat, east_space, right, west, east };
        bench.map_to(MAPPED);
        bench.install();
        bench
    }

    /// From now on the NAT gives west's port another number, and has forgotten the one it had.
    fn map_to(&self, port: u16) {
        let Addresses { west, outside, nat_family, .. } = &self.addresses;
        let to = match outside {
            IpAddr::V4(address) => format!("{address}:{port}"),
            IpAddr::V6(address) => format!("[{address}]:{port}"),
        };
        let rules = format!(
            "table {nat_family} nat\ndelete table {nat_family} nat\ntable {nat_family} nat {{\n\
             chain post {{\ntype nat hook postrouting priority srcnat;\n\
             {nat_family} saddr {west} udp sport {PORT} snat to {to}\n}}\n}}\n"
        );
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("nat.nft");
        std::fs::write(&file, rules).expect("the rules are written");
        self.nat.run("nft", &["-f", file.to_str().expect("a plain path")]).expect("nft works");
        // Without an entry there is nothing to delete, and the tool says so by its exit code.
        let family = if outside.is_ipv4() { "ipv4" } else { "ipv6" };
        let _ = self.nat.run("conntrack", &["-D", "-f", family, "-p", "udp"]);
    }

    /// The SAs and policies of both gateways, as an IKE daemon leaves them after it saw the NAT.
    fn install(&self) {
        let Addresses { west, outside, east, .. } = &self.addresses;
        let any = if east.is_ipv4() { "0.0.0.0" } else { "::" };
        let state = |(src, sport): (&IpAddr, u16), (dst, dport): (&IpAddr, u16), spi: u32| {
            let key = format!("{spi:08x}").repeat(5);
            format!(
                "xfrm state add src {src} dst {dst} proto esp spi {spi:#x} reqid 1 mode tunnel \
                 replay-window 1024 flag esn af-unspec encap espinudp {sport} {dport} {any} \
                 aead rfc4106(gcm(aes)) 0x{key} 128"
            )
        };
        let policy = |dir: &str, from: &str, to: &str, src: &IpAddr, dst: &IpAddr| {
            format!(
                "xfrm policy add src {from} dst {to} dir {dir} \
                 tmpl src {src} dst {dst} proto esp reqid 1 mode tunnel"
            )
        };
        let (left, right) = ("16.0.0.0/24", "48.0.0.0/24");
        self.west.xfrm(&[
            state((west, PORT), (east, PORT), EAST_SPI),
            state((east, PORT), (west, PORT), WEST_SPI),
            policy("out", left, right, west, east),
            policy("fwd", right, left, east, west),
        ]);
        self.east.xfrm(&[
            state((outside, MAPPED), (east, PORT), EAST_SPI),
            state((east, PORT), (outside, MAPPED), WEST_SPI),
            policy("out", right, left, east, outside),
            policy("fwd", left, right, outside, east),
        ]);
    }

    fn sa(spi: u32, destination: IpAddr) -> UsersaId {
        UsersaId {
            daddr: destination.into(),
            spi: Be32::new(spi),
            family: family_of(destination),
            proto: IPPROTO_ESP,
            pad: 0,
        }
    }
}

/// A count of the steering program's on the outer port.
fn steered(gateway: &Gateway, name: &str) -> u64 {
    let ports = gateway.show("ports");
    let port = |port: &&Value| port["name"] == "black0";
    let found = ports.as_array().and_then(|ports| ports.iter().find(port)).expect("the port");
    let counts = found["steering"].as_array().expect("a list of counts");
    let count = counts.iter().find(|one| one["name"] == name);
    count.and_then(|one| one["count"].as_u64()).unwrap_or_else(|| panic!("no {name} in {found}"))
}

#[test]
fn a_nat_forgets_under_traffic_over_ipv4() {
    rebind_under_traffic(Addresses::v4());
}

#[test]
fn a_nat_forgets_under_traffic_over_ipv6() {
    rebind_under_traffic(Addresses::v6());
}

fn rebind_under_traffic(addresses: Addresses) {
    let bench = Bench::new(addresses);
    let Addresses { outside, east, .. } = bench.addresses;
    let daemon = Daemon::start(&bench.east.name);
    let (inbound, outbound) = (Bench::sa(EAST_SPI, east), Bench::sa(WEST_SPI, outside));
    // The kernels resolve their neighbours with the first packets, some of which are lost.
    for (from, to) in [
        ((&bench.left, "16.0.0.1"), (&bench.right, "48.0.0.1")),
        ((&bench.right, "48.0.0.1"), (&bench.left, "16.0.0.1")),
    ] {
        let warm = Flow::start(from, to);
        warm.wait_for_more("at first");
        warm.end();
    }
    let there = Flow::start((&bench.left, "16.0.0.1"), (&bench.right, "48.0.0.1"));
    let back = Flow::start((&bench.right, "48.0.0.1"), (&bench.left, "16.0.0.1"));
    // Numbers on their way back that may be lost: those sent to a port that the NAT had forgotten.
    let mut excused = Vec::new();
    let mut strict = 0;
    for round in 1..=ROUNDS {
        there.wait_for_more("from behind the NAT");
        back.wait_for_more("to behind the NAT");
        daemon.forget_mappings();
        let (old, new) = (MAPPED + round - 1, MAPPED + round);
        // What was sent 100 packets ago has long gone through the NAT.
        let before = back.sent().saturating_sub(FLOWING);
        bench.map_to(new);
        let mapping = daemon.mapping();
        assert_eq!(mapping.id, inbound, "round {round}");
        assert_eq!((mapping.old_saddr, mapping.new_saddr), (outside.into(), outside.into()));
        assert_eq!((mapping.old_sport.get(), mapping.new_sport.get()), (old, new));
        assert_eq!(mapping.reqid, 1);
        let away = [
            daemon.move_sa(&inbound, Peer::SendsFrom(new)),
            daemon.move_sa(&outbound, Peer::ReceivesOn(new)),
        ];
        if away.iter().all(|away| *away < MOVE_MAX) {
            strict += 1;
        }
        excused.push((before, back.sent(), away));
    }
    // Moves to where they are already: now every packet arrives, and one whose number was taken before
    // would not be taken again.
    for _ in 0..ROUNDS {
        there.wait_for_more("between moves");
        back.wait_for_more("between moves");
        let port = MAPPED + ROUNDS;
        let away = [
            daemon.move_sa(&inbound, Peer::SendsFrom(port)),
            daemon.move_sa(&outbound, Peer::ReceivesOn(port)),
        ];
        excused.push((0, 0, away));
    }
    assert!(strict >= ROUNDS / 2, "the machine is too busy to tell anything: {excused:?}");
    there.wait_for_more("from behind the NAT, after all");
    back.wait_for_more("to behind the NAT, after all");
    let moved_late = excused.iter().any(|(.., away)| away.iter().any(|one| *one >= MOVE_MAX));
    let (sent, arrived) = there.end();
    let lost: Vec<u64> = (0..sent).filter(|number| !arrived.contains_key(number)).collect();
    let late = |names: &[&str]| names.iter().map(|name| bench.east.verdict(name)).sum::<u64>();
    assert_eq!(lost.len() as u64, late(&[LATE_IN]), "lost on the way there: {lost:?} of {sent}");
    assert!(arrived.values().all(|times| *times == 1), "twice on the way there");
    let (sent, arrived) = back.end();
    let lost = (0..sent).filter(|number| !arrived.contains_key(number));
    let lost: Vec<u64> = lost
        .filter(|number| !excused.iter().any(|(from, to, _)| (*from..*to).contains(number)))
        .collect();
    let held = late(&LATE_OUT);
    assert!(
        lost.len() as u64 <= held,
        "lost on the way back: {lost:?} of {sent}, excused {held} and {excused:?}"
    );
    assert!(arrived.values().all(|times| *times == 1), "twice on the way back");
    // Every number was accepted once, and nothing met a moment without its SA but where a move was late.
    for (gateway, moved_late) in [(&bench.west, false), (&bench.east, moved_late)] {
        let ends = verdicts(&gateway.show("drops"));
        for (name, count) in ends {
            let name = name.as_str();
            let usual = ["sealed", "opened", "neighbour_unresolved"].contains(&name);
            let late = moved_late && (name == LATE_IN || LATE_OUT.contains(&name));
            assert!(count == 0 || usual || late, "{count} × {name} at {}", gateway.name);
        }
    }
}

#[test]
fn what_else_comes_to_the_port_goes_where_it_belongs() {
    let bench = Bench::new(Addresses::v4());
    let Addresses { west, east, .. } = bench.addresses;
    let bind = |namespace: &Namespace, address: IpAddr| {
        let bound = namespace.scope(|| UdpSocket::bind((address, PORT)));
        bound.expect("the namespace is there").expect("a socket")
    };
    let ike_west = bind(&bench.west_space, west);
    let ike_east = bind(&bench.east_space, east);
    ike_east.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let to_east = |bytes: &[u8]| {
        ike_west.send_to(bytes, (east, PORT)).expect("it is sent");
    };
    // IKE, behind its marker, through the NAT to the daemon's socket.
    let ike = [&[0; 4][..], b"an IKE message"].concat();
    let mut bytes = [0; 64];
    to_east(&ike);
    let (len, from) = ike_east.recv_from(&mut bytes).expect("IKE arrives");
    assert_eq!((&bytes[..len], from.port()), (&ike[..], MAPPED));
    assert_eq!(steered(&bench.east, "pass_keepalive"), 0);
    for _ in 0..3 {
        to_east(&[0xff]);
    }
    bench.east.wait("three keepalives", |east| steered(east, "pass_keepalive") == 3);
    // An SPI that nobody has, ESP cut short, and a forgery.
    to_east(&[0x55; 64]);
    to_east(&[0x55; 7]);
    let forged = [&EAST_SPI.to_be_bytes()[..], &1u32.to_be_bytes(), &[0xaa; 48]].concat();
    to_east(&forged);
    for verdict in ["no_state", "esp_truncated", "integrity_failed"] {
        bench.east.wait(verdict, |east| east.verdict(verdict) == 1);
    }
    // With its SAs gone the port is the kernel's again.
    bench.east.xfrm(&["xfrm state flush".to_owned()]);
    to_east(&[0x55; 64]);
    bench.east.wait("the kernel's", |_| {
        ike_east.recv_from(&mut bytes).is_ok_and(|(len, _)| bytes[..len] == [0x55; 64])
    });
    assert_eq!(bench.east.verdict("no_state"), 1);
}
