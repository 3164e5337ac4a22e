//! Style is a test: the rules of STYLE.md that a machine can hold.
//!
//! Each rule is one test, so that a failure names the rule. An exception is written in the table
//! `EXCEPTIONS` below, with its reason; it is not written into the code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines of a file before its tests begin. Longer files have more than one subject.
const FILE_LINES_MAX: usize = 450;
/// Lines of one function, signature and closing brace included.
const FUNCTION_LINES_MAX: usize = 75;
/// Crates that the data path may pull in, itself included.
const DATAPLANE_CRATES_MAX: usize = 30;

/// Where a rule does not hold, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// The only files that may contain `unsafe`, and each of them does.
const UNSAFE_FILES: &[&str] = &[
    "crates/xsk/src/sys.rs",
    "crates/xsk/src/ring.rs",
    "crates/xsk/src/ring/sides.rs",
    "crates/xsk/src/umem.rs",
    "crates/xsk/src/frame.rs",
    "crates/xsk/src/heap.rs",
    "crates/xsk/src/region.rs",
    "crates/crypto/src/ipsec_mb.rs",
    "crates/crypto/src/cache.rs",
    "crates/crypto/src/shared.rs",
    "crates/dataplane/src/batch.rs",
    "crates/dataplane/src/bundles.rs",
    "crates/dataplane/src/chunk.rs",
    "crates/dataplane/src/commit.rs",
    "crates/dataplane/src/cpu.rs",
    "crates/dataplane/src/crew.rs",
    "crates/dataplane/src/crew/lent.rs",
    "crates/dataplane/src/ledger/words.rs",
    // Calls that need a CPU's instructions, and the loads and stores of their registers.
    "crates/crypto/src/vaes.rs",
    "crates/crypto/src/vaes/block.rs",
    "crates/crypto/src/vaes/opaque.rs",
    "crates/crypto/src/vaes256/lanes.rs",
    "crates/crypto/src/vaes512/lanes.rs",
    "crates/dataplane/src/publication.rs",
    "crates/dataplane/src/table.rs",
    "crates/dataplane/src/table/shard.rs",
    "crates/dataplane/src/table/steady.rs",
    "interleavings/tests/models.rs",
    "preload/",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file git tracks (or would track) with this ending, as (path from the root, text).
fn sources(ending: &str) -> Vec<(String, String)> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git ls-files runs in a checkout");
    let errors = String::from_utf8_lossy(&listed.stderr);
    assert!(listed.status.success(), "git lists no files here: {errors}");
    String::from_utf8_lossy(&listed.stdout)
        .lines()
        .filter(|path| path.ends_with(ending))
        .filter_map(|path| Some((path.to_string(), fs::read_to_string(root().join(path)).ok()?)))
        .collect()
}

fn excepted(rule: &str, path: &str) -> bool {
    EXCEPTIONS.iter().any(|(r, p, why)| *r == rule && *p == path && !why.is_empty())
}

/// Whether a file holds nothing but tests: tables of cases may be as long as they need to be.
fn is_test(path: &str) -> bool {
    path.ends_with("tests.rs") || path.contains("tests/")
}

/// The part of a source file before its test module. One that lies in another file (`mod twin;`) ends nothing.
fn without_tests(text: &str) -> &str {
    const MARK: &str = "\n#[cfg(test)]\nmod ";
    let opens = |rest: &str| rest.lines().next().is_some_and(|line| line.ends_with('{'));
    let mut marks = text.match_indices(MARK).map(|(at, _)| at);
    let tests = marks.find(|at| opens(&text[at + MARK.len()..]));
    tests.map_or(text, |at| &text[..at])
}

#[test]
fn only_a_test_module_of_its_own_ends_a_file() {
    let elsewhere = "//! A module.\n\n#[cfg(test)]\nmod twin;\n\nfn work() {}\n";
    assert_eq!(without_tests(elsewhere), elsewhere);
    let inline = format!("{elsewhere}\n#[cfg(test)]\nmod tests {{\n}}\n");
    assert_eq!(without_tests(&inline), elsewhere);
}

fn fail_if_any(rule: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

#[test]
fn code_is_formatted() {
    let out = Command::new("cargo")
        .args(["fmt", "--all", "--check", "--", "-l"])
        .current_dir(root())
        .output()
        .expect("cargo fmt runs");
    assert!(
        out.status.success(),
        "run `cargo fmt --all`; unformatted:\n{}",
        String::from_utf8_lossy(&out.stdout)
    );
}

#[test]
fn files_have_one_subject() {
    let found = sources(".rs")
        .into_iter()
        .filter(|(path, _)| !is_test(path) && !excepted("file length", path))
        .filter_map(|(path, text)| {
            let lines = without_tests(&text).lines().count();
            (lines > FILE_LINES_MAX).then(|| format!("{path}: {lines} lines"))
        })
        .collect();
    fail_if_any("a file is longer than its subject", found);
}

#[test]
fn functions_fit_on_a_screen() {
    let mut found = Vec::new();
    for (path, text) in sources(".rs") {
        if is_test(&path) || excepted("function length", &path) {
            continue;
        }
        let lines: Vec<&str> = without_tests(&text).lines().collect();
        let mut at = 0;
        while at < lines.len() {
            let line = lines[at];
            let indent = line.len() - line.trim_start().len();
            let is_function = line.contains("fn ")
                && !line.trim_start().starts_with("//")
                && (line.trim_start().starts_with("fn ")
                    || line.trim_start().starts_with("pub")
                    || line.trim_start().starts_with("unsafe")
                    || line.trim_start().starts_with("const fn")
                    || line.trim_start().starts_with("extern"));
            if is_function && !line.trim_end().ends_with(';') {
                let close = format!("{}}}", " ".repeat(indent));
                let length = lines[at..].iter().position(|l| *l == close).map(|last| last + 1);
                if let Some(length) = length.filter(|length| *length > FUNCTION_LINES_MAX) {
                    found.push(format!("{path}:{}: {length} lines", at + 1));
                }
            }
            at += 1;
        }
    }
    fail_if_any("a function does not fit on a screen", found);
}

#[test]
fn every_module_says_what_it_is() {
    let found = sources(".rs")
        .into_iter()
        .filter(|(_, text)| !text.trim_start().starts_with("//!"))
        .filter(|(_, text)| !text.trim_start().starts_with("#!"))
        .map(|(path, _)| path)
        .collect();
    fail_if_any("a module has no `//!` header", found);
}

#[test]
fn unsafe_lives_in_a_named_handful_of_files() {
    let paths: Vec<String> = sources(".rs")
        .into_iter()
        .filter(|(path, _)| path != "tests/tidy.rs")
        .filter(|(_, text)| {
            text.lines().any(|line| {
                let code = line.split("//").next().unwrap_or("");
                ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
                    .iter()
                    .any(|form| code.contains(form))
            })
        })
        .map(|(path, _)| path)
        .collect();
    let outside = paths
        .iter()
        .filter(|path| !UNSAFE_FILES.iter().any(|allowed| path.starts_with(allowed)))
        .cloned()
        .collect();
    fail_if_any("`unsafe` outside the named files", outside);
    let needless = UNSAFE_FILES
        .iter()
        .filter(|allowed| !paths.iter().any(|path| path.starts_with(**allowed)))
        .map(|allowed| (*allowed).to_string())
        .collect();
    fail_if_any("a file may contain `unsafe` and does not", needless);
}

#[test]
fn nothing_is_left_unfinished() {
    let marks = ["todo!(", "unimplemented!(", "#[ignore", "FIXME", "XXX:"];
    let found = sources(".rs")
        .into_iter()
        .filter(|(path, _)| path != "tests/tidy.rs")
        .flat_map(|(path, text)| {
            marks
                .iter()
                .filter(|mark| text.contains(**mark))
                .map(|mark| format!("{path}: {mark}"))
                .collect::<Vec<_>>()
        })
        .collect();
    fail_if_any("a mark of unfinished work", found);
}

#[test]
fn names_are_nouns() {
    let vague = ["helper", "util", "manager", "misc", "common_", "stuff"];
    let found = sources(".rs")
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| {
            let name = Path::new(path)
                .file_stem()
                .map(|s| s.to_string_lossy().into_owned())
                .unwrap_or_default();
            vague.iter().any(|word| name.contains(word))
        })
        .collect();
    fail_if_any("a file name that says nothing", found);
}

/// A module is `x.rs`, its parts are in `x/`; the integration tests' own are another matter, because
/// cargo takes each file beside them for a program.
#[test]
fn a_module_has_its_name() {
    let found = sources(".rs")
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| path.ends_with("/mod.rs"))
        .filter(|path| path.starts_with("src/") || path.contains("/src/"))
        .collect();
    fail_if_any("a `mod.rs` where a file of the module's name is to be", found);
}

/// What ARCHITECTURE.md's layout says of one crate: its name, and the files it names as (path, whether it is
/// still to come). A line of four blanks lists names; `folder/{a b}` names several, and brackets hold prose.
fn layout() -> Vec<(String, Vec<(String, bool)>)> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let (_, from) = text.split_once("\ncrates/\n").expect("a layout that lists crates/");
    let mut crates: Vec<(String, Vec<(String, bool)>)> = Vec::new();
    for line in from.lines().take_while(|line| line.starts_with(' ')) {
        match (line.strip_prefix("    "), crates.last_mut()) {
            (Some(listed), Some((_, names))) => names.extend(names_of(listed)),
            _ => {
                let name = line.trim_start().split('/').next().unwrap_or_default();
                crates.push((name.to_owned(), Vec::new()));
            }
        }
    }
    crates
}

fn names_of(listed: &str) -> Vec<(String, bool)> {
    let mut names = Vec::new();
    let outside = listed.split('(').map(|part| part.rsplit(')').next().unwrap_or(part));
    let mut folder = String::new();
    for word in outside.flat_map(str::split_whitespace) {
        let ends = word.ends_with('}');
        let mut word = word.trim_end_matches(['}', '/']);
        if let Some((before, first)) = word.split_once("/{") {
            names.push((before.to_owned(), false));
            (folder, word) = (format!("{before}/"), first);
        }
        let name = word.trim_start_matches('†');
        names.push((format!("{folder}{name}"), name != word));
        if ends {
            folder.clear();
        }
    }
    names
}

#[test]
fn the_architecture_lists_what_there_is() {
    let layout = layout();
    let mut found = Vec::new();
    for (path, _) in sources(".rs") {
        let Some((package, file)) =
            path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        let stem = file.trim_end_matches(".rs");
        let names = layout.iter().find(|(name, _)| name == package).map(|(_, names)| names);
        let is_named = |(name, _): &(String, bool)| name.split('/').next() == Some(stem);
        let is_listed = names.is_some_and(|names| names.iter().any(is_named));
        if stem != "lib" && !stem.contains('/') && !is_listed {
            found.push(format!("{path}: not in the layout of {package}"));
        }
    }
    for (package, names) in &layout {
        for (name, is_to_come) in names {
            let exists = root().join(format!("crates/{package}/src/{name}.rs")).exists();
            match (exists, is_to_come) {
                (false, false) => found.push(format!("{package}: there is no {name}.rs")),
                (true, true) => found.push(format!("{package}: {name}.rs is no longer to come")),
                _ => {}
            }
        }
    }
    fail_if_any("the layout in ARCHITECTURE.md is not what there is", found);
}

#[test]
fn xdp_programs_are_short_and_take_fragments() {
    let found = sources(".bpf.c")
        .into_iter()
        .filter(|(_, text)| text.lines().count() > 250 || text.contains("SEC(\"xdp\")"))
        .map(|(path, text)| format!("{path}: {} lines", text.lines().count()))
        .collect();
    fail_if_any("an XDP program over 250 lines, or not `xdp.frags`", found);
}

/// The crates below a package, by name, without development and build dependencies.
fn tree(package: &str) -> Vec<String> {
    let out = Command::new("cargo")
        .args(["tree", "--offline", "--package", package])
        .args(["--edges", "normal", "--prefix", "none", "--format", "{lib}"])
        .current_dir(root())
        .output()
        .expect("cargo tree runs");
    assert!(out.status.success(), "cargo tree -p {package} failed");
    let mut names: Vec<String> = String::from_utf8_lossy(&out.stdout)
        .lines()
        .map(|line| line.trim_end_matches(" (*)").to_string())
        .filter(|line| !line.is_empty())
        .collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn dependencies_are_named_once_for_all_crates() {
    let mut found = Vec::new();
    for (path, text) in sources("Cargo.toml") {
        let mut section = "";
        let mut named = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if line.starts_with('[') {
                section = line.trim_matches(['[', ']']);
                if section.contains("dependencies.") {
                    found.push(format!("{path}: [{section}], which is a table of its own"));
                }
                continue;
            }
            let lists = section.ends_with("dependencies") && section != "workspace.dependencies";
            if !lists || line.starts_with('#') {
                continue;
            }
            let (name, version) = line.split_once([' ', '.', '=']).unwrap_or((line, ""));
            let version = version.trim_start_matches(['=', ' ', '{']);
            if !version.starts_with("workspace = true") {
                found.push(format!("{path}: {line}, which is not `{name}.workspace = true`"));
            }
            if section == "dependencies" {
                named.push(name);
            } else if section == "dev-dependencies" && named.contains(&name) {
                found.push(format!("{path}: {name}, which [dependencies] has already"));
            }
        }
    }
    fail_if_any("a dependency outside the workspace's table, or named twice", found);
}

#[test]
fn the_data_path_stays_small() {
    let names = tree("dataplane");
    assert!(
        names.len() <= DATAPLANE_CRATES_MAX,
        "the data path pulls in {} crates: {names:?}",
        names.len()
    );
}

#[test]
fn arrows_never_point_up() {
    let order = ["wire", "crypto", "xsk", "dataplane", "control", "lab"];
    for (level, package) in order.iter().enumerate() {
        for above in &order[level + 1..] {
            assert!(
                !tree(package).iter().any(|name| name == above),
                "{package} depends on {above}, which is above it"
            );
        }
    }
    for package in ["wire", "crypto", "xsk", "dataplane"] {
        assert!(
            !tree(package).iter().any(|name| name == "tokio"),
            "{package} depends on tokio; only control may"
        );
    }
}

#[test]
fn every_verdict_is_in_the_users_book() {
    let book = fs::read_to_string(root().join("docs/operating.md")).expect("the book");
    let missing = dataplane::verdict::Verdict::ALL
        .iter()
        .map(|verdict| {
            let linux = verdict.linux().unwrap_or("–");
            format!("| `{}` | {} | {linux} |", verdict.name(), verdict.description())
        })
        .filter(|row| !book.contains(row))
        .collect();
    fail_if_any("a verdict that docs/operating.md does not explain as the code does", missing);
}
