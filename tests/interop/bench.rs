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

use std::path::Path;
use std::time::{Duration, Instant};

use lab::topology::{Namespace, Process, Veth};

use crate::Outcome;
use crate::counters::states;
use crate::gateway::{Gateway, verdicts};
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

/// Everything a scenario needs.
pub struct Bench {
    /// The gateway under test.
    pub gateway: Gateway,
    /// The peer.
    pub guest: Guest,
    /// What the peer consists of.
    pub image: Image,
    /// The gateway's namespace.
    pub site: Namespace,
    /// The namespace of the hosts behind the gateway.
    pub red: Namespace,
    /// The namespace of the bridge, with `tap0` towards the peer and `wire0` towards the gateway.
    pub wire: Namespace,
    _server: Process,
    _scratch: tempfile::TempDir,
}

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

impl Bench {
    /// Boots a peer with `cpus` processors beside a gateway of one core.
    pub fn new(image: Image, cpus: usize) -> Result<Bench, String> {
        let text = |error: lab::topology::TopologyError| error.to_string();
        let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
        let [site, red, wire] = ["gw", "red", "wire"].map(Namespace::new);
        let (site, red, wire) = (site.map_err(text)?, red.map_err(text)?, wire.map_err(text)?);
        Veth::new((&site, "red0"), (&red, "host0"), 1).map_err(text)?;
        Veth::new((&site, "black0"), (&wire, "wire0"), 1).map_err(text)?;
        wire.ip_batch(&[
            "link add br0 type bridge forward_delay 0 mcast_snooping 0".to_string(),
            "link set br0 up".to_string(),
            "link set wire0 master br0".to_string(),
            "tuntap add dev tap0 mode tap".to_string(),
            "link set tap0 master br0 up".to_string(),
        ])
        .map_err(text)?;
        site.ip_batch(&site_lines()).map_err(text)?;
        red.ip_batch(&red_lines()).map_err(text)?;
        let gateway = Gateway::start(&site, &["red0", "black0"], &[0]);
        let mut command = red.command_bound(&image.stream());
        command.args(["serve", &PORT.to_string()]);
        let server =
            Process::start("stream", command, scratch.path().join("server.log")).map_err(text)?;
        let mut guest = Guest::boot(&image, (&wire, "tap0"), cpus, scratch.path())?;
        guest.ip(&guest_lines())?;
        guest.run(&format!("stream serve {PORT} >/dev/null 2>&1 &"))?;
        let reach = |family: usize| format!("ping -c 1 -W 1 {}", OUTER[family][0]);
        guest.wait(&reach(0))?;
        guest.wait(&reach(1))?;
        // What the gateway has not resolved yet it drops; here every packet counts.
        for gateway in ["10.0.0.254", "fd00:10::fe"] {
            red.run("ping", &["-c", "1", "-W", "10", gateway]).map_err(text)?;
        }
        Ok(Bench { gateway, guest, image, red, wire, site, _server: server, _scratch: scratch })
    }

    /// Sends pings, datagrams and streams of varied sizes from the peer to a host behind the
    /// gateway and back, and from the host to the peer and back. Every byte comes back.
    pub fn traffic(&mut self, host: &str, peer: &str) -> Result<(), String> {
        self.echoes(host, peer).map_err(|error| format!("{error}\nends so far: {}", self.ends()))
    }

    /// How the gateway's packets have ended so far.
    pub fn ends(&self) -> String {
        let ends = verdicts(&self.gateway.show("drops"));
        let met = ends.iter().filter(|(_, count)| *count > 0);
        met.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    }

    fn echoes(&mut self, host: &str, peer: &str) -> Result<(), String> {
        self.guest.run(&script(Path::new("stream"), host))?;
        let script = script(&self.image.stream(), peer);
        let sent = self.red.command("sh").args(["-c", &script]).output();
        let sent = sent.map_err(|error| error.to_string())?;
        if sent.status.success() {
            Ok(())
        } else {
            let [out, err] = [&sent.stdout, &sent.stderr].map(|text| String::from_utf8_lossy(text));
            Err(format!("behind the gateway: {out}{err}"))
        }
    }

    /// `ip -s xfrm state` of the gateway.
    pub fn gateway_states(&self) -> Result<String, String> {
        let listed = self.gateway.ip("-s xfrm state");
        output(listed, "ip -s xfrm state")
    }

    /// Removes every SA and policy of both sides.
    pub fn flush(&mut self) -> Result<(), String> {
        self.gateway.xfrm(&["xfrm state flush".to_string(), "xfrm policy flush".to_string()]);
        self.guest.run("ip xfrm state flush; ip xfrm policy flush").map(|_| ())
    }

    /// Waits until both sides have the same SAs among those that are wanted, with the same bytes
    /// and packets: nothing was lost, and both count alike. Returns the packets.
    pub fn agree(&mut self, wanted: impl Fn(u32) -> bool) -> Outcome {
        let end = Instant::now() + SETTLE;
        loop {
            let [ours, theirs] =
                [self.gateway_states()?, self.guest.run("ip -s xfrm state")?].map(|listing| {
                    let mut found = states(&listing);
                    found.retain(|spi, _| wanted(*spi));
                    found
                });
            let packets = ours.values().map(|counters| counters.packets).sum();
            if ours == theirs && packets > 0 {
                return Ok(packets);
            }
            if Instant::now() > end {
                return Err(format!("the gateway counts {ours:?}, the peer {theirs:?}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn output(out: std::process::Output, what: &str) -> Result<String, String> {
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    } else {
        Err(format!("{what}: {}", String::from_utf8_lossy(&out.stderr)))
    }
}

/// One end's traffic, as a line of shell that both ends' shells take.
fn script(stream: &Path, to: &str) -> String {
    let stream = stream.display();
    let longest = if to.contains(':') { DATAGRAM_MAX_IPV6 } else { DATAGRAM_MAX_IPV4 };
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

fn guest_lines() -> Vec<String> {
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
