//! What test processes leave that are ended before they can tidy up. Each thing has the process id in its name, so that the
//! next test process finds it; what belongs to a process that still runs is not touched.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Network namespaces, by name.
const NAMESPACES: &str = "/run/netns";
/// Where else tests, and the labs that they run, leave something, and what stands before the process id there.
const FOLDERS: [(&str, &str); 4] = [
    ("/run/peregrine", "t"),
    ("/run/peregrine", "lab-"),
    ("/dev/shm/peregrine", "t"),
    ("/dev/shm/peregrine", "lab-"),
];
/// The same of their files, in the directory for temporary ones.
const SCRATCH: [&str; 2] = ["peregrine-t", "peregrine-lab-"];
/// How long who is still in a namespace may take to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// A folder for a test's files, with a name that says whose it is.
pub fn scratch() -> tempfile::TempDir {
    let prefix = format!("{}{}-", SCRATCH[0], std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir().expect("a temporary directory")
}

/// The first time in a process, removes what others left.
pub fn sweep_once() {
    static SWEPT: Once = Once::new();
    SWEPT.call_once(sweep);
}

/// Removes what processes left that are no more. Two that sweep at once may both try, and one of them then fails at it.
pub fn sweep() {
    for (path, _) in namespaces().filter(|(_, owner)| is_gone(*owner)) {
        let Some(name) = path.file_name() else { continue };
        empty(name);
        let _ = Command::new("ip").args(["netns", "del"]).arg(name).output();
    }
    for (path, _) in folders().filter(|(_, owner)| is_gone(*owner)) {
        let _ = std::fs::remove_dir_all(path);
    }
}

/// Everything with this process id in its name.
pub fn of(process: u32) -> Vec<PathBuf> {
    let named = namespaces().chain(folders()).filter(|(_, owner)| *owner == process);
    named.map(|(path, _)| path).collect()
}

/// A path, and the process whose it is.
type Owned = (PathBuf, u32);

fn namespaces() -> impl Iterator<Item = Owned> {
    named(Path::new(NAMESPACES), "pg")
}

fn folders() -> impl Iterator<Item = Owned> {
    let folders = FOLDERS.into_iter().flat_map(|(above, prefix)| named(Path::new(above), prefix));
    folders.chain(SCRATCH.into_iter().flat_map(|prefix| named(&std::env::temp_dir(), prefix)))
}

/// What in a folder has a name of this prefix, a process id and `-…`.
fn named(above: &Path, prefix: &'static str) -> impl Iterator<Item = Owned> + use<> {
    let entries = std::fs::read_dir(above).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let name = entry.file_name().into_string().ok()?;
        let owner = name.strip_prefix(prefix)?.split_once('-')?.0.parse().ok()?;
        Some((entry.path(), owner))
    })
}

fn is_gone(process: u32) -> bool {
    !Path::new("/proc").join(process.to_string()).exists()
}

/// Ends who is still in a namespace: gently, so that a gateway takes its sockets along.
fn empty(namespace: &OsStr) {
    let begun = Instant::now();
    let mut told = false;
    loop {
        let inside = inside(namespace);
        let late = begun.elapsed() > PATIENCE;
        if !told || late {
            let signal = if late { Signal::KILL } else { Signal::TERM };
            for pid in &inside {
                let _ = kill_process(*pid, signal);
            }
            told = true;
        }
        if inside.is_empty() || late {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn inside(namespace: &OsStr) -> Vec<Pid> {
    let listed = Command::new("ip").args(["netns", "pids"]).arg(namespace).output();
    let listed = listed.map(|output| output.stdout).unwrap_or_default();
    let pids = String::from_utf8_lossy(&listed);
    pids.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect()
}
