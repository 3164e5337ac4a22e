//! The devices of groups of tunnels, and the routes into tunnels that the configuration gives.
//!
//! Such a route is written to the kernel's main table, or that of the group's VRF, by the group's device
//! and the tunnel's next hop, and comes back by `route_feed` as one that somebody typed would: so the
//! host's own packets follow it as well as those that are forwarded, and `ip route` shows it. Beside each
//! stands a blackhole of a higher metric, for the time without the device.
//!
//! Devices and routes outlive a gateway that is killed, so that the host's packets die there and do not
//! leave in clear. A clean stop removes them. What routes mean `groups` knows.

use std::collections::HashSet;
use std::io;

use dataplane::prefix::Prefix;

use super::host::{METRIC_HELD, mtu_of, settle_device};
use super::rtnetlink::{OUR_PROTOCOL, Route, Way, Writer};
use super::vrfs::tables_of_groups;
use crate::config::{Config, next_hop_of};
use crate::route_feed::{Kernel, Table};

/// The metric of our routes: what somebody types has 0 and goes before, what routing daemons learn has
/// more or the same prefix seldom.
const METRIC: u32 = 50;

struct Device {
    index: u32,
    mtu: u32,
    configured_mtu: Option<u32>,
}

/// All devices of groups.
pub struct GroupDevices {
    writer: Writer,
    devices: Vec<Device>,
    mtu_max: u32,
    /// Tables and prefixes of our routes.
    held: Vec<(u32, Prefix)>,
}

impl GroupDevices {
    /// Sets up the devices, whose queues are open, and their routes. `None` without groups.
    ///
    /// # Errors
    /// The kernel refuses something.
    pub fn open(
        config: &Config,
        ports: &[u32],
        kernel: &Kernel,
    ) -> io::Result<Option<GroupDevices>> {
        let mut writer = Writer::open()?;
        let tables = tables_of_groups(config, kernel);
        let groups = || config.groups.iter().zip(&tables);
        // A VRF device that is gone by now: its routes have no table to be in.
        let routed = groups().filter_map(|(group, table)| Some((group, (*table)?)));
        let mut held: HashSet<(u32, Prefix)> = routed
            .flat_map(|(group, table)| group.routes().map(move |route| (table, route.0)))
            .collect();
        remove_left(&mut writer, kernel, &held, &tables)?;
        if config.groups.is_empty() {
            return Ok(None);
        }
        let mtu_max = config.device_mtu_max();
        let mut devices = Vec::new();
        for (group, table) in groups() {
            settle_device(&group.device)?;
            let index = writer.index_of(&group.device)?;
            let mtu = mtu_of(group.mtu, mtu_max, ports, kernel);
            writer.set_link(index, mtu)?;
            devices.push(Device { index, mtu, configured_mtu: group.mtu });
            let Some(table) = *table else { continue };
            for (prefix, name) in group.routes() {
                let way = Way::Gateway(index, next_hop_of(name, prefix.family()));
                writer.add_route(table, &our_route(prefix, way))?;
                writer.add_route(table, &our_route(prefix, Way::Blackhole))?;
            }
        }
        writer.flush()?;
        let held = held.drain().collect();
        Ok(Some(GroupDevices { writer, devices, mtu_max, held }))
    }

    /// Follows the ports' interfaces. What the kernel refuses is told and not followed.
    pub fn follow_ports(&mut self, ports: &[u32], kernel: &Kernel) {
        for device in &mut self.devices {
            let mtu = mtu_of(device.configured_mtu, self.mtu_max, ports, kernel);
            if mtu != device.mtu {
                device.mtu = mtu;
                if let Err(error) = self.writer.set_link(device.index, mtu) {
                    tracing::warn!(%error, "the kernel refused the MTU of a group's device");
                }
            }
        }
    }

    /// Gives everything back.
    ///
    /// # Errors
    /// The first refusal. Everything else is given back all the same.
    pub fn end(mut self) -> io::Result<()> {
        let mut ended = Ok(());
        for (table, prefix) in self.held {
            ended = ended.and(self.writer.delete_route(table, &our_route(prefix, Way::Blackhole)));
        }
        ended = ended.and(self.writer.flush());
        for device in &self.devices {
            ended = ended.and(self.writer.delete_link(device.index));
        }
        ended
    }
}

/// Removes routes of an earlier run that the configuration does not have any more, from the main table and
/// those of its VRFs. Other tables have other owners.
fn remove_left(
    writer: &mut Writer,
    kernel: &Kernel,
    held: &HashSet<(u32, Prefix)>,
    tables: &[Option<u32>],
) -> io::Result<()> {
    let ours = |route: &&crate::route_feed::Route| {
        (route.table == Table::Main || tables.contains(&Some(route.table.number())))
            && route.protocol == OUR_PROTOCOL
            && matches!(route.metric, METRIC | METRIC_HELD)
            && !held.contains(&(route.table.number(), route.prefix))
    };
    for route in kernel.routes().filter(ours) {
        let way = match route.first_hop() {
            Some(hop) => Way::Device(hop.ifindex, None),
            None => Way::Blackhole,
        };
        let gone =
            Route { prefix: route.prefix, metric: route.metric, way, protocol: OUR_PROTOCOL };
        writer.delete_route(route.table.number(), &gone)?;
    }
    writer.flush()
}

fn our_route(prefix: Prefix, way: Way) -> Route {
    let metric = if way == Way::Blackhole { METRIC_HELD } else { METRIC };
    Route { prefix, metric, way, protocol: OUR_PROTOCOL }
}
