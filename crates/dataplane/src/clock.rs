//! The data plane's time: nanoseconds since the machine booted.
//!
//! One [`Clock`] is made at start and copied to every worker and to control, so that times stored
//! by one can be read by the other; as it counts from the boot, a time in the ledger means the same
//! to the next process. A worker reads it once per turn. It does not follow steps of the wall
//! clock; [`Clock::unix_seconds`] translates a stored time for display.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A monotonic clock whose zero is known in wall-clock time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_unix: Duration,
}

impl Clock {
    /// A clock.
    pub fn start() -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { origin_unix: unix.saturating_sub(Duration::from_nanos(monotonic_ns())) }
    }

    /// Nanoseconds since the boot, at least 1: zero stays free to mean "never".
    #[inline]
    pub fn now_ns(&self) -> u64 {
        monotonic_ns().max(1)
    }

    /// Seconds since 1970 of a time read from this clock; `None` for 0, which means "never".
    pub fn unix_seconds(&self, ns: u64) -> Option<u64> {
        (ns != 0).then(|| (self.origin_unix + Duration::from_nanos(ns)).as_secs())
    }
}

#[inline]
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Both parts are positive; 2^64 ns are 584 years.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translates_to_wall_clock() {
        let clock = Clock::start();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let ours = clock.unix_seconds(clock.now_ns()).unwrap();
        assert!(ours.abs_diff(wall) <= 1);
        assert_eq!(clock.unix_seconds(0), None);
        assert!(clock.now_ns() >= 1);
    }

    #[test]
    fn a_time_means_the_same_to_every_clock() {
        let (first, second) = (Clock::start(), Clock::start());
        let earlier = first.now_ns();
        assert!(second.now_ns() >= earlier);
        let (a, b) = (first.unix_seconds(earlier), second.unix_seconds(earlier));
        assert!(a.unwrap().abs_diff(b.unwrap()) <= 1);
    }
}
