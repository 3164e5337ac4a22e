//! ESP in UDP: because it is asked for, because there is a NAT on the way, and when that NAT or an
//! end's address changes under traffic.

use crate::daemon::numbered::Numbered;
use crate::daemon::pair::Side;
use crate::daemon::router::{FIRST_PORT, SECOND_PORT};
use crate::daemon::swanctl::Connection;
use crate::daemon::wire::{Wire, encapsulated};
use crate::site::Site;

/// Two flows of packets get through, both ways.
fn carried(traffic: Numbered) {
    for direction in traffic.finish() {
        assert!(direction.lost.is_empty() && direction.twice.is_empty(), "{direction:?}");
    }
}

pub fn encapsulation_forced(site: &mut Site) {
    for v6 in [false, true] {
        site.load_over(v6, |connection| {
            connection.ike("encap = yes").child("four", 1, false, "").child("six", 2, true, "")
        });
        let wire = Wire::start(&site.pair.wan, "west", "esp or udp port 4500");
        site.west.initiate("four");
        site.west.initiate("six");
        site.pair.flows(1, false);
        site.pair.flows(2, true);
        for (n, inside) in [(1, false), (2, true)] {
            assert_eq!(site.pair.pings(Side::West, n, inside, 10), 10, "IPv6 outside: {v6}");
        }
        site.west.terminate(&["--ike", "site"]);
        let (udp, plain) = encapsulated(&wire.finish());
        assert!(udp >= 20 && plain == 0, "{udp} in UDP and {plain} plain, IPv6 outside: {v6}");
        site.wait_no_sas();
    }
}

/// The west end behind a NAT; the east end knows nothing of its address.
fn behind_nat(site: &Site, children: fn(Connection) -> Connection) {
    site.pair.translate();
    site.load(|connection| match connection.side() {
        Side::West => children(connection),
        Side::East => children(connection.anywhere()),
    });
    site.west.initiate("net");
    site.pair.flows(1, false);
    let peer = site.east.sas().remove(0);
    assert_eq!(peer.text("remote-host"), site.pair.translated_address());
    assert_eq!(peer.text("remote-port"), FIRST_PORT.to_string());
    assert_eq!(peer.text("nat-remote"), "yes");
}

pub fn behind_a_nat(site: &mut Site) {
    behind_nat(site, |connection| connection.child("net", 1, false, ""));
    let wire = Wire::start(&site.pair.wan, "west", "udp port 4500");
    let traffic = Numbered::start(&site.pair, &[1], 50);
    site.gateway(Side::West).wait("traffic", |_| traffic.arrived().iter().all(|n| *n > 100));
    // A rekey keeps to the NAT's port.
    site.west.run(&["--rekey", "--child", "net"]);
    site.west.wait_said("established with SPIs", 2);
    carried(traffic);
    site.pair.follows(&[1]);
    // Idle, the end behind the NAT keeps the mapping alive.
    site.gateway(Side::West)
        .wait("a keepalive", |_| wire.text().matches("isakmp-nat-keep-alive").count() >= 2);
    assert_eq!(site.pair.pings(Side::East, 1, false, 10), 10);
    site.west.stop();
    let (udp, plain) = encapsulated(&wire.finish());
    assert!(udp > 100 && plain == 0, "{udp} in UDP and {plain} plain");
}

pub fn nat_is_rebound_under_traffic(site: &mut Site) {
    behind_nat(site, |connection| connection.child("net", 1, false, ""));
    let traffic = Numbered::start(&site.pair, &[1], 50);
    site.gateway(Side::West).wait("traffic", |_| traffic.arrived().iter().all(|n| *n > 50));
    site.pair.rebind();
    // The data plane tells the east daemon (MAPPING), which moves its SAs to the new port.
    let port = SECOND_PORT.to_string();
    let moved = |site: &Site| {
        let sas = site.data_plane(Side::East);
        let out = sas.iter().filter(|sa| sa["direction"] == "out");
        out.map(|sa| sa["encapsulation_ports"][1].to_string()).collect::<Vec<_>>() == [port.clone()]
    };
    site.gateway(Side::East).wait("the move of the outbound SA", |_| moved(site));
    let before = traffic.arrived();
    let flows =
        |_: &_| traffic.arrived().iter().zip(before).all(|(now, before)| *now > before + 50);
    site.gateway(Side::West).wait("traffic after the rebinding", flows);
    let [east, west] = traffic.finish();
    // What goes through the NAT outwards makes the new mapping and arrives, but for what meets the moment in
    // which the daemon has taken its inbound policies out, and on a busy machine that is a packet's time or two.
    let no_policy = site.gateway(Side::East).verdict("no_policy");
    assert_eq!(east.lost.len() as u64, no_policy, "{east:?}");
    east.lost_in_one_run();
    west.lost_in_one_run();
    println!("to the end behind the NAT, {} of {} were lost", west.lost.len(), west.sent);
}

pub fn mobike_moves_the_tunnel(site: &mut Site) {
    // With a way in IPv6 the daemon would take whichever answers first.
    site.pair.west.namespace.ip("-6 address flush dev black0").expect("IPv4 only");
    site.load(|connection| {
        let connection = match connection.side() {
            Side::West => connection.at_any_address(),
            Side::East => connection.anywhere(),
        };
        connection.child("net", 1, false, "")
    });
    site.west.initiate("net");
    site.pair.flows(1, false);
    let child = site.west.child("net");
    let traffic = Numbered::start(&site.pair, &[1], 50);
    site.gateway(Side::West).wait("traffic", |_| traffic.arrived().iter().all(|n| *n > 50));
    site.pair.move_to(Side::West, "192.0.2.77");
    site.east.wait("the peer's new address", |sas| {
        sas.iter().any(|ike| ike.text("remote-host") == "192.0.2.77")
    });
    let before = traffic.arrived();
    let flows =
        |_: &_| traffic.arrived().iter().zip(before).all(|(now, before)| *now > before + 50);
    site.gateway(Side::West).wait("traffic after the move", flows);
    let [east, west] = traffic.finish();
    east.lost_in_one_run();
    west.lost_in_one_run();
    println!(
        "of {} and {}, {} and {} were lost",
        east.sent,
        west.sent,
        east.lost.len(),
        west.lost.len()
    );
    // The same SAs, with their sequence numbers and windows, at another address.
    let moved = site.west.child("net");
    assert_eq!((moved.spi_in(), moved.spi_out()), (child.spi_in(), child.spi_out()));
    let all = site.data_plane(Side::East);
    assert!(all.iter().any(|sa| sa["src"] == "192.0.2.77") && all.len() == 2, "{all:?}");
}
