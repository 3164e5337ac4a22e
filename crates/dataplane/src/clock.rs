//! The data plane's time: nanoseconds since the process made its clock.
//!
//! One [`Clock`] is made at start and copied to every worker and to control, so that times stored
//! by one can be read by the other. A worker reads it once per turn. It does not follow steps of
//! the wall clock; [`Clock::unix_seconds`] translates a stored time for display.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A monotonic clock with a known start in wall-clock time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    origin_unix: Duration,
}

impl Clock {
    /// Starts a clock at one nanosecond; zero stays free to mean "never".
    pub fn start() -> Clock {
        Clock {
            origin: Instant::now(),
            origin_unix: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        }
    }

    /// Nanoseconds since the start, at least 1.
    pub fn now_ns(&self) -> u64 {
        // 2^64 ns are 584 years.
        (self.origin.elapsed().as_nanos() as u64).max(1)
    }

    /// Seconds since 1970 of a time read from this clock; `None` for 0, which means "never".
    pub fn unix_seconds(&self, ns: u64) -> Option<u64> {
        (ns != 0).then(|| (self.origin_unix + Duration::from_nanos(ns)).as_secs())
    }
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
}
