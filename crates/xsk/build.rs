//! Compiles the XDP programs with clang and generates their typed loaders.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let sources =
        PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../bpf");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    for header in ["kernel.h", "packet.h"] {
        println!("cargo:rerun-if-changed={}", sources.join(header).display());
    }
    for program in ["steer", "sink"] {
        let source = sources.join(format!("{program}.bpf.c"));
        println!("cargo:rerun-if-changed={}", source.display());
        SkeletonBuilder::new()
            .source(&source)
            .clang_args(["-Wall", "-Wextra", "-Werror"])
            .build_and_generate(out.join(format!("{program}.skel.rs")))
            .unwrap_or_else(|error| panic!("{}: {error:?} (needs clang)", source.display()));
    }
}
