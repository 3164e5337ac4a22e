//! Tunnels come up, whoever asks for them, and go down again.

use crate::daemon::pair::Side;
use crate::site::Site;

pub fn initiates(site: &mut Site) {
    site.load(|connection| connection.child("net", 1, false, ""));
    site.west.initiate("net");
    site.pair.flows(1, false);
    let (west, east) = (site.west.child("net"), site.east.child("net"));
    assert_eq!((west.spi_in(), west.spi_out()), (east.spi_out(), east.spi_in()));
    assert_eq!(west.text("esn"), "1");
    assert!(site.data_plane(Side::West).iter().all(|sa| sa["esn"] == true));
}

pub fn responds(site: &mut Site) {
    site.load(|connection| connection.child("net", 1, false, ""));
    site.east.initiate("net");
    site.pair.flows(1, false);
    assert_eq!(site.west.sas()[0].text("initiator"), "");
}

pub fn several_children(site: &mut Site) {
    site.load(|connection| {
        (1..=4).fold(connection, |connection, n| {
            connection.child(&format!("net{n}"), n, n % 2 == 0, "")
        })
    });
    // Both ends ask for some.
    for n in 1..=4 {
        let asking = if n < 3 { &site.west } else { &site.east };
        asking.initiate(&format!("net{n}"));
    }
    for n in 1..=4 {
        site.pair.flows(n, n % 2 == 0);
    }
    assert_eq!((site.west.sas().len(), site.west.children().len()), (1, 4));
    site.wait_sas(Side::West, 8);
    // One of them goes, the others stay.
    site.west.terminate(&["--child", "net2"]);
    site.wait_sas(Side::West, 6);
    site.wait_sas(Side::East, 6);
    for n in [1, 3, 4] {
        assert_eq!(site.pair.pings(Side::West, n, n % 2 == 0, 10), 10, "network {n}");
    }
    assert!(!site.pair.ping_once(Side::West, 2, true), "network 2 has no tunnel");
}

pub fn every_family_in_every_family(site: &mut Site) {
    for outside in [false, true] {
        site.load_over(outside, |connection| {
            connection.child("four", 1, false, "").child("six", 2, true, "")
        });
        site.west.initiate("four");
        site.west.initiate("six");
        site.pair.flows(1, false);
        site.pair.flows(2, true);
        for (n, inside) in [(1, false), (2, true)] {
            let answered = site.pair.pings(Side::East, n, inside, 10);
            assert_eq!(answered, 10, "IPv6 inside: {inside}, outside: {outside}");
        }
        site.west.terminate(&["--ike", "site"]);
        site.wait_no_sas();
    }
}

pub fn without_esn(site: &mut Site) {
    site.load(|connection| connection.child("net", 1, false, "esp_proposals = aes128gcm16-noesn"));
    site.west.initiate("net");
    site.pair.flows(1, false);
    let child = site.west.child("net");
    assert_eq!((child.text("encr-keysize"), child.text("esn")), ("128", ""));
    assert!(site.data_plane(Side::East).iter().all(|sa| sa["esn"] == false));
}

pub fn deletes(site: &mut Site) {
    site.load(|connection| connection.child("net", 1, false, ""));
    for what in [["--child", "net"], ["--ike", "site"]] {
        site.west.initiate("net");
        site.pair.flows(1, false);
        // The end that did not ask for it takes it down.
        site.east.terminate(&what);
        site.wait_no_sas();
        let policies = site.gateway(Side::West).show("policy");
        assert_eq!(policies.as_array().map(Vec::len), Some(0), "{policies}");
    }
}

pub fn trap_acquires(site: &mut Site) {
    site.load(|connection| connection.child("net", 1, false, "start_action = trap"));
    assert!(site.west.sas().is_empty() && site.data_plane(Side::West).is_empty());
    // A packet from behind the gateway is what asks for the tunnel. It waits, and so do those that
    // follow it: fewer than a policy may let wait.
    site.pair.acquaint();
    assert_eq!(site.pair.pings_patiently(Side::West, 1, 8), 8);
    assert!(site.west.said("creating acquire job") > 0);
    assert_eq!(site.east.said("creating acquire job"), 0);
    assert_eq!(site.west.said("initiating IKE_SA"), 1);
    site.west.child("net");
    // The tunnel goes, the trap stays and asks again. The daemon says that a tunnel is gone before it deletes its SAs,
    // and a packet in between is sealed and opened: its answer, for which there is no SA any more, would ask at the other end.
    site.west.terminate(&["--child", "net"]);
    site.wait_no_sas();
    assert_eq!(site.pair.pings_patiently(Side::West, 1, 8), 8);
    site.west.child("net");
    assert!(site.west.said("creating acquire job") > 1);
    let gateway = site.gateway(Side::West);
    for verdict in ["hold_full", "hold_expired", "hold_policy_gone", "no_sa"] {
        assert_eq!(gateway.verdict(verdict), 0, "{verdict}");
    }
}
