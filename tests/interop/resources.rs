//! SAs of single CPUs (RFC 9611) between a kernel that has them and Peregrine: strongSwan on both
//! sides negotiates one for all and one for each CPU that has traffic, and each side takes the
//! other's. The peer has two processors, the gateway two workers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::bench::{Bench, NETS, PORT, hosts};
use crate::charons::{End, configuration, start, version};
use crate::counters::errors;
use crate::daemon::root::Root;
use crate::{Outcome, Recorder};

/// How long all SAs may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);

/// A child between all the networks, that traffic brings up.
const WIDE: &str = "wide {\nlocal_ts = LOCAL\nremote_ts = REMOTE\nesp_proposals = aes256gcm16-esn\n\
                    start_action = trap\nper_cpu_sas = PER_CPU\n}\n";

/// Runs the scenarios; the bench has two processors on both sides.
pub fn run(bench: &mut Bench, recorder: &mut Recorder<'_>) {
    let Some(root) = Root::find("strongswan-6.1") else {
        recorder.without("an SA for each CPU", "strongSwan 6.1");
        return;
    };
    recorder.peer = format!("{}, strongSwan {}", recorder.peer, version(&bench.image.strongswan));
    let mut charon = match start(bench, &root, &configurations("yes")) {
        Ok(charon) => charon,
        Err(error) => return recorder.scenario("an SA for each CPU", || Err(error)),
    };
    recorder.scenario("an SA for each CPU, on both sides (RFC 9611)", || {
        each_cpu(bench).map_err(|error| bench.explain(error))
    });
    recorder.scenario("SAs for each CPU are rekeyed and deleted", || {
        charon.run(&["--rekey", "--child", "wide"]);
        let packets = each_cpu(bench).map_err(|error| bench.explain(error))?;
        no_errors(bench)?;
        deleted(bench)?;
        Ok(packets)
    });
    recorder.scenario("an SA for each CPU, in UDP from a port of its own", || {
        let [ours, theirs] = configurations("encap");
        charon.load(&ours);
        bench.guest.write("/etc/swanctl/swanctl.conf", &theirs)?;
        bench.guest.run("swanctl --load-all --noprompt 2>&1")?;
        let packets = each_cpu(bench).map_err(|error| bench.explain(error))?;
        let ports = ports(&bench.site.states()?);
        if ports.len() < 2 {
            return Err(format!("outbound SAs of the gateway have the source ports {ports:?}"));
        }
        no_errors(bench)?;
        deleted(bench)?;
        Ok(packets)
    });
    if recorder.failed() {
        let log = bench.guest.run("tail -60 /tmp/charon.log").unwrap_or_else(|error| error);
        println!("the gateway's daemon:\n{}\nthe peer's:\n{log}", charon.log());
    }
    charon.stop();
}

/// What both ends read, the gateway's first.
fn configurations(per_cpu: &str) -> [String; 2] {
    let networks = [("16.0.0.0/8", "48.0.0.0/8"), ("48.0.0.0/8", "16.0.0.0/8")];
    [End::Gateway, End::Peer].map(|end| {
        let (local, remote) = networks[usize::from(end == End::Peer)];
        let child = WIDE.replace("LOCAL", local).replace("REMOTE", remote);
        // The ports are chosen only where UDP is used for another reason.
        let settings = if per_cpu == "encap" { "encap = yes" } else { "" };
        configuration(end, settings, &[child.replace("PER_CPU", per_cpu)])
    })
}

/// The peer counts no error of what it received but packets that came by an SA before its daemon
/// had installed it.
fn no_errors(bench: &mut Bench) -> Result<(), String> {
    let mut found = errors(&bench.guest.run("cat /proc/net/xfrm_stat")?);
    found.retain(|name, _| name.starts_with("XfrmIn") && name != "XfrmInNoStates");
    if found.is_empty() { Ok(()) } else { Err(format!("the peer counts {found:?}")) }
}

/// The peer deletes everything; the gateway has no SA left.
fn deleted(bench: &mut Bench) -> Result<(), String> {
    bench.guest.run("swanctl --terminate --ike over4 2>&1")?;
    bench.site.without_sas()
}

/// The UDP ports from which the gateway sends.
fn ports(listing: &str) -> BTreeSet<String> {
    let own = listing.split("\nsrc ").filter(|state| state.contains(" dst 192.0.2.2"));
    own.filter_map(|state| state.split(" sport ").nth(1)?.split(' ').next().map(str::to_owned))
        .collect()
}

/// Brings up an SA for each CPU on both sides by pings, of which some may be lost: the side that
/// answers a negotiation may send by the new SA before the side that asked has it. Then sends from
/// each CPU of the peer, and from behind the gateway to every network: nothing is lost, each CPU of
/// both sides uses an SA of its own, and both sides count the same.
fn each_cpu(bench: &mut Bench) -> Outcome {
    let both = BTreeSet::from([0, 1]);
    let end = Instant::now() + PATIENCE;
    bench.guest.wait("ping -c 1 -W 1 16.1.0.1")?;
    let mut before = carried(bench)?;
    loop {
        for mask in [1, 2] {
            let _ = bench.guest.run(&format!("taskset {mask} ping -c 2 -i 1 -W 1 16.1.0.1"));
        }
        for number in 1..=NETS {
            let to = &hosts("48", number)[0];
            let _ = bench.site.red.run("ping", &["-c", "1", "-W", "1", to]);
        }
        let after = carried(bench)?;
        if grown(&before, &after).iter().all(|cpus| *cpus == both) {
            break;
        }
        if Instant::now() > end {
            let states = bench.guest.run("ip -s xfrm state")?;
            return Err(format!("packets by CPU, gateway and peer: {after:?}\n{states}"));
        }
        before = after;
    }
    let (differences, _) = bench.differences()?;
    let before = carried(bench)?;
    // The daemon's route makes 48.1.0.1 the source, to which the host answers from its 16.1.0.1.
    let host = &hosts("16", 1)[0];
    for mask in [1, 2] {
        bench.guest.run(&format!("taskset {mask} stream udp {host} {PORT} 200 1000"))?;
    }
    for number in 1..=NETS {
        let args = ["-c", "5", "-i", "0.01", "-W", "10", &hosts("48", number)[0]];
        bench.site.red.run("ping", &args).map_err(|error| error.to_string())?;
    }
    let after = carried(bench)?;
    if grown(&before, &after).iter().any(|cpus| *cpus != both) {
        return Err(format!("packets by CPU, gateway and peer: {before:?}, then {after:?}"));
    }
    bench.agree_since(&differences, |_| true)
}

/// Packets that left by SAs of single CPUs: the gateway's and the peer's.
type Carried = [BTreeMap<u64, u64>; 2];

fn carried(bench: &mut Bench) -> Result<Carried, String> {
    Ok([gateway_cpus(bench), peer_cpus(&bench.guest.run("ip -s xfrm state")?)])
}

/// The CPUs whose SAs carried more than before.
fn grown(before: &Carried, after: &Carried) -> [BTreeSet<u64>; 2] {
    [0, 1].map(|side| {
        let more = |cpu: &u64| after[side][cpu] > *before[side].get(cpu).unwrap_or(&0);
        after[side].keys().copied().filter(more).collect()
    })
}

/// Packets that left the gateway by SAs of single CPUs.
fn gateway_cpus(bench: &Bench) -> BTreeMap<u64, u64> {
    let shown = bench.site.gateway.show("sa");
    let mut carried = BTreeMap::new();
    for sa in shown.as_array().into_iter().flatten().filter(|sa| sa["direction"] == "out") {
        if let Some(cpu) = sa["cpu"].as_u64() {
            *carried.entry(cpu).or_default() += sa["packets"].as_u64().unwrap_or(0);
        }
    }
    carried
}

/// Packets that left the peer by SAs of single CPUs, from `ip -s xfrm state` (iproute2 6.13).
fn peer_cpus(listing: &str) -> BTreeMap<u64, u64> {
    let mut carried = BTreeMap::new();
    for state in listing.split("\nsrc ").filter(|state| state.contains(" dst 192.0.2.1")) {
        let words: Vec<&str> = state.split_whitespace().collect();
        let cpu = words.iter().skip_while(|word| **word != "pcpu-num").nth(1);
        let cpu = cpu.and_then(|word| word.parse::<u64>().ok());
        // Limits are written alike, with (INF) for a number.
        let packets =
            words.iter().find_map(|word| word.strip_suffix("(packets)")?.parse::<u64>().ok());
        if let (Some(cpu), Some(packets)) = (cpu, packets) {
            *carried.entry(cpu).or_default() += packets;
        }
    }
    carried
}
