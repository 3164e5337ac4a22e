//! Tunnels come up, whoever asks for them, and go down again.

use crate::daemon::pair::Side;
use crate::daemon::pluto::Conn;
use crate::site::Site;

pub fn initiates(site: &mut Site) {
    site.load(&[Conn::new("net", false, 1, false)]);
    site.west.initiate("net");
    site.pair.flows(1, false);
    assert!(site.data_plane(Side::West).iter().all(|sa| sa["esn"] == true));
}

pub fn responds(site: &mut Site) {
    site.load(&[Conn::new("net", false, 1, false)]);
    site.east.initiate("net");
    site.pair.flows(1, false);
}

pub fn several_children(site: &mut Site) {
    let conns = [1, 2, 3, 4].map(|n| Conn::new(&format!("net{n}"), false, n, n % 2 == 0));
    site.load(&conns);
    for n in 1..=4 {
        let asking = if n < 3 { &site.west } else { &site.east };
        asking.initiate(&format!("net{n}"));
    }
    for n in 1..=4 {
        site.pair.flows(n, n % 2 == 0);
    }
    site.wait_sas(8);
    site.west.terminate("net2");
    site.wait_sas(6);
    for n in [1, 3, 4] {
        assert_eq!(site.pair.pings(Side::West, n, n % 2 == 0, 10), 10, "network {n}");
    }
}

pub fn every_family_in_every_family(site: &mut Site) {
    for outside in [false, true] {
        let name = |inside| format!("out{}in{}", u8::from(outside), u8::from(inside));
        site.load(
            &[false, true]
                .map(|inside| Conn::new(&name(inside), outside, 1 + u8::from(inside), inside)),
        );
        for (n, inside) in [(1, false), (2, true)] {
            site.west.initiate(&name(inside));
            site.pair.flows(n, inside);
            let answered = site.pair.pings(Side::East, n, inside, 10);
            assert_eq!(answered, 10, "IPv6 inside: {inside}, outside: {outside}");
        }
        for inside in [false, true] {
            site.west.terminate(&name(inside));
        }
        site.wait_sas(0);
    }
}

pub fn without_esn(site: &mut Site) {
    site.load(&[Conn::new("net", false, 1, false).set("esp", "aes_gcm128").set("esn", "no")]);
    site.west.initiate("net");
    site.pair.flows(1, false);
    assert!(site.data_plane(Side::East).iter().all(|sa| sa["esn"] == false));
}

pub fn deletes(site: &mut Site) {
    site.load(&[Conn::new("net", false, 1, false)]);
    site.west.initiate("net");
    site.pair.flows(1, false);
    // Who asked for it takes it down: libreswan revives what the other end takes down.
    site.west.terminate("net");
    site.wait_sas(0);
}
