//! `peregrine exec -- PROGRAM…`: runs an unmodified XFRM program against the gateway.

use std::env;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf, absolute};
use std::process::{Command, ExitCode, Stdio};

use super::{Instance, Unfit};

/// File name of the preload library.
const LIBRARY: &str = "libperegrine_xfrm.so";
/// What names it wherever else it lies.
const NAMED: &str = "PEREGRINE_PRELOAD";
/// Where a package installs the library.
const INSTALLED: &str = "/usr/lib/peregrine";
/// Asks the library whether it is there, and what it ends the process with if so.
const PROBE: &str = "PEREGRINE_XFRM_PROBE";
const PRESENT: i32 = 86;

/// Run a program whose XFRM netlink socket is the gateway's instead of the kernel's
///
/// Works for every dynamically linked program that speaks the kernel's XFRM interface: `ip xfrm`,
/// strongSwan's charon, libreswan's pluto. Everything but NETLINK_XFRM sockets is left alone.
/// Exits with the program's own exit code; with 2, and without the program, where there is no gateway
/// or no preload library that can be loaded. PEREGRINE_PRELOAD names a library that is not beside this binary.
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
/// Of one that it cannot load the loader only complains: the program would run, and drive the kernel.
fn library() -> anyhow::Result<PathBuf> {
    let path = match env::var_os(NAMED).filter(|path| !path.is_empty()) {
        // The loader would look for a bare name elsewhere.
        Some(path) => named(&absolute(path)?)?,
        None => found()?,
    };
    if path.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
        let why = "a blank or a colon in its path, at which the loader ends a name";
        return Err(Unfit(format!(
            "{} cannot be loaded for {why}; copy it elsewhere and name it in {NAMED}",
            path.display()
        ))
        .into());
    }
    prove(&path)?;
    Ok(path)
}

/// Has the loader load the library into a process that does nothing else, which the library ends.
fn prove(path: &Path) -> anyhow::Result<()> {
    // Ourselves: what is loaded here is most likely to be loaded there.
    let mut probe = Command::new("/proc/self/exe");
    probe.arg("--version").env("LD_PRELOAD", path).env(PROBE, "1").stdin(Stdio::null());
    let out = probe.output()?;
    if out.status.code() == Some(PRESENT) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let why = match said.trim() {
        "" => format!("it is damaged, or not the {LIBRARY} of this version"),
        words => words.strip_suffix(": ignored.").unwrap_or(words).to_owned(),
    };
    Err(Unfit(format!(
        "{} cannot be used: {why}; build it with `make build`, or name one that can be loaded in {NAMED}",
        path.display()
    ))
    .into())
}

fn named(path: &Path) -> Result<PathBuf, Unfit> {
    if path.is_file() {
        return Ok(path.to_owned());
    }
    Err(Unfit(format!(
        "{NAMED} names {}, which is no file; build {LIBRARY} with `make build` and name that, or unset {NAMED}",
        path.display()
    )))
}

fn found() -> anyhow::Result<PathBuf> {
    let beside = env::current_exe()?.with_file_name(LIBRARY);
    let installed = PathBuf::from(INSTALLED).join(LIBRARY);
    for candidate in [&beside, &installed] {
        if candidate.exists() {
            return Ok(candidate.clone());
        }
    }
    Err(Unfit(format!(
        "{LIBRARY} not found (looked at {} and {}); build it with `make build`, or name it in {NAMED}",
        beside.display(),
        installed.display()
    ))
    .into())
}
