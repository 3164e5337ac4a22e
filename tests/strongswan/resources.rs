//! SAs of single CPUs (RFC 9611): one for all, and one for each worker that has traffic.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use crate::daemon::numbered::Numbered;
use crate::daemon::pair::Side;
use crate::daemon::swanctl::Connection;
use crate::daemon::wire::Wire;
use crate::gateway::Gateway;
use crate::site::Site;

/// Conversations, enough for every worker to have some.
const FLOWS: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
/// How long all SAs may take to be there.
const PATIENCE: Duration = Duration::from_secs(40);

fn wide(connection: Connection, side: Side, lines: &str) -> Connection {
    let network = |side: Side| format!("10.{}.0.0/16", side.number());
    connection.child_between(
        "wide",
        &network(side),
        &network(side.other()),
        &format!("start_action = trap\n{lines}"),
    )
}

/// Packets that left by the outbound SAs, by CPU; `None` is the SA for all.
fn outbound(site: &Site, side: Side) -> BTreeMap<Option<u64>, u64> {
    let mut carried = BTreeMap::new();
    for sa in site.data_plane(side).iter().filter(|sa| sa["direction"] == "out") {
        *carried.entry(sa["cpu"].as_u64()).or_default() += sa["packets"].as_u64().unwrap_or(0);
    }
    carried
}

/// Waits until each worker's packets leave by its own SA and none by the SA for all; returns the
/// SPIs of the outbound SAs.
fn settled(site: &Site) -> BTreeSet<u64> {
    let end = Instant::now() + PATIENCE;
    let cpus = BTreeSet::from([Some(0), Some(1)]);
    loop {
        let before = outbound(site, Side::West);
        thread::sleep(Duration::from_millis(500));
        let after = outbound(site, Side::West);
        let moved: BTreeSet<Option<u64>> = after
            .iter()
            .filter(|(cpu, packets)| before.get(cpu).is_some_and(|before| *packets > before))
            .map(|(cpu, _)| *cpu)
            .collect();
        if moved == cpus {
            let sas = site.data_plane(Side::West);
            let out = sas.iter().filter(|sa| sa["direction"] == "out");
            return out.filter_map(|sa| sa["spi"].as_u64()).collect();
        }
        assert!(Instant::now() < end, "packets leave by the SAs of {moved:?}: {after:?}");
    }
}

/// Per-CPU SAs come up under traffic, are rekeyed and deleted; settings of the connection and of the
/// child choose how.
fn per_cpu(site: &mut Site, ike: &str, lines: &str) {
    site.load(|connection| {
        let side = connection.side();
        wide(connection.ike(ike), side, lines)
    });
    // The first packet of all asks for the SA for all.
    FLOWS.iter().for_each(|n| site.pair.flows(*n, false));
    let traffic = Numbered::start(&site.pair, &FLOWS, 20);
    let first = settled(site);
    assert!(site.west.log().contains("cpu {"), "an ACQUIRE had a CPU");
    // One flow is one worker's.
    site.pair.follows(&FLOWS[..1]);
    // Rekeyed, each of them, none of them loses its CPU.
    site.west.run(&["--rekey", "--child", "wide"]);
    let renewed = |gateway: &Gateway| {
        let sas = gateway.show("sa");
        let sas = sas.as_array().expect("a list of SAs");
        !sas.iter().any(|sa| sa["spi"].as_u64().is_some_and(|spi| first.contains(&spi)))
    };
    site.gateway(Side::West).wait("the end of the old SAs", renewed);
    settled(site);
    for direction in traffic.finish() {
        assert!(direction.lost.is_empty() && direction.twice.is_empty(), "{direction:?}");
    }
    // The daemon knows them by their CPU.
    let known: BTreeSet<String> =
        site.west.children().iter().map(|child| child.text("cpu").to_owned()).collect();
    assert_eq!(known, BTreeSet::from(["", "0", "1"].map(str::to_owned)));
    site.west.terminate(&["--ike", "site"]);
    site.wait_no_sas();
}

pub fn per_cpu_sas(site: &mut Site) {
    per_cpu(site, "", "per_cpu_sas = yes");
}

pub fn per_cpu_sas_encapsulated(site: &mut Site) {
    // Each SA but the first gets a source port of its own, so that a peer's queues may differ.
    let wire = Wire::start(&site.pair.wan, "west", "udp");
    per_cpu(site, "encap = yes", "per_cpu_sas = encap");
    let text = wire.finish();
    let ports: BTreeSet<&str> = text
        .lines()
        .filter(|line| line.contains("ESP(spi="))
        .filter_map(|line| line.split(" > ").next()?.rsplit('.').next())
        .collect();
    assert!(ports.len() >= 3, "{ports:?}");
}
