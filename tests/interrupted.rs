//! A test that is ended before it can tidy up: its gateway ends with it, and what else it left the next one takes away.

mod gateway;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gateway::{Cores, Gateway, left};
use lab::topology::{Namespace, Veth};

/// Makes another process of this program the one that is ended.
const ENDED: &str = "PEREGRINE_TEST_ENDED";
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn nothing_stays_of_a_test_that_is_ended() {
    if std::env::var_os(ENDED).is_some() {
        return wait_for_the_end();
    }
    let own = Namespace::new("own").expect("a namespace");
    let mut test = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "nothing_stays_of_a_test_that_is_ended", "--nocapture"])
        .env(ENDED, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts once more");
    let lines = BufReader::new(test.stdout.take().expect("a pipe")).lines();
    let pids = lines
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("these run: ")?.1.to_owned()))
        .expect("it says what runs");
    let (gateway, other) = pids.split_once(' ').expect("two process ids");
    assert!(runs(gateway) && runs(other), "{pids}");
    test.kill().expect("it is ended");
    test.wait().expect("it has ended");

    let end = Instant::now() + PATIENCE;
    while runs(gateway) {
        assert!(Instant::now() < end, "the gateway goes on alone");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(runs(other), "what was not bound to it goes on");
    let names: Vec<_> = left::of(test.id()).into_iter().filter(|left| left.exists()).collect();
    assert!(names.len() >= 3, "two namespaces and a folder are left: {names:?}");
    left::sweep();
    let names = left::of(test.id());
    assert!(names.is_empty(), "{names:?}");
    assert!(!runs(other), "who was in its namespace is ended");
    assert!(own.path().exists(), "and not what is in use");
}

/// What is ended: a gateway, and a process that nothing tells of it.
fn wait_for_the_end() {
    let [namespace, peer] = ["own", "peer"].map(|name| Namespace::new(name).expect("a namespace"));
    Veth::new((&namespace, "p0"), (&peer, "p0"), 1).expect("a veth pair");
    let gateway = Gateway::start(&namespace, &["p0"], Cores::Any(0));
    let mut other = namespace.command("sleep").arg("600").spawn().expect("sleep runs");
    println!("these run: {} {}", gateway.pid(), other.id());
    // If the test that started this one fails, the end comes by itself.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    other.kill().expect("it is ended");
    other.wait().expect("it has ended");
}

/// Whether a process is there that has not ended.
fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}
