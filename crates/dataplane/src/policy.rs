//! A policy: what is done with the flows of a selector.
//!
//! XFRM's three kinds, in RFC 4301's words: an `allow` with a template is *protect*, an `allow`
//! without is *bypass*, a `block` is *discard*.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::counters::{UsageSnapshot, bump};
use crate::cpu::{LINE, prefetch};
use crate::sa::{Mode, Sa};
use crate::selector::Selector;

/// Where a policy applies, numbered as `XFRM_POLICY_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Traffic for this host.
    In = 0,
    /// Traffic that leaves, the host's own or forwarded.
    Out = 1,
    /// Traffic that is forwarded, as it comes in.
    Forward = 2,
}

impl Direction {
    /// All three, in the order of their numbers.
    pub const ALL: [Direction; 3] = [Direction::In, Direction::Out, Direction::Forward];
}

/// The SA that a protect policy asks for: ESP between two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    /// Tunnel or transport. In transport mode the two ends are the packet's own, and those below
    /// say nothing, as in Linux.
    pub mode: Mode,
    /// Outer source; unspecified matches any.
    pub source: IpAddr,
    /// Outer destination; unspecified matches any.
    pub destination: IpAddr,
    /// The SA's SPI; 0 matches any.
    pub spi: u32,
    /// The SA's reqid; 0 matches any.
    pub reqid: u32,
    /// `level use`: without an SA, traffic passes in clear.
    pub optional: bool,
}

impl Template {
    /// Whether a packet that came through `sa` is what the template asks for.
    pub fn accepts(&self, sa: &Sa) -> bool {
        let config = sa.config();
        let same_ends = self.mode == Mode::Transport
            || (self.source.is_unspecified() || self.source == config.source)
                && (self.destination.is_unspecified() || self.destination == config.destination);
        self.mode == config.mode
            && (self.reqid == 0 || self.reqid == config.reqid)
            && (self.spi == 0 || self.spi == config.spi)
            && same_ends
    }
}

/// What a policy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Forward in clear.
    Bypass,
    /// Drop.
    Discard,
    /// Require the template's SA. Outbound, the SA is in the slot of
    /// [`View::bundles`](crate::view::View::bundles) that `bundle` names; inbound it is not used.
    Protect {
        /// The SA that is asked for.
        template: Template,
        /// The slot of the outbound SA.
        bundle: Option<u32>,
    },
}

/// Everything control says about a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyConfig {
    /// The kernel's index of the policy, unique among all directions.
    pub index: u32,
    /// Where it applies.
    pub direction: Direction,
    /// The tunnel whose packets it is for, as XFRM's interfaces name them; 0 for all that no tunnel
    /// of route mode concerns.
    pub if_id: u32,
    /// What it selects.
    pub selector: Selector,
    /// The lowest value wins.
    pub priority: u32,
    /// Among equal priorities the lowest value wins. Control numbers policies as they are added,
    /// and a policy keeps its position when it is updated.
    pub position: u64,
    /// What is done.
    pub action: Action,
    /// `XFRM_POLICY_CPU_ACQUIRE`: a worker that has no SA of its own asks for one (RFC 9611).
    pub own_sas: bool,
}

impl PolicyConfig {
    /// A policy that lets its flows pass in clear, preferred to all others that select them.
    pub fn bypass(index: u32, direction: Direction, selector: Selector) -> PolicyConfig {
        PolicyConfig {
            index,
            direction,
            if_id: 0,
            selector,
            priority: 0,
            position: 0,
            action: Action::Bypass,
            own_sas: false,
        }
    }
}

/// What to do, without the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bypass,
    Discard,
    Protect,
}

/// What a packet needs of the policy that decides it, and no more: one line, in which the settings that
/// decide lie beside the counters of the one worker that mostly uses them. `config` repeats the settings
/// for people.
#[repr(C, align(64))]
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
    /// The database's number for it, given when it was added last; 0 before.
    number: AtomicU32,
}

const _: () = assert!(size_of::<Hot>() == LINE);

/// No slot has this number ([`BUNDLES_MAX`](crate::bundles::BUNDLES_MAX)).
const NO_BUNDLE: u32 = u32::MAX;

/// A policy in force.
///
/// Most policies are one worker's. The first to count claims the counters of the hot line, and adds to
/// them without an atomic operation; all others share the counters behind it, and leave the line alone.
/// What is read is their sum.
#[derive(Debug)]
#[repr(C)]
pub struct Policy {
    hot: Hot,
    /// Counted by all other workers.
    packets: AtomicU64,
    bytes: AtomicU64,
    last_use_ns: AtomicU64,
    first_use_ns: AtomicU64,
    /// When control was last asked for this policy's SA.
    asked_ns: AtomicU64,
    config: PolicyConfig,
}

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
            number: AtomicU32::new(0),
        };
        let zero = || AtomicU64::new(0);
        Policy {
            hot,
            packets: zero(),
            bytes: zero(),
            last_use_ns: zero(),
            first_use_ns: zero(),
            asked_ns: zero(),
            config,
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

    /// The settings.
    #[inline]
    pub fn config(&self) -> &PolicyConfig {
        &self.config
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
        match self.config.action {
            Action::Protect { template, bundle } => {
                bundle.is_some() || template.mode == Mode::Transport
            }
            Action::Bypass | Action::Discard => false,
        }
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
    use super::*;
    use crate::prefix::Family;

    fn policy() -> Policy {
        Policy::new(PolicyConfig::bypass(8, Direction::Out, Selector::any(Family::V4)))
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
