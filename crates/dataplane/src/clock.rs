//! The data plane's time: nanoseconds since the machine booted.
//!
//! [`Clock`] is with every worker and with control, so that times stored by one can be read by the other; as it counts
//! from the boot, a time in the ledger means the same to the next process. A worker reads it once per turn. It does not follow
//! steps of the wall clock; [`Clock::unix_seconds`] translates a stored time by its age, as the wall clock is now: daemons reckon
//! from it how long ago that was, and limits of use are counted from it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A monotonic clock whose times are known in wall-clock time.
#[derive(Clone, Copy, Debug)]
pub struct Clock;

impl Clock {
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
        (ns != 0).then(|| ago(ns, self.now_ns(), wall()).as_secs().min(unix_now()))
    }
}

/// What the wall clock, as it is `wall` now, would have said at a time of the monotonic clock, which says `now_ns`.
fn ago(ns: u64, now_ns: u64, wall: Duration) -> Duration {
    wall.saturating_sub(Duration::from_nanos(now_ns.saturating_sub(ns)))
}

fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
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
        let clock = Clock;
        let ours = clock.unix_seconds(clock.now_ns()).unwrap();
        assert!(ours.abs_diff(wall().as_secs()) <= 1);
        assert_eq!(clock.unix_seconds(0), None);
        assert!(clock.now_ns() >= 1);
    }

    #[test]
    fn no_time_is_later_than_what_others_call_now() {
        let clock = Clock;
        for _ in 0..1000 {
            let ahead = clock.unix_seconds(clock.now_ns() + 3_600_000_000_000).unwrap();
            // What `time` says, which is asked after.
            let now = unix_now();
            assert!(ahead <= now && now - ahead <= 1, "{ahead} is after {now}");
        }
    }

    /// The wall clock is set after a machine has started, and after it has slept.
    #[test]
    fn a_time_keeps_its_age_when_the_wall_clock_is_set() {
        let (used, now) = (7_000_000_000, 9_500_000_000);
        for wall in [1_000_000, 1_003_600].map(Duration::from_secs) {
            assert_eq!(wall - ago(used, now, wall), Duration::from_millis(2500));
        }
        let wall = Duration::from_secs(10);
        assert_eq!(ago(now + 1, now, wall), wall, "none is later than now");
    }
}
