//! Groups of tunnels in route mode: the sections `[[group]]`. docs/routes.md explains them.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use dataplane::prefix::{Family, Prefix};
use dataplane::tunnel::TunnelName;
use serde::{Deserialize, Serialize};

use super::{ConfigError, VrfConfig};

/// The most groups: each costs a device, and a port on every worker.
const GROUPS_MAX: usize = 64;

/// Tunnels that share one device of the host's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// The name of the TUN device.
    pub device: String,
    /// Point-to-multipoint: the `if_id` of all tunnels, which their far ends tell apart. Absent:
    /// point-to-point, each tunnel has an `if_id` of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_id: Option<u32>,
    /// The device's MTU; when absent, what fits into a tunnel on the port with the smallest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The VRF of the packets inside the tunnels; when absent the kernel's, of which the device is a part,
    /// else the main table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<VrfConfig>,
    /// The VRF in which the tunnels' far ends are; the main table when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer_vrf: Option<VrfConfig>,
    /// Names and routes of tunnels. A tunnel that needs neither need not be here.
    #[serde(rename = "tunnel", default, skip_serializing_if = "Vec::is_empty")]
    pub tunnels: Vec<TunnelConfig>,
}

/// One tunnel of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelConfig {
    /// Its `if_id`, in a group that has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_id: Option<u32>,
    /// The far end of its SAs, in a group that has an `if_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpAddr>,
    /// A next hop by which routes may name it, beside its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<IpAddr>,
    /// Prefixes that are routed into it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<String>,
}

impl GroupConfig {
    /// The tunnel of one of this group's entries.
    #[must_use]
    pub fn name_of(&self, tunnel: &TunnelConfig) -> Option<TunnelName> {
        let if_id = self.if_id.or(tunnel.if_id)?;
        Some(TunnelName { if_id, remote: tunnel.remote.filter(|_| self.if_id.is_some()) })
    }

    /// The routes of the configuration, each with its tunnel.
    pub fn routes(&self) -> impl Iterator<Item = (Prefix, TunnelName)> {
        self.tunnels.iter().flat_map(|tunnel| {
            let name = self.name_of(tunnel);
            tunnel.routes.iter().filter_map(move |route| Some((prefix(route)?, name?)))
        })
    }

    /// The tunnels that next hops of the configuration name.
    #[must_use]
    pub fn next_hops(&self) -> HashMap<IpAddr, TunnelName> {
        let named = self.tunnels.iter();
        let hop = |tunnel: &TunnelConfig| tunnel.next_hop.map(|hop| hop.to_canonical());
        named.filter_map(|tunnel| Some((hop(tunnel)?, self.name_of(tunnel)?))).collect()
    }

    /// Sees that a tunnel's next hop is not what another tunnel is called without one: it would take that one's
    /// packets.
    fn check_other(&self, tunnel: &TunnelConfig, hop: IpAddr) -> Result<(), String> {
        let is_far_end = |other: &TunnelConfig| {
            let [theirs, ours] =
                [other, tunnel].map(|one| one.remote.map(|far| far.to_canonical()));
            theirs == Some(hop) && theirs != ours
        };
        match (self.if_id, if_id_of(hop)) {
            (Some(_), _) if self.tunnels.iter().any(is_far_end) => {
                Err(format!("next_hop {hop} is the far end of another tunnel, which it names"))
            }
            (None, Some(if_id)) if tunnel.if_id != Some(if_id) => {
                Err(format!("next_hop {hop} names the tunnel with if_id {if_id}"))
            }
            _ => Ok(()),
        }
    }

    fn validate(&self) -> Result<(), String> {
        if self.if_id == Some(0) {
            return Err("an if_id is not 0".to_owned());
        }
        let mut next_hops = HashSet::new();
        for tunnel in &self.tunnels {
            match (self.if_id, tunnel.if_id, tunnel.remote) {
                (None, Some(1..), None) | (Some(_), None, Some(_)) => {}
                (None, ..) => {
                    return Err(
                        "a [[group.tunnel]] of a group without if_id has an if_id, which is \
                                not 0, and no remote"
                            .to_owned(),
                    );
                }
                (Some(_), ..) => {
                    return Err(
                        "a [[group.tunnel]] of a group with an if_id has a remote, and no \
                                if_id"
                            .to_owned(),
                    );
                }
            }
            if let Some(hop) = tunnel.next_hop.map(|hop| hop.to_canonical()) {
                if !next_hops.insert(hop) {
                    return Err(format!("next_hop {hop} names two tunnels"));
                }
                self.check_other(tunnel, hop)?;
            }
            if let Some(bad) = tunnel.routes.iter().find(|route| prefix(route).is_none()) {
                return Err(format!("route {bad:?} is not a prefix such as 10.1.0.0/16"));
            }
        }
        Ok(())
    }
}

/// A prefix as people write it: an address alone is one of its own.
fn prefix(text: &str) -> Option<Prefix> {
    match text.split_once('/') {
        Some((address, len)) => Prefix::new(address.parse().ok()?, len.parse().ok()?),
        None => text.parse().ok().map(Prefix::host),
    }
}

/// Checks all groups; `taken` are names of interfaces that are something else.
pub(super) fn validate(groups: &[GroupConfig], taken: &[&str]) -> Result<(), ConfigError> {
    let refuse = |device: &str, reason: String| {
        Err(ConfigError::Group { device: device.to_owned(), reason })
    };
    if groups.len() > GROUPS_MAX {
        return refuse(&groups[GROUPS_MAX].device, format!("at most {GROUPS_MAX} groups"));
    }
    let mut devices: HashSet<&str> = taken.iter().copied().collect();
    let (mut if_ids, mut routes) = (HashSet::new(), HashSet::new());
    for group in groups {
        super::check_interface(&group.device)?;
        if !devices.insert(&group.device) {
            return refuse(&group.device, "the device is something else already".to_owned());
        }
        if let Err(reason) = group.validate() {
            return refuse(&group.device, reason);
        }
        if let Some(if_id) = group.if_id
            && !if_ids.insert(if_id)
        {
            return refuse(&group.device, format!("another group has the if_id {if_id}"));
        }
        let mut again = |prefix| !routes.insert((group.vrf.clone(), prefix));
        if let Some((twice, _)) = group.routes().find(|(prefix, _)| again(*prefix)) {
            return refuse(&group.device, format!("{twice} is routed into two tunnels"));
        }
    }
    Ok(())
}

/// The next hop that names a tunnel of its own `if_id` on its group's device: the link-local address
/// with that number. IPv4 routes may have it, too (RFC 8950): `via inet6 fe80::7`.
#[must_use]
pub fn link_local(if_id: u32) -> IpAddr {
    IpAddr::from((0xfe80_u128 << 112 | u128::from(if_id)).to_be_bytes())
}

/// The `if_id` that such a next hop names.
#[must_use]
pub fn if_id_of(next_hop: IpAddr) -> Option<u32> {
    let IpAddr::V6(v6) = next_hop else { return None };
    let if_id = v6.to_bits() as u32;
    (if_id != 0 && link_local(if_id) == next_hop).then_some(if_id)
}

/// The next hop for a route of a family to a tunnel: what the kernel takes for it.
#[must_use]
pub fn next_hop_of(name: TunnelName, family: Family) -> IpAddr {
    match (name.remote, family) {
        (None, _) => link_local(name.if_id),
        (Some(IpAddr::V4(v4)), Family::V6) => v4.to_ipv6_mapped().into(),
        (Some(remote), _) => remote,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn parse(groups: &str) -> Result<Config, String> {
        let text = format!("{groups}\n[[port]]\ninterface = \"red0\"\n");
        Config::parse(&text).map_err(|error| error.to_string())
    }

    #[test]
    fn both_kinds_of_groups_are_read_with_their_routes() {
        let config = parse(
            "[[group]]
             device = \"p2p\"
             [[group.tunnel]]
             if_id = 7
             routes = [\"10.1.0.0/16\", \"fd01::/16\"]
             [[group]]
             device = \"hub\"
             if_id = 100
             [[group.tunnel]]
             remote = \"192.0.2.2\"
             next_hop = \"10.255.0.2\"
             routes = [\"10.2.0.1\"]",
        )
        .unwrap();
        let [p2p, hub] = &config.groups[..] else { panic!("{config:?}") };
        let seven = TunnelName { if_id: 7, remote: None };
        assert_eq!(p2p.routes().map(|route| route.1).collect::<Vec<_>>(), [seven; 2]);
        let east = TunnelName { if_id: 100, remote: Some([192, 0, 2, 2].into()) };
        let routes: Vec<_> = hub.routes().collect();
        assert_eq!(routes, [(Prefix::host([10, 2, 0, 1].into()), east)]);
        assert_eq!(hub.next_hops(), HashMap::from([([10, 255, 0, 2].into(), east)]));
        let again = Config::parse(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (groups, expected) in [
            ("[[group]]\ndevice = \"red0\"", "something else"),
            ("[[group]]\ndevice = \"a\"\nif_id = 0", "not 0"),
            ("[[group]]\ndevice = \"a\"\nmtu = 9", "1280"),
            ("[[group]]\ndevice = \"a\"\n[[group.tunnel]]\nremote = \"192.0.2.2\"", "has an if_id"),
            ("[[group]]\ndevice = \"a\"\nif_id = 1\n[[group.tunnel]]\nif_id = 2", "has a remote"),
            (
                "[[group]]\ndevice = \"a\"\n[[group.tunnel]]\nif_id = 2\nroutes = [\"10/8\"]",
                "not a prefix",
            ),
            (
                "[[group]]\ndevice = \"a\"\nif_id = 1\n[[group]]\ndevice = \"b\"\nif_id = 1",
                "another group",
            ),
            (
                "[[group]]\ndevice = \"a\"\n[[group.tunnel]]\nif_id = 2\nroutes = [\"10.0.0.0/8\"]
                 [[group.tunnel]]\nif_id = 3\nroutes = [\"10.0.0.0/8\"]",
                "two tunnels",
            ),
            (
                "[[group]]\ndevice = \"a\"\n[[group.tunnel]]\nif_id = 2\nnext_hop = \"10.0.0.1\"
                 [[group.tunnel]]\nif_id = 3\nnext_hop = \"::ffff:10.0.0.1\"",
                "names two tunnels",
            ),
            (
                "[[group]]\ndevice = \"a\"\n[[group.tunnel]]\nif_id = 2\nnext_hop = \"fe80::3\"",
                "names the tunnel with if_id 3",
            ),
            (
                "[[group]]\ndevice = \"a\"\nif_id = 9
                 [[group.tunnel]]\nremote = \"::ffff:192.0.2.2\"
                 [[group.tunnel]]\nremote = \"192.0.2.3\"\nnext_hop = \"192.0.2.2\"",
                "the far end of another tunnel",
            ),
        ] {
            let error = parse(groups).unwrap_err();
            assert!(error.contains(expected), "{groups}: {error}");
        }
    }

    #[test]
    fn a_tunnel_may_have_its_own_name_for_a_next_hop() {
        let config = parse(
            "[[group]]
             device = \"p2p\"
             [[group.tunnel]]
             if_id = 7
             next_hop = \"fe80::7\"
             [[group]]
             device = \"hub\"
             if_id = 100
             [[group.tunnel]]
             remote = \"192.0.2.2\"
             next_hop = \"::ffff:192.0.2.2\"",
        )
        .unwrap();
        let far: IpAddr = [192, 0, 2, 2].into();
        let hub = TunnelName { if_id: 100, remote: Some(far) };
        assert_eq!(config.groups[1].next_hops(), HashMap::from([(far, hub)]));
    }

    #[test]
    fn a_link_local_next_hop_names_an_if_id_and_nothing_else_does() {
        assert_eq!(link_local(0x1234_abcd).to_string(), "fe80::1234:abcd");
        assert_eq!(if_id_of(link_local(7)), Some(7));
        for other in ["fe80::", "fe80::1:0:0:7", "192.0.2.7", "2001:db8::7"] {
            assert_eq!(if_id_of(other.parse().unwrap()), None);
        }
    }
}
