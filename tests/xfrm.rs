//! The XFRM interface against a real kernel: the same scripts of `ip xfrm` and raw netlink that were
//! recorded on Debian's kernel, run unmodified under `peregrine exec`, must print the same.

mod gateway;
mod golden;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use gateway::{Cores, Gateway, PEREGRINE};
use lab::topology::{Namespace, Veth};

/// Scripts run side by side. Most of their time is waiting for monitors and expiries.
const SIDE_BY_SIDE: usize = 4;

/// What one script showed: steps compared, and the differences.
struct Shown {
    steps: usize,
    differences: Vec<String>,
}

/// Runs a script against a gateway of its own, as it was recorded in a kernel of its own state.
fn show(script: &golden::Script, tools: &Path) -> Shown {
    let namespace = Namespace::new("xfrm").expect("a namespace");
    let peer = Namespace::new("xfrmp").expect("a namespace");
    Veth::new((&namespace, "p0"), (&peer, "p0"), 1).expect("a veth pair");
    let gateway = Gateway::start(&namespace, &["p0"], Cores::Any(0));
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
    let out = gateway
        .exec("unshare")
        .args(["-n", "sh"])
        .arg(golden::directory().join("run"))
        .arg(&script.path)
        .env("PATH", path)
        .output()
        .expect("the script runs");
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{}: {errors}", script.name);
    let recorded = std::fs::read_to_string(&script.transcript).expect("a transcript");
    let expected = golden::parse(&recorded);
    let found = golden::parse(&String::from_utf8_lossy(&out.stdout));
    let differences = golden::compare(&expected, &found)
        .into_iter()
        .map(|difference| format!("{}, {difference}", script.name))
        .collect();
    Shown { steps: expected.len(), differences }
}

#[test]
fn ip_xfrm_prints_what_it_prints_on_a_kernel() {
    let tools = tempfile::tempdir().expect("a directory");
    golden::build_rawxfrm(tools.path()).expect("rawxfrm compiles");
    let scripts: Vec<golden::Script> =
        golden::scripts().into_iter().filter(|script| !script.name.starts_with("later-")).collect();
    assert!(scripts.len() > 20, "the scripts are there");
    let next = AtomicUsize::new(0);
    let work = || {
        let mut shown = Vec::new();
        while let Some(script) = scripts.get(next.fetch_add(1, Ordering::Relaxed)) {
            shown.push(show(script, tools.path()));
        }
        shown
    };
    let shown: Vec<Shown> = thread::scope(|scope| {
        let threads: Vec<_> = (0..SIDE_BY_SIDE).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no script failed")).collect()
    });
    let steps: usize = shown.iter().map(|one| one.steps).sum();
    let differences: Vec<String> = shown.into_iter().flat_map(|one| one.differences).collect();
    assert!(steps > 500, "only {steps} steps were compared");
    let count = differences.len();
    assert!(differences.is_empty(), "{count} of {steps} steps differ:\n{}", differences.join("\n"));
}

/// The loader only warns of a library that it cannot load, and what was meant for the gateway would be the kernel's.
#[test]
fn without_its_library_no_program_is_run() {
    let namespace = Namespace::new("bare").expect("a namespace");
    let peer = Namespace::new("barep").expect("a namespace");
    Veth::new((&namespace, "p0"), (&peer, "p0"), 1).expect("a veth pair");
    let gateway = Gateway::start(&namespace, &["p0"], Cores::Any(0));
    let folder = tempfile::tempdir().expect("a directory");
    let library = |name: &str| folder.path().join(name);
    let exec = |library: &Path| {
        let mut command = gateway.exec("ip");
        command.current_dir(folder.path()).env("PEREGRINE_PRELOAD", library);
        command.args(["xfrm", "state", "count"]).output().expect("peregrine runs")
    };
    let (gone, apart) = (library("gone.so"), library("a b.so"));
    let (text, other) = (library("text.so"), library("other.so"));
    std::fs::write(&text, "no library\n").expect("written");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&other);
    assert!(compiler.status().expect("a compiler runs").success());
    for path in [&library("here.so"), &apart] {
        std::fs::copy(gateway::preload(), path).expect("the library is copied");
    }
    for (path, words) in [
        (gone.as_path(), [gone.to_str().expect("a plain path"), "make build"]),
        (folder.path(), [folder.path().to_str().expect("a plain path"), "no file"]),
        (&apart, ["a b.so", "blank"]),
        // In the loader's words.
        (&text, ["text.so", "cannot be preloaded"]),
        (&other, ["other.so", "of this version"]),
    ] {
        let out = exec(path);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!((out.status.code(), &out.stdout[..]), (Some(2), &b""[..]), "{path:?}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{path:?}: {said}");
    }
    // A bare name is a file here, not one that the loader looks for.
    let out = exec(Path::new("here.so"));
    let counted = String::from_utf8_lossy(&out.stdout);
    assert_eq!(counted, "\t SAD count 0\n", "{}", String::from_utf8_lossy(&out.stderr));
    // And a directory that is named from here is one elsewhere, too.
    let mut command = Command::new(PEREGRINE);
    command.current_dir("/run").env("PEREGRINE_PRELOAD", gateway::preload());
    command.args(["exec", "--instance", &gateway.name, "--run-dir", "peregrine", "--"]);
    let out = command.args(["sh", "-c", "cd / && ip xfrm state count"]).output();
    let out = out.expect("peregrine runs");
    let counted = String::from_utf8_lossy(&out.stdout);
    assert_eq!(counted, "\t SAD count 0\n", "{}", String::from_utf8_lossy(&out.stderr));
}
