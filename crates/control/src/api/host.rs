//! What is said of the host's own traffic.

use serde::{Deserialize, Serialize};

/// The way of the host's own packets through tunnels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostDevice {
    /// The device.
    pub device: String,
    /// Its MTU.
    pub mtu_bytes: u32,
    /// The kernel's routing table that leads to it.
    pub table: u32,
    /// Destinations routed to it.
    pub routes: u64,
    /// Policies of the kernel that keep the host's packets from another way.
    pub blocks: u64,
    /// Packets that the host sent.
    pub rx_packets: u64,
    /// Packets that were handed to the host.
    pub tx_packets: u64,
    /// Packets lost on either way.
    pub lost_packets: u64,
}
