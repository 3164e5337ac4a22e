//! Transport mode between the gateway's own addresses and scapy's: what a socket of the gateway's
//! host sends, and what reaches it. Each case has ports of its own, by which policies tell them apart.

use serde_json::{Value, json};

use super::{Bench, Case, judge};

/// Both families, all three key sizes, with and without extended sequence numbers, and in UDP.
fn cases() -> Vec<Case> {
    let same_family = |case: &Case| case.inner == case.outer;
    let cases = Case::all().into_iter().filter(same_family);
    cases.enumerate().map(|(at, case)| Case { number: at + 1, ..case }).collect()
}

fn xfrm(case: &Case) -> Vec<String> {
    let (here, there) = case.outer_addresses();
    let (key, id) = (case.key(), case.number);
    let replay = if case.esn { "replay-window 64 flag esn" } else { "replay-window 32" };
    let state = |src: &str, dst: &str, spi: usize| {
        format!(
            "xfrm state add src {src} dst {dst} proto esp spi {spi:#x} reqid {id} mode transport \
             {replay} {} aead rfc4106(gcm(aes)) 0x{key} 128",
            case.encap(src == here)
        )
    };
    let (own, far) = (6000 + id, 7000 + id);
    let policy = |src: &str, dst: &str, from: usize, to: usize, direction: &str| {
        format!(
            "xfrm policy add src {src} dst {dst} proto udp sport {from} dport {to} \
             dir {direction} tmpl proto esp reqid {id} mode transport"
        )
    };
    vec![
        state(here, there, case.spi_out()),
        state(there, here, case.spi_in()),
        policy(here, there, own, far, "out"),
        policy(there, here, far, own, "in"),
    ]
}

/// What the oracle has to know; the next case of the same family is the one whose socket must not
/// get what is sealed for this one.
fn plan(case: &Case, all: &[Case]) -> Value {
    let same = |other: &&Case| other.outer == case.outer && other.number != case.number;
    let other = all.iter().find(same).expect("several cases of each family");
    let mut plan = case.plan();
    plan["number"] = json!(case.number);
    plan["other"] = json!(other.number);
    plan
}

#[test]
fn scapy_understands_transport_mode_of_the_best_engine() {
    every_case_agrees("auto");
}

#[test]
fn scapy_understands_transport_mode_of_the_portable_engine() {
    every_case_agrees("aws-lc");
}

fn every_case_agrees(engine: &str) {
    let bench = Bench::new(engine);
    let cases = cases();
    assert_eq!(cases.len(), 18);
    bench.gateway.xfrm(&cases.iter().flat_map(xfrm).collect::<Vec<_>>());
    let plans = cases.iter().map(|case| plan(case, &cases)).collect();
    let findings = bench.oracle("transport.py", plans);
    let names: Vec<String> = cases.iter().map(Case::name).collect();
    judge(&bench.gateway, &names, &findings);
    // What does not fit the device comes in fragments, of which none is sealed.
    let fragments = bench.gateway.verdict("fragment_of_port_policy");
    assert_eq!(fragments, 2 * cases.len() as u64, "{}", bench.gateway.show("drops"));
    assert_eq!(bench.gateway.verdict("host_forwarded"), 0, "nothing in clear");
}
