//! How the host's own packets come to the gateway: the section `[host]`.

use serde::{Deserialize, Serialize};

use super::{ConfigError, INTERFACE_BYTES_MAX};

/// The most ports that stay on the kernel's sockets: each is a rule that the kernel walks past for
/// every packet it sends.
const IKE_PORTS_MAX: usize = 16;
/// Rules take four priorities in a row, all of them before the table of strongSwan (220).
const PRIORITY_MAX: u32 = 32_000;

/// The host's own traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostConfig {
    /// Whether the host's own packets go through tunnels.
    pub enable: bool,
    /// The name of the TUN device; `pgn-` and the instance's name when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its MTU; when absent, what fits into a tunnel on the port with the smallest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The kernel's routing table that is the instance's own.
    pub table: u32,
    /// The first of four priorities of the rules that lead there.
    pub priority: u32,
    /// UDP source ports of IKE, whose packets never go through a tunnel.
    pub ike_ports: Vec<u16>,
}

impl Default for HostConfig {
    fn default() -> Self {
        // Table and priority are free on a usual system: distributions use 253 to 255 and strongSwan
        // 220, whose rule has priority 220.
        let ike_ports = vec![500, 4500];
        Self { enable: true, device: None, mtu: None, table: 20_551, priority: 200, ike_ports }
    }
}

impl HostConfig {
    /// The device's name for an instance, in the kernel's 15 bytes: a longer instance's name is cut,
    /// and told from others by a checksum of all of it.
    #[must_use]
    pub fn device_of(&self, instance: &str) -> String {
        if let Some(device) = &self.device {
            return device.clone();
        }
        let name = format!("pgn-{instance}");
        if name.len() <= INTERFACE_BYTES_MAX {
            return name;
        }
        format!("{}{:08x}", &name[..INTERFACE_BYTES_MAX - 8], checksum(instance))
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |reason| Err(ConfigError::Host { reason });
        if self.table == 0 || (253..=255).contains(&self.table) {
            return refuse("table is a number of its own: not 0 and not 253 to 255, the kernel's");
        }
        if !(1..=PRIORITY_MAX).contains(&self.priority) {
            return refuse("priority is 1 to 32000: after the local table, before the main one");
        }
        if self.ike_ports.len() > IKE_PORTS_MAX || self.ike_ports.contains(&0) {
            return refuse("ike_ports has at most 16 ports, none of them 0");
        }
        Ok(())
    }
}

/// The number by which an instance's policies in the kernel are known from another's: 0 is everybody else's.
#[must_use]
pub fn owner_of(instance: &str) -> u32 {
    checksum(instance).max(1)
}

/// FNV-1a: any spread will do, but it must be the same at every start.
fn checksum(instance: &str) -> u32 {
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    instance.bytes().fold(0x811c_9dc5, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instance_has_a_device_of_its_own() {
        let host = HostConfig::default();
        assert_eq!(host.device_of("gw0"), "pgn-gw0");
        let long = ["a-long-name-of-a-gateway", "a-long-name-of-a-router"];
        let [one, other] = long.map(|name| host.device_of(name));
        assert!(one != other && one.len() == 15 && one.starts_with("pgn-"), "{one} {other}");
        let named = HostConfig { device: Some("inner0".to_owned()), ..host };
        assert_eq!(named.device_of("gw0"), "inner0");
    }
}
