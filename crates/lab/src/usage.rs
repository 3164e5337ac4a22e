//! What a process takes: memory and processor time, as /proc tells.

use std::fs;
use std::ops::{Add, Sub};

/// Ticks per second of the times in /proc/PID/stat: USER_HZ, 100 on every architecture that Rust's
/// Linux targets have.
const TICKS_PER_S: f64 = 100.0;
const KILOBYTE: u64 = 1024;

/// Memory and processor time of one process or several.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Resident memory, bytes; zero for a process that is gone.
    pub rss_bytes: u64,
    /// Processor time since the start, user and system, seconds.
    pub cpu_s: f64,
}

impl Usage {
    /// What the process `pid` takes now.
    pub fn of(pid: u32) -> Usage {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        Usage {
            rss_bytes: status_bytes(pid, "VmRSS").unwrap_or(0),
            cpu_s: stat.ok().as_deref().and_then(cpu_s).unwrap_or(0.0),
        }
    }
}

impl Add for Usage {
    type Output = Usage;

    fn add(self, other: Usage) -> Usage {
        Usage { rss_bytes: self.rss_bytes + other.rss_bytes, cpu_s: self.cpu_s + other.cpu_s }
    }
}

/// What was added since `earlier`; memory that was given back is none.
impl Sub for Usage {
    type Output = Usage;

    fn sub(self, earlier: Usage) -> Usage {
        Usage {
            rss_bytes: self.rss_bytes.saturating_sub(earlier.rss_bytes),
            cpu_s: (self.cpu_s - earlier.cpu_s).max(0.0),
        }
    }
}

/// What the line `field` of /proc/PID/status says in bytes (proc_pid_status(5)): `VmRSS` is the resident memory,
/// `VmHWM` the most that it ever was. None for a process that is gone.
pub fn status_bytes(pid: u32, field: &str) -> Option<u64> {
    bytes_of(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, field)
}

fn bytes_of(status: &str, field: &str) -> Option<u64> {
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| *name == field)?;
    Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * KILOBYTE)
}

/// Fields 14 and 15; the name in field 2 may hold spaces and brackets.
fn cpu_s(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_takes_something() {
        let usage = Usage::of(std::process::id());
        assert!(usage.rss_bytes > 100_000);
        assert_eq!(Usage::of(u32::MAX), Usage::default());
    }

    #[test]
    fn names_with_brackets_do_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 1 0 5 6 7";
        assert_eq!(cpu_s(stat), Some(3.0));
        assert_eq!(cpu_s("7 (a"), None);
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let status = "VmPeak:\t 9 kB\nVmRSS:\t    12 kB\nThreads:\t3\n";
        assert_eq!(bytes_of(status, "VmRSS"), Some(12_288));
        assert_eq!(bytes_of(status, "Vm"), None);
        assert_eq!(bytes_of(status, "Threads"), None);
    }
}
