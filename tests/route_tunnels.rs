//! Route mode with many tunnels: each of them carries packets both ways, and its own only.
//!
//! ```text
//!  host 10.64.T ─ west ═══════ a tunnel for each T ═══════ east ─ host 10.128.T
//! ```
//!
//! Every tunnel has an `if_id`, SAs, policies for anything, and a route to the one address behind it. A
//! host sends one ICMP request into each, and the answer comes back through the same.
//! `PEREGRINE_ROUTE_TUNNELS` says how many there are.

mod gateway;

use std::time::{Duration, Instant};

use gateway::{Cores, Gateway};
use lab::topology::{Namespace, Veth};

const KEY: &str = "0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fdeadbeef";

const GROUP: &str = "[[group]]\ndevice = \"tun0\"\n";

/// From west to east; the other way it is one more.
const SPI_FIRST: u32 = 0x10_0000;

/// How long all answers may take, most of which is asking again for those that a short queue lost.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// Requests into all tunnels, in a loop over those that were not answered; how many never were.
const PING: &str = r#"
import select, socket, struct, sys, time
count, until = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
send = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
recv = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
recv.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
def address(net, n): return struct.pack("!I", (10 << 24 | net << 16) + n)
def request(n):
    head = struct.pack("!BBHHHBBH", 0x45, 0, 28, 0, 0, 64, 1, 0) + address(64, n) + address(128, n)
    words = (0x0800, n & 0xffff, n >> 16)
    total = sum(words)
    while total >> 16: total = (total & 0xffff) + (total >> 16)
    return head + struct.pack("!HHHH", 0x0800, ~total & 0xffff, n & 0xffff, n >> 16)
waiting = set(range(1, count + 1))
def take(wait_s):
    while select.select([recv], [], [], wait_s)[0]:
        packet = recv.recv(2048)
        n = struct.unpack("!I", packet[16:20])[0] - (10 << 24 | 64 << 16)
        if packet[20] == 0 and packet[12:16] == address(128, n): waiting.discard(n)
while waiting and time.monotonic() < until:
    for at, n in enumerate(sorted(waiting)):
        send.sendto(request(n), (socket.inet_ntoa(address(128, n)), 0))
        if at % 32 == 31: take(0.002)
    take(0.3)
print(len(waiting))
"#;

fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// A gateway's namespace and its host's, which has all of 10.`net`/16 behind 10.N.1.5.
fn site(n: u8, net: u8) -> (Namespace, Namespace) {
    let (gateway, host) =
        (Namespace::new("tg").expect("a namespace"), Namespace::new("th").expect("a namespace"));
    Veth::new((&gateway, "red0"), (&host, "p0"), 1).expect("a veth pair");
    gateway
        .ip_batch(&lines(&format!(
            "address add 10.{n}.1.254/24 dev red0
             route add 10.{net}.0.0/16 via 10.{n}.1.5"
        )))
        .expect("addresses");
    host.ip_batch(&lines(&format!(
        "address add 10.{n}.1.5/24 dev p0
         link set lo up
         route add local 10.{net}.0.0/16 dev lo
         route add default via 10.{n}.1.254"
    )))
    .expect("addresses");
    (gateway, host)
}

/// SAs and policies of all tunnels at `near`.
fn install(gateway: &Gateway, tunnels: u32, [near, far]: [&str; 2]) {
    let mut lines = Vec::new();
    for n in 1..=tunnels {
        let ids = format!("reqid {n} if_id {n}");
        for (spi, src, dst) in [(0, "192.0.2.1", "192.0.2.2"), (1, "192.0.2.2", "192.0.2.1")] {
            let spi = SPI_FIRST + 2 * n + spi;
            lines.push(format!(
                "xfrm state add src {src} dst {dst} proto esp spi {spi:#x} {ids} mode tunnel \
                 replay-window 64 flag esn af-unspec aead rfc4106(gcm(aes)) {KEY} 128"
            ));
        }
        for (dir, src, dst) in [("out", near, far), ("fwd", far, near)] {
            lines.push(format!(
                "xfrm policy add src 0.0.0.0/0 dst 0.0.0.0/0 dir {dir} if_id {n} \
                 tmpl src {src} dst {dst} proto esp reqid {n} mode tunnel"
            ));
        }
    }
    gateway.xfrm(&lines);
}

/// Tunnels whose route names its next hop itself. For each such route Linux compares all others by the same
/// device (`fib_find_info`), which for tens of thousands takes minutes.
const BY_NAME: u32 = 1000;

/// A route to each address of 10.`net`/16 that a tunnel has, most of them by next-hop objects, with which Linux
/// compares nothing.
fn lead(namespace: &Namespace, tunnels: u32, net: u32) {
    let mut lines = Vec::new();
    for n in 1..=tunnels {
        let [_, _, high, low] = n.to_be_bytes();
        let route = format!("route add 10.{net}.{high}.{low}/32");
        if n <= BY_NAME {
            lines.push(format!("{route} via inet6 fe80::{n:x} dev tun0"));
        } else {
            lines.push(format!("nexthop add id {n} via fe80::{n:x} dev tun0"));
            lines.push(format!("{route} nhid {n}"));
        }
    }
    namespace.ip_batch(&lines).expect("routes");
}

#[test]
fn every_tunnel_carries_packets_both_ways() {
    let tunnels = std::env::var("PEREGRINE_ROUTE_TUNNELS");
    let tunnels: u32 = tunnels.map_or(10_000, |count| count.parse().expect("a number of tunnels"));
    assert!(tunnels < 1 << 16, "an address of a /16 for each");
    let (west, west_host) = site(1, 64);
    let (east, east_host) = site(2, 128);
    Veth::new((&west, "black0"), (&east, "black0"), 1).expect("a veth pair");
    west.ip("address add 192.0.2.1/24 dev black0").expect("an address");
    east.ip("address add 192.0.2.2/24 dev black0").expect("an address");
    let near = Gateway::start_with(&west, &["red0", "black0"], Cores::Any(0), GROUP);
    let other = Gateway::start_with(&east, &["red0", "black0"], Cores::Any(1), GROUP);
    let began = Instant::now();
    install(&near, tunnels, ["192.0.2.1", "192.0.2.2"]);
    install(&other, tunnels, ["192.0.2.2", "192.0.2.1"]);
    lead(&west, tunnels, 128);
    lead(&east, tunnels, 64);
    let installed = began.elapsed();

    let within = ANSWERS_WITHIN.as_secs().to_string();
    let words = ["-c", PING, &tunnels.to_string(), &within];
    let unanswered = west_host.run("python3", &words).expect("requests are sent");
    let answered = began.elapsed() - installed;
    assert_eq!(unanswered.trim(), "0", "{:?}", near.show("drops"));
    for gateway in [&near, &other] {
        let sas = gateway.show("sa");
        let used = |sa: &&serde_json::Value| sa["packets"].as_u64() > Some(0);
        let used = sas.as_array().map_or(0, |all| all.iter().filter(used).count());
        assert_eq!(used, 2 * tunnels as usize, "each SA has carried its packets");
    }
    println!("{tunnels} tunnels: installed in {installed:.1?}, all answered in {answered:.1?}");
    drop(east_host);
}
