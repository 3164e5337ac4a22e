//! A policy: what is done with the flows of a selector.
//!
//! XFRM's three kinds, in RFC 4301's words: an `allow` with a template is *protect*, an `allow`
//! without is *bypass*, a `block` is *discard*.

mod settings;

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::counters::{UsageSnapshot, bump};
use crate::cpu::{LINE, prefetch};
use crate::sa::Mode;

use settings::Details;
pub use settings::{Action, Direction, PolicyConfig, Template};

/// What to do, without the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bypass,
    Discard,
    Protect,
}

/// What a packet needs of the policy that decides it, and no more: one line, in which the settings that
/// decide lie beside the counters of the one worker that mostly uses them.
#[repr(C)]
#[derive(Debug)]
struct Hot {
    id: u64,
    /// Counted by the worker whose seat is `claimed_by`, without an atomic operation.
    packets: AtomicU64,
    bytes: AtomicU64,
    last_use_ns: AtomicU64,
    position: u64,
    priority: u32,
    /// The slot of the outbound SA, or [`NO_BUNDLE`].
    bundle: u32,
    index: u32,
    /// The seat of the worker that has this line's counters for itself; 0 if none has yet.
    claimed_by: AtomicU16,
    kind: Kind,
    /// Whether any bit of a port matters.
    by_ports: bool,
    /// A protect policy's template is for transport mode.
    transport: bool,
    /// A protect policy's template is content with clear.
    optional: bool,
    own_sas: bool,
    direction: Direction,
    /// The database's number for it, given when it was added last; 0 before.
    number: AtomicU32,
}

const _: () = assert!(size_of::<Hot>() == LINE);

/// No slot has this number ([`BUNDLES_MAX`](crate::bundles::BUNDLES_MAX)).
const NO_BUNDLE: u32 = u32::MAX;

/// A policy in force, in two lines when it is counted (`Arc`).
///
/// Most policies are one worker's. The first to count claims the counters of the hot line, and adds to
/// them without an atomic operation; all others share the counters before it, and leave the line alone.
/// What is read is their sum.
///
/// Nothing here says that it begins with a line, as then its reference counts would take a line of their
/// own; the heap says so where it matters ([`xsk::heap`]).
#[derive(Debug)]
#[repr(C)]
pub struct Policy {
    /// Counted by all other workers.
    packets: AtomicU64,
    bytes: AtomicU64,
    last_use_ns: AtomicU64,
    first_use_ns: AtomicU64,
    /// When control was last asked for this policy's SA.
    asked_ns: AtomicU64,
    details: Box<Details>,
    hot: Hot,
}

/// Two reference counts and what is before the hot line are one line.
const _: () = assert!(2 * size_of::<usize>() + std::mem::offset_of!(Policy, hot) == LINE);

/// A number that was never given before, by which what welcomed an SA is known again.
pub(crate) fn next_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Relaxed) + 1
}

/// The order in which policies are preferred; the smallest wins.
pub(crate) type Rank = (u32, u64);

impl Policy {
    /// A new policy.
    pub fn new(config: PolicyConfig) -> Policy {
        let (kind, template, bundle) = match &config.action {
            Action::Bypass => (Kind::Bypass, None, None),
            Action::Discard => (Kind::Discard, None, None),
            Action::Protect { template, bundle } => (Kind::Protect, Some(template), *bundle),
        };
        let hot = Hot {
            id: next_id(),
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            last_use_ns: AtomicU64::new(0),
            position: config.position,
            priority: config.priority,
            bundle: bundle.unwrap_or(NO_BUNDLE),
            index: config.index,
            claimed_by: AtomicU16::new(0),
            kind,
            by_ports: config.selector.selects_ports(),
            transport: template.is_some_and(|template| template.mode == Mode::Transport),
            optional: template.is_some_and(|template| template.optional),
            own_sas: config.own_sas,
            direction: config.direction,
            number: AtomicU32::new(0),
        };
        let zero = || AtomicU64::new(0);
        Policy {
            packets: zero(),
            bytes: zero(),
            last_use_ns: zero(),
            first_use_ns: zero(),
            asked_ns: zero(),
            details: Box::new(Details::of(&config)),
            hot,
        }
    }

    /// What tells this object from every other policy of the process's life, also of replacements.
    /// Not zero.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.hot.id
    }

    /// The number that a database gave it last, which another may have given to another policy.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.hot.number.load(Relaxed)
    }

    /// A database adds it under a number.
    pub(crate) fn set_number(&self, number: u32) {
        self.hot.number.store(number, Relaxed);
    }

    /// What to do.
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        self.hot.kind
    }

    /// The kernel's index.
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.hot.index
    }

    /// Whether any bit of a port matters.
    #[inline]
    pub(crate) fn is_by_ports(&self) -> bool {
        self.hot.by_ports
    }

    /// Whether it protects only what an SA is there for.
    #[inline]
    pub(crate) fn is_optional(&self) -> bool {
        self.hot.optional
    }

    /// Whether a worker without an SA of its own asks for one.
    #[inline]
    pub(crate) fn wants_own_sas(&self) -> bool {
        self.hot.own_sas
    }

    /// The slot of the SA that a protect policy in tunnel mode wants.
    #[inline]
    pub(crate) fn bundle(&self) -> Option<u32> {
        (self.hot.bundle != NO_BUNDLE && !self.hot.transport).then_some(self.hot.bundle)
    }

    /// Asks for the memory that deciding by it reads, and counting mostly writes.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.hot);
    }

    /// What is done.
    pub fn action(&self) -> Action {
        self.details.action(&self.hot)
    }

    /// The settings.
    pub fn config(&self) -> PolicyConfig {
        PolicyConfig {
            index: self.hot.index,
            direction: self.hot.direction,
            if_id: self.details.if_id(),
            selector: self.details.selector(),
            priority: self.hot.priority,
            position: self.hot.position,
            action: self.action(),
            own_sas: self.hot.own_sas,
        }
    }

    /// Packets and bytes of inner packets that the policy decided, and when.
    pub fn usage(&self) -> UsageSnapshot {
        let last_use = self.hot.last_use_ns.load(Relaxed).max(self.last_use_ns.load(Relaxed));
        UsageSnapshot {
            packets: self.hot.packets.load(Relaxed) + self.packets.load(Relaxed),
            bytes: self.hot.bytes.load(Relaxed) + self.bytes.load(Relaxed),
            first_use_ns: self.first_use_ns.load(Relaxed),
            last_use_ns: last_use,
        }
    }

    /// Whether an SA may ever be found for it. One that asks for what is not carried has no slot.
    pub(crate) fn can_have_sa(&self) -> bool {
        self.hot.kind == Kind::Protect && (self.hot.bundle != NO_BUNDLE || self.hot.transport)
    }

    #[inline]
    pub(crate) fn rank(&self) -> Rank {
        (self.hot.priority, self.hot.position)
    }

    /// Counts packets, for the worker of a seat.
    #[inline]
    pub(crate) fn count(&self, seat: u16, packets: u64, bytes: u64, now_ns: u64) {
        if !self.is_own(seat) {
            return self.count_beside(packets, bytes, now_ns);
        }
        bump(&self.hot.packets, packets);
        bump(&self.hot.bytes, bytes);
        self.use_at(&self.hot.last_use_ns, now_ns);
    }

    #[cold]
    fn count_beside(&self, packets: u64, bytes: u64, now_ns: u64) {
        self.packets.fetch_add(packets, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.use_at(&self.last_use_ns, now_ns);
    }

    /// The clock is read once per turn, so most packets find their own time here already.
    #[inline]
    fn use_at(&self, last_use_ns: &AtomicU64, now_ns: u64) {
        let last = last_use_ns.load(Relaxed);
        if last != now_ns {
            last_use_ns.store(now_ns, Relaxed);
            if last == 0 {
                let _ = self.first_use_ns.compare_exchange(0, now_ns, Relaxed, Relaxed);
            }
        }
    }

    /// Whether the hot line's counters are this worker's.
    #[inline]
    fn is_own(&self, seat: u16) -> bool {
        let claimed_by = self.hot.claimed_by.load(Relaxed);
        claimed_by == seat && seat != 0 || claimed_by == 0 && self.claim(seat)
    }

    #[cold]
    fn claim(&self, seat: u16) -> bool {
        seat != 0 && self.hot.claimed_by.compare_exchange(0, seat, Relaxed, Relaxed).is_ok()
    }

    /// Whether control may be asked for an SA now: at most once per `interval_ns`, by one worker.
    pub(crate) fn may_ask(&self, now_ns: u64, interval_ns: u64) -> bool {
        let last = self.asked_ns.load(Relaxed);
        (last == 0 || now_ns.saturating_sub(last) >= interval_ns)
            && self.asked_ns.compare_exchange(last, now_ns, Relaxed, Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::prefix::{Family, Prefix};
    use crate::selector::{PortMatch, Selector};

    fn policy() -> Policy {
        Policy::new(PolicyConfig::bypass(8, Direction::Out, Selector::any(Family::V4)))
    }

    #[test]
    fn settings_come_back_as_they_were() {
        let ends = [[192, 0, 2, 1].into(), [0; 4].into(), "2001:db8::1".parse::<IpAddr>().unwrap()];
        let template = |source, destination| Template {
            mode: Mode::Transport,
            source,
            destination,
            spi: 0x101,
            reqid: 7,
            optional: true,
        };
        let narrow = Selector {
            protocol: 17,
            source_port: PortMatch { port: 0x1200, mask: 0xff00 },
            destination_port: PortMatch::exactly(53),
            source: Prefix::new([10, 1, 0, 0].into(), 16).unwrap(),
            ..Selector::any(Family::V4)
        };
        let protect = |at: [usize; 2], bundle| {
            let template = template(ends[at[0]], ends[at[1]]);
            Action::Protect { template, bundle }
        };
        let actions = [
            Action::Bypass,
            Action::Discard,
            protect([0, 1], None),
            protect([1, 0], Some(9)),
            protect([2, 2], Some(9)),
        ];
        for selector in [narrow, Selector::any(Family::V4), Selector::any(Family::V6)] {
            for (action, if_id) in actions.into_iter().flat_map(|one| [(one, 0), (one, 5)]) {
                let config = PolicyConfig {
                    if_id,
                    priority: 3,
                    position: 1 << 40,
                    action,
                    own_sas: true,
                    ..PolicyConfig::bypass(8, Direction::Forward, selector)
                };
                assert_eq!(Policy::new(config.clone()).config(), config);
            }
        }
    }

    #[test]
    fn usage_keeps_first_and_last_time() {
        let policy = policy();
        assert_eq!(policy.usage(), UsageSnapshot::default());
        policy.count(1, 2, 150, 5);
        policy.count(1, 1, 1, 9);
        let expected = UsageSnapshot { packets: 3, bytes: 151, first_use_ns: 5, last_use_ns: 9 };
        assert_eq!(policy.usage(), expected);
        policy.count(2, 1, 1, 11);
        let expected = UsageSnapshot { packets: 4, bytes: 152, first_use_ns: 5, last_use_ns: 11 };
        assert_eq!(policy.usage(), expected);
    }

    #[test]
    fn usage_is_the_sum_of_all_workers() {
        let policy = policy();
        std::thread::scope(|scope| {
            for seat in [1, 2, 0, 3] {
                let policy = &policy;
                scope.spawn(move || (0..5000).for_each(|n| policy.count(seat, 1, 10, n + 1)));
            }
        });
        assert_eq!((policy.usage().packets, policy.usage().bytes), (20_000, 200_000));
    }
}
