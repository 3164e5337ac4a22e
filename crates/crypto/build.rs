//! Compiles the ipsec-mb shim against the header this machine has, or leaves the engine out and
//! says so.
//!
//! `cfg(ipsec_mb)` is the one thing decided here. What is *not* done: no vendored copy of the
//! library, no bindings generated from the header (its structs change between releases; the shim
//! absorbs that).

use std::collections::BTreeSet;
use std::env;

const SHIM: &str = "src/ipsec_mb.c";

fn main() {
    println!("cargo:rustc-check-cfg=cfg(ipsec_mb)");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={SHIM}");
    // cc asks for a rerun when CC, CFLAGS and the like change: the way to point at another header.
    match shim() {
        Ok(build) => {
            build.compile("peregrine_ipsec_mb");
            println!("cargo:rustc-link-lib=IPSec_MB");
            println!("cargo:rustc-cfg=ipsec_mb");
        }
        Err(reason) => {
            println!("cargo:warning=crypto is built without the ipsec-mb engine: {reason}");
        }
    }
}

/// The shim's build, if this target can have the engine.
fn shim() -> Result<cc::Build, &'static str> {
    let target = |key: &str| env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    if target("ARCH") != "x86_64" || target("OS") != "linux" {
        return Err("it exists for x86_64 Linux only");
    }
    let mut build = cc::Build::new();
    build.file(SHIM).std("c11").warnings_into_errors(true);
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
