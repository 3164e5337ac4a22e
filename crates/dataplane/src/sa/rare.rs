//! What hardly any SA has: a selector of its own, limits that packets may reach.

use super::HardLimits;
use crate::alarm::Alarm;
use crate::selector::Selector;

pub(super) struct Rare {
    /// But for one that selects all of a family.
    pub(super) selector: Option<Selector>,
    pub(super) limits: HardLimits,
    pub(super) alarm: Option<Alarm>,
}

impl Default for Rare {
    fn default() -> Rare {
        Rare { selector: None, limits: HardLimits::NONE, alarm: None }
    }
}

impl Rare {
    /// Whether there are limits that packets may reach.
    pub(super) fn has_limits(&self) -> bool {
        self.alarm.is_some() || self.limits != HardLimits::NONE
    }

    /// Whether so much reaches any limit.
    pub(super) fn is_past(&self, packets: u64, bytes: u64) -> bool {
        let alarm = self.alarm.as_ref();
        self.is_over(packets, bytes) || alarm.is_some_and(|alarm| alarm.is_past(packets, bytes))
    }

    /// Whether so much reaches a hard limit.
    pub(super) fn is_over(&self, packets: u64, bytes: u64) -> bool {
        let HardLimits { packets: packets_max, bytes: bytes_max } = self.limits;
        self.limits != HardLimits::NONE && (packets >= packets_max || bytes >= bytes_max)
    }
}
