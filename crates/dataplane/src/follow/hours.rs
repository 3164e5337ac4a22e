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

    /// Whether there is one, for whoever only looks.
    #[inline]
    fn is_on(&self) -> bool {
        self.0 != 0
    }

    /// After a batch in which it was of no use.
    pub(super) fn begin(&mut self) {
        self.0 = PAUSE;
    }
}

/// When packets may come, or follow.
pub(super) struct Hours {
    /// The version of the view that says so.
    pub(super) version: u64,
    pause: Pause,
    /// Packets of this batch that came to a lane, and those of them that it took.
    came: usize,
    taken: usize,
}

impl Hours {
    pub(super) fn of(version: u64) -> Hours {
        Hours { version, pause: Pause::default(), came: 0, taken: 0 }
    }

    /// Whether they are those of a version of the view.
    pub(super) fn are_of(&self, version: u64) -> bool {
        self.version == version
    }

    /// Whether batches of that version go by.
    pub(super) fn are_paused(&self, version: u64) -> bool {
        self.are_of(version) && self.pause.is_on()
    }

    /// Whether the packets of a batch may come, now that it is there.
    #[inline]
    pub(super) fn open(&mut self, version: u64) -> bool {
        self.are_of(version) && self.pause.is_over()
    }

    /// After a batch of which next to nothing came through.
    pub(super) fn pause(&mut self) {
        self.pause.begin();
    }

    /// Whether the packets of a batch may come to a lane, now or later.
    #[inline]
    pub(super) fn are_open(&self, version: u64) -> bool {
        self.are_of(version) && !self.pause.is_on()
    }

    /// Takes note of packets that came to a lane, which may be left for another try.
    #[inline]
    pub(super) fn note(&mut self, came: usize, taken: usize) {
        self.came += came;
        self.taken += taken;
    }

    /// After a batch: a lane that takes no more than that part of what comes is not worth it.
    #[inline]
    pub(super) fn end_batch(&mut self, part: usize) {
        if self.pause.is_over() && self.came >= WORTH && self.taken * part <= self.came {
            self.pause.begin();
        }
        (self.came, self.taken) = (0, 0);
    }
}
