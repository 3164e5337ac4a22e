//! libreswan at one end, strongSwan at the other, Peregrine under both.

use crate::daemon::charon::Charon;
use crate::daemon::numbered::Numbered;
use crate::daemon::pair::{Pair, Side};
use crate::daemon::pluto::{Conn, Pluto, configuration};
use crate::daemon::root::Root;
use crate::daemon::swanctl::Connection;
use crate::life::kept;

/// The strongSwan of the same age.
fn charon_beside(pluto: &Root) -> &'static str {
    if pluto.is_at_least(5, 0) { "strongswan-6.1" } else { "strongswan-5.9.8" }
}

/// Each asks the other, over IPv4 and IPv6; traffic both ways while strongSwan rekeys.
pub fn with_strongswan(pluto: &Root) {
    let Some(charon) = Root::find(charon_beside(pluto)) else { return };
    for libreswan_asks in [true, false] {
        for outside in [false, true] {
            between(pluto, &charon, libreswan_asks, outside);
        }
    }
}

fn between(pluto: &Root, charon: &Root, libreswan_asks: bool, outside: bool) {
    let pair = Pair::new();
    let (west, east) = (&pair.west, &pair.east);
    let conns = configuration(&[Conn::new("net", outside, 1, false)]);
    let libreswan = Pluto::start(pluto, &west.namespace, Some(&west.gateway), &conns);
    libreswan.load(&conns);
    let strongswan = Charon::start(charon, &east.namespace, Some(&east.gateway));
    let own = Connection::new(Side::East, outside)
        .ike("proposals = aes256gcm16-prfsha256-x25519")
        .child("net", 1, false, "rekey_time = 0\nesp_proposals = aes256gcm16-x25519-esn");
    strongswan.load(&own.text());
    if libreswan_asks {
        libreswan.initiate("net");
    } else {
        strongswan.initiate("net");
    }
    pair.flows(1, false);
    let first = strongswan.child("net").spi_in();
    let traffic = Numbered::start(&pair, &[1], 100);
    strongswan.run(&["--rekey", "--child", "net"]);
    strongswan.wait("the new child", |sas| {
        let children = sas.iter().flat_map(|ike| &ike.children);
        let installed: Vec<_> = children.filter(|one| one.state() == "INSTALLED").collect();
        installed.len() == 1 && installed[0].spi_in() != first
    });
    let [east, west] = traffic.finish();
    kept(&west, &east);
}
