//! How quickly counters went up in the last second, for whoever asks and however often.
//!
//! It does not know the time and does not read the counters.

use std::time::{Duration, Instant};

use dataplane::counters::CounterSnapshot;
use dataplane::verdict::Verdict;

/// How long a rate is an average of. Shorter, what comes in bursts is seldom seen; longer, what is over
/// is still shown.
const SECOND: Duration = Duration::from_secs(1);

/// What was counted until a moment.
struct Sample {
    at: Instant,
    /// Packets by verdict, over all workers.
    verdicts: Vec<u64>,
    /// Turns of each worker, and those that found packets.
    turns: Vec<(u64, u64)>,
}

/// The last two samples, a second apart.
pub struct Rates {
    last: Sample,
    before: Option<Sample>,
}

impl Rates {
    /// Of counters that are 0 now.
    pub fn new(now: Instant) -> Rates {
        let last = Sample { at: now, verdicts: vec![0; Verdict::ALL.len()], turns: Vec::new() };
        Rates { last, before: None }
    }

    /// Takes a sample of the workers' counters once a second.
    pub fn follow(&mut self, now: Instant, counters: impl Iterator<Item = CounterSnapshot>) {
        if now.duration_since(self.last.at) < SECOND {
            return;
        }
        let counters: Vec<_> = counters.collect();
        let turns = counters.iter().map(|one| (one.turns, one.busy_turns)).collect();
        let sample = Sample { at: now, verdicts: verdicts(counters.into_iter()), turns };
        self.before = Some(std::mem::replace(&mut self.last, sample));
    }

    /// Packets of a verdict per second, by its place among all; 0 in the first second.
    pub fn per_s(&self, verdict: usize) -> f64 {
        let Some(before) = &self.before else { return 0.0 };
        let seconds = self.last.at.duration_since(before.at).as_secs_f64();
        self.last.verdicts[verdict].saturating_sub(before.verdicts[verdict]) as f64 / seconds
    }

    /// The share of a worker's turns that found packets, from 0 to 1; 0 in the first second.
    pub fn busy_share(&self, worker: usize) -> f64 {
        let of = |sample: &Sample| sample.turns.get(worker).copied().unwrap_or_default();
        let Some(before) = self.before.as_ref().map(of) else { return 0.0 };
        let now = of(&self.last);
        let (turns, busy) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
        busy as f64 / turns.max(1) as f64
    }
}

/// Packets by verdict, over all workers.
pub fn verdicts(counters: impl Iterator<Item = CounterSnapshot>) -> Vec<u64> {
    let mut sums = vec![0; Verdict::ALL.len()];
    for one in counters {
        for (sum, verdict) in sums.iter_mut().zip(Verdict::ALL) {
            *sum += one.of(*verdict);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::counters::Counters;

    #[test]
    fn a_rate_is_that_of_the_last_second_however_often_somebody_asks() {
        let start = Instant::now();
        let mut rates = Rates::new(start);
        let at = Verdict::ALL.iter().position(|one| *one == Verdict::Sealed).unwrap();
        let counted = |packets, turns, busy_turns| {
            let mut one = Counters::new().snapshot();
            one.verdicts[Verdict::Sealed.index()] = packets;
            (one.turns, one.busy_turns) = (turns, busy_turns);
            [one.clone(), one].into_iter()
        };
        let after = |millis| start + Duration::from_millis(millis);
        rates.follow(after(500), counted(1000, 10, 10));
        assert_eq!((rates.per_s(at), rates.busy_share(1)), (0.0, 0.0), "the first second");
        rates.follow(after(2000), counted(3000, 100, 50));
        assert_eq!((rates.per_s(at), rates.busy_share(1)), (3000.0, 0.5));
        for millis in [2001, 2500, 2999] {
            rates.follow(after(millis), counted(9000, 900, 900));
            assert_eq!((rates.per_s(at), rates.busy_share(0)), (3000.0, 0.5), "not over yet");
        }
        rates.follow(after(3000), counted(3000, 200, 50));
        assert_eq!((rates.per_s(at), rates.busy_share(0)), (0.0, 0.0));
    }
}
