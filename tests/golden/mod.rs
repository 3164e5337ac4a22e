//! Golden transcripts of a Debian kernel's XFRM interface: what `record` recorded, and how it is
//! compared with what `run` prints elsewhere.
//!
//! ```text
//!   scripts/*.sh ─▶ run, in a guest with a kernel   ─▶ transcripts/*.txt ─▶ parse ─┐
//!        └───────▶ run, under the preload library   ─▶ standard output   ─▶ parse ─┴▶ compare
//! ```
//!
//! Fields that differ between two runs of the same kernel are replaced one by one, in `normalise`;
//! all else is compared as it was printed. Nothing is skipped here: a test that does not expect a
//! script to agree (`later-*` need algorithms and modes that are not there yet) does not run it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One script and its transcript.
#[derive(Clone, Debug)]
pub struct Script {
    /// Name without the ending.
    pub name: String,
    /// What `run` takes.
    pub path: PathBuf,
    /// What was recorded.
    pub transcript: PathBuf,
}

/// One command and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Line of the transcript where it starts, from 1.
    pub line: usize,
    /// The command, or the directive: `@monitor stop` prints what the monitor saw.
    pub command: String,
    /// Standard output, line by line.
    pub output: Vec<String>,
    /// Standard error, line by line.
    pub errors: Vec<String>,
    /// Exit code.
    pub exit: i32,
}

/// Two steps that do not agree.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The recorded one, if there is one.
    pub expected: Option<Step>,
    /// The other, if there is one.
    pub found: Option<Step>,
}

/// The directory of this module in a checkout.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// All scripts, by name.
pub fn scripts() -> Vec<Script> {
    let entries = std::fs::read_dir(directory().join("scripts")).expect("scripts are there");
    let mut scripts: Vec<Script> = entries
        .map(|entry| entry.expect("a readable directory").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "sh"))
        .map(|path| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let transcript = directory().join("transcripts").join(format!("{name}.txt"));
            Script { name, path, transcript }
        })
        .collect();
    scripts.sort_by(|a, b| a.name.cmp(&b.name));
    scripts
}

/// Compiles `rawxfrm` into a directory, dynamically, so that the preload library works in it. The
/// scripts find it by `PATH`.
pub fn build_rawxfrm(into: &Path) -> std::io::Result<()> {
    let status = Command::new("cc")
        .args(["-O1", "-o"])
        .args([into.join("rawxfrm"), directory().join("rawxfrm.c")])
        .status()?;
    if status.success() { Ok(()) } else { Err(std::io::Error::other("rawxfrm does not compile")) }
}

/// Reads a transcript.
pub fn parse(transcript: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (index, line) in transcript.lines().enumerate() {
        let start = |command: &str| Step {
            line: index + 1,
            command: command.to_string(),
            ..Step::default()
        };
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(start(command));
        } else if line.starts_with('@') {
            steps.push(start(line));
        } else if line.starts_with('#') {
            // Comments, and the header that names the kernel.
        } else if let Some(step) = steps.last_mut() {
            if let Some(error) = line.strip_prefix("! ") {
                step.errors.push(error.to_string());
            } else if let Some(code) = line.strip_prefix("? exit ") {
                step.exit = code.parse().unwrap_or(-1);
            } else {
                step.output.push(line.to_string());
            }
        }
    }
    steps
}

/// Replaces what legitimately differs from run to run, or from the kernel to a server behind a Unix
/// socket:
///
/// - the times at which an SA or a policy was added and used (`add … use …`);
/// - the size of the kernel's hash table, which follows the number of SAs some time later;
/// - the group in the sender's address of an event, which a Unix socket does not carry.
pub fn normalise(line: &str) -> String {
    let line = line.trim_start_matches(['\t', ' ']).strip_prefix("add ").map_or_else(
        || line.to_string(),
        |times| {
            let used = if times.ends_with("use -") { "-" } else { "TIME" };
            let indent = &line[..line.len() - times.len() - "add ".len()];
            format!("{indent}add TIME use {used}")
        },
    );
    let line = replace_digits(&line, "buckets count ", "COUNT");
    if line.starts_with("< ") { replace_word(&line, " groups=", "MASK") } else { line }
}

/// Replaces the digits that follow a mark.
fn replace_digits(line: &str, mark: &str, by: &str) -> String {
    replace(line, mark, by, |c| c.is_ascii_digit())
}

/// Replaces the word that follows a mark.
fn replace_word(line: &str, mark: &str, by: &str) -> String {
    replace(line, mark, by, |c| !c.is_whitespace())
}

fn replace(line: &str, mark: &str, by: &str, part: impl Fn(char) -> bool) -> String {
    let Some(at) = line.find(mark) else { return line.to_string() };
    let (before, after) = line.split_at(at + mark.len());
    format!("{before}{by}{}", after.trim_start_matches(part))
}

/// Every step in which two transcripts differ, normalised; steps are matched in order, and a
/// script that goes on longer than the other differs in each of those steps.
pub fn compare(expected: &[Step], found: &[Step]) -> Vec<Difference> {
    let count = expected.len().max(found.len());
    (0..count)
        .map(|at| Difference { expected: expected.get(at).cloned(), found: found.get(at).cloned() })
        .filter(|pair| match (&pair.expected, &pair.found) {
            (Some(expected), Some(found)) => !agree(expected, found),
            _ => true,
        })
        .collect()
}

fn agree(a: &Step, b: &Step) -> bool {
    let same = |a: &[String], b: &[String]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| normalise(a) == normalise(b))
    };
    a.command == b.command
        && a.exit == b.exit
        && same(&a.output, &b.output)
        && same(&a.errors, &b.errors)
}

/// The two steps, with the lines that only one of them has marked `-` (recorded) and `+` (found).
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let empty = Step::default();
        let expected = self.expected.as_ref().unwrap_or(&empty);
        let found = self.found.as_ref().unwrap_or(&empty);
        let named = self.expected.as_ref().unwrap_or(found);
        writeln!(f, "line {}: $ {}", named.line, named.command)?;
        if self.expected.is_some() && self.found.is_some() && expected.command != found.command {
            writeln!(f, "+ line {}: $ {}", found.line, found.command)?;
        }
        write_lines(f, "", &expected.output, &found.output)?;
        write_lines(f, "! ", &expected.errors, &found.errors)?;
        if expected.exit != found.exit {
            writeln!(f, "- exit {}\n+ exit {}", expected.exit, found.exit)?;
        }
        Ok(())
    }
}

/// Writes the lines between the common start and the common end.
fn write_lines(
    f: &mut fmt::Formatter<'_>,
    mark: &str,
    expected: &[String],
    found: &[String],
) -> fmt::Result {
    let same = |pair: &(&String, &String)| normalise(pair.0) == normalise(pair.1);
    let start = expected.iter().zip(found).take_while(same).count();
    let (expected, found) = (&expected[start..], &found[start..]);
    let end = expected.iter().rev().zip(found.iter().rev()).take_while(same).count();
    for line in &expected[..expected.len() - end] {
        writeln!(f, "- {mark}{line}")?;
    }
    for line in &found[..found.len() - end] {
        writeln!(f, "+ {mark}{line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: &str = "\
# kernel 6.1
@set ID src 192.0.2.1
$ ip xfrm state get $ID
src 192.0.2.1
\tproto esp
! RTNETLINK answers: No such process
? exit 2
# why
$ ip xfrm state count
\t SAD count 0
@monitor stop
Flushed state proto 50
";

    #[test]
    fn a_transcript_is_read_step_by_step() {
        let steps = parse(SHORT);
        let commands: Vec<&str> = steps.iter().map(|step| step.command.as_str()).collect();
        let expected = [
            "@set ID src 192.0.2.1",
            "ip xfrm state get $ID",
            "ip xfrm state count",
            "@monitor stop",
        ];
        assert_eq!(commands, expected);
        assert_eq!(steps[1].output, ["src 192.0.2.1", "\tproto esp"]);
        assert_eq!(steps[1].errors, ["RTNETLINK answers: No such process"]);
        assert_eq!((steps[1].exit, steps[1].line), (2, 3));
        assert_eq!((steps[2].exit, steps[2].output.len()), (0, 1));
        assert_eq!(steps[3].output, ["Flushed state proto 50"]);
    }

    #[test]
    fn only_the_named_fields_are_replaced() {
        for (line, expected) in [
            ("\t  add 2026-11-20 11:56:14 use -", "\t  add TIME use -"),
            ("\t  add 2026-11-20 11:56:14 use 2026-11-20 11:56:15", "\t  add TIME use TIME"),
            (
                "\t  expire add: soft 0(sec), hard 30(sec)",
                "\t  expire add: soft 0(sec), hard 30(sec)",
            ),
            (
                "\t SAD count 1 (buckets count 8 Max 9)",
                "\t SAD count 1 (buckets count COUNT Max 9)",
            ),
            (
                "< 20 bytes from family=16 pid=0 groups=0x4",
                "< 20 bytes from family=16 pid=0 groups=MASK",
            ),
            (
                "\tproto esp spi 0x00001000 reqid 0 mode tunnel",
                "\tproto esp spi 0x00001000 reqid 0 mode tunnel",
            ),
        ] {
            assert_eq!(normalise(line), expected);
        }
    }

    #[test]
    fn a_transcript_agrees_with_itself_at_another_time() {
        let recorded = "$ ip -s xfrm state list\n\t  add 2026-11-20 11:56:14 use -\n";
        let later = "$ ip -s xfrm state list\n\t  add 2027-01-01 00:00:00 use -\n";
        assert!(compare(&parse(recorded), &parse(later)).is_empty());
        let used = "$ ip -s xfrm state list\n\t  add 2027-01-01 00:00:00 use 2027-01-01 00:00:00\n";
        assert_eq!(compare(&parse(recorded), &parse(used)).len(), 1);
    }

    #[test]
    fn differences_show_only_the_lines_that_differ() {
        let found = SHORT.replace("\tproto esp", "\tproto ah").replace("exit 2", "exit 1");
        let differences = compare(&parse(SHORT), &parse(&found));
        assert_eq!(differences.len(), 1);
        let shown = differences[0].to_string();
        let expected =
            "line 3: $ ip xfrm state get $ID\n- \tproto esp\n+ \tproto ah\n- exit 2\n+ exit 1\n";
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_script_that_ends_early_differs() {
        let steps = parse(SHORT);
        let differences = compare(&steps, &steps[..2]);
        assert_eq!(differences.len(), 2);
        assert!(differences[1].to_string().starts_with("line 11: $ @monitor stop"));
    }

    #[test]
    fn every_script_has_a_transcript_of_its_own_commands() {
        let scripts = scripts();
        assert!(scripts.len() >= 28, "{scripts:?}");
        for script in scripts {
            let text = std::fs::read_to_string(&script.path).unwrap();
            let transcript = std::fs::read_to_string(&script.transcript).unwrap();
            let commands: Vec<String> =
                text.lines().filter(|line| !line.starts_with('#')).map(str::to_string).collect();
            let steps: Vec<String> =
                parse(&transcript).into_iter().map(|step| step.command).collect();
            assert_eq!(commands, steps, "{}: record it again", script.name);
        }
    }
}
