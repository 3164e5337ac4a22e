//! One gateway per name and per interface: who comes second is refused and disturbs nobody, who
//! comes after a crash takes over, and an interface that goes away takes no gateway with it.

mod gateway;
mod peer;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gateway::{Cores, Gateway, PEREGRINE};
use lab::topology::Namespace;
use peer::{CLEAR, PORTS, Site};

/// Runs a gateway of this name on an interface of the site, which must not come about.
fn second(site: &Site, name: &str, interface: &str) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("second.toml");
    let text = format!(
        "name = \"{name}\"\n[control]\nstate_dir = {:?}\n[[port]]\ninterface = \"{interface}\"\n",
        directory.path().join("state")
    );
    std::fs::write(&config, text).expect("a configuration");
    // A second one that does start, against the rules, is stopped after a while.
    let mut command = site.inside.command("timeout");
    command.args(["10", PEREGRINE, "run", "--config"]).arg(config);
    command.output().expect("it ends")
}

/// Exit code 2 and one sentence, which is returned.
#[track_caller]
fn refused(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.lines().count(), 1, "one sentence: {said}");
    assert!(said.starts_with("peregrine: "), "{said}");
    assert_eq!(output.stdout, b"", "{said}");
    said
}

fn run_directory(name: &str) -> PathBuf {
    Path::new("/run/peregrine").join(name)
}

#[test]
fn a_second_gateway_of_a_name_is_refused_and_the_first_goes_on() {
    let mut site = Site::new();
    site.becomes("red0", CLEAR, "forwarded");
    let name = site.gateway.name.clone();
    // Even on an interface that nobody serves: the name is taken.
    site.ip("link add spare0 type veth peer name spare1");
    for interface in ["red0", "spare0"] {
        let said = refused(&second(&site, &name, interface));
        assert!(said.contains(&name) && said.contains("already running"), "{said}");
        assert!(said.contains(&site.gateway.pid().to_string()), "{said}");
        site.crosses("red0", "black0", CLEAR, "forwarded");
    }
    site.xfrm(&["policy add src 16.0.0.0/8 dst 48.0.0.0/8 dir out action block"]);
    site.becomes("red0", CLEAR, "out_policy_block");
    assert_eq!(site.gateway.stop(), Some(0), "{}", site.gateway.log());
    assert!(!run_directory(&name).exists());
}

#[test]
fn a_second_gateway_on_an_interface_is_refused_and_the_first_goes_on() {
    let mut site = Site::new();
    site.becomes("red0", CLEAR, "forwarded");
    let name = format!("{}-second", site.gateway.name);
    let said = refused(&second(&site, &name, "red0"));
    assert!(said.contains("red0"), "names the interface: {said}");
    assert!(!run_directory(&name).exists(), "and leaves nothing");
    site.crosses("red0", "black0", CLEAR, "forwarded");
    let links = site.inside.ip("-d link show red0").expect("ip link");
    assert!(links.contains("prog/xdp"), "the first one's program is there: {links}");
    assert_eq!(site.gateway.stop(), Some(0), "{}", site.gateway.log());
    let links = site.inside.ip("-d link show red0").expect("ip link");
    assert!(!links.contains("prog/xdp"), "{links}");
}

#[test]
fn what_a_killed_gateway_left_is_taken_over() {
    let mut site = Site::new();
    site.becomes("red0", CLEAR, "forwarded");
    let (name, pid) = (site.gateway.name.clone(), site.gateway.pid());
    for _ in 0..2 {
        site.gateway.kill();
        let left = run_directory(&name);
        assert!(left.join("pid").exists() && left.join("xfrm.sock").exists(), "{left:?}");
        assert!(refused(&show(&name)).contains(&name));
        let Site { gateway, inside, .. } = &mut site;
        gateway.restart(inside);
        assert_ne!(gateway.pid(), pid);
        let pid_file = std::fs::read_to_string(left.join("pid")).expect("a pid");
        assert_eq!(pid_file.trim(), running_pid(gateway), "the new one's pid");
        site.becomes("red0", CLEAR, "forwarded");
        site.crosses("red0", "black0", CLEAR, "forwarded");
    }
    assert_eq!(site.gateway.stop(), Some(0));
    assert!(!run_directory(&name).exists());
}

/// Nothing is published between the start and the packet: no route of the host's comes or goes.
#[test]
fn esp_in_udp_of_an_sa_that_came_back_is_not_the_kernels() {
    const SA: &str = "state add src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x102 reqid 1 mode tunnel \
        encap espinudp 4500 4500 0.0.0.0 \
        aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f1011121314 128";
    let forged = "IP(src='192.0.2.2', dst='192.0.2.1')/UDP(sport=4500, dport=4500)\
                  /(bytes.fromhex('0000010200000001') + bytes(40))";
    let mut site = Site::with(Cores::Any(0), "auto", "host.enable = false");
    site.xfrm(&[SA]);
    site.expect("black0", forged, "integrity_failed");
    site.gateway.kill();
    let Site { gateway, inside, .. } = &mut site;
    gateway.restart(inside);
    site.expect("black0", forged, "integrity_failed");
}

fn running_pid(gateway: &Gateway) -> String {
    gateway.show("status")["pid"].to_string()
}

/// `peregrine show drops` of an instance.
fn show(name: &str) -> Output {
    Command::new(PEREGRINE).args(["show", "drops", "--instance", name]).output().expect("it runs")
}

#[test]
fn there_is_nothing_to_show_or_to_drive_where_no_gateway_runs() {
    let name = format!("none{}", std::process::id());
    let said = refused(&show(&name));
    assert!(said.contains(&name), "{said}");
    let exec = ["exec", "--instance", &name, "--", "ip", "xfrm", "state"];
    let said = refused(&Command::new(PEREGRINE).args(exec).output().expect("it runs"));
    assert!(said.contains(&name), "{said}");
    // A run directory that a killed gateway left is no gateway.
    let mut site = Site::new();
    let name = site.gateway.name.clone();
    site.gateway.kill();
    assert!(run_directory(&name).exists());
    refused(&show(&name));
}

#[test]
fn an_interface_that_is_deleted_takes_no_gateway_with_it() {
    let mut site = Site::new();
    site.ip("route add 49.0.0.0/8 via 198.51.100.2");
    let to_blue = CLEAR.replace("48.", "49.");
    site.becomes("red0", CLEAR, "forwarded");
    site.becomes("red0", &to_blue, "forwarded");
    let pid = running_pid(&site.gateway);

    // While packets flow out by it; the far end goes with it.
    site.peer.ask(&format!("start('red0', {to_blue})"));
    site.wait("packets flow", |peer| !peer.list("numbers('blue0')").is_empty());
    site.ip("link del blue0");
    site.gateway.wait("the route is gone", |gateway| gateway.verdict("no_route") > 2);
    site.peer.ask("stop()");
    // Its own end is in order, and the others go on.
    assert_eq!(running_pid(&site.gateway), pid, "{}", site.gateway.log());
    site.becomes("red0", &to_blue, "no_route");
    site.crosses("red0", "black0", CLEAR, "forwarded");
    let ports = site.gateway.show("ports");
    let blue = ports.as_array().expect("ports").iter().find(|port| port["name"] == "blue0");
    assert_eq!(blue.expect("the port")["link_up"], false, "{ports}");

    // The one that packets come in by.
    site.ip("link del red0");
    site.gateway.wait("the port is down", |gateway| {
        gateway.show("ports")[0]["link_up"] == serde_json::Value::Bool(false)
    });
    site.xfrm(&["policy add src 16.0.0.0/8 dst 48.0.0.0/8 dir out action block"]);
    assert_eq!(running_pid(&site.gateway), pid, "{}", site.gateway.log());
    assert_eq!(site.gateway.stop(), Some(0), "{}", site.gateway.log());
}

/// The port stays dead until the gateway is told to look again, and says so.
#[test]
fn an_interface_that_is_made_anew_is_taken_up_by_an_upgrade() {
    let mut site = Site::new();
    site.becomes("red0", CLEAR, "forwarded");
    let says = |site: &Site, words: &str| {
        site.gateway.wait(words, |gateway| gateway.log().contains(words));
    };
    site.ip("link del blue0");
    says(&site, "the interface is gone, and the port is dead");
    // Its far end has another name: only the gateway's own end matters here.
    site.ip("link add blue0 type veth peer name blue9");
    says(&site, "there is an interface of this name again");
    site.ip("link set blue9 up");
    site.ip("link set blue0 up");
    site.ip("address add 198.51.100.1/24 dev blue0");
    site.ip("route add 49.0.0.0/8 dev blue0");
    let to_blue = CLEAR.replace("48.", "49.");
    site.becomes("red0", &to_blue, "route_not_a_port");

    let out = site.gateway.upgrade(&[]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    site.becomes("red0", &to_blue, "neighbour_unresolved");
    site.becomes("red0", CLEAR, "forwarded");
    assert_eq!(site.gateway.stop(), Some(0), "{}", site.gateway.log());
}

/// Its sockets are gone for good, although index, name and program are what they were.
#[test]
fn an_interface_that_was_in_another_namespace_is_no_port_until_an_upgrade() {
    let mut site = Site::new();
    site.ip("route add 49.0.0.0/8 via 198.51.100.2");
    let to_blue = CLEAR.replace("48.", "49.");
    site.becomes("red0", &to_blue, "forwarded");
    let blue_is_up = |gateway: &Gateway| gateway.show("ports")[2]["link_up"].clone();
    assert_eq!(blue_is_up(&site.gateway), true);
    let away = Namespace::new("away").expect("a namespace");
    site.ip(&format!("link set blue0 netns {}", away.name()));
    site.gateway.wait("the port is down", |gateway| blue_is_up(gateway) == false);
    let back = format!("link set blue0 netns {}", site.inside.name());
    away.ip(&back).expect("it comes back");
    site.ip("link set blue0 up");
    site.ip("address add 198.51.100.1/24 dev blue0");
    site.ip("route add 49.0.0.0/8 via 198.51.100.2");
    site.becomes("red0", &to_blue, "port_down");
    assert_eq!(blue_is_up(&site.gateway), false);

    let out = site.gateway.upgrade(&[]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    site.becomes("red0", &to_blue, "forwarded");
    assert_eq!(blue_is_up(&site.gateway), true);
}

/// Its program would drop what is to be forwarded, and nobody would know of it.
#[test]
fn an_interface_that_is_no_port_any_more_is_the_kernels() {
    let mut site = Site::new();
    site.becomes("red0", CLEAR, "forwarded");
    let programs = |site: &Site| {
        let shown = |port| site.inside.ip(&format!("-d link show {port}")).expect("ip link");
        PORTS.map(|port| shown(port).contains("prog/xdp"))
    };
    let lose = |site: &Site, port: &str| {
        let file = site.gateway.configuration();
        let text = std::fs::read_to_string(file).expect("a configuration");
        let (rest, _) = text.split_once(&format!("[[port]]\ninterface = {port:?}")).expect("it");
        std::fs::write(file, rest).expect("it is written");
    };
    assert_eq!(programs(&site), [true, true, true]);
    lose(&site, "blue0");
    let out = site.gateway.upgrade(&[]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    site.gateway.wait("a warning", |gateway| gateway.log().contains("is no port any more"));
    assert_eq!(programs(&site), [true, true, false]);
    site.becomes("red0", CLEAR, "forwarded");

    site.gateway.kill();
    assert_eq!(programs(&site), [true, true, false]);
    lose(&site, "black0");
    let Site { gateway, inside, .. } = &mut site;
    gateway.restart(inside);
    assert_eq!(programs(&site), [true, false, false]);
    assert_eq!(site.gateway.stop(), Some(0), "{}", site.gateway.log());
    assert_eq!(programs(&site), [false, false, false]);
    assert!(!run_directory(&site.gateway.name).exists());
}
