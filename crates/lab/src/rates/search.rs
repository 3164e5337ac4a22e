//! The search for the highest rate that a gateway carries without loss.
//!
//! ```text
//!   climb   each trial offers half as much again as the one before, until one loses
//!   close   between the most that was carried and the least that was not, until they are near
//! ```
//!
//! A machine that stands still for a moment loses packets at any rate, so a trial that loses is made again before
//! its rate counts as lossy. Arithmetic only; [`super::rig`] sends.

/// Each trial of the climb offers this much more than the one before.
const FACTOR: f64 = 1.5;
/// The first trial offers this share of the ceiling.
const START: f64 = 0.04;
/// Below this share nothing is searched for.
const FLOOR: f64 = START / 64.0;
/// The search is over when the least that was not carried is no more than this much above what was: the half of it
/// is then a tenth off on either side at most.
const NEAR: f64 = 1.25;
/// Trials of a rate that lose before it counts as lossy: with three the same gateway was found to carry anything from a
/// sixth to all of its rate in the minutes in which others used the machine.
const TRIES: u32 = 5;
/// A generator that cannot send this share of what it is asked for has come to its own end.
const SENT: f64 = 0.95;

/// What is known so far; rates are L2 bits per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Search {
    next_bps: f64,
    tries: u32,
    carried_bps: Option<f64>,
    lossy_bps: Option<f64>,
    ceiling_bps: f64,
    is_over: bool,
}

impl Search {
    /// A search below `ceiling_bps`.
    pub fn new(ceiling_bps: f64) -> Search {
        Search {
            next_bps: ceiling_bps * START,
            tries: 0,
            carried_bps: None,
            lossy_bps: None,
            ceiling_bps,
            is_over: false,
        }
    }

    /// The rate of the next trial; `None` when the search is over.
    pub fn next(&self) -> Option<f64> {
        (!self.is_over).then_some(self.next_bps)
    }

    /// Books a trial: what came through a second, and how many packets did not.
    pub fn book(&mut self, forwarded_bps: f64, lost: u64) {
        if lost != 0 {
            self.tries += 1;
            if self.tries < TRIES {
                return;
            }
            self.lossy_bps = Some(self.next_bps);
        } else if forwarded_bps < self.next_bps * SENT {
            self.carried_bps = Some(self.carried_bps.unwrap_or(0.0).max(forwarded_bps));
            self.is_over = true;
        } else {
            self.carried_bps = Some(self.next_bps);
        }
        self.tries = 0;
        self.next_bps = match (self.carried_bps, self.lossy_bps) {
            (Some(carried), Some(lossy)) => {
                self.is_over |= lossy <= carried * NEAR;
                (carried * lossy).sqrt()
            }
            (None, Some(lossy)) => {
                self.is_over |= lossy <= self.ceiling_bps * FLOOR;
                lossy / (FACTOR * FACTOR)
            }
            (carried, None) => {
                self.is_over |= carried.is_some_and(|carried| carried >= self.ceiling_bps);
                (self.next_bps * FACTOR).min(self.ceiling_bps)
            }
        };
    }

    /// The highest rate that was carried without loss, if any was.
    pub fn carried_bps(&self) -> Option<f64> {
        self.carried_bps.filter(|bps| *bps > 0.0)
    }

    /// Half of that; where packets were lost at every rate, of the lowest.
    pub fn half_bps(&self) -> f64 {
        self.carried_bps().or(self.lossy_bps).unwrap_or(self.next_bps) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches with a gateway that tells what comes through of a rate, and how much is lost; also how many trials it took.
    fn search(mut gateway: impl FnMut(f64) -> (f64, u64)) -> (Search, u32) {
        let (mut search, mut trials) = (Search::new(1.0), 0);
        while let Some(bps) = search.next() {
            let (forwarded, lost) = gateway(bps);
            search.book(forwarded, lost);
            trials += 1;
        }
        (search, trials)
    }

    #[test]
    fn what_an_overload_forwards_is_not_what_is_carried() {
        for limit in [0.003, 0.05, 0.1, 0.3, 0.9] {
            // Overloaded, it forwards twice as much as it carries without loss.
            let gateway =
                |bps: f64| if bps <= limit { (bps, 0) } else { (bps.min(2.0 * limit), 9) };
            let (search, trials) = search(gateway);
            let carried = search.carried_bps().unwrap();
            assert!(carried <= limit && carried * NEAR >= limit, "{limit}: {carried}");
            assert_eq!(search.half_bps(), carried / 2.0);
            assert!(trials <= 40, "{trials}");
        }
    }

    #[test]
    fn a_machine_that_stands_still_for_a_moment_ends_no_search() {
        let mut trials = 0;
        // Each third trial loses something, the first one too.
        let (search, _) = search(|bps| {
            trials += 1;
            if bps > 0.5 { (0.5, 100) } else { (bps, u64::from(trials % 3 == 1)) }
        });
        assert!(search.carried_bps().unwrap() > 0.4, "{search:?}");
    }

    #[test]
    fn loss_at_every_rate_and_a_generator_at_its_end_are_ends() {
        let (lossy, trials) = search(|bps| (bps, 1));
        assert_eq!(lossy.carried_bps(), None);
        assert!(lossy.half_bps() > 0.0 && lossy.half_bps() <= FLOOR && trials < 50, "{lossy:?}");
        let (dead, _) = search(|_| (0.0, 5));
        assert_eq!(dead.carried_bps(), None);
        let (limited, _) = search(|bps| (bps.min(0.2), 0));
        let carried = limited.carried_bps().unwrap();
        assert!((0.2..0.2 / SENT).contains(&carried), "{carried}");
        let (endless, _) = search(|bps| (bps, 0));
        assert_eq!(endless.carried_bps(), Some(1.0));
    }
}
