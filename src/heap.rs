//! The heap: blocks of whole cache lines from [`xsk::heap`], all others from the C library, and both in huge
//! pages.
//!
//! A packet of one of 50 000 tunnels reads a dozen lines that lie anywhere in 300 MB; with pages of 4 KiB
//! the processor must look up nearly each of their addresses as well. The C library asks for huge pages
//! where it is told to before it starts, and only then, which is why a process that was not told starts
//! itself again: same process id, same descriptors, some milliseconds.
//!
//! It tells nobody how much memory there is, and does nothing where huge pages are everybody's
//! (`always`) or nobody's (`never`), nor with a C library that knows no such setting.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use xsk::heap::Lines;

/// All of the program's memory.
#[global_allocator]
static HEAP: Lines = Lines::new();

/// What the GNU C library reads before anything of a program runs.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// The setting: 1 asks for transparent huge pages where the kernel gives them to who asks.
const SETTING: &str = "glibc.malloc.hugetlb";

/// Who gets huge pages, the choice in brackets.
const WHO: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Goes on in a process whose heap lies in huge pages, if that can be had; otherwise as it is. To be
/// called before there are threads or descriptors.
pub fn in_huge_pages() {
    let who = fs::read_to_string(WHO).unwrap_or_default();
    let set = env::var_os(TUNABLES);
    if are_asked_for(set.as_deref()) {
        HEAP.ask_for_huge_pages();
    }
    let Some(tunables) = tunables(set.as_deref(), &who) else { return };
    // Not `/proc/self/exe`, which would name the process `exe`. A binary that was replaced is not there
    // any more under its name, and another must not be started for it.
    let Ok(binary) = env::current_exe() else { return };
    if !fs::exists(&binary).unwrap_or(false) {
        return;
    }
    let mut arguments = env::args_os();
    let mut again = Command::new(binary);
    again.arg0(arguments.next().unwrap_or_default()).args(arguments).env(TUNABLES, tunables);
    // It returns only if that failed: small pages do as well, more slowly.
    let _ = again.exec();
}

/// Whether the C library asks for huge pages.
fn are_asked_for(set: Option<&OsStr>) -> bool {
    let wanted = format!("{SETTING}=1");
    let mut settings = set.unwrap_or_default().as_bytes().split(|byte| *byte == b':');
    settings.any(|setting| setting == wanted.as_bytes())
}

/// The tunables to start again with; `None` to go on as it is.
fn tunables(set: Option<&OsStr>, who: &str) -> Option<OsString> {
    let set = set.unwrap_or_default();
    // Whoever set it, to whatever, is obeyed; and who started again has it set.
    let is_set = set.as_bytes().windows(SETTING.len()).any(|part| part == SETTING.as_bytes());
    if is_set || !who.contains("[madvise]") {
        return None;
    }
    let mut wanted = set.to_owned();
    if !wanted.is_empty() {
        wanted.push(":");
    }
    wanted.push(SETTING);
    wanted.push("=1");
    Some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_asked_for_once_and_where_asking_helps() {
        let madvise = "always [madvise] never\n";
        let asked = |set: &str, who| tunables(Some(OsStr::new(set)), who);
        assert_eq!(tunables(None, madvise).unwrap(), "glibc.malloc.hugetlb=1");
        assert!(are_asked_for(Some(OsStr::new("glibc.malloc.hugetlb=1"))));
        for other in [None, Some(OsStr::new("glibc.malloc.hugetlb=0"))] {
            assert!(!are_asked_for(other));
        }
        let beside = asked("glibc.malloc.arena_max=1", madvise).unwrap();
        assert_eq!(beside, "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1");
        assert_eq!(tunables(Some(&beside), madvise), None, "once");
        assert_eq!(asked("glibc.malloc.hugetlb=0", madvise), None, "the operator's word");
        for who in ["[always] madvise never\n", "always madvise [never]\n", ""] {
            assert_eq!(tunables(None, who), None);
        }
    }
}
