//! Cores: which exist, and which this process may use.
//!
//! This module does not choose cores, the operator does, in the configuration; and it pins no worker to one,
//! which each does itself (`dataplane/src/worker.rs`).

use std::collections::BTreeSet;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity};

/// The highest core number believed in a list: far above the kernel's largest NR_CPUS (8192), so
/// that a damaged list cannot ask for memory.
const LISTED_CORE_MAX: usize = 65_535;

/// The cores that are online.
///
/// # Errors
///
/// That of reading the list, `InvalidData` if it is no list.
pub fn online() -> io::Result<BTreeSet<usize>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    parse_list(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// How many numbers cores may have, as the kernel's `num_possible_cpus()`: what an SA may be bound to
/// (RFC 9611) is below it. At least what is online, and 1 where the kernel does not say.
pub fn possible() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let cores = parse_list(&text).unwrap_or_default();
    u32::try_from(cores.len()).unwrap_or(u32::MAX).max(1)
}

/// The cores that the calling thread may run on.
///
/// # Errors
///
/// That of the system call.
pub fn allowed() -> io::Result<BTreeSet<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// The kernel's list format (`0-3,8`), as in Documentation/admin-guide/cputopology.rst.
fn parse_list(text: &str) -> Option<BTreeSet<usize>> {
    let mut cores = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last > LISTED_CORE_MAX {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lists_are_read() {
        let cores = |text| parse_list(text).map(|c| c.into_iter().collect::<Vec<_>>());
        assert_eq!(cores("0\n"), Some(vec![0]));
        assert_eq!(cores("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(cores(""), Some(vec![]));
        assert_eq!(cores("0-99999999999"), None);
        assert_eq!(cores("a"), None);
        assert_eq!(cores("1-"), None);
    }
}
