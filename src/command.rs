//! The verbs of the command line, one file each.

use std::path::{PathBuf, absolute};

pub mod bench;
pub mod exec;
pub mod lab;
pub mod run;
pub mod show;
pub mod upgrade;

/// The command line, the configuration or the machine is not fit for what was asked: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unfit(pub String);

/// The gateway a command speaks to.
#[derive(clap::Args)]
pub struct Instance {
    /// Name of the gateway (default: the only one that runs)
    #[arg(long, short = 'i', value_name = "NAME")]
    pub instance: Option<String>,
    /// The directory above its sockets, if its configuration names another (`run_dir`)
    #[arg(long, value_name = "DIR", default_value = control::instance::RUN_DIR)]
    pub run_dir: PathBuf,
}

impl Instance {
    /// The instance's run directory; says which instances there are when the choice is unclear. Absolute: programs
    /// that go elsewhere are told of it.
    pub fn directory(&self) -> Result<PathBuf, Unfit> {
        let run_dir = absolute(&self.run_dir);
        let run_dir = run_dir.map_err(|error| Unfit(format!("cannot use --run-dir: {error}")))?;
        let running = control::instance::choose(&run_dir, self.instance.as_deref());
        running.map(|running| running.directory).map_err(|error| Unfit(error.to_string()))
    }
}
