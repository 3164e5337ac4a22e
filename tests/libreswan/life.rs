//! What becomes of a tunnel: rekeyed, watched, left by its daemon, asked for by a packet.

use std::time::Duration;

use crate::daemon::numbered::Numbered;
use crate::daemon::pair::Side;
use crate::daemon::pluto::{Conn, Traffic};
use crate::site::Site;

/// Traffic both ways until the west end has rekeyed for what `settings` say.
fn rekeys(site: &mut Site, settings: &[(&str, &str)]) {
    let plain = Conn::new("net", false, 1, false);
    let west = settings.iter().fold(plain.clone(), |conn, (key, value)| conn.set(key, value));
    site.west.load(&crate::daemon::pluto::configuration(&[west]));
    site.east.load(&crate::daemon::pluto::configuration(&[plain.set("rekey", "no")]));
    site.west.initiate("net");
    site.pair.flows(1, false);
    let spis = |site: &Site| -> Vec<u64> {
        site.data_plane(Side::West).iter().filter_map(|sa| sa["spi"].as_u64()).collect()
    };
    let first = spis(site);
    let traffic = Numbered::start(&site.pair, &[1], 100);
    site.gateway(Side::West).wait("other SAs alone", |_| {
        let now = spis(site);
        now.len() == 2 && now.iter().all(|spi| !first.contains(spi))
    });
    std::thread::sleep(Duration::from_millis(500));
    for (direction, what) in std::iter::zip(traffic.finish(), ["to east", "to west"]) {
        assert!(direction.sent > 0 && direction.lost.is_empty(), "{what}: {direction:?}");
        assert!(direction.twice.is_empty(), "{what}: {direction:?}");
    }
}

pub fn rekeys_by_time(site: &mut Site) {
    rekeys(site, &[("salifetime", "12s"), ("rekeymargin", "6s"), ("rekeyfuzz", "0%")]);
}

pub fn rekeys_by_packets(site: &mut Site) {
    // libreswan puts the soft limit somewhere below three quarters of the hard one.
    rekeys(site, &[("ipsec-max-packets", "1000")]);
}

pub fn rekeys_by_bytes(site: &mut Site) {
    rekeys(site, &[("ipsec-max-bytes", "100000")]);
}

pub fn dead_peer_is_detected(site: &mut Site) {
    let conn = Conn::new("net", false, 1, false)
        .set("dpddelay", "1")
        .set("retransmit-timeout", "3s")
        .set("dpdaction", "clear")
        .set("keyingtries", "1");
    site.load(&[conn.set("dpdtimeout", "3")]);
    site.west.initiate("net");
    site.pair.flows(1, false);
    site.east.kill();
    site.gateway(Side::West)
        .wait("no SA", |gateway| gateway.show("sa").as_array().is_some_and(|all| all.is_empty()));
    assert!(!site.pair.ping_once(Side::West, 1, false), "nothing is sealed any more");
}

pub fn daemon_is_stopped_and_started(site: &mut Site) {
    let conns = [Conn::new("net", false, 1, false)];
    site.load(&conns);
    site.west.initiate("net");
    site.pair.flows(1, false);
    site.west.stop();
    site.wait_sas(0);
    site.west.restart();
    site.load(&conns);
    site.west.initiate("net");
    site.pair.flows(1, false);
}

pub fn daemon_is_killed_and_started(site: &mut Site) {
    let conns = [Conn::new("net", false, 1, false)];
    site.load(&conns);
    site.west.initiate("net");
    site.pair.flows(1, false);
    site.west.kill();
    assert_eq!(site.pair.pings(Side::West, 1, false, 10), 10, "the tunnel goes on without it");
    site.west.restart();
    site.west.load(&crate::daemon::pluto::configuration(&conns));
    site.west.initiate("net");
    site.pair.flows(1, false);
    assert_eq!(site.pair.pings(Side::West, 1, false, 10), 10);
}

pub fn trap_acquires(site: &mut Site) {
    site.load(&[Conn::new("net", false, 1, false)]);
    site.west.run(&["--route", "--name", "net"]);
    assert!(site.data_plane(Side::West).is_empty());
    // A packet from behind the gateway is what asks for the tunnel.
    site.pair.flows(1, false);
    site.wait_sas(2);
}

pub fn real_counters(site: &mut Site) {
    site.load(&[Conn::new("net", false, 1, false)]);
    site.west.initiate("net");
    site.pair.flows(1, false);
    let before = site.west.traffic("net");
    assert_eq!(site.pair.pings(Side::West, 1, false, 20), 20);
    let after = site.west.traffic("net");
    // 20 bytes of IP, 8 of ICMP and 56 of data.
    let bytes = 20 * 84;
    let expected =
        Traffic { in_bytes: before.in_bytes + bytes, out_bytes: before.out_bytes + bytes };
    assert_eq!(after, expected);
    let sealed: u64 =
        site.data_plane(Side::West).iter().filter_map(|sa| sa["bytes"].as_u64()).sum();
    assert_eq!(sealed, after.in_bytes + after.out_bytes);
}
