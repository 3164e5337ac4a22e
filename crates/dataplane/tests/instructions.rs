//! The instructions that a packet takes, counted by callgrind: a gate that noise cannot move.
//!
//! Time on a shared machine varies by more than any change that is worth noticing; instructions do
//! not. What is judged is the path *beside* the cipher (the turn of a worker less the same calls of
//! the same engine alone), in a release build, for sealing and opening with one tunnel, with four that
//! are as busy, with 256, each of which is met again and again, and with 10 000, each of which is met once, by policies and by
//! routes. The figures that stand are in `instructions.txt` beside this file; whoever makes the path
//! longer for a good reason records them anew with `make counts` and says why in the commit.
//!
//! Cache misses are not counted: that is what `peregrine bench` measures, on a real machine.
#![cfg(target_arch = "x86_64")]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// How far above its figure a case may be. Compilers of one minor version and the C library's
/// choice of `memcpy` move the counts by one percent.
const TOLERANCE: f64 = 1.03;
/// What is counted: how packets find their tunnel, and how many tunnels there are.
const CASES: [[&str; 2]; 8] = [
    ["policy", "1"],
    ["policy", "4"],
    ["policy", "256"],
    ["policy", "10000"],
    ["policy-uncached", "10000"],
    ["p2p", "256"],
    ["p2p", "10000"],
    ["p2mp", "10000"],
];
/// With so many tunnels the seeds of the hashes, which each process draws, show: in one run of seven a packet opened by routes
/// takes 30 or 60 instructions more. With fewer there is nothing to share a place, and with more it is the same in each run.
const DRAWN: &str = "256";
/// Runs of such a case, of which the shortest counts.
const DRAWN_RUNS: usize = 4;
/// Packets that are forwarded in clear, where the cipher has nothing to do.
const IN_CLEAR: [&str; 2] = ["plain", "10000"];
/// A worker's turn, and the calls of the bare cipher.
const PATH: &str = "path::timed_turn";
const CIPHER: [&str; 2] = ["CipherBench::sealing_calls", "CipherBench::opening_calls"];
/// The function whose callees are the stages, except those that the compiler made a part of it.
const TURN: &str = "worker::Worker::turn";

/// What was counted in one case, in instructions per packet.
struct Counted {
    path: f64,
    cipher: f64,
    stages: BTreeMap<String, f64>,
}

impl Counted {
    fn beside(&self) -> f64 {
        self.path - self.cipher
    }

    /// What this does beyond `less`.
    fn beyond(mut self, less: &Counted) -> Counted {
        for (stage, cost) in &mut self.stages {
            *cost -= less.stages.get(stage).unwrap_or(&0.0);
        }
        Counted { path: self.path - less.path, cipher: self.cipher - less.cipher, ..self }
    }
}

fn expected_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/instructions.txt")
}

/// Builds the program that is watched. What `make test` has built is no use: a packet there takes
/// three times the instructions.
fn build() -> PathBuf {
    let arguments = ["build", "--release", "--package", "dataplane", "--example", "instructions"];
    let built = Command::new(env!("CARGO"))
        .args(arguments)
        .args(["--quiet", "--message-format=json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // The last of cargo's messages about something that can be run; paths hold no quotes here.
    let text = String::from_utf8_lossy(&built.stdout);
    let (_, rest) = text.rsplit_once("\"executable\":\"").expect("cargo names what it built");
    PathBuf::from(rest.split('"').next().unwrap_or_default())
}

/// Runs the program under callgrind.
fn watch(program: &Path, case: [&str; 2], measured: &str, folder: &Path) -> Counted {
    let out = folder.join(format!("{}.{measured}", case.join(".")));
    let watched = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(case)
        .arg(measured)
        .output()
        .expect("valgrind runs; `./setup test` installs it");
    assert!(watched.status.success(), "{}", String::from_utf8_lossy(&watched.stderr));
    let packets = String::from_utf8_lossy(&watched.stdout).trim().parse::<f64>();
    let packets = packets.expect("the program prints its packets");
    let costs = calls(&fs::read_to_string(out).expect("callgrind writes its file"));
    let per_packet = |function: &str| {
        let found = costs.iter().filter(|((_, callee), _)| callee.contains(function));
        found.map(|(_, cost)| cost).sum::<u64>() as f64 / packets
    };
    let (path, cipher) = (per_packet(PATH), CIPHER.map(per_packet));
    for (function, cost) in [(PATH, path), (CIPHER[0], cipher[0])] {
        assert!(cost > 0.0, "{function} was not called, or is part of another function now");
    }
    let mut stages: BTreeMap<String, f64> = BTreeMap::new();
    for ((_, callee), cost) in costs.iter().filter(|((caller, _), _)| caller.contains(TURN)) {
        *stages.entry(short(callee)).or_default() += *cost as f64 / packets;
    }
    Counted { path, cipher: cipher.iter().sum(), stages }
}

/// The end of a function's name.
fn short(name: &str) -> String {
    name.rsplit("::").next().unwrap_or(name).to_owned()
}

/// The instructions of all calls from one function to another, callees included, from callgrind's
/// file (Callgrind Format Specification, version 1).
fn calls(profile: &str) -> HashMap<(String, String), u64> {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut costs: HashMap<(String, String), u64> = HashMap::new();
    let (mut caller, mut callee, mut is_call) = ("", "", false);
    for line in profile.lines() {
        // A function is named once, `(7) name`, and is `(7)` from then on.
        let named = line.strip_prefix("cfn=").or_else(|| line.strip_prefix("fn="));
        if let Some((id, name)) = named.map(|text| text.split_once(' ').unwrap_or((text, ""))) {
            if !name.is_empty() {
                names.insert(id, name);
            }
            let name = names.get(id).copied().unwrap_or(id);
            if line.starts_with('c') { callee = name } else { caller = name }
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if is_call {
            // The line after `calls=` ends with what the calls cost.
            let cost = line.split(' ').next_back().and_then(|text| text.parse::<u64>().ok());
            *costs.entry((caller.to_owned(), callee.to_owned())).or_default() += cost.unwrap_or(0);
            is_call = false;
        }
    }
    costs
}

/// Every case with its name. As many are watched at a time as there are cores: what is counted does not depend on what else runs.
fn count() -> Vec<(String, Counted)> {
    let program = build();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut runs: Vec<_> =
        CASES.iter().flat_map(|case| [(*case, "both"), (*case, "seal")]).collect();
    runs.push((IN_CLEAR, "seal"));
    let (next, watched) = (AtomicUsize::new(0), Mutex::new(HashMap::new()));
    let watch_some = || {
        while let Some((case, measured)) = runs.get(next.fetch_add(1, Relaxed)) {
            let runs = if case[1] == DRAWN { DRAWN_RUNS } else { 1 };
            let counted = (0..runs).map(|_| watch(&program, *case, measured, folder.path()));
            let counted = counted.min_by(|a, b| a.path.total_cmp(&b.path)).expect("it was run");
            watched.lock().expect("no case has failed").insert((*case, *measured), counted);
        }
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        (0..cores).for_each(|_| drop(scope.spawn(watch_some)));
    });
    let mut watched = watched.into_inner().expect("no case has failed");
    let mut take = |case, measured| watched.remove(&(case, measured)).expect("it was watched");
    let mut counted = Vec::new();
    for case in CASES {
        let (seal, both) = (take(case, "seal"), take(case, "both"));
        let open = both.beyond(&seal);
        counted.push((format!("{} seal", case.join(" ")), seal));
        counted.push((format!("{} open", case.join(" ")), open));
    }
    let in_clear = take(IN_CLEAR, "seal");
    counted.push((IN_CLEAR.join(" "), Counted { cipher: 0.0, ..in_clear }));
    counted
}

/// The recorded figures by case.
fn expected() -> HashMap<String, f64> {
    let text = fs::read_to_string(expected_file()).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let (name, figure) = line.rsplit_once(' ')?;
            Some((name.trim().to_owned(), figure.parse().ok()?))
        })
        .collect()
}

fn record(counted: &[(String, Counted)]) {
    let mut text = String::from(
        "# Instructions per packet beside the cipher, release build: selection, tunnels, direction, figure.\n\
         # `make counts` writes this file; instructions.rs holds the path to it.\n",
    );
    for (name, case) in counted {
        let _ = writeln!(text, "{name:<30}{:.1}", case.beside());
    }
    fs::write(expected_file(), text).expect("the file of figures can be written");
}

#[test]
fn a_packet_takes_no_more_instructions_than_it_did() {
    let counted = count();
    let expected = expected();
    let mut grown = Vec::new();
    println!("instructions per packet              path   cipher   beside   recorded");
    for (name, case) in &counted {
        let recorded = expected.get(name);
        let recorded_text = recorded.map_or("–".to_owned(), |figure| format!("{figure:.1}"));
        println!(
            "{name:<30}{:>11.1}{:>9.1}{:>9.1}{recorded_text:>11}",
            case.path,
            case.cipher,
            case.beside()
        );
        let stages = case.stages.iter().filter(|(_, cost)| **cost >= 1.0);
        let stages: Vec<String> = stages.map(|(name, cost)| format!("{name} {cost:.0}")).collect();
        println!("    {}", stages.join(", "));
        if recorded.is_none_or(|figure| case.beside() > figure * TOLERANCE) {
            grown.push(format!("{name}: {:.1}, recorded {recorded_text}", case.beside()));
        }
    }
    if std::env::var_os("PEREGRINE_RECORD_COUNTS").is_some() {
        record(&counted);
        return;
    }
    assert!(
        grown.is_empty(),
        "a packet takes more instructions beside the cipher than recorded:\n  {}\nmake it shorter, \
         or run `make counts` and commit {} with the reason",
        grown.join("\n  "),
        expected_file().display()
    );
}

#[test]
fn callgrind_files_are_read_as_specified() {
    let profile = "\
version: 1\nevents: Ir\n\nfl=(1) a.rs\nfn=(1) main\n16 400\ncfi=(2) b.rs\ncfn=(2) path::timed_turn\n\
calls=2 50\n16 4000\n+3 7\ncfn=(2)\ncalls=1 50\n* 500\n\nfn=(2)\n51 100\ncfn=(3) inner\ncalls=9 1\n51 4400\n";
    let costs = calls(profile);
    let cost = |caller: &str, callee: &str| costs[&(caller.to_owned(), callee.to_owned())];
    assert_eq!(cost("main", "path::timed_turn"), 4500);
    assert_eq!(cost("path::timed_turn", "inner"), 4400);
    assert_eq!(costs.len(), 2);
}
