//! Whether to look for the next request for a moment before sleeping.
//!
//! An IKE daemon asks one thing at a time: the next request comes some ten microseconds after the answer
//! to the one before. A thread that slept meanwhile, on a core that did, takes twice as long to wake up as
//! the request takes. So after an answer the control thread keeps looking for [`LOOK_FOR`], if requests
//! came that quickly lately. It takes that time from whoever shares its core: a look in vain ends it for
//! a while, each time for longer, so that a client that runs on the same core, and cannot ask before
//! this ends, costs next to nothing. Looks that pay off make up for it.
//!
//! It does not look and does not know the time.

use std::time::Duration;

/// How long to look after an answer. Ten times what a client that is awake needs; a request that takes
/// longer loses this much at most.
const LOOK_FOR: Duration = Duration::from_micros(40);

/// A request this soon after an answer would probably have come within [`LOOK_FOR`], had nobody slept:
/// waking up on another core takes 20 to 60 µs.
const SOON: Duration = Duration::from_micros(120);

/// Requests that must come soon, one after the other, before it looks; after looks in vain many more.
const SOON_MIN: u32 = 2;
const SOON_MAX: u32 = 4096;

/// Looks that paid off for each in vain: it takes [`LOOK_FOR`], a wake-up less than half of that, and one
/// request in a hundred is late for no reason of anybody's.
const PAID: u32 = 8;

/// What was learned from the answers so far.
#[derive(Debug)]
pub struct Patience {
    /// Requests that came soon, in a row.
    soon: u32,
    /// How many it takes.
    needed: u32,
    /// Looks that paid off, up to [`PAID`].
    paid: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { soon: 0, needed: SOON_MIN, paid: 0 }
    }
}

impl Patience {
    /// How long to look now, after an answer.
    pub fn look_for(&self) -> Duration {
        if self.soon >= self.needed { LOOK_FOR } else { Duration::ZERO }
    }

    /// After an answer, a request came so much later; or something else did, or nothing.
    pub fn learn(&mut self, came: Option<Duration>) {
        let looked = self.soon >= self.needed;
        let soon = if looked { LOOK_FOR } else { SOON };
        let came_soon = came.is_some_and(|after| after <= soon);
        match (looked, came_soon) {
            (false, true) => self.soon += 1,
            (true, true) => {
                self.paid += 1;
                if self.paid == PAID {
                    self.paid = 0;
                    self.needed = (self.needed / 2).max(SOON_MIN);
                }
            }
            (true, false) => {
                self.needed = (self.needed * 2).min(SOON_MAX);
                self.soon = 0;
            }
            (false, false) => self.soon = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Option<Duration> = Some(Duration::from_micros(20));

    /// Requests that come soon until it looks.
    fn until_it_looks(patience: &mut Patience) -> u32 {
        let mut count = 0;
        while patience.look_for().is_zero() {
            patience.learn(QUICK);
            count += 1;
        }
        count
    }

    #[test]
    fn it_looks_while_requests_come_soon() {
        let mut patience = Patience::default();
        assert_eq!(until_it_looks(&mut patience), SOON_MIN);
        for _ in 0..1000 {
            patience.learn(QUICK);
            assert_eq!(patience.look_for(), LOOK_FOR);
        }
        // A pause costs one look in vain.
        patience.learn(None);
        assert!(patience.look_for().is_zero());
        for after in [Some(SOON * 2), None, QUICK] {
            patience.learn(after);
            assert!(patience.look_for().is_zero());
        }
    }

    #[test]
    fn a_request_in_fifty_that_is_late_does_not_end_it() {
        let mut patience = Patience::default();
        let mut looks = 0;
        for request in 1..=10_000 {
            looks += u32::from(!patience.look_for().is_zero());
            patience.learn(if request % 50 == 0 { Some(SOON * 2) } else { QUICK });
        }
        assert!(looks > 5000, "{looks} looks");
    }

    #[test]
    fn who_cannot_ask_while_it_looks_is_looked_for_ever_less_often() {
        let mut patience = Patience::default();
        let (mut looks, mut requests) = (0, 0);
        while requests < 100_000 {
            requests += until_it_looks(&mut patience) + 1;
            // On the same core: the request is there as soon as the look ends, and never before.
            patience.learn(Some(LOOK_FOR + Duration::from_micros(5)));
            looks += 1;
        }
        assert!(looks < 40, "{looks} looks for {requests} requests");
        // Elsewhere again, it is looked for again after a while, and soon as readily as before.
        assert!(until_it_looks(&mut patience) <= SOON_MAX);
        (0..1000).for_each(|_| patience.learn(QUICK));
        patience.learn(None);
        assert!(until_it_looks(&mut patience) <= 2 * SOON_MIN);
    }
}
