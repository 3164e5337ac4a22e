//! The configuration of one gateway: TOML text in, a checked [`Config`] out.
//!
//! Checking has two parts. What can be said from the text alone is checked by [`Config::parse`];
//! what depends on the machine (interfaces, cores, capabilities, the kernel) by [`Config::check`]
//! against a [`Machine`], a plain record of facts that [`Machine::probe`] gathers. Every
//! [`ConfigError`] is one sentence that says what was expected, what was found and what to do.
//!
//! This module does not apply a configuration, and it changes nothing on the machine.

mod control;
mod engine;
mod error;
mod group;
mod host;
mod machine;
mod probe;
mod vrf;

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use control::Control;
pub use engine::EngineChoice;
pub use error::ConfigError;
pub use group::{GroupConfig, TunnelConfig, if_id_of, next_hop_of};
pub use host::{HostConfig, owner_of};
pub use machine::{Capability, Interface, Machine};
pub use vrf::{TableConfig, VrfConfig};

/// The largest configuration file read, in bytes: room for 50 000 tunnels with several routes each. A
/// file beyond this limit is certainly not a configuration.
pub const CONFIG_BYTES_MAX: u64 = 16 << 20;
/// The most ports of one gateway. Each port costs a socket and its rings on every worker.
pub const PORTS_MAX: usize = 64;
/// The most workers of one gateway, and one more than the highest core number: the size of the
/// kernel's `cpu_set_t`.
pub const CORES_MAX: usize = 1024;
/// The longest instance name in bytes: it is a directory name and a part of a socket's path.
pub const NAME_BYTES_MAX: usize = 32;
/// The longest interface name in bytes (the kernel's `IFNAMSIZ` is 16 with the final zero).
pub const INTERFACE_BYTES_MAX: usize = 15;
/// The longest path of a Unix socket in bytes (`sun_path` is 108 with the final zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// The longest file name in the run directory of an instance.
const SOCKET_NAME_LONGEST: &str = "/control.sock";
/// The smallest ring, in descriptors: shorter ones hold less than a batch.
const RING_MIN: u32 = 64;
/// The largest ring: already 65 ms of queue at 1 Mpps.
const RING_MAX: u32 = 65_536;
/// The ring when nothing is said: 2 ms at 1 Mpps, which is what a worker may be off its core.
const RING_DEFAULT: u32 = 2048;
/// Frames that a queue holds for each descriptor of its rings: in the fill ring, received and not
/// yet fetched, being sent.
const FRAMES_PER_DESCRIPTOR: u64 = 3;
/// The most frames of one worker: 4 Mi × 2 KiB = 8 GiB.
const FRAMES_MAX: u32 = 4 << 20;
/// The longest spin before sleep, in microseconds: one second is already "always".
const SPIN_US_MAX: u32 = 1_000_000;
/// Frames per worker beyond those that rings can hold: packets in batches, packets that wait for a
/// neighbour, and slack so that a full transmit ring does not starve receive.
const FRAMES_IN_FLIGHT: u64 = 4096;
/// The least slack that still works: two batches of 256 frames.
const FRAMES_IN_FLIGHT_MIN: u64 = 512;

/// The smallest MTU of a TUN device: what IPv6 asks of every link (RFC 8200 §5).
pub(crate) const DEVICE_MTU_MIN: u32 = 1280;

/// The whole configuration of one gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The name of the instance: names its directories, and `peregrine show --instance`.
    #[serde(default = "default_name")]
    pub name: String,
    /// The cores that run a worker, one worker each. Receive queue *q* of a port belongs to worker
    /// *q* modulo the number of workers.
    #[serde(default = "default_cores")]
    pub cores: Vec<usize>,
    /// Who does the cryptography.
    #[serde(default)]
    pub engine: EngineChoice,
    /// What a worker does when there is no packet.
    #[serde(default)]
    pub idle: Idle,
    /// With `idle = "sleep"`: microseconds without a packet before the worker sleeps. 50 µs is a
    /// few times what a wake-up from poll(2) costs: smaller and the worker sleeps inside a burst,
    /// larger and an idle gateway heats its cores.
    #[serde(default = "default_spin_us")]
    pub spin_us: u32,
    /// Frames (packet buffers) of one worker; computed when absent, see [`Config::sizes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<u32>,
    /// Bytes of one frame: 2048, or 4096 for MTUs of 1771 to 3496.
    #[serde(default = "default_frame_size")]
    pub frame_size: u32,
    /// Put the packet memory into huge pages of 2 MiB.
    #[serde(default)]
    pub hugepages: bool,
    /// Packets of one tunnel may be sealed by several workers at once.
    #[serde(default)]
    pub unordered: bool,
    /// Descriptors of each of the four rings of a queue; chosen when absent, see [`Config::sizes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring: Option<u32>,
    /// The interfaces that the gateway serves.
    #[serde(rename = "port", default)]
    pub ports: Vec<PortConfig>,
    /// How the host's own packets go through tunnels.
    #[serde(default)]
    pub host: HostConfig,
    /// Groups of tunnels that routes lead into.
    #[serde(rename = "group", default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupConfig>,
    /// Where the instance keeps its sockets and its state.
    #[serde(default)]
    pub control: Control,
}

/// One port: an interface of the kernel whose packets the gateway takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// The port's name in `show` and reports; the interface's name when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The kernel's interface.
    pub interface: String,
    /// How the XDP program is attached.
    #[serde(default)]
    pub mode: Mode,
    /// The VRF by which packets that come in here are forwarded; the kernel's when absent, of which the
    /// interface is a part, else the main table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<VrfConfig>,
}

impl PortConfig {
    /// The name that people see.
    #[must_use]
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.interface)
    }
}

/// How the XDP program is attached to an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// In the driver where the driver can, else in the kernel's generic hook.
    #[default]
    Auto,
    /// In the driver; an error where the driver cannot.
    Native,
    /// In the kernel's generic hook: every driver, but a copy and an skb per packet.
    Generic,
}

/// What a worker does when there is no packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Idle {
    /// Spin for `spin_us`, then sleep until a packet comes.
    #[default]
    Sleep,
    /// Never sleep: the lowest latency, and a core that is always busy.
    Spin,
}

/// Packet memory and rings of one worker, with everything decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Frames of one worker.
    pub frames: u32,
    /// Bytes of one frame.
    pub frame_size: u32,
    /// Descriptors of each ring.
    pub ring: u32,
}

impl Sizes {
    /// Bytes of packet memory of so many workers.
    #[must_use]
    pub fn bytes(&self, workers: usize) -> u64 {
        let per_worker = u64::from(self.frames) * u64::from(self.frame_size);
        per_worker.saturating_mul(workers as u64)
    }
}

fn default_name() -> String {
    "gw0".to_owned()
}

fn default_cores() -> Vec<usize> {
    vec![0]
}

fn default_spin_us() -> u32 {
    50
}

fn default_frame_size() -> u32 {
    2048
}

impl Config {
    /// A documented configuration to start from; `peregrine run --example` prints it.
    #[must_use]
    pub fn example() -> &'static str {
        include_str!("config/example.toml")
    }

    /// Reads and parses a file, which errors name.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Unreadable`], and as of [`Config::parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        use std::io::Read;
        let failed = |source| ConfigError::Unreadable { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut text = String::new();
        file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
        Self::parse(&text).map_err(|error| error.in_file(path))
    }

    /// Parses configuration text and checks all that can be checked without a machine.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for text that is too long or not this TOML, with line and column, and as of
    /// [`Config::validate`].
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        if text.len() as u64 > CONFIG_BYTES_MAX {
            return Err(ConfigError::TooLong { limit: CONFIG_BYTES_MAX });
        }
        let config: Self = toml::from_str(text).map_err(|e| ConfigError::syntax(text, &e))?;
        config.validate()?;
        Ok(config)
    }

    /// Checks all that can be checked without a machine.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the first setting that cannot be meant, what it is and what it may be.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_names()?;
        self.validate_cores()?;
        self.validate_ports()?;
        self.host.validate()?;
        if let Some(device) = &self.host.device {
            check_interface(device)?;
        }
        let host = self.host.device_of(&self.name);
        let ports = self.ports.iter().map(|port| port.interface.as_str());
        let taken: Vec<&str> = ports.chain([host.as_str()]).collect();
        group::validate(&self.groups, &taken)?;
        self.validate_vrfs()?;
        self.validate_memory()?;
        self.validate_device_mtus()
    }

    /// Packet memory and rings on a machine. Queue *n* of an interface belongs to worker *n* modulo
    /// the number of workers, so a worker may have several queues of a port.
    ///
    /// - Neither `frames` nor `ring`: rings of 2048, and frames for them: three per descriptor of
    ///   every queue of the worker, and 4096 in flight. Two ports of one queue each:
    ///   2 × 3 × 2048 + 4096 = 16 384 frames, 32 MiB.
    /// - Only `ring`: frames for it.
    /// - Only `frames`: the largest rings up to 2048 that they fill.
    /// - Both: an error when the rings could swallow all frames.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when the rings could swallow all frames, or need more than there may be.
    pub fn sizes(&self, machine: &Machine) -> Result<Sizes, ConfigError> {
        let queues_of = |port: &PortConfig| {
            let interface = machine.interfaces.iter().find(|i| i.name == port.interface);
            let queues = interface.map_or(1, |i| u64::from(i.queues));
            queues.div_ceil(self.cores.len().max(1) as u64)
        };
        self.sizes_for(self.ports.iter().map(queues_of).sum())
    }

    /// Packet memory and rings of a worker with so many queues in all.
    fn sizes_for(&self, queues: u64) -> Result<Sizes, ConfigError> {
        let in_rings = |ring: u32| queues.max(1) * FRAMES_PER_DESCRIPTOR * u64::from(ring);
        let ring = match (self.ring, self.frames) {
            (Some(ring), _) => ring,
            (None, None) => RING_DEFAULT,
            (None, Some(frames)) => {
                let fits = |ring: &u32| in_rings(*ring) + FRAMES_IN_FLIGHT_MIN <= frames.into();
                let rings = std::iter::successors(Some(RING_DEFAULT), |ring| Some(ring / 2));
                rings.take_while(|&ring| ring > RING_MIN).find(fits).unwrap_or(RING_MIN)
            }
        };
        let frames = self.frames.map_or(in_rings(ring) + FRAMES_IN_FLIGHT, u64::from);
        let limit = u64::from(FRAMES_MAX);
        if frames > limit {
            return Err(ConfigError::TooManyFrames { found: frames, limit });
        }
        let needed = in_rings(ring) + FRAMES_IN_FLIGHT_MIN;
        if frames < needed {
            return Err(ConfigError::TooFewFrames { found: frames, queues, ring, needed });
        }
        // Below FRAMES_MAX, so it fits.
        let frames = u32::try_from(frames).unwrap_or(FRAMES_MAX);
        Ok(Sizes { frames, frame_size: self.frame_size, ring })
    }

    fn validate_names(&self) -> Result<(), ConfigError> {
        check_name("name", &self.name)?;
        let Control { run_dir, state_dir, journal_dir, .. } = &self.control;
        for (key, dir) in [("run_dir", run_dir), ("state_dir", state_dir)]
            .into_iter()
            .chain(journal_dir.as_ref().map(|dir| ("journal_dir", dir)))
        {
            if !dir.is_absolute() {
                return Err(ConfigError::RelativeDir { key, dir: dir.clone() });
            }
        }
        let dir = self.control.run_dir.join(&self.name);
        let bytes = dir.as_os_str().len() + SOCKET_NAME_LONGEST.len();
        if bytes > SOCKET_PATH_BYTES_MAX {
            let limit = SOCKET_PATH_BYTES_MAX - SOCKET_NAME_LONGEST.len();
            return Err(ConfigError::RunDirTooLong { dir, limit });
        }
        Ok(())
    }

    fn validate_cores(&self) -> Result<(), ConfigError> {
        if self.cores.is_empty() {
            return Err(ConfigError::NoCores);
        }
        let mut seen = std::collections::HashSet::new();
        for &core in &self.cores {
            if core >= CORES_MAX {
                return Err(ConfigError::CoreTooHigh { core, highest: CORES_MAX - 1 });
            }
            if !seen.insert(core) {
                return Err(ConfigError::DuplicateCore { core });
            }
        }
        Ok(())
    }

    fn validate_ports(&self) -> Result<(), ConfigError> {
        if self.ports.is_empty() {
            return Err(ConfigError::NoPorts);
        }
        if self.ports.len() > PORTS_MAX {
            return Err(ConfigError::TooManyPorts { found: self.ports.len(), limit: PORTS_MAX });
        }
        let mut by_label = HashMap::new();
        let mut by_interface = HashMap::new();
        for port in &self.ports {
            if let Some(name) = &port.name {
                check_name("port name", name)?;
            }
            check_interface(&port.interface)?;
            let label = port.label();
            if let Some(first) = by_interface.insert(&port.interface, label) {
                return Err(ConfigError::DuplicateInterface {
                    first: first.to_owned(),
                    second: label.to_owned(),
                    interface: port.interface.clone(),
                });
            }
            if by_label.insert(label, ()).is_some() {
                return Err(ConfigError::DuplicatePort { name: label.to_owned() });
            }
        }
        Ok(())
    }

    fn validate_device_mtus(&self) -> Result<(), ConfigError> {
        let host = ("[host]".to_owned(), self.host.mtu);
        let group =
            |group: &GroupConfig| (format!("[[group]] of device {:?}", group.device), group.mtu);
        let (frame_size, limit) = (self.frame_size, self.device_mtu_max());
        for (place, mtu) in std::iter::once(host).chain(self.groups.iter().map(group)) {
            if let Some(mtu) = mtu.filter(|mtu| !(DEVICE_MTU_MIN..=limit).contains(mtu)) {
                return Err(ConfigError::DeviceMtu { place, mtu, frame_size, limit });
            }
        }
        Ok(())
    }

    fn validate_memory(&self) -> Result<(), ConfigError> {
        if let Some(found) = self.ring
            && !(found.is_power_of_two() && (RING_MIN..=RING_MAX).contains(&found))
        {
            return Err(ConfigError::RingSize { found, min: RING_MIN, max: RING_MAX });
        }
        if !matches!(self.frame_size, 2048 | 4096) {
            return Err(ConfigError::FrameSize { found: self.frame_size });
        }
        // One queue per port is the least that any machine has.
        self.sizes_for(self.ports.len() as u64)?;
        if self.spin_us > SPIN_US_MAX {
            return Err(ConfigError::SpinTooLong { found: self.spin_us, limit: SPIN_US_MAX });
        }
        Ok(())
    }
}

/// A name is also a directory and a word on command lines, so it keeps to what is safe in both.
pub(crate) fn check_name(key: &'static str, found: &str) -> Result<(), ConfigError> {
    let starts_well = found.starts_with(|c: char| c.is_ascii_alphanumeric());
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if starts_well && found.chars().all(plain) && found.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(ConfigError::BadName { key, found: found.to_owned(), limit: NAME_BYTES_MAX })
}

/// The kernel's own rule for interface names (`dev_valid_name`).
fn check_interface(name: &str) -> Result<(), ConfigError> {
    let bad_char = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    let bad = name.is_empty() || matches!(name, "." | "..") || name.contains(bad_char);
    if bad || name.len() > INTERFACE_BYTES_MAX {
        return Err(ConfigError::BadInterfaceName {
            found: name.to_owned(),
            limit: INTERFACE_BYTES_MAX,
        });
    }
    Ok(())
}

/// The entry of the fuzzer: any text must give a configuration or an error of one sentence, and a
/// configuration that was accepted must survive being written and read again.
pub fn fuzz(text: &str) {
    match Config::parse(text) {
        Ok(config) => {
            let written = toml::to_string(&config).expect("an accepted configuration is TOML");
            let again = Config::parse(&written).expect("what was written is accepted");
            assert_eq!(config, again);
            assert!(config.sizes(&Machine::default()).is_ok());
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "more than one line: {error}"),
    }
}

#[cfg(test)]
mod tests;
