//! strongSwan's own ESP in user space (its plugin kernel-libipsec) as a peer: it is another
//! implementation of ESP, always in UDP, without extended sequence numbers, on a TUN device.

use std::time::{Duration, Instant};

use lab::topology::{Namespace, Process};

use crate::bench::{Site, hosts, peer_lines, serve, traffic};
use crate::charons::{TUNNELS, configurations, version};
use crate::daemon::charon::Charon;
use crate::daemon::root::Root;
use crate::guest::Image;
use crate::{Outcome, Recorder};

/// How long the last packets may take to be counted.
const SETTLE: Duration = Duration::from_secs(10);

/// What makes the peer's daemon protect packets itself.
const SETTINGS: &str = "charon {\n plugins {\n kernel-libipsec {\n load = 100\n }\n }\n}\n";

/// The gateway with its daemon, and the peer.
struct Bench {
    ours: Charon,
    theirs: Charon,
    site: Site,
    peer: Namespace,
    image: Image,
    _server: Process,
}

/// Runs the scenarios with one strongSwan on both sides.
pub fn run(name: &'static str, image: &Image, recorder: &mut Recorder<'_>) {
    let Some(root) = Root::find(name) else {
        recorder.without("libipsec", name);
        return;
    };
    let number = version(&root.version).to_string();
    recorder.peer = format!("libipsec of strongSwan {number}");
    let mut bench = match Bench::new(&root, image) {
        Ok(bench) => bench,
        Err(error) => return recorder.scenario("start", || Err(error)),
    };
    let title = format!("strongSwan {number} here");
    recorder.scenario(&format!("{title}: the peer initiates, IPv4 outside"), || {
        TUNNELS[0].iter().for_each(|tunnel| bench.theirs.initiate(tunnel.name));
        bench.flows(0)
    });
    recorder.scenario(&format!("{title}: the gateway initiates, IPv6 outside"), || {
        TUNNELS[1].iter().for_each(|tunnel| bench.ours.initiate(tunnel.name));
        bench.flows(1)
    });
    recorder.scenario(&format!("{title}: rekeyed by either side"), || {
        bench.theirs.run(&["--rekey", "--child", TUNNELS[0][0].name]);
        bench.ours.run(&["--rekey", "--child", TUNNELS[0][1].name]);
        for charon in [&bench.ours, &bench.theirs] {
            charon.wait("the end of the old SAs", |sas| {
                sas.iter().all(|ike| ike.children.iter().all(|child| child.state() == "INSTALLED"))
            });
        }
        bench.flows(0)
    });
    recorder.scenario(&format!("{title}: the peer deletes, no SA is left"), || {
        for connection in ["over4", "over6"] {
            bench.theirs.terminate(&["--ike", connection]);
        }
        bench.site.without_sas().map(|()| 0)
    });
    if recorder.failed() {
        println!(
            "the gateway's daemon:\n{}\nthe peer's:\n{}",
            bench.ours.log(),
            bench.theirs.log()
        );
    }
}

impl Bench {
    fn new(root: &Root, image: &Image) -> Result<Bench, String> {
        let text = |error: lab::topology::TopologyError| error.to_string();
        let peer = Namespace::new("soft").map_err(text)?;
        let site = Site::new(&image.stream(), 1, (&peer, "eth0"))?;
        peer.ip_batch(&peer_lines()).map_err(text)?;
        let server = serve(&image.stream(), &peer, site.scratch.path())?;
        let ours = Charon::start(root, &site.namespace, Some(&site.gateway));
        let theirs = Charon::start_with(root, &peer, None, SETTINGS);
        // It has no extended sequence numbers.
        let [here, there] = configurations("").map(|text| text.replace("-esn", "-noesn"));
        ours.load(&here);
        theirs.load(&there);
        Ok(Bench { ours, theirs, site, peer, image: image.clone(), _server: server })
    }

    /// Traffic both ways through both children of a connection; both daemons tell the same counts.
    fn flows(&mut self, outer: usize) -> Outcome {
        for tunnel in &TUNNELS[outer] {
            let [host, peer] =
                ["16", "48"].map(|side| hosts(side, tunnel.number)[tunnel.family].clone());
            let explain = |error: String| format!("{error}\nends so far: {}", self.site.ends());
            traffic(&self.peer, &self.image.stream(), &host).map_err(explain)?;
            self.site.traffic(&peer).map_err(explain)?;
        }
        let mut packets = 0;
        for tunnel in &TUNNELS[outer] {
            packets += self.agree(tunnel.name)?;
        }
        Ok(packets)
    }

    fn agree(&self, child: &str) -> Outcome {
        let end = Instant::now() + SETTLE;
        loop {
            let (ours, theirs) = (self.ours.child(child), self.theirs.child(child));
            let count = |sa: &crate::daemon::listing::ChildSa, direction: &str| {
                ["bytes", "packets"].map(|what| sa.number(&format!("{what}-{direction}")))
            };
            let there = [count(&ours, "out"), count(&ours, "in")];
            let back = [count(&theirs, "in"), count(&theirs, "out")];
            let packets = there.iter().map(|[_, packets]| packets.unwrap_or(0)).sum();
            if there == back && packets > 0 {
                return Ok(packets);
            }
            if Instant::now() > end {
                return Err(format!("{child}: the gateway counts {there:?}, the peer {back:?}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
