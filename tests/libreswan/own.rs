//! The gateways' own packets in what pluto negotiates: in transport mode, from an address that IKE
//! assigns, and between inner addresses of the gateways.

use crate::daemon::pair::Side;
use crate::daemon::pluto::Conn;
use crate::site::Site;

/// An echo request or its answer over IPv6, for tcpdump: neighbour discovery stays in clear.
const ECHO: &str = "(icmp6 and (ip6[40] == 128 or ip6[40] == 129))";

/// What is left of a connection that was taken down and is forgotten: nothing. (Before that, 4.10
/// keeps a policy that asks for it again.)
fn gone(site: &Site, name: &str) {
    site.wait_sas(0);
    for side in [Side::West, Side::East] {
        let gateway = site.gateway(side);
        site.daemon(side).forget(name);
        gateway.wait("no route", |gateway| gateway.show("status")["host"]["routes"] == 0);
        assert_eq!(gateway.verdict("host_forwarded"), 0, "nothing in clear");
    }
}

pub fn transport_mode(site: &mut Site) {
    site.pair.acquaint();
    for v6 in [false, true] {
        let [west, east] = [Side::West, Side::East].map(|side| side.outer(v6));
        let conn = Conn::between("own", v6).set("type", "transport");
        site.load(&[conn]);
        // Echoes and TCP between the two; IKE has to stay in clear.
        let filter = format!("host {west} and host {east} and (tcp or icmp or {ECHO})");
        site.pair.unseen(&filter, || {
            if v6 { &site.east } else { &site.west }.initiate("own");
            assert!(site.west.said("IPsec transport"), "{}", site.west.log());
            let [left, right] = [&site.pair.west.namespace, &site.pair.east.namespace];
            site.pair.reaches(left, east);
            site.pair.reaches(right, west);
            let before = site.counted("own");
            assert_eq!(site.pair.own_pings(Side::West, east, 20), 20);
            // 8 bytes of ICMP and 56 of data: in transport mode XFRM counts what the header carries.
            let after = site.counted("own");
            assert_eq!(after.in_bytes - before.in_bytes, 20 * 64);
            assert_eq!(after.out_bytes - before.out_bytes, 20 * 64);
            site.pair.streams((left, None), (right, east));
            site.pair.streams((right, None), (left, west));
            let first = site.spis(Side::West);
            site.west.rekey("own");
            site.renewed(&first);
            assert_eq!(site.pair.own_pings(Side::West, east, 10), 10);
            site.counted("own");
        });
        site.daemon(if v6 { Side::East } else { Side::West }).terminate("own");
        gone(site, "own");
    }
}

pub fn virtual_address(site: &mut Site) {
    site.load_ends(|side| {
        let conn = Conn::between("road", false)
            .set("narrowing", "yes")
            .set("rightsubnet", "10.2.0.0/16")
            .set("rightmodecfgserver", "yes")
            .set("leftmodecfgclient", "yes");
        match side {
            Side::West => conn.set("leftsubnet", "0.0.0.0/0"),
            Side::East => conn.set("left", "%any").set("leftaddresspool", "10.3.0.1-10.3.0.99"),
        }
    });
    site.pair.unseen("net 10.0.0.0/8", || {
        site.west.initiate("road");
        let pair = &site.pair;
        let (gateway, host) = (&pair.west.namespace, &pair.east.host);
        let addresses = gateway.ip("-br address show").expect("addresses");
        assert!(addresses.contains("10.3.0.1/32"), "{addresses}");
        pair.reaches(gateway, "10.2.1.1");
        pair.reaches(host, "-I 10.2.1.1 10.3.0.1");
        let before = site.counted("road");
        assert_eq!(pair.own_pings(Side::West, "10.2.1.1", 20), 20);
        let after = site.counted("road");
        assert_eq!(after.out_bytes - before.out_bytes, 20 * 84);
        site.pair.streams((gateway, None), (host, "10.2.1.1"));
        site.pair.streams((host, Some("10.2.1.1")), (gateway, "10.3.0.1"));
        assert!(site.gateway(Side::West).verdict("host_sealed") > 1000);
        assert!(site.gateway(Side::West).verdict("host_opened") > 1000);
    });
    site.west.terminate("road");
    gone(site, "road");
    let addresses = site.pair.west.namespace.ip("-br address show").expect("addresses");
    assert!(!addresses.contains("10.3.0.1"), "given back: {addresses}");
}

pub fn gateways_own_traffic(site: &mut Site) {
    let inner = |side: Side| format!("10.{}.1.254", side.number());
    let [west, east] = [Side::West, Side::East].map(inner);
    // The daemon's own script puts the addresses where they belong, and the routes.
    site.load(&[Conn::new("net", false, 1, false)
        .set("leftsourceip", &west)
        .set("rightsourceip", &east)]);
    site.pair.unseen("net 10.0.0.0/8", || {
        site.west.initiate("net");
        let pair = &site.pair;
        let [left, right] = [&pair.west.namespace, &pair.east.namespace];
        pair.reaches(left, &east);
        pair.reaches(right, &west);
        let host = Side::East.host(1, false);
        pair.reaches(left, &host);
        pair.reaches(&pair.east.host, &format!("-I {host} {west}"));
        let before = site.counted("net");
        assert_eq!(pair.own_pings(Side::West, &east, 20), 20);
        let after = site.counted("net");
        assert_eq!(after.out_bytes - before.out_bytes, 20 * 84);
        site.pair.streams((left, None), (right, &east));
        site.pair.streams((&pair.east.host, Some(&host)), (left, &west));
        site.counted("net");
    });
    site.west.terminate("net");
    gone(site, "net");
}
