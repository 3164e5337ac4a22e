//! `peregrine lab swanctl`: strongSwan itself takes the files.

mod daemon;
mod gateway;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use daemon::cell::Cell;
use daemon::root::Root;
use gateway::{Cores, Gateway};
use lab::topology::{Namespace, Veth};

/// Runs `peregrine lab swanctl` with a folder for its files.
fn generate(out: &Path, options: &str) -> Output {
    Command::new(gateway::PEREGRINE)
        .args(["lab", "swanctl", "--out"])
        .arg(out)
        .args(options.split_whitespace())
        .output()
        .unwrap()
}

/// A daemon in a network namespace of its own; killed when dropped.
struct Charon {
    child: Child,
    folder: PathBuf,
}

impl Charon {
    /// Starts one on the files in `folder`, with its socket there instead of in /run.
    fn start(folder: &Path) -> Charon {
        let settings = folder.join("strongswan.conf");
        let text = fs::read_to_string(&settings).unwrap();
        assert!(text.contains("socket = unix:///run/"), "{text}");
        let socket = folder.join("vici");
        let text: String = text
            .lines()
            .map(|line| match line.split_once("socket = unix://") {
                Some((indent, _)) => format!("{indent}socket = unix://{}\n", socket.display()),
                None => format!("{line}\n"),
            })
            .collect();
        fs::write(&settings, text).unwrap();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "unshare", "--net", "--", "charon-systemd"])
            .env("STRONGSWAN_CONF", &settings)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let charon = Charon { child, folder: folder.to_owned() };
        let end = Instant::now() + Duration::from_secs(60);
        while !charon.swanctl("--version --daemon").status.success() {
            assert!(Instant::now() < end, "charon-systemd does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        charon
    }

    fn swanctl(&self, arguments: &str) -> Output {
        Command::new("swanctl")
            .args(arguments.split_whitespace())
            .env("STRONGSWAN_CONF", self.folder.join("strongswan.conf"))
            .env("SWANCTL_DIR", &self.folder)
            .output()
            .unwrap()
    }

    /// Loads everything; what `swanctl` says about it.
    fn load(&self) -> String {
        let output = self.swanctl("--load-all");
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        text
    }
}

impl Drop for Charon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every `charon-NN` folder of a plan.
fn daemons(plan: &Path) -> Vec<PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries(plan)
        .flat_map(|host| entries(&host.path()).collect::<Vec<_>>())
        .map(|entry| entry.path())
        .filter(|path| path.join("strongswan.conf").exists())
        .collect();
    folders.sort();
    folders
}

#[test]
fn strongswan_takes_every_file_of_every_plan() {
    let root = tempfile::tempdir().unwrap();
    for (options, loaded) in [
        ("--plan test0 --tunnels 3", [3, 3].as_slice()),
        ("--plan test0 --tunnels 5 --shards 2 --prefix 28", &[3, 2, 3, 2]),
        ("--plan test4 --tunnels 1201", &[601, 600, 601, 600]),
        ("--plan test4 --tunnels 4 --responder any", &[4, 2]),
        ("--plan pcpu --tunnels 2", &[1, 1]),
        ("--plan test4 --tunnels 3 --shards 2 --auth cert", &[2, 1, 2, 1]),
    ] {
        let plan = root.path().join(options.replace([' ', '-'], ""));
        let output = generate(&plan, options);
        assert!(output.status.success(), "{output:?}");
        let daemons = daemons(&plan);
        assert_eq!(daemons.len(), loaded.len(), "{options}");
        for (daemon, connections) in daemons.iter().zip(loaded) {
            if options.contains("pcpu") {
                assert_per_cpu_is_asked_for(daemon);
            }
            let text = Charon::start(daemon).load();
            let expected = format!("successfully loaded {connections} connections, 0 unloaded");
            assert!(text.contains(&expected), "{options}, {daemon:?}:\n{text}");
            let proof = match options.contains("cert") {
                true => "loaded certificate from",
                false => "loaded ike secret",
            };
            assert!(text.contains(proof), "{options}, {daemon:?}:\n{text}");
        }
    }
}

/// The one key that Debian 12's strongSwan does not know yet is there, and is taken out for it.
fn assert_per_cpu_is_asked_for(daemon: &Path) {
    let file = daemon.join("conf.d/connections-001.conf");
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text.matches("per_cpu_sas = encap\n").count(), 2, "{text}");
    let without: Vec<&str> = text.lines().filter(|line| !line.contains("per_cpu_sas")).collect();
    fs::write(&file, without.join("\n")).unwrap();
}

#[test]
fn what_is_not_possible_is_said_and_nothing_is_written() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("plan");
    for (options, words) in [
        ("--plan test0 --tunnels 65024", "room for 65023"),
        ("--plan pcpu --tunnels 300", "room for 252"),
        ("--plan test4 --tunnels 2 --shards 3", "1 to 2"),
        ("--plan test9 --tunnels 2", "test4"),
    ] {
        let output = generate(&out, options);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options}: {text}");
        assert!(text.contains(words), "{options}: {text}");
        assert!(!out.exists(), "{options}");
    }
    assert!(generate(&out, "--plan test0 --tunnels 1").status.success());
    let again = generate(&out, "--plan test0 --tunnels 1");
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("is not empty"));
}

/// Gateways in namespaces that are named and linked as in a plan's files, with a charon and a host each.
struct Pair {
    charons: [Cell; 2],
    gateways: [Gateway; 2],
    hosts: [Namespace; 2],
    _namespaces: [Namespace; 2],
}

impl Pair {
    /// Carries out a plan's files with the daemon of `root`; `links` are those of each gateway, the
    /// one to the other gateway first.
    fn of(plan: &Path, names: [&str; 2], links: [&str; 2], root: &Root) -> Pair {
        let namespaces = names.map(|name| Namespace::new(name).unwrap());
        let [near, far] = &namespaces;
        Veth::new((near, links[0]), (far, links[0]), 2).unwrap();
        let hosts = names.map(|name| Namespace::new(&format!("{name}-host")).unwrap());
        for (namespace, host) in namespaces.iter().zip(&hosts) {
            Veth::new((namespace, links[1]), (host, "eth0"), 2).unwrap();
        }
        for (namespace, name) in namespaces.iter().zip(names) {
            let text = fs::read_to_string(plan.join(name).join("ip.batch")).unwrap();
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            namespace.ip_batch(&lines).unwrap();
        }
        let gateways =
            [near, far].map(|namespace| Gateway::start(namespace, &links, Cores::These(&[0, 1])));
        let charon = |index: usize| {
            let mut cell = Cell::new(root, &namespaces[index], Some(&gateways[index]));
            let copied = Command::new("cp")
                .arg("-a")
                .args([plan.join(names[index]).join("charon-00"), cell.file("etc/plan")])
                .status()
                .unwrap();
            assert!(copied.success());
            cell.start("/usr/sbin/charon-systemd", &[], &SETTINGS);
            cell.wait_ready(Duration::from_secs(60), |cell| {
                swanctl(cell, "--version --daemon").status.success()
            });
            let loaded = swanctl(&cell, "--load-all");
            assert!(loaded.status.success(), "{loaded:?}");
            cell
        };
        let charons = [charon(0), charon(1)];
        Pair { charons, gateways, hosts, _namespaces: namespaces }
    }

    /// Waits until each gateway has so many SAs.
    fn wait_sas(&self, count: usize) {
        for (gateway, charon) in self.gateways.iter().zip(&self.charons) {
            gateway.wait(&format!("{count} SAs; charon: {}", charon.log_tail(30)), |gateway| {
                gateway.show("sa").as_array().is_some_and(|all| all.len() == count)
            });
        }
    }
}

/// Where a daemon finds its files.
const SETTINGS: [(&str, &str); 2] =
    [("STRONGSWAN_CONF", "/etc/plan/strongswan.conf"), ("SWANCTL_DIR", "/etc/plan")];

fn swanctl(cell: &Cell, arguments: &str) -> Output {
    let mut command = cell.command("env");
    command.args(SETTINGS.map(|(name, value)| format!("{name}={value}")));
    command.arg("swanctl").args(arguments.split_whitespace());
    command.stdin(Stdio::null()).output().unwrap()
}

/// (connection, child) of every tunnel.
fn tunnels(plan: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(plan.join("tunnels.csv")).unwrap();
    let cells = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
    text.lines().skip(1).map(cells).map(|row| (row[3].clone(), row[4].clone())).collect()
}

#[test]
fn tunnels_come_up_by_certificate() {
    let Some(root) = Root::find("strongswan-5.9.8") else { return };
    let folder = tempfile::tempdir().unwrap();
    for (name, responder) in [("exact", "exact"), ("any", "any")] {
        let plan = folder.path().join(name);
        let options = format!("--plan test0 --tunnels 3 --auth cert --responder {responder}");
        assert!(generate(&plan, &options).status.success());
        let pair = Pair::of(&plan, ["gw0", "gw1"], ["p0", "p1"], &root);
        for (connection, child) in tunnels(&plan) {
            let line = format!("--initiate --ike {connection} --child {child} --timeout 60");
            let output = swanctl(&pair.charons[0], &line);
            let log = pair.charons[0].log_tail(30);
            assert!(output.status.success(), "{output:?}\n{log}");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains("with ECDSA"), "a signature was checked: {text}");
        }
        pair.wait_sas(6);
    }
}

/// The published per-CPU files as they are: the first packet asks for the SA for all, and each CPU
/// that has traffic for one of its own, in UDP.
#[test]
fn the_per_cpu_files_bring_an_sa_for_each_cpu() {
    let Some(root) = Root::find("strongswan-6.1") else { return };
    let folder = tempfile::tempdir().unwrap();
    for auth in ["psk", "cert"] {
        let plan = folder.path().join(auth);
        assert!(
            generate(&plan, &format!("--plan pcpu --tunnels 1 --auth {auth}")).status.success()
        );
        let pair = Pair::of(&plan, ["west", "east"], ["black", "red"], &root);
        for (host, own, gateway) in
            [(0, "10.25.0.1", "10.25.0.254"), (1, "10.25.2.2", "10.25.2.254")]
        {
            let lines = [
                format!("address add {own}/24 dev eth0"),
                format!("route add default via {gateway}"),
            ];
            pair.hosts[host].ip_batch(&lines).unwrap();
        }
        let [sunset, _sunrise] = &pair.hosts;
        let ping = ["-n", "-q", "-c", "1", "-W", "2", "10.25.2.2"];
        pair.gateways[0].wait("a ping through the tunnel", |_| sunset.run("ping", &ping).is_ok());
        // Many conversations, so that either CPU has some.
        let cpus = |gateway: &Gateway| -> BTreeSet<Option<u64>> {
            let all = gateway.show("sa");
            let out = all.as_array().unwrap().iter().filter(|sa| sa["direction"] == "out");
            out.map(|sa| sa["cpu"].as_u64()).collect()
        };
        let expected = BTreeSet::from([None, Some(0), Some(1)]);
        pair.gateways[0].wait("an SA for each CPU", |gateway| {
            for port in 5000..5032_u16 {
                let send = move || {
                    let socket = std::net::UdpSocket::bind(("10.25.0.1", port)).unwrap();
                    socket.send_to(b"x", ("10.25.2.2", port)).unwrap();
                };
                sunset.scope(send).unwrap();
            }
            cpus(gateway) == expected
        });
    }
}
