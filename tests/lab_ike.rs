//! `peregrine lab run --keys ike`: strongSwan negotiates, the same load goes over it, and nothing
//! of either daemon or gateway stays behind.

mod daemon;
mod gateway;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use daemon::root::Root;
use lab::result::{Label, balance, read};

/// `peregrine lab run RECIPE --keys ike` with whatever else.
fn lab(recipe: &str, out: &Path, options: &str) -> Command {
    let mut command = gateway::peregrine_bound();
    command.args(["lab", "run", recipe, "--keys", "ike", "--out"]).arg(out);
    command.args(options.split_whitespace());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    command
}

/// Processes whose environment or arguments name the scratch folder of the lab with this pid.
fn daemons_of(pid: u32) -> Vec<String> {
    let scratch = format!("/tmp/peregrine-lab-{pid}-");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |file: &str| {
            let bytes = std::fs::read(entry.path().join(file)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        if read("environ").contains(&scratch) || read("cmdline").contains(&scratch) {
            found.push(read("cmdline"));
        }
    }
    found
}

fn assert_nothing_is_left(pid: u32) {
    assert_eq!(daemons_of(pid), [""; 0]);
    for (directory, prefix) in [
        ("/run/netns", format!("pg{pid}-")),
        ("/run/peregrine", format!("lab-{pid}-")),
        ("/tmp", format!("peregrine-lab-{pid}-")),
    ] {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            assert!(!name.starts_with(&prefix), "{directory}/{name}");
        }
    }
}

/// Runs a few tunnels with a light load; returns everything that was printed beside the result.
fn measured(recipe: &str, options: &str, daemons: u32) -> String {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let options = format!("--directions both --steps 1 --step-time 1s --max 5mbps {options}");
    let child = lab(recipe, &out, &options).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_nothing_is_left(pid);
    let run = read(&out).unwrap();
    let curve = &run.result.curves[0];
    assert_eq!(balance(&curve.accounting), [], "{:#?}", curve.accounting);
    assert!(!curve.conclusion.labels.contains(&Label::Unaccounted));
    let frames = curve.steps[0].frames;
    assert!(frames.received * 2 > frames.expected && frames.misrouted == 0, "{frames:?}");
    let negotiation = curve.negotiation.as_ref().expect("a negotiation");
    assert!(negotiation.daemon.starts_with("strongSwan "), "{negotiation:?}");
    assert_eq!(negotiation.daemons_per_gateway, daemons);
    assert_eq!(negotiation.tunnels, curve.tunnels);
    assert!(negotiation.negotiate_s > 0.0 && negotiation.handshake.max_ms > 0.0);
    assert_eq!(negotiation.gateways.len(), 2);
    for side in &negotiation.gateways {
        assert_eq!(side.sas, 2 * u64::from(curve.tunnels));
        // Out, in, fwd, and fwd for what goes out.
        assert_eq!(side.policies, 4 * u64::from(curve.tunnels));
        assert!(side.daemon_rss_bytes > 1_000_000 && side.gateway_rss_bytes > 1_000_000);
    }
    let logs: Vec<_> = std::fs::read_dir(out.join("ike")).unwrap().flatten().collect();
    assert_eq!(logs.len() as u32, 2 * daemons);
    for log in logs {
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert!(text.contains("CHILD_SA tnl") || text.contains("CHILD_SA any"), "{text}");
        assert!(!text.contains("TopSecret"), "{text}");
    }
    errors + &String::from_utf8_lossy(&output.stdout)
}

#[test]
fn tunnels_that_strongswan_negotiated_carry_the_load_and_both_list_them() {
    let text = measured("bf3-test1", "--tunnels 4 --show-sas", 1);
    // Before the ramp and after it.
    let whole = "8 SAs of strongSwan, 8 of the gateway, 8 of both by SPI, 8 with equal counters";
    assert_eq!(text.matches(whole).count(), 2, "{text}");
    assert!(text.contains("Negotiated by IKE"), "{text}");
}

#[test]
fn several_daemons_share_a_gateway_and_one_connection_answers_for_all() {
    measured("bf3-test1", "--tunnels 5 --shards 2 --responder any", 2);
    measured("bf3-test1", "--tunnels 3 --shards 3", 3);
}

#[test]
fn tunnels_over_a_router_are_negotiated_for_both_pairs_of_links() {
    measured("bf3-test4", "--tunnels 5", 1);
    measured("bf3-test4", "--tunnels 6 --shards 2 --responder any", 2);
}

/// The SAs of single CPUs come when each CPU has its first packet.
#[test]
fn another_strongswan_negotiates_an_sa_for_each_cpu() {
    let Some(root) = Root::find("strongswan-6.1") else { return };
    let options = format!("--show-sas --daemon-root {}", root.path.display());
    let text = measured("pcpu", &options, 1);
    assert!(text.contains("strongSwan 6."), "{text}");
    let counts = text
        .split(" SAs of strongSwan")
        .filter_map(|before| before.rsplit(char::is_whitespace).next()?.parse::<u32>().ok());
    // One for all CPUs and one for each of two, both ways; each end may ask for its own.
    assert!(counts.max().is_some_and(|most| most >= 6), "{text}");
}

#[test]
fn an_interrupted_negotiation_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("cut");
    let options = "--tunnels 1500 --directions uni --steps 1 --step-time 1s --max 5mbps --json";
    let child = lab("bf3-test1", &out, options).spawn().unwrap();
    let pid = child.id();
    let end = Instant::now() + Duration::from_secs(120);
    while daemons_of(pid).iter().filter(|line| line.contains("charon-systemd")).count() < 2 {
        assert!(Instant::now() < end, "no daemon came up");
        std::thread::sleep(Duration::from_millis(50));
    }
    let group = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process_group(group, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    assert_nothing_is_left(pid);
    assert!(read(&out).unwrap().result.curves.is_empty());
}
