//! Bad configuration gets one clear sentence that says what to do, exit code 2, and leaves the
//! machine as it was.

mod gateway;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gateway::PEREGRINE;
use lab::topology::{Namespace, Veth};
use rustix::process::{Pid, Signal, kill_process};

/// A namespace with two interfaces, `red0` and `black0`, and what is needed to look for changes.
struct Machine {
    namespace: Namespace,
    _peer: Namespace,
    directory: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let namespace = Namespace::new("cfg").expect("a namespace");
        let peer = Namespace::new("cfgp").expect("a namespace");
        for name in ["red0", "black0"] {
            Veth::new((&namespace, name), (&peer, name), 1).expect("a veth pair");
        }
        // A link is up some time after it was set up, and its state is looked at.
        let end = Instant::now() + Duration::from_secs(10);
        while namespace.ip("link show").expect("ip link").matches("state UP").count() != 2 {
            assert!(Instant::now() < end, "the links stay without a carrier");
            thread::sleep(Duration::from_millis(10));
        }
        Machine { namespace, _peer: peer, directory: tempfile::tempdir().expect("a directory") }
    }

    /// The gateway's name, and its directory's below /run/peregrine: this machine's alone, as
    /// the other tests look at theirs while a gateway of this one runs.
    fn name(&self) -> &str {
        self.namespace.name()
    }

    fn config(&self, text: &str) -> std::path::PathBuf {
        let path = self.directory.path().join("gateway.toml");
        fs::write(&path, text.replace("cfg-test", self.name())).expect("written");
        path
    }

    /// Runs the gateway, which must refuse at once; `wrap` are words before the binary.
    fn refuse(&self, text: &str, wrap: &[&str]) -> Output {
        let before = self.state();
        let mut words: Vec<&str> = wrap.to_vec();
        words.push(PEREGRINE);
        let out = self
            .namespace
            .command("timeout")
            .arg("20")
            .args(words)
            .args(["run", "--config"])
            .arg(self.config(text))
            .output()
            .expect("runs");
        assert_eq!(before, self.state(), "the machine is as it was");
        out
    }

    /// Runs the gateway, does something once it serves, and stops it; the line with which it said that it does.
    fn serve(&self, text: &str, then: impl FnOnce()) -> Option<String> {
        let mut gateway = self
            .namespace
            .command("timeout")
            .args(["60", PEREGRINE, "run", "--config"])
            .arg(self.config(text))
            .stderr(Stdio::piped())
            .spawn()
            .expect("runs");
        let mut lines = BufReader::new(gateway.stderr.take().expect("piped")).lines();
        // The lines end if the gateway refuses, or after a minute.
        let ready = lines.by_ref().map_while(Result::ok).find(|line| line.contains("ready"));
        if ready.is_some() {
            then();
        }
        kill_process(Pid::from_child(&gateway), Signal::TERM).expect("told to stop");
        assert!(gateway.wait().is_ok());
        ready
    }

    /// What a refused start must not change: interfaces with their XDP programs, run directories.
    fn state(&self) -> String {
        let links = self.namespace.ip("-d link show").expect("ip link");
        let run = Command::new("find")
            .args(["/run/peregrine", "-name", &format!("{}*", self.name())])
            .output()
            .expect("find runs");
        links + &String::from_utf8_lossy(&run.stdout)
    }
}

/// The refusal: exit code 2 and exactly one line that contains every expected word.
fn assert_refused(out: &Output, words: &[&str]) {
    let errors = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "exit code; stderr: {errors}");
    assert_eq!(errors.trim().lines().count(), 1, "one sentence, got: {errors}");
    for word in words {
        assert!(errors.contains(word), "{word:?} is named in: {errors}");
    }
}

const GOOD: &str = r#"
name = "cfg-test"
cores = [0]
spin_us = 50
[[port]]
interface = "red0"
[[port]]
interface = "black0"
"#;

#[test]
fn malformed_toml_names_the_line() {
    let out = Machine::new().refuse("name = \"cfg-test\"\ncores = [0\n", &[]);
    assert_refused(&out, &["line"]);
}

#[test]
fn an_unknown_key_is_named() {
    let out = Machine::new().refuse(&GOOD.replace("spin_us", "spin_uz"), &[]);
    assert_refused(&out, &["spin_uz"]);
}

#[test]
fn an_unknown_interface_is_named_beside_those_that_exist() {
    let out = Machine::new().refuse(&GOOD.replace("black0", "eth9"), &[]);
    assert_refused(&out, &["eth9", "black0", "red0"]);
}

#[test]
fn a_core_that_does_not_exist_is_named() {
    let out = Machine::new().refuse(&GOOD.replace("[0]", "[0, 4711]"), &[]);
    assert_refused(&out, &["4711", "core"]);
}

#[test]
fn two_ports_on_one_interface_are_refused() {
    let out = Machine::new().refuse(&GOOD.replace("black0", "red0"), &[]);
    assert_refused(&out, &["red0"]);
}

#[test]
fn more_cores_than_queues_share_them() {
    let machine = Machine::new();
    let before = machine.state();
    let ready = machine.serve(&GOOD.replace("[0]", "[0, 1]"), || ());
    assert!(ready.as_deref().is_some_and(|line| line.contains("cores [0, 1]")), "{ready:?}");
    assert_eq!(before, machine.state(), "the machine is as it was");
}

#[test]
fn a_gateway_in_another_run_directory_is_found_there() {
    let machine = Machine::new();
    let run_dir = machine.directory.path().join("run");
    let run_dir = run_dir.to_str().expect("a name in words");
    let ask = |more: &[&str]| {
        let mut command = Command::new(PEREGRINE);
        command.args(["show", "status", "-i", machine.name()]).args(more).output().expect("runs")
    };
    let ready = machine.serve(&format!("{GOOD}[control]\nrun_dir = \"{run_dir}\"\n"), || {
        let out = ask(&["--run-dir", run_dir]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let shown = String::from_utf8_lossy(&out.stdout);
        assert!(shown.contains(machine.name()), "{shown}");
        assert_refused(&ask(&[]), &["/run/peregrine", "--run-dir"]);
    });
    assert!(ready.is_some());
}

#[test]
fn a_missing_capability_is_named() {
    let machine = Machine::new();
    let without = ["setpriv", "--bounding-set", "-net_admin,-net_raw,-bpf"];
    let out = machine.refuse(GOOD, &without);
    assert_refused(&out, &["CAP_NET_ADMIN"]);
}

#[test]
fn a_kernel_without_af_xdp_is_named() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracle/no_af_xdp.py");
    let out = Machine::new().refuse(GOOD, &["/usr/bin/python3", script]);
    assert_refused(&out, &["AF_XDP"]);
}

#[test]
fn what_a_start_refuses_a_check_refuses_and_no_epoch_is_used_up() {
    let machine = Machine::new();
    let route = "route add blackhole 10.99.0.0/16 table 20551";
    machine.namespace.ip(route).expect("a route");
    let text = GOOD.replace("spin_us = 50", "spin_us = 50\nhost.device = \"DEVICE\"");
    for (text, words) in [
        (GOOD, &["table 20551", "[host]"]),
        (&text.replace("DEVICE", "black0"), &["\"black0\"", "veth"]),
    ] {
        assert_refused(&machine.refuse(text, &[]), words);
        let mut check = machine.namespace.command(PEREGRINE);
        let check = check.args(["run", "--check", "--config"]).arg(machine.config(text));
        assert_refused(&check.output().expect("runs"), words);
    }
    assert!(!std::path::Path::new("/var/lib/peregrine").join(machine.name()).exists());
}

#[test]
fn a_missing_file_is_named() {
    let out = Command::new(PEREGRINE)
        .args(["run", "--config", "/nonexistent/gw.toml"])
        .output()
        .expect("runs");
    assert_refused(&out, &["/nonexistent/gw.toml"]);
}

#[test]
fn whoever_prints_ends_quietly_with_the_reader() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let out = Command::new(PEREGRINE).args(["run", "--example"]).stdout(writer).output();
    let out = out.expect("it runs");
    assert_eq!((out.status.code(), String::from_utf8_lossy(&out.stderr).as_ref()), (Some(141), ""));
}
