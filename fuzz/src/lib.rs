//! Fuzz targets: one function per parser of bytes from outside, and one for all that the data path does with packets. A target is
//! given any bytes and panics if an invariant does not hold; surviving without a panic is the least of them.
//!
//! `fuzz/run TARGET SECONDS` looks for new inputs with libFuzzer, `cargo test -p fuzz` replays
//! those in `fuzz/corpus/TARGET`. A new target needs a function and a line in [`TARGETS`] here,
//! a [`main`] in `src/bin/TARGET.rs` and a corpus.

#![forbid(unsafe_code)]

mod config;
mod frame;
mod gateway;
mod journal;
mod netlink;
// The comparison with an independent parser is the one that the property tests use.
#[path = "../../crates/wire/tests/oracle/compare.rs"]
mod compare;

pub use config::config;
pub use frame::frame;
pub use gateway::gateway;
pub use journal::journal;
pub use netlink::netlink;

/// A target: given any bytes, it panics if an invariant is broken.
pub type Target = fn(&[u8]);

/// Every target by name; the name is also that of its main and of its corpus directory.
pub const TARGETS: &[(&str, Target)] = &[
    ("config", config),
    ("frame", frame),
    ("gateway", gateway),
    ("journal", journal),
    ("netlink", netlink),
];

/// The main of a target's binary: libFuzzer's, or in a build without it one that says what to do.
#[macro_export]
macro_rules! main {
    ($target:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::$target(data));

        #[cfg(not(fuzzing))]
        fn main() {
            let target = stringify!($target);
            eprintln!("built without libFuzzer; run `fuzz/run {target} SECONDS` instead");
            std::process::exit(2);
        }
    };
}
