//! Where every packet of a curve went: the counters of all places, made into one table.
//!
//! Each place counts for itself, so nothing here is worked out as a remainder: the generator and
//! the sink by their frames' numbers, the sockets and gateways by their counters, the links by
//! their kernel's. When the books of a place do not close, the difference gets a line of its own
//! and the curve its label; see [`crate::result::balance`]. This file reads no counters.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use xsk::{CounterKind, PortCounters};

use crate::dut::{GatewayFacts, PortFacts};
use crate::result::{AccountingRow, Side, balance};
use crate::station::{StationCounters, StepBooks};
use crate::wiring::{GENERATOR_LINKS, LinkDrops};

/// The place whose books are those of the whole path.
const PATH: &str = "path";
/// The station, in the names of links.
const STATION: &str = "gen";
/// The name of what no counter explains.
const UNEXPLAINED: &str = "unexplained";

/// All counters at one moment at which nothing is on its way.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// The station's sockets.
    pub station: StationCounters,
    /// The links.
    pub links: LinkDrops,
    /// The gateways; none when the lab measures itself.
    pub gateways: Vec<GatewayFacts>,
}

/// What the station's own books say, load and probes together, by sending port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fates {
    /// Frames that the generator gave to its socket.
    pub sent: [u64; 2],
    /// Different frames that arrived whole, where they belong, in time.
    pub delivered: [u64; 2],
    /// Copies beyond the first.
    pub duplicated: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Whole, and somewhere else.
    pub misrouted: u64,
    /// Whole, and after their step was closed.
    pub late: u64,
}

impl Fates {
    /// Adds a step.
    pub fn add(&mut self, books: &StepBooks) {
        for (port, direction) in books.directions.iter().enumerate() {
            for counts in [&direction.load, &direction.probes] {
                self.sent[port] += counts.sent;
                self.delivered[port] += counts.received;
                self.duplicated += counts.duplicated;
                self.corrupted += counts.corrupted;
                self.misrouted += counts.misrouted;
                self.late += counts.late;
            }
        }
    }
}

/// The table of a curve: first the whole path, then each gateway. `ports` are the names of the
/// generator's ports.
pub fn account(
    ports: [&str; 2],
    before: &Ledger,
    after: &Ledger,
    fates: &Fates,
) -> Vec<AccountingRow> {
    let mut rows = Rows::default();
    for (port, sent) in ports.iter().zip(fates.sent) {
        rows.push(PATH, Side::In, format!("offered by {port}"), sent);
    }
    rows.push_some(PATH, Side::In, "copied on the way".to_owned(), fates.duplicated);
    for (port, delivered) in fates.delivered.iter().enumerate() {
        let name = format!("delivered {}→{}", ports[port], ports[1 - port]);
        rows.push(PATH, Side::Out, name, *delivered);
    }
    rows.push_some(PATH, Side::Out, "copies received".to_owned(), fates.duplicated);
    rows.push_some(PATH, Side::Out, "damaged".to_owned(), fates.corrupted);
    rows.push_some(PATH, Side::Out, "misdirected".to_owned(), fates.misrouted);
    rows.push_some(PATH, Side::Out, "late".to_owned(), fates.late);
    path_losses(&mut rows, ports, before, after);
    for (now, then) in after.gateways.iter().zip(&before.gateways) {
        gateway_books(&mut rows, now, then);
    }
    rows.name_the_unexplained();
    rows.rows
}

/// Where packets were lost, the most first.
pub fn lost(ports: [&str; 2], before: &Ledger, after: &Ledger) -> Vec<AccountingRow> {
    let mut rows = Rows::default();
    path_losses(&mut rows, ports, before, after);
    rows.rows.sort_by_key(|row| Reverse(row.packets));
    rows.rows
}

#[derive(Default)]
struct Rows {
    rows: Vec<AccountingRow>,
}

impl Rows {
    fn push(&mut self, place: &str, side: Side, name: String, packets: u64) {
        self.rows.push(AccountingRow { place: place.to_owned(), side, name, packets });
    }

    /// A line that is of interest only when it is not zero.
    fn push_some(&mut self, place: &str, side: Side, name: String, packets: u64) {
        if packets > 0 {
            self.push(place, side, name, packets);
        }
    }

    /// A difference is not hidden by being named: its line is put on the side where the packets
    /// are, so the books stay open by as many, and [`balance`] goes on reporting them.
    fn name_the_unexplained(&mut self) {
        for book in balance(&self.rows) {
            let name = if book.entered > book.named {
                format!("{UNEXPLAINED}: {} went missing", book.entered - book.named)
            } else {
                format!("{UNEXPLAINED}: {} came from nowhere", book.named - book.entered)
            };
            self.push(&book.place, Side::Out, name, 0);
        }
    }
}

/// All losses of the path.
fn path_losses(rows: &mut Rows, ports: [&str; 2], before: &Ledger, after: &Ledger) {
    station_losses(rows, ports, before, after);
    for (now, then) in after.gateways.iter().zip(&before.gateways) {
        gateway_losses(rows, now, then, before, after);
    }
    router_losses(rows, before, after);
}

fn station_losses(rows: &mut Rows, ports: [&str; 2], before: &Ledger, after: &Ledger) {
    for (index, port) in ports.iter().enumerate() {
        let counters = after.station.ports[index] - before.station.ports[index];
        for (name, packets) in losses(&counters) {
            rows.push_some(PATH, Side::Out, format!("{port}: {name}"), packets);
        }
        let refused = after.station.refused[index] - before.station.refused[index];
        rows.push_some(PATH, Side::Out, format!("{port}: refused by the sink"), refused);
        let waiting = after.station.waiting[index];
        rows.push_some(PATH, Side::Out, format!("{port}: waits to be sent"), waiting);
        let arrival = counters.rx_ring_full + counters.rx_no_frame + counters.rx_oversize;
        let link = format!("{STATION}:{}", GENERATOR_LINKS[index]);
        link_losses(rows, &link, arrival, before, after);
    }
}

/// A gateway's part in the losses of the path.
fn gateway_losses(
    rows: &mut Rows,
    now: &GatewayFacts,
    then: &GatewayFacts,
    before: &Ledger,
    after: &Ledger,
) {
    let place = &now.name;
    for (port, old) in pairs(now, then) {
        let link = format!("{place}:{}", port.interface);
        let grown = |map: fn(&PortFacts) -> &BTreeMap<String, u64>| growth(map(port), map(old));
        let mut arrival = 0;
        for (name, packets) in grown(|port| &port.losses) {
            if name.starts_with("rx_") {
                arrival += packets;
            }
            rows.push_some(PATH, Side::Out, format!("{link} {name}"), packets);
        }
        for (name, packets) in grown(|port| &port.steering_drops) {
            rows.push_some(PATH, Side::Out, format!("{link} {name}"), packets);
        }
        link_losses(rows, &link, arrival, before, after);
    }
    for (name, verdict) in &now.verdicts {
        let packets = verdict.packets - then.verdicts.get(name).map_or(0, |old| old.packets);
        if verdict.is_loss {
            rows.push_some(PATH, Side::Out, format!("{place}: {name}"), packets);
        }
    }
}

/// The gateway by itself: every packet that a worker received has met one end.
fn gateway_books(rows: &mut Rows, now: &GatewayFacts, then: &GatewayFacts) {
    let place = &now.name;
    for (port, old) in pairs(now, then) {
        let name = format!("received on {}", port.interface);
        rows.push(place, Side::In, name, port.received - old.received);
    }
    for (name, verdict) in &now.verdicts {
        let packets = verdict.packets - then.verdicts.get(name).map_or(0, |old| old.packets);
        rows.push_some(place, Side::Out, name.clone(), packets);
    }
}

/// What a link end dropped beyond what the socket behind it reports: the kernel counts a full
/// ring of the socket at the link as well, and one packet is lost once.
fn link_losses(rows: &mut Rows, link: &str, socket: u64, before: &Ledger, after: &Ledger) {
    let grown = growth(&after.links, &before.links);
    let dropped = grown.get(link).copied().unwrap_or_default();
    let name = format!("{link} dropped by the link");
    rows.push_some(PATH, Side::Out, name, dropped.saturating_sub(socket));
}

/// What is lost on links of neither the station nor a gateway.
fn router_losses(rows: &mut Rows, before: &Ledger, after: &Ledger) {
    let known = |place: &str| {
        place == STATION || after.gateways.iter().any(|gateway| gateway.name == place)
    };
    for link in after.links.keys() {
        if link.split_once(':').is_some_and(|(place, _)| !known(place)) {
            link_losses(rows, link, 0, before, after);
        }
    }
}

fn pairs<'a>(
    now: &'a GatewayFacts,
    then: &'a GatewayFacts,
) -> impl Iterator<Item = (&'a PortFacts, &'a PortFacts)> {
    now.ports.iter().zip(&then.ports)
}

fn growth(now: &BTreeMap<String, u64>, then: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let old = |name: &String| then.get(name).copied().unwrap_or_default();
    now.iter().map(|(name, count)| (name.clone(), count.saturating_sub(old(name)))).collect()
}

fn losses(counters: &PortCounters) -> impl Iterator<Item = (&'static str, u64)> {
    let losses = counters.list().into_iter().filter(|one| one.kind == CounterKind::Loss);
    losses.map(|one| (one.name, one.value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dut::{PortFacts, Verdict};

    fn gateway(name: &str, received: [u64; 2], verdicts: &[(&str, u64, bool)]) -> GatewayFacts {
        let port = |interface: &str, received| PortFacts {
            interface: interface.to_owned(),
            received,
            losses: BTreeMap::from([("rx_ring_full".to_owned(), received / 100)]),
            steering_drops: BTreeMap::new(),
        };
        let verdict = |&(name, packets, is_loss): &(&str, u64, bool)| {
            (name.to_owned(), Verdict { packets, is_loss })
        };
        GatewayFacts {
            name: name.to_owned(),
            ports: vec![port("p1", received[0]), port("p0", received[1])],
            verdicts: verdicts.iter().map(verdict).collect(),
        }
    }

    /// 1000 offered; gw0 loses 9 on arrival (900/100) and 11 for want of an SA; gw1 loses 8.
    fn ledger() -> (Ledger, Fates) {
        let mut after = Ledger {
            gateways: vec![
                gateway("gw0", [900, 0], &[("sealed", 889, false), ("no_sa", 11, true)]),
                gateway("gw1", [0, 800], &[("opened", 800, false)]),
            ],
            ..Ledger::default()
        };
        after.station.ports[0].tx_dropped = 91;
        // The kernel counts the full ring (9) too, and 81 losses of its own on the black link.
        after.links = BTreeMap::from([("gw0:p1".to_owned(), 9), ("gw1:p0".to_owned(), 8 + 81)]);
        let fates = Fates { sent: [1000, 0], delivered: [800, 0], ..Fates::default() };
        (after, fates)
    }

    fn empty() -> Ledger {
        Ledger {
            gateways: vec![
                gateway("gw0", [0, 0], &[("sealed", 0, false), ("no_sa", 0, true)]),
                gateway("gw1", [0, 0], &[("opened", 0, false)]),
            ],
            ..Ledger::default()
        }
    }

    #[test]
    fn losses_are_named_the_most_first() {
        let ledger = |received, no_sa| Ledger {
            gateways: vec![gateway("gw0", [received, 0], &[("no_sa", no_sa, true)])],
            ..Ledger::default()
        };
        let (before, after) = (ledger(100, 2), ledger(1100, 13));
        let named: Vec<_> = lost(["p0", "p1"], &before, &after)
            .into_iter()
            .map(|row| (row.name, row.packets))
            .collect();
        let expected = [("gw0: no_sa".to_owned(), 11), ("gw0:p1 rx_ring_full".to_owned(), 10)];
        assert_eq!(named, expected);
        assert!(lost(["p0", "p1"], &after, &after).is_empty());
    }

    #[test]
    fn books_close_when_every_loss_has_a_name() {
        let (after, fates) = ledger();
        let rows = account(["P0", "P1"], &empty(), &after, &fates);
        assert_eq!(balance(&rows), []);
        let packets = |name: &str| rows.iter().find(|row| row.name == name).map(|row| row.packets);
        assert_eq!(packets("P0: tx_dropped"), Some(91));
        assert_eq!(packets("gw0:p1 rx_ring_full"), Some(9));
        assert_eq!(packets("gw0:p1 dropped by the link"), None);
        assert_eq!(packets("gw1:p0 dropped by the link"), Some(81));
        assert_eq!(packets("gw0: no_sa"), Some(11));
        assert_eq!(packets("delivered P0→P1"), Some(800));
    }

    #[test]
    fn a_router_between_the_gateways_loses_by_name_too() {
        let (mut after, mut fates) = ledger();
        after.links.insert("router:far0".to_owned(), 7);
        fates.delivered[0] -= 7;
        let rows = account(["P0", "P1"], &empty(), &after, &fates);
        assert_eq!(balance(&rows), []);
        assert!(rows.iter().any(|row| row.name == "router:far0 dropped by the link"));
    }

    #[test]
    fn only_what_was_counted_since_counts() {
        let (after, fates) = ledger();
        let rows = account(["P0", "P1"], &after, &after, &Fates::default());
        assert!(rows.iter().all(|row| row.packets == 0), "{rows:?}");
        assert_eq!(fates.sent, [1000, 0]);
    }

    #[test]
    fn a_packet_that_nobody_counted_keeps_the_books_open() {
        let (after, mut fates) = ledger();
        fates.sent[0] += 1;
        let rows = account(["P0", "P1"], &empty(), &after, &fates);
        let open = balance(&rows);
        assert_eq!((open.len(), open[0].place.as_str()), (1, PATH));
        assert_eq!(open[0].entered - open[0].named, 1);
        assert!(rows.iter().any(|row| row.name == "unexplained: 1 went missing"));
        fates.delivered[0] += 3;
        let rows = account(["P0", "P1"], &empty(), &after, &fates);
        assert!(rows.iter().any(|row| row.name == "unexplained: 2 came from nowhere"));
    }

    #[test]
    fn copies_and_damage_are_part_of_the_path() {
        let fates = Fates {
            sent: [10, 5],
            delivered: [7, 5],
            duplicated: 4,
            corrupted: 1,
            misrouted: 1,
            late: 1,
        };
        let rows = account(["P0", "P1"], &Ledger::default(), &Ledger::default(), &fates);
        assert_eq!(balance(&rows), []);
    }
}
