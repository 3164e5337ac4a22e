//! strongSwan inside the peer, which drives the peer's own kernel, and strongSwan beside the
//! gateway, which drives Peregrine: they negotiate, and what they negotiated carries traffic.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::bench::{Bench, OUTER, PORT, hosts, networks};
use crate::counters::{errors, states};
use crate::daemon::charon::Charon;
use crate::daemon::root::Root;
use crate::{Outcome, Recorder, transport};

/// How long an SA that was rekeyed may stay: strongSwan keeps it for 5 s.
const DELETE_PATIENCE: Duration = Duration::from_secs(20);

/// The daemon's configuration in the peer: Debian's own, and a log.
const SETTINGS: &str = "charon {
  load_modular = yes
  plugins {
    include strongswan.d/charon/*.conf
  }
  filelog {
    stderr {
      default = 1
      knl = 2
    }
  }
}
include strongswan.d/*.conf";

/// Which end a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Peregrine's.
    Gateway,
    /// The peer's.
    Peer,
}

/// A child of a configuration.
#[derive(Clone, Copy, Debug)]
pub struct Tunnel {
    /// The child's name.
    pub name: &'static str,
    /// Of its networks.
    pub number: usize,
    /// Of what is inside; 0 is IPv4.
    pub family: usize,
    proposal: &'static str,
}

/// The children of the connection over IPv4, and of the one over IPv6.
pub const TUNNELS: [[Tunnel; 2]; 2] = [
    [
        Tunnel { name: "four4", number: 17, family: 0, proposal: "aes256gcm16-esn" },
        Tunnel { name: "six4", number: 18, family: 1, proposal: "aes128gcm16-noesn" },
    ],
    [
        Tunnel { name: "four6", number: 19, family: 0, proposal: "aes128gcm16-esn" },
        Tunnel { name: "six6", number: 20, family: 1, proposal: "aes256gcm16-noesn" },
    ],
];

/// Runs them all. The gateway's daemon is strongSwan 5.9.8 for a peer with that one, else 6.1.
pub fn run(bench: &mut Bench, recorder: &mut Recorder<'_>) {
    let name = if bench.image.strongswan.starts_with("5.") {
        "strongswan-5.9.8"
    } else {
        "strongswan-6.1"
    };
    let Some(root) = Root::find(name) else {
        recorder.without("strongSwan", name);
        return;
    };
    let title = format!("strongSwan {} here", version(&root.version));
    recorder.peer = format!("{}, strongSwan {}", recorder.peer, version(&bench.image.strongswan));
    let mut charon = match start(bench, &root, &configurations("")) {
        Ok(charon) => charon,
        Err(error) => return recorder.scenario(&title, || Err(error)),
    };
    recorder.scenario(&format!("{title}: the peer initiates, IPv4 outside"), || {
        for tunnel in TUNNELS[0] {
            bench.guest.run(&format!("swanctl --initiate --child {} 2>&1", tunnel.name))?;
        }
        flows(bench, 0)
    });
    recorder.scenario(&format!("{title}: the gateway initiates, IPv6 outside"), || {
        for tunnel in TUNNELS[1] {
            charon.initiate(tunnel.name);
        }
        flows(bench, 1)
    });
    recorder.scenario(&format!("{title}: the peer rekeys under traffic"), || {
        rekeyed(bench, Sender::Host, &inside(&TUNNELS[0][0]), |bench| {
            bench.guest.run("swanctl --rekey --child four4 2>&1").map(|_| ())
        })
    });
    recorder.scenario(&format!("{title}: the gateway rekeys under traffic"), || {
        rekeyed(bench, Sender::Host, &inside(&TUNNELS[1][1]), |_| {
            charon.run(&["--rekey", "--child", "six6"]);
            Ok(())
        })
    });
    transport::negotiated(bench, &charon, &title, recorder);
    recorder.scenario(&format!("{title}: tunnels beside transport mode"), || {
        flows(bench, 0)?;
        flows(bench, 1)
    });
    recorder.scenario(&format!("{title}: the peer deletes, no SA is left"), || {
        bench.guest.run("swanctl --terminate --ike over4 2>&1")?;
        bench.guest.run("swanctl --terminate --ike over6 2>&1")?;
        bench.site.without_sas().map(|()| 0)
    });
    recorder.scenario(&format!("{title}: in UDP, the peer initiates"), || {
        let [ours, theirs] = configurations("encap = yes");
        charon.load(&ours);
        bench.guest.write("/etc/swanctl/swanctl.conf", &theirs)?;
        bench.guest.run("swanctl --load-all --noprompt 2>&1")?;
        let mut packets = 0;
        for (outer, tunnels) in TUNNELS.iter().enumerate() {
            for tunnel in tunnels {
                bench.guest.run(&format!("swanctl --initiate --child {} 2>&1", tunnel.name))?;
            }
            packets = flows(bench, outer)?;
        }
        let states = bench.site.states()?;
        let in_udp = states.matches("encap type espinudp sport 4500 dport 4500").count();
        if in_udp == 8 { Ok(packets) } else { Err(format!("8 SAs in UDP expected:\n{states}")) }
    });
    transport::in_udp(bench, &charon, &title, recorder);
    if recorder.failed() {
        let log = bench.guest.run("tail -60 /tmp/charon.log").unwrap_or_else(|error| error);
        println!("the gateway's daemon:\n{}\nthe peer's:\n{log}", charon.log());
    }
    charon.stop();
}

/// What both ends read, the gateway's first.
pub fn configurations(settings: &str) -> [String; 2] {
    [End::Gateway, End::Peer]
        .map(|end| configuration(end, settings, &[0, 1].map(|outer| children(end, outer))))
}

/// `6.1.0-2` without Debian's part.
pub fn version(package: &str) -> &str {
    package.split('-').next().unwrap_or(package)
}

/// Starts both daemons with their configurations: the gateway's, the peer's.
pub fn start(
    bench: &mut Bench,
    root: &Root,
    [ours, theirs]: &[String; 2],
) -> Result<Charon, String> {
    bench.flush()?;
    let charon = Charon::start(root, &bench.site.namespace, Some(&bench.site.gateway));
    charon.load(ours);
    let guest = &mut bench.guest;
    guest.write("/etc/strongswan.conf", SETTINGS)?;
    guest.write("/etc/swanctl/swanctl.conf", theirs)?;
    guest.run("charon-systemd >/tmp/charon.log 2>&1 &")?;
    let loaded = guest.wait("test -S /var/run/charon.vici && swanctl --load-all --noprompt 2>&1");
    loaded.map_err(|error| {
        let log = guest.run("cat /tmp/charon.log").unwrap_or_default();
        format!("{error}\n{log}")
    })?;
    Ok(charon)
}

/// swanctl.conf of one end: a connection over IPv4 with the first of these children, and one over
/// IPv6 with the second, both with these settings.
pub fn configuration(end: End, settings: &str, children: &[String]) -> String {
    let connections: String = children
        .iter()
        .enumerate()
        .map(|(outer, children)| connection(end, settings, outer, children))
        .collect();
    format!(
        "connections {{\n{connections}}}\n\
         secrets {{\nike-one {{\nsecret = \"not the one of any other test\"\n}}\n}}\n"
    )
}

fn connection(end: End, settings: &str, outer: usize, children: &str) -> String {
    let [gateway, peer] = OUTER[outer];
    let ((here, there), (local, remote)) = match end {
        End::Gateway => ((gateway, peer), ("gateway", "peer")),
        End::Peer => ((peer, gateway), ("peer", "gateway")),
    };
    format!(
        "over{} {{\nversion = 2\nlocal_addrs = {here}\nremote_addrs = {there}\n\
         proposals = aes256gcm16-prfsha256-x25519\n{settings}\n\
         local {{\nauth = psk\nid = {local}\n}}\nremote {{\nauth = psk\nid = {remote}\n}}\n\
         children {{\n{children}}}\n}}\n",
        [4, 6][outer]
    )
}

/// The children of a connection.
fn children(end: End, outer: usize) -> String {
    let tunnels: String = TUNNELS[outer].iter().map(|tunnel| child(end, tunnel)).collect();
    tunnels + &transport::child(outer)
}

fn child(end: End, tunnel: &Tunnel) -> String {
    let behind = |side: &str| networks(side, tunnel.number)[tunnel.family].clone();
    let (here, there) = match end {
        End::Gateway => (behind("16"), behind("48")),
        End::Peer => (behind("48"), behind("16")),
    };
    format!(
        "{} {{\nlocal_ts = {here}\nremote_ts = {there}\nesp_proposals = {}\n}}\n",
        tunnel.name, tunnel.proposal
    )
}

/// Traffic through both children of a connection; both sides count the same on every SA.
fn flows(bench: &mut Bench, outer: usize) -> Outcome {
    for tunnel in &TUNNELS[outer] {
        let [host, peer] =
            ["16", "48"].map(|side| hosts(side, tunnel.number)[tunnel.family].clone());
        bench.traffic(&host, &peer)?;
    }
    bench.agree(|_| true)
}

/// Who sends the datagrams during a rekeying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The host behind the gateway.
    Host,
    /// The gateway itself.
    Gateway,
}

/// The peer's address inside a tunnel.
fn inside(tunnel: &Tunnel) -> String {
    hosts("48", tunnel.number)[tunnel.family].clone()
}

/// Rekeys while datagrams go to the peer and back, each sent when the one before came back: from
/// before it is asked for until the old SAs are gone, none is lost but what the peer's kernel counts
/// as lost by itself. Then there are as many SAs as before, two of them new.
pub fn rekeyed(
    bench: &mut Bench,
    sender: Sender,
    to: &str,
    rekey: impl FnOnce(&mut Bench) -> Result<(), String>,
) -> Outcome {
    let before = spis(bench)?;
    let dropped_before = dropped_by_the_peer(bench)?;
    let namespace = match sender {
        Sender::Host => &bench.site.red,
        Sender::Gateway => &bench.site.namespace,
    };
    let mut command = namespace.command_bound(&bench.image.stream());
    command.args(["while", to, &PORT.to_string(), "1000"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut stream = command.spawn().map_err(|error| error.to_string())?;
    let changed = rekey(bench).and_then(|()| replaced(bench, &before));
    // The end of its input is what it waits for.
    drop(stream.stdin.take());
    let out = stream.wait_with_output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&out.stdout);
    let lost = said.strip_prefix("lost ").and_then(|count| count.trim().parse::<u64>().ok());
    let dropped = dropped_by_the_peer(bench)? - dropped_before;
    if lost.is_none_or(|lost| lost > dropped) {
        let error = format!("{said}the peer dropped {dropped}; the rekeying: {changed:?}");
        return Err(bench.explain(error));
    }
    changed?;
    bench.agree(|_| true)
}

/// How many packets the peer's kernel has dropped because what it had just chosen for them was gone: Linux
/// looks for a policy, for the SA that this names, and seals with that, each in a step of its own. What it
/// does not find it asks the daemon for, which has replaced it.
fn dropped_by_the_peer(bench: &mut Bench) -> Result<u64, String> {
    let found = errors(&bench.guest.run("cat /proc/net/xfrm_stat")?);
    let count = |name| found.get(name).copied().unwrap_or_default();
    Ok(count("XfrmOutStateInvalid") + count("XfrmOutNoStates"))
}

fn spis(bench: &Bench) -> Result<BTreeSet<u32>, String> {
    Ok(states(&bench.site.states()?).into_keys().collect())
}

/// Waits until two SAs have taken the place of two.
fn replaced(bench: &Bench, before: &BTreeSet<u32>) -> Result<(), String> {
    let end = Instant::now() + DELETE_PATIENCE;
    loop {
        let after = spis(bench)?;
        if after.len() == before.len() && after.difference(before).count() == 2 {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("the SAs were {before:x?} and are {after:x?}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
