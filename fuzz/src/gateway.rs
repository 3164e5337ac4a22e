//! Frames through a gateway, sealed and opened, against a gateway in which no packet follows another: what the property tests of
//! `dataplane` hold for random cases and steps, of which an input says here what they are. So which ways the data path takes says
//! what is tried next. The steps make the packets, so that no key is needed to reach what is behind an ICV.

#![allow(dead_code, reason = "the property tests' own files, of which this uses a part")]

#[path = "../../crates/dataplane/tests/following/case.rs"]
mod case;
#[path = "../../crates/dataplane/tests/following/clear.rs"]
mod clear;
#[path = "../../crates/dataplane/tests/following/families.rs"]
mod families;
#[path = "../../crates/dataplane/tests/fixture/mod.rs"]
mod fixture;
#[path = "../../crates/dataplane/tests/following/flows.rs"]
mod flows;
#[path = "../../crates/dataplane/tests/following/steps.rs"]
mod steps;
#[path = "../../crates/dataplane/tests/following/twin.rs"]
mod twin;

use case::{BLOCKED_PORT, CLEAR_PORT, Case, FORBIDDEN_PORT, LASTS, SIMPLE, TABLES, Tables};
use clear::THIRDS;
use families::Inside;
use fixture::{PLAIN, Site, Tunnel};
use steps::{Change, ESPS, ODDS, PROTOCOLS, Step};

/// Bytes that say what a gateway is like, and what one step is.
const CASE_LEN: usize = 6;
const STEP_LEN: usize = 6;

/// Steps of one input: enough for the hours of a lane.
const STEPS_MAX: usize = 200;

/// Takes the first bytes of `data` for what the gateway is like, and each few behind them for a step.
pub fn gateway(data: &[u8]) {
    let Some((first, rest)) = data.split_first_chunk::<CASE_LEN>() else { return };
    let (site, lends, case) = case_of(*first);
    let steps: Vec<Step> = rest.as_chunks().0.iter().take(STEPS_MAX).map(step_of).collect();
    if let Err(difference) = twin::run(site, case, lends, steps.clone()) {
        panic!("{difference}\n{case:?}\n{steps:?}");
    }
}

/// One of some, whichever a byte says.
fn one_of<T: Copy>(all: &[T], byte: u8) -> T {
    all[usize::from(byte) % all.len()]
}

/// Which site it is, whether it lends, and what it is like.
fn case_of([site, bits, tunnel, own, tables, third]: [u8; CASE_LEN]) -> (Site, bool, Case) {
    let is = |bit: u8| bits >> bit & 1 != 0;
    let tunnel = Tunnel {
        extended: is(0),
        if_id: if is(1) { 5 } else { 0 },
        udp: one_of(&[None, None, Some((4500, 4500)), Some((4500, 61_000))], tunnel),
        outer_v6: tunnel >= 0xb0,
        ..PLAIN
    };
    let case = Case {
        tunnel,
        inside: one_of(&[Inside::V4, Inside::V6, Inside::Both], site >> 4),
        forward: !is(2),
        bypasses: is(3),
        forbids: is(4),
        drops_portless: is(5),
        is_hub: is(6),
        tables: if tables < 0x80 { Tables::Main } else { one_of(&TABLES, tables) },
        ..SIMPLE
    };
    let own = (own >= 0x40).then(|| one_of(&LASTS, own));
    match site % 5 {
        0 => (Site::West, false, Case { own, ..case }),
        1 => (Site::East, false, Case { own, ..case }),
        2 => (Site::West, true, Case { own, ..case }),
        3 => (Site::East, true, Case { own, ..case }),
        _ => (Site::West, false, Case { clear: Some(one_of(&THIRDS, third)), ..case }),
    }
}

fn step_of(&[kind, host, a, b, c, d]: &[u8; STEP_LEN]) -> Step {
    let (v6, host) = (host & 0x80 != 0, host % 3);
    match kind % 16 {
        0..4 => {
            let ports = [5000, 5000, 5000, CLEAR_PORT, FORBIDDEN_PORT, BLOCKED_PORT];
            let port = if a < 0xc0 { one_of(&ports, a) } else { u16::from_be_bytes([a, b]) };
            Step::Plain { v6, host, port, len: usize::from(c) + usize::from(d & 0xf) }
        }
        4 => Step::Burst { v6, host, count: 2 + usize::from(a % 48) },
        5 => Step::Protocol {
            v6,
            host,
            protocol: one_of(&PROTOCOLS, kind >> 4),
            begin: [a, b, c, d],
        },
        6 => {
            let protocol = if c < 0x80 { wire::protocol::UDP } else { one_of(&PROTOCOLS, c) };
            Step::Part { host, bits: u16::from_be_bytes([a, b]), protocol }
        }
        7 | 8 => {
            let change = Change { at: usize::from(a), to: b, mends: c & 1 != 0 };
            Step::Changed { v6, host, change, is_inside: c & 2 != 0 }
        }
        9 => Step::Odd(v6, one_of(&ODDS, a)),
        10 | 11 => Step::Esp(v6, host, one_of(&ESPS, a)),
        12 => Step::Back(v6),
        14 => one_of(&[Step::Rekey, Step::Publish, Step::Block(true), Step::Block(false)], a),
        _ => Step::Turn,
    }
}
