//! ESP in UDP: because it is asked for, because there is a NAT on the way, and when an end's address
//! changes under traffic.

use std::time::{Duration, Instant};

use crate::daemon::numbered::Numbered;
use crate::daemon::pair::Side;
use crate::daemon::pluto::Conn;
use crate::daemon::router::{FIRST_PORT, SECOND_PORT};
use crate::daemon::wire::{Wire, encapsulated};
use crate::life::kept;
use crate::site::Site;

pub fn encapsulation_forced(site: &mut Site) {
    for v6 in [false, true] {
        let conns = [("four", 1, false), ("six", 2, true)]
            .map(|(name, n, inside)| Conn::new(name, v6, n, inside).set("encapsulation", "yes"));
        site.load(&conns);
        let wire = Wire::start(&site.pair.wan, "west", "esp or udp port 4500");
        for name in ["four", "six"] {
            site.west.initiate(name);
        }
        site.pair.flows(1, false);
        site.pair.flows(2, true);
        for (n, inside) in [(1, false), (2, true)] {
            assert_eq!(site.pair.pings(Side::West, n, inside, 10), 10, "IPv6 outside: {v6}");
        }
        for name in ["four", "six"] {
            site.west.terminate(name);
        }
        let (udp, plain) = encapsulated(&wire.finish());
        assert!(udp >= 20 && plain == 0, "{udp} in UDP and {plain} plain, IPv6 outside: {v6}");
        site.wait_sas(0);
    }
}

/// The west end behind a NAT, with these settings; the east end knows nothing of its address.
fn behind_nat(site: &mut Site, settings: &[(&str, &str)]) {
    site.pair.translate();
    site.load_ends(|side| {
        let conn = Conn::new("net", false, 1, false);
        match side {
            Side::West => settings.iter().fold(conn, |conn, (key, value)| conn.set(key, value)),
            Side::East => conn.set("left", "%any"),
        }
    });
    site.west.initiate("net");
    site.pair.flows(1, false);
    assert_eq!(peer_port(site), [FIRST_PORT.to_string()]);
}

/// The port of the NAT to which the east end's outbound SAs send.
fn peer_port(site: &Site) -> Vec<String> {
    let sas = site.data_plane(Side::East);
    let out = sas.iter().filter(|sa| sa["direction"] == "out");
    out.map(|sa| sa["encapsulation_ports"][1].to_string()).collect()
}

pub fn behind_a_nat(site: &mut Site) {
    // A mapping is kept alive by asking whether the peer lives: keepalives are 5.2's alone.
    behind_nat(site, &[("dpddelay", "2s"), ("dpdtimeout", "60s")]);
    let wire = Wire::start(&site.pair.wan, "west", "udp port 4500 or esp");
    let traffic = Numbered::start(&site.pair, &[1], 50);
    site.gateway(Side::West).wait("traffic", |_| traffic.arrived().iter().all(|n| *n > 100));
    // A rekey keeps to the NAT's port.
    let first = site.spis(Side::West);
    site.west.rekey("net");
    site.renewed(&first);
    assert_eq!(peer_port(site), [FIRST_PORT.to_string()]);
    let [east, west] = traffic.finish();
    kept(&east, &west);
    site.pair.follows(&[1]);
    let asked = || wire.text().matches("inf2").count();
    let before = asked();
    site.gateway(Side::West).wait("a question while idle", |_| asked() >= before + 2);
    assert_eq!(site.pair.pings(Side::East, 1, false, 10), 10);
    site.west.stop();
    let (udp, plain) = encapsulated(&wire.finish());
    assert!(udp > 100 && plain == 0, "{udp} in UDP and {plain} plain");
}

pub fn keepalives_behind_a_nat(site: &mut Site) {
    behind_nat(site, &[]);
    let wire = Wire::start(&site.pair.wan, "west", "udp port 4500");
    // pluto sends one when IKE was silent for twenty seconds.
    let end = Instant::now() + Duration::from_secs(60);
    while !wire.text().contains("isakmp-nat-keep-alive") {
        assert!(Instant::now() < end, "no keepalive: {}", wire.text());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(site.pair.pings(Side::East, 1, false, 10), 10);
}

pub fn nat_is_rebound(site: &mut Site) {
    behind_nat(site, &[("dpddelay", "2s"), ("retransmit-timeout", "4s")]);
    site.pair.rebind();
    // pluto does not listen for MAPPING. 4.10 takes the port from the next rekeying; 5.2 answers to the
    // old one, until the end behind the NAT finds its peer dead and negotiates anew.
    if !site.west.cell().root().is_at_least(5, 0) {
        site.west.rekey("net");
    }
    let port = SECOND_PORT.to_string();
    site.gateway(Side::East).wait("an SA to the new port", |_| peer_port(site).contains(&port));
    site.pair.flows(1, false);
    assert_eq!(site.pair.pings(Side::East, 1, false, 10), 10);
}

pub fn mobike_moves_the_tunnel(site: &mut Site) {
    site.load_ends(|side| {
        let conn = Conn::new("net", false, 1, false).set("mobike", "yes");
        conn.set("left", if side == Side::West { "%defaultroute" } else { "%any" })
    });
    site.west.initiate("net");
    site.pair.flows(1, false);
    let first = site.spis(Side::West);
    let traffic = Numbered::start(&site.pair, &[1], 50);
    site.gateway(Side::West).wait("traffic", |_| traffic.arrived().iter().all(|n| *n > 50));
    site.pair.move_to(Side::West, "192.0.2.77");
    site.gateway(Side::East).wait("the peer's new address", |_| {
        let all = site.data_plane(Side::East);
        all.iter().any(|sa| sa["src"] == "192.0.2.77")
            && all.iter().any(|sa| sa["dst"] == "192.0.2.77")
    });
    let before = traffic.arrived();
    let flows =
        |_: &_| traffic.arrived().iter().zip(before).all(|(now, before)| *now > before + 50);
    site.gateway(Side::West).wait("traffic after the move", flows);
    let [east, west] = traffic.finish();
    east.lost_in_one_run();
    west.lost_in_one_run();
    // The same SAs, with their sequence numbers and windows, at another address.
    assert_eq!(site.spis(Side::West), first);
}
