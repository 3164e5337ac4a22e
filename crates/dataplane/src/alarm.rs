//! The limits of an SA that control must hear of when they are reached, and not a second later.
//!
//! An SA at 1 Mpps passes the distance between its soft and its hard limit in packets before a
//! clock that ticks once a second strikes again; then the rekey that the soft limit is for comes
//! too late. So whoever counts a packet compares, for SAs that have such limits, and tells control
//! once per limit. An event that is lost is made good by control's own look, once a second.
//!
//! Hard limits are enforced by `sa.rs`, packet by packet; nothing here stops a packet.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What control wants to hear of an SA.
#[derive(Debug)]
pub struct Alarm {
    /// What control calls the SA.
    token: u64,
    soft: Threshold,
    hard: Threshold,
}

/// One limit, in packets and bytes; `u64::MAX` for none.
#[derive(Debug)]
struct Threshold {
    packets: u64,
    bytes: u64,
    reached: AtomicBool,
}

impl Threshold {
    fn new((packets, bytes): (u64, u64)) -> Threshold {
        Threshold { packets, bytes, reached: AtomicBool::new(false) }
    }

    /// Whether the limit is reached.
    fn is_past(&self, packets: u64, bytes: u64) -> bool {
        packets >= self.packets || bytes >= self.bytes
    }

    /// Whether the limit is reached and was not when this was asked before.
    fn crossed(&self, packets: u64, bytes: u64) -> bool {
        // The load keeps the line shared among workers once the limit is past.
        self.is_past(packets, bytes)
            && !self.reached.load(Relaxed)
            && !self.reached.swap(true, Relaxed)
    }
}

impl Alarm {
    /// An alarm at a soft and at a hard limit, each in packets and bytes.
    pub fn new(token: u64, soft: (u64, u64), hard: (u64, u64)) -> Alarm {
        Alarm { token, soft: Threshold::new(soft), hard: Threshold::new(hard) }
    }

    /// Whether either limit is reached with these counts.
    pub(crate) fn is_past(&self, packets: u64, bytes: u64) -> bool {
        self.soft.is_past(packets, bytes) || self.hard.is_past(packets, bytes)
    }

    /// What control calls the SA, if it reached a limit with these counts, and not before.
    #[inline]
    pub(crate) fn crossed(&self, packets: u64, bytes: u64) -> Option<u64> {
        // Both are asked: one packet may pass both limits.
        let (soft, hard) = (self.soft.crossed(packets, bytes), self.hard.crossed(packets, bytes));
        (soft || hard).then_some(self.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn each_limit_is_told_once() {
        let none = (u64::MAX, u64::MAX);
        let alarm = Alarm::new(7, (2, u64::MAX), (u64::MAX, 300));
        let told: Vec<_> = (1..=5).map(|packets| alarm.crossed(packets, 100 * packets)).collect();
        assert_eq!(told, [None, Some(7), Some(7), None, None]);
        assert_eq!(Alarm::new(7, none, none).crossed(1 << 60, 1 << 60), None);
    }

    #[test]
    fn two_workers_tell_it_once_together() {
        let alarm = Alarm::new(1, (1000, u64::MAX), (u64::MAX, u64::MAX));
        let packets = AtomicU64::new(0);
        let count = || {
            let one = |_: &i32| alarm.crossed(packets.fetch_add(1, Relaxed) + 1, 0).is_some();
            (0..1000).filter(one).count()
        };
        let told = std::thread::scope(|scope| {
            let other = scope.spawn(count);
            count() + other.join().unwrap()
        });
        assert_eq!(told, 1);
    }
}
