//! Network namespaces and veth pairs for tests, removed when dropped.

#![allow(dead_code, reason = "each test program uses a part")]

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace of this test process.
pub struct Namespace {
    name: String,
}

/// Runs a command; its output, or a panic with what it said.
pub fn run(command: &str) -> String {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a command");
    let output = Command::new(program).args(words).output().expect(program);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Namespace {
    /// A new one, with its loopback up and no IPv6 chatter on interfaces to come.
    pub fn new(role: &str) -> Namespace {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace { name: format!("xsk{}-{count}-{role}", std::process::id()) };
        run(&format!("ip netns add {}", namespace.name));
        namespace.run("ip link set lo up");
        namespace.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a command inside.
    pub fn run(&self, command: &str) -> String {
        run(&format!("ip netns exec {} {command}", self.name))
    }

    /// Whether a command inside succeeds.
    pub fn try_run(&self, command: &str) -> bool {
        let mut ip = Command::new("ip");
        ip.args(["netns", "exec", &self.name]).args(command.split_whitespace());
        ip.output().expect("ip").status.success()
    }

    /// Runs a function on a thread inside.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                enter(&self.name);
                work()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The Ethernet address of an interface inside.
    pub fn mac(&self, interface: &str) -> [u8; 6] {
        let text = self.run(&format!("cat /sys/class/net/{interface}/address"));
        let mut mac = [0; 6];
        for (byte, digits) in mac.iter_mut().zip(text.trim().split(':')) {
            *byte = u8::from_str_radix(digits, 16).expect("hexadecimal");
        }
        mac
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

/// Moves the calling thread into a namespace.
pub fn enter(namespace: &str) {
    let file = File::open(format!("/run/netns/{namespace}")).expect("a namespace");
    let network = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(file.as_fd(), network).expect("to enter the namespace");
}

/// A veth pair between two namespaces, `queues` queues each, up, with complete checksums.
pub fn veth(left: (&Namespace, &str), right: (&Namespace, &str), queues: u32, mtu: u32) {
    let shape = format!("mtu {mtu} numrxqueues {queues} numtxqueues {queues}");
    run(&format!(
        "ip link add {} netns {} {shape} type veth peer name {} netns {} {shape}",
        left.1, left.0.name, right.1, right.0.name
    ));
    for (namespace, interface) in [left, right] {
        // A sender's stack leaves checksums unfinished for a device that claims to do them.
        namespace.run(&format!("ethtool -K {interface} tx off"));
        namespace.run(&format!("ip link set {interface} up"));
    }
}

/// A UDP packet in an Ethernet frame of `len` bytes, with `number` at the end of its headers.
pub fn frame(to: [u8; 6], destination: [u8; 4], len: usize, number: u64) -> Vec<u8> {
    assert!(len >= 50, "no room for a number");
    let mut frame = vec![0; len];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..30].copy_from_slice(&[10, 1, 0, 2]);
    frame[30..34].copy_from_slice(&destination);
    frame[34..38].copy_from_slice(&[0x30, 0, 0x30, 0]);
    frame[38..40].copy_from_slice(&((len - 34) as u16).to_be_bytes());
    frame[42..50].copy_from_slice(&number.to_be_bytes());
    let sum: u32 =
        frame[14..34].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    frame
}

/// The number of such a frame.
pub fn number(frame: &[u8]) -> u64 {
    frame[42..50].try_into().map_or(u64::MAX, u64::from_be_bytes)
}
