//! What passes on the wire between the gateways, seen by tcpdump on the router.

use std::path::Path;
use std::time::{Duration, Instant};

use lab::topology::{Namespace, Process};

use crate::gateway::left::scratch;

/// How long tcpdump may take to begin.
const READY: Duration = Duration::from_secs(20);

/// It prints a packet at most a second late; twice that without one means that all are printed.
const QUIET: Duration = Duration::from_secs(2);

/// A running capture of one end's packets.
pub struct Wire {
    process: Process,
    /// Where it writes.
    _directory: tempfile::TempDir,
}

impl Wire {
    /// Begins to look at what comes in by `interface`; `filter` is tcpdump's.
    pub fn start(namespace: &Namespace, interface: &str, filter: &str) -> Wire {
        let directory = scratch();
        let mut command = namespace.command_bound(Path::new("tcpdump"));
        // A buffer of 16 MiB: tcpdump may be kept waiting for long on a busy machine.
        command.args(["-Z", "root", "-n", "-l", "-tt", "-B", "16384", "-Q", "in", "-i", interface]);
        command.arg(filter);
        let log = directory.path().join("tcpdump");
        let mut process = Process::start("tcpdump", command, log).expect("tcpdump starts");
        process
            .wait_until(READY, |process| process.log().contains("listening on"))
            .unwrap_or_else(|e| panic!("{e}"));
        Wire { process, _directory: directory }
    }

    /// Its lines so far.
    pub fn text(&self) -> String {
        self.process.log()
    }

    /// Ends it when nothing comes any more; returns its lines. It must have missed nothing.
    pub fn finish(mut self) -> String {
        // What is still in its buffer when it is stopped it does not print.
        let (mut length, mut since) = (0, Instant::now());
        while since.elapsed() < QUIET {
            std::thread::sleep(Duration::from_millis(50));
            let now = self.process.log().len();
            if now != length {
                (length, since) = (now, Instant::now());
            }
        }
        self.process.stop();
        let text = self.process.log();
        assert!(text.contains("\n0 packets dropped by kernel"), "it missed packets: {text}");
        text
    }
}

/// (SPI, sequence number) of every ESP packet, in order.
pub fn esp(text: &str) -> Vec<(u32, u32)> {
    let field = |line: &str, name: &str| {
        let value = line.split(name).nth(1)?.split([',', ')']).next()?;
        u32::from_str_radix(value, 16).ok()
    };
    text.lines().filter_map(|line| Some((field(line, "spi=0x")?, field(line, "seq=0x")?))).collect()
}

/// How many ESP packets of a capture came in UDP, and how many by themselves.
pub fn encapsulated(text: &str) -> (usize, usize) {
    let (udp, plain): (Vec<&str>, Vec<&str>) = text
        .lines()
        .filter(|line| line.contains("ESP(spi="))
        .partition(|line| line.contains("UDP-encap"));
    (udp.len(), plain.len())
}
