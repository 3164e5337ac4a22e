//! The gateway host's own packets: through tunnels and in transport mode, both ways, and never past.
//!
//! ```text
//!   west: 10.1.0.1, fd01::1 ─ 192.0.2.1 ═══════ 192.0.2.2 ─ east: 10.2.0.1, fd02::1 ─ host: 10.2.1.5
//! ```

mod daemon;
mod gateway;
mod speaker;

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use gateway::{Cores, Gateway};
use lab::topology::{Namespace, Process, Veth};

const KEY: &str = "0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fdeadbeef";

/// One end: a namespace with a gateway.
struct End {
    namespace: Namespace,
    gateway: Gateway,
}

/// Both gateways and a host behind one of them.
struct Pair {
    west: End,
    east: End,
    host: Namespace,
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// The west gateway's namespace with its addresses, its interface `black0` connected to `other`.
fn west(other: &Namespace) -> Namespace {
    let west = Namespace::new("hw").expect("a namespace");
    Veth::new((&west, "black0"), (other, "black0"), 1).expect("a veth pair");
    let addresses = "address add 192.0.2.1/24 dev black0
        address add 2001:db8::1/64 dev black0 nodad
        address add 10.1.0.1/32 dev lo
        address add fd01::1/128 dev lo nodad
        route add 10.2.0.0/16 via 192.0.2.2
        route add fd02::/16 via 2001:db8::2";
    west.ip_batch(&lines(addresses)).expect("addresses");
    west
}

const EAST: &str = "address add 192.0.2.2/24 dev black0
    address add 2001:db8::2/64 dev black0 nodad
    address add 10.2.0.1/32 dev lo
    address add fd02::1/128 dev lo nodad
    route add 10.1.0.0/16 via 192.0.2.1
    route add fd01::/16 via 2001:db8::1";

impl Pair {
    fn new() -> Pair {
        let east = Namespace::new("he").expect("a namespace");
        let host = Namespace::new("hh").expect("a namespace");
        let west = west(&east);
        Veth::new((&east, "red0"), (&host, "p0"), 1).expect("a veth pair");
        let behind = "address add 10.2.1.254/24 dev red0
            address add fd02:0:0:1::fe/64 dev red0 nodad";
        east.ip_batch(&lines(&format!("{EAST}\n{behind}"))).expect("addresses");
        let addresses = "address add 10.2.1.5/24 dev p0
            address add fd02:0:0:1::5/64 dev p0 nodad
            route add default via 10.2.1.254
            route add default via fd02:0:0:1::fe";
        host.ip_batch(&lines(addresses)).expect("addresses");
        let gateways = [
            Gateway::start(&west, &["black0"], Cores::Any(0)),
            Gateway::start(&east, &["black0", "red0"], Cores::Any(1)),
        ];
        let [first, second] = gateways;
        let west = End { namespace: west, gateway: first };
        Pair { west, east: End { namespace: east, gateway: second }, host }
    }

    /// Tunnels between the inner networks, IPv4 over IPv4 and IPv6 over IPv6.
    fn tunnels(&self) {
        for end in [&self.west, &self.east] {
            end.gateway.xfrm(&states("tunnel"));
        }
        self.west.gateway.xfrm(&tunnel_policies(
            "10.1.0.0/16",
            "10.2.0.0/16",
            ["192.0.2.1", "192.0.2.2"],
        ));
        self.west.gateway.xfrm(&tunnel_policies(
            "fd01::/16",
            "fd02::/16",
            ["2001:db8::1", "2001:db8::2"],
        ));
        self.east.gateway.xfrm(&tunnel_policies(
            "10.2.0.0/16",
            "10.1.0.0/16",
            ["192.0.2.2", "192.0.2.1"],
        ));
        self.east.gateway.xfrm(&tunnel_policies(
            "fd02::/16",
            "fd01::/16",
            ["2001:db8::2", "2001:db8::1"],
        ));
    }
}

/// SAs both ways for both families, the same on either side.
fn states(mode: &str) -> Vec<String> {
    let pairs = [
        ("192.0.2.1", "192.0.2.2", 0x101),
        ("192.0.2.2", "192.0.2.1", 0x102),
        ("2001:db8::1", "2001:db8::2", 0x601),
        ("2001:db8::2", "2001:db8::1", 0x602),
    ];
    let state = |(src, dst, spi)| {
        format!(
            "xfrm state add src {src} dst {dst} proto esp spi {spi:#x} reqid 1 mode {mode} \
             replay-window 64 flag esn aead rfc4106(gcm(aes)) {KEY} 128"
        )
    };
    pairs.map(state).to_vec()
}

fn tunnel_policies(here: &str, there: &str, [near, far]: [&str; 2]) -> Vec<String> {
    let template = |a, b| format!("tmpl src {a} dst {b} proto esp reqid 1 mode tunnel");
    let policy = |src, dst, dir, template: String| {
        format!("xfrm policy add src {src} dst {dst} dir {dir} {template}")
    };
    vec![
        policy(here, there, "out", template(near, far)),
        policy(there, here, "in", template(far, near)),
        policy(there, here, "fwd", template(far, near)),
    ]
}

/// Waits until one ping comes back, as the first ones may find neighbours unresolved.
fn ping(gateway: &Gateway, from: &Namespace, options: &[&str], to: &str) {
    let words = [options, &["-c", "1", "-W", "2", to]].concat();
    gateway.wait(&format!("an answer of {to}"), |_| from.run("ping", &words).is_ok());
}

/// Sends data over TCP to `to` and back; both ends see that it is whole.
fn stream(gateway: &Gateway, from: &Namespace, at: &Namespace, to: &str) {
    daemon::stream::stream((from, None), (at, to), || gateway.log());
}

/// Packets that the kernel of a namespace sends or gets on an interface while something is done, as
/// tcpdump prints them.
fn seen(
    namespace: &Namespace,
    interface: &str,
    filter: &str,
    during: impl FnOnce(),
) -> Vec<String> {
    let directory = gateway::left::scratch();
    let mut command = namespace.command_bound(Path::new("tcpdump"));
    command.args(["-i", interface, "-n", "-l", "-U", "-Z", "root", filter]);
    let mut tcpdump =
        Process::start("tcpdump", command, directory.path().join("log")).expect("tcpdump starts");
    tcpdump
        .wait_until(Duration::from_secs(20), |process| process.log().contains("listening"))
        .expect("tcpdump listens");
    during();
    thread::sleep(Duration::from_millis(200));
    tcpdump.stop();
    lines(&tcpdump.log()).into_iter().filter(|line| line.contains(" IP")).collect()
}

fn verdict(end: &End, name: &str) -> u64 {
    end.gateway.verdict(name)
}

#[test]
fn the_hosts_own_packets_take_the_tunnel_both_ways() {
    let pair = Pair::new();
    pair.tunnels();
    let Pair { west, east, host } = &pair;
    let clear = "host 10.1.0.1 or host fd01::1";
    let leaked = seen(&west.namespace, "black0", clear, || {
        for (from, to) in [
            // No source is said: the route prefers the one inside.
            (&west.namespace, "10.2.0.1"),
            (&west.namespace, "10.2.1.5"),
            (&west.namespace, "fd02::1"),
            (&west.namespace, "fd02:0:0:1::5"),
            (&east.namespace, "10.1.0.1"),
            (&east.namespace, "fd01::1"),
            (host, "10.1.0.1"),
            (host, "fd01::1"),
        ] {
            ping(&west.gateway, from, &[], to);
        }
        stream(&west.gateway, &west.namespace, host, "10.2.1.5");
        stream(&west.gateway, host, &west.namespace, "10.1.0.1");
        stream(&west.gateway, &west.namespace, &east.namespace, "fd02::1");
    });
    assert_eq!(leaked, Vec::<String>::new(), "nothing passes the device by");
    for end in [west, east] {
        assert!(verdict(end, "host_sealed") > 1000 || verdict(end, "host_opened") > 1000);
        assert!(verdict(end, "host_sealed") > 4 && verdict(end, "host_opened") > 4);
        assert_eq!(verdict(end, "host_forwarded"), 0, "nothing in clear");
    }
    let status = west.gateway.show("status");
    assert_eq!(status["host"]["routes"], 2, "{status}");
    // What no policy covers is the kernel's: it does not even come by.
    ping(&west.gateway, &west.namespace, &[], "192.0.2.2");
    assert_eq!(verdict(west, "host_forwarded"), 0);
    // From an address outside the policy, but led there by no choice of source: in clear.
    let before = verdict(west, "host_sealed");
    let other = west.namespace.run("ping", &["-c", "1", "-W", "1", "-I", "192.0.2.1", "10.2.0.1"]);
    assert!(other.is_ok(), "a clear packet to a protected network is allowed: {other:?}");
    assert_eq!(verdict(west, "host_sealed"), before);
}

#[test]
fn transport_mode_between_the_gateways_own_addresses() {
    let pair = Pair::new();
    for end in [&pair.west, &pair.east] {
        end.gateway.xfrm(&states("transport"));
    }
    let policies = |here: &str, there: &str| {
        let template = "tmpl proto esp reqid 1 mode transport";
        lines(&format!(
            "xfrm policy add src {here} dst {there} dir out {template}
             xfrm policy add src {there} dst {here} dir in {template}"
        ))
    };
    pair.west.gateway.xfrm(&policies("192.0.2.1", "192.0.2.2"));
    pair.west.gateway.xfrm(&policies("2001:db8::1", "2001:db8::2"));
    pair.east.gateway.xfrm(&policies("192.0.2.2", "192.0.2.1"));
    pair.east.gateway.xfrm(&policies("2001:db8::2", "2001:db8::1"));
    let Pair { west, east, .. } = &pair;
    let leaked = seen(&west.namespace, "black0", "icmp or tcp or icmp6[0] == 128", || {
        for (from, to) in
            [(west, "192.0.2.2"), (east, "192.0.2.1"), (west, "2001:db8::2"), (east, "2001:db8::1")]
        {
            ping(&west.gateway, &from.namespace, &[], to);
        }
        stream(&west.gateway, &west.namespace, &east.namespace, "192.0.2.2");
        stream(&west.gateway, &east.namespace, &west.namespace, "2001:db8::1");
    });
    assert_eq!(leaked, Vec::<String>::new());
    assert!(verdict(west, "host_sealed") > 100 && verdict(west, "host_opened") > 100);
    // IKE stays on the kernel's sockets, in clear, although the policies cover its addresses.
    for (to, port) in [("192.0.2.2", 500), ("2001:db8::2", 500), ("192.0.2.2", 4500)] {
        let got = datagram(west, east, to, port);
        assert!(got.contains("IKE"), "port {port} of {to}: {got}");
    }
    // As `ip` and charon look it up: a way to the peer with an address of the host's.
    let route = west.namespace.ip("route get 192.0.2.2").expect("a route");
    assert!(route.contains("src 192.0.2.1"), "{route}");
}

/// Sends a datagram from and to an IKE port; what arrived.
fn datagram(from: &End, at: &End, to: &str, port: u16) -> String {
    let family = if to.contains(':') { "AF_INET6" } else { "AF_INET" };
    let receive = format!(
        "import socket\n\
         s=socket.socket(socket.{family},socket.SOCK_DGRAM);s.bind(('{to}',{port}))\n\
         s.settimeout(20);print('listening',flush=True);print(s.recv(99).decode())"
    );
    let any = if to.contains(':') { "::" } else { "0.0.0.0" };
    let send = format!(
        "import socket,time\n\
         s=socket.socket(socket.{family},socket.SOCK_DGRAM);s.bind(('{any}',{port}))\n\
         for _ in range(20): s.sendto(b'IKE',('{to}',{port}));time.sleep(0.1)"
    );
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = at.namespace.command("python3");
    command.args(["-c", &receive]);
    let mut receiver =
        Process::start("receiver", command, directory.path().join("log")).expect("it starts");
    receiver
        .wait_until(Duration::from_secs(20), |process| process.log().contains("listening"))
        .expect("it listens");
    let sealed = verdict(from, "host_sealed");
    from.namespace.run("python3", &["-c", &send]).expect("it is sent");
    assert_eq!(verdict(from, "host_sealed"), sealed, "not through the tunnel");
    let _ = receiver.wait_until(Duration::from_secs(20), |process| process.log().contains("IKE"));
    receiver.log()
}

/// A gateway whose far end is a plain kernel, which sees all that comes in clear.
struct Watched {
    west: End,
    watcher: Namespace,
}

impl Watched {
    fn new() -> Watched {
        Watched::with("")
    }

    /// With more lines for the configuration.
    fn with(more: &str) -> Watched {
        Watched::on("black0", more)
    }

    /// On this port, which may have a mode.
    fn on(port: &str, more: &str) -> Watched {
        let watcher = Namespace::new("hx").expect("a namespace");
        let namespace = west(&watcher);
        watcher.ip_batch(&lines(EAST)).expect("addresses");
        // Without a journal: between the restart and the next installation nothing is known.
        let text = format!("control.journal = false\n{more}");
        let gateway = Gateway::start_with(&namespace, &[port], Cores::Any(0), &text);
        Watched { west: End { namespace, gateway }, watcher }
    }

    fn protect(&self) {
        let gateway = &self.west.gateway;
        gateway.xfrm(&states("tunnel"));
        gateway.xfrm(&tunnel_policies("10.1.0.0/16", "10.2.0.0/16", ["192.0.2.1", "192.0.2.2"]));
        gateway.xfrm(&tunnel_policies("fd01::/16", "fd02::/16", ["2001:db8::1", "2001:db8::2"]));
    }

    /// Packets in clear that arrive when the host pings in every way it knows.
    fn clear(&self) -> Vec<String> {
        seen(&self.watcher, "black0", "icmp[0] == 8 or icmp6[0] == 128", || {
            for words in [
                "-c 2 -i 0.1 -W 1 -I 10.1.0.1 10.2.0.1",
                "-c 2 -i 0.1 -W 1 10.2.0.1",
                "-c 2 -i 0.1 -W 1 -I fd01::1 fd02::1",
                // Bound to the port: past every route.
                "-c 2 -i 0.1 -W 1 -I black0 -I 10.1.0.1 10.2.0.1",
                "-c 2 -i 0.1 -W 1 -I black0 -I fd01::1 fd02::1",
            ] {
                let words: Vec<&str> = words.split(' ').collect();
                let _ = self.west.namespace.run("ping", &words);
            }
        })
    }

    /// Rules, routes, policies and the device, as `ip` shows them.
    fn left(&self) -> String {
        let ask = |words: &str| self.west.namespace.ip(words).unwrap_or_default();
        let rules = format!("{}{}", ask("rule list"), ask("-6 rule list"));
        let ours = lines(&rules).into_iter().filter(|line| line.contains("proto 80"));
        let device = ask("-br link").lines().filter(|line| line.starts_with("pgn-")).count();
        format!(
            "{}{}{}{}{}",
            ours.collect::<Vec<_>>().join("\n"),
            ask("route list table 20551"),
            ask("-6 route list table 20551"),
            ask("xfrm policy list"),
            "device ".repeat(device)
        )
    }
}

#[test]
fn nothing_leaves_in_clear_while_a_gateway_is_dead() {
    let mut watched = Watched::new();
    // The control of this experiment: what nothing protects is seen.
    assert!(watched.clear().len() >= 8, "five kinds of pings, two each");
    watched.protect();
    assert_eq!(watched.clear(), Vec::<String>::new(), "while it runs");

    let killed =
        Command::new("kill").args(["-9", &watched.west.gateway.pid().to_string()]).status();
    assert!(killed.is_ok_and(|status| status.success()));
    assert_eq!(watched.clear(), Vec::<String>::new(), "after kill -9");
    // A person removes what stays of it.
    let device = format!("pgn-{}", watched.west.gateway.name);
    watched.west.namespace.ip(&format!("link delete {device}")).expect("the device goes");
    assert_eq!(watched.clear(), Vec::<String>::new(), "without the device");

    let Watched { west: End { namespace, gateway }, .. } = &mut watched;
    gateway.kill();
    gateway.restart(namespace);
    assert_eq!(watched.clear(), Vec::<String>::new(), "after the restart, before the policies");
    watched.protect();
    let before = verdict(&watched.west, "host_sealed");
    assert_eq!(watched.clear(), Vec::<String>::new());
    assert!(verdict(&watched.west, "host_sealed") > before, "the tunnel works again");

    // What is deleted is not held any longer.
    watched.west.gateway.xfrm(&lines("xfrm policy flush\nxfrm state flush"));
    assert!(watched.clear().len() >= 8);
    watched.protect();
    assert_eq!(watched.west.gateway.stop(), Some(0), "{}", watched.west.gateway.log());
    assert_eq!(watched.left(), "");
    assert!(watched.clear().len() >= 8, "a stopped gateway protects nothing");
}

#[test]
fn a_stop_gives_everything_back_although_a_device_is_gone() {
    let more = "[[group]]\ndevice = \"grp0\"\n[[group]]\ndevice = \"grp1\"";
    let mut watched = Watched::with(more);
    watched.protect();
    let Watched { west: End { namespace, gateway }, .. } = &mut watched;
    let run = Path::new("/run/peregrine").join(&gateway.name);
    assert!(run.join("guard").exists());
    for device in [&format!("pgn-{}", gateway.name), "grp0"] {
        namespace.ip(&format!("link delete {device}")).expect("the device goes");
    }
    assert_eq!(gateway.stop(), Some(0), "{}", gateway.log());
    assert!(!run.exists(), "{run:?} is gone");
    let links = namespace.ip("-br link").expect("ip link");
    assert!(!links.contains("grp1"), "{links}");
    assert_eq!(watched.left(), "");
}

#[test]
fn a_second_gateway_in_the_namespace_leaves_the_first_as_it_is() {
    let group = "[[group]]\ndevice = \"grp0\"\n[[group.tunnel]]\nif_id = 7\nroutes = [\"10.77.0.0/16\", \"fd77::/32\"]";
    let watched = Watched::with(group);
    watched.protect();
    let Watched { west: End { namespace, .. }, watcher } = &watched;
    Veth::new((namespace, "other0"), (watcher, "other0"), 1).expect("a veth pair");
    let routes = |family| namespace.ip(&format!("{family} route list proto 80")).expect("ip route");
    let state = || format!("{}{}{}", watched.left(), routes("-4"), routes("-6"));
    let before = state();
    assert!(before.contains("blackhole 10.77.0.0/16"), "{before}");
    let place = "host.table = 20552\nhost.priority = 210";
    let mut second = Gateway::start_with(namespace, &["other0"], Cores::Any(0), place);
    // It protects the same.
    second.xfrm(&tunnel_policies("10.1.0.0/16", "10.2.0.0/16", ["192.0.2.1", "192.0.2.2"]));
    assert_eq!(second.stop(), Some(0), "{}", second.log());
    assert_eq!(state(), before);
    assert_eq!(watched.clear(), Vec::<String>::new());
}

#[test]
fn who_gives_up_a_dead_gateway_has_the_kernel_as_it_was() {
    give_up("black0");
    give_up("black0:generic");
}

fn give_up(port: &str) {
    let group =
        "[[group]]\ndevice = \"grp0\"\n[[group.tunnel]]\nif_id = 7\nroutes = [\"10.77.0.0/16\"]";
    let mut watched = Watched::on(port, group);
    watched.protect();
    let device = format!("pgn-{}", watched.west.gateway.name);
    watched.west.gateway.kill();
    assert_eq!(watched.clear(), Vec::<String>::new(), "after kill -9");
    // As docs/operating.md says.
    let ip = |line: &str| watched.west.namespace.ip(line).expect("the kernel obeys");
    let recipe = format!(
        "link set dev black0 xdp off
        link set dev black0 xdpgeneric off
        link del {device}
        link del grp0
        rule flush protocol 80
        -6 rule flush protocol 80
        route flush table all proto 80
        -6 route flush table all proto 80
        xfrm policy flush"
    );
    lines(&recipe).iter().for_each(|line| drop(ip(line)));
    assert_eq!(watched.left(), "");
    assert_eq!(ip("route show table all proto 80"), "");
    assert_eq!(ip("-6 route show table all proto 80"), "");
    assert!(!ip("-d link show dev black0").contains("prog/xdp"), "{port}");
    assert!(watched.clear().len() >= 8, "nothing holds the host's packets");
}

#[test]
fn the_device_takes_no_longer_packets_than_frames_hold() {
    let watched = Watched::new();
    let Watched { west: End { namespace, gateway }, watcher } = &watched;
    assert_eq!(gateway.show("status")["host"]["mtu_bytes"], 1418);
    for end in [watcher, namespace] {
        end.ip("link set black0 mtu 9000").expect("a larger MTU");
    }
    gateway.wait("a larger MTU", |gateway| gateway.show("status")["host"]["mtu_bytes"] == 1771);
    assert!(gateway.log().contains("larger than frames hold"), "{}", gateway.log());
}

#[test]
fn routes_follow_policies_and_addresses() {
    let watched = Watched::new();
    let gateway = &watched.west.gateway;
    let routes = || gateway.show("status")["host"]["routes"].as_u64();
    // Policies that no packet of the host can meet need no route.
    let policy = |source: &str, n: u32| {
        format!(
            "xfrm policy add src {source} dst 10.{}.{}.0/24 dir out \
             tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel",
            100 + n / 256,
            n % 256
        )
    };
    const MANY: u32 = 3000;
    gateway.xfrm(&(0..MANY).map(|n| policy("10.9.0.0/24", n)).collect::<Vec<_>>());
    assert_eq!(routes(), Some(0));
    // An address that they cover makes them concern the host, and without it they do not.
    let ip = |words: &str| watched.west.namespace.ip(words).expect("ip works");
    ip("address add 10.9.0.1/32 dev lo");
    gateway.wait("the routes", |_| routes() == Some(MANY.into()));
    let shown = ip("route list table 20551");
    assert_eq!(shown.matches("src 10.9.0.1").count(), MANY as usize);
    assert!(ip("route get 10.100.7.9").contains("dev pgn-"));
    ip("address delete 10.9.0.1/32 dev lo");
    gateway.wait("the routes' end", |_| routes() == Some(0));
    assert_eq!(lines(&ip("route list table 20551")).len(), 1, "multicast only");
    // In force when answered.
    ip("address add 10.9.0.1/32 dev lo");
    gateway.wait("the routes", |_| routes() == Some(MANY.into()));
    gateway.xfrm(&[policy("10.9.0.0/24", MANY)]);
    let last = format!("route get 10.{}.{}.1", 100 + MANY / 256, MANY % 256);
    assert!(ip(&last).contains("src 10.9.0.1"));
    gateway.xfrm(&lines("xfrm policy flush"));
    assert_eq!(lines(&ip("route list table 20551")).len(), 1);
}

#[test]
fn a_route_that_prefers_a_tentative_address_is_written_once_the_address_is_good() {
    let watched = Watched::new();
    let Watched { west: End { namespace, gateway }, .. } = &watched;
    let ip = |words: &str| namespace.ip(words).expect("ip works");
    // Another host may have it: for some seconds the kernel asks, and takes it for no route's source.
    for (name, value) in [("accept_dad", "1"), ("dad_transmits", "4")] {
        let name = format!("net.ipv6.conf.black0.{name}");
        namespace.sysctl(&name, value).expect("a setting");
    }
    ip("address add fd07::1/64 dev black0");
    gateway.xfrm(&lines(
        "xfrm policy add src fd07::/64 dst fd02::/16 dir out \
         tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel",
    ));
    let routes = || ip("-6 route show table 20551");
    let tentative = ip("-6 address show dev black0 tentative");
    assert!(tentative.contains("fd07::1"), "{tentative}");
    assert!(routes().contains("blackhole fd02::/16") && !routes().contains("dev pgn-"));
    gateway.wait("the route", |_| routes().contains("dev pgn-"));
    assert!(ip("route get fd02::1 from fd07::1").contains("dev pgn-"));
    gateway.xfrm(&lines("xfrm policy flush"));
    assert!(!routes().contains("fd02::/16"), "{}", routes());
}

#[test]
fn a_bgp_session_through_the_tunnel() {
    let pair = Pair::new();
    pair.tunnels();
    let Pair { west, east, .. } = &pair;
    let Some(root) = daemon::root::Root::find("frr-8.4") else { return };
    let program = root.path;
    let speakers = [
        speaker::Speaker::start(
            &program,
            &west.namespace,
            (65001, "10.1.0.1"),
            (65002, "10.2.0.1"),
            "172.31.1.0/24",
        ),
        speaker::Speaker::start(
            &program,
            &east.namespace,
            (65002, "10.2.0.1"),
            (65001, "10.1.0.1"),
            "172.31.2.0/24",
        ),
    ];
    let sees = |speaker: &speaker::Speaker, prefix: &str| {
        speaker.ask("show bgp ipv4 unicast").contains(prefix)
    };
    west.gateway.wait("the sessions", |_| {
        sees(&speakers[0], "172.31.2.0/24") && sees(&speakers[1], "172.31.1.0/24")
    });
    for end in [west, east] {
        assert!(verdict(end, "host_sealed") > 3 && verdict(end, "host_opened") > 3);
        assert_eq!(verdict(end, "host_forwarded"), 0);
    }
}

#[test]
fn without_it_the_hosts_traffic_is_the_kernels() {
    let watcher = Namespace::new("hx").expect("a namespace");
    let namespace = west(&watcher);
    let gateway =
        Gateway::start_with(&namespace, &["black0"], Cores::Any(0), "[host]\nenable = false");
    assert!(gateway.show("status")["host"].is_null());
    assert!(!namespace.ip("-br link").expect("links").contains("pgn-"));
    let silent = namespace.command("ip").args(["rule", "list"]).stderr(Stdio::null()).output();
    let rules = String::from_utf8(silent.expect("ip runs").stdout).expect("text");
    assert!(!rules.contains("proto 80"), "{rules}");
}
