//! The lab's three namespaces, the links between them and their addresses.
//!
//! ```text
//!        ┌── gen ──┐                 ┌── gw0 ──┐                 ┌── gw1 ──┐
//!        │ p0 ─────┼──── clear ──────┼─ p1  p0 ┼──── black ──────┼─ p0  p1 ┼──┐
//!        │ p1 ─────┼──── clear ──────┼─────────┼─────────────────┼─────────┼──┘
//!        └─────────┘                 └─────────┘                 └─────────┘
//! ```
//!
//! A recipe with a router has it in the place of the black link, with a link to each gateway for every
//! pair. With several workers per gateway a link has a queue for each, and a switch stands in each
//! clear link: the generator has one queue, and the switch's kernel spreads flows over several by
//! their hash, as a network card does. Neighbours are resolved by the kernels, as on any network. It starts no gateway and sends
//! nothing.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::generator::Source;
use crate::recipe::{Recipe, RecipeError, Router, Side};
use crate::result::Direction;
use crate::station::StationPort;
use crate::topology::{Namespace, TopologyError, Veth};
use crate::traffic::{Mix, MixError};

/// The interfaces of the generator, port 0 and port 1.
pub const GENERATOR_LINKS: [&str; 2] = ["p0", "p1"];
/// The two gateways, in the order of the generator's ports.
pub const SIDES: [Side; 2] = [Side::Near, Side::Far];

/// Far endpoints that the near kernel may resolve by itself. It keeps 1024 neighbours by default
/// (`gc_thresh3`), all namespaces of the machine together; permanent ones do not count.
const ENDPOINTS_RESOLVED_MAX: u32 = 512;

/// Why the lab's network could not be built or described.
#[derive(Debug, thiserror::Error)]
pub enum WiringError {
    /// A command failed.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The recipe does not fit.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// The recipe's mix does not exist.
    #[error(transparent)]
    Mix(#[from] MixError),
    /// `ip` printed something that this program does not understand.
    #[error("`ip -j link` in namespace {namespace} did not describe {interface}")]
    NoLink {
        /// The namespace.
        namespace: String,
        /// The interface.
        interface: String,
    },
}

/// The network of a run. It is gone when dropped.
#[derive(Debug)]
pub struct Wiring {
    generator: Namespace,
    gateways: [Namespace; 2],
    router: Option<Namespace>,
    switches: Vec<Namespace>,
}

/// A switch's bridge.
const BRIDGE: &str = "bridge";
/// The ends of a switch's links: to the generator, and to the gateway.
const SWITCH_LINKS: [&str; 2] = ["in", "out"];

/// What a link's receiving end did not pass on, as its kernel counts it.
pub type LinkDrops = BTreeMap<String, u64>;

impl Wiring {
    /// Makes namespaces and links of a recipe; addresses come with [`Wiring::address`].
    ///
    /// # Errors
    /// [`WiringError`] with what a command said, if it failed; what was made is gone then.
    pub fn build(recipe: &Recipe) -> Result<Wiring, WiringError> {
        let generator = Namespace::new("gen")?;
        let gateways =
            [Namespace::new(&recipe.near.gateway)?, Namespace::new(&recipe.far.gateway)?];
        let [near, far] = &gateways;
        let (near_site, far_site) = (&recipe.near, &recipe.far);
        let mut switches = Vec::new();
        for (index, site) in [near_site, far_site].into_iter().enumerate() {
            let (port, clear) = ((&generator, GENERATOR_LINKS[index]), &*site.clear_link);
            if recipe.cores == 1 {
                Veth::new(port, (&gateways[index], clear), 1)?;
            } else {
                let switch = Wiring::switch(&format!("switch{index}"))?;
                Veth::new(port, (&switch, SWITCH_LINKS[0]), 1)?;
                Veth::new((&switch, SWITCH_LINKS[1]), (&gateways[index], clear), recipe.cores)?;
                for link in SWITCH_LINKS {
                    switch.ip(&format!("link set {link} master {BRIDGE}"))?;
                }
                switches.push(switch);
            }
        }
        let router = match &recipe.router {
            Some(router) => Some(Wiring::router(recipe, router, &gateways)?),
            None => {
                let ends = ((near, &*near_site.black_link), (far, &*far_site.black_link));
                Veth::new(ends.0, ends.1, recipe.cores)?;
                None
            }
        };
        for (side, link) in SIDES.into_iter().zip(GENERATOR_LINKS) {
            let address = recipe.site(side).generator;
            generator.ip(&format!("address add {address} dev {link}"))?;
        }
        Ok(Wiring { generator, gateways, router, switches })
    }

    fn switch(name: &str) -> Result<Namespace, WiringError> {
        let namespace = Namespace::new(name)?;
        // It forwards frames and says nothing itself.
        for knob in ["all", "default"] {
            namespace.sysctl(&format!("net.ipv6.conf.{knob}.disable_ipv6"), "1")?;
        }
        namespace.ip(&format!("link add {BRIDGE} type bridge"))?;
        namespace.ip(&format!("link set {BRIDGE} up"))?;
        Ok(namespace)
    }

    fn router(
        recipe: &Recipe,
        router: &Router,
        gateways: &[Namespace; 2],
    ) -> Result<Namespace, WiringError> {
        let namespace = Namespace::new(&router.name)?;
        for family in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
            namespace.sysctl(&format!("net.{family}"), "1")?;
        }
        for (side, gateway) in SIDES.into_iter().zip(gateways) {
            for (link, pair) in recipe.site(side).black_links().zip(0..) {
                Veth::new((gateway, link), (&namespace, &Router::link(side, pair)), recipe.cores)?;
            }
        }
        let lines: Vec<String> = recipe.router_batch().lines().map(str::to_owned).collect();
        // Next hops are the gateways' own addresses, on networks of its own: it needs no gateway yet.
        namespace.ip_batch(&lines)?;
        Ok(namespace)
    }

    /// Gives both gateways the addresses and routes for `tunnels` tunnels, in place of earlier ones.
    ///
    /// # Errors
    /// [`WiringError`] with what `ip` said, or if the recipe has no addresses for so many tunnels.
    pub fn address(&self, recipe: &Recipe, tunnels: u32) -> Result<(), WiringError> {
        for (side, namespace) in SIDES.into_iter().zip(&self.gateways) {
            let site = recipe.site(side);
            for link in std::iter::once(site.clear_link.as_str()).chain(site.black_links()) {
                // Routes outlive the addresses that made them possible.
                for family in ["-4", "-6"] {
                    namespace.ip(&format!("{family} route flush dev {link} proto boot"))?;
                }
                namespace.ip(&format!("address flush dev {link} scope global"))?;
            }
            let lines: Vec<String> =
                recipe.network_batch(side, tunnels).lines().map(str::to_owned).collect();
            namespace.ip_batch(&lines)?;
        }
        if tunnels > ENDPOINTS_RESOLVED_MAX {
            self.settle_neighbours(recipe, tunnels)
        } else {
            Ok(())
        }
    }

    /// Tells whoever is before the far gateway where every far endpoint is: the near gateway, as a
    /// network with so many would do it by one router, or that router.
    fn settle_neighbours(&self, recipe: &Recipe, tunnels: u32) -> Result<(), WiringError> {
        let [near, far] = &self.gateways;
        let mut ways = Vec::new();
        for (own, pair) in recipe.far.black_links().zip(0..) {
            let mac = mac(far, own)?.map(|byte| format!("{byte:02x}")).join(":");
            let link = match &self.router {
                Some(_) => Router::link(Side::Far, pair),
                None => recipe.near.black_link.clone(),
            };
            ways.push((mac, link));
        }
        let line = |number| {
            let tunnel = recipe.tunnel(number)?;
            let (end, (mac, link)) = (tunnel.far_endpoint, ways.get(tunnel.pair as usize)?);
            Some(format!("neighbour replace {end} lladdr {mac} dev {link} nud permanent"))
        };
        let lines: Vec<String> = (1..=tunnels).filter_map(line).collect();
        Ok(self.router.as_ref().unwrap_or(near).ip_batch(&lines)?)
    }

    /// The generator's namespace.
    pub fn generator(&self) -> &Namespace {
        &self.generator
    }

    /// The namespace of one gateway: 0 near, 1 far.
    pub fn gateway(&self, index: usize) -> &Namespace {
        &self.gateways[index]
    }

    /// What the generator's ports send for `tunnels` tunnels.
    ///
    /// # Errors
    /// [`WiringError`] if the recipe has no addresses for so many tunnels, or an interface is gone.
    pub fn ports(&self, recipe: &Recipe, tunnels: u32) -> Result<[StationPort; 2], WiringError> {
        let [near, far] = [0, 1].map(|index: usize| self.port(recipe, tunnels, index));
        Ok([near?, far?])
    }

    fn port(
        &self,
        recipe: &Recipe,
        tunnels: u32,
        index: usize,
    ) -> Result<StationPort, WiringError> {
        let site = recipe.site(SIDES[index]);
        let interface = GENERATOR_LINKS[index];
        let source = Source {
            // Two ports exist.
            port: index as u8,
            destination_mac: mac(&self.gateways[index], &site.clear_link)?,
            source_mac: mac(&self.generator, interface)?,
            ipv6: site.generator.is_ipv6(),
            cycle: recipe.cycle(SIDES[index], tunnels)?,
            mix: Mix::from_names(&site.mix)?,
        };
        Ok(StationPort { interface: interface.to_owned(), source })
    }

    /// Every link end of the lab: its name in the accounts, namespace and interface.
    pub fn links(&self, recipe: &Recipe) -> Vec<(String, &Namespace, String)> {
        let mut links = Vec::new();
        for link in GENERATOR_LINKS {
            links.push((format!("gen:{link}"), &self.generator, link.to_owned()));
        }
        for (side, namespace) in SIDES.into_iter().zip(&self.gateways) {
            let site = recipe.site(side);
            for link in std::iter::once(site.clear_link.as_str()).chain(site.black_links()) {
                links.push((format!("{}:{link}", site.gateway), namespace, link.to_owned()));
            }
        }
        for (index, switch) in self.switches.iter().enumerate() {
            for link in SWITCH_LINKS {
                links.push((format!("switch{index}:{link}"), switch, link.to_owned()));
            }
        }
        if let (Some(router), Some(namespace)) = (&recipe.router, &self.router) {
            for (side, pair) in
                SIDES.into_iter().flat_map(|side| (0..recipe.pairs()).map(move |n| (side, n)))
            {
                let link = Router::link(side, pair);
                links.push((format!("{}:{link}", router.name), namespace, link));
            }
        }
        links
    }

    /// The namespaces in which kernels forward.
    fn between(&self) -> impl Iterator<Item = &Namespace> {
        self.router.iter().chain(&self.switches)
    }

    /// Packets that each link end dropped on receiving since it was made, and on sending where a
    /// kernel forwards.
    ///
    /// # Errors
    /// [`WiringError`] if an interface is gone.
    pub fn drops(&self, recipe: &Recipe) -> Result<LinkDrops, WiringError> {
        self.links(recipe)
            .into_iter()
            .map(|(name, namespace, interface)| {
                let link = describe(namespace, &interface)?;
                let count = |way: &str| link["stats64"][way]["dropped"].as_u64();
                // What a kernel in between gives to a ring that is full is its own loss; the station
                // and the gateways count theirs at their sockets.
                let is_between = self.between().any(|between| between.name() == namespace.name());
                let sent = if is_between { count("tx") } else { Some(0) };
                let dropped = count("rx").zip(sent).map(|(received, sent)| received + sent);
                Ok((name, dropped.ok_or_else(|| no_link(namespace, &interface))?))
            })
            .collect()
    }
}

/// Which ports send in a direction: port 0 always does.
pub fn senders(direction: Direction) -> [bool; 2] {
    [true, direction == Direction::Bidirectional]
}

/// The Ethernet address of an interface.
///
/// # Errors
/// [`WiringError`] if there is no such interface, or `ip` says nothing of its address.
pub fn mac(namespace: &Namespace, interface: &str) -> Result<[u8; 6], WiringError> {
    let link = describe(namespace, interface)?;
    let bytes: Option<Vec<u8>> = link["address"]
        .as_str()
        .unwrap_or_default()
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| no_link(namespace, interface))
}

fn describe(namespace: &Namespace, interface: &str) -> Result<Value, WiringError> {
    let text = namespace.ip(&format!("-s -j link show dev {interface}"))?;
    serde_json::from_str::<Value>(&text)
        .ok()
        .and_then(|links| links.get(0).cloned())
        .ok_or_else(|| no_link(namespace, interface))
}

fn no_link(namespace: &Namespace, interface: &str) -> WiringError {
    WiringError::NoLink { namespace: namespace.name().to_owned(), interface: interface.to_owned() }
}
