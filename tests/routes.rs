//! Route mode: routes lead into tunnels, by `if_id` or by far end, for hosts and for the gateway itself.
//!
//! ```text
//!  host 10.1.1.5 ─ west 10.1.1.254 ─ 192.0.2.1 ═══════ 192.0.2.2 ─ east 10.2.1.254 ─ host 10.2.1.5
//!                        └───────── 198.51.100.1 ═══ 198.51.100.2 ─ north 10.3.1.254 ─ host 10.3.1.5
//! ```

mod gateway;

use std::net::IpAddr;

use gateway::{Cores, Gateway};
use lab::topology::{Namespace, Veth};

const KEY: &str = "0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fdeadbeef";

fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// The west gateway's namespace, and the host behind it.
fn west() -> (Namespace, Namespace) {
    let (west, host) =
        (Namespace::new("rw").expect("a namespace"), Namespace::new("ra").expect("a namespace"));
    behind(&west, &host, 1);
    (west, host)
}

/// Connects a host to a gateway: networks 10.N.1.0/24 and fd0N:0:0:1::/64.
fn behind(gateway: &Namespace, host: &Namespace, n: u8) {
    Veth::new((gateway, "red0"), (host, "p0"), 1).expect("a veth pair");
    let inside = format!(
        "address add 10.{n}.1.254/24 dev red0
         address add fd0{n}:0:0:1::fe/64 dev red0 nodad"
    );
    gateway.ip_batch(&lines(&inside)).expect("addresses");
    let outside = format!(
        "address add 10.{n}.1.5/24 dev p0
         address add fd0{n}:0:0:1::5/64 dev p0 nodad
         route add default via 10.{n}.1.254
         route add default via fd0{n}:0:0:1::fe"
    );
    host.ip_batch(&lines(&outside)).expect("addresses");
}

/// A far gateway's namespace, on `port` of the west with addresses `net`.1 and `net`.2, and the host
/// behind it.
fn far(west: &Namespace, port: &str, net: &str, n: u8) -> (Namespace, Namespace) {
    let (far, host) =
        (Namespace::new("rf").expect("a namespace"), Namespace::new("rb").expect("a namespace"));
    Veth::new((west, port), (&far, "black0"), 1).expect("a veth pair");
    west.ip_batch(&lines(&format!("address add {net}.1/24 dev {port}"))).expect("addresses");
    far.ip_batch(&lines(&format!("address add {net}.2/24 dev black0"))).expect("addresses");
    behind(&far, &host, n);
    (far, host)
}

/// An SA each way, between `net`.1 and `net`.2, with SPIs `spi` and `spi` + 1.
fn states(net: &str, spi: u32, options: &str) -> Vec<String> {
    let state = |(src, dst, spi)| {
        format!(
            "xfrm state add src {net}.{src} dst {net}.{dst} proto esp spi {spi:#x} {options} \
             mode tunnel replay-window 64 flag esn af-unspec aead rfc4106(gcm(aes)) {KEY} 128"
        )
    };
    [(1, 2, spi), (2, 1, spi + 1)].map(state).to_vec()
}

/// Policies in all directions at `near`, towards `far`, between the prefixes `here` and `there`.
fn policies(
    [near, far]: [&str; 2],
    [here, there]: [&str; 2],
    options: &str,
    reqid: u32,
) -> Vec<String> {
    let policy = |(src, dst, dir, from, to)| {
        format!(
            "xfrm policy add src {src} dst {dst} dir {dir} {options} \
             tmpl src {from} dst {to} proto esp reqid {reqid} mode tunnel"
        )
    };
    [
        (here, there, "out", near, far),
        (there, here, "in", far, near),
        (there, here, "fwd", far, near),
    ]
    .map(policy)
    .to_vec()
}

/// Waits until one ping comes back, as the first ones may find neighbours unresolved.
fn ping(gateway: &Gateway, from: &Namespace, options: &[&str], to: &str) {
    let words = [options, &["-c", "1", "-W", "2", to]].concat();
    gateway.wait(&format!("an answer of {to}"), |_| from.run("ping", &words).is_ok());
}

/// Packets that an SA of the gateway's has carried.
fn packets(gateway: &Gateway, spi: u32) -> u64 {
    let sas = gateway.show("sa");
    let of = |sa: &&serde_json::Value| sa["spi"].as_u64() == Some(spi.into());
    let sa = sas.as_array().and_then(|all| all.iter().find(of));
    sa.and_then(|sa| sa["packets"].as_u64()).unwrap_or_else(|| panic!("no SPI {spi:#x} in {sas}"))
}

/// Two tunnels between west and east, numbers 7 and 8, for anything of either family.
fn two_tunnels(gateway: &Gateway, ends: [&str; 2]) {
    for if_id in [7, 8] {
        gateway.xfrm(&states("192.0.2", if_id << 12, &format!("reqid {if_id} if_id {if_id}")));
        for any in ["0.0.0.0/0", "::/0"] {
            gateway.xfrm(&policies(ends, [any, any], &format!("if_id {if_id}"), if_id));
        }
    }
}

const P2P: &str = "[[group]]\ndevice = \"tun0\"\n";

#[test]
fn each_if_id_is_a_tunnel_that_routes_lead_into() {
    let (west, west_host) = west();
    let (east, east_host) = far(&west, "black0", "192.0.2", 2);
    let mut near = Gateway::start_with(&west, &["red0", "black0"], Cores::Any(0), P2P);
    // The east has its routes from the configuration.
    let configured = format!(
        "{P2P}[[group.tunnel]]\nif_id = 7\nroutes = [\"10.1.0.0/16\"]\n\
         [[group.tunnel]]\nif_id = 8\nroutes = [\"fd01::/16\"]\n"
    );
    let mut other = Gateway::start_with(&east, &["red0", "black0"], Cores::Any(1), &configured);
    two_tunnels(&near, ["192.0.2.1", "192.0.2.2"]);
    two_tunnels(&other, ["192.0.2.2", "192.0.2.1"]);
    let typed = "route add 10.2.0.0/16 via inet6 fe80::7 dev tun0
        -6 route add fd02::/16 via fe80::8 dev tun0";
    for line in lines(typed) {
        west.ip(&line).expect("the kernel takes the route");
    }

    ping(&near, &west_host, &[], "10.2.1.5");
    let before = packets(&near, 0x8000);
    ping(&near, &west_host, &[], "fd02:0:0:1::5");
    assert!(
        packets(&near, 0x7000) > 0 && packets(&near, 0x8000) > before,
        "each by its own tunnel"
    );
    // Nobody asks for the policies; IKE daemons see by them whether a tunnel is idle.
    let shown = near.show("policy");
    let used = shown.as_array().expect("a list").iter().filter(|policy| {
        policy["direction"] == "out" && policy["last_use_age_s"].as_u64().is_some()
    });
    assert_eq!(used.count(), 4, "{shown}");
    let listed = near.ip("-s xfrm policy list dir out");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains(" use 20") && !listed.contains("use -"), "{listed}");
    ping(&near, &east_host, &[], "10.1.1.5");
    // The gateway's own packets, by the one device.
    ping(&near, &west, &["-I", "10.1.1.254"], "10.2.1.5");
    ping(&near, &east_host, &[], "10.1.1.254");
    ping(&near, &west, &["-I", "fd01:0:0:1::fe"], "fd02:0:0:1::5");
    assert!(near.verdict("host_sealed") >= 3 && near.verdict("host_opened") >= 3);
    // Another route is another tunnel, at once.
    west.ip("route replace 10.2.0.0/16 via inet6 fe80::8 dev tun0").expect("a route");
    let before = packets(&near, 0x8000);
    near.wait("the other tunnel's turn", |near| {
        let _ = west_host.run("ping", &["-c", "1", "-W", "1", "10.2.1.5"]);
        packets(near, 0x8000) > before
    });
    // A tunnel that nobody has set up: nothing leaves, least of all in clear.
    west.ip("route add 10.9.0.0/16 via inet6 fe80::99 dev tun0").expect("a route");
    near.wait("no tunnel", |near| {
        let _ = west_host.run("ping", &["-c", "1", "-W", "1", "10.9.0.1"]);
        near.verdict("no_tunnel") > 0
    });

    // What a killed gateway leaves holds the host's packets, and the next one goes on with it.
    near.kill();
    let routes = west.ip("route show 10.2.0.0/16").expect("routes");
    assert!(routes.contains("tun0"), "{routes}");
    near.restart(&west);
    ping(&near, &west_host, &[], "10.2.1.5");
    ping(&near, &west, &["-I", "10.1.1.254"], "10.2.1.5");
    // A clean stop leaves nothing.
    assert_eq!(other.stop(), Some(0));
    let left = east.ip("route show table all").expect("routes");
    assert!(!left.contains("10.1.0.0/16") && east.ip("link show tun0").is_err(), "{left}");
}

#[test]
fn before_there_is_a_tunnel_their_device_sends_nothing_in_clear() {
    let (west, _west_host) = west();
    let (east, _east_host) = far(&west, "black0", "192.0.2", 2);
    west.ip("route add default via 192.0.2.2").expect("a route");
    let near = Gateway::start_with(&west, &["red0", "black0"], Cores::Any(0), P2P);
    // Whoever names the device has chosen the tunnels, whatever the routes say.
    near.wait("no tunnel", |near| {
        let _ = west.run("ping", &["-c", "1", "-W", "1", "-I", "tun0", "203.0.113.9"]);
        near.verdict("no_tunnel") > 0
    });
    assert_eq!(near.verdict("forwarded"), 0, "nothing of it goes by the default route");
    drop(east);
}

#[test]
fn one_if_id_has_a_far_end_for_each_next_hop() {
    let (west, west_host) = west();
    let (east, east_host) = far(&west, "black0", "192.0.2", 2);
    let (north, north_host) = far(&west, "black1", "198.51.100", 3);
    let hub = Gateway::start_with(
        &west,
        &["red0", "black0", "black1"],
        Cores::Any(0),
        "[[group]]\ndevice = \"hub0\"\nif_id = 100\n\
         [[group.tunnel]]\nremote = \"198.51.100.2\"\nnext_hop = \"10.255.0.3\"\n",
    );
    // The far ends are gateways of the other kind: they have policies.
    let spokes =
        [(&east, "192.0.2", 2), (&north, "198.51.100", 3u32)].map(|(namespace, net, n)| {
            let spoke = Gateway::start(namespace, &["red0", "black0"], Cores::Any(1));
            let ends = [format!("{net}.2"), format!("{net}.1")];
            let inside = [format!("10.{n}.0.0/16"), "10.0.0.0/8".to_owned()];
            spoke.xfrm(&states(net, n << 12, "reqid 1"));
            let [ends, inside] = [&ends, &inside].map(|two| [&*two[0], &*two[1]]);
            spoke.xfrm(&policies(ends, inside, "", 1));
            hub.xfrm(&states(net, n << 12, &format!("reqid {n} if_id 100")));
            spoke
        });
    for line in lines(
        "route add 10.2.0.0/16 via 192.0.2.2 dev hub0 onlink
         route add 10.3.0.0/16 via 10.255.0.3 dev hub0 onlink",
    ) {
        west.ip(&line).expect("the kernel takes the route");
    }
    for (to, spi) in [("10.2.1.5", 0x2000), ("10.3.1.5", 0x3000)] {
        ping(&hub, &west_host, &[], to);
        ping(&hub, &west, &["-I", "10.1.1.254"], to);
        assert!(packets(&hub, spi) >= 2, "{to}");
    }
    for spoke in [&east_host, &north_host] {
        ping(&hub, spoke, &[], "10.1.1.5");
        ping(&hub, spoke, &[], "10.1.1.254");
    }
    // From spoke to spoke by the hub: out of one tunnel and into the other.
    ping(&hub, &east_host, &[], "10.3.1.5");
    assert!(hub.verdict("resealed") >= 2);
    // The north speaks for an address that no route leads to it by.
    let stranger: IpAddr = [10, 3, 1, 77].into();
    north_host.ip(&format!("address add {stranger}/24 dev p0")).expect("an address");
    west.ip("route add 10.3.1.77/32 via 192.0.2.2 dev hub0 onlink").expect("a route");
    hub.wait("the stranger's refusal", |hub| {
        let _ = north_host.run("ping", &["-c", "1", "-W", "1", "-I", "10.3.1.77", "10.1.1.5"]);
        hub.verdict("no_policy") > 0
    });
    drop(spokes);
}
