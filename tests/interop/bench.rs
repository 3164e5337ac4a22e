//! The gateway and a peer that is a machine, with a bridge between them.
//!
//! ```text
//!   hosts 16.N.0.1, fd16:N::1            192.0.2.1, 2001:db8:b::1   192.0.2.2, 2001:db8:b::2
//!   red ── red0 ─────────────── gateway ── black0 ── bridge ── tap0 ── eth0  peer
//!                                                                   48.N.0.1, fd48:N::1
//! ```
//!
//! The bridge is there so that a test can look at, and repeat, what is on the wire. Both ends serve
//! echoes on one port at every address.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab::topology::{Namespace, Process, Veth};

use crate::Outcome;
use crate::counters::{errors, states};
use crate::gateway::left::scratch;
use crate::gateway::{Cores, Gateway, verdicts};
use crate::guest::{Guest, Image};

/// Where both ends serve echoes.
pub const PORT: u16 = 7007;
/// How many pairs of addresses `N` there are.
pub const NETS: usize = 24;
/// What hosts on both ends believe the path to carry: the link's 1500 less what a tunnel adds.
const PATH_MTU: u32 = 1400;

/// How long the last packets of a scenario may take to be counted on both sides.
const SETTLE: Duration = Duration::from_secs(10);
/// The longest IPv6 datagram, in three fragments: both ends cut before they protect.
const DATAGRAM_MAX_IPV6: usize = 3000;
/// The longest IPv4 datagram. The host behind the gateway cuts it in two; a Linux peer that
/// protects its own packets fits it into one, because it reckons with what its SA really adds. A
/// longer one it would protect whole and cut afterwards, and the gateway does not reassemble ESP.
const DATAGRAM_MAX_IPV4: usize = 1380;

/// The longest datagram in transport mode, which seals no fragments: what the gateway's device, which
/// reckons with an IPv6 tunnel in UDP, carries in one packet.
const DATAGRAM_MAX_WHOLE: usize = 1300;

/// Bytes and packets that one side counts more than the other.
pub type Difference = (i64, i64);
/// Those by SPI, and the gateway's packets.
pub type Differences = (BTreeMap<u32, Difference>, BTreeMap<u32, u64>);

/// One end's answer to a network: where it is, in both families.
pub fn hosts(side: &str, number: usize) -> [String; 2] {
    [format!("{side}.{number}.0.1"), format!("fd{side}:{number:x}::1")]
}

/// The networks of [`hosts`].
pub fn networks(side: &str, number: usize) -> [String; 2] {
    [format!("{side}.{number}.0.0/24"), format!("fd{side}:{number:x}::/64")]
}

/// Addresses of the link, both families: gateway, then peer.
pub const OUTER: [[&str; 2]; 2] = [["192.0.2.1", "192.0.2.2"], ["2001:db8:b::1", "2001:db8:b::2"]];

/// The gateway, and the hosts behind it.
pub struct Site {
    /// The gateway under test.
    pub gateway: Gateway,
    /// Its namespace.
    pub namespace: Namespace,
    /// The namespace of the hosts behind it.
    pub red: Namespace,
    /// Files of this run.
    pub scratch: tempfile::TempDir,
    stream: PathBuf,
    _server: Process,
}

impl Site {
    /// A gateway of so many cores whose `black0` is linked to an interface of another namespace.
    pub fn new(stream: &Path, cores: usize, far: (&Namespace, &str)) -> Result<Site, String> {
        let scratch = scratch();
        let [namespace, red] = ["gw", "red"].map(Namespace::new);
        let (namespace, red) = (namespace.map_err(text)?, red.map_err(text)?);
        let queues = cores as u32;
        Veth::new((&namespace, "red0"), (&red, "host0"), queues).map_err(text)?;
        Veth::new((&namespace, "black0"), far, queues).map_err(text)?;
        namespace.ip_batch(&site_lines()).map_err(text)?;
        red.ip_batch(&red_lines()).map_err(text)?;
        let cores: Vec<usize> = (0..cores).collect();
        let gateway = Gateway::start(&namespace, &["red0", "black0"], Cores::These(&cores));
        let _server = serve(stream, &red, scratch.path())?;
        // What the gateway has not resolved yet it drops; here every packet counts.
        for gateway in ["10.0.0.254", "fd00:10::fe"] {
            red.run("ping", &["-c", "1", "-W", "10", gateway]).map_err(text)?;
        }
        Ok(Site { gateway, namespace, red, scratch, stream: stream.to_path_buf(), _server })
    }

    /// Sends pings, datagrams and streams of varied sizes from behind the gateway and back.
    pub fn traffic(&self, peer: &str) -> Result<(), String> {
        traffic(&self.red, &self.stream, peer)
            .map_err(|error| format!("behind the gateway: {error}"))
    }

    /// The gateway's verdicts on its packets so far.
    pub fn ends(&self) -> String {
        let ends = verdicts(&self.gateway.show("drops"));
        let met = ends.iter().filter(|(_, count)| *count > 0);
        met.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    }

    /// `ip -s xfrm state` of the gateway.
    pub fn states(&self) -> Result<String, String> {
        let out = self.gateway.ip("-s xfrm state");
        if out.status.success() {
            Ok(String::from_utf8_lossy(&out.stdout).into_owned())
        } else {
            Err(format!("ip -s xfrm state: {}", String::from_utf8_lossy(&out.stderr)))
        }
    }

    /// Waits until the gateway has no SA: its daemon answers a deletion before it has carried it out.
    pub fn without_sas(&self) -> Result<(), String> {
        let end = Instant::now() + SETTLE;
        loop {
            let left = self.states()?;
            if states(&left).is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(left);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// An echo service at every address of a namespace.
pub fn serve(stream: &Path, namespace: &Namespace, scratch: &Path) -> Result<Process, String> {
    let mut command = namespace.command_bound(stream);
    command.args(["serve", &PORT.to_string()]);
    let log = scratch.join(format!("{}.log", namespace.name()));
    Process::start("stream", command, log).map_err(text)
}

/// Traffic of all kinds from a namespace to an address that serves echoes, and back.
pub fn traffic(namespace: &Namespace, stream: &Path, to: &str) -> Result<(), String> {
    run_line(namespace, &script(stream, to))
}

fn run_line(namespace: &Namespace, line: &str) -> Result<(), String> {
    let sent = namespace.command("sh").args(["-c", line]).output();
    let sent = sent.map_err(|error| error.to_string())?;
    if sent.status.success() {
        return Ok(());
    }
    let [out, err] = [&sent.stdout, &sent.stderr].map(|text| String::from_utf8_lossy(text));
    Err(format!("{out}{err}"))
}

fn text(error: lab::topology::TopologyError) -> String {
    error.to_string()
}

/// The gateway and the machine that is its peer.
pub struct Bench {
    /// The gateway's side.
    pub site: Site,
    /// The peer.
    pub guest: Guest,
    /// What the peer consists of.
    pub image: Image,
    /// The namespace of the bridge, with `tap0` towards the peer and `wire0` towards the gateway.
    pub wire: Namespace,
}

impl Bench {
    /// Boots a peer with `cpus` processors beside a gateway of as many cores.
    pub fn new(image: Image, cpus: usize) -> Result<Bench, String> {
        let wire = Namespace::new("wire").map_err(text)?;
        let site = Site::new(&image.stream(), cpus, (&wire, "wire0"))?;
        wire.ip_batch(&[
            "link add br0 type bridge forward_delay 0 mcast_snooping 0".to_string(),
            "link set br0 up".to_string(),
            "link set wire0 master br0".to_string(),
            "tuntap add dev tap0 mode tap".to_string(),
            "link set tap0 master br0 up".to_string(),
        ])
        .map_err(text)?;
        let mut guest = Guest::boot(&image, (&wire, "tap0"), cpus, site.scratch.path())?;
        guest.ip(&peer_lines())?;
        guest.run(&format!("stream serve {PORT} >/dev/null 2>&1 &"))?;
        for [gateway, _] in OUTER {
            guest.wait(&format!("ping -c 1 -W 1 {gateway}"))?;
        }
        Ok(Bench { site, guest, image, wire })
    }

    /// Sends pings, datagrams and streams of varied sizes from the peer to a host behind the
    /// gateway and back, and from the host to the peer and back. Every byte comes back.
    pub fn traffic(&mut self, host: &str, peer: &str) -> Result<(), String> {
        self.echoes(host, peer).map_err(|error| self.explain(error))
    }

    /// The same between the peer and the gateway itself, by their own addresses, in packets that are
    /// never fragments.
    pub fn own_traffic(&mut self, [gateway, peer]: [&str; 2]) -> Result<(), String> {
        let line = script_of(Path::new("stream"), gateway, DATAGRAM_MAX_WHOLE);
        self.guest.run(&line).map_err(|error| self.explain(error))?;
        let line = script_of(&self.image.stream(), peer, DATAGRAM_MAX_WHOLE);
        let sent = run_line(&self.site.namespace, &line);
        sent.map_err(|error| self.explain(format!("from the gateway: {error}")))
    }

    /// An error with what became of packets on both sides.
    pub fn explain(&mut self, error: String) -> String {
        let peer = self.guest.run("cat /proc/net/xfrm_stat").map(|text| errors(&text));
        format!("{error}\nends so far: {}; errors of the peer: {peer:?}", self.site.ends())
    }

    fn echoes(&mut self, host: &str, peer: &str) -> Result<(), String> {
        self.guest.run(&script(Path::new("stream"), host))?;
        self.site.traffic(peer)
    }

    /// Removes every SA and policy of both sides.
    pub fn flush(&mut self) -> Result<(), String> {
        self.site.gateway.xfrm(&["xfrm state flush".to_string(), "xfrm policy flush".to_string()]);
        self.guest.run("ip xfrm state flush; ip xfrm policy flush").map(|_| ())
    }

    /// Waits until both sides have the same SAs among those that are wanted, with the same bytes
    /// and packets: nothing was lost, and both count alike. Returns the packets.
    pub fn agree(&mut self, wanted: impl Fn(u32) -> bool) -> Outcome {
        self.agree_since(&BTreeMap::new(), wanted)
    }

    /// The same for what was counted since both sides counted `before`.
    pub fn agree_since(
        &mut self,
        before: &BTreeMap<u32, Difference>,
        wanted: impl Fn(u32) -> bool,
    ) -> Outcome {
        let end = Instant::now() + SETTLE;
        loop {
            let (differences, packets) = self.differences()?;
            let packets = packets.iter().filter(|(spi, _)| wanted(**spi)).map(|(_, n)| n).sum();
            let off: Vec<_> = differences
                .iter()
                .filter(|(spi, difference)| {
                    wanted(**spi) && **difference != before.get(spi).copied().unwrap_or_default()
                })
                .collect();
            if off.is_empty() && packets > 0 {
                return Ok(packets);
            }
            if Instant::now() > end {
                return Err(format!("the gateway counts more than the peer by {off:x?}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// By SPI, what the gateway counts more than the peer, and its packets. An SA that only one
    /// side has differs by something that no count reaches.
    pub fn differences(&mut self) -> Result<Differences, String> {
        let [ours, theirs] = [self.site.states()?, self.guest.run("ip -s xfrm state")?];
        let [ours, theirs] = [states(&ours), states(&theirs)];
        let packets = ours.iter().map(|(spi, counters)| (*spi, counters.packets)).collect();
        let spis: BTreeSet<u32> = ours.keys().chain(theirs.keys()).copied().collect();
        let difference = |spi: &u32| match (ours.get(spi), theirs.get(spi)) {
            (Some(our), Some(their)) => {
                (our.bytes as i64 - their.bytes as i64, our.packets as i64 - their.packets as i64)
            }
            _ => (i64::MAX, i64::MAX),
        };
        Ok((spis.iter().map(|spi| (*spi, difference(spi))).collect(), packets))
    }
}

fn script(stream: &Path, to: &str) -> String {
    script_of(stream, to, if to.contains(':') { DATAGRAM_MAX_IPV6 } else { DATAGRAM_MAX_IPV4 })
}

/// One end's traffic with datagrams no longer than this, as a line of shell that both ends' shells
/// take.
fn script_of(stream: &Path, to: &str, longest: usize) -> String {
    let stream = stream.display();
    format!(
        "for s in 0 1 56 500 1300; do \
           ping -c 1 -W 10 -s $s {to} >/tmp/ping.$$ 2>&1 || {{ cat /tmp/ping.$$; exit 1; }}; \
         done; rm /tmp/ping.$$; {stream} udp {to} {PORT} 30 {longest} && {stream} tcp {to} {PORT} 100000"
    )
}

fn site_lines() -> Vec<String> {
    let mut lines = vec![
        "address add 10.0.0.254/24 dev red0".to_string(),
        "address add fd00:10::fe/64 dev red0 nodad".to_string(),
        "route add 16.0.0.0/8 via 10.0.0.1".to_string(),
        "route add fd16::/16 via fd00:10::1".to_string(),
        "route add 48.0.0.0/8 via 192.0.2.2".to_string(),
        "route add fd48::/16 via 2001:db8:b::2".to_string(),
    ];
    lines.insert(0, format!("address add {}/24 dev black0", OUTER[0][0]));
    lines.insert(0, format!("address add {}/64 dev black0 nodad", OUTER[1][0]));
    lines
}

fn red_lines() -> Vec<String> {
    let mut lines = vec![
        "address add 10.0.0.1/24 dev host0".to_string(),
        "address add fd00:10::1/64 dev host0 nodad".to_string(),
    ];
    lines.extend(end_lines("16", "48", ["10.0.0.254", "fd00:10::fe"]));
    lines
}

/// Addresses and routes of the peer.
pub fn peer_lines() -> Vec<String> {
    let mut lines = vec![
        format!("address add {}/24 dev eth0", OUTER[0][1]),
        format!("address add {}/64 dev eth0 nodad", OUTER[1][1]),
        "link set eth0 up".to_string(),
    ];
    lines.extend(end_lines("48", "16", [OUTER[0][0], OUTER[1][0]]));
    lines
}

/// Own addresses on the loopback, and routes to the other end that use them as source.
fn end_lines(here: &str, there: &str, via: [&str; 2]) -> Vec<String> {
    let pair = |number: usize| {
        let (own, far) = (hosts(here, number), networks(there, number));
        (0..2)
            .flat_map(move |family| {
                let (own, far, via) = (&own[family], &far[family], via[family]);
                let (length, flags) = [("32", ""), ("128", " nodad")][family];
                [
                    format!("address add {own}/{length} dev lo{flags}"),
                    format!("route add {far} via {via} src {own} mtu {PATH_MTU}"),
                ]
            })
            .collect::<Vec<_>>()
    };
    (1..=NETS).flat_map(pair).collect()
}
