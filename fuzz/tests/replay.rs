//! Replays every committed input of every target, so that what fuzzing once found stays found.
//! Does not look for new inputs: `fuzz/run` does.

use std::collections::BTreeSet;
use std::panic;
use std::path::{Path, PathBuf};

use fuzz::TARGETS;

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let listing = std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = listing.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_input_of_every_target() {
    for (name, target) in TARGETS {
        let inputs = entries(&at("corpus").join(name));
        assert!(!inputs.is_empty(), "fuzz/corpus/{name} is empty");
        for input in inputs {
            let bytes = std::fs::read(&input).unwrap();
            let outcome = panic::catch_unwind(|| target(&bytes));
            assert!(outcome.is_ok(), "target {name} fails on {}", input.display());
        }
    }
}

#[test]
fn targets_corpora_and_mains_belong_together() {
    let named: BTreeSet<String> = TARGETS.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(named.len(), TARGETS.len(), "a target is listed twice");
    for directory in ["corpus", "src/bin"] {
        let found: BTreeSet<String> = entries(&at(directory))
            .iter()
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(found, named, "fuzz/{directory} and TARGETS differ");
    }
}
