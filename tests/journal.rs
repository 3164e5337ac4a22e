//! A gateway that is killed, or replaced by another binary, goes on where it was: its tunnels, their
//! numbers and windows, without a word from the daemon that installed them.
//!
//! `PEREGRINE_KILLS` and `PEREGRINE_KILL_TUNNELS` set how often and how many (`make kills`).

mod gateway;

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gateway::{Cores, Gateway, PEREGRINE, spread};
use lab::topology::{Namespace, Veth};
use serde_json::{Value, json};

/// How long a change may take to show on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Kills in one run of the tests, and tunnels: about half a minute.
const KILLS: u64 = 10;
const TUNNELS: u64 = 100;

/// Packets per second in each direction: what the witness can look at on half a core.
const PPS: u64 = 1000;

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// A Python program that answers lines with lines.
struct Asked {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Asked {
    fn start(mut command: Command) -> Asked {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.expect("python starts");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Asked { child, stdin, stdout }
    }

    fn line(&mut self, question: &Value) -> Value {
        writeln!(self.stdin, "{question}").expect("python listens");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("python answers");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{question}: {e}: {line:?}"))
    }

    /// The value of an expression there.
    fn ask(&mut self, expression: &str) -> Value {
        let mut answer = self.line(&Value::from(expression));
        assert!(answer["error"].is_null(), "{expression}: {}", answer["error"]);
        answer["value"].take()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gateway between two far ends that never cease to send, and the daemon that installed its tunnels.
struct Site {
    witness: Asked,
    daemon: Asked,
    gateway: Gateway,
    inside: Namespace,
    _outside: Namespace,
}

fn oracle(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle").join(name)
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64
}

impl Site {
    fn new(tunnels: u64) -> Site {
        let inside = Namespace::new("gw").expect("a namespace");
        let outside = Namespace::new("out").expect("a namespace");
        Veth::new((&outside, "red"), (&inside, "red0"), 1).expect("a veth pair");
        Veth::new((&outside, "black"), (&inside, "black0"), 1).expect("a veth pair");
        // The kernel could forward in clear: routes to both far sides, and forwarding on.
        inside.sysctl("net.ipv4.ip_forward", "1").expect("forwarding");
        let lines =
            |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
        let own = "address add 10.0.0.254/24 dev red0
            address add 192.0.2.1/24 dev black0
            route add 16.0.0.0/8 via 10.0.0.1
            route add 48.0.0.0/8 via 192.0.2.2";
        inside.ip_batch(&lines(own)).expect("addresses and routes");
        let far = "address add 10.0.0.1/24 dev red
            address add 192.0.2.2/24 dev black";
        outside.ip_batch(&lines(far)).expect("addresses");

        let gateway = Gateway::start(&inside, &["red0", "black0"], Cores::Any(0));
        let mac = |interface: &str| {
            let link = inside.ip(&format!("-j link show dev {interface}")).expect("a link");
            let link: Value = serde_json::from_str(&link).expect("JSON");
            link[0]["address"].as_str().expect("an address").to_owned()
        };
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/bin/python");
        assert!(python.exists(), "run ./setup test first: it installs scapy");
        let mut command = outside.command(python.to_str().expect("a plain path"));
        command.arg(oracle("witness.py"));
        let mut witness = Asked::start(command);
        let plan = json!({
            "red": "red", "black": "black", "red_mac": mac("red0"), "black_mac": mac("black0"),
            "tunnels": tunnels, "pps": PPS,
        });
        writeln!(witness.stdin, "{plan}").expect("python listens");
        let install = witness.ask(&format!("install({tunnels})"));
        let install: Vec<String> = serde_json::from_value(install).expect("lines");
        gateway.xfrm(&install);
        witness.ask("w.start()");
        let mut command = gateway.exec("python3");
        command.arg(oracle("daemon.py"));
        let mut daemon = Asked::start(command);
        let end = Instant::now() + PATIENCE;
        while daemon.line(&json!("met"))["listens"] != json!(true) {
            assert!(Instant::now() < end, "the daemon does not begin");
            thread::sleep(Duration::from_millis(10));
        }
        Site { witness, daemon, gateway, inside, _outside: outside }
    }

    /// The times around a moment, in nanoseconds: of the last packet before it, 0 if there is none, and
    /// of the first after it, which is waited for.
    fn around(&mut self, moment_ns: u64, times: &str) -> (u64, u64) {
        let end = Instant::now() + PATIENCE;
        loop {
            let found = self.witness.ask(&format!("w.around({moment_ns}, w.{times})"));
            if let Some(after) = found[1].as_u64() {
                return (found[0].as_u64().unwrap_or(0), after);
            }
            assert!(Instant::now() < end, "no traffic: {found}; log:\n{}", self.gateway.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Traffic flows both ways.
    fn flows(&mut self) {
        let now = now_ns();
        self.around(now, "esp_times");
        self.around(now, "opened_times");
    }

    /// Sends again what was sealed until now; how many of them the gateway refused as replays.
    fn replay(&mut self) -> u64 {
        let refused =
            |gateway: &Gateway| gateway.verdict("replayed") + gateway.verdict("replay_old");
        let before = refused(&self.gateway);
        let sent = self.witness.ask("w.replay()").as_u64().expect("a count");
        assert!(sent > 0);
        self.gateway.wait("the refusal of replays", |gateway| refused(gateway) > before);
        refused(&self.gateway) - before
    }

    /// What must hold at any time.
    fn judge(&mut self) -> Value {
        let report = self.witness.ask("w.report()");
        let count = |name: &str| report[name].as_u64().expect("a count");
        assert_eq!(count("clear"), 0, "in clear: {report}");
        assert_eq!(count("repeated"), 0, "a key met an initialization vector twice: {report}");
        assert_eq!(count("pairs"), count("esp"), "every packet has a pair of its own: {report}");
        assert_eq!(count("disorder"), 0, "a sequence number was repeated or went back: {report}");
        assert_eq!(count("false"), 0, "a sealed packet is not authentic: {report}");
        assert_eq!(count("accepted_twice"), 0, "a replayed packet was accepted: {report}");
        assert_eq!(count("missed"), 0, "the witness did not see everything: {report}");
        report
    }

    /// Whether the daemon noticed anything but that it may have missed events, which it is told at
    /// each restart.
    fn judge_daemon(&mut self, restarts: u64) -> Value {
        let met = self.daemon.line(&json!("met"));
        assert!(met["asked"].as_u64() > Some(0), "{met}");
        assert_eq!(met["refused"], json!([]), "a request failed: {met}");
        assert_eq!(met["broken"], json!([]), "a listener was left behind: {met}");
        assert!(met["overruns"].as_u64() >= Some(restarts), "lost events are told: {met}");
        met
    }
}

#[test]
fn killed_again_and_again_tunnels_go_on() {
    let kills = from_environment("PEREGRINE_KILLS", KILLS);
    let tunnels = from_environment("PEREGRINE_KILL_TUNNELS", TUNNELS);
    let mut site = Site::new(tunnels);
    site.flows();
    let (mut silences, mut starts, mut serves, mut refused) = (vec![], vec![], vec![], 0);
    for kill in 0..kills {
        thread::sleep(Duration::from_millis(50 + kill * 37 % 200));
        let killed_ns = now_ns();
        site.gateway.kill();
        let exec_ns = now_ns();
        let Site { gateway, inside, .. } = &mut site;
        gateway.restart(inside);
        let status = site.gateway.show("status");
        let restored = &status["restored"];
        assert_eq!(restored["sas"], json!(2 * tunnels), "kill {kill}: {status}");
        assert_eq!(restored["policies"], json!(2 * tunnels), "kill {kill}: {status}");
        assert_eq!((&restored["lost"], &restored["problem"]), (&json!(0), &Value::Null));
        let (before, after) = site.around(exec_ns, "esp_times");
        site.around(exec_ns, "opened_times");
        let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
        assert!(before <= exec_ns && killed_ns <= after);
        silences.push(ms(before, after));
        starts.push(ms(exec_ns, after));
        serves.push(restored["ready_us"].as_f64().expect("a time") / 1000.0);
        refused += site.replay();
        site.judge();
    }
    site.flows();
    let report = site.judge();
    let met = site.judge_daemon(kills);
    println!("{kills} kills under load, {tunnels} tunnels, {PPS} packets/s each way");
    println!("exec to first sealed packet, ms    {}", spread(starts));
    println!("last packet before to first after  {}", spread(silences));
    println!("start to packets, by the gateway   {}", spread(serves));
    println!("replays refused {refused}; witness {report}");
    println!("daemon {met}");
    assert_eq!(site.gateway.stop(), Some(0), "log: {}", site.gateway.log());
}

/// The directory with the instance's journal.
fn journal_directory(gateway: &Gateway) -> PathBuf {
    let status = gateway.show("status");
    let words = status["journal"].as_str().expect("words").to_owned();
    let directory = PathBuf::from(words.split(" (").next().expect("a path"));
    assert!(directory.join("journal").exists(), "{words}");
    directory
}

/// The file that the gateway was started with.
fn configuration(gateway: &Gateway) -> PathBuf {
    let words = std::fs::read_to_string(format!("/proc/{}/cmdline", gateway.pid()));
    let words = words.expect("a command line");
    let mut words = words.split('\0').skip_while(|word| *word != "--config");
    words.nth(1).expect("a path").into()
}

/// What is asked while another binary takes its time to look at the machine is answered.
fn answers_during_an_upgrade(gateway: &Gateway) {
    let folder = tempfile::tempdir().expect("a directory");
    let slow = folder.path().join("slow");
    let look = "case \"$*\" in *--check*) sleep 2.7;; esac";
    std::fs::write(&slow, format!("#!/bin/sh\n{look}\nexec {PEREGRINE} \"$@\"\n"))
        .expect("written");
    std::fs::set_permissions(&slow, Permissions::from_mode(0o755)).expect("it is a program");
    let more = ["--binary", slow.to_str().expect("a plain path")];
    thread::scope(|scope| {
        let upgrading = scope.spawn(|| gateway.upgrade(&more));
        thread::sleep(Duration::from_millis(300));
        // Bounded, so that who waits for ever fails the test.
        let mut asking = gateway.exec("timeout");
        let out = asking.args(["20", "ip", "xfrm", "state", "count"]).output().expect("ip runs");
        let erred = String::from_utf8_lossy(&out.stderr);
        let counted = String::from_utf8_lossy(&out.stdout);
        assert!(counted.starts_with("\t SAD count "), "{counted}{erred}");
        let out = upgrading.join().expect("no panic");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    });
}

#[test]
fn another_binary_takes_over_under_load() {
    let mut site = Site::new(20);
    site.flows();
    let pid = site.gateway.pid();
    for round in 1..=3 {
        let moment = now_ns();
        let out = site.gateway.upgrade(&[]);
        let (said, erred) =
            (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{said}{erred}\nlog:\n{}", site.gateway.log());
        println!("{}", said.trim());
        assert!(said.contains("40 SAs and 40 policies go on"), "{said}");
        let status = site.gateway.show("status");
        assert_eq!(status["pid"], json!(pid), "the process stays: {status}");
        assert!(status["restored"]["outage_us"].as_u64() > Some(0), "{status}");
        site.around(moment, "opened_times");
        site.flows();
        site.replay();
        site.judge();
        site.judge_daemon(round);
    }
    answers_during_an_upgrade(&site.gateway);
    site.flows();
    // What cannot take over does not.
    for refused in ["/bin/false", "/nonexistent/peregrine"] {
        let out = site.gateway.upgrade(&["--binary", refused]);
        assert_eq!(out.status.code(), Some(2), "{refused}");
        assert!(String::from_utf8_lossy(&out.stderr).contains(refused));
        site.flows();
    }
    let config = configuration(&site.gateway);
    // Nor does what would not find the journal: of another name, it would be the first of its kind.
    for (from, to) in
        [("name = \"t", "name = \"renamed-t"), ("\ncores", "\ncontrol.journal = false\ncores")]
    {
        let before = std::fs::read_to_string(&config).expect("a configuration");
        std::fs::write(&config, before.replacen(from, to, 1)).expect("written");
        let out = site.gateway.upgrade(&[]);
        let erred = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{erred}");
        assert!(erred.contains("put `name`"), "{erred}");
        site.flows();
        std::fs::write(&config, before).expect("written");
    }
    site.judge();
    site.judge_daemon(3);
    assert_eq!(site.gateway.stop(), Some(0), "log: {}", site.gateway.log());
}

#[test]
fn a_damaged_journal_gives_its_good_part_and_the_guard_holds_the_rest() {
    let mut site = Site::new(4);
    site.flows();
    let directory = journal_directory(&site.gateway);
    let restart = |site: &mut Site| {
        let Site { gateway, inside, .. } = site;
        gateway.restart(inside);
        site.gateway.show("status")
    };

    // Cut in the middle of its last record: a policy of the last tunnel.
    site.gateway.kill();
    let path = directory.join("journal");
    let bytes = std::fs::read(&path).expect("a journal");
    std::fs::write(&path, &bytes[..bytes.len() - 10]).expect("written");
    let status = restart(&mut site);
    assert_eq!(status["restored"]["policies"], json!(7), "{status}");
    assert_eq!(status["restored"]["sas"], json!(8), "{status}");
    let aside = PathBuf::from(status["restored"]["set_aside"].as_str().expect("a path"));
    let rest = std::fs::read(&aside).expect("the rest");
    assert!(bytes[..bytes.len() - 10].ends_with(&rest) && !rest.is_empty());
    site.flows();
    site.judge();

    // A version of the format that nobody knows: nothing comes back, and nothing leaves in clear.
    site.gateway.kill();
    let mut bytes = std::fs::read(&path).expect("a journal");
    bytes[8] = 99;
    std::fs::write(&path, &bytes).expect("written");
    let status = restart(&mut site);
    assert_eq!(status["restored"]["sas"], json!(0), "{status}");
    let problem = status["restored"]["problem"].as_str().expect("words");
    assert!(problem.contains("format 99"), "{status}");
    let blocked = |gateway: &Gateway| gateway.verdict("out_policy_block");
    let goes_on_blocking = |site: &mut Site| {
        let before = blocked(&site.gateway);
        site.gateway.wait("blocked packets", |gateway| blocked(gateway) > before + 100);
        site.judge();
    };
    goes_on_blocking(&mut site);

    // Nor in the run after that one, whose own journal is whole.
    site.gateway.xfrm(&["xfrm policy setdefault in accept fwd accept out accept".to_owned()]);
    site.gateway.kill();
    let status = restart(&mut site);
    assert_eq!(status["restored"]["problem"], Value::Null, "{status}");
    goes_on_blocking(&mut site);
    let seen = site.witness.ask("w.counts['esp']");
    assert_eq!(site.gateway.stop(), Some(0));
    assert_eq!(site.witness.ask("w.counts['esp']"), seen, "nothing was sealed");
    let left: Vec<_> = std::fs::read_dir(&directory).into_iter().flatten().flatten().collect();
    assert_eq!(left.len(), 2, "a clean stop leaves what was set aside: {left:?}");
}

#[test]
fn a_clean_stop_leaves_no_keys() {
    let mut site = Site::new(2);
    let directory = journal_directory(&site.gateway);
    assert_eq!(site.gateway.stop(), Some(0), "log: {}", site.gateway.log());
    assert!(!directory.exists(), "{directory:?} is gone");
}
