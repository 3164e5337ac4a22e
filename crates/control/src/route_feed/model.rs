//! What the kernel knows about the network, as plain values: links, addresses, routes, neighbours.
//!
//! Nothing here knows netlink, and nothing here decides which route a packet takes (`table.rs`
//! does).

use std::net::IpAddr;

use dataplane::prefix::Prefix;
use wire::ethernet::MacAddr;

/// One interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its index.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// The kind of a virtual interface ("veth", "vlan"); `None` for hardware.
    pub kind: Option<String>,
    /// The Ethernet address; `None` for links without (tunnels, loopback has zeros).
    pub mac: Option<MacAddr>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// Configured up (`ip link set up`).
    pub up: bool,
    /// The layer below is up: cable in, peer up.
    pub carrier: bool,
    /// The interface below (VLAN parent, veth peer) when it is in this namespace.
    pub parent: Option<u32>,
    /// The VLAN tag, for links of kind "vlan".
    pub vlan: Option<u16>,
    /// The bridge, bond or VRF that this link is a part of.
    pub master: Option<u32>,
    /// The routing table, for links of kind "vrf".
    pub vrf_table: Option<u32>,
    /// Receive queues that the link was created with.
    pub rx_queues: u32,
}

/// One address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The interface.
    pub ifindex: u32,
    /// The address itself.
    pub address: IpAddr,
    /// The length of its network's prefix in bits.
    pub prefix_length: u8,
    /// The far end, where an IPv4 address has one (`ip address add … peer …`): a link may have the same
    /// address towards several. An IPv6 address is there once, and its far end changes without a word
    /// about the one before.
    pub peer: Option<IpAddr>,
}

/// The kernel's routing tables; the first three in the order in which the kernel asks them for whatever has
/// no VRF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// 255: the host's own and broadcast addresses.
    Local,
    /// 254: what `ip route` shows.
    Main,
    /// 253: asked last, usually empty.
    Default,
    /// Any other, perhaps a VRF's; asked for packets of that VRF alone.
    Other(u32),
}

impl Table {
    /// Those asked for whatever has no VRF, in the order of the kernel's default rules (priorities 0, 32766,
    /// 32767).
    pub const WITHOUT_VRF: [Self; 3] = [Self::Local, Self::Main, Self::Default];

    /// The table of a number; none has 0.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            255 => Some(Self::Local),
            254 => Some(Self::Main),
            253 => Some(Self::Default),
            0 => None,
            other => Some(Self::Other(other)),
        }
    }

    /// The kernel's number of it.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Local => 255,
            Self::Main => 254,
            Self::Default => 253,
            Self::Other(number) => number,
        }
    }

    /// The name in /etc/iproute2/rt_tables, or the number.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Local => "local".to_owned(),
            Self::Main => "main".to_owned(),
            Self::Default => "default".to_owned(),
            Self::Other(number) => number.to_string(),
        }
    }
}

/// What a route does with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouteKind {
    /// Forward by a next hop.
    Unicast,
    /// It is for this host (also anycast addresses of this host).
    Local,
    /// A broadcast address of a network of this host.
    Broadcast,
    /// Multicast.
    Multicast,
    /// Drop in silence.
    Blackhole,
    /// Drop with ICMP "host unreachable".
    Unreachable,
    /// Drop with ICMP "administratively prohibited".
    Prohibit,
    /// As if this table had no route.
    Throw,
    /// A route that only the kernel can follow, and why: leave its packets to the kernel.
    KernelOnly(&'static str),
}

impl RouteKind {
    /// The word that `ip route` has for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unicast => "unicast",
            Self::Local => "local",
            Self::Broadcast => "broadcast",
            Self::Multicast => "multicast",
            Self::Blackhole => "blackhole",
            Self::Unreachable => "unreachable",
            Self::Prohibit => "prohibit",
            Self::Throw => "throw",
            Self::KernelOnly(_) => "kernel-only",
        }
    }
}

/// One way out of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NextHop {
    /// The neighbour to send to; `None` when the destination itself is the neighbour. An IPv4 route
    /// may have an IPv6 gateway (RFC 8950).
    pub gateway: Option<IpAddr>,
    /// The interface.
    pub ifindex: u32,
    /// The share of flows that it takes among the hops of its route, from 1.
    pub weight: u16,
    /// The kernel says that it cannot be used now (RTNH_F_DEAD).
    pub dead: bool,
    /// Its interface has no carrier (RTNH_F_LINKDOWN); the kernel counts it as dead, too, only where
    /// `ignore_routes_with_linkdown` is set.
    pub link_down: bool,
}

impl NextHop {
    /// The same way, whatever its weight and health.
    pub(super) fn same_way(&self, other: &Self) -> bool {
        self.gateway == other.gateway && self.ifindex == other.ifindex
    }
}

/// One route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The table that it is in.
    pub table: Table,
    /// The destinations that it is for.
    pub prefix: Prefix,
    /// The metric: among routes for one prefix the lowest wins.
    pub metric: u32,
    /// What it does.
    pub kind: RouteKind,
    /// Its ways out, in the kernel's order. Empty for kinds that have none.
    pub hops: Vec<NextHop>,
    /// The source address the host itself uses on this route.
    pub preferred_source: Option<IpAddr>,
    /// A path MTU set on the route.
    pub mtu: Option<u32>,
    /// Who installed it (rtnetlink(7), RTPROT_…).
    pub protocol: u8,
    /// The next-hop object that its ways out are from.
    pub object: Option<u32>,
}

impl Route {
    /// Whether packets can take it: a route all of whose hops are dead is passed over.
    #[must_use]
    pub fn usable(&self) -> bool {
        self.kind != RouteKind::Unicast || self.hops.iter().any(|hop| !hop.dead)
    }

    /// The first hop that works: what the gateway uses when a route has several. Flows are not
    /// spread over hops, so that a tunnel stays on one path. One without carrier is taken only when no
    /// other is left: the kernel would still send by it a share of the flows.
    #[must_use]
    pub fn first_hop(&self) -> Option<&NextHop> {
        let mut alive = self.hops.iter().filter(|hop| !hop.dead);
        alive.clone().find(|hop| !hop.link_down).or_else(|| alive.next())
    }

    /// Whether it is for a single address that is this host's, or the broadcast of one of its networks.
    #[must_use]
    pub fn is_of_host(&self) -> bool {
        let single = self.prefix.len() == self.prefix.family().bits();
        single && matches!(self.kind, RouteKind::Local | RouteKind::Broadcast)
    }

    /// The same route as the kernel sees it, whatever the health of its hops.
    pub(super) fn same_route(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.preferred_source == other.preferred_source
            && self.protocol == other.protocol
            && self.object == other.object
            && self.same_hops(other)
    }

    /// The same hops in the same order.
    pub(super) fn same_hops(&self, other: &Self) -> bool {
        let same = |(a, b): (&NextHop, &NextHop)| a.same_way(b) && a.weight == b.weight;
        self.hops.len() == other.hops.len() && self.hops.iter().zip(&other.hops).all(same)
    }

    /// Has a way in common with another route of its kind.
    pub(super) fn shares_hop(&self, other: &Self) -> bool {
        let in_other = |hop: &NextHop| other.hops.iter().any(|o| o.same_way(hop));
        let both_empty = self.hops.is_empty() && other.hops.is_empty();
        self.kind == other.kind && (both_empty || self.hops.iter().any(in_other))
    }
}

/// The state of a neighbour (the kernel's NUD_…).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NeighbourState {
    /// Being resolved.
    Incomplete,
    /// Confirmed lately.
    Reachable,
    /// Not confirmed lately; good until proven otherwise.
    Stale,
    /// Used while stale; a probe comes soon.
    Delay,
    /// Being probed.
    Probe,
    /// Did not answer.
    Failed,
    /// Needs no resolution.
    NoArp,
    /// Set by hand.
    Permanent,
    /// Just made.
    None,
}

impl NeighbourState {
    /// Whether packets may be sent to its address (the kernel's NUD_VALID).
    #[must_use]
    pub fn usable(self) -> bool {
        match self {
            Self::Reachable
            | Self::Stale
            | Self::Delay
            | Self::Probe
            | Self::NoArp
            | Self::Permanent => true,
            Self::Incomplete | Self::Failed | Self::None => false,
        }
    }

    /// The word that `ip neighbour` has for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Incomplete => "incomplete",
            Self::Reachable => "reachable",
            Self::Stale => "stale",
            Self::Delay => "delay",
            Self::Probe => "probe",
            Self::Failed => "failed",
            Self::NoArp => "noarp",
            Self::Permanent => "permanent",
            Self::None => "none",
        }
    }
}

/// One neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// The interface it is behind.
    pub ifindex: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its Ethernet address, when known.
    pub mac: Option<MacAddr>,
    /// Its state.
    pub state: NeighbourState,
}

impl Neighbour {
    /// The Ethernet address to send to, when packets may be sent.
    #[must_use]
    pub fn usable_mac(&self) -> Option<MacAddr> {
        self.mac.filter(|_| self.state.usable())
    }
}
