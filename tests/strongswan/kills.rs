//! The gateway is killed again and again under load while the daemons live on and are never told: the
//! tunnels go on, and the daemons go on with them. Where it stays away they are told what failed.
//!
//! `PEREGRINE_KILLS` sets how often (`make kills`).

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::daemon::charon::Charon;
use crate::daemon::listing::ChildSa;
use crate::daemon::numbered::{Numbered, Place};
use crate::daemon::pair::Side;
use crate::daemon::recording::{Frame, Recording, judge, repeat};
use crate::gateway::spread;
use crate::own;
use crate::site::Site;

/// Kills in one run of the tests, half of them at each end.
const KILLS: u64 = 6;
/// Tunnels.
pub const CHILDREN: u8 = 5;
/// Packets a second of each tunnel and direction, and of the gateways' own conversation.
const PPS: u32 = 40;
/// How long a change may take to show on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// A daemon's request waits for 5 s for the gateway to come back (docs/operating.md). When a busy
/// machine takes longer to start one, the daemon may say that it failed.
pub const WAITS: Duration = Duration::from_secs(4);
/// Packets that are sent again after each kill.
const REPEATED: usize = 200;

fn kills() -> u64 {
    let set = std::env::var("PEREGRINE_KILLS").ok();
    set.and_then(|value| value.parse().ok()).unwrap_or(KILLS)
}

pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64
}

pub fn outer(side: Side) -> Ipv4Addr {
    side.outer(false).parse().expect("an address")
}

fn inside(address: Ipv4Addr) -> bool {
    address.octets()[0] == 10
}

pub fn name(n: u8) -> String {
    format!("net{n}")
}

impl Site {
    fn charon(&self, side: Side) -> &Charon {
        match side {
            Side::West => &self.west,
            Side::East => &self.east,
        }
    }

    /// Both daemons have one installed child of this name, with the same SPIs, other than these.
    pub fn wait_renewed(&self, name: &str, old: &ChildSa) {
        let end = Instant::now() + PATIENCE;
        loop {
            let installed = |charon: &Charon| {
                let all = charon.children().into_iter();
                let mut all = all.filter(|one| one.name() == name && one.state() == "INSTALLED");
                all.next().filter(|_| all.next().is_none())
            };
            let (west, east) = (installed(&self.west), installed(&self.east));
            if let (Some(west), Some(east)) = (&west, &east)
                && (west.spi_in(), west.spi_out()) == (east.spi_out(), east.spi_in())
                && west.spi_in() != old.spi_in()
            {
                return;
            }
            assert!(
                Instant::now() < end,
                "{name} was not rekeyed: {west:?} {east:?}\n{}\n{}",
                self.west.log(),
                self.east.log()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The SPIs that a daemon lists and those of its data plane become the same; both count alike.
    fn wait_agreement(&self, side: Side) {
        let end = Instant::now() + PATIENCE;
        loop {
            let listed: BTreeSet<u64> = self
                .charon(side)
                .children()
                .iter()
                .flat_map(|child| [child.spi_in().into(), child.spi_out().into()])
                .collect();
            let all = self.data_plane(side);
            let present: BTreeSet<u64> = all.iter().filter_map(|sa| sa["spi"].as_u64()).collect();
            if listed == present && listed.len() == 2 * usize::from(CHILDREN) {
                return;
            }
            let difference: Vec<_> = listed.symmetric_difference(&present).collect();
            assert!(Instant::now() < end, "{} differs by {difference:x?}: {all:?}", side.id());
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The traffic of all tunnels and of the gateways themselves, and what is seen of it on both links.
pub struct Load {
    tunnels: Numbered,
    own: Numbered,
    links: [Recording; 2],
}

impl Load {
    pub fn start(site: &Site) -> Load {
        let links = ["west", "east"].map(|link| Recording::start(&site.pair.wan, link));
        let flows: Vec<u8> = (1..=CHILDREN).collect();
        let place = |side: Side| Place {
            namespace: &site.pair.end(side).namespace,
            addresses: vec![own::inner(side, false).parse().expect("an address")],
        };
        let own = Numbered::between([place(Side::West), place(Side::East)], PPS);
        Load { tunnels: Numbered::start(&site.pair, &flows, PPS), own, links }
    }

    fn arrived(&self) -> [u64; 4] {
        let ([a, b], [c, d]) = (self.tunnels.arrived(), self.own.arrived());
        [a, b, c, d]
    }

    /// Waits until packets of all four kinds have come that were sent after this call, as what was
    /// under way before is a matter of milliseconds.
    pub fn flows(&self, site: &Site) {
        let before = self.arrived();
        let grown = || self.arrived().iter().zip(before).all(|(now, then)| *now > then + 2);
        let end = Instant::now() + PATIENCE;
        while !grown() {
            let (now, [west, east]) = (self.arrived(), ends(site));
            assert!(Instant::now() < end, "{before:?}, {now:?}\nwest: {west}\neast: {east}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn frames(&self, side: Side) -> Vec<Frame> {
        self.links[usize::from(side == Side::East)].frames()
    }
}

fn ends(site: &Site) -> [String; 2] {
    [Side::West, Side::East].map(|side| crate::daemon::pair::account(site.gateway(side)))
}

/// Sends again what came for an end until now; how many of it were refused. What came while nobody
/// served is new to the gateway. [`judge_load`] sees that nothing was accepted twice.
pub fn replay(site: &Site, load: &Load, side: Side) -> u64 {
    let frames = load.frames(side);
    let is_for = |frame: &&Frame| {
        frame.esp().is_some() && frame.ends().is_some_and(|(_, to)| to == outer(side))
    };
    let came: Vec<Frame> = frames.iter().rev().filter(is_for).take(REPEATED).cloned().collect();
    assert!(!came.is_empty());
    let gateway = site.gateway(side);
    // With ESN, what is left of the window can only be meant for the next epoch.
    let refused = || {
        ["replayed", "replay_old", "integrity_failed", "no_state"]
            .map(|name| gateway.verdict(name))
            .iter()
            .sum::<u64>()
    };
    let before = refused();
    repeat(&site.pair.wan, side.id(), &came);
    gateway.wait("the refusal of replays", |_| refused() > before);
    refused() - before
}

/// Kills one end's gateway and starts another; returns when that was, and how long it took.
fn kill(site: &mut Site, side: Side) -> (u64, Duration) {
    let end = match side {
        Side::West => &mut site.pair.west,
        Side::East => &mut site.pair.east,
    };
    end.gateway.kill();
    let (exec_ns, begun) = (now_ns(), Instant::now());
    end.gateway.restart(&end.namespace);
    let took = begun.elapsed();
    let status = end.gateway.show("status");
    let restored = &status["restored"];
    assert!(restored["sas"].as_u64() >= Some(2 * u64::from(CHILDREN)), "{status}");
    assert_eq!((&restored["lost"], &restored["problem"]), (&json!(0), &Value::Null), "{status}");
    (exec_ns, took)
}

/// From the start of the new process to the first packet that it sealed, in milliseconds.
fn outage_ms(load: &Load, side: Side, exec_ns: u64) -> f64 {
    let sealed = |frame: &&Frame| {
        frame.esp().is_some()
            && frame.ends().is_some_and(|(from, _)| from == outer(side))
            && frame.at_ns > exec_ns
    };
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(first) = load.frames(side).iter().find(sealed) {
            return (first.at_ns - exec_ns) as f64 / 1e6;
        }
        assert!(Instant::now() < end, "nothing was sealed after the kill");
        thread::sleep(Duration::from_millis(10));
    }
}

/// What is looked at again when all is over.
pub struct Before {
    daemons: [u32; 2],
    /// What they say when they start, of questions that any kernel may answer with no.
    failures: [usize; 2],
}

/// Tunnels, up and under load; the daemons know `children` and hold the first [`CHILDREN`] of them.
pub fn prepare(site: &mut Site, children: u8) -> (Load, Before) {
    own::settle(site);
    site.load(|connection| {
        (1..=children).fold(connection, |all, n| all.child(&name(n), n, false, ""))
    });
    for n in 1..=CHILDREN {
        site.west.initiate(&name(n));
        site.pair.flows(n, false);
    }
    site.pair.reaches(&site.pair.west.namespace, &own::inner(Side::East, false));
    let daemons = [site.west.pid(), site.east.pid()];
    let failures = [&site.west, &site.east].map(|charon| failures(charon).len());
    let load = Load::start(site);
    load.flows(site);
    (load, Before { daemons, failures })
}

pub fn gateway_is_killed(site: &mut Site) {
    let (load, before) = prepare(site, CHILDREN);
    let (kills, mut slow, mut outages_ms, mut refused) = (kills(), false, vec![], 0);
    for round in 0..kills {
        let side = if round % 2 == 0 { Side::West } else { Side::East };
        // Every other kill comes while a rekeying is under way, which either end began.
        let n = name(1 + (round % u64::from(CHILDREN)) as u8);
        let asking = if round % 3 == 0 { side } else { side.other() };
        let old = site.west.child(&n);
        if round % 4 < 2 {
            site.charon(asking).run(&["--rekey", "--child", &n]);
            thread::sleep(Duration::from_millis(round * 7 % 40));
        }
        let (exec_ns, took) = kill(site, side);
        slow |= took > WAITS;
        load.flows(site);
        outages_ms.push(outage_ms(&load, side, exec_ns));
        if round % 4 >= 2 {
            site.charon(asking).run(&["--rekey", "--child", &n]);
        }
        site.wait_renewed(&n, &old);
        refused += replay(site, &load, side);
    }
    load.flows(site);
    judge_load(site, load, &format!("{kills} kills"));
    println!("exec to first sealed packet, ms: {}", spread(outages_ms));
    println!("replays refused: {refused}");
    judge_daemons(site, &before, slow);
}

/// What must be true of all packets that were seen.
pub fn judge_load(site: &Site, load: Load, over: &str) {
    let Load { tunnels, own, links } = load;
    for (traffic, what) in [(tunnels, "tunnels"), (own, "own")] {
        for direction in traffic.finish() {
            let (sent, arrived) = (direction.sent, direction.arrived);
            println!("{what}: {sent} sent, {arrived} arrived over {over}");
            assert!(direction.twice.is_empty(), "accepted twice: {:?}", direction.twice);
        }
    }
    for (link, side) in links.into_iter().zip([Side::West, Side::East]) {
        let sealed = judge(&link.finish(), outer(side), inside);
        println!("{}: {sealed} packets sealed, each (key, IV) once", side.id());
        assert!(sealed > 0);
        assert_eq!(site.gateway(side).verdict("host_forwarded"), 0, "nothing in clear");
    }
}

/// What a daemon says that its kernel refused, or did not answer.
fn failures(charon: &Charon) -> Vec<String> {
    let log = charon.log();
    let failed = log
        .lines()
        .filter(|line| line.contains("netlink error") || line.contains("unable to"))
        // The event socket is told once for each restart that it may have missed something.
        .filter(|line| !line.contains("unable to receive from"));
    failed.map(str::to_owned).collect()
}

/// The daemons live on, still know what there is, count what is carried, and can delete it.
pub fn judge_daemons(site: &mut Site, before: &Before, slow: bool) {
    assert_eq!([site.west.pid(), site.east.pid()], before.daemons, "the daemons live on");
    for side in [Side::West, Side::East] {
        site.wait_agreement(side);
        let failed = failures(site.charon(side));
        let as_before = failed.len() == before.failures[side as usize];
        assert!(slow || as_before, "{}: {failed:#?}", side.id());
    }
    let before = site.west.child("net1");
    assert_eq!(site.pair.pings(Side::West, 1, false, 20), 20);
    assert_eq!(site.pair.own_pings(Side::West, &own::inner(Side::East, false), 20), 20);
    own::grew(&before, &site.west.child("net1"), 40, 40 * 84);
    for n in 1..=CHILDREN {
        let (west, east) = (site.west.child(&name(n)), site.east.child(&name(n)));
        let number = |child: &ChildSa, what: &str| child.number(what).expect("a count");
        for (from, to) in [(&west, &east), (&east, &west)] {
            let (sent, came) = (number(from, "packets-out"), number(to, "packets-in"));
            assert!(sent > 0 && came > 0 && came <= sent, "{}: {sent}, {came}", name(n));
        }
    }
    site.west.terminate(&["--child", "net2"]);
    site.wait_sas(Side::East, 2 * usize::from(CHILDREN) - 2);
    site.east.terminate(&["--ike", "site"]);
    own::gone(site);
}

pub fn limits_pass_without_a_gateway(site: &mut Site) {
    // Strictly more than the gateway is away, and much less than the rest of the test may take.
    const REKEY: Duration = Duration::from_secs(6);
    site.load(|connection| {
        let limits = match connection.side() {
            Side::West => {
                format!("rekey_time = {}s\nrand_time = 0\nlife_time = 3600s", REKEY.as_secs())
            }
            Side::East => "rekey_time = 0\nlife_time = 0".to_owned(),
        };
        connection.child("net", 1, false, &limits)
    });
    site.west.initiate("net");
    site.pair.flows(1, false);
    let old = site.west.child("net");
    site.pair.west.gateway.kill();
    // Nobody can say EXPIRE when it is due.
    thread::sleep(REKEY + Duration::from_secs(1));
    assert_eq!(site.west.said("creating rekey job for CHILD_SA ESP"), 0);
    let end = &mut site.pair.west;
    end.gateway.restart(&end.namespace);
    site.wait_renewed("net", &old);
    assert!(site.west.said("creating rekey job for CHILD_SA ESP") > 0);
    assert_eq!(site.pair.pings(Side::West, 1, false, 10), 10);
}

pub fn gateway_stays_away_with_a_request(site: &mut Site) {
    // Longer than a request waits.
    const AWAY: Duration = Duration::from_secs(8);
    site.load(|connection| (1..=2).fold(connection, |all, n| all.child(&name(n), n, false, "")));
    site.west.initiate("net1");
    site.pair.flows(1, false);
    // A gateway that has a request and will not answer it.
    site.pair.west.gateway.pause();
    let mut asking = site.west.cell().command("swanctl");
    asking.args(["--initiate", "--child", "net2", "--timeout", "30"]);
    let mut asking = asking.stdout(Stdio::null()).spawn().expect("swanctl runs");
    // It waits for as long as the gateway lives.
    thread::sleep(Duration::from_secs(3));
    site.pair.west.gateway.kill();
    thread::sleep(AWAY);
    let end = &mut site.pair.west;
    end.gateway.restart(&end.namespace);
    assert!(!asking.wait().expect("it ends").success(), "the request fails");
    // The daemon has been told, and negotiates on; it gave up the IKE SA with all it had.
    site.west.initiate("net2");
    site.pair.flows(2, false);
}
