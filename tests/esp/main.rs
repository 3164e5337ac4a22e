//! ESP on the wire against an independent implementation: every packet the gateway seals is opened
//! by scapy, every packet scapy seals is opened by the gateway, for all four combinations of inner
//! and outer family, all three key sizes, with and without extended sequence numbers, plain and in
//! UDP; and bad packets die under their own names. Transport mode the same (`transport`), between
//! the gateway's own addresses and scapy's.

#[path = "../gateway/mod.rs"]
mod gateway;
mod transport;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use gateway::{Cores, Gateway};
use lab::topology::{Namespace, Veth};
use serde_json::{Value, json};

struct Case {
    number: usize,
    inner: u8,
    outer: u8,
    key_bits: usize,
    esn: bool,
    /// ESP in UDP, between these ports of the gateway and the peer.
    udp: Option<(u16, u16)>,
}

impl Case {
    fn all() -> Vec<Case> {
        let mut cases = Vec::new();
        for inner in [4, 6] {
            for outer in [4, 6] {
                for key_bits in [128, 192, 256] {
                    for esn in [false, true] {
                        let number = cases.len() + 1;
                        cases.push(Case { number, inner, outer, key_bits, esn, udp: None });
                    }
                }
                for udp in [(4500, 4500), (40_000, 61_000), (65_535, 1)] {
                    let (number, udp) = (cases.len() + 1, Some(udp));
                    cases.push(Case { number, inner, outer, key_bits: 128, esn: true, udp });
                }
            }
        }
        cases
    }

    fn name(&self) -> String {
        let esn = if self.esn { "esn" } else { "no-esn" };
        let udp = self.udp.map_or(String::new(), |(here, there)| format!(", UDP {here} {there}"));
        format!("v{} in v{}, {} bits, {esn}{udp}", self.inner, self.outer, self.key_bits)
    }

    /// Key and salt in hexadecimal; different for every case, known to both sides.
    fn key(&self) -> String {
        (0..self.key_bits / 8 + 4)
            .map(|i| format!("{:02x}", (self.number * 31 + i * 7) & 0xff))
            .collect()
    }

    fn net(&self, side: &str) -> String {
        if self.inner == 4 {
            format!("{side}.{}.0.", self.number)
        } else {
            format!("fd{side}:{:x}::", self.number)
        }
    }

    fn prefix(&self, side: &str) -> String {
        if self.inner == 4 {
            format!("{side}.{}.0.0/24", self.number)
        } else {
            format!("fd{side}:{:x}::/64", self.number)
        }
    }

    fn outer_addresses(&self) -> (&'static str, &'static str) {
        if self.outer == 4 {
            ("192.0.2.1", "192.0.2.2")
        } else {
            ("2001:db8:b::1", "2001:db8:b::2")
        }
    }

    fn spi_out(&self) -> usize {
        0x1000 + self.number
    }

    fn spi_in(&self) -> usize {
        0x2000 + self.number
    }

    /// The words of an SA in UDP, or none.
    fn encap(&self, outbound: bool) -> String {
        let Some((local, remote)) = self.udp else { return String::new() };
        let (from, to) = if outbound { (local, remote) } else { (remote, local) };
        format!("encap espinudp {from} {to} {}", if self.outer == 4 { "0.0.0.0" } else { "::" })
    }

    fn xfrm(&self) -> Vec<String> {
        let (here, there) = self.outer_addresses();
        let (key, id) = (self.key(), self.number);
        let (local, remote) = (self.prefix("16"), self.prefix("48"));
        let replay = if self.esn {
            "replay-window 64 flag esn af-unspec"
        } else {
            "replay-window 32 flag af-unspec"
        };
        let state = |src: &str, dst: &str, spi: usize| {
            let encap = self.encap(src == here);
            format!(
                "xfrm state add src {src} dst {dst} proto esp spi {spi:#x} reqid {id} \
                 mode tunnel {replay} {encap} aead rfc4106(gcm(aes)) 0x{key} 128"
            )
        };
        let policy = |from: &str, to: &str, direction: &str, src: &str, dst: &str| {
            format!(
                "xfrm policy add src {from} dst {to} dir {direction} \
                 tmpl src {src} dst {dst} proto esp reqid {id} mode tunnel"
            )
        };
        vec![
            state(here, there, self.spi_out()),
            state(there, here, self.spi_in()),
            policy(&local, &remote, "out", here, there),
            policy(&remote, &local, "fwd", there, here),
            policy(&remote, &local, "in", there, here),
        ]
    }

    fn plan(&self) -> Value {
        let (here, there) = self.outer_addresses();
        json!({
            "name": self.name(), "key": self.key(), "esn": self.esn,
            "spi_out": self.spi_out(), "spi_in": self.spi_in(),
            "inner": self.inner, "outer": self.outer,
            "local_net": self.net("16"), "remote_net": self.net("48"),
            "local_outer": here, "remote_outer": there, "udp": self.udp,
        })
    }
}

/// A gateway between `red0` and `black0`, both of whose far ends are in one peer namespace.
struct Bench {
    gateway: Gateway,
    namespace: Namespace,
    peer: Namespace,
}

impl Bench {
    fn new(engine: &str) -> Bench {
        let namespace = Namespace::new("esp").expect("a namespace");
        let peer = Namespace::new("espp").expect("a namespace");
        for name in ["red0", "black0"] {
            Veth::new((&namespace, name), (&peer, name), 1).expect("a veth pair");
        }
        let lines = |end: &str, red: &str, black: &str| {
            vec![
                format!("address add 10.0.0.{red}/24 dev red0"),
                format!("address add fd00:10::{red}/64 dev red0 nodad"),
                format!("address add 192.0.2.{black}/24 dev black0"),
                format!("address add 2001:db8:b::{black}/64 dev black0 nodad"),
            ]
            .into_iter()
            .chain((end == "gateway").then(|| "route add 16.0.0.0/8 via 10.0.0.1".to_string()))
            .chain((end == "gateway").then(|| "route add fd16::/16 via fd00:10::1".to_string()))
            .collect::<Vec<_>>()
        };
        namespace.ip_batch(&lines("gateway", "254", "1")).expect("addresses");
        peer.ip_batch(&lines("peer", "1", "2")).expect("addresses");
        let gateway = Gateway::start_with(
            &namespace,
            &["red0", "black0"],
            Cores::Any(0),
            &format!("engine = \"{engine}\""),
        );
        Bench { gateway, namespace, peer }
    }

    fn mac(&self, interface: &str) -> String {
        let text = self.namespace.ip(&format!("-j link show {interface}")).expect("ip link");
        let links: Value = serde_json::from_str(&text).expect("JSON");
        links[0]["address"].as_str().expect("a MAC").to_string()
    }

    /// The findings of a program of `tests/oracle` about its cases.
    fn oracle(&self, program: &str, cases: Vec<Value>) -> Value {
        let plan = json!({
            "red": "red0", "black": "black0",
            "red_mac": self.mac("red0"), "black_mac": self.mac("black0"),
            "namespace": self.namespace.path(), "cases": cases,
        });
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = root.join("target/venv/bin/python");
        assert!(python.exists(), "run ./setup test first: it installs scapy");
        let mut child = self
            .peer
            .command(python.to_str().expect("a plain path"))
            .arg(root.join("tests/oracle").join(program))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("python starts");
        child
            .stdin
            .take()
            .expect("a pipe")
            .write_all(plan.to_string().as_bytes())
            .expect("the plan is read");
        let out = child.wait_with_output().expect("python ends");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).expect("findings")
    }
}

#[test]
fn scapy_and_the_best_engine_understand_each_other() {
    every_case_agrees("auto");
}

#[test]
fn scapy_and_the_portable_engine_understand_each_other() {
    every_case_agrees("aws-lc");
}

fn every_case_agrees(engine: &str) {
    let bench = Bench::new(engine);
    let status = bench.gateway.show("status");
    let running = status["engine"].as_str().expect("an engine");
    assert!(engine == "auto" || running.starts_with(engine), "{engine} was chosen: {running}");
    let cases = Case::all();
    assert_eq!(cases.len(), 36);
    let lines: Vec<String> = cases.iter().flat_map(Case::xfrm).collect();
    bench.gateway.xfrm(&lines);
    let findings = bench.oracle("esp.py", cases.iter().map(Case::plan).collect());

    let names: Vec<String> = cases.iter().map(Case::name).collect();
    judge(&bench.gateway, &names, &findings);
}

/// The verdict that each kind of bad packet must meet.
const ENDS: [(&str, &str); 8] = [
    ("replay", "replayed"),
    ("integrity_failed", "integrity_failed"),
    ("no_sa_inbound", "no_state"),
    ("malformed", "esp_truncated"),
    ("selector", "no_policy"),
    ("policy", "policy_mismatch"),
    ("wrapping", "encapsulation_mismatch"),
    ("datagram", "udp_malformed"),
];

/// Every good packet of every case came through as it should, and the gateway counted every bad one
/// under its name.
fn judge(gateway: &Gateway, names: &[String], findings: &Value) {
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    for name in names {
        let sealed = &findings[name]["sealed"];
        assert_eq!(sealed["faults"], json!([]), "{name}: {sealed}");
        assert_eq!(sealed["received"], sealed["sent"], "{name}: {sealed}");
        assert_eq!(sealed["distinct_ivs"], sealed["sent"], "{name}: {sealed}");
        let sequences: Vec<u64> = sealed["sequences"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(Value::as_u64)
            .collect();
        assert!(
            sequences.windows(2).all(|pair| pair[1] == pair[0] + 1),
            "{name}: consecutive numbers, got {sequences:?}"
        );
        let opened = &findings[name]["opened"];
        assert_eq!(opened["received"], opened["sent"], "{name}: {opened}");
        assert_eq!(opened["in_order"], json!(true), "{name}: {opened}");
        assert_eq!(opened["leaked"], json!([]), "{name}: {opened}");
        for (kind, count) in opened["bad"].as_object().expect("a table") {
            let known = ENDS.iter().find(|(name, _)| name == kind);
            let (_, verdict) = known.unwrap_or_else(|| panic!("unknown kind {kind}"));
            *expected.entry(verdict).or_default() += count.as_u64().expect("a count");
        }
    }
    for (verdict, sent) in expected {
        assert!(sent > 0, "{verdict} was provoked");
        let drops = gateway.show("drops");
        assert_eq!(gateway.verdict(verdict), sent, "{verdict}: {drops}");
    }
}
