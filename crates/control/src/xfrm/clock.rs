//! Arithmetic of time limits: what an SA's or a policy's lifetime says at a moment.
//!
//! Seconds since the epoch go in and come out; the clock itself is the caller's.

use wire::xfrm::lifetime::{LifetimeConfig, LifetimeCurrent};

/// A policy that reached its soft limit is announced again after so many seconds, until it is
/// replaced (the kernel's `XFRM_KM_TIMEOUT`).
const REMIND_S: u64 = 30;

/// What the time limits say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A hard limit passed.
    Expired,
    /// Nothing hard passed.
    Alive {
        /// A soft limit passed.
        warn: bool,
        /// When to look again.
        next: Option<u64>,
        /// Seconds left to the soft limit that counts from installation.
        soft_left_s: Option<u64>,
    },
}

/// Seconds from `now` until `start + limit`; `None` once it has passed. A limit of 0 is none.
fn left(limit: u64, start: u64, now: u64) -> Option<u64> {
    start.saturating_add(limit).checked_sub(now).filter(|&left| left > 0)
}

struct Earliest(Option<u64>);

impl Earliest {
    fn add(&mut self, seconds: u64) {
        self.0 = Some(self.0.map_or(seconds, |old| old.min(seconds)));
    }
}

/// An SA. `dying`: its soft limit was announced already.
pub(super) fn sa_phase(
    limits: &LifetimeConfig,
    usage: &LifetimeCurrent,
    dying: bool,
    now: u64,
) -> Phase {
    // An SA that was never used has all of its use time left.
    let first_use = if usage.use_time == 0 { now } else { usage.use_time };
    let mut next = Earliest(None);
    for (limit, start) in [
        (limits.hard_add_expires_seconds, usage.add_time),
        (limits.hard_use_expires_seconds, first_use),
    ] {
        match left(limit, start, now) {
            _ if limit == 0 => {}
            None => return Phase::Expired,
            Some(left) => next.add(left),
        }
    }
    let (mut warn, mut soft_left_s) = (false, None);
    if !dying {
        if limits.soft_add_expires_seconds != 0 {
            soft_left_s = left(limits.soft_add_expires_seconds, usage.add_time, now);
            soft_left_s.map_or_else(|| warn = true, |left| next.add(left));
        }
        if limits.soft_use_expires_seconds != 0 {
            let soft = left(limits.soft_use_expires_seconds, first_use, now);
            soft.map_or_else(|| warn = true, |left| next.add(left));
        }
    }
    Phase::Alive { warn, next: next.0.map(|left| now.saturating_add(left)), soft_left_s }
}

/// A policy. Unlike an SA's, its use time counts from installation while it is not used.
pub(super) fn policy_phase(limits: &LifetimeConfig, usage: &LifetimeCurrent, now: u64) -> Phase {
    let first_use = if usage.use_time == 0 { usage.add_time } else { usage.use_time };
    let mut next = Earliest(None);
    let mut warn = false;
    for (limit, start, hard) in [
        (limits.hard_add_expires_seconds, usage.add_time, true),
        (limits.hard_use_expires_seconds, first_use, true),
        (limits.soft_add_expires_seconds, usage.add_time, false),
        (limits.soft_use_expires_seconds, first_use, false),
    ] {
        match left(limit, start, now) {
            _ if limit == 0 => {}
            Some(left) => next.add(left),
            None if hard => return Phase::Expired,
            None => {
                warn = true;
                next.add(REMIND_S);
            }
        }
    }
    let next = next.0.map(|left| now.saturating_add(left));
    Phase::Alive { warn, next, soft_left_s: None }
}

/// Whether any limit is one of time.
pub(super) const fn has_time_limit(limits: &LifetimeConfig) -> bool {
    limits.soft_add_expires_seconds
        | limits.hard_add_expires_seconds
        | limits.soft_use_expires_seconds
        | limits.hard_use_expires_seconds
        != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(soft_add: u64, hard_add: u64, soft_use: u64, hard_use: u64) -> LifetimeConfig {
        LifetimeConfig {
            soft_add_expires_seconds: soft_add,
            hard_add_expires_seconds: hard_add,
            soft_use_expires_seconds: soft_use,
            hard_use_expires_seconds: hard_use,
            ..LifetimeConfig::UNLIMITED
        }
    }

    fn usage(add_time: u64, use_time: u64) -> LifetimeCurrent {
        LifetimeCurrent { add_time, use_time, ..LifetimeCurrent::default() }
    }

    fn alive(warn: bool, next: Option<u64>, soft_left_s: Option<u64>) -> Phase {
        Phase::Alive { warn, next, soft_left_s }
    }

    #[test]
    fn an_sa_warns_and_then_expires() {
        let config = limits(10, 20, 0, 0);
        let at = |dying, now| sa_phase(&config, &usage(100, 0), dying, now);
        assert_eq!(at(false, 101), alive(false, Some(110), Some(9)));
        assert_eq!(at(false, 110), alive(true, Some(120), None));
        assert_eq!(at(true, 119), alive(false, Some(120), None));
        assert_eq!(at(true, 120), Phase::Expired);
    }

    #[test]
    fn use_time_counts_from_first_use() {
        let config = limits(0, 0, 5, 10);
        assert_eq!(sa_phase(&config, &usage(0, 0), false, 50), alive(false, Some(55), None));
        assert_eq!(sa_phase(&config, &usage(0, 45), false, 50), alive(true, Some(55), None));
        assert_eq!(sa_phase(&config, &usage(0, 40), true, 50), Phase::Expired);
        assert_eq!(policy_phase(&config, &usage(48, 0), 50), alive(false, Some(53), None));
    }

    #[test]
    fn a_policy_is_reminded_of() {
        let config = limits(10, 100, 0, 0);
        assert_eq!(policy_phase(&config, &usage(0, 0), 10), alive(true, Some(40), None));
        assert_eq!(policy_phase(&config, &usage(0, 0), 80), alive(true, Some(100), None));
        assert_eq!(policy_phase(&config, &usage(0, 0), 100), Phase::Expired);
    }

    #[test]
    fn no_limit_means_no_deadline_and_large_ones_do_not_wrap() {
        let phase = sa_phase(&LifetimeConfig::UNLIMITED, &usage(1, 1), false, u64::MAX);
        assert_eq!(phase, alive(false, None, None));
        let forever = limits(u64::MAX, u64::MAX, u64::MAX, u64::MAX);
        let phase = sa_phase(&forever, &usage(5, 5), false, 6);
        assert!(matches!(phase, Phase::Alive { warn: false, .. }));
        assert!(!has_time_limit(&LifetimeConfig::UNLIMITED) && has_time_limit(&forever));
    }
}
