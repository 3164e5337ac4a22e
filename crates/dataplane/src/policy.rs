//! A policy: what is done with the flows of a selector.
//!
//! XFRM's three kinds, in RFC 4301's words: an `allow` with a template is *protect*, an `allow`
//! without is *bypass*, a `block` is *discard*.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::counters::{Usage, UsageSnapshot};
use crate::cpu::prefetch;
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

/// A policy in force.
#[derive(Debug)]
pub struct Policy {
    id: u64,
    config: PolicyConfig,
    runtime: Arc<Runtime>,
}

#[derive(Debug, Default)]
struct Runtime {
    usage: Usage,
    /// When control was last asked for this policy's SA.
    asked_ns: AtomicU64,
}

fn next_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Relaxed) + 1
}

/// The order in which policies are preferred; the smallest wins.
pub(crate) type Rank = (u32, u64);

impl Policy {
    /// A new policy.
    pub fn new(config: PolicyConfig) -> Policy {
        Policy { id: next_id(), config, runtime: Arc::default() }
    }

    /// A replacement with other settings that goes on with this one's counters.
    pub fn with_config(&self, config: PolicyConfig) -> Policy {
        Policy { id: next_id(), config, runtime: self.runtime.clone() }
    }

    /// What tells this object from every other policy of the process's life, also of replacements.
    /// Not zero.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Asks for the memory that deciding by it reads.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.config.action);
        prefetch(&self.config.selector);
        prefetch(&self.runtime);
    }

    /// The settings.
    #[inline]
    pub fn config(&self) -> &PolicyConfig {
        &self.config
    }

    /// Packets and bytes of inner packets that the policy decided, and when.
    pub fn usage(&self) -> UsageSnapshot {
        self.runtime.usage.snapshot()
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
        (self.config.priority, self.config.position)
    }

    #[inline]
    pub(crate) fn count(&self, seat: u16, packets: u64, bytes: u64, now_ns: u64) {
        self.runtime.usage.count(seat, packets, bytes, now_ns);
    }

    /// Asks for the memory that [`count`](Policy::count) will write.
    #[inline]
    pub(crate) fn prefetch_usage(&self) {
        prefetch(&self.runtime.usage);
    }

    /// Whether control may be asked for an SA now: at most once per `interval_ns`, by one worker.
    pub(crate) fn may_ask(&self, now_ns: u64, interval_ns: u64) -> bool {
        let last = self.runtime.asked_ns.load(Relaxed);
        (last == 0 || now_ns.saturating_sub(last) >= interval_ns)
            && self.runtime.asked_ns.compare_exchange(last, now_ns, Relaxed, Relaxed).is_ok()
    }
}
