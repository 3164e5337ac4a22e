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

/// The size of the huge pages that are asked for.
const HUGEPAGE_KIB: u64 = 2048;

impl Machine {
    /// Gathers the facts, in the network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Probe`] with what cannot be found out.
    pub fn probe() -> Result<Self, ConfigError> {
        let failed = |what| move |source| ConfigError::Probe { what, source };
        let (hugepages_free, hugepages_total) = hugepages().unzip();
        Ok(Self {
            interfaces: interfaces().map_err(failed("interfaces"))?,
            cores: cpu::online().map_err(failed("the cores online"))?,
            cores_allowed: cpu::allowed().map_err(failed("the CPU affinity"))?,
            missing: missing().map_err(failed("capabilities"))?,
            af_xdp: af_xdp(),
            memlock_bytes: getrlimit(Resource::Memlock).current,
            hugepages_free,
            hugepages_total: hugepages_total.unwrap_or(0),
        })
    }

    /// The same machine once a process has ended: the huge pages that it holds count as free.
    #[must_use]
    pub fn without_process(mut self, id: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let held_kib = number_of(&status, "HugetlbPages:").unwrap_or(0);
        self.hugepages_free = self.hugepages_free.map(|free| free + held_kib / HUGEPAGE_KIB);
        self
    }
}

fn interfaces() -> io::Result<Vec<Interface>> {
    // Counted as a port counts them when it is opened, so that what is fit here is fit there.
    // `IFLA_NUM_RX_QUEUES` would be what the interface was created with, not what is in use.
    let interface = |link: Link| Interface {
        queues: xsk::receive_queues(&link.name).unwrap_or(link.rx_queues),
        transmit_queues: xsk::transmit_queues(&link.name).unwrap_or(link.rx_queues),
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

/// Free huge pages and all of them, when their size is 2 MiB.
fn hugepages() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let value = |key: &str| number_of(&text, key);
    if value("Hugepagesize:")? != HUGEPAGE_KIB {
        return None;
    }
    Some((value("HugePages_Free:")?, value("HugePages_Total:")?))
}

/// The number behind a key in a file of lines as /proc has them.
fn number_of(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_proc_are_found_by_their_keys() {
        let text = "Name:\tperegrine\nHugetlbPages:\t   65536 kB\nCpus_allowed:\t3\n";
        assert_eq!(number_of(text, "HugetlbPages:"), Some(65_536));
        assert_eq!(number_of(text, "VmPeak:"), None);
    }

    #[test]
    fn a_process_that_is_not_there_holds_nothing() {
        let machine = Machine { hugepages_free: Some(3), ..Machine::default() };
        // Above the kernel's highest, 4 Mi.
        assert_eq!(machine.clone().without_process(u32::MAX).hugepages_free, Some(3));
        assert_eq!(machine.without_process(std::process::id()).hugepages_free, Some(3));
    }
}
