//! Who is led to which VRF: the configuration's word, else the kernel's, as numbers of tables in the FIB.
//!
//! A port, or a group's device, that the configuration leads nowhere is led where the kernel leads it: to
//! the table of the VRF device that it is a part of. Each of the kernel's tables that anybody was ever led
//! to has a number in the FIB, which it keeps. A VRF device that is not there has none, and packets that
//! are led to it end (`dataplane::vrfs`). Pure.

use std::collections::BTreeMap;

use dataplane::vrfs::{MAIN, PortVrf, UNKNOWN, Vrfs};

use super::groups::Groups;
use crate::config::{Config, TableConfig, VrfConfig};
use crate::route_feed::{Kernel, Table};

/// The kind of the kernel's VRF devices.
const VRF: &str = "vrf";

/// What the configuration says of a group.
#[derive(Default)]
struct Group {
    device: String,
    inner: Option<VrfConfig>,
    outer: Option<VrfConfig>,
    /// Its tunnels have an `if_id` each.
    is_point_to_point: bool,
}

/// Ports and groups, and the tables that they are led to.
#[derive(Default)]
pub struct Leads {
    ports: Vec<Option<VrfConfig>>,
    groups: Vec<Group>,
    /// The number in the FIB of each of the kernel's tables; from 1.
    numbers: BTreeMap<u32, u32>,
}

impl Leads {
    /// Those of a configuration.
    pub fn new(config: &Config) -> Leads {
        let group = |group: &crate::config::GroupConfig| Group {
            device: group.device.clone(),
            inner: group.vrf.clone(),
            outer: group.outer_vrf.clone(),
            is_point_to_point: group.if_id.is_none(),
        };
        Leads {
            ports: config.ports.iter().map(|port| port.vrf.clone()).collect(),
            groups: config.groups.iter().map(group).collect(),
            numbers: BTreeMap::new(),
        }
    }

    /// Where each port leads now: those of interfaces, the host's and the groups'.
    pub fn resolve(&mut self, ifindexes: &[u32], groups: &Groups, kernel: &Kernel) -> Vrfs {
        let mut ports = Vec::new();
        for (at, ifindex) in ifindexes.iter().enumerate() {
            let led = led(self.ports.get(at).and_then(Option::as_ref), *ifindex, kernel);
            let inner = self.number(led);
            ports.push(PortVrf { inner, outer: inner });
        }
        // The host's own packets come from its main table.
        ports.extend(groups.host().map(|_| PortVrf::default()));
        let mut stray = MAIN;
        for group in std::mem::take(&mut self.groups) {
            let ifindex = kernel.link_named(&group.device).map_or(0, |link| link.ifindex);
            let inner = self.number(led(group.inner.as_ref(), ifindex, kernel));
            let outer = self.number(wished(group.outer.as_ref(), kernel));
            ports.push(PortVrf { inner, outer });
            // Whose tunnel it is that no route named yet, nobody can tell.
            if group.is_point_to_point && inner != MAIN {
                stray = UNKNOWN;
            }
            self.groups.push(group);
        }
        Vrfs::new(ports, stray)
    }

    /// The tables of VRFs, each with its number in the FIB.
    pub fn tables(&self) -> impl Iterator<Item = (Table, u32)> {
        self.numbers.iter().map(|(table, number)| (Table::Other(*table), *number))
    }

    /// The number of a table in the FIB; `None` if nobody is led there.
    pub fn number_of(&self, table: Table) -> Option<u32> {
        match table {
            Table::Other(table) => self.numbers.get(&table).copied(),
            _ => None,
        }
    }

    /// The name of a number, for people: nothing for the main table.
    pub fn name(&self, number: u32, kernel: &Kernel) -> Option<String> {
        if number == MAIN {
            return None;
        }
        let table = self.numbers.iter().find(|(_, one)| **one == number).map(|(table, _)| *table);
        let Some(table) = table else { return Some("unknown".to_owned()) };
        let mut links = kernel.links();
        let device = links.find(|link| link.vrf_table == Some(table));
        Some(device.map_or_else(|| format!("table {table}"), |link| link.name.clone()))
    }

    fn number(&mut self, led: Led) -> u32 {
        match led {
            Led::Main => MAIN,
            Led::Nowhere => UNKNOWN,
            Led::To(table) => {
                // As many as ports and groups have ever been led to.
                let next = self.numbers.len() as u32 + 1;
                *self.numbers.entry(table).or_insert(next)
            }
        }
    }
}

/// The kernel's table of the inner side of each group, in the configuration's order; the main table's
/// number where there is no VRF, and nothing where there should be one.
pub fn tables_of_groups(config: &Config, kernel: &Kernel) -> Vec<Option<u32>> {
    let table = |group: &crate::config::GroupConfig| {
        let ifindex = kernel.link_named(&group.device).map_or(0, |link| link.ifindex);
        match led(group.vrf.as_ref(), ifindex, kernel) {
            Led::Main => Some(Table::Main.number()),
            Led::To(table) => Some(table),
            Led::Nowhere => None,
        }
    };
    config.groups.iter().map(table).collect()
}

/// Where something is led.
enum Led {
    Main,
    /// To one of the kernel's tables.
    To(u32),
    /// To a VRF that is not there.
    Nowhere,
}

fn led(wish: Option<&VrfConfig>, ifindex: u32, kernel: &Kernel) -> Led {
    if wish.is_some() {
        return wished(wish, kernel);
    }
    match kernel.link(ifindex).and_then(|link| link.master) {
        None => Led::Main,
        Some(master) => match kernel.link(master) {
            Some(link) if link.kind.as_deref() == Some(VRF) => {
                link.vrf_table.map_or(Led::Nowhere, Led::To)
            }
            // A bridge, or a bond.
            Some(_) => Led::Main,
            None => Led::Nowhere,
        },
    }
}

fn wished(wish: Option<&VrfConfig>, kernel: &Kernel) -> Led {
    match wish {
        None => Led::Main,
        Some(VrfConfig::Table(TableConfig { table })) => Led::To(*table),
        Some(VrfConfig::Device(name)) => {
            let device = kernel.link_named(name).filter(|link| link.kind.as_deref() == Some(VRF));
            device.and_then(|link| link.vrf_table).map_or(Led::Nowhere, Led::To)
        }
    }
}
