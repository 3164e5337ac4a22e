//! Every frame on a link of the router, as tcpdump writes them to a file, and how to repeat some.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::topology::{Namespace, Process, batch};

use crate::gateway::left::scratch;

/// How long tcpdump may take to begin on a busy machine.
const READY: Duration = Duration::from_secs(20);
/// Bytes before the first frame of a file, and before each frame.
const FILE_HEADER_LEN: usize = 24;
const FRAME_HEADER_LEN: usize = 16;
/// Bytes of an Ethernet header, and of an IPv4 header without options.
const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const ESP: u8 = 50;

/// Sends frames that come as lines of hexadecimal digits.
const REPEAT: &str = "import socket,sys\n\
     s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW);s.bind((sys.argv[1],0))\n\
     for line in sys.stdin: s.send(bytes.fromhex(line))";

/// A frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// When it was seen, in nanoseconds since 1970.
    pub at_ns: u64,
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
}

/// What identifies an ESP packet on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Esp {
    /// Its SPI.
    pub spi: u32,
    /// The lower half of its sequence number.
    pub sequence: u32,
    /// Its initialization vector, which no other packet of the SPI may have.
    pub iv: u64,
}

impl Frame {
    fn ipv4(&self) -> Option<&[u8]> {
        let is_ipv4 = self.bytes.get(12..ETHERNET_LEN)? == [0x08, 0x00];
        is_ipv4.then(|| &self.bytes[ETHERNET_LEN..])
    }

    /// Source and destination of an IPv4 packet.
    pub fn ends(&self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        let packet = self.ipv4()?;
        let address =
            |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
        Some((address(12)?, address(16)?))
    }

    /// The ESP in an IPv4 packet without options.
    pub fn esp(&self) -> Option<Esp> {
        let packet = self.ipv4()?;
        let esp = (*packet.get(9)? == ESP).then(|| packet.get(IPV4_LEN..IPV4_LEN + 16))??;
        let word = |at: usize| Some(u32::from_be_bytes(esp[at..at + 4].try_into().ok()?));
        let iv = u64::from_be_bytes(esp[8..].try_into().ok()?);
        Some(Esp { spi: word(0)?, sequence: word(4)?, iv })
    }
}

/// A running recording.
pub struct Recording {
    process: Process,
    file: PathBuf,
    /// Where it writes.
    _directory: tempfile::TempDir,
}

impl Recording {
    /// Begins to record both directions of `interface`.
    pub fn start(namespace: &Namespace, interface: &str) -> Recording {
        let directory = scratch();
        let file = directory.path().join("frames");
        let mut command = namespace.command_bound(Path::new("tcpdump"));
        // A buffer of 16 MiB: tcpdump may be kept waiting for long on a busy machine.
        command.args(["-Z", "root", "-n", "-U", "-B", "16384", "-i", interface]);
        command.arg("--time-stamp-precision=nano").arg("-w").arg(&file);
        let log = directory.path().join("tcpdump");
        let mut process = Process::start("tcpdump", command, log).expect("tcpdump starts");
        process
            .wait_until(READY, |process| process.log().contains("listening on"))
            .unwrap_or_else(|e| panic!("{e}"));
        Recording { process, file, _directory: directory }
    }

    /// The frames so far.
    pub fn frames(&self) -> Vec<Frame> {
        let file = std::fs::read(&self.file).expect("a recording");
        let mut rest = file.get(FILE_HEADER_LEN..).unwrap_or_default();
        let mut frames = Vec::new();
        while let Some((header, after)) = rest.split_at_checked(FRAME_HEADER_LEN) {
            // Seconds, nanoseconds, bytes in the file, bytes on the wire.
            let word =
                |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
            let Some((frame, next)) = after.split_at_checked(word(8) as usize) else { break };
            let at_ns = u64::from(word(0)) * 1_000_000_000 + u64::from(word(4));
            frames.push(Frame { at_ns, bytes: frame.to_vec() });
            rest = next;
        }
        frames
    }

    /// Ends it; returns all frames. It must have missed none.
    pub fn finish(mut self) -> Vec<Frame> {
        self.process.stop();
        let said = self.process.log();
        assert!(said.contains("\n0 packets dropped by kernel"), "it missed frames: {said}");
        self.frames()
    }
}

/// Sends frames once more on an interface of a namespace.
pub fn repeat(namespace: &Namespace, interface: &str, frames: &[Frame]) {
    let hex = |frame: &Frame| frame.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let lines: Vec<String> = frames.iter().map(hex).collect();
    let command = namespace.command("python3");
    batch(command, &["-c", REPEAT, interface], &lines).unwrap_or_else(|e| panic!("{e}"));
}

/// Judges what one end sealed, by its outer address: no (SPI, IV) and no (SPI, sequence number) came
/// twice, and nothing else of `inside` was seen. Returns how many ESP packets there were.
pub fn judge(frames: &[Frame], own: Ipv4Addr, inside: impl Fn(Ipv4Addr) -> bool) -> usize {
    let (mut ivs, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for frame in frames {
        let Some((source, destination)) = frame.ends() else { continue };
        assert!(!inside(source) && !inside(destination), "in clear: {frame:02x?}");
        let Some(esp) = frame.esp().filter(|_| source == own) else { continue };
        assert!(ivs.insert((esp.spi, esp.iv)), "a key met an IV twice: {esp:x?}");
        assert!(numbers.insert((esp.spi, esp.sequence)), "a number was sent twice: {esp:x?}");
    }
    ivs.len()
}
