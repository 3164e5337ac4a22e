//! What takes an SA's place: the same SA with other settings, at another place, or with other numbers.

use std::sync::atomic::Ordering::Relaxed;

use super::{Sa, SaConfig, SaError};
use crate::replay::Replay;

impl Sa {
    /// A replacement with other settings that goes on with this one's numbers, window and counters.
    ///
    /// # Errors
    ///
    /// [`SaError::Immutable`] if SPI, key, salt, sequence mode or replay window are others; else as of
    /// [`Sa::new`].
    pub fn with_changes(&self, change: impl FnOnce(&mut SaConfig)) -> Result<Sa, SaError> {
        let mut config = self.settings();
        change(&mut config);
        let same = config.spi == self.spi()
            && config.key.is(&self.hot.key)
            && config.salt == self.hot.salt
            && self.counts_as(config.replay_window, config.extended_sequence);
        if !same {
            return Err(SaError::Immutable);
        }
        Sa::assemble(config, self.runtime.clone())
    }

    /// The same SA where its ends have moved to: with the addresses, ports and settings of `config`,
    /// it goes on with this one's numbers, window and counters. What `config` says was sent or
    /// received is added to them; nothing is taken back.
    ///
    /// # Errors
    /// [`SaError::Immutable`] if it is another SA: SPI, salt, sequence mode and window must be
    /// the same. The caller vouches for the key.
    pub fn moved(&self, config: SaConfig) -> Result<Sa, SaError> {
        let (sent, received) = (config.sent, config.received);
        let bitmap = config.received_bitmap.clone().unwrap_or_default();
        let moved = self.with_changes(|current| {
            let key = current.key.clone();
            *current = SaConfig { key, ..config };
        })?;
        moved.share();
        moved.words().sent().fetch_max(sent, Relaxed);
        moved.replay().unite(received, &bitmap);
        Ok(moved)
    }

    /// Whether an SA of this window and sequence mode can go on with this one's numbers and window.
    pub fn counts_as(&self, replay_window: u32, extended_sequence: bool) -> bool {
        let replay = self.replay();
        (replay.window(), replay.is_extended()) == (replay_window, extended_sequence)
    }

    /// This new SA, which nobody has yet, going on for one of another window or sequence mode: with that
    /// one's counters and the higher numbers of both. What that one may have received counts as received.
    /// The caller vouches that no worker has that one any more: what it sent or received after this
    /// would be sent again or accepted again.
    pub fn in_place_of(self, old: &Sa) -> Sa {
        let (words, replay) = (self.words(), self.replay());
        words.sent().fetch_max(old.words().sent().load(Relaxed), Relaxed);
        let top = replay.top().max(old.replay().top());
        Replay::begun(words, replay.window(), replay.is_extended(), top);
        self.counting_on(old)
    }

    /// This new SA, going on with the counters of the one whose place it takes.
    pub fn counting_on(mut self, old: &Sa) -> Sa {
        self.words().count_on(old.words());
        self.measure();
        self
    }
}
