//! The table of docs/interop.md, held to the tests that are there.
//!
//! A column's header names the test binary, ``strongSwan 6.1 `--test strongswan` ``; a cell names the
//! test in it that shows the row's scenario, or says in words why there is none.

use std::collections::BTreeSet;

/// Sees that the columns of this test binary name exactly the binary's scenarios.
pub fn check(binary: &str, scenarios: &[String]) {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/interop.md");
    let text = std::fs::read_to_string(page).expect("the page");
    let named = named(&text, binary);
    let there: BTreeSet<String> = scenarios.iter().cloned().collect();
    let missing: Vec<_> = there.difference(&named).collect();
    let unknown: Vec<_> = named.difference(&there).collect();
    assert!(missing.is_empty(), "docs/interop.md does not name {missing:?}");
    assert!(unknown.is_empty(), "docs/interop.md names {unknown:?}, which no test is");
}

/// Every test that the columns of this binary name.
fn named(text: &str, binary: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut columns = Vec::new();
    let header = format!("`--test {binary}`");
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if !line.starts_with('|') {
            columns.clear();
        } else if cells.iter().any(|cell| cell.contains(&header)) {
            let ours = |at: &usize| cells[*at].contains(&header);
            columns = (0..cells.len()).filter(ours).collect();
        } else {
            let tests = columns.iter().filter_map(|at| cells.get(*at)?.split('`').nth(1));
            found.extend(tests.map(str::to_owned));
        }
    }
    found
}
