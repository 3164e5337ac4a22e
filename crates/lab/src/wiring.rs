//! The lab's three namespaces, the links between them and their addresses.
//!
//! ```text
//!        ┌── gen ──┐                 ┌── gw0 ──┐                 ┌── gw1 ──┐
//!        │ p0 ─────┼──── clear ──────┼─ p1  p0 ┼──── black ──────┼─ p0  p1 ┼──┐
//!        │ p1 ─────┼──── clear ──────┼─────────┼─────────────────┼─────────┼──┘
//!        └─────────┘                 └─────────┘                 └─────────┘
//! ```
//!
//! Neighbours are resolved by the kernels, as on any network. It starts no gateway and sends
//! nothing.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::generator::Source;
use crate::recipe::{Recipe, RecipeError, Side};
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
}

/// What a link's receiving end did not pass on, as its kernel counts it.
pub type LinkDrops = BTreeMap<String, u64>;

impl Wiring {
    /// Makes namespaces and links of a recipe; addresses come with [`Wiring::address`].
    pub fn build(recipe: &Recipe) -> Result<Wiring, WiringError> {
        let generator = Namespace::new("gen")?;
        let gateways =
            [Namespace::new(&recipe.near.gateway)?, Namespace::new(&recipe.far.gateway)?];
        let [near, far] = &gateways;
        let (near_site, far_site) = (&recipe.near, &recipe.far);
        Veth::new((&generator, GENERATOR_LINKS[0]), (near, &near_site.clear_link), 1)?;
        Veth::new((near, &near_site.black_link), (far, &far_site.black_link), 1)?;
        Veth::new((far, &far_site.clear_link), (&generator, GENERATOR_LINKS[1]), 1)?;
        for (side, link) in SIDES.into_iter().zip(GENERATOR_LINKS) {
            let address = recipe.site(side).generator;
            generator.ip(&format!("address add {address} dev {link}"))?;
        }
        Ok(Wiring { generator, gateways })
    }

    /// Gives both gateways the addresses and routes for `tunnels` tunnels, in place of earlier ones.
    pub fn address(&self, recipe: &Recipe, tunnels: u32) -> Result<(), WiringError> {
        for (side, namespace) in SIDES.into_iter().zip(&self.gateways) {
            let site = recipe.site(side);
            for link in [&site.clear_link, &site.black_link] {
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

    /// Tells the near gateway where every far endpoint is, as a network with so many would do it by
    /// one router.
    fn settle_neighbours(&self, recipe: &Recipe, tunnels: u32) -> Result<(), WiringError> {
        let [near, far] = &self.gateways;
        let mac = mac(far, &recipe.far.black_link)?.map(|byte| format!("{byte:02x}")).join(":");
        let link = &recipe.near.black_link;
        let lines: Vec<String> = (1..=tunnels)
            .filter_map(|number| Some(recipe.tunnel(number)?.far_endpoint))
            .map(|end| format!("neighbour replace {end} lladdr {mac} dev {link} nud permanent"))
            .collect();
        Ok(near.ip_batch(&lines)?)
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
            for link in [&site.clear_link, &site.black_link] {
                links.push((format!("{}:{link}", site.gateway), namespace, link.clone()));
            }
        }
        links
    }

    /// Packets that each link end dropped on receiving since it was made.
    pub fn drops(&self, recipe: &Recipe) -> Result<LinkDrops, WiringError> {
        self.links(recipe)
            .into_iter()
            .map(|(name, namespace, interface)| {
                let link = describe(namespace, &interface)?;
                let dropped = link["stats64"]["rx"]["dropped"].as_u64();
                let dropped = dropped.ok_or_else(|| no_link(namespace, &interface))?;
                Ok((name, dropped))
            })
            .collect()
    }
}

/// Which ports send in a direction: port 0 always does.
pub fn senders(direction: Direction) -> [bool; 2] {
    [true, direction == Direction::Bidirectional]
}

/// The Ethernet address of an interface.
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
