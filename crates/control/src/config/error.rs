//! What can be wrong with a configuration, each in one sentence that says what to do.
//!
//! This file does not decide anything: it only holds the sentences.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// A configuration that cannot be used. `Display` is one sentence for the operator.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The section `[host]` says something impossible.
    #[error("[host]: {reason}")]
    Host {
        /// What is right.
        reason: &'static str,
    },
    /// Packets of a TUN device would not fit into frames.
    #[error(
        "{place}: mtu is 1280 to {limit}, which is what frames of {frame_size} bytes hold sealed, and not \
         {mtu}; lower it, leave it out, or use a larger frame_size"
    )]
    DeviceMtu {
        /// The section.
        place: String,
        /// The MTU.
        mtu: u32,
        /// The configured frame size.
        frame_size: u32,
        /// The largest MTU that fits.
        limit: u32,
    },
    /// A section `[[group]]` says something impossible.
    #[error("[[group]] of device {device:?}: {reason}")]
    Group {
        /// Its device.
        device: String,
        /// What is right, or what is wrong.
        reason: String,
    },
    /// A `vrf` says something impossible.
    #[error("{place}: {reason}")]
    Vrf {
        /// What is led there.
        place: String,
        /// What is wrong, and what is right.
        reason: String,
    },
    /// A VRF device that is not there.
    #[error(
        "{place}: there is no VRF device {vrf:?}; VRF devices here: {present} (make it with `ip link \
         add {vrf} type vrf table NUMBER`, or name the table itself: vrf = {{ table = NUMBER }})"
    )]
    UnknownVrf {
        /// What is led there.
        place: String,
        /// The device.
        vrf: String,
        /// Those that are.
        present: String,
    },
    /// What is there is not what the gateway makes.
    #[error(
        "{place}: {device:?} is an interface that is there already ({kind}), and not a TUN device; choose \
         another name with `device`"
    )]
    DeviceTaken {
        /// The section.
        place: &'static str,
        /// The device that was to be made.
        device: String,
        /// What it is.
        kind: String,
    },
    /// An error inside a file, so that the sentence names the file.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong inside it.
        error: Box<ConfigError>,
    },
    /// The file cannot be read.
    #[error(
        "{}: the configuration cannot be read ({source}); name a readable TOML file, or write one \
         from `peregrine run --example`", path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Longer than any configuration.
    #[error(
        "the configuration is longer than {limit} bytes, so it is not a configuration; name \
         another file"
    )]
    TooLong {
        /// The limit in bytes.
        limit: u64,
    },
    /// Not TOML, or not the keys and types that a configuration has.
    #[error(
        "line {line}, column {column}: {message}; correct this line (`peregrine run --example` \
         shows every key)"
    )]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The parser's words, on one line.
        message: String,
    },
    /// A name that is not usable as a directory or a word.
    #[error(
        "{key} {found:?} is not usable; take 1 to {limit} letters, digits, '-', '_' or '.', \
         beginning with a letter or digit"
    )]
    BadName {
        /// Which name.
        key: &'static str,
        /// As found.
        found: String,
        /// Longest length in bytes.
        limit: usize,
    },
    /// A directory that depends on where the program was started.
    #[error("{key} {} is not an absolute path; begin it with '/'", dir.display())]
    RelativeDir {
        /// Which directory.
        key: &'static str,
        /// As found.
        dir: PathBuf,
    },
    /// Socket paths have a hard limit in the kernel.
    #[error(
        "the run directory {} is too long for the sockets in it; shorten run_dir or name so that \
         it has at most {limit} bytes", dir.display()
    )]
    RunDirTooLong {
        /// The instance's run directory.
        dir: PathBuf,
        /// Longest length in bytes.
        limit: usize,
    },
    /// `cores = []`.
    #[error("cores is empty; list at least one core, as in cores = [0]")]
    NoCores,
    /// A core twice.
    #[error(
        "core {core} is listed twice in cores; each worker needs a core of its own, so list it once"
    )]
    DuplicateCore {
        /// The core.
        core: usize,
    },
    /// Beyond what any machine has.
    #[error(
        "core {core} is beyond the highest number that the kernel's CPU set holds; use cores from \
         0 to {highest}"
    )]
    CoreTooHigh {
        /// The core.
        core: usize,
        /// The highest number.
        highest: usize,
    },
    /// No `[[port]]`.
    #[error(
        "there is no port; add a [[port]] table with interface = \"NAME\" for each interface to \
         serve"
    )]
    NoPorts,
    /// Too many `[[port]]`.
    #[error(
        "there are {found} ports and the limit is {limit}; remove some or run a second instance"
    )]
    TooManyPorts {
        /// Ports found.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// One interface, two ports.
    #[error(
        "port {first} and port {second} are both on interface {interface}; give each port an \
         interface of its own"
    )]
    DuplicateInterface {
        /// The first port.
        first: String,
        /// The second port.
        second: String,
        /// The interface that both name.
        interface: String,
    },
    /// Two ports of one name.
    #[error("two ports are named {name}; give each port a name of its own")]
    DuplicatePort {
        /// The name.
        name: String,
    },
    /// Not a name that the kernel would accept.
    #[error(
        "{found:?} is not an interface name; use the name that `ip link` shows (1 to {limit} \
         characters, no '/', ':' or space)"
    )]
    BadInterfaceName {
        /// As found.
        found: String,
        /// Longest length in bytes.
        limit: usize,
    },
    /// A ring that the kernel would refuse, or that makes no sense.
    #[error("ring is {found}; use a power of two from {min} to {max}")]
    RingSize {
        /// As found.
        found: u32,
        /// The smallest.
        min: u32,
        /// The largest.
        max: u32,
    },
    /// A frame size that AF_XDP does not have.
    #[error("frame_size is {found}; use 2048, or 4096 for large MTUs")]
    FrameSize {
        /// As found.
        found: u32,
    },
    /// Fewer frames than the rings hold: receive would starve.
    #[error(
        "frames is {found}, but the {queues} queue(s) of a worker with rings of {ring} need at \
         least {needed}; use more frames or smaller rings, or remove the line to have it computed"
    )]
    TooFewFrames {
        /// As found.
        found: u64,
        /// Queues of one worker.
        queues: u64,
        /// Descriptors of a ring.
        ring: u32,
        /// The least that works.
        needed: u64,
    },
    /// More memory than a worker can have.
    #[error(
        "each worker would need {found} frames and the limit is {limit}; use fewer frames, smaller \
         rings, fewer ports or fewer queues"
    )]
    TooManyFrames {
        /// As found or computed.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// `spin_us` beyond a second.
    #[error("spin_us is {found} and the limit is {limit}; to never sleep, say idle = \"spin\"")]
    SpinTooLong {
        /// As found.
        found: u32,
        /// The limit.
        limit: u32,
    },
    /// An interface that is not there.
    #[error("port {port}: there is no interface {interface}; interfaces here: {present}")]
    UnknownInterface {
        /// The port.
        port: String,
        /// The interface it names.
        interface: String,
        /// Those that exist, in a list for people.
        present: String,
    },
    /// A core that is not there.
    #[error("there is no core {core} on this machine; cores here: {present}")]
    UnknownCore {
        /// The core.
        core: usize,
        /// Those that exist, as ranges.
        present: String,
    },
    /// A core that this process may not use.
    #[error(
        "core {core} exists, but this process may run only on cores {allowed}; use one of those, \
         or widen the CPU affinity (taskset, cgroup cpuset, systemd CPUAffinity=)"
    )]
    CoreNotAllowed {
        /// The core.
        core: usize,
        /// Those allowed, as ranges.
        allowed: String,
    },
    /// Packets would not fit into frames.
    #[error(
        "port {port}: interface {interface} has MTU {mtu}, but frames of {frame_size} bytes hold \
         an MTU of {limit}; run `ip link set {interface} mtu {limit}` or use a larger frame_size"
    )]
    MtuTooLarge {
        /// The port.
        port: String,
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu: u32,
        /// The configured frame size.
        frame_size: u32,
        /// The largest MTU that fits.
        limit: u32,
    },
    /// Workers that could receive and not send.
    #[error(
        "port {port}: the workers would send by {needed} queues of interface {interface}, which has \
         {receive} to receive from and {transmit} to transmit by; give it as many of both with \
         `ethtool -L {interface} rx N tx N`, or list at most {transmit} cores"
    )]
    TransmitQueues {
        /// The port.
        port: String,
        /// The interface.
        interface: String,
        /// Queues that workers would send by.
        needed: u32,
        /// Its receive queues.
        receive: u32,
        /// Its transmit queues.
        transmit: u32,
    },
    /// A right that is missing.
    #[error(
        "this process lacks {name}, which it needs to {purpose}; run it as root or grant {name} \
         (systemd AmbientCapabilities=)"
    )]
    MissingCapability {
        /// As in capabilities(7).
        name: &'static str,
        /// What it is for.
        purpose: &'static str,
    },
    /// Locked memory is limited, and there is no right to exceed the limit.
    #[error(
        "packet memory of {needed_bytes} bytes is above this process's limit of {limit_bytes} \
         bytes for locked memory; raise it (`ulimit -l`, systemd LimitMEMLOCK=infinity) or grant \
         CAP_IPC_LOCK"
    )]
    MemoryLock {
        /// What the configuration needs.
        needed_bytes: u64,
        /// RLIMIT_MEMLOCK.
        limit_bytes: u64,
    },
    /// Not enough huge pages.
    #[error(
        "hugepages = true needs {needed} free huge pages of 2 MiB and {free} are free; run \
         `sysctl vm.nr_hugepages={needed}` or say hugepages = false"
    )]
    Hugepages {
        /// Pages needed.
        needed: u64,
        /// Pages free.
        free: u64,
    },
    /// A kernel that cannot.
    #[error(
        "this kernel has no AF_XDP sockets; use Linux 5.11 or newer built with \
         CONFIG_XDP_SOCKETS=y and CONFIG_BPF_SYSCALL=y"
    )]
    NoAfXdp,
    /// A fact about the machine could not be learnt.
    #[error(
        "cannot read {what} from this machine ({source}); check that /proc and /sys are mounted \
         and that this process may read them"
    )]
    Probe {
        /// Which fact.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

impl ConfigError {
    /// The same error, with the file in front.
    pub(super) fn in_file(self, path: &Path) -> Self {
        Self::InFile { path: path.to_owned(), error: Box::new(self) }
    }

    /// A TOML error as line, column and one line of words.
    pub(super) fn syntax(text: &str, error: &toml::de::Error) -> Self {
        // Without a span (a key is missing at the top level) the error is about the whole text.
        let offset = error.span().map_or(0, |span| span.start).min(text.len());
        let before = text.get(..offset).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let words: Vec<&str> = error.message().split(['\n', '\r']).map(str::trim).collect();
        Self::Syntax { line, column, message: words.join("; ") }
    }
}
