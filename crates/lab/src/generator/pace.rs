//! How many frames are due: token arithmetic without drift.
//!
//! The number of frames due is always worked out from the whole time since the start, so neither
//! late wake-ups nor rounding add up: after a delay the pace catches up, at once or evenly. It does not read a clock.

use std::time::Duration;

use crate::traffic::expected_frames;

/// How many times its rate an even pace is at most, while it catches up.
const CATCH_UP: f64 = 2.0;

/// What it sends at once at most. Shorter than what a ring holds at any rate that a port takes, longer than a turn of the station.
const EVEN_FOR: Duration = Duration::from_millis(1);

/// The schedule of one stream over one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    pps: f64,
    /// What the whole step owes; `u64::MAX` when it sends as fast as it can.
    owed: u64,
    sent: u64,
    bounds: Option<Bounds>,
}

/// How much of what is due may be sent: a bucket of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bounds {
    frames: f64,
    /// When they were worked out.
    at: Duration,
}

impl Pace {
    /// `pps` frames per second for `duration`: [`expected_frames`] in all, the first one at once.
    pub fn new(pps: f64, duration: Duration) -> Pace {
        Pace { pps, owed: expected_frames(duration.as_secs_f64(), pps), sent: 0, bounds: None }
    }

    /// The same, but after a delay it catches up at no more than twice the rate: whoever takes twice as many in the long run is
    /// never offered more.
    pub fn even(pps: f64, duration: Duration) -> Pace {
        let bounds = Some(Bounds { frames: 0.0, at: Duration::ZERO });
        Pace { bounds, ..Pace::new(pps, duration) }
    }

    /// As many as can be sent.
    pub fn flat_out() -> Pace {
        Pace { pps: f64::INFINITY, owed: u64::MAX, sent: 0, bounds: None }
    }

    /// Frames that should have been sent `elapsed` after the start and have not been, at most `max`.
    pub fn due(&mut self, elapsed: Duration, max: usize) -> usize {
        if self.owed == u64::MAX {
            return max;
        }
        // Frame n is due at n/pps, hence the rounding up: frame 0 is due at 0. A float above u64
        // saturates in the conversion.
        let scheduled = (elapsed.as_secs_f64() * self.pps).ceil() as u64;
        let mut due = scheduled.min(self.owed).saturating_sub(self.sent);
        if let Some(bounds) = &mut self.bounds {
            let rate = CATCH_UP * self.pps;
            let frames = bounds.frames + rate * elapsed.saturating_sub(bounds.at).as_secs_f64();
            // Always room for the frame that is due, however low the rate.
            let most = (rate * EVEN_FOR.as_secs_f64()).max(CATCH_UP);
            *bounds = Bounds { frames: frames.min(most), at: elapsed };
            due = due.min(bounds.frames as u64);
        }
        usize::try_from(due).map_or(max, |due| due.min(max))
    }

    /// Books `frames` as sent.
    pub fn sent(&mut self, frames: u64) {
        self.sent += frames;
        if let Some(bounds) = &mut self.bounds {
            bounds.frames -= frames as f64;
        }
    }

    /// The frames asked for by a step that lasted `elapsed`; without a rate, what was sent.
    pub fn expected(&self, elapsed: Duration) -> u64 {
        if self.owed == u64::MAX {
            return self.sent;
        }
        // A step that was cut short may have sent up to one frame more than its time owed.
        expected_frames(elapsed.as_secs_f64(), self.pps).min(self.owed).max(self.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn flat_out_is_bounded_by_the_burst_only() {
        let mut pace = Pace::flat_out();
        assert_eq!(pace.due(Duration::ZERO, 256), 256);
        pace.sent(1000);
        assert_eq!(pace.due(Duration::from_secs(1), 256), 256);
        assert_eq!(pace.expected(Duration::from_secs(1)), 1000);
    }

    #[test]
    fn an_interrupted_step_owes_the_time_that_it_had() {
        let mut pace = Pace::new(1000.0, Duration::from_secs(10));
        pace.sent(400);
        assert_eq!(pace.expected(Duration::from_millis(500)), 500);
        assert_eq!(pace.expected(Duration::from_secs(60)), 10_000);
    }

    #[test]
    fn an_even_pace_catches_up_at_twice_its_rate() {
        const PPS: f64 = 100_000.0;
        let mut pace = Pace::even(PPS, Duration::from_secs(1));
        let mut sent_by = |at_us: u64| {
            let due = pace.due(Duration::from_micros(at_us), usize::MAX) as u64;
            pace.sent(due);
            due
        };
        // In time it sends what is due; after 100 ms away what it owes, over another 100 ms.
        assert_eq!((1..=100).map(|turn| sent_by(turn * 50)).sum::<u64>(), 500);
        let sent: Vec<u64> = (0..4000).map(|turn| sent_by(105_000 + turn * 50)).collect();
        assert!(sent.iter().all(|frames| *frames <= 200), "{sent:?}");
        assert!(sent[1..1001].iter().sum::<u64>().abs_diff(10_000) <= 1, "{sent:?}");
        assert!(sent[2100..].iter().all(|frames| *frames <= 6), "{sent:?}");
        assert_eq!(500 + sent.iter().sum::<u64>(), (0.304_95 * PPS).ceil() as u64);
        // However low the rate, there is room for two frames whenever it is asked.
        let mut slow = Pace::even(10.0, Duration::from_secs(10));
        for second in 1..10 {
            for _ in 0..10 {
                let due = slow.due(Duration::from_secs(second), usize::MAX);
                slow.sent(due as u64);
            }
        }
        assert!(slow.sent >= 18, "{slow:?}");
    }

    proptest! {
        /// However irregular the wake-ups, a step sends exactly what it owes, never early.
        #[test]
        fn a_step_sends_exactly_what_it_owes(
            pps in 1.0f64..5e6,
            duration_us in 1u64..3_000_000,
            mut wake_ups in prop::collection::vec(0u64..3_000_000, 0..50),
        ) {
            let duration = Duration::from_micros(duration_us);
            let mut pace = Pace::new(pps, duration);
            wake_ups.retain(|&at| at < duration_us);
            wake_ups.sort_unstable();
            wake_ups.push(duration_us);
            let mut total = 0u64;
            for at in wake_ups {
                let due = pace.due(Duration::from_micros(at), usize::MAX) as u64;
                pace.sent(due);
                total += due;
                let scheduled = at as f64 / 1e6 * pps;
                prop_assert!(total as f64 <= scheduled + 1.0);
            }
            prop_assert_eq!(total, expected_frames(duration.as_secs_f64(), pps));
            prop_assert_eq!(pace.expected(duration), total);
        }
    }
}
