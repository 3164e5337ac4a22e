//! When packets are looked at whether they follow, or may come to a lane.

use super::lane::WORTH;

/// Batches that go by after one of which next to nothing came through.
const PAUSE: u32 = 15;

/// A pause in something that was of no use.
#[derive(Default)]
pub(super) struct Pause(u32);

impl Pause {
    /// Whether there is none, where it would be done for another batch.
    #[inline]
    pub(super) fn is_over(&mut self) -> bool {
        let Some(rest) = self.0.checked_sub(1) else { return true };
        self.0 = rest;
        false
    }

    /// After a batch in which it was of no use.
    pub(super) fn begin(&mut self) {
        self.0 = PAUSE;
    }
}

/// A pause that is the longer the more often it has begun of late.
#[derive(Default)]
pub(super) struct Growing {
    pause: Pause,
    /// Twice how often, less what has gone well since.
    begun: u32,
}

/// It is no longer than eight others: traffic may have changed.
const BEGUN_MAX: u32 = 2 * 3;

impl Growing {
    /// Whether there is none, where it will be done for another batch.
    #[inline]
    pub(super) fn is_over(&mut self) -> bool {
        let is_over = self.pause.is_over();
        self.begun = self.begun.saturating_sub(is_over.into());
        is_over
    }

    /// After a batch in which it was of no use.
    pub(super) fn begin(&mut self) {
        self.pause = Pause(PAUSE << (self.begun / 2));
        self.begun = (self.begun + 2).min(BEGUN_MAX);
    }
}

/// Something that packets of a batch come to, with pauses where it takes next to none of them.
#[derive(Default)]
pub(super) struct Trial {
    pause: Growing,
    /// Packets of this batch that came, maybe once more, and those of them that it took.
    came: usize,
    taken: usize,
}

impl Trial {
    /// Whether there is no pause.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.pause.pause.0 == 0
    }

    /// Takes note of packets that came, which may be left for another try.
    #[inline]
    pub(super) fn note(&mut self, came: usize, taken: usize) {
        self.came += came;
        self.taken += taken;
    }

    /// After a batch: if it took no more than that part of what came, it is not worth it, and a pause begins; whether one does.
    #[inline]
    pub(super) fn end_batch(&mut self, part: usize) -> bool {
        let is_in_vain = self.came >= WORTH && self.taken * part <= self.came;
        let begins = self.pause.is_over() && is_in_vain;
        if begins {
            self.pause.begin();
        }
        (self.came, self.taken) = (0, 0);
        begins
    }
}

/// When packets may come to a lane.
pub(super) struct Hours {
    /// The version of the view that says so.
    version: u64,
    pub(super) trial: Trial,
}

impl Hours {
    pub(super) fn of(version: u64) -> Hours {
        Hours { version, trial: Trial::default() }
    }

    /// Whether they are those of a version of the view.
    pub(super) fn are_of(&self, version: u64) -> bool {
        self.version == version
    }

    /// Whether the packets of a batch may come to a lane, now or later.
    #[inline]
    pub(super) fn are_open(&self, version: u64) -> bool {
        self.are_of(version) && self.trial.is_on()
    }
}
