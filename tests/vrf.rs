//! VRFs: two customers with the same addresses behind one pair of gateways, and neither sees the other.
//!
//! ```text
//!  blue  10.1.1.5 ─ blue0 ┐                              ┌ blue0 ─ 10.2.1.5
//!                         west ═══ a tunnel for each ═══ east
//!  green 10.1.1.5 ─ green0┘    192.0.2.1      192.0.2.2  └ green0 ─ 10.2.1.5
//! ```
//!
//! The tables are the kernel's and the VRFs Peregrine's own (`vrf = { table = N }`), so no VRF device is needed.

mod gateway;

use std::process::Command;

use gateway::{Cores, Gateway};
use lab::topology::{Namespace, Process, Veth};

const KEY: &str = "0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fdeadbeef";

const CUSTOMERS: [(&str, u32); 2] = [("blue", 10), ("green", 20)];

/// Answers every datagram with its customer's name.
const ECHO: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 7777))
print("ready", flush=True)
while True:
    _, peer = s.recvfrom(100)
    s.sendto(sys.argv[1].encode(), peer)
"#;

/// Who answers at an address; nobody says nothing.
const ASK: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(0.3)
for _ in range(int(sys.argv[2])):
    s.sendto(b"who?", (sys.argv[1], 7777))
    try:
        print(s.recv(100).decode())
        break
    except OSError:
        pass
"#;

/// A gateway's namespace, and a host's for each customer.
struct Site {
    gateway: Namespace,
    hosts: Vec<Namespace>,
}

impl Site {
    fn new(net: u8) -> Site {
        let gateway = Namespace::new("vg").expect("a namespace");
        let mut hosts = Vec::new();
        for (name, table) in CUSTOMERS {
            let host = Namespace::new("vh").expect("a namespace");
            let port = format!("{name}0");
            Veth::new((&gateway, &port), (&host, "p0"), 1).expect("a veth pair");
            host.ip(&format!("address add 10.{net}.1.5/24 dev p0")).expect("an address");
            host.ip(&format!("route add default via 10.{net}.1.254")).expect("a route");
            gateway.ip(&format!("address add 10.{net}.1.254/24 dev {port}")).expect("an address");
            let route = format!("route add 10.{net}.1.0/24 dev {port} table {table}");
            gateway.ip(&route).expect("a route");
            hosts.push(host);
        }
        Site { gateway, hosts }
    }

    /// A gateway with a port and a group of tunnels for each customer.
    fn start(&self, far_net: u8, core: usize) -> Gateway {
        let mut lines = String::new();
        for (name, table) in CUSTOMERS {
            let if_id = table;
            lines += &format!(
                "[[port]]\ninterface = \"{name}0\"\nvrf = {{ table = {table} }}\n\
                 [[group]]\ndevice = \"t-{name}\"\nvrf = {{ table = {table} }}\n\
                 [[group.tunnel]]\nif_id = {if_id}\nroutes = [\"10.{far_net}.1.0/24\"]\n"
            );
        }
        Gateway::start_with(&self.gateway, &["black0"], Cores::Any(core), &lines)
    }

    /// Who answers the customer's host at an address, asked so many times at most.
    fn ask(&self, customer: usize, address: &str, times: u32) -> String {
        let words = ["-c", ASK, address, &times.to_string()];
        self.hosts[customer].run("python3", &words).expect("it is asked").trim().to_owned()
    }
}

fn install(gateway: &Gateway, [near, far]: [&str; 2]) {
    let mut lines = Vec::new();
    for (_, n) in CUSTOMERS {
        for (spi, src, dst) in [(1, "192.0.2.1", "192.0.2.2"), (2, "192.0.2.2", "192.0.2.1")] {
            lines.push(format!(
                "xfrm state add src {src} dst {dst} proto esp spi {:#x} reqid {n} if_id {n} \
                 mode tunnel replay-window 64 flag af-unspec aead rfc4106(gcm(aes)) {KEY} 128",
                0x1000 * n + spi
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

fn echo(site: &Site) -> Vec<Process> {
    let servers = CUSTOMERS.iter().zip(&site.hosts).map(|((name, _), host)| {
        let mut command: Command = host.command("python3");
        command.args(["-c", ECHO, name]);
        let log = tempfile::NamedTempFile::new().expect("a log").into_temp_path();
        let mut server = Process::start(name, command, log.to_path_buf()).expect("it starts");
        let ready = std::time::Duration::from_secs(10);
        server.wait_until(ready, |server| server.log().contains("ready")).expect("it serves");
        server
    });
    servers.collect()
}

#[test]
fn the_same_addresses_in_two_vrfs_never_meet() {
    let (west, east) = (Site::new(1), Site::new(2));
    Veth::new((&west.gateway, "black0"), (&east.gateway, "black0"), 1).expect("a veth pair");
    west.gateway.ip("address add 192.0.2.1/24 dev black0").expect("an address");
    east.gateway.ip("address add 192.0.2.2/24 dev black0").expect("an address");
    let (near, far) = (west.start(2, 0), east.start(1, 1));
    install(&near, ["192.0.2.1", "192.0.2.2"]);
    install(&far, ["192.0.2.2", "192.0.2.1"]);
    let _servers = echo(&east);

    // 1. One address, and each asks its own.
    for (customer, (name, _)) in CUSTOMERS.iter().enumerate() {
        assert_eq!(west.ask(customer, "10.2.1.5", 20), *name, "{:?}", near.show("drops"));
    }
    let ports = near.show("ports");
    let vrf = |name: &str| {
        let port = ports.as_array().and_then(|all| all.iter().find(|port| port["name"] == name));
        port.and_then(|port| port["vrf"].as_str()).map(str::to_owned)
    };
    assert_eq!((vrf("blue0"), vrf("black0")), (Some("table 10".to_owned()), None));
    let routes = near.show("routes");
    let tables = routes.as_array().into_iter().flatten().map(|route| route["table"].clone());
    let tables: Vec<_> = tables.filter(|table| table == "10" || table == "20").collect();
    assert!(tables.len() >= 4, "{routes}");

    // 2. What only one of them has, and the main table has, too, the other has not.
    east.hosts[0].ip("address add 10.9.0.1/32 dev p0").expect("an address");
    east.gateway.ip("route add 10.9.0.0/16 via 10.2.1.5 dev blue0 table 10").expect("a route");
    west.gateway
        .ip("route add 10.9.0.0/16 via inet6 fe80::a dev t-blue table 10")
        .expect("a route");
    west.gateway.ip("route add 10.9.0.0/16 via 192.0.2.2 dev black0").expect("a route");
    assert_eq!(west.ask(0, "10.9.0.1", 20), "blue", "{:?}", near.show("drops"));
    let before = near.verdict("no_route");
    assert_eq!(west.ask(1, "10.9.0.1", 2), "");
    assert!(near.verdict("no_route") > before);

    // 3. A route out of the VRF leads nowhere, be it by a port, by a tunnel, or the other's device.
    for way in [
        "via 192.0.2.2 dev black0",
        "via inet6 fe80::a dev t-blue",
        "via inet6 fe80::a dev t-green",
    ] {
        west.gateway.ip(&format!("route replace 10.9.0.0/16 {way} table 20")).expect("a route");
        let before = near.verdict("route_out_of_vrf");
        near.wait("the route is followed", |near| {
            assert_eq!(west.ask(1, "10.9.0.1", 1), "", "by {way}");
            near.verdict("route_out_of_vrf") > before
        });
    }

    // 4. One tunnel's end is not the other's.
    near.xfrm(&["xfrm state delete src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x14001".to_owned()]);
    assert_eq!(west.ask(1, "10.2.1.5", 2), "", "green has no SA");
    assert_eq!(west.ask(0, "10.2.1.5", 20), "blue");
}
