//! The devices of groups of tunnels, and the routes into tunnels that the configuration gives.
//!
//! Such a route is written to the kernel's main table, or that of the group's VRF, by the group's device
//! and the tunnel's next hop, and comes back by `route_feed` as one that somebody typed would: so the
//! host's own packets follow it as well as those that are forwarded, and `ip route` shows it. Beside each
//! stands a blackhole of a higher metric, for the time without the device.
//!
//! Devices and routes outlive a gateway that is killed, so that the host's packets die there and do not
//! leave in clear; which routes are this instance's its list says (`route_list`). A clean stop removes them.
//! What routes mean `groups` knows.

mod route_list;

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;

use dataplane::prefix::{Family, Prefix};
use rustix::io::Errno;

use self::route_list::{Listed, RouteList};
use super::host::{METRIC_HELD, for_each, mtu_of, settle_device};
use super::rtnetlink::{OUR_PROTOCOL, Route, Way, Writer};
use super::vrfs::tables_of_groups;
use crate::config::{Config, next_hop_of};
use crate::route_feed::{self as feed, Kernel};

/// The metric of our routes: what somebody types has 0 and goes before, what routing daemons learn has
/// more or the same prefix seldom.
const METRIC: u32 = 50;

struct Device {
    name: String,
    index: u32,
    mtu: u32,
    configured_mtu: Option<u32>,
}

/// One of our routes: where it is, and the next hop that names its tunnel.
struct Held {
    route: Listed,
    hop: IpAddr,
}

/// All devices of groups.
pub struct GroupDevices {
    writer: Writer,
    devices: Vec<Device>,
    mtu_max: u32,
    list: RouteList,
    held: Vec<Held>,
}

impl GroupDevices {
    /// Sets up the devices, whose queues are open, and their routes. `None` without groups.
    ///
    /// # Errors
    /// The kernel refuses something. Its routes are as they were, but for those of an earlier run that the
    /// configuration does not have any more.
    pub fn open(
        config: &Config,
        ports: &[u32],
        kernel: &Kernel,
    ) -> io::Result<Option<GroupDevices>> {
        let list = RouteList::of(&config.control.run_dir.join(&config.name));
        let left = list.read()?;
        let mut groups = GroupDevices {
            writer: Writer::open()?,
            devices: Vec::new(),
            mtu_max: config.device_mtu_max(),
            list,
            held: held_by(config, kernel),
        };
        groups.check_others(kernel, &left)?;
        if let Err(error) = groups.set_up(config, ports, kernel, &left) {
            // What is told is why; a refusal to take it back would hide that.
            let _ = groups.take_back(&left);
            return Err(error);
        }
        Ok((!config.groups.is_empty()).then_some(groups))
    }

    fn set_up(
        &mut self,
        config: &Config,
        ports: &[u32],
        kernel: &Kernel,
        left: &[Listed],
    ) -> io::Result<()> {
        // 1. Whatever comes, the next run finds what this one is about to write.
        self.list.write(left.iter().chain(self.listed()))?;
        // 2. What an earlier run left and the configuration does not have any more.
        let gone = not_among(left.iter(), self.listed());
        self.remove(&gone)?;
        // 3. The devices, then the routes to them.
        for group in &config.groups {
            settle_device(&group.device)?;
            let index = self.writer.index_of(&group.device)?;
            let mtu = mtu_of(group.mtu, self.mtu_max, ports, kernel);
            self.writer.set_link(index, mtu)?;
            let name = group.device.clone();
            self.devices.push(Device { name, index, mtu, configured_mtu: group.mtu });
        }
        self.write_routes()?;
        self.list.write(self.listed())
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
    /// The first refusal. Everything else is given back all the same, but the list stays, so that the next
    /// run knows of what may still be there.
    pub fn end(mut self) -> io::Result<()> {
        let routes: Vec<Listed> = self.listed().cloned().collect();
        let mut ended = self.remove(&routes);
        for device in &self.devices {
            ended = ended.and(self.writer.delete_link(device.index));
        }
        ended.and_then(|()| self.list.write([].iter()))
    }

    /// Removes what this start has written, and leaves what an earlier run did.
    fn take_back(&mut self, left: &[Listed]) -> io::Result<()> {
        let fresh = not_among(self.listed(), left.iter());
        self.remove(&fresh).and(self.list.write(left.iter()))
    }

    /// Sees that no other gateway leads one of these prefixes to a device of its own, of which the kernel has
    /// room for one.
    fn check_others(&self, kernel: &Kernel, left: &[Listed]) -> io::Result<()> {
        let ours: HashSet<&str> =
            self.listed().chain(left).map(|route| route.device.as_str()).collect();
        let wanted: HashSet<(u32, Prefix)> = self.listed().map(Listed::place).collect();
        let written =
            |route: &&feed::Route| (route.protocol, route.metric) == (OUR_PROTOCOL, METRIC);
        for route in kernel.routes().filter(written) {
            let to = route.first_hop().and_then(|hop| kernel.link(hop.ifindex));
            if let Some(to) = to.filter(|link| !ours.contains(link.name.as_str()))
                && wanted.contains(&(route.table.number(), route.prefix))
            {
                let text = format!(
                    "route {}: another gateway leads it to {}; take it out of the `routes` of one, or \
                     remove it if nothing that runs has written it",
                    route.prefix, to.name
                );
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
        }
        Ok(())
    }

    fn listed(&self) -> impl Iterator<Item = &Listed> {
        self.held.iter().map(|held| &held.route)
    }

    /// Writes all routes. Which of many was refused is not known, so then they are written again one by one.
    fn write_routes(&mut self) -> io::Result<()> {
        let routes: Vec<(u32, Route)> =
            self.held.iter().flat_map(|held| self.routes_of(held)).collect();
        let writer = &mut self.writer;
        let written = for_each(&routes, |(table, route)| writer.add_route(*table, route));
        if written.and(writer.flush()).is_ok() {
            return Ok(());
        }
        for (table, route) in routes {
            self.writer.add_route(table, &route)?;
            self.writer.flush().map_err(|error| self.refused(&route, &error))?;
        }
        Ok(())
    }

    /// The way into a tunnel, and what holds its destinations without the device.
    fn routes_of(
        &self,
        Held { route: Listed { table, prefix, device }, hop }: &Held,
    ) -> Vec<(u32, Route)> {
        let device = self.devices.iter().find(|one| one.name == *device);
        let way = device.map(|device| Way::Gateway(device.index, *hop));
        let ways = way.into_iter().chain([Way::Blackhole]);
        ways.map(|way| (*table, our_route(*prefix, way))).collect()
    }

    fn refused(&self, route: &Route, error: &io::Error) -> io::Error {
        let Route { prefix, way, .. } = route;
        let Way::Gateway(index, hop) = way else {
            return io::Error::new(error.kind(), format!("route blackhole {prefix}: {error}"));
        };
        let device = self.devices.iter().find(|one| one.index == *index);
        let device = device.map_or("?", |device| device.name.as_str());
        let of_ipv6 = prefix.family() == Family::V6 || Family::of(*hop) == Family::V6;
        let is_off = of_ipv6 && Errno::from_io_error(error) == Some(Errno::ACCESS);
        let hint = if is_off {
            format!(
                "; it needs IPv6 on that device: sysctl net.ipv6.conf.{device}.disable_ipv6=0, or \
                     net.ipv6.conf.default.disable_ipv6=0 before the start"
            )
        } else {
            String::new()
        };
        let text = format!("route {prefix} via {hop} dev {device}: {error}{hint}");
        io::Error::new(error.kind(), text)
    }

    /// Removes routes as far as they are there, and by the device that they were listed with.
    fn remove(&mut self, routes: &[Listed]) -> io::Result<()> {
        let mut removed = Ok(());
        for Listed { table, prefix, device } in routes {
            // A device that is gone has taken its routes along.
            let device = self.writer.index_of(device).ok().map(|index| Way::Device(index, None));
            for way in device.into_iter().chain([Way::Blackhole]) {
                removed = removed.and(self.writer.delete_route(*table, &our_route(*prefix, way)));
            }
        }
        removed.and(self.writer.flush())
    }
}

/// The routes that are in no other's place.
fn not_among<'a>(
    routes: impl Iterator<Item = &'a Listed>,
    others: impl Iterator<Item = &'a Listed>,
) -> Vec<Listed> {
    let taken: HashSet<(u32, Prefix)> = others.map(Listed::place).collect();
    routes.filter(|route| !taken.contains(&route.place())).cloned().collect()
}

/// The routes of a configuration. Those of a VRF device that is gone by now have no table to be in.
fn held_by(config: &Config, kernel: &Kernel) -> Vec<Held> {
    let groups = config.groups.iter().zip(tables_of_groups(config, kernel));
    let mut held = Vec::new();
    for (group, table) in groups {
        let Some(table) = table else { continue };
        held.extend(group.routes().map(|(prefix, name)| Held {
            route: Listed { table, prefix, device: group.device.clone() },
            hop: next_hop_of(name, prefix.family()),
        }));
    }
    held
}

fn our_route(prefix: Prefix, way: Way) -> Route {
    let metric = if way == Way::Blackhole { METRIC_HELD } else { METRIC };
    Route { prefix, metric, way, protocol: OUR_PROTOCOL }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::rtnetlink::namespace::Namespace;
    use super::*;

    /// A group's device with a tunnel, and routes into it.
    fn group(device: &str, routes: &[&str]) -> String {
        format!("[[group]]\ndevice = {device:?}\n[[group.tunnel]]\nif_id = 7\nroutes = {routes:?}")
    }

    /// Opened by an instance as one that starts does, with its run directory.
    fn open(above: &Path, name: &str, groups: &str) -> io::Result<Option<GroupDevices>> {
        fs::create_dir_all(above.join(name)).unwrap();
        let text = format!(
            "name = {name:?}\ncontrol.run_dir = {above:?}\n{groups}\n[[port]]\ninterface = \"red0\""
        );
        let feed = feed::RouteFeed::open().unwrap();
        GroupDevices::open(&Config::parse(&text).unwrap(), &[], feed.kernel())
    }

    /// A namespace with two devices.
    fn namespace(tag: &str) -> Namespace {
        let namespace = Namespace::new(tag);
        namespace.ip("link set lo up");
        for device in ["grp0", "grp1"] {
            namespace.ip(&format!("tuntap add dev {device} mode tun"));
        }
        namespace
    }

    /// What is routed there by gateways.
    fn routes(namespace: &Namespace) -> Vec<String> {
        let all = ["route show proto 80", "-6 route show proto 80"].map(|one| namespace.ip(one));
        // Whether a device has carrier by now is not asked.
        all.concat().replace(" linkdown", "").lines().map(str::to_owned).collect()
    }

    #[test]
    fn another_gateway_leaves_routes_alone() {
        let namespace = namespace("grpa");
        let above = tempfile::tempdir().unwrap();
        namespace.inside(|| {
            let both = group("grp0", &["10.50.0.0/16", "fd50::/32"]);
            let first = open(above.path(), "one", &both).unwrap().unwrap();
            let before = routes(&namespace);
            assert_eq!(before.len(), 4, "{before:?}");
            assert!(open(above.path(), "two", "").unwrap().is_none());
            assert_eq!(routes(&namespace), before);
            let theirs = group("grp1", &["10.60.0.0/16", "fd60::/32"]);
            let second = open(above.path(), "two", &theirs).unwrap().unwrap();
            assert_eq!(routes(&namespace).len(), 8);
            let same = group("grp2", &["10.50.0.0/16"]);
            let refusal = open(above.path(), "three", &same).err().unwrap().to_string();
            assert!(refusal.contains("route 10.50.0.0/16: another gateway"), "{refusal}");
            second.end().unwrap();
            assert_eq!(routes(&namespace), before);
            first.end().unwrap();
            assert_eq!(routes(&namespace), Vec::<String>::new());
            for name in ["one", "two", "three"] {
                assert_eq!(fs::read_dir(above.path().join(name)).unwrap().count(), 0);
            }
        });
    }

    #[test]
    fn a_prefix_that_the_configuration_has_no_more_goes() {
        let namespace = namespace("grpb");
        let above = tempfile::tempdir().unwrap();
        namespace.inside(|| {
            let many = ["10.50.0.0/16", "10.60.0.0/16", "fd50::/32", "fd60::/32"];
            drop(open(above.path(), "one", &group("grp0", &many)).unwrap());
            assert_eq!(routes(&namespace).len(), 8);
            let less = group("grp0", &["10.50.0.0/16", "fd50::/32"]);
            drop(open(above.path(), "one", &less).unwrap());
            let left = routes(&namespace);
            assert!(left.len() == 4 && left.iter().all(|one| one.contains("50")), "{left:?}");
            // Also if its device is no group's now, or is gone; and by another device it is another route.
            drop(open(above.path(), "one", &group("grp1", &["10.50.0.0/16"])).unwrap());
            let left = routes(&namespace);
            assert!(left.len() == 2 && left[0].contains("dev grp1"), "{left:?}");
            namespace.ip("link delete grp1");
            assert_eq!(routes(&namespace).len(), 1);
            assert!(open(above.path(), "one", "").unwrap().is_none());
            assert_eq!(routes(&namespace), Vec::<String>::new());
        });
    }

    #[test]
    fn a_start_that_is_refused_takes_its_routes_back_and_names_the_one() {
        let namespace = namespace("grpc");
        let above = tempfile::tempdir().unwrap();
        namespace.inside(|| {
            namespace.set_ipv6("grp0", false);
            let groups = group("grp0", &["10.50.0.0/16", "fd50::/32"]);
            let refusal = open(above.path(), "one", &groups).err().unwrap().to_string();
            let named = "via fe80::7 dev grp0";
            assert!(
                refusal.contains(named) && refusal.contains("grp0.disable_ipv6=0"),
                "{refusal}"
            );
            assert_eq!(routes(&namespace), Vec::<String>::new());
            assert_eq!(fs::read_dir(above.path().join("one")).unwrap().count(), 0);
            // What an earlier run left stays.
            namespace.set_ipv6("grp0", true);
            drop(open(above.path(), "one", &group("grp0", &["10.50.0.0/16"])).unwrap());
            namespace.set_ipv6("grp0", false);
            let before = routes(&namespace);
            assert!(open(above.path(), "one", &groups).is_err());
            assert_eq!(routes(&namespace), before);
        });
    }
}
