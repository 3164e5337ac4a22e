//! The address plan: tunnel `i` → endpoints, selectors, SPIs.
//!
//! Tunnels are numbered from 1, as in the published configuration. Networks follow each other
//! without gaps, so that every client address between the first and the last is protected.

use std::net::{IpAddr, Ipv4Addr};

use super::{Net, Recipe, RecipeError, Site};
use crate::traffic::{Cycle, advance};

/// Flows whose order is watched one by one, 8 bytes each at either end.
const FLOWS_ORDERED_MAX: u64 = 1_000_000;
/// IPv4 endpoints per /24: .1 to .254.
const ENDPOINTS_PER_24: u32 = 254;

/// One of the two gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The gateway with one endpoint for all tunnels.
    Near,
    /// The gateway with one endpoint per tunnel.
    Far,
}

impl Side {
    /// The other gateway.
    pub fn peer(self) -> Side {
        match self {
            Side::Near => Side::Far,
            Side::Far => Side::Near,
        }
    }
}

/// Everything that tells one tunnel from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// From 1.
    pub number: u32,
    /// The pair of links between the gateways, from 0.
    pub pair: u32,
    /// Its number within the pair, from 1.
    pub own: u32,
    /// The near gateway's endpoint.
    pub near_endpoint: IpAddr,
    /// The far gateway's endpoint.
    pub far_endpoint: IpAddr,
    /// The near side's protected network.
    pub near_selector: Net,
    /// The far side's protected network.
    pub far_selector: Net,
    /// SPI of the SA from near to far.
    pub spi_towards_far: u32,
    /// SPI of the SA from far to near.
    pub spi_towards_near: u32,
    /// Links the SAs with their policies.
    pub reqid: u32,
}

impl Tunnel {
    /// The SPI of the SA on which `side` sends from the CPU at this position among those that have a
    /// worker, where tunnels have one for each.
    pub fn spi_of_cpu(&self, side: Side, position: u32) -> u32 {
        self.spi_from(side) + ((position + 1) << 24)
    }
}

impl Recipe {
    /// The site of one side.
    pub fn site(&self, side: Side) -> &Site {
        match side {
            Side::Near => &self.near,
            Side::Far => &self.far,
        }
    }

    /// Tunnel `number`, from 1; nothing when its addresses leave the address family.
    pub fn tunnel(&self, number: u32) -> Option<Tunnel> {
        let (index, pairs) = (number.checked_sub(1)?, self.pairs());
        let (pair, index) = (index % pairs, index / pairs);
        let far = self.far.endpoint.nth(pair)?;
        Some(Tunnel {
            number,
            pair,
            own: index + 1,
            near_endpoint: self.near.endpoint.nth(pair)?.address(),
            far_endpoint: nth_endpoint(far.address(), index)?,
            near_selector: self.near.selector_of(pair)?,
            far_selector: self.far.selector_of(pair)?.nth(index)?,
            spi_towards_far: self.esp.spi_towards_far.checked_add(number)?,
            spi_towards_near: self.esp.spi_towards_near.checked_add(number)?,
            reqid: number,
        })
    }

    /// The addresses that the generator port of `side` cycles through. Frame `n` belongs to
    /// tunnel number `n mod tunnels + 1`.
    ///
    /// # Errors
    /// [`RecipeError`] if addresses do not fit their networks or are of two families.
    pub fn cycle(&self, side: Side, tunnels: u32) -> Result<Cycle, RecipeError> {
        let out_of_family = |what, net: Net| RecipeError::Plan {
            tunnel: 1,
            what,
            found: net.to_string(),
            range: net,
        };
        // Address 0 of a network names the network itself.
        let near = advance(self.near.selector.address(), 1)
            .ok_or_else(|| out_of_family("selector", self.near.selector))?;
        let far = advance(self.far.selector.address(), 1)
            .ok_or_else(|| out_of_family("selector", self.far.selector))?;
        let cycle = Cycle::new(
            (near, self.near_hosts),
            far,
            self.far.selector.size(),
            tunnels,
            self.clients_per_tunnel,
        )?
        .in_pairs(self.pairs(), self.near.route.size(), self.far.route.size())?;
        let flows = cycle.flows();
        if self.cores > 1 && flows > FLOWS_ORDERED_MAX {
            let expected = format!("at most {FLOWS_ORDERED_MAX} in all with several cores");
            return Err(super::value("clients_per_tunnel", self.clients_per_tunnel, expected));
        }
        let cycle = if self.cores > 1 { cycle.ordered_by_flow() } else { cycle };
        Ok(match side {
            Side::Near => cycle,
            Side::Far => cycle.reversed(),
        })
    }

    /// Whether `tunnels` tunnels fit the recipe's ranges.
    pub(super) fn check_plan(&self, tunnels: u32) -> Result<(), RecipeError> {
        for (name, net, hosts) in [
            ("near_hosts", self.near.selector, self.near_hosts),
            ("clients_per_tunnel", self.far.selector, self.clients_per_tunnel),
        ] {
            // Neither the network's own address nor its broadcast address is a host's.
            let room = net.size().saturating_sub(2);
            if hosts == 0 || u128::from(hosts) > room {
                return Err(super::value(name, hosts, format!("1..={room}, the hosts of {net}")));
            }
            if !net.is_network() {
                return Err(super::value("selector", net, "a network without host bits"));
            }
        }
        let (near, far) = (&self.near, &self.far);
        for (name, a, b) in [
            ("endpoint", near.endpoint, far.endpoint),
            ("selector", near.selector, far.selector),
            ("generator", near.generator, near.clear),
            ("generator", far.generator, far.clear),
            ("generator", near.generator, near.selector),
            ("generator", far.generator, far.selector),
        ] {
            if a.is_ipv6() != b.is_ipv6() {
                return Err(super::value(name, a, format!("an address of the family of {b}")));
            }
        }
        let routes =
            |site: &Site| (0..self.pairs()).filter_map(|pair| site.route_of(pair)).collect();
        let (near_routes, far_routes): (Vec<Net>, Vec<Net>) = (routes(near), routes(far));
        for (near, far) in
            near_routes.iter().flat_map(|near| far_routes.iter().map(move |far| (near, far)))
        {
            if near.covers(*far) || far.covers(*near) {
                return Err(super::value("route", far, format!("outside {near}")));
            }
        }
        // The last of every pair.
        for number in tunnels.saturating_sub(self.pairs() - 1).max(1)..=tunnels {
            self.check_tunnel(number)?;
        }
        self.cycle(Side::Near, tunnels).map(drop)
    }

    /// Addresses only grow with the tunnel's number within its pair, so the last one tells for all.
    fn check_tunnel(&self, number: u32) -> Result<(), RecipeError> {
        let plan =
            |what, found: String, range| RecipeError::Plan { tunnel: number, what, found, range };
        let Some(last) = self.tunnel(number) else {
            return Err(plan("selector", "beyond the address family".into(), self.far.route));
        };
        let endpoints = self.far.endpoint.nth(last.pair).unwrap_or(self.far.endpoint);
        if !endpoints.contains(last.far_endpoint) {
            return Err(plan("endpoint", last.far_endpoint.to_string(), endpoints));
        }
        for (site, selector) in [(&self.near, last.near_selector), (&self.far, last.far_selector)] {
            let route = site.route_of(last.pair).unwrap_or(site.route);
            if !route.covers(selector) {
                return Err(plan("selector", selector.to_string(), route));
            }
        }
        Ok(())
    }
}

/// The `n`-th endpoint after `first`. IPv4 addresses that end in .0 or .255 are skipped: they are
/// legal in a shorter prefix, but filters and people mistake them for networks and broadcasts.
pub(crate) fn nth_endpoint(first: IpAddr, n: u32) -> Option<IpAddr> {
    let IpAddr::V4(v4) = first else {
        return advance(first, n.into());
    };
    let [a, b, c, d] = v4.octets();
    let network = u32::from_be_bytes([0, a, b, c]);
    let position = u32::from(d).saturating_sub(1).checked_add(n)?;
    let network = network.checked_add(position / ENDPOINTS_PER_24)?;
    let host = position % ENDPOINTS_PER_24 + 1;
    let number = network.checked_mul(256)?.checked_add(host)?;
    Some(Ipv4Addr::from(number).into())
}
