//! Which tunnel has which addresses, in the published tests with their errata mended.
//!
//! Tunnels are numbered from 1 over the whole plan, and `total` is the number of all of them: the
//! published scripts count per pair of ports, so that their "500" can mean 500 or 1000.

use std::net::{IpAddr, Ipv4Addr};

use serde::Serialize;
use thiserror::Error;

use crate::ike::{Auth, Ends, Responder, SHARDS_MAX, Shards, Terms};
use crate::recipe::{Net, nth_endpoint};

/// Which published test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// "Nvidia Bluefield-3 by numbers", Tests 0 to 3: one pair of ports, gateways back to back.
    Test0,
    /// The same, Test 4: two pairs of ports over a router.
    Test4,
    /// "2025 Linux IPsec pCPU testing": RFC 9611 between west and east.
    PerCpu,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The test.
    pub kind: Kind,
    /// All tunnels of the plan.
    pub total: u32,
    /// Daemons per gateway; `None` for as many as keep each at 1000 tunnels.
    pub shards: Option<u32>,
    /// Prefix length of a tunnel's network on the far side (the scripts' BITS).
    pub prefix: u8,
    /// How the gateways know each other.
    pub auth: Auth,
    /// How the far daemons find tunnels.
    pub responder: Responder,
    /// `packet`, `crypto`: what the card is asked to do; nothing for gateways in software.
    pub hw_offload: Option<String>,
}

/// What sets the tests apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Pairs of ports.
    pub groups: u32,
    /// The near endpoint, the first far endpoint and its range, of group 0.
    near_endpoint: [u8; 4],
    far_endpoint: [u8; 4],
    /// The near network, and the range of the far ones.
    near_selector: [u8; 4],
    far_selector: [u8; 4],
}

/// All tunnels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The test.
    pub request: Request,
    /// Daemons of each gateway.
    pub shards: Shards,
    /// What they agree on.
    pub terms: Terms,
    /// The tunnels, by number.
    pub tunnels: Vec<Planned>,
}

/// One tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// From 1, over all groups.
    pub number: u32,
    /// The pair of ports, from 0.
    pub group: u32,
    /// The daemon, from 0.
    pub shard: u32,
    /// Everything else.
    pub ends: Ends,
}

/// Why there is no such plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    /// Addresses run out.
    #[error(
        "{total} tunnels do not fit: number {number} of pair {group} has no {what} left in {range}; \
         the plan has room for {room}"
    )]
    Room {
        /// What was asked for.
        total: u32,
        /// The tunnel within its group.
        number: u32,
        /// The group.
        group: u32,
        /// What runs out.
        what: &'static str,
        /// What holds them.
        range: Net,
        /// How many there can be in all.
        room: u32,
    },
    /// A number outside its limits.
    #[error("{what} is {found}, expected {expected}")]
    Value {
        /// Which.
        what: &'static str,
        /// What it is.
        found: u32,
        /// What it may be.
        expected: String,
    },
}

impl Kind {
    /// The plan's constants; the per-CPU test has another shape.
    pub fn layout(self) -> Layout {
        match self {
            Kind::Test0 => Layout {
                groups: 1,
                near_endpoint: [123, 0, 0, 1],
                far_endpoint: [123, 0, 0, 2],
                near_selector: [16, 0, 0, 0],
                far_selector: [48, 0, 0, 0],
            },
            Kind::Test4 => Layout {
                groups: 2,
                near_endpoint: [123, 0, 0, 1],
                far_endpoint: [123, 2, 1, 2],
                near_selector: [16, 0, 0, 0],
                far_selector: [48, 0, 0, 0],
            },
            Kind::PerCpu => Layout {
                groups: 1,
                near_endpoint: [10, 25, 1, 1],
                far_endpoint: [10, 25, 1, 2],
                near_selector: [10, 25, 0, 0],
                far_selector: [10, 25, 2, 0],
            },
        }
    }

    fn terms(self, request: &Request) -> Terms {
        let mut extra = Vec::new();
        let is_per_cpu = self == Kind::PerCpu;
        if is_per_cpu {
            extra.push(("per_cpu_sas", "encap".to_owned()));
            extra.push(("start_action", "trap".to_owned()));
        }
        extra.extend(request.hw_offload.clone().map(|mode| ("hw_offload", mode)));
        let (proposals, esp_proposals) = if is_per_cpu {
            ("aes128gcm16-prfsha384-ecp256", "aes128gcm16-esn")
        } else {
            ("aes256-sha256-modp2048", "aes256gcm128-esn")
        };
        Terms {
            proposals: proposals.to_owned(),
            esp_proposals: esp_proposals.to_owned(),
            secret: "TopSecret".to_owned(),
            auth: request.auth,
            responder: request.responder,
            extra,
            encap: is_per_cpu,
        }
    }
}

impl Layout {
    /// One of the addresses in the group's own range: group 1 has 123.1 for 123.0, 17 for 16.
    fn of_group(octets: [u8; 4], at: usize, group: u32) -> IpAddr {
        let mut octets = octets;
        // Two groups exist.
        octets[at] += group as u8;
        Ipv4Addr::from(octets).into()
    }

    /// The near gateway's endpoint in a group.
    pub fn near_endpoint(&self, group: u32) -> IpAddr {
        Layout::of_group(self.near_endpoint, 1, group)
    }

    /// The far gateway's first endpoint in a group.
    pub fn far_endpoint(&self, group: u32) -> IpAddr {
        Layout::of_group(self.far_endpoint, 1, group)
    }

    /// What the near side of a group protects.
    pub fn near_range(&self, group: u32) -> Net {
        net(Layout::of_group(self.near_selector, 0, group), 8)
    }

    /// What all tunnels of a group protect on the far side.
    pub fn far_range(&self, group: u32) -> Net {
        net(Layout::of_group(self.far_selector, 0, group), 8)
    }
}

fn net(address: IpAddr, prefix: u8) -> Net {
    Net::new(address, prefix).expect("constants of the plans are networks")
}

impl Plan {
    /// The plan, or why it is not possible.
    ///
    /// # Errors
    /// [`PlanError`] with the value that cannot be, and what was expected.
    pub fn new(request: Request) -> Result<Plan, PlanError> {
        within("the number of tunnels", request.total, 1, u32::from(u16::MAX) * 2)?;
        let is_one = request.kind == Kind::PerCpu;
        let most = if is_one { 1 } else { SHARDS_MAX.min(request.total) };
        let mut shards = Shards::fitting(request.total);
        shards.count = request.shards.unwrap_or(shards.count.min(most));
        within("the number of daemons", shards.count, 1, most)?;
        within("the prefix length", request.prefix.into(), 16, 32)?;
        let terms = request.kind.terms(&request);
        let mut plan = Plan { shards, terms, tunnels: Vec::new(), request };
        plan.tunnels =
            (1..=plan.request.total).map(|number| plan.tunnel(number)).collect::<Result<_, _>>()?;
        Ok(plan)
    }

    /// The tunnels of one daemon.
    pub fn of_shard(&self, shard: u32) -> impl Iterator<Item = &Planned> {
        self.tunnels.iter().filter(move |tunnel| tunnel.shard == shard)
    }

    /// Tunnels of a group: half of them, and the odd one in the first.
    pub fn in_group(&self, group: u32) -> u32 {
        let groups = self.request.kind.layout().groups;
        self.request.total.saturating_sub(group).div_ceil(groups)
    }

    fn tunnel(&self, number: u32) -> Result<Planned, PlanError> {
        let layout = self.request.kind.layout();
        // Groups take turns, as the published loop initiates them.
        let group = (number - 1) % layout.groups;
        let own = (number - 1) / layout.groups + 1;
        let shard = self.shards.of(number);
        let port = self.shards.ports(shard).map(|(port, _)| port);
        let (connection, child) = match self.request.kind {
            Kind::Test0 => (format!("tunnel{own}"), format!("tnl{own}")),
            Kind::Test4 => (format!("tunnel-{group}-{own}"), format!("tnl-{group}-{own}")),
            Kind::PerCpu => ("west-east".to_owned(), format!("red{own}")),
        };
        let (endpoints, selectors) = match self.request.kind {
            Kind::PerCpu => self.hosts(own)?,
            _ => self.networks(&layout, group, own)?,
        };
        let ids = match self.request.kind {
            Kind::PerCpu => ["west".to_owned(), "east".to_owned()],
            _ => ["ipsecgw-0".to_owned(), format!("ipsecgw-{own}")],
        };
        let ends = Ends {
            connection,
            child,
            ids,
            endpoints,
            selectors,
            shares_identities: layout.groups > 1,
            reqid: port.map(|_| number),
            port,
        };
        Ok(Planned { number, group, shard, ends })
    }

    /// Tests 0 and 4: the `own`-th network of the group's range, and the `own`-th endpoint.
    fn networks(
        &self,
        layout: &Layout,
        group: u32,
        own: u32,
    ) -> Result<([IpAddr; 2], [Net; 2]), PlanError> {
        let room = |what, range: Net| PlanError::Room {
            total: self.request.total,
            number: own,
            group,
            what,
            range,
            room: self.room(layout, group),
        };
        let first = layout.far_endpoint(group);
        let endpoints = net(first, 16);
        let far = nth_endpoint(first, own - 1).filter(|&far| endpoints.contains(far));
        let far = far.ok_or_else(|| room("endpoint", endpoints))?;
        let range = layout.far_range(group);
        let network = net(range.address(), self.request.prefix)
            .nth(own - 1)
            .filter(|&network| range.covers(network))
            .ok_or_else(|| room("network", range))?;
        Ok(([layout.near_endpoint(group), far], [layout.near_range(group), network]))
    }

    /// How many tunnels fit: endpoints .1 to .254 of every /24 from the first on, or networks.
    fn room(&self, layout: &Layout, group: u32) -> u32 {
        let IpAddr::V4(first) = layout.far_endpoint(group) else { return 0 };
        let [_, _, third, fourth] = first.octets();
        let endpoints = (256 - u32::from(third)) * 254 - (u32::from(fourth) - 1);
        let networks = 1_u32 << (self.request.prefix - 8).min(31);
        endpoints.min(networks) * layout.groups
    }

    /// The per-CPU test: one host on each side, 10.25.0.1 and 10.25.2.2 for the published tunnel.
    fn hosts(&self, own: u32) -> Result<([IpAddr; 2], [Net; 2]), PlanError> {
        /// 10.25.0.1 to .252 and 10.25.2.2 to .253; .254 are the gateways.
        const HOSTS: u32 = 252;
        if own > HOSTS {
            return Err(PlanError::Room {
                total: self.request.total,
                number: own,
                group: 0,
                what: "host",
                range: net(Ipv4Addr::new(10, 25, 2, 0).into(), 24),
                room: HOSTS,
            });
        }
        let layout = self.request.kind.layout();
        let host = |third, last: u32| net(Ipv4Addr::new(10, 25, third, last as u8).into(), 32);
        Ok(([layout.near_endpoint(0), layout.far_endpoint(0)], [host(0, own), host(2, own + 1)]))
    }
}

fn within(what: &'static str, found: u32, low: u32, high: u32) -> Result<(), PlanError> {
    if (low..=high).contains(&found) {
        return Ok(());
    }
    Err(PlanError::Value { what, found, expected: format!("{low} to {high}") })
}
