//! SAs of single CPUs (RFC 9611) and packets that wait for an SA, between two gateways with two
//! workers each on two-queue interfaces. Requests are raw netlink: Debian's iproute2 knows neither
//! `XFRMA_SA_PCPU` nor the policy flag.
//!
//! ```text
//!  left ── red ─ west ─ black ── black ─ east ─ red ── right
//! 10.1.0.2      (2 workers)      (2 workers)        10.2.0.2
//! ```

mod gateway;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use gateway::{Cores, Gateway};
use lab::topology::{Namespace, Veth};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use wire::xfrm::Builder;
use wire::xfrm::address::{Be32, Selector};
use wire::xfrm::algorithm::{AlgorithmAead, Name};
use wire::xfrm::event::UserExpire;
use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::message::Message;
use wire::xfrm::netlink::{Datagram, Header, NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR};
use wire::xfrm::number::{
    AF_INET, IPPROTO_ESP, attr, direction, group, mode, msg, policy_flag, sa_flag,
};
use wire::xfrm::policy::{UserTmpl, UserpolicyInfo};
use wire::xfrm::sa::{UsersaId, UsersaInfo};
use wire::xfrm::shim;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// How long something may take on a busy two-core machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Flows of the traffic: enough that both queues get some.
const FLOWS: u16 = 24;

/// The tunnel's ends, and the reqid of everything.
const WEST: [u8; 4] = [192, 0, 2, 1];
const EAST: [u8; 4] = [192, 0, 2, 2];
const REQID: u32 = 7;

/// A program that speaks XFRM to a gateway.
struct Client(OwnedFd);

impl Client {
    /// Bound to a mask of groups.
    fn new(gateway: &Gateway, groups: u32) -> Client {
        let path = format!("/run/peregrine/{}/xfrm.sock", gateway.name);
        let flags = SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&fd, &SocketAddrUnix::new(path).unwrap()).expect("the gateway listens");
        let client = Client(fd);
        let frame = shim::Frame::bind(std::process::id(), groups);
        send(&client.0, frame.as_bytes(), SendFlags::empty()).unwrap();
        // Frames of this kind are not answered. What comes after them is, and in the second answer it
        // is in force that somebody listens.
        client.ask(msg::GETSADINFO, &0u32, &[]);
        client.ask(msg::GETSADINFO, &0u32, &[]);
        client
    }

    /// Asks, and returns when what was asked for is in force.
    fn ask<T: IntoBytes + Immutable>(&self, kind: u16, fixed: &T, rest: &[(u16, &[u8])]) {
        let flags = NLM_F_REQUEST | NLM_F_ACK;
        let header = Header { kind, flags, seq: 1, ..Header::default() };
        let mut bytes = Vec::new();
        let mut message = Builder::new(&mut bytes, header).fixed(fixed);
        for (kind, value) in rest {
            message = message.attribute_parts(*kind, &[value]);
        }
        message.finish();
        send(&self.0, &bytes, SendFlags::empty()).unwrap();
        loop {
            let answer = self.next(RecvFlags::empty()).expect("an answer");
            let (header, _) = Header::read_from_prefix(&answer).unwrap();
            if header.kind == NLMSG_ERROR {
                let code = i32::read_from_bytes(&answer[16..20]).unwrap();
                assert_eq!(code, 0, "{} was refused", wire::xfrm::message::name(kind));
                return;
            }
        }
    }

    fn next(&self, flags: RecvFlags) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 65536];
        let (_, len) = recv(&self.0, &mut buffer[..], flags).ok()?;
        buffer.truncate(len);
        Some(buffer)
    }

    /// The events of a type that came so far: their bodies, and their attributes by type.
    fn heard<T: FromBytes>(&self, kind: u16) -> Vec<(T, BTreeMap<u16, Vec<u8>>)> {
        let mut events = Vec::new();
        while let Some(bytes) = self.next(RecvFlags::DONTWAIT) {
            for (header, bytes) in Datagram::new(&bytes) {
                if header.kind == kind {
                    let message = Message::new(header, bytes, size_of::<T>()).unwrap();
                    let attributes = message.attributes().map(|a| (a.kind, a.payload.to_vec()));
                    events.push((message.fixed().unwrap(), attributes.collect()));
                }
            }
        }
        events
    }

    fn add_sa(&self, spi: u32, cpu: Option<u32>, limits: LifetimeConfig) {
        let (source, destination) = if spi < 0x200 { (WEST, EAST) } else { (EAST, WEST) };
        let mut info = UsersaInfo {
            saddr: IpAddr::from(source).into(),
            lft: limits,
            reqid: REQID,
            family: AF_INET,
            mode: mode::TUNNEL,
            replay_window: 32,
            flags: sa_flag::AF_UNSPEC,
            ..UsersaInfo::default()
        };
        info.id = id(spi, destination);
        let name = Name::new("rfc4106(gcm(aes))");
        let head = AlgorithmAead { name, key_len: 160, icv_len: 128 };
        let key = [head.as_bytes(), &spi.to_be_bytes().repeat(5)].concat();
        let cpu = cpu.map(u32::to_ne_bytes);
        let mut rest = vec![(attr::ALG_AEAD, &key[..])];
        rest.extend(cpu.iter().map(|cpu| (attr::SA_PCPU, &cpu[..])));
        self.ask(msg::NEWSA, &info, &rest);
    }

    fn delete_sa(&self, spi: u32) {
        let destination = if spi < 0x200 { EAST } else { WEST };
        let wire::xfrm::address::Id { daddr, spi, proto, .. } = id(spi, destination);
        let named = UsersaId { daddr, spi, family: AF_INET, proto, pad: 0 };
        self.ask(msg::DELSA, &named, &[]);
    }

    /// The policy for packets of a direction, which go to `net`.0/24.
    fn add_policy(&self, dir: u8, (from, to): ([u8; 3], [u8; 3]), ends: [[u8; 4]; 2], flags: u8) {
        let network = |[a, b, c]: [u8; 3]| IpAddr::from([a, b, c, 0]).into();
        let sel = Selector {
            saddr: network(from),
            daddr: network(to),
            prefixlen_s: 24,
            prefixlen_d: 24,
            family: AF_INET,
            ..Selector::default()
        };
        let lft = LifetimeConfig::UNLIMITED;
        let info = UserpolicyInfo { sel, lft, dir, flags, ..UserpolicyInfo::default() };
        let template = UserTmpl {
            id: id(0, ends[1]),
            family: AF_INET,
            saddr: IpAddr::from(ends[0]).into(),
            reqid: REQID,
            mode: mode::TUNNEL,
            aalgos: u32::MAX,
            ealgos: u32::MAX,
            calgos: u32::MAX,
            ..UserTmpl::default()
        };
        self.ask(msg::NEWPOLICY, &info, &[(attr::TMPL, template.as_bytes())]);
    }
}

fn id(spi: u32, destination: [u8; 4]) -> wire::xfrm::address::Id {
    wire::xfrm::address::Id {
        daddr: IpAddr::from(destination).into(),
        spi: Be32::new(spi),
        proto: IPPROTO_ESP,
        ..Default::default()
    }
}

/// The picture.
struct Bench {
    west: Gateway,
    east: Gateway,
    left: Namespace,
    /// Receives at the right; its number is the next packet's.
    sink: UdpSocket,
    sent: u32,
    _others: [Namespace; 3],
}

impl Bench {
    fn new(cores: Cores<'_>) -> Bench {
        let [left, west, east, right] = ["left", "west", "east", "right"]
            .map(|name| Namespace::new(name).expect("a namespace"));
        let queues = cores.queues();
        Veth::new((&left, "host0"), (&west, "red0"), queues).expect("a veth pair");
        Veth::new((&west, "black0"), (&east, "black0"), queues).expect("a veth pair");
        Veth::new((&east, "red0"), (&right, "host0"), queues).expect("a veth pair");
        let run = |namespace: &Namespace, lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            namespace.ip_batch(&lines).expect("addresses and routes");
        };
        run(&left, &["address add 10.1.0.2/24 dev host0", "route add default via 10.1.0.1"]);
        run(&right, &["address add 10.2.0.2/24 dev host0", "route add default via 10.2.0.1"]);
        run(
            &west,
            &[
                "address add 10.1.0.1/24 dev red0",
                "address add 192.0.2.1/24 dev black0",
                "route add 10.2.0.0/16 via 192.0.2.2",
            ],
        );
        run(
            &east,
            &[
                "address add 10.2.0.1/24 dev red0",
                "address add 192.0.2.2/24 dev black0",
                "route add 10.1.0.0/16 via 192.0.2.1",
            ],
        );
        let sink = right.scope(|| UdpSocket::bind("10.2.0.2:7000")).unwrap().expect("a socket");
        sink.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let ports = ["red0", "black0"];
        Bench {
            west: Gateway::start(&west, &ports, cores),
            east: Gateway::start(&east, &ports, cores),
            left,
            sink,
            sent: 0,
            _others: [west, east, right],
        }
    }

    /// Both gateways' policies; the outbound ones with these flags.
    fn add_policies(&self, flags: u8) {
        let (left, right) = ([10, 1, 0], [10, 2, 0]);
        for (gateway, here, there, ends) in
            [(&self.west, left, right, [WEST, EAST]), (&self.east, right, left, [EAST, WEST])]
        {
            let client = Client::new(gateway, 0);
            client.add_policy(direction::OUT, (here, there), ends, flags);
            client.add_policy(direction::FWD, (there, here), [ends[1], ends[0]], 0);
        }
    }

    /// The same SA in both gateways, as its receiver and then as its sender has it.
    fn add_sa(&self, spi: u32, cpu: Option<u32>) {
        for gateway in [&self.east, &self.west] {
            Client::new(gateway, 0).add_sa(spi, cpu, LifetimeConfig::UNLIMITED);
        }
    }

    /// Sends one packet in each of many flows from the left.
    fn send_round(&mut self) {
        let first = self.sent;
        let round = || {
            for flow in 0..FLOWS {
                let socket = UdpSocket::bind(("10.1.0.2", 4000 + flow)).expect("a socket");
                let number = first + u32::from(flow);
                // Refused only by a neighbour that is not known yet.
                let _ = socket.send_to(&number.to_be_bytes(), "10.2.0.2:7000");
            }
        };
        self.left.scope(round).expect("the left side");
        self.sent += u32::from(FLOWS);
    }

    /// The numbers of packets from `first` on, until so many arrived or the time is over.
    fn arrived(&self, first: u32, count: usize, patience: Duration) -> Vec<u32> {
        let end = Instant::now() + patience;
        let mut numbers = Vec::new();
        let mut buffer = [0; 64];
        while numbers.len() < count && Instant::now() < end {
            let Ok(len) = self.sink.recv(&mut buffer) else { continue };
            let number = u32::from_be_bytes(buffer[..len].try_into().expect("a number"));
            numbers.extend((number >= first).then_some(number));
        }
        numbers
    }

    /// Sends until whole rounds arrive: neighbours are known then, and the tunnel works.
    fn warm_up(&mut self) {
        let end = Instant::now() + PATIENCE;
        while self.lost_of_a_round(Duration::from_secs(1)) != 0 {
            assert!(Instant::now() < end, "no round arrives; west:\n{}", self.west.log());
        }
    }

    fn lost_of_a_round(&mut self, patience: Duration) -> usize {
        let (first, all) = (self.sent, usize::from(FLOWS));
        self.send_round();
        let arrived: BTreeSet<u32> = self.arrived(first, all, patience).into_iter().collect();
        all - arrived.len()
    }

    /// Some rounds of which not a packet is lost.
    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            assert_eq!(self.lost_of_a_round(PATIENCE), 0, "packets were lost");
        }
    }
}

/// Packets of a gateway's SAs by SPI.
fn by_sa(gateway: &Gateway) -> BTreeMap<u64, u64> {
    let sas = gateway.show("sa");
    let number = |sa: &serde_json::Value, field: &str| sa[field].as_u64().expect("a number");
    let sas = sas.as_array().expect("a list").iter();
    sas.map(|sa| (number(sa, "spi"), number(sa, "packets"))).collect()
}

/// Of each worker, packets sealed by its own SA and by the fallback.
fn by_worker(gateway: &Gateway) -> Vec<(u64, u64)> {
    let workers = gateway.show("workers");
    let count = |worker: &serde_json::Value, field: &str| worker[field].as_u64().expect("a count");
    let each = workers.as_array().expect("a list").iter();
    each.map(|one| (count(one, "own_sa_packets"), count(one, "fallback_sa_packets"))).collect()
}

#[test]
fn each_worker_seals_with_the_sa_of_its_cpu_and_asks_for_it() {
    let mut bench = Bench::new(Cores::These(&[0, 1]));
    bench.add_policies(policy_flag::CPU_ACQUIRE);
    bench.add_sa(0x100, None);
    bench.add_sa(0x110, Some(0));
    let listener = Client::new(&bench.west, group::bit(group::ACQUIRE));
    bench.warm_up();
    bench.rounds(3);

    // Worker 1 has none of its own: it uses the fallback, and asks once, with its CPU.
    let [(own_0, fallback_0), (own_1, fallback_1)] = by_worker(&bench.west)[..] else { panic!() };
    assert!(own_0 > 0 && fallback_1 > 0, "both queues got flows");
    assert_eq!((fallback_0, own_1), (0, 0));
    assert_eq!(by_sa(&bench.west), [(0x100, fallback_1), (0x110, own_0)].into());
    let mut asked = Vec::new();
    bench.west.wait("the ACQUIRE", |_| {
        asked.extend(listener.heard::<[u8; 280]>(msg::ACQUIRE));
        !asked.is_empty()
    });
    bench.rounds(1);
    asked.extend(listener.heard::<[u8; 280]>(msg::ACQUIRE));
    let cpus: Vec<_> = asked.iter().map(|(_, a)| a.get(&attr::SA_PCPU).cloned()).collect();
    assert_eq!(cpus, [Some(1u32.to_ne_bytes().to_vec())], "once, with the worker's CPU");

    // The answer: each worker has its own, and the other end opens both.
    bench.add_sa(0x111, Some(1));
    let (before, opened) = (by_sa(&bench.west), by_sa(&bench.east));
    bench.rounds(3);
    let after = by_sa(&bench.west);
    assert_eq!(after[&0x100], before[&0x100], "nobody uses the fallback any more");
    assert!(after[&0x110] > before[&0x110] && after[&0x111] > 0);
    assert_eq!(by_worker(&bench.west)[1].0, after[&0x111]);
    let east = by_sa(&bench.east);
    for spi in [0x110, 0x111] {
        let sealed = after[&spi] - before[&spi];
        assert_eq!(east[&spi] - opened[&spi], sealed, "{spi:#x}: all that was sealed was opened");
    }

    // Without the fallback both go on. A rekey takes over at once; the old one still opens.
    for gateway in [&bench.west, &bench.east] {
        Client::new(gateway, 0).delete_sa(0x100);
    }
    bench.rounds(2);
    bench.add_sa(0x121, Some(1));
    let before = by_sa(&bench.west)[&0x111];
    bench.rounds(2);
    let after = by_sa(&bench.west);
    assert_eq!(after[&0x111], before);
    assert!(after[&0x121] > 0);
}

#[test]
fn sas_of_cpus_without_a_worker_are_folded_onto_those_there_are() {
    let mut bench = Bench::new(Cores::These(&[0]));
    bench.add_policies(0);
    bench.add_sa(0x100, None);
    bench.add_sa(0x111, Some(1));
    bench.warm_up();
    bench.rounds(2);
    let sas = by_sa(&bench.west);
    assert_eq!(sas[&0x100], 0);
    assert!(sas[&0x111] > 0);
    let shown = bench.west.show("sa");
    let bound = shown.as_array().unwrap().iter().find(|sa| sa["spi"] == 0x111).unwrap();
    assert_eq!((bound["cpu"].as_u64(), bound["worker"].as_u64()), (Some(1), Some(0)));
    // The newest of two for one worker seals, both open.
    bench.add_sa(0x110, Some(0));
    bench.rounds(2);
    assert_eq!(by_sa(&bench.west)[&0x111], sas[&0x111]);
    assert!(by_sa(&bench.west)[&0x110] > 0);
}

#[test]
fn the_packet_that_asks_for_a_tunnel_waits_for_it_and_no_longer_than_it_may() {
    let mut bench = Bench::new(Cores::These(&[0]));
    bench.add_policies(0);
    // Neighbours become known by traffic of another tunnel, which then goes away.
    bench.add_sa(0x100, None);
    bench.warm_up();
    for gateway in [&bench.west, &bench.east] {
        Client::new(gateway, 0).delete_sa(0x100);
    }
    let send = |payload: [u8; 4]| {
        let socket = UdpSocket::bind("10.1.0.2:0").expect("a socket");
        socket.send_to(&payload, "10.2.0.2:7000").expect("a packet");
    };
    // Nobody would answer: dropped at once.
    let before = bench.west.verdict("no_sa");
    bench.left.scope(|| send([0xfe; 4])).expect("the left side");
    bench.west.wait("the drop", |west| west.verdict("no_sa") == before + 1);
    let listener = Client::new(&bench.west, group::bit(group::ACQUIRE));
    bench.left.scope(|| send([0xff; 4])).expect("the left side");
    let mut asked = Vec::new();
    bench.west.wait("the ACQUIRE", |_| {
        asked.extend(listener.heard::<[u8; 280]>(msg::ACQUIRE));
        !asked.is_empty()
    });
    assert!(!asked[0].1.contains_key(&attr::SA_PCPU), "for everybody");
    bench.add_sa(0x101, None);
    assert_eq!(bench.arrived(0, 1, PATIENCE), [u32::MAX], "the packet that waited");
    let more = bench.arrived(0, 1, Duration::from_millis(200));
    assert!(more.is_empty(), "once");

    // More than may wait, and for longer.
    for gateway in [&bench.west, &bench.east] {
        Client::new(gateway, 0).delete_sa(0x101);
    }
    bench.send_round();
    let extra = u64::from(FLOWS) - 16;
    bench.west.wait("the hold to be full", |west| west.verdict("hold_full") == extra);
    bench.west.wait("the end of the wait", |west| west.verdict("hold_expired") == 16);
    assert!(bench.arrived(0, 1, Duration::from_millis(200)).is_empty());
    let status = bench.west.show("status");
    assert_eq!(status["received_packets"], status["accounted_packets"], "the accounts close");
    drop(listener);
}

#[test]
fn a_soft_limit_in_packets_is_announced_for_the_cpu_and_a_hard_one_ends_the_sa() {
    let mut bench = Bench::new(Cores::These(&[0]));
    bench.add_policies(0);
    bench.add_sa(0x100, None);
    bench.warm_up();
    let listener = Client::new(&bench.west, group::bit(group::EXPIRE));
    let flows = u64::from(FLOWS);
    let limits = LifetimeConfig {
        soft_packet_limit: flows,
        hard_packet_limit: 2 * flows,
        ..LifetimeConfig::UNLIMITED
    };
    Client::new(&bench.east, 0).add_sa(0x110, Some(0), LifetimeConfig::UNLIMITED);
    Client::new(&bench.west, 0).add_sa(0x110, Some(0), limits);
    for hard in [0, 1] {
        bench.rounds(1);
        let mut heard = Vec::new();
        bench.west.wait("EXPIRE", |_| {
            heard.extend(listener.heard::<UserExpire>(msg::EXPIRE));
            !heard.is_empty()
        });
        let (body, attributes) = &heard[0];
        assert_eq!((body.state.id.spi.get(), body.hard, heard.len()), (0x110, hard, 1));
        assert_eq!(attributes[&attr::SA_PCPU], 0u32.to_ne_bytes());
    }
    bench.west.wait("the SA to go", |west| !by_sa(west).contains_key(&0x110));
    // The fallback is there still.
    bench.rounds(1);
}
