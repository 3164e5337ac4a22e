//! Many rekeyings of many tunnels under load: not one packet is lost or accepted twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::daemon::charon::Charon;
use crate::daemon::numbered::Numbered;
use crate::daemon::pair::Side;
use crate::daemon::wire::{self, Wire};
use crate::site::Site;

/// Tunnels, each with a flow of numbered packets both ways.
const TUNNELS: u8 = 50;
/// Rekeyings, half of them begun by each end.
const REKEYINGS: usize = 100;
/// Packets a second in each flow and direction: a busy machine of two cores carries all of them.
const PPS: u32 = 10;
/// How long all of it may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Inbound SPIs of one gateway, seen while they were replaced.
#[derive(Default)]
struct Inbound(BTreeSet<u64>);

impl Inbound {
    /// Looks once: none may have gone that the daemon did not delete. Its log is read after the SAs,
    /// so that it knows of all that is missing.
    fn look(&mut self, site: &Site, side: Side, charon: &Charon) {
        let sas = site.data_plane(side);
        let log = charon.log();
        let inbound = sas.iter().filter(|sa| sa["direction"] == "in");
        let present: BTreeSet<u64> = inbound.filter_map(|sa| sa["spi"].as_u64()).collect();
        for spi in self.0.difference(&present) {
            let told = log.contains(&format!("deleting SAD entry with SPI {spi:08x}"));
            assert!(told, "the inbound SA {spi:#x} has gone, which the daemon did not ask for");
        }
        self.0.extend(present);
    }
}

/// The tunnel (reqid) of each SPI, as a daemon installed it.
fn tunnels(log: &str) -> BTreeMap<u32, u32> {
    let entry = |line: &str| {
        let (spi, reqid) = line.split_once("adding SAD entry with SPI ")?.1.split_once(' ')?;
        let reqid = reqid.strip_prefix("and reqid {")?.strip_suffix('}')?;
        Some((u32::from_str_radix(spi, 16).ok()?, reqid.parse().ok()?))
    };
    log.lines().filter_map(entry).collect()
}

/// On the wire no (SPI, sequence number) may come twice, and no tunnel may go back to an SPI that it
/// has left. Returns how often a tunnel went on to another SPI.
fn successions(packets: &[(u32, u32)], tunnels: &BTreeMap<u32, u32>) -> usize {
    let mut seen = BTreeSet::new();
    let mut current: BTreeMap<u32, u32> = BTreeMap::new();
    let mut left = BTreeSet::new();
    for packet @ (spi, sequence) in packets {
        assert!(seen.insert(*packet), "({spi:#x}, {sequence}) was sent twice");
        assert!(!left.contains(spi), "the old SA {spi:#x} was used again, at {sequence}");
        let tunnel = tunnels.get(spi).expect("an SPI that the daemon installed");
        if let Some(old) = current.insert(*tunnel, *spi)
            && old != *spi
        {
            left.insert(old);
        }
    }
    left.len()
}

pub fn hundred_rekeys_under_load(site: &mut Site) {
    let flows: Vec<u8> = (1..=TUNNELS).collect();
    site.load(|connection| {
        flows
            .iter()
            .fold(connection, |connection, n| connection.child(&format!("net{n}"), *n, false, ""))
    });
    for n in &flows {
        site.west.initiate(&format!("net{n}"));
    }
    for n in &flows {
        site.pair.flows(*n, false);
    }
    let established = "established with SPIs";
    let before = (site.west.said(established), site.west.said("deleted SAD entry"));
    let wires = ["west", "east"].map(|interface| Wire::start(&site.pair.wan, interface, "esp"));
    let traffic = Numbered::start(&site.pair, &flows, PPS);
    let mut inbound = [Inbound::default(), Inbound::default()];
    let mut look = |site: &Site| {
        inbound[0].look(site, Side::West, &site.west);
        inbound[1].look(site, Side::East, &site.east);
    };
    let end = Instant::now() + PATIENCE;
    for round in 0..REKEYINGS {
        // Each end begins with tunnels of its own: a collision is not what is looked at here.
        let n = 1 + (round % TUNNELS as usize);
        let charon = if n.is_multiple_of(2) { &site.west } else { &site.east };
        charon.run(&["--rekey", "--child", &format!("net{n}")]);
        while site.west.said(established) < before.0 + round + 1 {
            assert!(Instant::now() < end, "rekeying {round} did not happen");
            std::thread::sleep(Duration::from_millis(10));
        }
        look(site);
    }
    // Both SAs of each old tunnel go in the end.
    while site.west.said("deleted SAD entry") < before.1 + 2 * REKEYINGS {
        assert!(Instant::now() < end, "not all old SAs were deleted");
        std::thread::sleep(Duration::from_millis(100));
        look(site);
    }
    for (direction, way) in traffic.finish().iter().zip(["to east", "to west"]) {
        assert!(direction.sent > 1000, "{way}: only {} packets were sent", direction.sent);
        assert!(direction.lost.is_empty(), "{way}: lost {:?}", direction.lost);
        assert!(direction.twice.is_empty(), "{way}: twice {:?}", direction.twice);
        println!("{way}: {} sent, {} arrived", direction.sent, direction.arrived);
    }
    for (wire, charon) in wires.into_iter().zip([&site.west, &site.east]) {
        let packets = wire::esp(&wire.finish());
        let left = successions(&packets, &tunnels(&charon.log()));
        assert_eq!(left, REKEYINGS, "every rekeying moved its tunnel to another SA");
    }
    site.wait_sas(Side::West, 2 * flows.len());
    site.wait_sas(Side::East, 2 * flows.len());
}
