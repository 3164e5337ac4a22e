//! The VRF that a port or a group of tunnels is led to. docs/routes.md explains it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Config, ConfigError, INTERFACE_BYTES_MAX};

/// The kernel's tables that are no VRF's: default, main and local.
const NOT_A_VRF: std::ops::RangeInclusive<u32> = 253..=255;

/// A VRF.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged, expecting = "a VRF is the name of a VRF device, or { table = NUMBER }")]
pub enum VrfConfig {
    /// The kernel's device of kind `vrf`, whose table it is.
    Device(String),
    /// A routing table of the kernel's, with or without such a device.
    Table(TableConfig),
}

/// A routing table by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableConfig {
    /// The number.
    pub table: u32,
}

impl fmt::Display for VrfConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VrfConfig::Device(name) => f.write_str(name),
            VrfConfig::Table(TableConfig { table }) => write!(f, "table {table}"),
        }
    }
}

impl Config {
    /// Every VRF that something is led to, and what that is.
    pub(super) fn vrfs(&self) -> impl Iterator<Item = (impl Fn() -> String, &VrfConfig)> {
        let ports = self.ports.iter().map(|port| (false, port.label(), &port.vrf));
        let groups = self.groups.iter().flat_map(|group| {
            [&group.vrf, &group.outer_vrf].map(|led| (true, group.device.as_str(), led))
        });
        ports.chain(groups).filter_map(|(is_group, name, led)| {
            let place = move || match is_group {
                false => format!("port {name:?}"),
                true => format!("group of device {name:?}"),
            };
            Some((place, led.as_ref()?))
        })
    }

    /// Checks what can be checked of them without a machine.
    pub(super) fn validate_vrfs(&self) -> Result<(), ConfigError> {
        let host_table = self.host.enable.then_some(self.host.table);
        self.vrfs().try_for_each(|(place, led)| validate(place, led, host_table))
    }
}

/// Checks one; `host_table` is the gateway's own.
fn validate(
    place: impl Fn() -> String,
    vrf: &VrfConfig,
    host_table: Option<u32>,
) -> Result<(), ConfigError> {
    let reason = match vrf {
        VrfConfig::Device(name) if name.is_empty() || name.len() > INTERFACE_BYTES_MAX => {
            format!("{name:?} is no interface's name; a VRF is a device's name of 1 to 15 bytes")
        }
        VrfConfig::Table(TableConfig { table: 0 }) => {
            "there is no table 0; take the VRF's number".to_owned()
        }
        VrfConfig::Table(TableConfig { table }) if NOT_A_VRF.contains(table) => {
            format!("table {table} is no VRF's; leave vrf out for the main table")
        }
        VrfConfig::Table(TableConfig { table }) if Some(*table) == host_table => {
            format!(
                "table {table} is the gateway's own ([host] table); take another for one of them"
            )
        }
        _ => return Ok(()),
    };
    Err(ConfigError::Vrf { place: place(), reason })
}

#[cfg(test)]
mod tests {
    use super::super::{Interface, Machine};
    use super::*;

    fn parse(port: &str, group: &str) -> Result<Config, String> {
        let text = format!(
            "[[port]]\ninterface = \"red0\"\n{port}\n[[group]]\ndevice = \"t\"\nif_id = 1\n{group}"
        );
        Config::parse(&text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_vrf_is_a_device_or_a_table() {
        let config = parse("vrf = \"blue\"", "vrf = { table = 10 }\nouter_vrf = \"blue\"").unwrap();
        assert_eq!(config.ports[0].vrf, Some(VrfConfig::Device("blue".to_owned())));
        let ten = VrfConfig::Table(TableConfig { table: 10 });
        assert_eq!(config.groups[0].vrf.as_ref(), Some(&ten));
        assert_eq!(
            (ten.to_string(), config.ports[0].vrf.as_ref().unwrap().to_string()),
            ("table 10".to_owned(), "blue".to_owned())
        );
        let again = Config::parse(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn what_is_no_vrf_is_refused_by_name() {
        for (port, group, expected) in [
            ("vrf = 7", "", "{ table = NUMBER }"),
            ("vrf = { table = 7, name = \"x\" }", "", "{ table = NUMBER }"),
            ("vrf = { table = 254 }", "", "port \"red0\": table 254 is no VRF's"),
            ("vrf = { table = 0 }", "", "no table 0"),
            ("vrf = { table = 20551 }", "", "the gateway's own"),
            ("", "vrf = \"a-name-of-sixteen\"", "group of device \"t\": "),
            ("", "outer_vrf = { table = 255 }", "group of device \"t\": table 255"),
        ] {
            let error = parse(port, group).unwrap_err();
            assert!(error.contains(expected), "{port} {group}: {error}");
        }
    }

    #[test]
    fn a_vrf_device_that_is_not_here_is_refused_with_those_that_are() {
        let config = parse("", "outer_vrf = \"blue\"").unwrap();
        let interface = |name: &str, kind: Option<&str>| Interface {
            name: name.to_owned(),
            ifindex: 1,
            mtu: 1500,
            queues: 1,
            transmit_queues: 1,
            kind: kind.map(str::to_owned),
        };
        let mut machine = Machine {
            interfaces: vec![
                interface("red0", None),
                interface("blue", Some("bridge")),
                interface("green", Some("vrf")),
            ],
            cores: [0].into(),
            cores_allowed: [0].into(),
            ..Machine::default()
        };
        let error = config.check(&machine).unwrap_err().to_string();
        assert!(
            error.contains("\"t\": there is no VRF device \"blue\"") && error.contains("green")
        );
        machine.interfaces[1].kind = Some("vrf".to_owned());
        config.check(&machine).unwrap();
    }
}
