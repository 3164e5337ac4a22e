//! What was changed last, for those who remember what an older version said.
//!
//! A version has a number that no other content has, and knows those of the versions before it. Who
//! remembers something of one of them is told whether a flow was touched since: whether a policy that was
//! added or removed selects it. What a look-up says of a flow that was not is what it said then.
//!
//! Only the last changes are known, of each family as many as there is room for: older ones count as
//! having touched everything. Policies of tunnels in route mode are not here, nor are default actions.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use wire::flow::Flow;

use crate::policy::{Address, Direction, Fields, PolicyConfig, Shape};
use crate::prefix::Family;

/// Changes of each family that are known, and versions. A worker that comes by every millisecond misses none
/// of sixty thousand in a second. With more, a flow that comes seldom would be compared with more than a
/// look-up takes, and copying them for each version, 3 KB of IPv4, would be felt.
const KNOWN: usize = 64;

/// A policy that was added or removed.
#[derive(Clone, Copy)]
struct Change<A> {
    /// Which change of the database made it, counted from 1.
    at: u64,
    shape: Shape<A>,
    direction: Direction,
}

/// The last changes of one family.
#[derive(Clone)]
struct Recent<A> {
    /// The newest is before `next`, as in a ring.
    changes: Vec<Change<A>>,
    next: usize,
    /// Every change after this one is here.
    since: u64,
}

impl<A: Address> Recent<A> {
    fn new() -> Recent<A> {
        Recent { changes: Vec::with_capacity(KNOWN), next: 0, since: 0 }
    }

    fn add(&mut self, change: Change<A>) {
        if self.changes.len() < KNOWN {
            self.changes.push(change);
        } else {
            self.since = self.changes[self.next].at;
            self.changes[self.next] = change;
        }
        self.next = (self.next + 1) % KNOWN;
    }

    /// Whether any change after `at` may say something of a flow.
    #[inline]
    fn touched(&self, at: u64, direction: Direction, flow: &Fields<A>) -> bool {
        if at < self.since {
            return true;
        }
        // Newest first; of nearly every flow no more than one or two are asked.
        let back = |ago: usize| self.changes.get((self.next + KNOWN - 1 - ago) % KNOWN);
        (0..self.changes.len())
            .map_while(back)
            .take_while(|change| change.at > at)
            .any(|change| change.direction == direction && change.shape.selects(flow))
    }
}

/// The last changes of a database, and which version it is.
#[derive(Clone)]
pub(super) struct Changes {
    /// A number that no other content of this or another database has.
    version: u64,
    /// Changes there were, of any kind.
    count: u64,
    /// The versions before this one, by how many changes there were.
    versions: Arc<[u64; KNOWN]>,
    v4: Arc<Recent<u32>>,
    v6: Arc<Recent<u128>>,
}

impl Default for Changes {
    fn default() -> Self {
        let (v4, v6) = (Arc::new(Recent::new()), Arc::new(Recent::new()));
        Changes { version: 0, count: 0, versions: Arc::new([0; KNOWN]), v4, v6 }
    }
}

impl Changes {
    /// What has this number answers alike; 0 is that of a database that was never changed.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Something is another from now on that nobody remembers.
    pub(super) fn note(&mut self) {
        let place = self.count as usize % KNOWN;
        Arc::make_mut(&mut self.versions)[place] = self.version;
        self.version = next_version();
        self.count += 1;
    }

    /// A policy is added or removed.
    pub(super) fn note_policy(&mut self, config: &PolicyConfig) {
        self.note();
        let (at, direction) = (self.count, config.direction);
        if config.if_id != 0 {
            return;
        }
        match config.selector.family() {
            Family::V4 => {
                let change = Change { at, shape: Shape::of(config), direction };
                Arc::make_mut(&mut self.v4).add(change);
            }
            Family::V6 => {
                let change = Change { at, shape: Shape::of(config), direction };
                Arc::make_mut(&mut self.v6).add(change);
            }
        }
    }

    /// How many changes ago the database was this version; `None` if it never was, or long ago.
    pub(super) fn changes_since(&self, version: u64) -> Option<u64> {
        let known = self.count.min(KNOWN as u64);
        (1..=known).find(|ago| self.versions[(self.count - ago) as usize % KNOWN] == version)
    }

    /// Whether any of so many last changes may say something of a flow, outside of route mode.
    #[inline]
    pub(super) fn touched(&self, changes: u64, direction: Direction, flow: &Flow) -> bool {
        let Some(at) = self.count.checked_sub(changes) else { return true };
        match flow.src {
            IpAddr::V4(_) => self.v4.touched(at, direction, &Fields::of(flow, 0)),
            IpAddr::V6(_) => self.v6.touched(at, direction, &Fields::of(flow, 0)),
        }
    }
}

/// Numbers that are given once.
fn next_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Relaxed) + 1
}
