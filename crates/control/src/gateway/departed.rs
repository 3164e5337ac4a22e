//! SAs that were deleted, and are not out of force yet.
//!
//! What a peer sent with an SA until it agreed to its end may still wait for a worker when the daemon
//! deletes the SA here: the IKE message passes it, by another queue. It is opened for [`GRACE_NS`]; nothing
//! is sealed.
//!
//! Or they are on the move. An IKE daemon whose peer got another address or port, or that has one itself
//! (NAT, MOBIKE), asks for an SA and its sequence numbers, deletes it, and installs it again
//! between its new ends, with the same SPI and key. For the peer it is one SA all the while.
//!
//! ```text
//!  GETAE ──► DELSA ─────────────► NEWSA
//!              │ in force for [`GRACE_NS`]  │ goes on with the numbers, the window and the IVs
//!              └─ remembered for [`MEMORY_NS`]: keys and numbers, for a NEWSA that comes late
//! ```
//!
//! Without the first, packets between DELSA and NEWSA would be lost; without the second, those sealed
//! between GETAE and DELSA would have taken numbers that are then taken again, and the peer would
//! drop the second ones as replayed. Where the new one has another window or sequence mode it has numbers of
//! its own, which begin behind the old one's: that one goes out of force before, and no worker
//! holds it when they are read (`Tables::part`). An SA that is deleted for good is not read by GETAE first, and
//! is not remembered; which one it is the XFRM server says.
//!
//! It knows no view and no slot: `tables` brings about what is decided here.

use std::collections::VecDeque;
use std::sync::Arc;

use dataplane::sa::{Sa, SaError};

use crate::xfrm::{SaId, SaRecord};

/// How long an SA stays in force after its deletion. A daemon's DELSA and NEWSA are a millisecond
/// apart, and so are a packet's arrival and its worker's turn; a busy machine's may be 30. With the control
/// loop's tick of 10 ms it is at most 50 ms for which a packet may pass that should not.
const GRACE_NS: u64 = 40_000_000;

/// How long it is remembered. A daemon that takes longer than this to install an SA again is not
/// moving it.
const MEMORY_NS: u64 = 10_000_000_000;

/// SAs remembered, so that nobody fills the memory with keys; the oldest go first. A daemon moves
/// one at a time.
const REMEMBERED_MAX: usize = 1024;

/// An SA that is out of force.
struct Gone {
    sa: Arc<Sa>,
    record: Arc<SaRecord>,
}

/// SAs that were deleted.
#[derive(Default)]
pub struct Departed {
    /// Still in force for opening, by the end of their grace; nobody knows them by name any more.
    closed: VecDeque<(u64, Arc<Sa>)>,
    /// Still in force in both directions, by the end of their grace; they may be installed elsewhere. Apart
    /// from the others, of which there may be thousands, as each new SA is looked for among these.
    leaving: VecDeque<(u64, Arc<SaRecord>)>,
    /// Out of force, by the end of what they are remembered for.
    gone: VecDeque<(u64, Gone)>,
}

/// The SA that a new one is the same as.
pub enum Predecessor {
    /// It is still in force under this name, and must not be once the new one is.
    Leaving(SaId),
    /// It is not in force any more.
    Gone(Arc<Sa>),
}

impl Departed {
    /// An SA was deleted that is on the move; it stays in force for the grace.
    pub fn leave(&mut self, record: Arc<SaRecord>, now_ns: u64) {
        self.leaving.push_back((now_ns + GRACE_NS, record));
    }

    /// An SA was deleted; it opens for the grace.
    pub fn close(&mut self, sa: Arc<Sa>, now_ns: u64) {
        self.closed.push_back((now_ns + GRACE_NS, sa));
    }

    /// An SA on the move whose grace is over, if there is one.
    pub fn overdue(&mut self, now_ns: u64) -> Option<Arc<SaRecord>> {
        take_due(&mut self.leaving, now_ns)
    }

    /// Another SA whose grace is over, if there is one.
    pub fn overdue_closed(&mut self, now_ns: u64) -> Option<Arc<Sa>> {
        take_due(&mut self.closed, now_ns)
    }

    /// Remembers an SA that is not in force any more.
    pub fn remember(&mut self, sa: Arc<Sa>, record: Arc<SaRecord>, now_ns: u64) {
        if self.gone.len() == REMEMBERED_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back((now_ns + MEMORY_NS, Gone { sa, record }));
    }

    /// Forgets what was remembered long enough.
    pub fn forget(&mut self, now_ns: u64) {
        while take_due(&mut self.gone, now_ns).is_some() {}
    }

    /// Whether nothing waits for its time.
    pub fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.leaving.is_empty() && self.gone.is_empty()
    }

    /// The SA on the move that comes back as `record`, as it is kept here.
    pub fn leaving_as(&self, record: &SaRecord) -> Option<&Arc<SaRecord>> {
        self.leaving.iter().rev().map(|(_, old)| old).find(|old| is_same(old, record))
    }

    /// The SA out of force that comes back as `record`.
    pub fn gone_as(&self, record: &SaRecord) -> Option<&Arc<Sa>> {
        let mut gone = self.gone.iter().rev().map(|(_, gone)| gone);
        gone.find(|gone| is_same(&gone.record, record)).map(|gone| &gone.sa)
    }

    /// Remembers an SA on the move that goes out of force before its grace is over.
    pub fn hurry(&mut self, sa: Arc<Sa>, record: Arc<SaRecord>, now_ns: u64) {
        self.leaving.retain(|(_, old)| old.id != record.id);
        self.remember(sa, record, now_ns);
    }

    /// Which SA comes back as `record`. It is not known here afterwards.
    pub fn returning(&mut self, record: &SaRecord) -> Option<Predecessor> {
        if let Some(at) = self.leaving.iter().rposition(|(_, old)| is_same(old, record)) {
            return self.leaving.remove(at).map(|(_, old)| Predecessor::Leaving(old.id));
        }
        let at = self.gone.iter().rposition(|(_, gone)| is_same(&gone.record, record))?;
        self.gone.remove(at).map(|(_, gone)| Predecessor::Gone(gone.sa))
    }
}

/// The first of a queue in order of time, if its time is over.
fn take_due<T>(queue: &mut VecDeque<(u64, T)>, now_ns: u64) -> Option<T> {
    let due = queue.front().is_some_and(|(until_ns, _)| *until_ns <= now_ns);
    if due { queue.pop_front().map(|(_, first)| first) } else { None }
}

/// One SA in the peer's eyes: SPI, algorithm, key and salt.
pub fn is_same(old: &SaRecord, new: &SaRecord) -> bool {
    old.parameters.spi() == new.parameters.spi() && old.aead == new.aead
}

/// `old` as `new` says it is now; numbers only go up.
pub fn moved(old: &Sa, new: Sa) -> Result<Sa, SaError> {
    match old.moved(new.config()) {
        // Another window or sequence mode cannot go on with the old one's words: nobody has that one any more.
        Err(SaError::Immutable) => Ok(new.in_place_of(old)),
        result => result,
    }
}
