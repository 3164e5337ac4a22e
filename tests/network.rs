//! Routes, addresses, neighbours and links follow the kernel while packets flow.

mod gateway;
mod peer;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use gateway::{Cores, Gateway};
use lab::topology::{Namespace, Veth};
use peer::{CLEAR, CLEAR6, Site, since, steered};
use serde_json::json;

/// The two families, in the words of `ip route` and of the far end.
struct Family {
    packet: &'static str,
    /// The network of the packet's destination, and a narrower one.
    net: &'static str,
    narrow: &'static str,
    black: &'static str,
    blue: &'static str,
}

const V4: Family = Family {
    packet: CLEAR,
    net: "48.0.0.0/8",
    narrow: "48.0.0.0/24",
    black: "192.0.2.2",
    blue: "198.51.100.2",
};

const V6: Family = Family {
    packet: CLEAR6,
    net: "fd48::/16",
    narrow: "fd48::/64",
    black: "2001:db8:b::2",
    blue: "2001:db8:c::2",
};

/// While a stream flows from red: every change of routes takes effect, and every packet of the
/// stream either comes out of exactly one port or died under the name of what the routes said.
fn routes_are_followed(family: &Family) {
    let mut site = Site::new();
    let Family { packet, net, narrow, black, blue } = family;
    site.becomes("red0", packet, "forwarded");
    let before = site.fates();
    site.peer.ask(&format!("start('red0', {packet})"));
    let mut seen: [Vec<u64>; 2] = Default::default();
    let mut comes_out = |site: &mut Site, blue: bool, what: &str| {
        let port = ["black0", "blue0"][usize::from(blue)];
        // What was on its way before the change is let by.
        for port in ["black0", "blue0"] {
            seen[usize::from(port == "blue0")]
                .extend(site.peer.list(&format!("numbers('{port}')")));
        }
        site.wait(what, |peer| {
            let new = peer.list(&format!("numbers('{port}')"));
            seen[usize::from(blue)].extend(&new);
            !new.is_empty()
        });
    };

    comes_out(&mut site, false, "the stream flows");
    site.ip(&format!("route replace {net} via {blue}"));
    comes_out(&mut site, true, "a changed route is followed");
    site.ip(&format!("route add {narrow} via {black}"));
    comes_out(&mut site, false, "a longer prefix wins");
    site.ip(&format!("route del {narrow}"));
    comes_out(&mut site, true, "a removed route gives way to the shorter prefix");
    site.ip(&format!("route add {net} via {black} metric 7"));
    site.ip(&format!("route del {net} via {blue}"));
    comes_out(&mut site, false, "a removed route gives way to one with a higher metric");
    for (kind, verdict) in [
        ("blackhole", "route_blackhole"),
        ("unreachable", "route_unreachable"),
        ("prohibit", "route_prohibit"),
    ] {
        let start = site.gateway.verdict(verdict);
        site.ip(&format!("route add {kind} {narrow}"));
        site.gateway.wait(kind, |gateway| gateway.verdict(verdict) > start + 2);
        site.ip(&format!("route del {kind} {narrow}"));
        comes_out(&mut site, false, "traffic flows again");
    }
    site.ip(&format!("route del {net} via {black}"));
    site.gateway.wait("no route", |gateway| gateway.verdict("no_route") > 2);

    let sent = site.peer.count("stop()");
    let mut fates = Default::default();
    site.gateway.wait("the stream's end", |_| {
        fates = since(&before, &site.fates());
        fates.values().sum::<u64>() >= sent
    });
    for (at, port) in ["black0", "blue0"].iter().enumerate() {
        seen[at].extend(site.peer.list(&format!("numbers('{port}')")));
    }
    let arrived: Vec<u64> = seen.concat();
    let distinct: BTreeSet<&u64> = arrived.iter().collect();
    assert_eq!(distinct.len(), arrived.len(), "nothing came twice");
    assert_eq!(fates.remove("forwarded"), Some(arrived.len() as u64), "{fates:?}");
    let lost: u64 = fates.values().sum();
    assert_eq!(arrived.len() as u64 + lost, sent, "{fates:?}");
    let names: Vec<&str> = fates.keys().map(String::as_str).collect();
    let allowed = [
        "neighbour_unresolved",
        "no_route",
        "route_blackhole",
        "route_prohibit",
        "route_unreachable",
    ];
    assert!(names.iter().all(|name| allowed.contains(name)), "{fates:?}");
}

#[test]
fn ipv4_routes_are_followed_while_traffic_flows() {
    routes_are_followed(&V4);
}

#[test]
fn ipv6_routes_are_followed_while_traffic_flows() {
    routes_are_followed(&V6);
}

#[test]
fn a_route_that_leaves_by_no_port_is_named() {
    let mut site = Site::new();
    site.ip("link add other0 type veth peer name other1");
    site.ip("link set other0 up");
    site.ip("link set other1 up");
    site.ip("address add 203.0.113.1/24 dev other0");
    let packet = "IP(src='16.0.0.1', dst='203.0.113.9')/UDP()";
    site.becomes("red0", packet, "route_not_a_port");
    site.ip("link del other0");
    site.becomes("red0", packet, "no_route");
}

#[test]
fn addresses_come_and_go() {
    let mut site = Site::new();
    site.outside.ip("route add 203.0.113.0/24 via 10.0.0.254").expect("a route");
    site.outside.ip("route add 2001:db8:f::/64 via fd00:10::254").expect("a route");
    for (address, packet) in [
        ("203.0.113.7", "IP(src='16.0.0.1', dst='203.0.113.7')/UDP()"),
        ("2001:db8:f::7", "IPv6(src='fd16::1', dst='2001:db8:f::7')/UDP()"),
    ] {
        let ping = || site.outside.run("ping", &["-c", "1", "-W", "1", address]).is_ok();
        assert!(!ping(), "{address} is nobody's");
        site.ip(&format!("address add {address} dev lo"));
        site.gateway.wait("the kernel answers at a new address", |_| ping());
        let passed = site.steered("red0", "pass_local");
        site.peer.ask(&format!("send('red0', {packet})"));
        site.gateway.wait("a packet to a new address is the kernel's", |gateway| {
            steered(&gateway.show("ports"), "red0", "pass_local") > passed
        });
        site.ip(&format!("address del {address} dev lo"));
        site.gateway.wait("an address that is gone is to be forwarded", |_| {
            let before = site.gateway.verdict("no_route");
            ping() || site.gateway.verdict("no_route") > before
        });
        site.becomes("red0", packet, "no_route");
    }
}

#[test]
fn the_kernels_local_table_says_what_is_the_hosts() {
    let mut site = Site::new();
    site.outside.ip("route add 203.0.113.0/24 via 10.0.0.254").expect("a route");
    site.outside.ip("route add 2001:db8:f::/64 via fd00:10::254").expect("a route");
    for address in ["203.0.113.5", "2001:db8:f::5"] {
        let ping = || site.outside.run("ping", &["-c", "1", "-W", "1", address]).is_ok();
        assert!(!ping(), "{address} is nobody's");
        site.ip(&format!("route add local {address} dev lo"));
        site.gateway.wait("the kernel answers at an address by route", |_| ping());
        let far = if address.contains(':') { "2001:db8:b::2" } else { "192.0.2.2" };
        site.gateway.xfrm(&[format!(
            "xfrm state add src {far} dst {address} proto esp spi 0x101 mode tunnel aead \
             rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128"
        )]);
        assert_eq!(site.gateway.show("sa")[0]["direction"], "in", "it ends at the host");
        site.gateway.xfrm(&["xfrm state flush".to_owned()]);
        site.ip(&format!("route del local {address} dev lo"));
        site.gateway.wait("an address that is gone is to be forwarded", |_| {
            let before = site.gateway.verdict("no_route");
            ping() || site.gateway.verdict("no_route") > before
        });
    }
    // Broadcasts come when their link is up, long after the address.
    let broadcast = "IP(src='16.0.0.1', dst='203.0.113.255')/UDP()";
    site.ip("link set blue0 down");
    site.ip("address add 203.0.113.1/24 dev blue0");
    site.becomes("red0", broadcast, "no_route");
    let passed = site.steered("red0", "pass_local");
    site.ip("link set blue0 up");
    site.gateway.wait("a broadcast is the kernel's", |gateway| {
        let _ = site.peer.ask(&format!("send('red0', {broadcast})"));
        steered(&gateway.show("ports"), "red0", "pass_local") > passed
    });
}

/// A stream to a neighbour that the kernel does not know (any more): the first packets are lost
/// under their name, and from the first one that arrives on, all do.
fn only_the_first_are_lost(site: &mut Site, packet: &str, lost_some: bool, forget: impl Fn(&Site)) {
    site.peer.ask("clear()");
    let before = site.fates();
    forget(site);
    site.peer.ask(&format!("start('red0', {packet})"));
    let mut arrived = Vec::new();
    site.wait("packets flow", |peer| {
        arrived.extend(peer.list("numbers('black0')"));
        arrived.len() >= 100
    });
    let sent = site.peer.count("stop()");
    let mut fates = Default::default();
    site.gateway.wait("the stream's end", |_| {
        fates = since(&before, &site.fates());
        fates.values().sum::<u64>() >= sent
    });
    site.wait("the last packet", |peer| {
        arrived.extend(peer.list("numbers('black0')"));
        arrived.last() == Some(&(sent - 1))
    });
    let first = arrived[0];
    assert_eq!(arrived, (first..sent).collect::<Vec<_>>(), "none is lost after the first arrival");
    assert_eq!(
        fates.remove("neighbour_unresolved").unwrap_or(0),
        first,
        "and those before by name"
    );
    assert_eq!(fates.remove("forwarded"), Some(sent - first));
    assert!(fates.is_empty(), "{fates:?}");
    assert_eq!(first > 0, lost_some, "{first} packets lost");
}

#[test]
fn an_unknown_neighbour_costs_only_the_first_packets() {
    let mut site = Site::new();
    only_the_first_are_lost(&mut site, CLEAR, true, |_| {});
    only_the_first_are_lost(&mut site, CLEAR, false, |_| {});
    only_the_first_are_lost(&mut site, CLEAR6, true, |_| {});
    for packet in [CLEAR, CLEAR6] {
        only_the_first_are_lost(&mut site, packet, true, |site| {
            site.ip("neigh flush dev black0");
            site.gateway.wait("the neighbours are forgotten", |gateway| {
                let all = gateway.show("neighbours");
                let mut all = all.as_array().expect("a list").iter();
                !all.any(|one| one["address"] == V4.black || one["address"] == V6.black)
            });
        });
    }
}

#[test]
fn a_neighbour_with_a_new_ethernet_address_is_followed() {
    let mut site = Site::new();
    site.becomes("red0", CLEAR, "forwarded");
    site.becomes("red0", CLEAR6, "forwarded");
    for (mac, announce) in [
        (
            "02:00:00:00:aa:01",
            "ARP(op=2, psrc='192.0.2.2', pdst='192.0.2.2', hwsrc='{mac}', hwdst='{mac}')",
        ),
        ("02:00:00:00:aa:02", "ARP(op=1, psrc='192.0.2.2', pdst='192.0.2.2', hwsrc='{mac}')"),
    ] {
        site.outside.ip(&format!("link set black0 address {mac}")).expect("a new address");
        let announce = announce.replace("{mac}", mac);
        site.peer.ask(&format!(
            "send_frame('black0', Ether(dst='ff:ff:ff:ff:ff:ff', src='{mac}')/{announce})"
        ));
        let packet = format!("send('red0', {CLEAR})");
        site.wait("frames go to the new address", |peer| {
            peer.ask(&packet);
            peer.ask("[frame[:6] for frame in WIRES['black0'].take()]")
                .as_array()
                .expect("a list")
                .contains(&json!(mac.replace(':', "")))
        });
        only_the_first_are_lost(&mut site, CLEAR, false, |_| {});
    }
    // Nobody announces it: forgetting the neighbour is enough.
    site.outside.ip("link set black0 address 02:00:00:00:aa:03").expect("a new address");
    site.ip("neigh flush dev black0");
    site.wait("frames go to the new address", |peer| {
        peer.ask(&format!("send('red0', {CLEAR6})"));
        peer.ask("[frame[:6] for frame in WIRES['black0'].take()]")
            .as_array()
            .expect("a list")
            .contains(&json!("02000000aa03"))
    });
}

#[test]
fn the_gateways_own_ethernet_address_may_change() {
    let mut site = Site::new();
    site.becomes("red0", CLEAR, "forwarded");
    site.becomes("black0", "IP(src='48.0.0.1', dst='16.0.0.1')/UDP()", "forwarded");
    site.ip("link set red0 address 02:00:00:00:bb:01");
    let passed = site.steered("red0", "pass_not_ours");
    site.gateway.wait("the old address is not ours any more", |gateway| {
        let _ = site.peer.ask(&format!("send('red0', {CLEAR})"));
        steered(&gateway.show("ports"), "red0", "pass_not_ours") > passed
    });
    site.peer.ask("setattr(WIRES['red0'], 'gateway', '02:00:00:00:bb:01')");
    site.becomes("red0", CLEAR, "forwarded");
    // The kernel forgets the neighbours of an interface whose address changes.
    let back = "IP(src='48.0.0.1', dst='16.0.0.1')/UDP()/b'back'";
    site.becomes("black0", back, "forwarded");
    site.crosses("black0", "red0", back, "forwarded");
}

#[test]
fn links_go_down_and_come_up() {
    let mut site = Site::new();
    site.ip("route replace 48.0.0.0/8 via 198.51.100.2");
    site.becomes("red0", CLEAR, "forwarded");
    // The far end goes: no carrier, and the kernel keeps the route.
    site.outside.ip("link set blue0 down").expect("link down");
    site.becomes("red0", CLEAR, "port_down");
    site.outside.ip("link set blue0 up").expect("link up");
    site.becomes("red0", CLEAR, "forwarded");
    site.crosses("red0", "blue0", CLEAR, "forwarded");
    // Our end goes: the kernel drops the routes with it.
    site.ip("link set blue0 down");
    site.becomes("red0", CLEAR, "no_route");
    site.ip("link set blue0 up");
    site.ip("route replace 48.0.0.0/8 via 198.51.100.2");
    site.becomes("red0", CLEAR, "forwarded");
    site.crosses("red0", "blue0", CLEAR, "forwarded");
    // The port that packets come in by.
    site.ip("link set red0 down");
    site.ip("link set red0 up");
    site.becomes("red0", CLEAR, "forwarded");
}

#[test]
fn the_mtu_of_the_way_out_is_kept_to_the_byte() {
    let mut site = Site::new();
    let sized =
        |bytes: usize| format!("IP(src='16.0.0.1', dst='48.0.0.1')/UDP()/bytes({})", bytes - 28);
    site.becomes("red0", CLEAR, "forwarded");
    site.crosses("red0", "black0", &sized(1500), "forwarded");
    site.ip("link set black0 mtu 1400");
    site.becomes("red0", &sized(1500), "too_big");
    site.expect("red0", &sized(1401), "too_big");
    site.crosses("red0", "black0", &sized(1400), "forwarded");
    site.ip("link set black0 mtu 1500");
    site.becomes("red0", &sized(1500), "forwarded");
    // With ESP (20 + 8 + 8 + 2 + 16 and padding to four) the sealed packet counts.
    site.xfrm(&[
        "state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x101 reqid 1 mode tunnel \
         aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128",
        "policy add src 16.0.0.0/8 dst 48.0.0.0/8 dir out \
         tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel",
    ]);
    site.becomes("red0", CLEAR, "sealed");
    site.expect("red0", &sized(1446), "sealed");
    site.expect("red0", &sized(1447), "too_big");
    site.expect("red0", &sized(1500), "too_big");
}

#[test]
fn the_hosts_own_traffic_stays_with_the_kernel() {
    // Without a device for the host, a policy for everything that has no SA does not touch it: only what
    // is forwarded dies. (With one, tests/host.rs, the host obeys the policies, too.)
    let mut site = Site::with(Cores::Any(0), "auto", "[host]\nenable = false");
    site.xfrm(&[
        "policy add src 0.0.0.0/0 dst 0.0.0.0/0 dir out \
         tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel",
        "policy add src 0.0.0.0/0 dst 0.0.0.0/0 dir in \
         tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 1 mode tunnel",
    ]);
    site.becomes("red0", CLEAR, "no_sa");
    let before = site.fates();
    for (size, address) in [
        ("56", "10.0.0.254"),
        ("56", "192.0.2.1"),
        ("56", "fd00:10::254"),
        ("4000", "10.0.0.254"),
        ("4000", "2001:db8:b::1"),
    ] {
        let line = ["-c", "3", "-i", "0.01", "-W", "5", "-s", size, address];
        site.outside.run("ping", &line).unwrap_or_else(|e| panic!("{e}"));
    }
    for address in ["10.0.0.254", "192.0.2.1", "[fd00:10::254]"] {
        let listen = || TcpListener::bind(format!("{address}:2222")).expect("a listener");
        let listener = site.inside.scope(listen).expect("the namespace");
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut heard = vec![0; 1 << 20];
            stream.read_exact(&mut heard).expect("all of it");
            stream.write_all(&heard).expect("an echo");
        });
        let connect = || TcpStream::connect(format!("{address}:2222")).expect("a connection");
        let mut stream = site.outside.scope(connect).expect("the namespace");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let said: Vec<u8> = (0..1 << 20).map(|n: u32| (n * 7 % 251) as u8).collect();
        let mut writer = stream.try_clone().expect("a clone");
        let saying = said.clone();
        let client = thread::spawn(move || writer.write_all(&saying).expect("all is said"));
        let mut heard = vec![0; said.len()];
        stream.read_exact(&mut heard).expect("the echo");
        assert!(heard == said, "TCP to {address} carries every byte");
        client.join().expect("the client");
        server.join().expect("the server");
    }
    // IKE: UDP 500 and 4500, whatever the policies say.
    for port in [500, 4500] {
        let bind = || UdpSocket::bind(("10.0.0.254", port)).expect("a socket");
        let socket = site.inside.scope(bind).expect("the namespace");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        site.peer.ask(&format!(
            "send('red0', IP(src='10.0.0.1', dst='10.0.0.254')/UDP(sport={port}, dport={port})\
             /(bytes(4) + b'IKE'))"
        ));
        let mut heard = [0; 100];
        let count = socket.recv(&mut heard).expect("IKE is the host's");
        assert_eq!(&heard[..count], b"\0\0\0\0IKE");
    }
    assert_eq!(since(&before, &site.fates()), Default::default(), "no worker saw any of it");
    site.expect("red0", CLEAR, "no_sa");
}

/// What an interface below a port merges the port's program never sees as it came.
#[test]
fn a_port_on_top_of_another_interface_is_told_of_merged_packets() {
    let [here, there] = ["nh", "nt"].map(|name| Namespace::new(name).expect("a namespace"));
    Veth::new((&here, "black0"), (&there, "black0"), 1).expect("a veth pair");
    here.ip("link add black5 type bridge").expect("a bridge");
    here.ip("link set black0 master black5").expect("black0 is below it");
    here.ip("link set black5 up").expect("it is up");
    let stacked = Gateway::start(&here, &["black5"], Cores::Any(0));
    assert!(stacked.log().contains("gro off"), "{}", stacked.log());
    let plain = Gateway::start(&there, &["black0:generic"], Cores::Any(0));
    assert!(!plain.log().contains("gro off"), "{}", plain.log());
}

/// A DHCP server sends its offer to the address that it offers, which is nobody's yet.
#[test]
fn a_port_without_an_address_hears_its_dhcp_server() {
    let mut site = Site::new();
    let client = "bytes.fromhex(WIRES['blue0'].gateway.replace(':', ''))";
    let answer = format!(
        "IP(src='198.51.100.2', dst='198.51.100.77')/UDP(sport=67, dport=68)\
         /(bytes([2, 1, 6, 0]) + bytes(24) + {client} + bytes(202))"
    );
    site.becomes("red0", CLEAR, "forwarded");
    let before = site.fates();
    site.peer.ask(&format!("send('blue0', {answer})"));
    site.gateway.wait("it is to be forwarded", |_| site.fates() != before);
    assert_eq!(site.steered("blue0", "pass_dhcp"), 0, "the port has an address");
    site.ip("-4 address flush dev blue0");
    site.gateway.wait("an answer is the kernel's", |gateway| {
        let _ = site.peer.ask(&format!("send('blue0', {answer})"));
        steered(&gateway.show("ports"), "blue0", "pass_dhcp") > 0
    });
    site.ip("address add 198.51.100.77/24 dev blue0");
    site.gateway.wait("it has an address again", |gateway| {
        let _ = site.peer.ask(&format!("send('blue0', {answer})"));
        steered(&gateway.show("ports"), "blue0", "pass_local") > 0
    });
}
