//! Tables of modes against cores: which figures fill them, and what was published for VPP.
//!
//! A recipe of this kind (`recipes/vpp-10k.toml`) names the benches to run and, for each mode, the
//! figures that are its cells, so that a mode is a row of data. Nothing here measures or draws.

use serde::{Deserialize, Serialize};

use crate::figure::Figures;
use crate::recipe::{Recipe, RecipeError};
use crate::result::Direction;
use crate::vpp;

/// The built-in ones by id.
const BUILT_IN: [(&str, &str); 2] = [
    ("vpp-10k", include_str!("../../../recipes/vpp-10k.toml")),
    ("vpp-single-tunnel", include_str!("../../../recipes/vpp-single-tunnel.toml")),
];

/// A table to be measured.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// The version of the format: 1.
    pub schema: u32,
    /// Short name, for the command line.
    pub id: String,
    /// One line for the top of the chart.
    pub title: String,
    /// What has to be known of how the rows were measured, in sentences.
    pub note: String,
    /// Name of the published table in [`vpp::rates`].
    pub published: String,
    /// Tunnels.
    pub tunnels: u32,
    /// Bytes of a packet with Ethernet header.
    pub size: u16,
    /// The columns.
    pub cores: Vec<u32>,
    /// Arguments of `peregrine bench`, one list for each bench to run.
    pub benches: Vec<Vec<String>>,
    /// The rows.
    #[serde(rename = "mode")]
    pub modes: Vec<Mode>,
    /// The run over veth.
    pub end_to_end: EndToEnd,
}

/// A row: where its figures come from.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mode {
    /// What it is called.
    pub name: String,
    /// What VPP's is called.
    pub published: String,
    /// The figure of one core.
    #[serde(default)]
    pub one_core: Option<String>,
    /// The figures of two cores and more.
    #[serde(default)]
    pub more_cores: Option<String>,
    /// The figures of cores that are not there.
    #[serde(default)]
    pub model: Option<String>,
    /// What is measured of one core alone is the model of more: as many times as much, as tunnels share nothing.
    #[serde(default)]
    pub scales: bool,
}

/// The same tunnels over veth, between two gateways.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndToEnd {
    /// The recipe whose network and addresses are used.
    pub recipe: String,
    /// Steps of its ramp.
    pub steps: u32,
    /// Their length, in seconds.
    pub step_time_s: f64,
}

/// Bytes of an Ethernet header, which the sizes of packets count, and of the checksum behind a frame, which they do not.
const HEADER_LEN: u16 = 14;
const FCS_LEN: u16 = 4;

/// One cell of the table, in Gbps. Ours are of frames in clear on the link, with their checksum (L2), as over veth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// The row.
    pub mode: String,
    /// The column.
    pub cores: u32,
    /// Measured here, on memory ports.
    pub measured: Option<f64>,
    /// Calculated from what was measured here.
    pub modelled: Option<f64>,
    /// Published for VPP.
    pub published: Option<f64>,
}

/// What no gateway on one core can exceed, in the bits of [`Cell`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// Its name.
    pub name: String,
    /// Of one core, or of all where `per_core` is false.
    pub gbps: f64,
    /// Whether more cores have more of it.
    pub per_core: bool,
}

impl Matrix {
    /// The ids of the built-in ones.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(id, _)| *id)
    }

    /// A built-in one; nothing where there is none of that name.
    ///
    /// # Panics
    /// Never: a test reads them all.
    pub fn built_in(id: &str) -> Option<Matrix> {
        let (_, text) = BUILT_IN.iter().find(|(name, _)| *name == id)?;
        Some(toml::from_str(text).expect("the built-in recipes are read by a test"))
    }

    /// A figure's name, or an argument, with the numbers in it.
    pub fn fill(&self, template: &str, cores: u32) -> String {
        template
            .replace("{tunnels}", &self.tunnels.to_string())
            .replace("{size}", &self.size.to_string())
            .replace("{cores}", &cores.to_string())
    }

    /// What a rate of inner packets, of which the benches tell, is in bits of their frames.
    fn of_frames(&self, gbps: f64) -> f64 {
        gbps * f64::from(self.size + FCS_LEN)
            / f64::from(self.size.saturating_sub(HEADER_LEN).max(1))
    }

    /// The table, row by row.
    pub fn cells(&self, figures: &Figures) -> Vec<Cell> {
        let rates = vpp::rates();
        let mut cells = Vec::new();
        for mode in &self.modes {
            for &cores in &self.cores {
                let value = |template: &Option<String>| {
                    let gbps = figures.value(&self.fill(template.as_deref()?, cores))?;
                    Some(self.of_frames(gbps))
                };
                let measured = if cores == 1 { &mode.one_core } else { &mode.more_cores };
                let scaled = match (mode.scales, cores) {
                    (true, 2..) => value(&mode.one_core).map(|gbps| gbps * f64::from(cores)),
                    _ => None,
                };
                let published = rates.iter().find(|rate| {
                    (rate.table, rate.mode, rate.cores)
                        == (self.published.as_str(), mode.published.as_str(), cores)
                });
                cells.push(Cell {
                    mode: mode.name.clone(),
                    cores,
                    measured: value(measured),
                    modelled: value(&mode.model).or(scaled),
                    published: published.map(|rate| rate.gbps),
                });
            }
        }
        cells
    }

    /// The ceilings that the figures know: the cipher and the path in clear, on one core each.
    pub fn limits(&self, figures: &Figures) -> Vec<Limit> {
        let cipher = figures.value(&self.fill("cipher/seal/1/{size}/gbps", 1));
        let plain = figures.value(&self.fill("path/plain/seal/{tunnels}/{size}/gbps", 1));
        let limit = |name: &str, gbps: f64| Limit {
            name: name.to_owned(),
            gbps: self.of_frames(gbps),
            per_core: true,
        };
        let cipher = cipher.map(|gbps| limit("the cipher alone", gbps));
        cipher.into_iter().chain(plain.map(|gbps| limit("the path in clear", gbps))).collect()
    }

    /// The run over veth.
    ///
    /// # Errors
    /// If its recipe cannot carry these tunnels or sizes.
    pub fn recipe(&self) -> Result<Recipe, RecipeError> {
        let mut recipe = Recipe::built_in(&self.end_to_end.recipe)?;
        recipe.id.clone_from(&self.id);
        recipe.title = format!("{}, end to end over veth", self.title);
        recipe.tunnels = vec![self.tunnels];
        recipe.directions = vec![Direction::Unidirectional];
        recipe.near.mix = vec![self.size.to_string()];
        recipe.far.mix = recipe.near.mix.clone();
        recipe.ramp.steps = self.end_to_end.steps;
        recipe.ramp.step_time_s = self.end_to_end.step_time_s;
        recipe.ramp.settle_s = recipe.ramp.settle_s.min(recipe.ramp.step_time_s);
        recipe.check()?;
        Ok(recipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_tables_can_be_read_and_run() {
        for id in Matrix::names() {
            let matrix = Matrix::built_in(id).unwrap();
            assert_eq!((matrix.id.as_str(), matrix.schema), (id, 1));
            assert!(matrix.recipe().is_ok(), "{id}");
            let rates = vpp::rates();
            for mode in &matrix.modes {
                let is_published = |rate: &vpp::Rate| {
                    rate.table == matrix.published && rate.mode == mode.published
                };
                assert!(rates.iter().any(is_published), "{id}: {}", mode.published);
            }
        }
        assert_eq!(Matrix::built_in("bf3-test0"), None);
    }

    #[test]
    fn cells_are_found_by_the_names_of_their_figures() {
        let matrix = Matrix::built_in("vpp-10k").unwrap();
        let mut figures = Figures::default();
        figures.add("path/policy-uncached/seal/10000/1428/gbps", 31.0, "Gbps");
        figures.add("cores/many/1/gbps", 30.0, "Gbps");
        figures.add("cores/many/2/gbps", 58.0, "Gbps");
        figures.add("cores/many/model/4/gbps", 115.0, "Gbps");
        figures.add("cipher/seal/1/1428/gbps", 70.0, "Gbps");
        let cells = matrix.cells(&figures);
        assert_eq!(cells.len(), matrix.modes.len() * matrix.cores.len());
        let cell = |mode: &str, cores| {
            cells.iter().find(|cell| cell.mode == mode && cell.cores == cores).unwrap()
        };
        // A packet of 1414 bytes is a frame of 1428, and of 1432 with its checksum.
        let of_frames = |gbps: f64| Some(gbps * 1432.0 / 1414.0);
        let new_flows = cell("policy, new flows", 1);
        assert_eq!(new_flows.measured, of_frames(31.0));
        let two = cell("policy, new flows", 2);
        assert_eq!((two.measured, two.modelled), (None, of_frames(62.0)));
        assert_eq!(new_flows.modelled, None);
        assert_eq!(cell("policy, known flows", 1).measured, of_frames(30.0));
        assert_eq!(
            (cell("policy, known flows", 2).measured, cell("policy, new flows", 2).published),
            (of_frames(58.0), Some(1.3))
        );
        let four = cell("policy, known flows", 4);
        assert_eq!((four.measured, four.modelled), (None, of_frames(115.0)));
        assert_eq!(
            (cell("point-to-point", 1).measured, cell("point-to-point", 4).published),
            (None, Some(78.0))
        );
        let limits = matrix.limits(&figures);
        assert_eq!((limits.len(), Some(limits[0].gbps)), (1, of_frames(70.0)));
    }

    #[test]
    fn a_pipeline_has_no_cell_for_one_core() {
        let matrix = Matrix::built_in("vpp-single-tunnel").unwrap();
        let mut figures = Figures::default();
        for (name, gbps) in [("1", 46.0), ("2", 88.0), ("model/2", 107.0), ("model/4", 213.0)] {
            figures.add(format!("cores/fat/{name}/gbps"), gbps, "Gbps");
        }
        let cells = matrix.cells(&figures);
        let measured = |mode: &str| {
            let cells = cells.iter().filter(|cell| cell.mode == mode && cell.measured.is_some());
            cells.map(|cell| cell.cores).collect::<Vec<_>>()
        };
        assert_eq!((measured("one worker"), measured("ordered pipeline")), (vec![1], vec![2]));
    }
}
