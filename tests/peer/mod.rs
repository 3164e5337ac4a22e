//! A gateway with three ports, all of whose far ends are in one namespace, and a program there that
//! speaks for every host behind them (tests/oracle/peer.py).
//!
//! ```text
//!  16.0.0.0/8, fd16::/16 ─ 10.0.0.1 ─── red0 ┐           ┌ black0 ─── 192.0.2.2 ─ 48.0.0.0/8, fd48::/16
//!                                            └─ gateway ─┤
//!                                                        └ blue0 ── 198.51.100.2
//! ```
//!
//! No host of the far networks exists: packets are sent and looked at on the wire, and the far
//! kernel only answers for its own addresses, so that nothing but a test's own packets is counted.
#![allow(dead_code, reason = "each test binary uses its own part of this module")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lab::topology::{Namespace, Veth};
use serde_json::{Value, json};

use crate::gateway::{Cores, Gateway, verdicts};

/// How long a change may take to show, on a busy two-core machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The ports, and the interfaces' names on both sides.
pub const PORTS: [&str; 3] = ["red0", "black0", "blue0"];

/// A packet of the red side for the black side, as tests/oracle/peer.py understands it.
pub const CLEAR: &str = "IP(src='16.0.0.1', dst='48.0.0.1')/UDP(sport=6000, dport=7000)/b'clear'";
/// The same in IPv6.
pub const CLEAR6: &str = "IPv6(src='fd16::1', dst='fd48::1')/UDP(sport=6000, dport=7000)/b'clear'";

/// The ends of packets that are sent.
pub const DELIVERED: [&str; 4] = ["forwarded", "sealed", "opened", "resealed"];

/// Packets by the name of their end.
pub type Fates = BTreeMap<String, u64>;

/// The program at the far ends.
pub struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Peer {
    fn start(outside: &Namespace, gateway: &Value) -> Peer {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = root.join("target/venv/bin/python");
        assert!(python.exists(), "run ./setup test first: it installs scapy");
        let mut child = outside
            .command(python.to_str().expect("a plain path"))
            .arg(root.join("tests/oracle/peer.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python starts");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut peer = Peer { child, stdin, stdout };
        writeln!(peer.stdin, "{gateway}").expect("python listens");
        peer
    }

    /// The value of an expression there.
    pub fn ask(&mut self, expression: &str) -> Value {
        writeln!(self.stdin, "{}", Value::from(expression)).expect("python listens");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("python answers");
        let mut answer: Value = serde_json::from_str(&line)
            .unwrap_or_else(|e| panic!("{expression}: {e}: python answered {line:?}"));
        if let Some(error) = answer["error"].as_str() {
            panic!("{expression}: {error}");
        }
        answer["value"].take()
    }

    /// The value as a number.
    pub fn count(&mut self, expression: &str) -> u64 {
        let value = self.ask(expression);
        value.as_u64().unwrap_or_else(|| panic!("{expression} is {value}, no count"))
    }

    /// The value as a list of numbers.
    pub fn list(&mut self, expression: &str) -> Vec<u64> {
        let value = self.ask(expression);
        let list = value.as_array().map(|list| list.iter().filter_map(Value::as_u64).collect());
        list.unwrap_or_else(|| panic!("{expression} is {value}, no list"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gateway, its surroundings, and the program there.
pub struct Site {
    /// The gateway.
    pub gateway: Gateway,
    /// The far ends.
    pub peer: Peer,
    /// The gateway's namespace.
    pub inside: Namespace,
    /// The far ends' namespace.
    pub outside: Namespace,
}

impl Site {
    /// One worker, on core 0.
    pub fn new() -> Site {
        Site::with(Cores::Any(0), "auto", "")
    }

    /// A worker for each core, a queue of every port for each worker, a mode for the XDP programs,
    /// and more lines for the configuration.
    pub fn with(cores: Cores<'_>, mode: &str, lines: &str) -> Site {
        let inside = Namespace::new("in").expect("a namespace");
        let outside = Namespace::new("out").expect("a namespace");
        for port in PORTS {
            Veth::new((&inside, port), (&outside, port), cores.queues()).expect("a veth pair");
        }
        inside.ip_batch(&addresses("254", "1")).expect("addresses");
        outside.ip_batch(&addresses("1", "2")).expect("addresses");
        let routes = [
            "route add 16.0.0.0/8 via 10.0.0.1",
            "route add 48.0.0.0/8 via 192.0.2.2",
            "route add fd16::/16 via fd00:10::1",
            "route add fd48::/16 via 2001:db8:b::2",
        ];
        inside.ip_batch(&routes.map(str::to_owned)).expect("routes");
        let ports = PORTS.map(|port| format!("{port}:{mode}"));
        let gateway = Gateway::start_with(&inside, &ports.each_ref().map(|p| &**p), cores, lines);
        let macs: Vec<(String, Value)> =
            PORTS.iter().map(|port| ((*port).to_owned(), mac(&inside, port).into())).collect();
        let peer = Peer::start(&outside, &json!(BTreeMap::from_iter(macs)));
        Site { gateway, peer, inside, outside }
    }

    /// Runs `ip` in the gateway's namespace, against its kernel.
    pub fn ip(&self, line: &str) {
        self.inside.ip(line).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Runs `ip xfrm` lines against the gateway.
    pub fn xfrm(&self, lines: &[&str]) {
        let lines: Vec<String> = lines.iter().map(|line| format!("xfrm {line}")).collect();
        self.gateway.xfrm(&lines);
    }

    /// Packets by the name of their end, those that no packet met left out.
    pub fn fates(&self) -> Fates {
        let all = verdicts(&self.gateway.show("drops"));
        all.into_iter().filter(|(_, count)| *count != 0).collect()
    }

    /// How `count` packets ended that `work` sends; `what` is for the message.
    pub fn fates_of(&mut self, count: u64, what: &str, work: impl FnOnce(&mut Peer)) -> Fates {
        let before = self.fates();
        work(&mut self.peer);
        let mut after = Fates::new();
        self.gateway.wait(&format!("the end of {count} × {what}"), |_| {
            after = since(&before, &self.fates());
            after.values().sum::<u64>() >= count
        });
        after
    }

    /// How one packet ends that is sent on `port`.
    pub fn fate(&mut self, port: &str, packet: &str) -> String {
        let mut fates = self.fates_of(1, packet, |peer| {
            peer.ask(&format!("send('{port}', {packet})"));
        });
        let (name, count) = fates.pop_first().expect("an end");
        assert!(fates.is_empty() && count == 1, "{packet} ended as {name} and {fates:?}");
        name
    }

    /// Sends a packet again and again until it ends so: what was changed takes effect. Nothing is
    /// on its way afterwards.
    pub fn becomes(&mut self, port: &str, packet: &str, verdict: &str) {
        // The kernel tells of a lost carrier up to a second late, and later on a busy machine.
        let end = Instant::now() + PATIENCE;
        loop {
            let last = self.fate(port, packet);
            if last == verdict {
                // It counts as sent a moment before it is seen.
                if DELIVERED.contains(&verdict) {
                    self.wait("its arrival", |peer| peer.count("arrived()") > 0);
                }
                return;
            }
            let log = self.gateway.log();
            assert!(
                Instant::now() < end,
                "{packet} on {port} still ends as {last}, not as {verdict}: {log}"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sees that a packet ends so, at once.
    #[track_caller]
    pub fn expect(&mut self, port: &str, packet: &str, verdict: &str) {
        let fate = self.fate(port, packet);
        assert_eq!(fate, verdict, "{packet} on {port}");
    }

    /// Sees that a packet comes out of another port as it is, one hop older.
    #[track_caller]
    pub fn crosses(&mut self, from: &str, to: &str, packet: &str, verdict: &str) {
        self.peer.ask("clear()");
        self.expect(from, packet, verdict);
        let same = self.peer.ask(&format!("came_through('{to}', {packet})"));
        assert_eq!(same, json!(true), "{packet} from {from} to {to}: came out, was expected");
    }

    /// A count of the steering program's on a port.
    pub fn steered(&self, port: &str, name: &str) -> u64 {
        steered(&self.gateway.show("ports"), port, name)
    }

    /// Waits until `ready` holds; panics with the gateway's log otherwise.
    pub fn wait(&mut self, what: &str, mut ready: impl FnMut(&mut Peer) -> bool) {
        let peer = &mut self.peer;
        self.gateway.wait(what, |_| ready(peer));
    }
}

/// A count of the steering program's on a port, out of `show ports --json`.
pub fn steered(ports: &Value, port: &str, name: &str) -> u64 {
    let ports = ports.as_array().expect("a list of ports");
    let found = ports.iter().find(|one| one["name"] == port).expect("the port");
    let counts = found["steering"].as_array().expect("a list of counts");
    let count = counts.iter().find(|one| one["name"] == name);
    count.and_then(|one| one["count"].as_u64()).unwrap_or_else(|| panic!("no {name} in {found}"))
}

/// What was added.
pub fn since(before: &Fates, after: &Fates) -> Fates {
    let added = |(name, count): (&String, &u64)| {
        let more = count - before.get(name).unwrap_or(&0);
        (more != 0).then(|| (name.clone(), more))
    };
    after.iter().filter_map(added).collect()
}

/// The Ethernet address of an interface.
pub fn mac(namespace: &Namespace, interface: &str) -> String {
    let text = namespace.ip(&format!("-j link show {interface}")).expect("ip link");
    let links: Value = serde_json::from_str(&text).expect("JSON");
    links[0]["address"].as_str().expect("a MAC").to_owned()
}

fn addresses(red: &str, others: &str) -> Vec<String> {
    [
        format!("address add 10.0.0.{red}/24 dev red0"),
        format!("address add fd00:10::{red}/64 dev red0 nodad"),
        format!("address add 192.0.2.{others}/24 dev black0"),
        format!("address add 2001:db8:b::{others}/64 dev black0 nodad"),
        format!("address add 198.51.100.{others}/24 dev blue0"),
        format!("address add 2001:db8:c::{others}/64 dev blue0 nodad"),
    ]
    .to_vec()
}
