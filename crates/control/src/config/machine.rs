//! The facts about a machine that a configuration depends on, and the checks against them.
//!
//! Pure: a [`Machine`] is a record, so that every refusal can be tested without the machine that
//! causes it. Gathering the facts is `probe.rs`; changing the machine is nobody's job here.

use std::collections::BTreeSet;

use super::{Config, ConfigError, PortConfig, VrfConfig};

/// What a frame spends before the packet: the kernel's XDP_PACKET_HEADROOM, which is also the room
/// that encapsulation uses.
const FRAME_HEADROOM_BYTES: u32 = 256;
/// Ethernet header and two VLAN tags: 14 + 2 × 4.
const LINK_HEADER_BYTES: u32 = 22;
/// What a page has for headroom and packet where the kernel copies it into frames: 4096 bytes less its `skb_shared_info`
/// (320) and the `NET_IP_ALIGN` (2) that veth adds. Longer packets become several pieces, which are dropped.
const KERNEL_PAGE_BYTES: u32 = 4096 - 320 - 2;
/// What ESP adds behind a packet at most: padding, trailer and integrity check value.
const ESP_TAIL_BYTES: u32 =
    (wire::esp::ALIGNMENT - 1 + wire::esp::TRAILER_LEN + wire::esp::ICV_LEN) as u32;
/// One huge page.
const HUGEPAGE_BYTES: u64 = 2 << 20;
/// The most interfaces that an error lists; a router with thousands should not fill the screen.
const LISTED_MAX: usize = 24;

/// What the kernel and the hardware offer to this process.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// Every interface of this network namespace.
    pub interfaces: Vec<Interface>,
    /// The cores that are online.
    pub cores: BTreeSet<usize>,
    /// The cores that this process may run on.
    pub cores_allowed: BTreeSet<usize>,
    /// The capabilities that are missing, of those that a gateway needs.
    pub missing: Vec<Capability>,
    /// Whether the kernel has AF_XDP sockets; `None` when that cannot be learnt without more
    /// rights.
    pub af_xdp: Option<bool>,
    /// RLIMIT_MEMLOCK in bytes; `None` is unlimited.
    pub memlock_bytes: Option<u64>,
    /// Free huge pages of 2 MiB; `None` when unknown.
    pub hugepages_free: Option<u64>,
    /// All huge pages of 2 MiB, free or not.
    pub hugepages_total: u64,
}

/// One interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Receive queues in use.
    pub queues: u32,
    /// Transmit queues in use.
    pub transmit_queues: u32,
    /// The kind of a virtual interface ("veth", "vlan"), `None` for hardware.
    pub kind: Option<String>,
}

/// A right that a gateway needs (capabilities(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Attach XDP programs, resolve neighbours.
    NetAdmin,
    /// Open AF_XDP sockets.
    NetRaw,
    /// Load XDP programs and create maps.
    Bpf,
    /// Lock packet memory above RLIMIT_MEMLOCK.
    IpcLock,
}

impl Capability {
    /// All of them, in the order in which they are asked for.
    pub const ALL: [Self; 4] = [Self::NetAdmin, Self::NetRaw, Self::Bpf, Self::IpcLock];

    /// The name in capabilities(7).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::Bpf => "CAP_BPF",
            Self::IpcLock => "CAP_IPC_LOCK",
        }
    }

    fn purpose(self) -> &'static str {
        match self {
            Self::NetAdmin => "attach XDP programs to interfaces",
            Self::NetRaw => "open AF_XDP sockets",
            Self::Bpf => "load XDP programs",
            Self::IpcLock => "lock packet memory",
        }
    }
}

impl Config {
    /// Checks the configuration against a machine. What is wrong for every configuration (the
    /// kernel, the rights) is said before what is wrong with this one.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the first thing that is wrong, and what to do about it.
    pub fn check(&self, machine: &Machine) -> Result<(), ConfigError> {
        let vital = |c: &&Capability| **c != Capability::IpcLock;
        if let Some(missing) = machine.missing.iter().find(vital) {
            let (name, purpose) = (missing.name(), missing.purpose());
            return Err(ConfigError::MissingCapability { name, purpose });
        }
        if machine.af_xdp == Some(false) {
            return Err(ConfigError::NoAfXdp);
        }
        self.check_cores(machine)?;
        for port in &self.ports {
            self.check_port(port, machine)?;
        }
        self.check_devices(machine)?;
        self.check_vrfs(machine)?;
        self.check_memory(machine)
    }

    /// The largest MTU of a port whose packets fit into frames, and into the kernel's pages: whether it copies
    /// is known when sockets are open only.
    #[must_use]
    pub fn port_mtu_max(&self) -> u32 {
        self.frame_size
            .min(KERNEL_PAGE_BYTES)
            .saturating_sub(FRAME_HEADROOM_BYTES + LINK_HEADER_BYTES)
    }

    /// The largest MTU of a TUN device whose packets, which have no link header, fit into frames and can be
    /// sealed there.
    #[must_use]
    pub fn device_mtu_max(&self) -> u32 {
        self.frame_size.saturating_sub(FRAME_HEADROOM_BYTES + ESP_TAIL_BYTES)
    }

    /// TUN devices may be there: a gateway that was killed leaves them.
    fn check_devices(&self, machine: &Machine) -> Result<(), ConfigError> {
        let host = self.host.enable.then(|| ("[host]", self.host.device_of(&self.name)));
        let groups = self.groups.iter().map(|group| ("[[group]]", group.device.clone()));
        for (place, device) in host.into_iter().chain(groups) {
            let found = machine.interfaces.iter().find(|interface| interface.name == device);
            let kind = found.map(|interface| interface.kind.as_deref());
            if let Some(kind) = kind.filter(|kind| *kind != Some("tun")) {
                let kind = kind.unwrap_or("hardware").to_owned();
                return Err(ConfigError::DeviceTaken { place, device, kind });
            }
        }
        Ok(())
    }

    fn check_vrfs(&self, machine: &Machine) -> Result<(), ConfigError> {
        let devices = || machine.interfaces.iter().filter(|i| i.kind.as_deref() == Some("vrf"));
        for (place, led) in self.vrfs() {
            if let VrfConfig::Device(vrf) = led
                && !devices().any(|device| device.name == *vrf)
            {
                let present = list(devices().map(|device| device.name.as_str()));
                return Err(ConfigError::UnknownVrf { place: place(), vrf: vrf.clone(), present });
            }
        }
        Ok(())
    }

    fn check_cores(&self, machine: &Machine) -> Result<(), ConfigError> {
        for &core in &self.cores {
            if !machine.cores.contains(&core) {
                return Err(ConfigError::UnknownCore { core, present: ranges(&machine.cores) });
            }
            if !machine.cores_allowed.contains(&core) {
                let allowed = ranges(&machine.cores_allowed);
                return Err(ConfigError::CoreNotAllowed { core, allowed });
            }
        }
        Ok(())
    }

    fn check_port(&self, port: &PortConfig, machine: &Machine) -> Result<(), ConfigError> {
        let label = port.label().to_owned();
        let found = machine.interfaces.iter().find(|i| i.name == port.interface);
        let Some(interface) = found else {
            return Err(ConfigError::UnknownInterface {
                port: label,
                interface: port.interface.clone(),
                present: list(machine.interfaces.iter().map(|i| i.name.as_str())),
            });
        };
        let limit = self.port_mtu_max();
        if interface.mtu > limit {
            return Err(ConfigError::MtuTooLarge {
                port: label,
                interface: interface.name.clone(),
                mtu: interface.mtu,
                frame_size: self.frame_size,
                limit,
            });
        }
        // Workers send by the queue that they receive from.
        let needed = interface.queues.min(self.cores.len() as u32);
        if needed > interface.transmit_queues {
            return Err(ConfigError::TransmitQueues {
                port: label,
                interface: interface.name.clone(),
                needed,
                receive: interface.queues,
                transmit: interface.transmit_queues,
            });
        }
        Ok(())
    }

    fn check_memory(&self, machine: &Machine) -> Result<(), ConfigError> {
        let needed_bytes = self.sizes(machine)?.bytes(self.cores.len());
        let needed = needed_bytes.div_ceil(HUGEPAGE_BYTES);
        if let Some(free) = machine.hugepages_free.filter(|&free| free < needed)
            && self.hugepages
        {
            return Err(ConfigError::Hugepages { needed, free });
        }
        // CAP_IPC_LOCK lifts the limit on locked memory.
        let limited = machine.missing.contains(&Capability::IpcLock);
        match machine.memlock_bytes.filter(|&limit| limited && limit < needed_bytes) {
            Some(limit_bytes) => Err(ConfigError::MemoryLock { needed_bytes, limit_bytes }),
            None => Ok(()),
        }
    }
}

/// Names for people: sorted, and cut when there are too many.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    names.sort_unstable();
    let more = names.len().saturating_sub(LISTED_MAX);
    names.truncate(LISTED_MAX);
    let listed = names.join(", ");
    if more == 0 { listed } else { format!("{listed} and {more} more") }
}

/// Core numbers for people: `0-3, 8`.
fn ranges(cores: &BTreeSet<usize>) -> String {
    let mut text: Vec<String> = Vec::new();
    let mut run: Option<(usize, usize)> = None;
    for &core in cores {
        run = match run {
            Some((first, last)) if last + 1 == core => Some((first, core)),
            previous => {
                text.extend(previous.map(range));
                Some((core, core))
            }
        };
    }
    text.extend(run.map(range));
    if text.is_empty() { "none".to_owned() } else { text.join(", ") }
}

fn range((first, last): (usize, usize)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}
