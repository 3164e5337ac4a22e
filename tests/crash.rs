//! A gateway that is killed leaks nothing, and one that is stopped leaves nothing behind. That its
//! tunnels go on is shown in `journal.rs`; here they do not.

mod gateway;

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gateway::{Cores, Gateway};
use lab::topology::{Namespace, Process, Veth};

/// How long traffic may take to begin: a busy machine starts who sends it late.
const PATIENCE: Duration = Duration::from_secs(20);

/// red host — gateway — black host; the kernel of the gateway would forward in clear if it could.
struct Path {
    red: Namespace,
    gateway_ns: Namespace,
    black: Namespace,
    gateway: Gateway,
}

const KEY: &str = "0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fdeadbeef";

fn tunnel() -> Vec<String> {
    let state = "proto esp mode tunnel reqid 1 replay-window 64 flag esn aead rfc4106(gcm(aes))";
    let tmpl = "proto esp reqid 1 mode tunnel";
    vec![
        format!("xfrm state add src 192.0.2.1 dst 192.0.2.2 spi 0x101 {state} {KEY} 128"),
        format!("xfrm state add src 192.0.2.2 dst 192.0.2.1 spi 0x102 {state} {KEY} 128"),
        format!(
            "xfrm policy add src 16.0.0.0/8 dst 48.0.0.0/8 dir out \
             tmpl src 192.0.2.1 dst 192.0.2.2 {tmpl}"
        ),
        format!(
            "xfrm policy add src 48.0.0.0/8 dst 16.0.0.0/8 dir fwd \
             tmpl src 192.0.2.2 dst 192.0.2.1 {tmpl}"
        ),
    ]
}

impl Path {
    /// Without a journal: nothing but the guard stands between the kill and the next installation.
    fn new() -> Path {
        let red = Namespace::new("red").expect("a namespace");
        let gateway_ns = Namespace::new("gw").expect("a namespace");
        let black = Namespace::new("blk").expect("a namespace");
        Veth::new((&red, "p0"), (&gateway_ns, "red0"), 1).expect("a veth pair");
        Veth::new((&black, "p0"), (&gateway_ns, "black0"), 1).expect("a veth pair");
        // The kernel could forward in clear: a route to the far side, forwarding on, no firewall.
        gateway_ns.sysctl("net.ipv4.ip_forward", "1").expect("forwarding");
        for (namespace, lines) in [
            (
                &gateway_ns,
                "address add 10.0.0.254/24 dev red0\naddress add 192.0.2.1/24 dev black0\n\
                 route add 16.0.0.0/8 via 10.0.0.1\nroute add 48.0.0.0/8 via 192.0.2.2",
            ),
            (
                &red,
                "address add 10.0.0.1/24 dev p0\naddress add 16.0.0.1/32 dev lo\n\
                 route add 48.0.0.0/8 via 10.0.0.254 src 16.0.0.1",
            ),
            (&black, "address add 192.0.2.2/24 dev p0\naddress add 48.0.0.1/32 dev lo"),
        ] {
            let lines: Vec<String> = lines.lines().map(str::to_string).collect();
            namespace.ip_batch(&lines).expect("addresses and routes");
        }
        let ports = ["red0", "black0"];
        let gateway =
            Gateway::start_with(&gateway_ns, &ports, Cores::Any(0), "control.journal = false");
        Path { red, gateway_ns, black, gateway }
    }

    /// A steady stream of UDP datagrams from the red host into the tunnel, ended when dropped.
    fn load(&self) -> Load {
        let script = "import socket,time\n\
             s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
             end=time.time()+60\n\
             while time.time()<end:\n\
             \u{20}for _ in range(20):\n\
             \u{20} try: s.sendto(b'SECRET-CLEAR-TEXT'*8,('48.0.0.1',7000))\n\
             \u{20} except OSError: pass\n\
             \u{20}time.sleep(0.002)\n";
        let child = self
            .red
            .command("python3")
            .args(["-c", script])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the load starts");
        Load(child)
    }

    /// Captures the black side for a while: (ESP packets, packets with our clear text).
    fn capture(&self, during: impl FnOnce()) -> (usize, usize) {
        let directory = gateway::left::scratch();
        let file = directory.path().join("black.pcap");
        let mut command = self.black.command_bound(std::path::Path::new("tcpdump"));
        command.args(["-i", "p0", "-U", "-Q", "in", "-Z", "root", "-w"]).arg(&file);
        let mut tcpdump = Process::start("tcpdump", command, directory.path().join("log"))
            .expect("tcpdump starts");
        tcpdump
            .wait_until(Duration::from_secs(10), |p| p.log().contains("listening"))
            .expect("tcpdump listens");
        during();
        thread::sleep(Duration::from_millis(100));
        tcpdump.stop();
        let bytes = std::fs::read(&file).expect("a capture");
        let clear = find(&bytes, b"SECRET-CLEAR-TEXT");
        // An IPv4 header of the outer addresses with protocol 50 right before its checksum.
        let esp = bytes
            .windows(12)
            .filter(|w| w[1] == 50 && w[4..8] == [192, 0, 2, 1] && w[8..12] == [192, 0, 2, 2])
            .count();
        (esp, clear)
    }

    /// Captures until the tunnel carries traffic: none of it in clear meanwhile.
    fn until_protected(&self, what: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            let (esp, clear) = self.capture(|| thread::sleep(Duration::from_millis(300)));
            assert_eq!(clear, 0, "{what}: nothing in clear");
            if esp > 0 {
                return;
            }
            assert!(Instant::now() < end, "{what}: the tunnel carries traffic");
        }
    }

    /// Captures until clear text is seen.
    fn until_clear(&self, what: &str) {
        let end = Instant::now() + PATIENCE;
        while self.capture(|| thread::sleep(Duration::from_millis(300))).1 == 0 {
            assert!(Instant::now() < end, "{what}");
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> usize {
    haystack.windows(needle.len()).filter(|window| *window == needle).count()
}

struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_gateway_leaks_nothing_and_carries_traffic_again() {
    let mut path = Path::new();

    // The control of this experiment: without a policy the same packets do pass in clear.
    let load = path.load();
    path.until_clear("the capture sees clear text where nothing protects it");
    drop(load);

    path.gateway.xfrm(&tunnel());
    let _load = path.load();
    for round in 0..3 {
        path.until_protected(&format!("round {round}, while it runs"));

        let pid = path.gateway.pid().to_string();
        let (_, clear) = path.capture(|| {
            let killed = Command::new("kill").args(["-9", &pid]).status();
            assert!(killed.is_ok_and(|status| status.success()), "kill -9 {pid}");
            thread::sleep(Duration::from_millis(700));
        });
        assert_eq!(clear, 0, "round {round}: nothing in clear after kill -9");

        let Path { gateway, gateway_ns, .. } = &mut path;
        gateway.kill();
        gateway.restart(gateway_ns);
        let (_, clear) = path.capture(|| thread::sleep(Duration::from_millis(300)));
        assert_eq!(clear, 0, "round {round}: what was protected is held until it is again");
        path.gateway.xfrm(&tunnel());
        path.until_protected(&format!("round {round}, after the restart"));
    }
}

#[test]
fn a_stopped_gateway_leaves_nothing_behind() {
    let mut path = Path::new();
    path.gateway.xfrm(&tunnel());
    let attached = path.gateway_ns.ip("-d link show").expect("ip link");
    assert!(attached.contains("xdp"), "attached while it runs: {attached}");
    assert_eq!(path.gateway.stop(), Some(0), "log: {}", path.gateway.log());
    let links = path.gateway_ns.ip("-d link show").expect("ip link");
    assert!(!links.contains("prog/xdp"), "detached: {links}");
    let directory = std::path::Path::new("/run/peregrine").join(&path.gateway.name);
    assert!(!directory.exists(), "{directory:?} is gone");
    let policies = path.gateway_ns.ip("xfrm policy list").expect("the kernel's own");
    assert_eq!(policies.trim(), "", "no policy is left in the kernel");
    let ping = path.red.run("ping", &["-c", "1", "-W", "2", "10.0.0.254"]);
    assert!(ping.is_ok(), "the kernel serves the interface again: {ping:?}");
}

#[test]
fn without_its_program_an_interface_leaks_nothing_protected() {
    let path = Path::new();
    path.gateway.xfrm(&tunnel());
    let _load = path.load();
    path.until_protected("before it is taken off");
    // The gateway lives, but a person took its program off: packets reach the kernel, which would
    // forward them.
    let (_, clear) = path.capture(|| {
        path.gateway_ns.ip("link set dev red0 xdp off").expect("ip link");
        thread::sleep(Duration::from_millis(500));
    });
    assert_eq!(clear, 0, "the kernel forwards nothing that is protected");
    // The control of this experiment: it is the kernel's policy that holds them.
    path.gateway_ns.ip("xfrm policy flush").expect("ip xfrm");
    path.until_clear("the kernel did get the packets");
}
