//! Transport mode between the gateway's own addresses and the peer's: with SAs that are typed in, and
//! with those that strongSwan negotiates on both sides.

use crate::bench::{Bench, OUTER, serve};
use crate::charons::{Sender, rekeyed};
use crate::counters::errors;
use crate::daemon::charon::Charon;
use crate::frames;
use crate::pairs::Side;
use crate::{Outcome, Recorder};

/// The types of neighbour solicitation and advertisement (RFC 4861).
const DISCOVERY: [u8; 2] = [135, 136];

/// Runs the scenarios with SAs that are typed in; nothing is installed afterwards.
pub fn run(bench: &mut Bench, recorder: &mut Recorder<'_>) {
    let server = serve(&bench.image.stream(), &bench.site.namespace, bench.site.scratch.path());
    for (outer, ends) in OUTER.into_iter().enumerate() {
        for (key_bits, esn) in [(128, true), (256, false)] {
            let numbers = if esn { "ESN" } else { "32-bit numbers" };
            let family = [4, 6][outer];
            let name = format!("transport mode, IPv{family}, AES-GCM-{key_bits}, {numbers}");
            recorder.scenario(&name, || {
                server.as_ref().map_err(Clone::clone)?;
                prepare(bench)?;
                bench.site.gateway.xfrm(&lines(Side::Gateway, ends, key_bits, esn));
                bench.guest.ip(&lines(Side::Peer, ends, key_bits, esn))?;
                protected(bench, ends)
            });
        }
    }
    recorder.scenario("transport mode: both sides flushed", || bench.flush().map(|()| 0));
}

/// Removes what is installed. A Linux peer that protects everything between two addresses protects
/// the search for its neighbour, too, which cannot work on a link; so that is let past.
fn prepare(bench: &mut Bench) -> Result<(), String> {
    bench.flush()?;
    bypass_discovery(bench)
}

fn bypass_discovery(bench: &mut Bench) -> Result<(), String> {
    let [gateway, peer] = OUTER[1];
    let pass = |(direction, src, dst): (&str, &str, &str), kind: u8| {
        format!(
            "xfrm policy update src {src} dst {dst} proto 58 type {kind} dir {direction} \
             priority 1 action allow"
        )
    };
    let ways = [("out", peer, gateway), ("in", gateway, peer)];
    let lines: Vec<String> =
        DISCOVERY.iter().flat_map(|kind| ways.map(|way| pass(way, *kind))).collect();
    bench.guest.ip(&lines)
}

/// Traffic of all kinds between the two: both sides count it alike, the peer's kernel finds no
/// fault, and none of it is seen in clear.
fn protected(bench: &mut Bench, ends: [&str; 2]) -> Outcome {
    let before = errors(&bench.guest.run("cat /proc/net/xfrm_stat")?);
    let seen = frames::read(bench.guest.packets())?.len();
    bench.own_traffic(ends)?;
    let packets = bench.agree(|_| true)?;
    let frames = frames::read(bench.guest.packets())?;
    if let Some(frame) = frames.iter().skip(seen).find(|frame| frames::is_clear(frame)) {
        return Err(format!("in clear on the wire: {frame:02x?}"));
    }
    let after = errors(&bench.guest.run("cat /proc/net/xfrm_stat")?);
    if after == before { Ok(packets) } else { Err(format!("{before:?}, then {after:?}")) }
}

/// What one side feeds to `ip -batch`.
fn lines(side: Side, [gateway, peer]: [&str; 2], key_bits: usize, esn: bool) -> Vec<String> {
    let replay = if esn { "replay-window 128 flag esn" } else { "replay-window 32" };
    let state = |src: &str, dst: &str, spi: usize| {
        let key: String =
            (0..key_bits / 8 + 4).map(|at| format!("{:02x}", (at * 11 + spi) & 0xff)).collect();
        format!(
            "xfrm state add src {src} dst {dst} proto esp spi {spi:#x} reqid 99 mode transport \
             {replay} aead rfc4106(gcm(aes)) 0x{key} 128"
        )
    };
    let (own, other) = if side == Side::Gateway { (gateway, peer) } else { (peer, gateway) };
    let policy = |(direction, src, dst): (&str, &str, &str)| {
        format!(
            "xfrm policy add src {src} dst {dst} dir {direction} priority 9 \
             tmpl proto esp reqid 99 mode transport"
        )
    };
    let policies = [("out", own, other), ("in", other, own)].map(policy);
    [vec![state(gateway, peer, 0x3101), state(peer, gateway, 0x3202)], policies.to_vec()].concat()
}

/// The child of a connection that is in transport mode; the same at both ends.
pub fn child(outer: usize) -> String {
    let proposal = ["aes256gcm16-esn", "aes128gcm16-noesn"][outer];
    let name = name(outer);
    format!(
        "{name} {{\nlocal_ts = dynamic\nremote_ts = dynamic\nmode = transport\n\
         esp_proposals = {proposal}\n}}\n"
    )
}

fn name(outer: usize) -> &'static str {
    ["own4", "own6"][outer]
}

/// Runs the scenarios with children that two daemons, which have them in their configuration,
/// negotiate.
pub fn negotiated(bench: &mut Bench, charon: &Charon, title: &str, recorder: &mut Recorder<'_>) {
    let server = serve(&bench.image.stream(), &bench.site.namespace, bench.site.scratch.path());
    recorder.scenario(&format!("{title}: transport mode, the peer initiates, IPv4"), || {
        server.as_ref().map_err(Clone::clone)?;
        bench.guest.run(&format!("swanctl --initiate --child {} 2>&1", name(0)))?;
        in_transport_mode(charon, 0)?;
        protected(bench, OUTER[0])
    });
    recorder.scenario(&format!("{title}: transport mode, the gateway initiates, IPv6"), || {
        bypass_discovery(bench)?;
        charon.initiate(name(1));
        in_transport_mode(charon, 1)?;
        protected(bench, OUTER[1])
    });
    recorder.scenario(&format!("{title}: transport mode, the peer rekeys under traffic"), || {
        rekeyed(bench, Sender::Gateway, OUTER[0][1], |bench| {
            bench.guest.run(&format!("swanctl --rekey --child {} 2>&1", name(0))).map(|_| ())
        })
    });
    recorder.scenario(
        &format!("{title}: transport mode, the gateway rekeys under traffic"),
        || {
            rekeyed(bench, Sender::Gateway, OUTER[1][1], |_| {
                charon.run(&["--rekey", "--child", name(1)]);
                Ok(())
            })
        },
    );
}

/// The same children when the connections are in UDP.
pub fn in_udp(bench: &mut Bench, charon: &Charon, title: &str, recorder: &mut Recorder<'_>) {
    let server = serve(&bench.image.stream(), &bench.site.namespace, bench.site.scratch.path());
    recorder.scenario(&format!("{title}: transport mode in UDP, the peer initiates"), || {
        server.as_ref().map_err(Clone::clone)?;
        let mut packets = 0;
        for (outer, ends) in OUTER.into_iter().enumerate() {
            bench.guest.run(&format!("swanctl --initiate --child {} 2>&1", name(outer)))?;
            in_transport_mode(charon, outer)?;
            if charon.child(name(outer)).text("encap") != "yes" {
                return Err("it is not in UDP".to_string());
            }
            packets = protected(bench, ends)?;
        }
        Ok(packets)
    });
}

fn in_transport_mode(charon: &Charon, outer: usize) -> Result<(), String> {
    let child = charon.child(name(outer));
    if child.text("mode") == "TRANSPORT" { Ok(()) } else { Err(format!("{child:?}")) }
}
