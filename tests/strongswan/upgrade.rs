//! Another binary takes the gateway's place again and again under load while the daemons live on and
//! are never told: the tunnels go on, and the daemons go on with them.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::pair::Side;
use crate::gateway::{Gateway, PEREGRINE, spread};
use crate::kills::{
    CHILDREN, Load, PATIENCE, WAITS, judge_daemons, judge_load, name, now_ns, outer, prepare,
    replay,
};
use crate::site::Site;

/// Upgrades in one run of the tests, half of them at each end.
const UPGRADES: u8 = 6;
/// The tunnel that is negotiated during one upgrade and deleted during the next.
const ANOTHER: u8 = CHILDREN + 1;

/// The binary that takes over: a file of its own, which is replaced as packages replace theirs.
struct Binary(tempfile::TempDir);

impl Binary {
    fn new() -> Binary {
        let binary = Binary(tempfile::tempdir().expect("a temporary directory"));
        binary.renew();
        binary
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("peregrine")
    }

    /// Another file at the same path; the old one lives on without a name where it runs.
    fn renew(&self) {
        let new = self.0.path().join("new");
        std::fs::copy(PEREGRINE, &new).expect("a copy");
        std::fs::rename(new, self.path()).expect("in its place");
    }
}

/// Has a gateway replaced; returns for how many milliseconds it says that no packet was served, and how
/// long all of it took.
fn upgrade(gateway: &Gateway, more: &[&str]) -> (f64, Duration) {
    let (pid, begun) = (gateway.pid(), Instant::now());
    let out = gateway.upgrade(more);
    let took = begun.elapsed();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, erred) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{said}{erred}\nlog:\n{}", gateway.log());
    println!("{}", said.trim());
    let status = gateway.show("status");
    let restored = &status["restored"];
    assert_eq!(status["pid"], json!(pid), "the process stays: {status}");
    assert!(restored["sas"].as_u64() >= Some(2 * u64::from(CHILDREN)), "{status}");
    assert_eq!((&restored["lost"], &restored["problem"]), (&json!(0), &Value::Null), "{status}");
    (restored["outage_us"].as_f64().expect("a time") / 1000.0, took)
}

/// The longest time without a packet that an end sealed, in milliseconds, of those that ended after one
/// moment and began before another.
fn silence_ms(load: &Load, side: Side, (from_ns, to_ns): (u64, u64)) -> f64 {
    let end = Instant::now() + PATIENCE;
    let times = loop {
        let frames = load.frames(side);
        let own = frames.iter().filter(|frame| {
            frame.esp().is_some() && frame.ends().is_some_and(|(from, _)| from == outer(side))
        });
        // Two workers' packets may be written down in another order than they were stamped in.
        let mut times: Vec<u64> = own.map(|frame| frame.at_ns).collect();
        times.sort_unstable();
        // What was seen is written down a little later.
        if times.last().is_some_and(|last| *last > to_ns) {
            break times;
        }
        assert!(Instant::now() < end, "nothing was sealed after the upgrade");
        thread::sleep(Duration::from_millis(10));
    };
    let near = times.windows(2).filter(|pair| pair[1] > from_ns && pair[0] < to_ns);
    near.map(|pair| (pair[1] - pair[0]) as f64 / 1e6).fold(0.0, f64::max)
}

/// One upgrade. While it is under way a tunnel is negotiated or deleted. Returns both measures of the
/// outage, and whether a daemon may have lost patience.
fn round(site: &Site, load: &Load, binary: &Binary, round: u8) -> ([f64; 2], bool) {
    let side = if round.is_multiple_of(2) { Side::West } else { Side::East };
    let path = binary.path();
    // First another path, then another file at the path that it runs from.
    let more = match round {
        0 | 1 => vec!["--binary", path.to_str().expect("a plain path")],
        _ => vec![],
    };
    binary.renew();
    let another = name(ANOTHER);
    let from_ns = now_ns();
    let (outage_ms, took) = thread::scope(|scope| {
        let upgrading = scope.spawn(|| upgrade(site.gateway(side), &more));
        thread::sleep(Duration::from_millis(60 * u64::from(round)));
        // Both daemons ask, and both are asked, for what the gateway that is replaced must install.
        let asking = if round % 4 < 2 { &site.west } else { &site.east };
        match round.is_multiple_of(2) {
            true => asking.initiate(&another),
            false => asking.terminate(&["--child", &another]),
        }
        upgrading.join().expect("it was replaced")
    });
    load.flows(site);
    let silence_ms = silence_ms(load, side, (from_ns, now_ns()));
    if round.is_multiple_of(2) {
        site.pair.flows(ANOTHER, false);
    }
    ([outage_ms, silence_ms], took > WAITS)
}

pub fn gateway_is_upgraded(site: &mut Site) {
    let binary = Binary::new();
    let (load, before) = prepare(site, ANOTHER);
    let (mut slow, mut outages_ms, mut silences_ms, mut refused) = (false, vec![], vec![], 0);
    for at in 0..UPGRADES {
        let n = name(1 + at % CHILDREN);
        let old = site.west.child(&n);
        let asking = if at % 3 == 0 { &site.west } else { &site.east };
        // Every other upgrade comes while a rekeying is under way.
        let during = at % 4 < 2;
        if during {
            asking.run(&["--rekey", "--child", &n]);
        }
        let ([outage_ms, silence_ms], lost_patience) = round(site, &load, &binary, at);
        slow |= lost_patience;
        outages_ms.push(outage_ms);
        silences_ms.push(silence_ms);
        if !during {
            asking.run(&["--rekey", "--child", &n]);
        }
        site.wait_renewed(&n, &old);
        let side = if at.is_multiple_of(2) { Side::West } else { Side::East };
        refused += replay(site, &load, side);
    }
    load.flows(site);
    judge_load(site, load, &format!("{UPGRADES} upgrades"));
    println!("without service, ms, by the gateway: {}", spread(outages_ms));
    println!("from a sealed packet to the next:   {}", spread(silences_ms));
    println!("replays refused: {refused}");
    judge_daemons(site, &before, slow);
}
