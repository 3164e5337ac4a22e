//! What pluto, both gateways and `ip -s xfrm state` say was carried is what was carried.

use crate::daemon::iproute::{Carried, carried};
use crate::daemon::pair::Side;
use crate::daemon::pluto::{Conn, Traffic};
use crate::site::Site;

impl Site {
    /// What the west daemon counts for its one connection. Each daemon, its data plane and
    /// iproute2 count the same, and so do both ends: nothing was lost between them.
    #[track_caller]
    pub fn counted(&self, name: &str) -> Traffic {
        let [west, east] = [Side::West, Side::East].map(|side| {
            let said = self.daemon(side).traffic(name);
            let mut summed = Traffic::default();
            for sa in self.data_plane(side) {
                let number = |key: &str| sa[key].as_u64().unwrap_or_else(|| panic!("{key}: {sa}"));
                let bytes = number("bytes");
                let listed = carried(self.gateway(side), number("spi"));
                assert_eq!(listed, Carried { bytes, packets: number("packets") }, "{sa}");
                let way = sa["direction"].as_str() == Some("in");
                *(if way { &mut summed.in_bytes } else { &mut summed.out_bytes }) += bytes;
            }
            assert_eq!(said, summed, "`ipsec trafficstatus` of {}, and its gateway", side.id());
            said
        });
        assert_eq!((west.in_bytes, west.out_bytes), (east.out_bytes, east.in_bytes));
        west
    }
}

/// Nothing that the daemon says of its SAs and policies keeps packets from the short way, of one tunnel or of many.
pub fn packets_follow(site: &mut Site) {
    let networks = [1, 2, 3];
    site.load(&networks.map(|n| Conn::new(&format!("net{n}"), false, n, false)));
    for n in networks {
        site.west.initiate(&format!("net{n}"));
        site.pair.flows(n, false);
    }
    site.pair.follows(&[1]);
    site.pair.follows(&networks);
}

pub fn real_counters(site: &mut Site) {
    site.load(&[Conn::new("net", false, 1, false)]);
    site.west.initiate("net");
    site.pair.flows(1, false);
    let before = site.counted("net");
    assert_eq!(site.pair.pings(Side::West, 1, false, 20), 20);
    let after = site.counted("net");
    // 20 bytes of IP, 8 of ICMP and 56 of data.
    let bytes = 20 * 84;
    let expected =
        Traffic { in_bytes: before.in_bytes + bytes, out_bytes: before.out_bytes + bytes };
    assert_eq!(after, expected);
}
