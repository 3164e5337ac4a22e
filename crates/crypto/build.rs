//! Compiles the ipsec-mb shim against the library this machine has, or leaves the engine out and
//! says so.
//!
//! `cfg(ipsec_mb)` is the one thing decided here. The library that `setup` has unpacked below
//! `target/` goes before the system's, which on Debian 12 is one of the previous major release. What
//! is *not* done: no vendored copy of the library, no bindings generated from the header (its
//! structs change between releases; the shim absorbs that).

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;

const SHIM: &str = "src/ipsec_mb.c";

/// Where `setup` unpacks Debian's packages of the library, from this crate.
const UNPACKED: &str = "../../target/ipsec-mb";

/// Written last by `setup`, so that what is half unpacked is not there.
const VERSION_FILE: &str = "peregrine-version";

fn main() {
    println!("cargo:rustc-check-cfg=cfg(ipsec_mb)");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={SHIM}");
    // cc asks for a rerun when CC, CFLAGS and the like change: the way to point at another header.
    match shim() {
        Ok(build) => {
            build.compile("peregrine_ipsec_mb");
            // After the shim, because it is the shim that calls it.
            match unpacked() {
                Some(root) => {
                    let libraries = root.join("usr/lib/x86_64-linux-gnu");
                    println!("cargo:rustc-link-search=native={}", libraries.display());
                    println!("cargo:rustc-link-lib=static=IPSec_MB");
                }
                None => println!("cargo:rustc-link-lib=IPSec_MB"),
            }
            println!("cargo:rustc-cfg=ipsec_mb");
        }
        Err(reason) => {
            println!("cargo:warning=crypto is built without the ipsec-mb engine: {reason}");
        }
    }
}

/// The library that `setup` has fetched, if it could.
fn unpacked() -> Option<PathBuf> {
    let crate_root = env::var_os("CARGO_MANIFEST_DIR")?;
    let version =
        PathBuf::from(crate_root).join(UNPACKED).join(VERSION_FILE).canonicalize().ok()?;
    Some(version.parent()?.to_owned())
}

/// The shim's build, if this target can have the engine.
fn shim() -> Result<cc::Build, &'static str> {
    let target = |key: &str| env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    if target("ARCH") != "x86_64" || target("OS") != "linux" {
        return Err("it exists for x86_64 Linux only");
    }
    let mut build = cc::Build::new();
    build.file(SHIM).std("c11").warnings_into_errors(true);
    if let Some(root) = unpacked() {
        // Another library means another build. (When the first one comes, its script touches this
        // file: cargo builds again and again for want of a file that it is to watch.)
        println!("cargo:rerun-if-changed={UNPACKED}/{VERSION_FILE}");
        build.include(root.join("usr/include"));
    }
    // Preprocessing fails exactly when the header is absent; a shim that does not compile against a
    // header that is there must break the build instead of leaving the engine out.
    let source = build.clone().cargo_warnings(false).try_expand().map_err(
        |_| "intel-ipsec-mb.h not found; install libipsec-mb-dev, then `cargo clean -p crypto`",
    )?;
    // An upgraded header means other structs: compile the shim anew.
    for header in headers(&String::from_utf8_lossy(&source)) {
        println!("cargo:rerun-if-changed={header}");
    }
    Ok(build)
}

/// The places of the library's header in preprocessed C, from its `# 1 "path" flags` lines.
fn headers(source: &str) -> BTreeSet<&str> {
    let markers = source.lines().filter(|line| line.starts_with("# "));
    let paths = markers.filter_map(|line| line.split('"').nth(1));
    paths.filter(|path| path.ends_with("intel-ipsec-mb.h")).collect()
}
