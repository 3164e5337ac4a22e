//! Which tunnel a kernel route leads into: the groups by their devices, and the tunnels by their next
//! hops. Pure.
//!
//! A next hop is the name of a tunnel on its group's device: one that the configuration gives, else in
//! a point-to-point group `fe80::N` for the tunnel with `if_id` N, and in a point-to-multipoint group
//! the far end itself. A route to such a device without a next hop is for all of the group's `if_id`,
//! whose policies choose, as on an XFRM interface.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use dataplane::tunnel::TunnelName;

use crate::config::{Config, GroupConfig, if_id_of};
use crate::route_feed::Link;

/// One group.
struct Group {
    device: String,
    if_id: Option<u32>,
    /// Those of its tunnels, where each has its own and the configuration names them.
    listed: Vec<u32>,
    next_hops: HashMap<IpAddr, TunnelName>,
}

/// All groups, in the order of their ports.
#[derive(Default)]
pub struct Groups {
    groups: Vec<Group>,
    /// The port of the host's own device.
    host: Option<u16>,
    /// The first group's port.
    first_port: u16,
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// The tunnel; `None` if its next hop names none.
    pub tunnel: Option<TunnelName>,
    /// The port of the group's device.
    pub port: u16,
}

impl Groups {
    /// The groups of a configuration. Their devices are the ports behind the others and the host's.
    pub fn new(config: &Config) -> Groups {
        let ports = config.ports.len() as u16;
        let host = config.host.enable.then_some(ports);
        let first_port = ports + u16::from(host.is_some());
        let group = |group: &GroupConfig| Group {
            device: group.device.clone(),
            if_id: group.if_id,
            listed: group.tunnels.iter().filter_map(|tunnel| tunnel.if_id).collect(),
            next_hops: group.next_hops(),
        };
        Groups { groups: config.groups.iter().map(group).collect(), host, first_port }
    }

    /// The port of the host's own device.
    pub fn host(&self) -> Option<u16> {
        self.host
    }

    /// The ports of the groups' devices.
    pub fn ports(&self) -> std::ops::Range<u16> {
        self.first_port..self.first_port + self.groups.len() as u16
    }

    /// The devices and, where a group has one, the `if_id` of all its tunnels; by port.
    pub fn if_ids(&self) -> impl Iterator<Item = (u16, u32)> {
        self.ports().zip(&self.groups).filter_map(|(port, group)| Some((port, group.if_id?)))
    }

    /// The devices of groups without one, and the `if_id`s of the tunnels that the configuration names.
    pub fn listed_if_ids(&self) -> impl Iterator<Item = (u16, u32)> {
        let listed = |(port, group): (u16, &Group)| {
            group.listed.iter().map(move |if_id| (port, *if_id)).collect::<Vec<_>>()
        };
        self.ports().zip(&self.groups).flat_map(listed)
    }

    /// The links that are groups' devices, by index.
    pub fn devices_among<'a>(
        &self,
        links: impl Iterator<Item = &'a Link>,
    ) -> BTreeMap<u32, String> {
        let is_device = |link: &&Link| self.groups.iter().any(|group| group.device == link.name);
        links.filter(is_device).map(|link| (link.ifindex, link.name.clone())).collect()
    }

    /// Where a route by a device leads; `None` if the device is no group's.
    pub fn lead(&self, device: &str, next_hop: Option<IpAddr>) -> Option<Lead> {
        let (port, group) =
            self.ports().zip(&self.groups).find(|(_, group)| group.device == device)?;
        Some(Lead { tunnel: group.tunnel(next_hop), port })
    }
}

impl Group {
    fn tunnel(&self, next_hop: Option<IpAddr>) -> Option<TunnelName> {
        let Some(hop) = next_hop.map(|hop| hop.to_canonical()) else {
            return self.if_id.map(|if_id| TunnelName { if_id, remote: None });
        };
        if let Some(named) = self.next_hops.get(&hop) {
            return Some(*named);
        }
        match self.if_id {
            Some(if_id) => Some(TunnelName { if_id, remote: Some(hop) }),
            None => if_id_of(hop).map(|if_id| TunnelName { if_id, remote: None }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_hops_name_tunnels_by_the_kind_of_their_group() {
        let text = "[[group]]
            device = \"p2p\"
            [[group.tunnel]]
            if_id = 9
            next_hop = \"10.255.0.9\"
            [[group]]
            device = \"hub\"
            if_id = 100
            [[group.tunnel]]
            remote = \"2001:db8::3\"
            next_hop = \"10.255.0.3\"
            [[port]]
            interface = \"red0\"";
        let groups = Groups::new(&Config::parse(text).unwrap());
        let lead = |device, hop: &str| groups.lead(device, hop.parse().ok());
        let found = |if_id, remote: Option<&str>, port| {
            let remote = remote.map(|one| one.parse().unwrap());
            Some(Lead { tunnel: Some(TunnelName { if_id, remote }), port })
        };
        assert_eq!(lead("p2p", "fe80::7"), found(7, None, 2));
        assert_eq!(lead("p2p", "10.255.0.9"), found(9, None, 2));
        for nobody in ["", "10.255.0.8", "fe80::"] {
            assert_eq!(lead("p2p", nobody), Some(Lead { tunnel: None, port: 2 }));
        }
        assert_eq!(lead("hub", "192.0.2.2"), found(100, Some("192.0.2.2"), 3));
        assert_eq!(lead("hub", "::ffff:192.0.2.2"), found(100, Some("192.0.2.2"), 3));
        assert_eq!(lead("hub", "10.255.0.3"), found(100, Some("2001:db8::3"), 3));
        assert_eq!(lead("hub", ""), found(100, None, 3));
        assert_eq!(lead("red0", "192.0.2.2"), None);
        assert_eq!(groups.if_ids().collect::<Vec<_>>(), [(3, 100)]);
        assert_eq!(groups.ports(), 2..4);
    }
}
