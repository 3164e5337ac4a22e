//! Where SAs' numbers are kept, so that the next process can go on with them, and what they say.

use std::collections::HashMap;
use std::io;

use dataplane::ledger::{Entry, Ledger, Place};
use dataplane::sa::Sa;
use dataplane::view::View;

use super::super::translate::{self, Home};
use super::{InstalledSa, Tables};
use crate::xfrm::{Counters, Places, PolicyCounters, PolicyId, SaCounters, SaId, SaRecord};

impl Tables {
    /// Keeps the numbers of all SAs to come in a ledger, and goes on with those that an earlier
    /// process left in it when their SAs are installed again.
    pub fn keep_in(&mut self, ledger: Ledger, resumed: HashMap<SaId, Entry>) {
        self.ledger = Some(ledger);
        self.resumed = resumed;
    }

    /// Lets go of what an earlier run held and no policy protects now: it was never in force.
    pub fn release_left(&mut self, view: &mut View) -> io::Result<()> {
        for held in self.guard.unprotected() {
            self.release(held, view)?;
        }
        self.guard.flush()
    }

    /// Whether an earlier run held something that no policy protects now.
    pub fn holds_left(&self) -> bool {
        !self.guard.unprotected().is_empty()
    }

    /// Frees the places of SAs that nobody has any more, now that the journal knows.
    pub fn reclaim(&self) {
        if let Some(ledger) = &self.ledger {
            ledger.reclaim();
        }
    }

    /// An SA with its numbers where they belong.
    pub(super) fn build(&mut self, record: &SaRecord) -> Result<Sa, String> {
        let home = match self.resumed.remove(&record.id) {
            Some(entry) => Home::Left(entry),
            None => Home::New(self.ledger.as_ref()),
        };
        translate::sa(record, self.engine, &self.clock, home)
    }
}

impl Places for Tables {
    fn place(&self, id: SaId) -> Option<Place> {
        self.sa_of(id)?.sa.place()
    }

    fn before(&self, id: SaId) -> (u64, u64) {
        self.sa_of(id).map_or((0, 0), InstalledSa::before)
    }
}

impl Counters for Tables {
    fn sa(&self, id: SaId) -> Option<SaCounters> {
        let installed = self.sa_of(id)?;
        Some(since(installed.before(), translate::counters(&installed.sa, &self.clock)))
    }

    fn traffic(&self, id: SaId) -> Option<SaCounters> {
        let installed = self.sa_of(id)?;
        Some(since(installed.before(), translate::traffic(&installed.sa.usage())))
    }

    fn policy(&self, id: PolicyId) -> Option<PolicyCounters> {
        let policy = self.policy_of(id)?.policy.as_ref()?;
        let use_time = self.clock.unix_seconds(self.last_use_ns(policy)).unwrap_or(0);
        Some(PolicyCounters { use_time })
    }
}

/// The figures of an SA without those of what it was before.
fn since((packets, bytes): (u64, u64), counters: SaCounters) -> SaCounters {
    SaCounters {
        packets: counters.packets.saturating_sub(packets),
        bytes: counters.bytes.saturating_sub(bytes),
        ..counters
    }
}
