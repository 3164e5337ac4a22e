//! How far an SA is from its limits in packets and bytes.
//!
//! A packet that may reach a limit, or find one reached, is taken by itself, so that it is known to the packet. Hardly any
//! is such a packet, though many SAs have limits: libreswan gives each SA some, of 2⁶³ packets and bytes unless it is told
//! otherwise. So an SA is only *near* its limits once the next [`NEAR_PACKETS`] packets, as long as any may be, can reach one. Whoever
//! counts packets [looks](super::Sa::count) at that every [`LOOK_PACKETS`].
//!
//! ```text
//!   0 ─── look ─── look ─── … ─── look ──────────────────────── limit
//!                                  │◄──── NEAR_PACKETS or less ────►│
//!            far: as any other SA  │  near: each packet by itself
//! ```
//!
//! Between two looks are [`LOOK_PACKETS`] packets and those that are counted together with the one that passes them. An object that
//! control makes of another one is near until it looks for the first time: who knows how much is counted by the old one meanwhile?
//! Where several workers count at a time, each SA with limits is as one that is near them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use super::{Rare, Sa};
use crate::batch::SLOTS;
use crate::ledger::Words;

/// Packets between two looks, a power of two.
pub(crate) const LOOK_PACKETS: u64 = 1024;

/// As near as that, limits in packets are near, and so are those in bytes that so many packets may have.
const NEAR_PACKETS: u64 = 2 * LOOK_PACKETS;

/// The same in bytes.
const NEAR_BYTES: u64 = NEAR_PACKETS * u16::MAX as u64;

// A batch is counted in one go.
const _: () = assert!(SLOTS as u64 <= LOOK_PACKETS && LOOK_PACKETS.is_power_of_two());

impl Sa {
    /// Finds out how far it is from its limits.
    pub(super) fn measure(&mut self) {
        let is_only_one = Arc::strong_count(&self.runtime) == 1;
        let counted = is_only_one.then(|| self.words());
        self.hot.distance = Distance::of(self.rare.as_deref(), counted);
    }

    #[cold]
    #[inline(never)]
    pub(super) fn look_at_limits(&self) {
        self.hot.distance.look(self.rare.as_deref(), self.words());
    }

    /// Whether packets are to be counted each by itself, as one may find a hard limit reached, or reach a limit that control
    /// wants to hear of: `alone` for the worker that has claimed the SA.
    #[inline(always)]
    pub(crate) fn counts_each(&self, alone: bool) -> bool {
        self.hot.distance.is_near() || !alone && self.hot.distance.is_known()
    }

    /// Whether a hard limit is reached.
    #[inline]
    pub fn expired(&self) -> bool {
        // Most SAs have no such limit: for them nothing behind the hot lines is read, which no packet asks for
        // ahead of time.
        self.hot.distance.is_known() && self.limit_reached()
    }

    #[cold]
    fn limit_reached(&self) -> bool {
        let words = self.words();
        self.rare.as_ref().is_some_and(|rare| rare.is_over(words.packets(), words.bytes()))
    }

    /// What control calls the SA, if the packet counted last made it reach a limit that control
    /// wants to hear of.
    #[inline]
    pub(crate) fn limit_crossed(&self) -> Option<u64> {
        self.hot.distance.is_known().then_some(())?;
        let entry = self.words();
        self.rare.as_ref()?.alarm.as_ref()?.crossed(entry.packets(), entry.bytes())
    }
}

/// Where an SA stands. None has limits by default.
#[derive(Default)]
pub(super) struct Distance(AtomicU8);

/// It has no limits.
const NONE: u8 = 0;
const FAR: u8 = 1;
const NEAR: u8 = 2;

impl Distance {
    /// That of an SA; `counted` if it is known what has been.
    pub(super) fn of(rare: Option<&Rare>, counted: Option<Words>) -> Distance {
        let is_far = |rare| counted.is_some_and(|words| !is_near(rare, words));
        let distance = match rare.filter(|rare| rare.has_limits()) {
            None => NONE,
            Some(rare) if is_far(rare) => FAR,
            Some(_) => NEAR,
        };
        Distance(AtomicU8::new(distance))
    }

    /// Looks at it anew.
    pub(super) fn look(&self, rare: Option<&Rare>, words: Words) {
        if self.is_known() {
            self.0.store(Distance::of(rare, Some(words)).0.into_inner(), Relaxed);
        }
    }

    /// Whether there are limits.
    #[inline(always)]
    pub(super) fn is_known(&self) -> bool {
        self.0.load(Relaxed) != NONE
    }

    /// Whether a packet of a worker that has the SA for itself may reach one.
    #[inline(always)]
    pub(super) fn is_near(&self) -> bool {
        self.0.load(Relaxed) == NEAR
    }
}

fn is_near(rare: &Rare, words: Words) -> bool {
    let (packets, bytes) = (words.packets(), words.bytes());
    rare.is_past(packets.saturating_add(NEAR_PACKETS), bytes.saturating_add(NEAR_BYTES))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::alarm::Alarm;
    use crate::sa::tests::config;
    use crate::sa::{HardLimits, Sa, SaConfig};

    use super::*;

    /// A limit in packets, and one in bytes, of which either may be none.
    fn limit() -> impl Strategy<Value = (u64, u64)> {
        let packets = prop_oneof![0..30 * LOOK_PACKETS, Just(u64::MAX), Just(1 << 63)];
        let bytes = prop_oneof![0..2 * NEAR_BYTES, Just(u64::MAX), Just(1 << 63)];
        (packets, bytes)
    }

    proptest! {
        #[test]
        fn what_is_counted_together_reaches_no_limit(
            hard in limit(),
            soft in prop::option::of(limit()),
            changed in 0usize..200,
            late in 0usize..50,
            steps in prop::collection::vec((1..=SLOTS as u64, 0..=u64::from(u16::MAX)), 1..200),
        ) {
            let (packets, bytes) = hard;
            let limits = HardLimits { packets, bytes };
            let alarm = || soft.map(|soft| Alarm::new(1, soft, hard));
            let sa = Sa::new(SaConfig { limits, ..config() }).unwrap().with_alarm(alarm());
            // Control changes it, and a worker goes on with the old object for a while.
            let mut new = None;
            let is_limited = hard != (u64::MAX, u64::MAX) || soft.is_some();
            for (at, (packets, len)) in steps.into_iter().enumerate() {
                if at == changed {
                    new = Some(sa.with_changes(|_| ()).unwrap().with_alarm(alarm()));
                }
                let sa = new.as_ref().filter(|_| at >= changed + late).unwrap_or(&sa);
                prop_assert_eq!(sa.counts_each(false), is_limited);
                let is_together = !sa.counts_each(true);
                sa.count(packets, packets * len, 1, true);
                let reached = sa.expired() || sa.limit_crossed().is_some();
                prop_assert!(!(is_together && reached), "{packets} packets of {len} bytes: {:?}", sa.stats().usage);
            }
        }
    }

    #[test]
    fn limits_that_are_far_away_count_nothing_each_until_they_come_near() {
        let limits = HardLimits { packets: 10 * LOOK_PACKETS, ..HardLimits::NONE };
        let sa = Sa::new(SaConfig { limits, ..config() }).unwrap();
        for look in 0..8 {
            assert!(!sa.counts_each(true), "{look}");
            sa.count(LOOK_PACKETS, 0, 1, true);
        }
        // Two more are the limit.
        assert!(sa.counts_each(true) && !sa.expired());
        let changed = sa.with_changes(|config| config.limits.packets *= 10).unwrap();
        assert!(changed.counts_each(true), "nobody has looked yet");
        changed.count(LOOK_PACKETS, 0, 1, true);
        assert!(!changed.counts_each(true) && sa.counts_each(true));
        let unlimited = Sa::new(SaConfig { limits: HardLimits::NONE, ..config() }).unwrap();
        unlimited.count(u64::MAX / 2, u64::MAX / 2, 1, true);
        assert!(!unlimited.counts_each(true) && !unlimited.counts_each(false));
        let successor = Sa::new(SaConfig { limits, ..config() }).unwrap().counting_on(&sa);
        assert!(successor.counts_each(true), "it goes on with what was counted");
    }
}
