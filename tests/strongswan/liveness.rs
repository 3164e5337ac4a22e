//! Whether the peer lives, and what is left when a daemon was stopped or killed.

use std::time::{Duration, Instant};

use crate::daemon::numbered::Numbered;
use crate::daemon::pair::Side;
use crate::site::Site;

/// What charon logs when it asks whether its peer lives.
const REQUEST: &str = "sending DPD request";

/// The west end asks whether the east end lives after two idle seconds.
fn watched(site: &mut Site) {
    // strongSwan 6 takes ESP as a sign of life only if it goes the same way as IKE: in UDP.
    let encap = if site.west.cell().root().is_at_least(6, 0) { "yes" } else { "no" };
    site.load(|connection| {
        // One end asks: what it hears of the other's questions would be a sign of life, too.
        let delay_s = if connection.side() == Side::West { 2 } else { 0 };
        let ike = format!("dpd_delay = {delay_s}s\nencap = {encap}");
        connection.ike(&ike).child("net", 1, false, "")
    });
    site.west.initiate("net");
    site.pair.flows(1, false);
}

pub fn no_dpd_while_traffic_flows(site: &mut Site) {
    watched(site);
    let traffic = Numbered::start(&site.pair, &[1], 50);
    // What was asked for before the traffic does not count. Nor does a check of the daemon's at
    // which a stalled machine had delivered nothing for a second.
    site.gateway(Side::West).wait("traffic", |_| traffic.arrived()[1] > 50);
    let before = site.west.said(REQUEST);
    let mut stalled = false;
    let (begin, mut last) = (Instant::now(), (traffic.arrived()[1], Instant::now()));
    while begin.elapsed() < Duration::from_secs(6) {
        std::thread::sleep(Duration::from_millis(20));
        let arrived = traffic.arrived()[1];
        stalled |= last.1.elapsed() > Duration::from_secs(1);
        if arrived != last.0 {
            last = (arrived, Instant::now());
        }
    }
    let (after, child) = (site.west.said(REQUEST), site.west.child("net"));
    traffic.finish();
    let used_s = |name| child.number(name).expect("the age of its last use");
    assert!(stalled || used_s("use-in") <= 1 && used_s("use-out") <= 1, "{child:?}");
    assert!(stalled || after == before, "{} requests while traffic flowed", after - before);
    // Idle, the age grows; it asks, and is answered.
    site.west.wait_said(REQUEST, after + 2);
    site.west.wait("an idle SA", |sas| {
        let child = sas.first().and_then(|ike| ike.children.first());
        child.and_then(|child| child.number("use-in")).is_some_and(|age_s| age_s >= 3)
    });
}

pub fn dead_peer_is_detected(site: &mut Site) {
    watched(site);
    site.east.kill();
    site.west.wait("the end of the connection", |sas| sas.is_empty());
    assert!(site.west.said("giving up after") > 0, "{}", site.west.log());
    site.wait_sas(Side::West, 0);
    assert!(!site.pair.ping_once(Side::West, 1, false), "nothing is sealed any more");
}

pub fn daemon_is_stopped_and_started(site: &mut Site) {
    site.load(|connection| connection.child("net", 1, false, ""));
    site.west.initiate("net");
    site.pair.flows(1, false);
    assert_eq!(site.west.stop(), Some(0));
    // It said good-bye: nothing is left at either end.
    site.wait_no_sas();
    site.west.restart();
    site.west.run(&["--load-all", "--noprompt"]);
    site.west.initiate("net");
    site.pair.flows(1, false);
}

pub fn daemon_is_killed_and_started(site: &mut Site) {
    site.load(|connection| connection.child("net", 1, false, ""));
    site.west.initiate("net");
    site.pair.flows(1, false);
    site.west.kill();
    // The tunnel is the data plane's: it does not need the daemon.
    assert_eq!(site.pair.pings(Side::West, 1, false, 10), 10);
    let stale: Vec<u64> =
        site.data_plane(Side::West).iter().filter_map(|sa| sa["spi"].as_u64()).collect();
    site.west.restart();
    site.west.run(&["--load-all", "--noprompt"]);
    site.west.initiate("net");
    site.pair.flows(1, false);
    // The other end was told that the old one is gone (INITIAL_CONTACT).
    site.wait_sas(Side::East, 2);
    let child = site.west.child("net");
    assert!(!stale.contains(&u64::from(child.spi_out())));
    let moved = |spi: u32| {
        let all = site.data_plane(Side::West);
        let sa = all.iter().find(|sa| sa["spi"] == spi).expect("the new SA");
        sa["packets"].as_u64().expect("a count")
    };
    let before = (moved(child.spi_in()), moved(child.spi_out()));
    assert_eq!(site.pair.pings(Side::West, 1, false, 10), 10);
    let after = (moved(child.spi_in()), moved(child.spi_out()));
    assert_eq!((after.0 - before.0, after.1 - before.1), (10, 10), "the new SAs carry it");
}
