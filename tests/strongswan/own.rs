//! The gateways' own packets in what daemons negotiate: in transport mode, from a virtual IP that IKE
//! assigns, and between inner addresses of the gateways.

use std::net::IpAddr;

use crate::daemon::listing::ChildSa;
use crate::daemon::numbered::{Numbered, Place};
use crate::daemon::pair::Side;
use crate::daemon::root::Root;
use crate::daemon::swanctl::Connection;
use crate::site::Site;
use crate::speaker::Speaker;

/// Packets a second of each flow while SAs are replaced.
const PPS: u32 = 50;

/// An address inside, which the gateway itself has.
pub fn inner(side: Side, v6: bool) -> String {
    match v6 {
        false => format!("10.{}.1.254", side.number()),
        true => format!("fd0{}:0:1::fe", side.number()),
    }
}

fn addresses(all: &[&str]) -> Vec<IpAddr> {
    all.iter().map(|text| text.parse().expect("an address")).collect()
}

/// Each end rekeys a child while numbered packets flow between two places: nothing is lost.
fn rekeyed(site: &Site, name: &str, places: [Place<'_>; 2]) {
    let traffic = Numbered::between(places, PPS);
    site.gateway(Side::West).wait("traffic", |_| traffic.arrived().iter().all(|count| *count > 9));
    for charon in [&site.west, &site.east] {
        let old = site.west.child(name);
        charon.run(&["--rekey", "--child", name]);
        site.west.wait("a rekeying", |sas| {
            let mut all = sas.iter().flat_map(|ike| &ike.children);
            all.any(|child| child.state() == "INSTALLED" && child.spi_in() != old.spi_in())
        });
        // The old one is deleted by and by; a second rekeying in between would find two of the name.
        site.wait_sas(Side::West, 2);
        site.wait_sas(Side::East, 2);
    }
    for (direction, way) in traffic.finish().iter().zip(["to east", "to west"]) {
        assert!(direction.sent > 0 && direction.lost.is_empty(), "{way}: {direction:?}");
        assert!(direction.twice.is_empty(), "{way}: {direction:?}");
    }
}

/// Both daemons and both data planes count the same for the one child: nothing was lost between
/// them. Returns what the west daemon says.
fn counted(site: &Site, name: &str) -> ChildSa {
    let (west, east) = (site.west.child(name), site.east.child(name));
    for what in ["bytes", "packets"] {
        let number = |child: &ChildSa, way: &str| child.number(&format!("{what}-{way}"));
        assert_eq!(number(&west, "out"), number(&east, "in"), "{what} to east");
        assert_eq!(number(&west, "in"), number(&east, "out"), "{what} to west");
        for (side, child) in [(Side::West, &west), (Side::East, &east)] {
            for (way, spi) in [("in", child.spi_in()), ("out", child.spi_out())] {
                let all = site.data_plane(side);
                let sa = all.iter().find(|sa| sa["spi"] == spi).expect("the SA");
                assert_eq!(sa[what].as_u64(), number(child, way), "{what}-{way}: {sa}");
            }
        }
    }
    west
}

/// So many packets and bytes more, both ways.
pub fn grew(before: &ChildSa, after: &ChildSa, packets: u64, bytes: u64) {
    for (what, expected) in [("packets", packets), ("bytes", bytes)] {
        for way in ["in", "out"] {
            let name = format!("{what}-{way}");
            let number = |child: &ChildSa| child.number(&name).expect("a count");
            assert_eq!(number(after) - number(before), expected, "{name}");
        }
    }
}

/// What is left of a connection that an end took down: nothing.
pub fn gone(site: &Site) {
    for side in [Side::West, Side::East] {
        site.wait_sas(side, 0);
        let policies = site.gateway(side).show("policy");
        assert_eq!(policies.as_array().map(Vec::len), Some(0), "{policies}");
        let status = site.gateway(side).show("status");
        assert_eq!(status["host"]["routes"], 0, "{status}");
    }
}

pub fn transport_mode(site: &mut Site) {
    site.pair.acquaint();
    for v6 in [false, true] {
        let [west, east] = [Side::West, Side::East].map(|side| side.outer(v6));
        site.load_over(v6, |connection| {
            connection.child_between("own", "dynamic", "dynamic", "mode = transport")
        });
        // Echoes and TCP between the two; IKE has to stay in clear.
        let filter = format!("host {west} and host {east} and not esp and not udp and not icmp6");
        let echoes = "icmp6 and (ip6[40] == 128 or ip6[40] == 129)";
        let filter = format!("({filter}) or (host {west} and host {east} and {echoes})");
        site.pair.unseen(&filter, || {
            if v6 { &site.east } else { &site.west }.initiate("own");
            assert_eq!(site.west.child("own").text("mode"), "TRANSPORT");
            site.pair.reaches(&site.pair.west.namespace, east);
            site.pair.reaches(&site.pair.east.namespace, west);
            let before = counted(site, "own");
            assert_eq!(site.pair.own_pings(Side::West, east, 20), 20);
            // 8 bytes of ICMP and 56 of data: in transport mode XFRM counts what the header carries.
            grew(&before, &counted(site, "own"), 20, 20 * 64);
            let [left, right] = [&site.pair.west.namespace, &site.pair.east.namespace];
            site.pair.streams((left, None), (right, east));
            site.pair.streams((right, None), (left, west));
            let place = |namespace, address| Place { namespace, addresses: addresses(&[address]) };
            rekeyed(site, "own", [place(left, west), place(right, east)]);
            counted(site, "own");
        });
        site.east.terminate(&["--ike", "site"]);
        gone(site);
    }
    for side in [Side::West, Side::East] {
        assert_eq!(site.gateway(side).verdict("host_forwarded"), 0, "nothing in clear");
    }
}

pub fn virtual_address(site: &mut Site) {
    let far = "10.2.0.0/16,fd02::/32";
    let west = Connection::new(Side::West, false).ike("vips = 0.0.0.0, ::");
    site.west.load(&west.child_between("road", "dynamic", far, "").text());
    let pools = "pools {\nfour {\naddrs = 10.3.0.0/24\n}\nsix {\naddrs = fd03::/120\n}\n}";
    let east = Connection::new(Side::East, false).ike("pools = four, six").beside(pools);
    site.east.load(&east.child_between("road", far, "dynamic", "").text());
    site.pair.unseen("net 10.0.0.0/8 or net fd00::/8", || {
        site.west.initiate("road");
        let Site { pair, .. } = &*site;
        let (gateway, host) = (&pair.west.namespace, &pair.east.host);
        // The daemon put the addresses on the link that leads to the peer.
        let link = gateway.ip("-br address show dev black0").expect("addresses");
        assert!(link.contains("10.3.0.1/32") && link.contains("fd03::1/128"), "{link}");
        for to in ["10.2.1.1", "fd02:0:1::1"] {
            pair.reaches(gateway, to);
        }
        let [four, six] = [false, true].map(|v6| Side::East.host(1, v6));
        pair.reaches(host, &format!("-I {four} 10.3.0.1"));
        pair.reaches(host, &format!("-I {six} fd03::1"));
        let before = counted(site, "road");
        assert_eq!(pair.own_pings(Side::West, "10.2.1.1", 20), 20);
        grew(&before, &counted(site, "road"), 20, 20 * 84);
        site.pair.streams((gateway, None), (host, "10.2.1.1"));
        site.pair.streams((host, Some(&six)), (gateway, "fd03::1"));
        let west = addresses(&["10.3.0.1", "fd03::1"]);
        let places = [
            Place { namespace: gateway, addresses: west },
            Place { namespace: host, addresses: addresses(&[&four, &six]) },
        ];
        rekeyed(site, "road", places);
        counted(site, "road");
        assert!(site.gateway(Side::West).verdict("host_sealed") > 1000);
        assert!(site.gateway(Side::West).verdict("host_opened") > 1000);
    });
    site.west.terminate(&["--ike", "site"]);
    gone(site);
    let link = site.pair.west.namespace.ip("-br address show dev black0").expect("addresses");
    assert!(!link.contains("10.3.0.1") && !link.contains("fd03::1"), "given back: {link}");
}

/// Gives both gateways an address inside.
pub fn settle(site: &Site) {
    for side in [Side::West, Side::East] {
        let lines = [
            format!("address add {}/32 dev lo", inner(side, false)),
            format!("address add {}/128 dev lo nodad", inner(side, true)),
        ];
        site.pair.end(side).namespace.ip_batch(&lines).expect("addresses");
    }
}

pub fn gateways_own_traffic(site: &mut Site) {
    settle(site);
    site.load(|connection| connection.child("four", 1, false, "").child("six", 1, true, ""));
    site.pair.unseen("net 10.0.0.0/8 or net fd00::/8", || {
        site.west.initiate("four");
        site.east.initiate("six");
        let Site { pair, .. } = &*site;
        for v6 in [false, true] {
            let [west, east] = [Side::West, Side::East].map(|side| inner(side, v6));
            let hosts = [Side::West, Side::East].map(|side| side.host(1, v6));
            // The gateways with each other, and each with the host behind the other.
            pair.reaches(&pair.west.namespace, &east);
            pair.reaches(&pair.east.namespace, &west);
            pair.reaches(&pair.west.namespace, &hosts[1]);
            pair.reaches(&pair.east.host, &format!("-I {} {west}", hosts[1]));
            pair.reaches(&pair.west.host, &format!("-I {} {east}", hosts[0]));
            site.pair.streams((&pair.west.namespace, None), (&pair.east.namespace, &east));
            site.pair.streams((&pair.east.host, Some(&hosts[1])), (&pair.west.namespace, &west));
        }
        let before = counted(site, "four");
        assert_eq!(pair.own_pings(Side::West, &inner(Side::East, false), 20), 20);
        grew(&before, &counted(site, "four"), 20, 20 * 84);
        routing_daemons(site);
        site.west.terminate(&["--child", "six"]);
        site.wait_sas(Side::West, 2);
        let place = |side: Side| Place {
            namespace: &pair.end(side).namespace,
            addresses: addresses(&[&inner(side, false)]),
        };
        rekeyed(site, "four", [place(Side::West), place(Side::East)]);
        counted(site, "four");
    });
    site.west.terminate(&["--ike", "site"]);
    gone(site);
}

/// A BGP session between the inner addresses of the gateways, if this machine can have the daemon.
fn routing_daemons(site: &Site) {
    let Some(root) = Root::find("frr-8.4") else { return };
    let speaker = |side: Side| {
        let number = |side: Side| 65000 + u32::from(side.number());
        let (own, far) = (inner(side, false), inner(side.other(), false));
        let network = format!("172.31.{}.0/24", side.number());
        let namespace = &site.pair.end(side).namespace;
        let peer = (number(side.other()), &*far);
        Speaker::start(&root.path, namespace, (number(side), &own), peer, &network)
    };
    let (west, east) = (speaker(Side::West), speaker(Side::East));
    let sees =
        |speaker: &Speaker, prefix: &str| speaker.ask("show bgp ipv4 unicast").contains(prefix);
    site.gateway(Side::West)
        .wait("the session", |_| sees(&west, "172.31.2.0/24") && sees(&east, "172.31.1.0/24"));
}

pub fn own_packets_acquire(site: &mut Site) {
    settle(site);
    site.pair.acquaint();
    let outer = Side::East.outer(false).to_owned();
    for (lines, child, to) in [
        ("start_action = trap", ["10.1.1.0/24", "10.2.1.0/24"], inner(Side::East, false)),
        ("start_action = trap\nmode = transport", ["dynamic", "dynamic"], outer),
    ] {
        site.load(|connection| {
            let [west, east] = child;
            let west_is_here = connection.side() == Side::West;
            let (here, there) = if west_is_here { (west, east) } else { (east, west) };
            connection.child_between("own", here, there, lines)
        });
        assert!(site.data_plane(Side::West).is_empty());
        let asked = site.west.said("creating acquire job");
        // Its first packet waits for the SA, and those behind it.
        let line = format!("-n -q -c 8 -i 0.2 -W 10 {to}");
        let words: Vec<&str> = line.split(' ').collect();
        let said = site.pair.west.namespace.run("ping", &words).unwrap_or_else(|e| panic!("{e}"));
        assert!(said.contains(" 8 received"), "{said}");
        assert_eq!(site.west.said("creating acquire job"), asked + 1);
        counted(site, "own");
        site.west.terminate(&["--ike", "site"]);
        site.wait_sas(Side::West, 0);
    }
    for verdict in ["hold_full", "hold_expired", "no_sa", "host_forwarded"] {
        assert_eq!(site.gateway(Side::West).verdict(verdict), 0, "{verdict}");
    }
}
