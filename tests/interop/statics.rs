//! Scenarios with SAs that are typed in on both sides (`ip xfrm`), in tunnel mode.

use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::counters::errors;
use crate::frames;
use crate::pairs::{Pair, Side};
use crate::{Outcome, Recorder};

/// How long a packet may take to be counted.
const SETTLE: Duration = Duration::from_secs(10);

/// Runs them all.
pub fn run(bench: &mut Bench, recorder: &mut Recorder<'_>) {
    let pairs = Pair::all();
    if let Err(error) = install(bench, &pairs) {
        recorder.scenario("SAs installed", || Err(error));
        return;
    }
    for pair in &pairs {
        recorder.scenario(&pair.name(), || {
            let (host, peer) = pair.ends();
            bench.traffic(&host, &peer)?;
            let both = [pair.spi_to_peer(), pair.spi_to_gateway()];
            bench.agree(|spi| both.contains(&spi))
        });
    }
    recorder.scenario("nothing in clear, no errors counted", || {
        nothing_in_clear(bench)?;
        clean(bench, &[])
    });
    recorder.scenario("replayed packets refused by both", || replay(bench, &pairs[..2]));
}

fn install(bench: &mut Bench, pairs: &[Pair]) -> Result<(), String> {
    for pair in pairs {
        bench.site.gateway.xfrm(&pair.lines(Side::Gateway));
        bench.guest.ip(&pair.lines(Side::Peer))?;
    }
    Ok(())
}

/// The peer's kernel has counted no error but those expected.
fn clean(bench: &mut Bench, expected: &[(&str, u64)]) -> Outcome {
    let found = errors(&bench.guest.run("cat /proc/net/xfrm_stat")?);
    let expected = expected.iter().map(|(name, count)| (name.to_string(), *count)).collect();
    if found == expected {
        Ok(0)
    } else {
        Err(format!("the peer counts {found:?}; expected {expected:?}"))
    }
}

/// No frame on the wire shows an inner address; returns the frames of ESP among all.
fn nothing_in_clear(bench: &Bench) -> Outcome {
    let frames = frames::read(bench.guest.packets())?;
    match frames.iter().find(|frame| frames::is_inner(frame)) {
        Some(frame) => Err(format!("in clear on the wire: {frame:02x?}")),
        None => Ok(frames.iter().filter(|frame| frames::spi(frame).is_some()).count() as u64),
    }
}

/// The first and the last packet of SAs are sent again, to both sides. What is within the replay
/// window has been seen; what is left of it is too old, or with ESN belongs to a future that the
/// check value contradicts (RFC 4303 appendix A2).
fn replay(bench: &mut Bench, pairs: &[Pair]) -> Outcome {
    let seen = frames::read(bench.guest.packets())?;
    let mut sent = 0;
    for pair in pairs {
        for (spi, towards) in [(pair.spi_to_peer(), "tap0"), (pair.spi_to_gateway(), "wire0")] {
            let mut of_sa = seen.iter().filter(|frame| frames::spi(frame) == Some(spi));
            let (first, last) = (of_sa.next(), of_sa.next_back());
            for frame in [first, last] {
                let frame = frame.ok_or_else(|| format!("SPI {spi:#x} was not seen"))?;
                frames::repeat(&bench.wire, towards, frame)?;
                sent += 1;
            }
        }
    }
    let end = Instant::now() + SETTLE;
    loop {
        let verdicts = [("replayed", 2), ("replay_old", 1), ("integrity_failed", 1)];
        let ours = verdicts.iter().all(|(name, count)| bench.site.gateway.verdict(name) == *count);
        let theirs = clean(bench, &[("XfrmInStateSeqError", 3), ("XfrmInStateProtoError", 1)]);
        match (ours, theirs) {
            (true, Ok(_)) => return Ok(sent),
            (_, theirs) if Instant::now() > end => {
                return Err(format!("{theirs:?}; the gateway: {}", bench.site.ends()));
            }
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
