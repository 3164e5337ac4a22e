//! Sources, cycles and links that the lab's own tests use.
#![allow(dead_code, reason = "each test binary uses its own part of this module")]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lab::generator::{Load, Source};
use lab::station::{Order, Station, StationCounters, StationPort, StepBooks};
use lab::topology::Namespace;
use lab::traffic::{Cycle, Mix};

/// Tunnels of the test traffic: a prime, so that no pattern hides in the order.
pub const TUNNELS: u32 = 7;

/// The addresses of port 0; port 1 sends the reverse.
pub fn cycle() -> Cycle {
    let at = |a, b, c, d| IpAddr::V4(Ipv4Addr::new(a, b, c, d));
    Cycle::new((at(16, 0, 0, 1), 200), at(48, 0, 0, 1), 256, TUNNELS, 3).unwrap()
}

/// The Ethernet address of an interface.
pub fn mac(namespace: &Namespace, interface: &str) -> [u8; 6] {
    let text = namespace.ip(&format!("-j link show dev {interface}")).unwrap();
    let links: serde_json::Value = serde_json::from_str(&text).unwrap();
    let address = links[0]["address"].as_str().unwrap();
    let mut bytes = [0; 6];
    for (byte, text) in bytes.iter_mut().zip(address.split(':')) {
        *byte = u8::from_str_radix(text, 16).unwrap();
    }
    bytes
}

/// The plan of a port that sends `mix` to `destination_mac`.
pub fn plan(port: u8, interface: &str, macs: [[u8; 6]; 2], mix: &[&str]) -> StationPort {
    let cycle = if port == 0 { cycle() } else { cycle().reversed() };
    StationPort {
        interface: interface.to_owned(),
        source: Source {
            port,
            destination_mac: macs[1],
            source_mac: macs[0],
            ipv6: false,
            cycle,
            mix: Mix::from_names(mix).unwrap(),
        },
    }
}

/// A station on two interfaces of one namespace whose far stations have the `gateways` addresses.
pub fn station(
    namespace: &Namespace,
    interfaces: [&str; 2],
    gateways: [[u8; 6]; 2],
    stop: &Arc<AtomicBool>,
) -> Station {
    let ports = [0, 1].map(|port: usize| {
        let own = mac(namespace, interfaces[port]);
        let mix = if port == 0 { "imix1" } else { "imix2" };
        plan(port as u8, interfaces[port], [own, gateways[port]], &[mix])
    });
    Station::open(namespace, ports, Arc::clone(stop)).unwrap()
}

/// A step without anything to settle.
pub fn order(load: [Load; 2], duration: Duration) -> Order {
    Order { load, duration, settle: Duration::ZERO, drain: Duration::from_millis(200) }
}

/// Frames that port `from` sent and that a link or a ring is known to have lost before they
/// reached the books of the other port.
pub fn lost_on_links(from: usize, before: &StationCounters, after: &StationCounters) -> u64 {
    let to = 1 - from;
    let sender = after.ports[from] - before.ports[from];
    let receiver = after.ports[to] - before.ports[to];
    let refused = after.refused[to] - before.refused[to];
    sender.tx_dropped
        + sender.tx_invalid
        + after.waiting[from]
        + refused
        + receiver.rx_ring_full
        + receiver.rx_no_frame
        + receiver.rx_oversize
}

/// Whether one direction of a step closes to the frame: sent = received + damaged + misdirected +
/// `lost_on_links`, with nothing twice.
pub fn assert_closes(books: &StepBooks, direction: usize, lost_on_links: u64) {
    let direction = &books.directions[direction];
    for counts in [direction.load, direction.probes] {
        assert!(counts.sent <= counts.expected, "{counts:?}");
        assert_eq!(counts.lost, counts.expected - counts.received, "{counts:?}");
        assert_eq!((counts.duplicated, counts.reordered, counts.late), (0, 0, 0), "{counts:?}");
    }
    let (load, probes) = (direction.load, direction.probes);
    let arrived = load.received + probes.received + load.corrupted + load.misrouted;
    assert_eq!(load.sent + probes.sent, arrived + lost_on_links, "{direction:?}");
}
