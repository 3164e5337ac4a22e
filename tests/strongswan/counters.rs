//! What the daemon, the gateway and `ip -s xfrm state` say was carried is what was carried.

use crate::daemon::iproute::{Carried, carried};
use crate::daemon::pair::Side;
use crate::site::Site;

/// Nothing that the daemon says of its SAs and policies keeps packets from the short way, of one tunnel or of many.
pub fn packets_follow(site: &mut Site) {
    let networks = [1, 2, 3];
    site.load(|connection| {
        networks
            .iter()
            .fold(connection, |connection, n| connection.child(&format!("net{n}"), *n, false, ""))
    });
    for n in networks {
        site.west.initiate(&format!("net{n}"));
        site.pair.flows(n, false);
    }
    site.pair.follows(&[1]);
    site.pair.follows(&networks);
}

pub fn real_counters(site: &mut Site) {
    site.load(|connection| connection.child("net", 1, false, ""));
    site.west.initiate("net");
    site.pair.flows(1, false);
    let before = site.west.child("net");
    assert_eq!(site.pair.pings(Side::West, 1, false, 20), 20);
    let after = site.west.child("net");
    // 20 bytes of IP, 8 of ICMP and 56 of data, as XFRM counts an inner packet (bytes of ESP are not
    // counted by anyone).
    for (what, expected) in [("packets", 20), ("bytes", 20 * 84)] {
        for way in ["in", "out"] {
            let name = format!("{what}-{way}");
            let number = |child: &crate::daemon::listing::ChildSa| child.number(&name).expect("it");
            assert_eq!(number(&after) - number(&before), expected, "{name}");
        }
    }
    for way in ["in", "out"] {
        let (name, spi) = match way {
            "in" => ("use-in", after.spi_in()),
            _ => ("use-out", after.spi_out()),
        };
        assert!(after.number(name).is_some_and(|age_s| age_s < 20), "{name}: {after:?}");
        // The data plane's own listing.
        let all = site.data_plane(Side::West);
        let sa = all.iter().find(|sa| sa["spi"] == spi).expect("the SA");
        assert_eq!(sa["packets"].as_u64(), after.number(&format!("packets-{way}")));
        assert_eq!(sa["bytes"].as_u64(), after.number(&format!("bytes-{way}")));
        // iproute2's.
        let (bytes, packets) = (sa["bytes"].as_u64().unwrap(), sa["packets"].as_u64().unwrap());
        let listed = carried(site.gateway(Side::West), u64::from(spi));
        assert_eq!(listed, Carried { bytes, packets });
    }
}
