//! A policy: what is done with the flows of a selector.
//!
//! XFRM's three kinds, in RFC 4301's words: an `allow` with a template is *protect*, an `allow`
//! without is *bypass*, a `block` is *discard*.

mod brief;
mod fields;
mod settings;
mod words;

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::counters::{UsageSnapshot, bump, unbump};
use crate::cpu::{Cache, LINE, prefetch};
use crate::sa::Mode;

use brief::BriefV4;
pub(crate) use brief::{Brief, is_brief};
pub(crate) use fields::{Address, Fields, Shape};
use settings::Details;
pub use settings::{Action, Direction, PolicyConfig, Template};
pub(crate) use words::Words;

/// What to do, without the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bypass,
    Discard,
    Protect,
}

/// What a packet needs of the policy that decides it, and no more: one line, in which what it selects and the
/// settings that decide lie beside the counters of the one worker that mostly uses them.
#[repr(C)]
#[derive(Debug)]
struct Hot {
    id: u64,
    /// Counted by the worker whose seat is `claimed_by`, without an atomic operation.
    packets: AtomicU64,
    bytes: AtomicU64,
    last_use_ns: AtomicU64,
    /// What it selects, if [`Marks::BRIEF`] says so; else only the `if_id` counts.
    brief: BriefV4,
    priority: u32,
    /// The slot of the outbound SA, or [`NO_BUNDLE`].
    bundle: u32,
    /// The seat of the worker that has this line's counters for itself; 0 if none has yet.
    claimed_by: AtomicU16,
    kind: Kind,
    marks: Marks,
}

const _: () = assert!(size_of::<Hot>() == LINE);

/// No slot has this number ([`BUNDLES_MAX`](crate::bundles::BUNDLES_MAX)).
const NO_BUNDLE: u32 = u32::MAX;

/// What is true of a policy, as bits, and its direction.
#[derive(Clone, Copy, Debug)]
struct Marks(u8);

impl Marks {
    /// A protect policy's template is for transport mode.
    const TRANSPORT: u8 = 1;
    /// A protect policy's template is content with clear.
    const OPTIONAL: u8 = 1 << 1;
    /// [`PolicyConfig::own_sas`].
    const OWN_SAS: u8 = 1 << 2;
    /// Some bit of a port matters.
    const BY_PORTS: u8 = 1 << 3;
    /// It is of IPv4, and [`BriefV4`] can say what it selects.
    const BRIEF: u8 = 1 << 4;
    const DIRECTION_SHIFT: u32 = 5;

    fn of(config: &PolicyConfig) -> Marks {
        let template = match &config.action {
            Action::Protect { template, .. } => Some(template),
            Action::Bypass | Action::Discard => None,
        };
        let marks = [
            (Marks::TRANSPORT, template.is_some_and(|template| template.mode == Mode::Transport)),
            (Marks::OPTIONAL, template.is_some_and(|template| template.optional)),
            (Marks::OWN_SAS, config.own_sas),
            (Marks::BY_PORTS, config.selector.selects_ports()),
            (Marks::BRIEF, BriefV4::of_config(config).is_some()),
        ];
        let set = marks.into_iter().filter(|(_, is_set)| *is_set).map(|(mark, _)| mark);
        Marks(set.sum::<u8>() | (config.direction as u8) << Marks::DIRECTION_SHIFT)
    }

    /// Whether it has any of these.
    #[inline(always)]
    fn has(self, mark: u8) -> bool {
        self.0 & mark != 0
    }

    fn direction(self) -> Direction {
        Direction::ALL[usize::from(self.0 >> Marks::DIRECTION_SHIFT) % Direction::ALL.len()]
    }
}

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
    position: u64,
    index: u32,
    /// The database's number for it, given when it was added last; 0 before.
    number: AtomicU32,
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
        let (kind, bundle) = match config.action {
            Action::Bypass => (Kind::Bypass, None),
            Action::Discard => (Kind::Discard, None),
            Action::Protect { bundle, .. } => (Kind::Protect, bundle),
        };
        let zero = || AtomicU64::new(0);
        let hot = Hot {
            id: next_id(),
            packets: zero(),
            bytes: zero(),
            last_use_ns: zero(),
            brief: BriefV4::with(&Shape::of(&config)),
            priority: config.priority,
            bundle: bundle.unwrap_or(NO_BUNDLE),
            claimed_by: AtomicU16::new(0),
            kind,
            marks: Marks::of(&config),
        };
        Policy {
            packets: zero(),
            bytes: zero(),
            last_use_ns: zero(),
            position: config.position,
            index: config.index,
            number: AtomicU32::new(0),
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
        self.number.load(Relaxed)
    }

    /// A database adds it under a number.
    pub(crate) fn set_number(&self, number: u32) {
        self.number.store(number, Relaxed);
    }

    /// What to do.
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        self.hot.kind
    }

    /// The kernel's index.
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// The tunnel of route mode that it is a policy of; 0 if of none.
    #[inline]
    pub(crate) fn if_id(&self) -> u32 {
        self.hot.brief.if_id()
    }

    /// Whether any bit of a port matters.
    #[inline]
    pub(crate) fn is_by_ports(&self) -> bool {
        self.hot.marks.has(Marks::BY_PORTS)
    }

    /// Whether it protects only what an SA is there for.
    #[inline]
    pub(crate) fn is_optional(&self) -> bool {
        self.hot.marks.has(Marks::OPTIONAL)
    }

    /// Whether a worker without an SA of its own asks for one.
    #[inline]
    pub(crate) fn wants_own_sas(&self) -> bool {
        self.hot.marks.has(Marks::OWN_SAS)
    }

    fn is_transport(&self) -> bool {
        self.hot.marks.has(Marks::TRANSPORT)
    }

    /// The slot of the SA that a protect policy in tunnel mode wants; no other has one.
    #[inline]
    pub(crate) fn bundle(&self) -> Option<u32> {
        (self.hot.bundle != NO_BUNDLE && !self.is_transport()).then_some(self.hot.bundle)
    }

    /// The same where all workers seal by that SA.
    #[inline]
    pub(crate) fn shared_bundle(&self) -> Option<u32> {
        let is_other = self.hot.marks.has(Marks::TRANSPORT | Marks::OWN_SAS);
        (self.hot.bundle != NO_BUNDLE && !is_other).then_some(self.hot.bundle)
    }

    /// Asks for the memory that deciding by it reads, and counting mostly writes.
    #[inline]
    pub(crate) fn prefetch(&self, cache: Cache) {
        prefetch(&self.hot, cache);
    }

    /// What is done.
    pub fn action(&self) -> Action {
        self.details.action(&self.hot)
    }

    /// The settings.
    pub fn config(&self) -> PolicyConfig {
        PolicyConfig {
            index: self.index,
            direction: self.hot.marks.direction(),
            if_id: self.if_id(),
            selector: self.details.selector(&self.hot),
            priority: self.hot.priority,
            position: self.position,
            action: self.action(),
            own_sas: self.wants_own_sas(),
        }
    }

    /// Packets and bytes of inner packets that the policy decided, and when.
    pub fn usage(&self) -> UsageSnapshot {
        let last_use = self.hot.last_use_ns.load(Relaxed).max(self.last_use_ns.load(Relaxed));
        UsageSnapshot {
            packets: self.hot.packets.load(Relaxed) + self.packets.load(Relaxed),
            bytes: self.hot.bytes.load(Relaxed) + self.bytes.load(Relaxed),
            first_use_ns: self.details.first_use_ns.load(Relaxed),
            last_use_ns: last_use,
        }
    }

    /// Whether an SA may ever be found for it. One that asks for what is not carried has no slot.
    pub(crate) fn can_have_sa(&self) -> bool {
        self.hot.kind == Kind::Protect && (self.hot.bundle != NO_BUNDLE || self.is_transport())
    }

    /// Where it stands among all. Its halves lie in different lines: who compares many asks for the second only
    /// where the first is the same.
    #[inline]
    pub(crate) fn rank(&self) -> Rank {
        (self.hot.priority, self.position)
    }

    /// The first half of its [`rank`](Policy::rank), in the line that decides.
    #[inline]
    pub(crate) fn priority(&self) -> u32 {
        self.hot.priority
    }

    /// The second half.
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// What it selects, if it is of IPv4 and [`BriefV4`] can say so.
    pub(crate) fn shape(&self) -> Option<Shape<u32>> {
        self.hot.marks.has(Marks::BRIEF).then(|| self.hot.brief.shape())
    }

    /// Whether a policy that [can be told briefly](Policy::shape) selects a flow through the tunnel of that number.
    #[inline(always)]
    pub(crate) fn selects_briefly(&self, flow: Words, if_id: u32) -> bool {
        self.hot.brief.selects(flow, if_id)
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

    /// Takes back what the worker of a seat counted in this turn.
    #[cold]
    pub(crate) fn count_back(&self, seat: u16, packets: u64, bytes: u64) {
        if self.is_own(seat) {
            unbump(&self.hot.packets, packets);
            unbump(&self.hot.bytes, bytes);
        } else {
            self.packets.fetch_sub(packets, Relaxed);
            self.bytes.fetch_sub(bytes, Relaxed);
        }
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
                let first = &self.details.first_use_ns;
                let _ = first.compare_exchange(0, now_ns, Relaxed, Relaxed);
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
        let asked = &self.details.asked_ns;
        let last = asked.load(Relaxed);
        (last == 0 || now_ns.saturating_sub(last) >= interval_ns)
            && asked.compare_exchange(last, now_ns, Relaxed, Relaxed).is_ok()
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
        // A port without bits that count is none, and is still told.
        let odd = Selector {
            source_port: PortMatch { port: 7, mask: 0 },
            destination_port: PortMatch::exactly(53),
            ..narrow
        };
        // Both ports in ranges, which is not told.
        let broad =
            Selector { destination_port: PortMatch { port: 0x5000, mask: 0xf000 }, ..narrow };
        let (v4, v6) = (Selector::any(Family::V4), Selector::any(Family::V6));
        for selector in [narrow, odd, broad, v4, v6] {
            for (action, if_id) in actions.into_iter().flat_map(|one| [(one, 0), (one, 5)]) {
                let config = PolicyConfig {
                    if_id,
                    priority: 3,
                    position: 1 << 40,
                    action,
                    own_sas: true,
                    ..PolicyConfig::bypass(8, Direction::Forward, selector)
                };
                let policy = Policy::new(config.clone());
                assert_eq!(policy.config(), config);
                let is_brief = selector.family() == Family::V4 && selector != broad;
                assert_eq!(policy.shape().is_some(), is_brief);
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
