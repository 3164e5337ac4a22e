//! `peregrine exec -- PROGRAM…`: runs an unmodified XFRM program against the gateway.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use super::{Instance, Unfit};

/// File name of the preload library.
const LIBRARY: &str = "libperegrine_xfrm.so";
/// Where a package installs the library.
const INSTALLED: &str = "/usr/lib/peregrine";

/// Run a program whose XFRM netlink socket is the gateway's instead of the kernel's
///
/// Works for every dynamically linked program that speaks the kernel's XFRM interface: `ip xfrm`,
/// strongSwan's charon, libreswan's pluto. Everything but NETLINK_XFRM sockets is left alone.
/// Exits with the program's own exit code.
#[derive(clap::Args)]
pub struct Exec {
    #[command(flatten)]
    instance: Instance,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

impl Exec {
    /// Replaces this process by the program.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let socket = self.instance.directory()?.join("xfrm.sock");
        let mut preload = library()?.into_os_string();
        if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let error = Command::new(&self.program[0])
            .args(&self.program[1..])
            .env("LD_PRELOAD", preload)
            .env("PEREGRINE_XFRM", socket)
            .exec();
        Err(Unfit(format!("cannot run {}: {error}", self.program[0])).into())
    }
}

/// The preload library: where PEREGRINE_PRELOAD says, beside this binary, or where it is installed.
fn library() -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os("PEREGRINE_PRELOAD") {
        return Ok(path.into());
    }
    let beside = env::current_exe()?.with_file_name(LIBRARY);
    let installed = PathBuf::from(INSTALLED).join(LIBRARY);
    for candidate in [&beside, &installed] {
        if candidate.exists() {
            return Ok(candidate.clone());
        }
    }
    Err(Unfit(format!(
        "{LIBRARY} not found (looked at {} and {}); build it with `make build`, or name it in PEREGRINE_PRELOAD",
        beside.display(),
        installed.display()
    ))
    .into())
}
