//! The verbs of the command line, one file each.

use std::path::{Path, PathBuf};

pub mod bench;
pub mod exec;
pub mod lab;
pub mod run;
pub mod show;

/// The command line, the configuration or the machine is not fit for what was asked: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unfit(pub String);

/// Where running gateways keep their sockets, one directory per instance.
pub const RUN_DIRECTORY: &str = "/run/peregrine";

/// The gateway a command speaks to.
#[derive(clap::Args)]
pub struct Instance {
    /// Name of the gateway (default: the only one that runs)
    #[arg(long, short = 'i', value_name = "NAME", global = true)]
    pub instance: Option<String>,
}

impl Instance {
    /// The instance's run directory; says which instances there are when the choice is unclear.
    pub fn directory(&self) -> Result<PathBuf, Unfit> {
        let running = instances(Path::new(RUN_DIRECTORY));
        let list = || match running.as_slice() {
            [] => "none runs".to_string(),
            names => format!("running: {}", names.join(", ")),
        };
        match (&self.instance, running.as_slice()) {
            (Some(name), names) if names.contains(name) => Ok(Path::new(RUN_DIRECTORY).join(name)),
            (Some(name), _) => Err(Unfit(format!("no gateway named {name} ({})", list()))),
            (None, [only]) => Ok(Path::new(RUN_DIRECTORY).join(only)),
            (None, []) => Err(Unfit(
                "no gateway runs here; start one with `peregrine run --config FILE`".to_string(),
            )),
            (None, _) => Err(Unfit(format!(
                "several gateways run; choose one with --instance NAME ({})",
                list()
            ))),
        }
    }
}

fn instances(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().join("xfrm.sock").exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}
