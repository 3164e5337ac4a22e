//! What becomes of a tunnel: rekeyed, watched, left by its daemon, asked for by a packet.

use std::time::{Duration, Instant};

use crate::daemon::numbered::{Direction, Numbered};
use crate::daemon::pair::Side;
use crate::daemon::pluto::Conn;
use crate::daemon::wire::Wire;
use crate::site::Site;

/// Packets of 100 a second that a round trip on a busy machine takes at most.
const ROUND_TRIP_PACKETS: usize = 20;

/// Traffic both ways until the west end has rekeyed for what `settings` say.
fn rekeys(site: &mut Site, settings: &[(&str, &str)]) {
    let plain = Conn::new("net", false, 1, false);
    let west = settings.iter().fold(plain.clone(), |conn, (key, value)| conn.set(key, value));
    site.west.load(&crate::daemon::pluto::configuration(&[west]));
    site.east.load(&crate::daemon::pluto::configuration(&[plain.set("rekey", "no")]));
    site.west.initiate("net");
    site.pair.flows(1, false);
    let first = site.spis(Side::West);
    let traffic = Numbered::start(&site.pair, &[1], 100);
    site.renewed(&first);
    std::thread::sleep(Duration::from_millis(500));
    let [east, west] = traffic.finish();
    kept(&east, &west);
}

/// What was sent while SAs were replaced, to the end that answered and to the one that asked. As the
/// one that answers, libreswan seals with the new SA before the other end can have heard of its keys:
/// what it sends within that round trip is lost, on any kernel.
pub fn kept(to_answering: &Direction, to_asking: &Direction) {
    let none = to_answering.lost.is_empty() && to_answering.twice.is_empty();
    assert!(to_answering.sent > 0 && none, "to the end that answered: {to_answering:?}");
    let few = to_asking.lost.len() <= ROUND_TRIP_PACKETS && to_asking.twice.is_empty();
    assert!(to_asking.sent > 0 && few, "to the end that asked: {to_asking:?}");
    // One run: it is one round trip.
    let gaps = to_asking.lost.windows(2).filter(|pair| pair[1].1 != pair[0].1 + 1).count();
    assert_eq!(gaps, 0, "to the end that asked: {to_asking:?}");
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

/// IKE packets of the west end that a capture saw.
fn questions(text: &str) -> usize {
    text.lines().filter(|line| line.contains("isakmp")).count()
}

pub fn no_dpd_while_traffic_flows(site: &mut Site) {
    // One end asks: what it hears of the other's questions would be a sign of life, too. 5.2 adds a
    // second to the age of an SA's last use, which is in whole seconds.
    site.load_ends(|side| {
        let conn = Conn::new("net", false, 1, false);
        if side == Side::West { conn.set("dpddelay", "4s").set("dpdtimeout", "60s") } else { conn }
    });
    site.west.initiate("net");
    site.pair.flows(1, false);
    let traffic = Numbered::start(&site.pair, &[1], 50);
    // What was asked for before the traffic does not count. Nor does a check of the daemon's at
    // which a stalled machine had delivered nothing for a second.
    site.gateway(Side::West).wait("traffic", |_| traffic.arrived()[1] > 50);
    let wire = Wire::start(&site.pair.wan, "west", "udp port 500");
    let mut stalled = false;
    let (begin, mut last) = (Instant::now(), (traffic.arrived()[1], Instant::now()));
    while begin.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
        let arrived = traffic.arrived()[1];
        stalled |= last.1.elapsed() > Duration::from_secs(1);
        if arrived != last.0 {
            last = (arrived, Instant::now());
        }
    }
    let asked = questions(&wire.text());
    traffic.finish();
    assert!(stalled || asked == 0, "{asked} questions while traffic flowed:\n{}", wire.text());
    // Idle, it asks, and is answered: the tunnel stays.
    let idle = questions(&wire.text());
    site.gateway(Side::West).wait("questions", |_| questions(&wire.text()) >= idle + 2);
    assert_eq!(site.pair.pings(Side::East, 1, false, 10), 10);
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
