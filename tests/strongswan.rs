//! Unmodified strongSwan drives Peregrine: two gateways, each with a charon of its own that knows
//! nothing of it, negotiate with each other. Every scenario runs for every version at hand.

mod daemon;
mod gateway;

use daemon::charon::Charon;
use daemon::pair::{Pair, Side};
use daemon::root::Root;

/// Two gateways and two daemons.
struct Site {
    pair: Pair,
    west: Charon,
    east: Charon,
}

impl Site {
    fn new(root: &Root) -> Site {
        let pair = Pair::new();
        let west = Charon::start(root, &pair.west.namespace, Some(&pair.west.gateway));
        let east = Charon::start(root, &pair.east.namespace, Some(&pair.east.gateway));
        Site { pair, west, east }
    }

    /// Gives both daemons their configuration.
    fn load(&self, configuration: impl Fn(Side) -> String) {
        self.west.load(&configuration(Side::West));
        self.east.load(&configuration(Side::East));
    }
}

/// A swanctl.conf with one connection.
fn configuration(side: Side, v6: bool, children: &str) -> String {
    format!(
        "connections {{
  site {{
    version = 2
    local_addrs = {}
    remote_addrs = {}
    proposals = aes256gcm16-prfsha256-x25519
    local {{ auth = psk \n id = {} }}
    remote {{ auth = psk \n id = {} }}
    children {{
      {children}
    }}
  }}
}}
secrets {{
  ike {{ secret = \"not the one of any other test\" }}
}}
",
        side.outer(v6),
        side.other().outer(v6),
        side.id(),
        side.other().id()
    )
}

/// One network, `net`, protected between both ends.
fn net(side: Side, esp: &str) -> String {
    format!(
        "net {{ local_ts = {}\n remote_ts = {}\n esp_proposals = {esp}\n }}",
        side.network(1, false),
        side.other().network(1, false)
    )
}

fn west_initiates(site: &Site) {
    site.load(|side| configuration(side, false, &net(side, "aes256gcm16-esn")));
    site.west.initiate("net");
    site.pair.flows(1, false);
    let (west, east) = (site.west.child("net"), site.east.child("net"));
    assert_eq!((west.spi_in(), west.spi_out()), (east.spi_out(), east.spi_in()));
    assert_eq!(west.text("esn"), "1");
}

fn west_responds(site: &Site) {
    site.load(|side| configuration(side, false, &net(side, "aes128gcm16")));
    site.east.initiate("net");
    site.pair.flows(1, false);
    let child = site.west.child("net");
    assert_eq!((child.text("encr-keysize"), child.text("esn")), ("128", ""));
}

/// Each scenario for each version that can be had.
macro_rules! scenarios {
    ($($name:ident)*) => {
        mod v5_9_8 {
            $(#[test] fn $name() { super::with("strongswan-5.9.8", super::$name); })*
        }
        mod v6_1 {
            $(#[test] fn $name() { super::with("strongswan-6.1", super::$name); })*
        }
    };
}

fn with(name: &'static str, scenario: fn(&Site)) {
    if let Some(root) = Root::find(name) {
        scenario(&Site::new(&root));
    }
}

scenarios! {
    west_initiates
    west_responds
}
