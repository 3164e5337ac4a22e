//! Recipes: which addresses, tunnels, loads and limits a test has.
//!
//! A recipe is a TOML file in `recipes/`; the published ones are built in. From it follow, as pure
//! arithmetic, the address plan of every tunnel ([`Tunnel`]), the lab's test keys, and the text
//! that `ip -batch` needs on each gateway. This module touches no namespace and runs no program.

mod batch;
mod ike;
mod key;
mod net;
mod plan;
mod router;
mod speed;

pub use ike::Ike;
pub use key::test_key;
pub use net::{Net, NetError};
pub(crate) use plan::nth_endpoint;
pub use plan::{Side, Tunnel};
pub use router::Router;
pub use speed::{Speed, SpeedError};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::report::number;
use crate::result::{Direction, RampShape, Thresholds};
use crate::traffic::{CycleError, Mix, MixError, min_frame_bytes};

/// The version of the recipe format. Readers refuse a newer one.
pub const RECIPE_SCHEMA: u32 = 1;
/// Most tunnels a recipe may ask for; the design's goal is 50 000 and a /16 of endpoints holds
/// 65 023 that end in neither .0 nor .255.
pub const TUNNELS_MAX: u32 = 65_000;
/// Most workers per gateway: SPIs of single CPUs are that many blocks of 2²⁴.
const CORES_MAX: u32 = 15;
/// Longest ramp: beyond it `samples.csv` and the plot become useless before the test does.
const STEPS_MAX: u32 = 1000;
/// The built-in recipes by id.
const BUILT_IN: [(&str, &str); 4] = [
    ("bf3-test0", include_str!("../../../recipes/bf3-test0.toml")),
    ("bf3-test1", include_str!("../../../recipes/bf3-test1.toml")),
    ("bf3-test4", include_str!("../../../recipes/bf3-test4.toml")),
    ("pcpu", include_str!("../../../recipes/pcpu.toml")),
];

/// One test. Fields may be changed after reading (command-line options do); then call
/// [`Recipe::check`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// [`RECIPE_SCHEMA`].
    pub schema: u32,
    /// Short name, for the command line.
    pub id: String,
    /// One line for the top of the plot.
    pub title: String,
    /// The directions to measure; one curve for each, times `tunnels`.
    pub directions: Vec<Direction>,
    /// The numbers of tunnels to measure.
    pub tunnels: Vec<u32>,
    /// Client addresses cycled through in every tunnel.
    pub clients_per_tunnel: u32,
    /// Addresses the clients talk to.
    pub near_hosts: u32,
    /// Seconds of uncounted traffic before the first step.
    pub warm_up_s: f64,
    /// Load per sending port at the last step.
    pub max: Speed,
    /// Seed of the test keys.
    pub seed: u64,
    /// The ramp.
    pub ramp: RampShape,
    /// The limits of the marker.
    pub thresholds: Thresholds,
    /// The SAs' parameters.
    pub esp: Esp,
    /// How the SAs are negotiated when they are (`--keys ike`).
    #[serde(default)]
    pub ike: Ike,
    /// Workers of each gateway, as far as the machine has cores.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub cores: u32,
    /// Descriptors of each of the rings of a gateway's queues, a power of two; absent: as the gateway chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring: Option<u32>,
    /// What lies between the gateways where they are not back to back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<Router>,
    /// The side with one endpoint and one selector for all tunnels of a pair of links.
    pub near: Site,
    /// The side with one endpoint and one selector per tunnel.
    pub far: Site,
}

impl Recipe {
    /// Its title without what it said of tunnels and directions, and with what it says of them now: for one that
    /// was changed after reading.
    pub fn retitle(&mut self) {
        let name = self.title.split(':').next().unwrap_or_default();
        let (last, others) = self.tunnels.split_last().unwrap_or((&0, &[]));
        let others = others.iter().map(|&count| number::count(count.into()));
        let others = match others.collect::<Vec<_>>().join(", ") {
            others if others.is_empty() => others,
            others => format!("{others} and "),
        };
        let directions = match self.directions[..] {
            [Direction::Unidirectional] => "one direction",
            [Direction::Bidirectional] => "both directions",
            _ => "one direction and both",
        };
        self.title = format!("{name}: {others}{}, {directions}", number::tunnels(*last));
    }
}

/// What all SAs of a test have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Esp {
    /// The kernel's name of an AEAD with a 4-byte salt, as `ip xfrm` takes it.
    pub algorithm: String,
    /// Key without salt: 128, 192 or 256.
    pub key_bits: u16,
    /// Integrity check value.
    pub icv_bits: u16,
    /// Extended sequence numbers (RFC 4303 §2.2.1).
    pub esn: bool,
    /// Anti-replay window in packets.
    pub replay_window: u32,
    /// Beside the SAs of a tunnel for all CPUs, two for each CPU that has a worker (RFC 9611).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub per_cpu: bool,
    /// Tunnel `i` uses this plus `i` from near to far.
    pub spi_towards_far: u32,
    /// Tunnel `i` uses this plus `i` from far to near.
    pub spi_towards_near: u32,
}

/// One gateway and the generator port behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// Name of the gateway, its namespace and its rows in the accounting.
    pub gateway: String,
    /// Name of the generator port in reports.
    pub port: String,
    /// Names of the size mixes that the port sends, added up.
    pub mix: Vec<String>,
    /// The generator's address on the clear link; next hop of `route`.
    pub generator: Net,
    /// The gateway's link to the generator.
    pub clear_link: String,
    /// The gateway's address there.
    pub clear: Net,
    /// The gateway's link to the other gateway, or to the router.
    pub black_link: String,
    /// More such links, over a router. Tunnels take turns at them, and the addresses of the n-th are
    /// those of the first, n networks further on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_black_links: Vec<String>,
    /// The endpoint: of all tunnels (near) or of tunnel 1 (far).
    pub endpoint: Net,
    /// The protected network: of all tunnels (near) or of tunnel 1 (far).
    pub selector: Net,
    /// Everything behind the generator port of this side; covers all selectors.
    pub route: Net,
}

/// Why a recipe cannot be used.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum RecipeError {
    /// No built-in recipe of that name.
    #[error("recipe `{found}` is unknown; built in are {known}")]
    Unknown {
        /// What was asked for.
        found: String,
        /// What there is.
        known: String,
    },
    /// The file is not a recipe.
    #[error("not a recipe: {0}")]
    Toml(String),
    /// Written for a later program.
    #[error("the recipe has schema {0}, this program reads up to {RECIPE_SCHEMA}")]
    NewerSchema(u32),
    /// A value outside its limits.
    #[error("{name} is {found}, expected {expected}")]
    Value {
        /// The field.
        name: &'static str,
        /// What it holds.
        found: String,
        /// What it may hold.
        expected: String,
    },
    /// Networks or endpoints run out of their range.
    #[error("tunnel {tunnel} needs {what} {found}, which lies outside {range}; use fewer tunnels")]
    Plan {
        /// The first tunnel that does not fit.
        tunnel: u32,
        /// `endpoint` or `selector`.
        what: &'static str,
        /// The address or network.
        found: String,
        /// The range of the recipe.
        range: Net,
    },
    /// A mix that does not exist or does not fit.
    #[error(transparent)]
    Mix(#[from] MixError),
    /// Addresses that cannot be cycled through.
    #[error(transparent)]
    Cycle(#[from] CycleError),
}

impl Recipe {
    /// The ids of the built-in recipes.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(id, _)| *id)
    }

    /// A built-in recipe.
    ///
    /// # Errors
    /// [`RecipeError`] with the names that there are, if none has this id.
    pub fn built_in(id: &str) -> Result<Recipe, RecipeError> {
        let (_, text) =
            BUILT_IN.iter().find(|(name, _)| *name == id).ok_or_else(|| RecipeError::Unknown {
                found: id.to_owned(),
                known: Recipe::names().collect::<Vec<_>>().join(", "),
            })?;
        Recipe::parse(text)
    }

    /// Reads and checks a recipe.
    ///
    /// # Errors
    /// [`RecipeError`]: no TOML, a field that is unknown or missing, a newer schema, or what [`Recipe::check`] says.
    pub fn parse(text: &str) -> Result<Recipe, RecipeError> {
        /// The one field that every schema has.
        #[derive(Deserialize)]
        struct Versioned {
            schema: u32,
        }
        let toml_error = |error: toml::de::Error| RecipeError::Toml(error.to_string());
        let versioned: Versioned = toml::from_str(text).map_err(toml_error)?;
        if versioned.schema > RECIPE_SCHEMA {
            return Err(RecipeError::NewerSchema(versioned.schema));
        }
        let recipe: Recipe = toml::from_str(text).map_err(toml_error)?;
        recipe.check()?;
        Ok(recipe)
    }

    /// Whether everything can be run: values within limits, every tunnel's addresses in range,
    /// every mix known and large enough for the stamp.
    ///
    /// # Errors
    /// [`RecipeError`] with the first value that cannot be, and what was expected.
    pub fn check(&self) -> Result<(), RecipeError> {
        self.check_values()?;
        self.check_pairs()?;
        for &tunnels in &self.tunnels {
            self.check_plan(tunnels)?;
        }
        for site in [&self.near, &self.far] {
            let mix = Mix::from_names(&site.mix)?;
            let min = min_frame_bytes(site.generator.is_ipv6());
            if let Some(size) = mix.sizes().find(|&size| size < min) {
                return Err(value("mix", size, format!("frames of at least {min} bytes")));
            }
        }
        Ok(())
    }

    fn check_values(&self) -> Result<(), RecipeError> {
        fn within<T: PartialOrd + ToString>(
            name: &'static str,
            found: T,
            low: T,
            high: T,
        ) -> Result<(), RecipeError> {
            if found >= low && found <= high {
                return Ok(());
            }
            Err(value(
                name,
                found.to_string(),
                format!("{}..={}", low.to_string(), high.to_string()),
            ))
        }
        if self.directions.is_empty() {
            return Err(value("directions", "empty", "unidirectional, bidirectional or both"));
        }
        if self.tunnels.is_empty() {
            return Err(value("tunnels", "empty", "one number of tunnels or more"));
        }
        for &tunnels in &self.tunnels {
            within("tunnels", tunnels, 1, TUNNELS_MAX)?;
        }
        within("steps", self.ramp.steps, 1, STEPS_MAX)?;
        within("step_time_s", self.ramp.step_time_s, 0.5, 3600.0)?;
        within("settle_s", self.ramp.settle_s, 0.0, self.ramp.step_time_s)?;
        within("drain_ms", self.ramp.drain_ms, 1, 60_000)?;
        within("warm_up_s", self.warm_up_s, 0.0, 600.0)?;
        within("cores", self.cores, 1, CORES_MAX)?;
        if let Some(ring) = self.ring.filter(|ring| !ring.is_power_of_two()) {
            return Err(value("ring", ring, "a power of two"));
        }
        within("replay_window", self.esp.replay_window, 1, 4096)?;
        within("latency_us_max", self.thresholds.latency_us_max, 1.0, 1e9)?;
        within("rx_loss_percent_max", self.thresholds.rx_loss_percent_max, 0.0, 100.0)?;
        within("latency_loss_percent_max", self.thresholds.latency_loss_percent_max, 0.0, 100.0)?;
        if ![128, 192, 256].contains(&self.esp.key_bits) {
            return Err(value("key_bits", self.esp.key_bits, "128, 192 or 256"));
        }
        for (name, base) in [
            ("spi_towards_far", self.esp.spi_towards_far),
            ("spi_towards_near", self.esp.spi_towards_near),
        ] {
            // RFC 4303 §2.1 reserves SPIs up to 255.
            within(name, base, 256, u32::MAX - TUNNELS_MAX)?;
        }
        let apart = if self.esp.per_cpu { self.cores << 24 } else { 0 } + TUNNELS_MAX;
        if self.esp.spi_towards_far.abs_diff(self.esp.spi_towards_near) <= apart {
            let expected = format!("more than {apart} away from spi_towards_far");
            return Err(value("spi_towards_near", self.esp.spi_towards_near, expected));
        }
        Ok(())
    }

    /// Identifies the recipe as it was run, options included: FNV-1a of its canonical JSON, in
    /// hexadecimal. It tells recipes apart; it does not protect them.
    pub fn hash(&self) -> String {
        let canonical =
            serde_json::to_string(self).expect("a recipe holds only strings and finite numbers");
        let hash = canonical.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        format!("{hash:016x}")
    }
}

fn one() -> u32 {
    1
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

fn value(name: &'static str, found: impl ToString, expected: impl Into<String>) -> RecipeError {
    RecipeError::Value { name, found: found.to_string(), expected: expected.into() }
}

#[cfg(test)]
mod tests;
