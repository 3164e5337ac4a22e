//! Gathers the facts of a [`Machine`] from the kernel.
//!
//! The thin edge of the configuration: it reads and decides nothing, and it leaves the machine as
//! it was (the one socket it opens to learn whether AF_XDP exists is closed at once).

use std::io;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use super::{Capability, ConfigError, Interface, Machine};
use crate::cpu;
use crate::route_feed::{self, Link};

impl Machine {
    /// Gathers the facts, in the network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Probe`] with what cannot be found out.
    pub fn probe() -> Result<Self, ConfigError> {
        let failed = |what| move |source| ConfigError::Probe { what, source };
        Ok(Self {
            interfaces: interfaces().map_err(failed("interfaces"))?,
            cores: cpu::online().map_err(failed("the cores online"))?,
            cores_allowed: cpu::allowed().map_err(failed("the CPU affinity"))?,
            missing: missing().map_err(failed("capabilities"))?,
            af_xdp: af_xdp(),
            memlock_bytes: getrlimit(Resource::Memlock).current,
            hugepages_free: hugepages_free(),
        })
    }
}

fn interfaces() -> io::Result<Vec<Interface>> {
    // Counted as a port counts them when it is opened, so that what is fit here is fit there.
    // `IFLA_NUM_RX_QUEUES` would be what the interface was created with, not what is in use.
    let interface = |link: Link| Interface {
        queues: xsk::receive_queues(&link.name).unwrap_or(link.rx_queues),
        name: link.name,
        ifindex: link.ifindex,
        mtu: link.mtu,
        kind: link.kind,
    };
    Ok(route_feed::links()?.into_iter().map(interface).collect())
}

fn missing() -> io::Result<Vec<Capability>> {
    let held = rustix::thread::capabilities(None)?.effective;
    let holds = |capability: &Capability| match capability {
        Capability::NetAdmin => held.contains(CapabilitySet::NET_ADMIN),
        Capability::NetRaw => held.contains(CapabilitySet::NET_RAW),
        // The kernel's bpf_capable(): CAP_SYS_ADMIN stands for CAP_BPF.
        Capability::Bpf => held.intersects(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN),
        Capability::IpcLock => held.contains(CapabilitySet::IPC_LOCK),
    };
    Ok(Capability::ALL.into_iter().filter(|c| !holds(c)).collect())
}

fn af_xdp() -> Option<bool> {
    let flags = SocketFlags::CLOEXEC;
    match rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None) {
        Ok(_) => Some(true),
        Err(Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT | Errno::INVAL) => Some(false),
        Err(_) => None,
    }
}

/// Free huge pages, when their size is 2 MiB.
fn hugepages_free() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let size_kib = value("Hugepagesize:")?;
    (size_kib == 2048).then(|| value("HugePages_Free:"))?
}
