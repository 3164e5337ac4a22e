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
    ///
    /// No later than what `time(2)` says now, which lags behind by a timer tick and more: who subtracts the one from the
    /// other, as strongSwan does, gets no age below zero. The kernel's own times are of that clock.
    pub fn unix_seconds(&self, ns: u64) -> Option<u64> {
        (ns != 0).then(|| (self.origin_unix + Duration::from_nanos(ns)).as_secs().min(unix_now()))
    }
}

/// Seconds since 1970 as `time(2)` says them, and with it the kernel and the IKE daemons: up to a timer tick behind the
/// precise clock. All times of whole seconds that others see are of this clock, so that each can be subtracted from a later one.
pub fn unix_now() -> u64 {
    u64::try_from(clock_gettime(ClockId::RealtimeCoarse).tv_sec).unwrap_or(0)
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
    fn no_time_is_later_than_what_others_call_now() {
        let clock = Clock::start();
        for _ in 0..1000 {
            let ahead = clock.unix_seconds(clock.now_ns() + 3_600_000_000_000).unwrap();
            // What `time` says, which is asked after.
            let now = unix_now();
            assert!(ahead <= now && now - ahead <= 1, "{ahead} is after {now}");
        }
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
