//! SAs grow old: rekeyed before their end without a packet lost, deleted at their end.

use serde_json::Value;

use crate::daemon::listing::ChildSa;
use crate::daemon::numbered::Numbered;
use crate::daemon::pair::Side;
use crate::daemon::swanctl::Connection;
use crate::gateway::Gateway;
use crate::site::Site;

/// What a child has that never ends by itself.
const FOREVER: &str = "rekey_time = 0\nlife_time = 0";

/// Traffic both ways while the west end rekeys for what `limits` say, `times` times.
fn rekeys(site: &mut Site, limits: &str, pps: u32, times: usize) {
    site.west.load(&connection(Side::West, limits));
    site.east.load(&connection(Side::East, FOREVER));
    site.west.initiate("net");
    site.pair.flows(1, false);
    let first = site.west.child("net").spi_in();
    let traffic = Numbered::start(&site.pair, &[1], pps);
    // The daemon was asked by EXPIRE, not by a timer of its own.
    site.west.wait_said("creating rekey job for CHILD_SA ESP", times);
    site.west.wait("the last rekey", |_| site.west.said("CHILD_SA net{") > times);
    let [east, west] = traffic.finish();
    for (direction, what) in [(&east, "to east"), (&west, "to west")] {
        assert!(direction.sent > 0 && direction.lost.is_empty(), "{what}: {direction:?}");
        assert!(direction.twice.is_empty(), "{what}: {direction:?}");
    }
    assert_ne!(site.west.child("net").spi_in(), first);
    for side in [Side::West, Side::East] {
        let gateway = site.gateway(side);
        for verdict in ["no_sa", "no_state", "out_sa_expired", "in_sa_expired", "replayed"] {
            assert_eq!(gateway.verdict(verdict), 0, "{verdict} at {}", side.id());
        }
    }
}

fn connection(side: Side, limits: &str) -> String {
    Connection::new(side, false).child("net", 1, false, limits).text()
}

pub fn rekeys_by_time(site: &mut Site) {
    rekeys(site, "rekey_time = 3s\nrand_time = 0\nlife_time = 60s", 100, 2);
}

pub fn rekeys_by_bytes(site: &mut Site) {
    let limits =
        "rekey_time = 0\nlife_time = 0\nrekey_bytes = 40000\nrand_bytes = 0\nlife_bytes = 4000000";
    rekeys(site, limits, 100, 2);
}

pub fn rekeys_by_packets(site: &mut Site) {
    let limits = "rekey_time = 0\nlife_time = 0\nrekey_packets = 300\nrand_packets = 0\nlife_packets = 30000";
    rekeys(site, limits, 100, 2);
}

pub fn rekeys_the_ike_sa(site: &mut Site) {
    let own = Connection::new(Side::West, false)
        .ike("rekey_time = 3s\nover_time = 60s\nrand_time = 0")
        .child("net", 1, false, FOREVER);
    site.west.load(&own.text());
    site.east.load(&connection(Side::East, FOREVER));
    site.west.initiate("net");
    site.pair.flows(1, false);
    let child = site.west.child("net");
    let traffic = Numbered::start(&site.pair, &[1], 100);
    site.west.wait("two rekeyings", |sas| {
        sas.iter().any(|ike| ike.text("uniqueid").parse::<u32>().is_ok_and(|id| id > 2))
    });
    let [east, west] = traffic.finish();
    assert!(east.lost.is_empty() && west.lost.is_empty(), "{east:?} {west:?}");
    // The child moved to the new IKE_SA as it is.
    assert_eq!(site.west.child("net").spi_in(), child.spi_in());
}

/// The child that took the place of one whose hard limit was reached: the daemon deletes the old
/// one, as the hard EXPIRE asks, and negotiates another.
fn replaced(site: &Site, old: &ChildSa) -> ChildSa {
    site.west.wait_said("creating delete job for CHILD_SA ESP", 1);
    site.west.wait_said("closing expired CHILD_SA net{1}", 1);
    let gone = |gateway: &Gateway| {
        let all = gateway.show("sa");
        let spi = |sa: &Value| {
            sa["spi"].as_u64() == Some(u64::from(old.spi_in()))
                || sa["spi"].as_u64() == Some(u64::from(old.spi_out()))
        };
        !all.as_array().expect("a list of SAs").iter().any(spi)
    };
    site.gateway(Side::West).wait("the end of the old SAs", gone);
    site.gateway(Side::East).wait("the end of the old SAs", gone);
    site.west.wait("a new child", |sas| {
        sas.iter().flat_map(|ike| &ike.children).any(|one| one.state() == "INSTALLED")
    });
    site.west.child("net")
}

pub fn hard_expiry_by_time(site: &mut Site) {
    let limits = "rekey_time = 0\nlife_time = 6s";
    site.west.load(&connection(Side::West, limits));
    site.east.load(&connection(Side::East, FOREVER));
    site.west.initiate("net");
    let old = site.west.child("net");
    site.pair.flows(1, false);
    let new = replaced(site, &old);
    assert_ne!(new.spi_in(), old.spi_in());
}

pub fn hard_expiry_by_packets(site: &mut Site) {
    let limits = "rekey_time = 0\nlife_time = 0\nlife_packets = 20\nrekey_packets = 0";
    site.west.load(&connection(Side::West, limits));
    site.east.load(&connection(Side::East, FOREVER));
    site.west.initiate("net");
    let old = site.west.child("net");
    // While the daemon sleeps, the data plane alone keeps the limit: not one packet more.
    site.west.pause();
    site.pair.pings(Side::West, 1, false, 40);
    for sa in site.data_plane(Side::West) {
        assert!(sa["packets"].as_u64().is_some_and(|packets| packets <= 20), "{sa}");
    }
    // What came after waits for another SA, and what is more than may wait is dropped.
    assert!(site.gateway(Side::West).verdict("hold_full") > 0);
    site.west.resume();
    let new = replaced(site, &old);
    assert_ne!(new.spi_in(), old.spi_in());
    site.pair.flows(1, false);
}
