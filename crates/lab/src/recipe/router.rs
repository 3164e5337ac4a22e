//! Several pairs of links, over a router: what the n-th pair has in the place of the first.
//!
//! ```text
//!            ┌─ black 0 ── near 0 ┐         ┌ far 0 ── black 0 ─┐
//!   near gw ─┤                    ├ router ─┤                   ├─ far gw
//!            └─ black 1 ── near 1 ┘         └ far 1 ── black 1 ─┘
//! ```
//!
//! Every address of pair `n` is that of pair 0, `n` networks further on: 123.1.0.1/16 after
//! 123.0.0.1/16. The router forwards and knows nothing of tunnels.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::{Net, Recipe, RecipeError, Side, Site, value};

/// Most pairs of links; the published test has two.
const PAIRS_MAX: usize = 8;

/// A router between the gateways.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Router {
    /// Its name, and that of its namespace.
    pub name: String,
    /// Its address on the near gateway's first link.
    pub near: Net,
    /// Its address on the far gateway's first link.
    pub far: Net,
}

impl Router {
    /// Its address on the link of a pair.
    pub fn address(&self, side: Side, pair: u32) -> Option<Net> {
        match side {
            Side::Near => self.near,
            Side::Far => self.far,
        }
        .nth(pair)
    }

    /// Its end of the link of a pair.
    pub fn link(side: Side, pair: u32) -> String {
        match side {
            Side::Near => format!("near{pair}"),
            Side::Far => format!("far{pair}"),
        }
    }
}

impl Site {
    /// The links to the other gateway, one per pair.
    pub fn black_links(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.black_link).chain(&self.more_black_links).map(String::as_str)
    }

    /// The protected network of a pair: of all its tunnels (near), or of its first (far).
    pub fn selector_of(&self, pair: u32) -> Option<Net> {
        let further = self.route.size().checked_mul(pair.into())?;
        self.selector.further(further)
    }

    /// Everything behind this side in the tunnels of a pair.
    pub fn route_of(&self, pair: u32) -> Option<Net> {
        self.route.nth(pair)
    }
}

impl Recipe {
    /// Pairs of links between the gateways. Tunnel `i` belongs to pair `(i - 1) mod pairs`.
    pub fn pairs(&self) -> u32 {
        // At most PAIRS_MAX.
        1 + self.near.more_black_links.len() as u32
    }

    /// Addresses and routes of the router, for `ip -batch`; nothing where there is none.
    pub fn router_batch(&self) -> String {
        let Some(router) = &self.router else { return String::new() };
        let (mut addresses, mut routes) = (String::new(), String::new());
        for side in [Side::Near, Side::Far] {
            for pair in 0..self.pairs() {
                let (address, route) = (router.address(side, pair), self.site(side).route_of(pair));
                let end = self.tunnel(pair + 1).map(|tunnel| tunnel.endpoint(side));
                let (Some(address), Some(route), Some(end)) = (address, route, end) else {
                    continue;
                };
                // Writing into a String cannot fail.
                let link = Router::link(side, pair);
                let _ = writeln!(addresses, "address add {address} dev {link}");
                // What a gateway that fails open would send in clear has a way, too, and is seen.
                let _ = writeln!(routes, "route add {route} via {end}");
            }
        }
        addresses + &routes
    }

    /// Whether links and router fit together.
    pub(super) fn check_pairs(&self) -> Result<(), RecipeError> {
        let (near, far) = (&self.near.more_black_links, &self.far.more_black_links);
        if near.len() != far.len() || near.len() >= PAIRS_MAX {
            let expected = format!("as many on both sides, less than {PAIRS_MAX}");
            return Err(value("more_black_links", format!("{near:?} and {far:?}"), expected));
        }
        let Some(router) = &self.router else {
            if near.is_empty() {
                return Ok(());
            }
            return Err(value("more_black_links", format!("{near:?}"), "none without a router"));
        };
        for (own, site) in [(router.near, &self.near), (router.far, &self.far)] {
            if own.prefix() != site.endpoint.prefix() || !own.contains(site.endpoint.address()) {
                let expected = format!("in the network of {}", site.endpoint);
                return Err(value("router", own, expected));
            }
        }
        Ok(())
    }
}
