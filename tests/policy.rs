//! The policy database decides every packet, live: XFRM's order, selectors, defaults and inbound
//! checks, and what becomes of traffic while policies and SAs change.

mod gateway;
mod peer;

use std::collections::BTreeSet;

use peer::{CLEAR, CLEAR6, Fates, Site, since};
use serde_json::{Value, json};

/// Key and salt of a tunnel, in hexadecimal, different for every number.
fn key(number: u32) -> String {
    (0..20).map(|i| format!("{:02x}", (number * 37 + i * 11) & 0xff)).collect()
}

/// The line that installs an SA. Odd SPIs lead out, even ones in.
fn state(spi: u32, reqid: u32) -> String {
    let (src, dst) =
        if spi % 2 == 1 { ("192.0.2.1", "192.0.2.2") } else { ("192.0.2.2", "192.0.2.1") };
    format!(
        "state add src {src} dst {dst} proto esp spi {spi:#x} reqid {reqid} mode tunnel \
         replay-window 32 aead rfc4106(gcm(aes)) 0x{} 128",
        key(spi)
    )
}

/// The line that removes it.
fn unstate(spi: u32) -> String {
    let (src, dst) =
        if spi % 2 == 1 { ("192.0.2.1", "192.0.2.2") } else { ("192.0.2.2", "192.0.2.1") };
    format!("state delete src {src} dst {dst} proto esp spi {spi:#x}")
}

/// What a policy asks for: the tunnel to black, or from it.
fn template(direction: &str, reqid: u32) -> String {
    let (src, dst) =
        if direction == "out" { ("192.0.2.1", "192.0.2.2") } else { ("192.0.2.2", "192.0.2.1") };
    format!("tmpl src {src} dst {dst} proto esp reqid {reqid} mode tunnel")
}

trait Tunnels {
    /// Runs `ip xfrm` lines.
    fn run(&self, lines: &[String]);
    /// Tells the far end an SA.
    fn share(&mut self, spi: u32);
}

impl Tunnels for Site {
    fn run(&self, lines: &[String]) {
        self.xfrm(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    }

    fn share(&mut self, spi: u32) {
        let (src, dst) =
            if spi % 2 == 1 { ("192.0.2.1", "192.0.2.2") } else { ("192.0.2.2", "192.0.2.1") };
        self.peer.ask(&format!("sa('{spi:#x}', {spi}, '{src}', '{dst}', '{}')", key(spi)));
    }
}

/// A site with a tunnel in both directions between 16/8 and 48/8, that carries traffic.
fn tunnel() -> Site {
    let mut site = Site::new();
    site.run(&[
        state(0x101, 1),
        state(0x102, 1),
        format!(
            "policy add src 16.0.0.0/8 dst 48.0.0.0/8 dir out priority 100 {}",
            template("out", 1)
        ),
        format!(
            "policy add src 48.0.0.0/8 dst 16.0.0.0/8 dir fwd priority 100 {}",
            template("fwd", 1)
        ),
    ]);
    site.share(0x101);
    site.share(0x102);
    site.becomes("red0", CLEAR, "sealed");
    site.becomes("black0", &sealed(BACK), "opened");
    site
}

/// A packet of the black side for the red side.
const BACK: &str = "IP(src='48.0.0.1', dst='16.0.0.1')/UDP(sport=7000, dport=6000)/b'back'";

/// A packet in the inbound tunnel.
fn sealed(packet: &str) -> String {
    format!("sealed('0x102', {packet})")
}

/// A packet from red to another black host.
fn to(host: &str) -> String {
    CLEAR.replace("48.0.0.1", host)
}

#[test]
fn the_lowest_priority_wins_and_among_equals_the_oldest() {
    let mut site = tunnel();
    let policy =
        |net: &str, rest: &str| format!("policy add src 16.0.0.0/8 dst {net} dir out {rest}");
    site.run(&[
        policy("48.0.1.0/24", "priority 50"),
        policy("48.0.2.0/24", "action block priority 50"),
        policy("48.0.3.0/24", "priority 150"),
        policy("48.0.4.0/24", "action block priority 100"),
        policy("48.0.5.0/24", "priority 99"),
        policy("48.0.5.5/32", "action block priority 98"),
        policy("48.0.5.6/32", "action block"),
        policy("49.0.0.0/24", "action block priority 7"),
        policy("49.0.0.0/8", &format!("priority 7 {}", template("out", 1))),
    ]);
    site.ip("route add 49.0.0.0/8 via 192.0.2.2");
    site.becomes("red0", &to("49.0.1.1"), "sealed");
    for (host, verdict) in [
        ("48.0.1.1", "forwarded"),
        ("48.0.2.1", "out_policy_block"),
        ("48.0.3.1", "sealed"),
        ("48.0.4.1", "sealed"),
        ("48.0.5.1", "forwarded"),
        ("48.0.5.5", "out_policy_block"),
        ("48.0.5.6", "out_policy_block"),
        ("48.0.6.1", "sealed"),
        ("49.0.0.1", "out_policy_block"),
    ] {
        site.expect("red0", &to(host), verdict);
    }
    // The older one goes, and the younger one decides; put back, it is the youngest.
    site.run(&["policy delete src 16.0.0.0/8 dst 49.0.0.0/24 dir out".to_owned()]);
    site.becomes("red0", &to("49.0.0.1"), "sealed");
    site.run(&[policy("49.0.0.0/24", "action block priority 7")]);
    site.run(&[policy("49.0.0.0/25", "action block priority 6")]);
    site.becomes("red0", &to("49.0.0.1"), "out_policy_block");
    site.expect("red0", &to("49.0.0.129"), "sealed");

    let order: Vec<u64> = list(&site.gateway.show("policy"), "priority", "out");
    assert!(order.is_sorted(), "shown in the order in which they are asked: {order:?}");
    // One that is updated keeps its place among equals.
    let update = policy("48.0.1.0/24", "action block priority 50");
    site.run(&[update.replace("policy add", "policy update")]);
    let shown = site.gateway.show("policy");
    let equals = shown.as_array().expect("a list").iter().filter(|one| one["priority"] == 50);
    let equals: Vec<&Value> = equals.map(|one| &one["dst"]).collect();
    assert_eq!(equals, ["48.0.1.0/24", "48.0.2.0/24"]);
}

/// A field of every policy of a direction.
fn list(policies: &Value, field: &str, direction: &str) -> Vec<u64> {
    let policies = policies.as_array().expect("a list").iter();
    policies
        .filter(|one| one["direction"] == direction)
        .filter_map(|one| one[field].as_u64())
        .collect()
}

#[test]
fn selectors_tell_ports_protocols_and_icmp_types_apart() {
    let mut site = Site::new();
    site.becomes("red0", CLEAR, "forwarded");
    site.becomes("red0", CLEAR6, "forwarded");
    let block = |net: &str, upper: &str| {
        let src = if net.contains(':') { "fd16::/16" } else { "16.0.0.0/8" };
        format!("policy add src {src} dst {net} {upper} dir out action block")
    };
    site.run(&[
        block("48.0.1.0/24", "proto udp dport 53"),
        block("48.0.2.0/24", "proto udp sport 53"),
        block("48.0.3.0/24", "proto tcp"),
        block("48.0.4.0/24", "proto icmp type 8 code 0"),
        block("48.0.5.0/24", "proto icmp type 3"),
        block("48.0.6.0/24", "proto 47"),
        block("48.0.7.7/32", ""),
        block("48.0.8.0/24", "proto tcp sport 1000 dport 2000"),
        block("fd48:0:1::/48", "proto ipv6-icmp type 128"),
        block("fd48:0:2::/48", "proto udp dport 53"),
    ]);
    let v4 = |host: &str, rest: &str| format!("IP(src='16.0.0.1', dst='{host}'{rest}");
    let v6 = |host: &str, rest: &str| format!("IPv6(src='fd16::1', dst='{host}'{rest}");
    site.becomes("red0", &v6("fd48:0:2::1", ")/UDP(dport=53)"), "out_policy_block");
    let (block, pass) = ("out_policy_block", "forwarded");
    for (packet, verdict) in [
        (v4("48.0.1.1", ")/UDP(sport=9, dport=53)"), block),
        (v4("48.0.1.1", ")/UDP(sport=53, dport=54)"), pass),
        (v4("48.0.1.1", ")/TCP(dport=53)"), pass),
        (v4("48.0.2.1", ")/UDP(sport=53, dport=9)"), block),
        (v4("48.0.2.1", ")/UDP(sport=9, dport=53)"), pass),
        (v4("48.0.3.1", ")/TCP(dport=80)"), block),
        (v4("48.0.3.1", ")/UDP(dport=80)"), pass),
        (v4("48.0.4.1", ")/ICMP(type=8, code=0)"), block),
        (v4("48.0.4.1", ")/ICMP(type=8, code=1)"), pass),
        (v4("48.0.4.1", ")/ICMP(type=0, code=0)"), pass),
        (v4("48.0.5.1", ")/ICMP(type=3, code=4)/bytes(28)"), block),
        (v4("48.0.5.1", ")/ICMP(type=11, code=0)/bytes(28)"), pass),
        (v4("48.0.6.1", ", proto=47)/bytes(20)"), block),
        (v4("48.0.6.1", ", proto=46)/bytes(20)"), pass),
        (v4("48.0.7.7", ")/UDP()"), block),
        (v4("48.0.7.6", ")/UDP()"), pass),
        (v4("48.0.8.1", ")/TCP(sport=1000, dport=2000)"), block),
        (v4("48.0.8.1", ")/TCP(sport=1000, dport=2001)"), pass),
        (v6("fd48:0:1::1", ")/ICMPv6EchoRequest()"), block),
        (v6("fd48:0:1::1", ")/UDP()"), pass),
        (v6("fd48:0:2::1", ")/IPv6ExtHdrDestOpt()/UDP(dport=53)"), block),
        (v6("fd48:0:2::1", ")/UDP(dport=54)"), pass),
        // A fragment may not show its ports, and half a datagram is of no use (RFC 4301 §7).
        (v4("48.0.1.1", ", flags='MF')/UDP(dport=53)/bytes(24)"), "fragment_of_port_policy"),
        (v4("48.0.1.1", ", flags='MF')/UDP(dport=54)/bytes(24)"), pass),
        (v4("48.0.1.1", ", frag=4, proto=17)/bytes(24)"), "fragment_of_port_policy"),
        (v4("48.0.1.1", ", frag=4, proto=6)/bytes(24)"), pass),
        (v4("48.0.3.1", ", frag=4, proto=6)/bytes(24)"), block),
        (v4("48.0.7.7", ", frag=4, proto=17)/bytes(24)"), block),
        (
            v6("fd48:0:2::1", ")/IPv6ExtHdrFragment(offset=4, nh=17)/bytes(24)"),
            "fragment_of_port_policy",
        ),
    ] {
        site.expect("red0", &packet, verdict);
    }
}

#[test]
fn the_default_action_decides_what_no_policy_does() {
    let mut site = Site::new();
    site.becomes("red0", CLEAR, "forwarded");
    let set = |site: &Site, line: &str| site.run(&[format!("policy setdefault {line}")]);
    set(&site, "in accept fwd accept out block");
    site.becomes("red0", CLEAR, "out_policy_block");
    set(&site, "in accept fwd block out accept");
    site.becomes("red0", CLEAR, "no_policy");
    set(&site, "in block fwd block out block");
    site.run(&[
        "policy add src 16.0.0.0/8 dst 48.0.0.0/8 dir fwd".to_owned(),
        "policy add src 16.0.0.0/8 dst 48.0.0.0/8 dir out".to_owned(),
    ]);
    site.becomes("red0", CLEAR, "forwarded");
    site.expect("red0", CLEAR6, "no_policy");
    let ping = site.outside.run("ping", &["-c", "1", "-W", "5", "10.0.0.254"]);
    assert!(ping.is_ok(), "the host's own traffic is the kernel's: {ping:?}");
    site.run(&["policy delete src 16.0.0.0/8 dst 48.0.0.0/8 dir out".to_owned()]);
    site.becomes("red0", CLEAR, "out_policy_block");
    set(&site, "in accept fwd accept out accept");
    site.becomes("red0", CLEAR, "forwarded");
    site.becomes("red0", CLEAR6, "forwarded");
}

#[test]
fn what_comes_in_must_have_come_the_right_way() {
    let mut site = tunnel();
    site.run(&[
        // A second tunnel for another network behind the same gateway, and a third with a selector
        // of its own.
        state(0x202, 2),
        format!("{} sel src 50.0.0.0/24 dst 16.0.0.0/8", state(0x302, 3)),
        format!(
            "policy add src 49.0.0.0/8 dst 16.0.0.0/8 dir fwd priority 100 {}",
            template("fwd", 2)
        ),
        format!(
            "policy add src 50.0.0.0/8 dst 16.0.0.0/8 dir fwd priority 100 {}",
            template("fwd", 3)
        ),
        format!(
            "policy add src 53.0.0.0/8 dst 16.0.0.0/8 dir fwd priority 100 {} level use",
            template("fwd", 2)
        ),
        "policy add src 51.0.0.0/8 dst 16.0.0.0/8 dir fwd priority 100".to_owned(),
        "policy add src 52.0.0.0/8 dst 16.0.0.0/8 dir fwd action block priority 100".to_owned(),
        format!(
            "policy add src 48.0.0.0/8 dst 10.0.0.254/32 dir in priority 100 {}",
            template("in", 1)
        ),
    ]);
    for spi in [0x202, 0x302] {
        site.share(spi);
    }
    let from = |host: &str| BACK.replace("48.0.0.1", host);
    let through = |spi: &str, packet: &str| format!("sealed('{spi}', {packet})");
    site.becomes("black0", &through("0x302", &from("50.0.0.1")), "opened");
    for (port, packet, verdict) in [
        // Genuine.
        ("black0", through("0x102", BACK), "opened"),
        ("black0", through("0x202", &from("49.0.0.1")), "opened"),
        // In clear what a tunnel protects, on whatever side it comes in.
        ("black0", BACK.to_owned(), "clear_of_protected"),
        ("red0", BACK.to_owned(), "clear_of_protected"),
        ("blue0", BACK.to_owned(), "clear_of_protected"),
        // One tunnel speaks for another's network.
        ("black0", through("0x102", &from("49.0.0.1")), "policy_mismatch"),
        ("black0", through("0x202", BACK), "policy_mismatch"),
        // For nobody's network, outside the SA's selector, and for what should come in clear.
        ("black0", through("0x102", &from("60.0.0.1")), "no_policy"),
        ("black0", through("0x302", &from("50.0.1.1")), "selector_mismatch"),
        ("black0", through("0x102", &from("51.0.0.1")), "policy_mismatch"),
        ("black0", from("51.0.0.1"), "forwarded"),
        ("black0", through("0x102", &from("52.0.0.1")), "policy_block"),
        ("black0", from("52.0.0.1"), "policy_block"),
        // Level "use": through the tunnel or in clear.
        ("black0", through("0x202", &from("53.0.0.1")), "opened"),
        ("black0", from("53.0.0.1"), "forwarded"),
        ("black0", through("0x102", &from("53.0.0.1")), "policy_mismatch"),
        // For the host itself.
        ("black0", through("0x102", &BACK.replace("16.0.0.1", "10.0.0.254")), "host_opened"),
        ("black0", through("0x202", &BACK.replace("16.0.0.1", "10.0.0.254")), "policy_mismatch"),
        // Inner packets that are none.
        ("black0", through("0x102", &format!("edit({BACK}, 10, 'dead')")), "inner_malformed"),
        (
            "black0",
            through("0x102", &BACK.replace("/UDP", ", ttl=1)/UDP").replace("')", "'")),
            "ttl_expired",
        ),
        // An SPI that was never there.
        ("black0", "edit(sealed('0x102', BACK), 20, '00000999')".replace("BACK", BACK), "no_state"),
    ] {
        site.expect(port, &packet, verdict);
    }
    // The numbers of the bad ones count as received: their senders held the key.
    let replayed = format!("sealed('0x102', {BACK}, 1)");
    site.expect("black0", &replayed, "replayed");
    site.becomes("black0", &sealed(BACK), "opened");
}

/// Ends the stream and says how its packets ended.
fn end(site: &mut Site, before: &Fates) -> (u64, Fates) {
    let sent = site.peer.count("stop()");
    let mut fates = Fates::new();
    site.gateway.wait("the stream's end", |_| {
        fates = since(before, &site.fates());
        fates.values().sum::<u64>() >= sent
    });
    (sent, fates)
}

/// Waits until more packets of a verdict have been seen.
fn more(site: &Site, verdict: &str) {
    let start = site.gateway.verdict(verdict);
    site.gateway.wait(verdict, |gateway| gateway.verdict(verdict) > start + 5);
}

#[test]
fn a_policy_without_an_sa_holds_its_traffic_until_there_is_one() {
    let mut site = Site::new();
    site.becomes("red0", CLEAR, "forwarded");
    site.share(0x101);
    let policy = format!("src 16.0.0.0/8 dst 48.0.0.0/8 dir out {}", template("out", 1));
    site.run(&[format!("policy add {policy}")]);
    site.becomes("red0", CLEAR, "no_sa");
    let before = site.fates();
    site.peer.ask(&format!("start('red0', {CLEAR})"));
    for _ in 0..3 {
        more(&site, "no_sa");
        site.run(&[state(0x101, 1)]);
        more(&site, "sealed");
        site.run(&[unstate(0x101)]);
    }
    // An SA of another reqid is not what the policy asks for.
    more(&site, "no_sa");
    site.run(&[state(0x103, 9)]);
    more(&site, "no_sa");
    site.run(&[state(0x101, 1)]);
    more(&site, "sealed");
    let (sent, mut fates) = end(&mut site, &before);
    let esp = site.peer.list("numbers('black0', 'esp')");
    let distinct: BTreeSet<_> = esp.iter().collect();
    assert_eq!(distinct.len(), esp.len(), "each once");
    assert_eq!(fates.remove("sealed"), Some(esp.len() as u64));
    assert_eq!(fates.remove("no_sa"), Some(sent - esp.len() as u64));
    assert!(fates.is_empty(), "none in clear: {fates:?}");

    // What is deleted protects no more.
    site.run(&["policy delete src 16.0.0.0/8 dst 48.0.0.0/8 dir out".to_owned()]);
    site.becomes("red0", CLEAR, "forwarded");
}

#[test]
fn an_updated_policy_changes_the_fate_of_a_running_stream() {
    let mut site = tunnel();
    site.run(&[state(0x103, 3)]);
    site.share(0x103);
    let before = site.fates();
    site.peer.ask(&format!("start('red0', {CLEAR})"));
    let update = |site: &Site, rest: &str| {
        let selector = "src 16.0.0.0/8 dst 48.0.0.0/8 dir out priority 100";
        site.run(&[format!("policy update {selector} {rest}")]);
    };
    more(&site, "sealed");
    update(&site, "action block");
    more(&site, "out_policy_block");
    update(&site, "action allow");
    more(&site, "forwarded");
    update(&site, &template("out", 3));
    more(&site, "sealed");
    let spi = |packets: Value| {
        let all: Vec<String> = serde_json::from_value(packets).expect("packets");
        all.last().map(|packet| packet[40..48].to_owned())
    };
    site.wait("packets under the other SA", |peer| {
        spi(peer.ask("taken('black0')")) == Some("00000103".to_owned())
    });
    site.run(&["policy flush".to_owned()]);
    more(&site, "forwarded");
    let (sent, fates) = end(&mut site, &before);
    let names: Vec<&str> = fates.keys().map(String::as_str).collect();
    assert_eq!(names, ["forwarded", "out_policy_block", "sealed"], "{fates:?}");
    assert_eq!(fates.values().sum::<u64>(), sent);
    assert_eq!(list(&site.gateway.show("policy"), "priority", "out"), Vec::<u64>::new());
}

#[test]
fn a_rekey_loses_no_packet_outbound() {
    let mut site = tunnel();
    let before = site.fates();
    site.peer.ask(&format!("start('red0', {CLEAR}, 0.0005)"));
    let mut seen = Vec::new();
    let mut old = 0x101;
    for round in 1..=5u32 {
        let new = 0x101 + 0x10 * round;
        site.share(new);
        // As an IKE daemon does it: new inbound, new outbound, then the old ones go.
        site.run(&[state(new + 1, 1)]);
        site.run(&[state(new, 1)]);
        site.wait("packets under the new SA", |peer| {
            let opened = peer.ask(
                "[[p[20:24].hex(), number(opened(p))] for p in taken('black0') if p[9] == 50]",
            );
            let opened: Vec<(String, u64)> = serde_json::from_value(opened).expect("packets");
            seen.extend(opened.iter().map(|(_, number)| *number));
            opened.iter().any(|(spi, _)| *spi == format!("{new:08x}"))
        });
        site.run(&[unstate(old), unstate(old + 1)]);
        old = new;
    }
    let (sent, fates) = end(&mut site, &before);
    assert_eq!(fates, Fates::from([("sealed".to_owned(), sent)]), "sealed, all of them");
    site.wait("the last packet", |peer| {
        seen.extend(peer.list("numbers('black0', 'esp')"));
        seen.len() as u64 >= sent
    });
    assert_eq!(seen, (0..sent).collect::<Vec<_>>(), "all arrived, in order");
}

#[test]
fn a_rekey_loses_no_packet_inbound() {
    let mut site = tunnel();
    let before = site.fates();
    site.peer.ask(&format!("start('black0', {BACK}, 0.0005, seal='0x102')"));
    let mut old = 0x102;
    for round in 1..=5u32 {
        let new = 0x102 + 0x10 * round;
        more(&site, "opened");
        site.share(new);
        site.run(&[state(new, 1)]);
        // The other side changes over when it has our answer; the old SA goes when it did.
        site.peer.ask(&format!("reseal('{new:#x}')"));
        let packets = |site: &Site| {
            let all = site.gateway.show("sa");
            let mut all = all.as_array().expect("SAs").iter();
            all.find(|sa| sa["spi"] == new).and_then(|sa| sa["packets"].as_u64())
        };
        site.gateway.wait("packets under the new SA", |_| packets(&site) > Some(0));
        site.run(&[unstate(old)]);
        old = new;
    }
    let (sent, fates) = end(&mut site, &before);
    assert_eq!(fates, Fates::from([("opened".to_owned(), sent)]), "opened, all of them");
    let mut seen = Vec::new();
    site.wait("the last packet", |peer| {
        seen.extend(peer.list("numbers('red0')"));
        seen.len() as u64 >= sent
    });
    // Where one SA takes over from another the packets of two workers may overtake each other.
    if site.gateway.show("workers").as_array().is_some_and(|all| all.len() > 1) {
        seen.sort_unstable();
    }
    assert_eq!(seen, (0..sent).collect::<Vec<_>>(), "all arrived, in order");
    // What is deleted opens no more.
    site.expect("black0", &sealed(BACK), "no_state");
    site.expect("black0", &format!("sealed('{old:#x}', {BACK})"), "opened");
    site.run(&["state flush".to_owned()]);
    site.becomes("black0", &format!("sealed('{old:#x}', {BACK})"), "no_state");
    site.expect("red0", CLEAR, "no_sa");
    assert_eq!(site.gateway.show("sa"), json!([]));
}
