//! Where a daemon's root is; has it made once (see `provision` beside this file).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A daemon as one Debian suite ships it.
#[derive(Clone, Debug)]
pub struct Root {
    /// Its directory.
    pub path: PathBuf,
    /// Its name, `strongswan-5.9.8` for one.
    pub name: &'static str,
    /// The package's full version.
    pub version: String,
}

impl Root {
    /// The root of this name. Where the machine cannot have it, it says so past the test harness'
    /// capture, and there is none; with PEREGRINE_DAEMONS_REQUIRED set that is a failure.
    pub fn find(name: &'static str) -> Option<Root> {
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        let script = home.join("tests/daemon/provision");
        let made = Command::new(&script).arg(name).output().expect("provision runs");
        let said = String::from_utf8_lossy(&made.stderr).into_owned();
        if !made.status.success() {
            let required = std::env::var_os("PEREGRINE_DAEMONS_REQUIRED").is_some();
            assert!(!required, "{name} is required and cannot be had:\n{said}");
            let line = format!("\nNOT TESTED: {name} cannot be had on this machine:\n{said}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            return None;
        }
        let store = std::env::var_os("PEREGRINE_DAEMONS")
            .map_or_else(|| home.join("target/daemons"), PathBuf::from);
        let path = store.join(name);
        let version = std::fs::read_to_string(path.join("peregrine-version"))
            .expect("a root names its version");
        Some(Root { path, name, version: version.trim().to_owned() })
    }

    /// Whether the daemon's version is at least this.
    pub fn is_at_least(&self, major: u32, minor: u32) -> bool {
        let mut parts = self.version.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
        let version: (u32, u32) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        version >= (major, minor)
    }
}
