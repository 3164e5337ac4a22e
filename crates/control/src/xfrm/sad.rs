//! The SAD: every SA once, found by SPI, by addresses while larval, by ACQUIRE, by deadline.
//!
//! Look-ups do not depend on the number of SAs, except among SAs that differ in nothing but their
//! mark, which the kernel walks as well, newest first. SAs are kept packed (`stored`), and given out
//! whole.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::HashMap;
use foldhash::fast::RandomState;

use wire::xfrm::address::{Address, Be32, Mark};
use wire::xfrm::sa::UsersaInfo;

use super::expiry::watches_traffic;
use super::index::Index;
use super::sa::{Body, Sa, SaId, SaParameters, SaRecord};
use super::stored::StoredSa;
use super::touched::Touched;
use super::wheel::Wheel;
use crate::roster::shelf::Shelf;

/// What a packet names an SA by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SpiKey {
    pub(super) daddr: Address,
    pub(super) spi: u32,
    pub(super) proto: u8,
    pub(super) family: u16,
}

impl SpiKey {
    pub(super) fn new(daddr: &Address, spi: u32, proto: u8, family: u16) -> Self {
        Self { daddr: daddr.canonical(family), spi, proto, family }
    }

    pub(super) fn of(info: &UsersaInfo) -> Self {
        Self::new(&info.id.daddr, info.id.spi.get(), info.id.proto, info.family)
    }
}

/// What an SA without an SPI is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LarvalKey {
    pub(super) daddr: Address,
    pub(super) saddr: Address,
    pub(super) family: u16,
    pub(super) reqid: u32,
    pub(super) mode: u8,
    pub(super) proto: u8,
    pub(super) cpu: Option<u32>,
}

impl LarvalKey {
    pub(super) fn of(parameters: &super::sa::SaParameters) -> Self {
        let info = &parameters.info;
        Self {
            daddr: info.id.daddr.canonical(info.family),
            saddr: info.saddr.canonical(info.family),
            family: info.family,
            reqid: info.reqid,
            mode: info.mode,
            proto: info.id.proto,
            cpu: parameters.cpu,
        }
    }
}

type Names<K> = HashMap<K, Vec<u64>>;

/// Deadlines beyond four for each SA at which those that do not count any more are thrown out.
const VOID_MAX: usize = 10_000;

/// The table.
#[derive(Debug, Default)]
pub(super) struct Sad {
    by_id: Shelf,
    by_spi: Index,
    hasher: RandomState,
    /// How many SAs have an SPI under a protocol, whatever their addresses.
    by_number: HashMap<(u32, u8), u32>,
    /// Larval SAs that have no SPI yet.
    by_addresses: Names<LarvalKey>,
    /// Larval SAs that an ACQUIRE announced, by its number.
    by_acquire: Names<u32>,
    /// When SAs are to be looked at. What was set before a deadline changed is in it, too.
    deadlines: Wheel,
    /// SAs with byte or packet limits that somebody has to watch.
    limited: BTreeSet<u64>,
    next_id: u64,
    /// Most SAs at a time so far.
    most: usize,
    /// SAs that were removed so far.
    gone: u64,
    /// What a journal has to hear of.
    pub(super) touched: Touched,
}

impl Sad {
    /// Most SAs at a time so far, which is what a hash table that never shrinks is sized by.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// SAs that were removed so far, also to be put back with a change.
    pub(super) fn gone(&self) -> u64 {
        self.gone
    }

    /// Whether any SA of the protocol has the SPI.
    pub(super) fn has_number(&self, spi: u32, proto: u8) -> bool {
        self.by_number.contains_key(&(spi, proto))
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The name that the next SA will have.
    pub(super) fn next_id(&self) -> SaId {
        SaId(self.next_id)
    }

    pub(super) fn get(&self, id: SaId) -> Option<Sa> {
        Some(StoredSa(self.by_id.get(id.0)?).open(id))
    }

    /// Changes an SA, but for what it is found by.
    pub(super) fn edit<R>(&mut self, id: SaId, change: impl FnOnce(&mut Sa) -> R) -> Option<R> {
        let mut sa = self.get(id)?;
        let result = change(&mut sa);
        self.by_id.set(id.0, &StoredSa::pack(&sa));
        self.touched.add(id.0);
        Some(result)
    }

    pub(super) fn insert(&mut self, sa: &Sa) -> SaId {
        let id = self.next_id;
        self.restore(SaId(id), sa);
        SaId(id)
    }

    /// Adds an SA under a name that it had before.
    pub(super) fn restore(&mut self, id: SaId, sa: &Sa) {
        self.next_id = self.next_id.max(id.0 + 1);
        self.put(id, sa);
        self.most = self.most.max(self.by_id.len());
    }

    fn put(&mut self, id: SaId, sa: &Sa) {
        self.touched.add(id.0);
        self.link(id.0, sa);
        self.by_id.set(id.0, &StoredSa::pack(sa));
    }

    /// No SA will have a name below this.
    pub(super) fn skip_to(&mut self, next_id: u64) {
        self.next_id = self.next_id.max(next_id);
    }

    /// Counts an SA among those that changed.
    pub(super) fn touch(&mut self, id: SaId) {
        self.touched.add(id.0);
    }

    pub(super) fn remove(&mut self, id: SaId) -> Option<Sa> {
        let sa = self.get(id)?;
        self.by_id.remove(id.0);
        self.touched.add(id.0);
        self.gone += 1;
        self.unlink(id.0, &sa);
        Some(sa)
    }

    /// Gives a larval SA its SPI.
    pub(super) fn set_spi(&mut self, id: SaId, spi: u32) {
        let Some(mut sa) = self.remove(id) else { return };
        if let Body::Larval(parameters) = &mut sa.body {
            parameters.info.id.spi = Be32::new(spi);
        }
        self.put(id, &sa);
    }

    /// Changes where an SA with a key is found; the record as it is then.
    pub(super) fn relocate(
        &mut self,
        id: SaId,
        change: impl FnOnce(&mut SaParameters),
    ) -> Option<Arc<SaRecord>> {
        let mut sa = self.remove(id)?;
        let mut moved = None;
        if let Body::Valid(record) = &mut sa.body {
            change(&mut Arc::make_mut(record).parameters);
            moved = Some(Arc::clone(record));
        }
        self.put(id, &sa);
        moved
    }

    /// The newest SA with this key that accepts the mark.
    pub(super) fn find(&self, key: &SpiKey, mark: u32) -> Option<SaId> {
        let fits = |id: &u64| {
            self.by_id.get(*id).is_some_and(|stored| {
                let (info, accepted) = StoredSa(stored).outline();
                accepted.accepts(mark) && SpiKey::of(&info) == *key
            })
        };
        self.by_spi.named(self.hasher.hash_one(key)).filter(fits).max().map(SaId)
    }

    /// A larval SA without SPI.
    pub(super) fn find_larval(&self, key: &LarvalKey, mark: Mark) -> Option<SaId> {
        self.find_larval_that(key, mark, |_| true)
    }

    /// Whether there is one for an `if_id`, which those that look for one to fill do not ask about.
    pub(super) fn has_larval(&self, key: &LarvalKey, mark: Mark, if_id: u32) -> bool {
        self.find_larval_that(key, mark, |parameters| parameters.if_id == if_id).is_some()
    }

    fn find_larval_that(
        &self,
        key: &LarvalKey,
        mark: Mark,
        fits: impl Fn(&SaParameters) -> bool,
    ) -> Option<SaId> {
        self.newest(self.by_addresses.get(key), |sa| {
            let parameters = sa.parameters();
            parameters.mark.accepts(mark.key()) && fits(parameters)
        })
    }

    /// The larval SA that ACQUIRE number `seq` announced, for the same CPU.
    pub(super) fn find_acquire(&self, seq: u32, mark: u32, cpu: Option<u32>) -> Option<SaId> {
        self.newest(self.by_acquire.get(&seq), |sa| {
            sa.parameters().mark.accepts(mark) && sa.parameters().cpu == cpu
        })
    }

    /// Larval SAs that ACQUIREs announced.
    pub(super) fn acquires_pending(&self) -> usize {
        self.by_acquire.len()
    }

    /// The newest SA older than `before`, for walking from the newest to the oldest.
    pub(super) fn before(&self, before: u64) -> Option<(SaId, Sa)> {
        self.by_id.before(before).map(|(id, stored)| (SaId(id), StoredSa(stored).open(SaId(id))))
    }

    /// Every SA's name, oldest first.
    pub(super) fn ids(&self) -> impl Iterator<Item = SaId> {
        self.by_id.iter().map(|(id, _)| SaId(id))
    }

    /// The newest SA older than `before`: its name and its protocol.
    pub(super) fn protocol_before(&self, before: u64) -> Option<(SaId, u8)> {
        let (id, stored) = self.by_id.before(before)?;
        Some((SaId(id), StoredSa(stored).outline().0.id.proto))
    }

    pub(super) fn set_deadline(&mut self, id: SaId, deadline: Option<u64>) {
        self.edit(id, |sa| sa.deadline = deadline);
        if let Some(second) = deadline {
            self.deadlines.set(second, id.0);
        }
        if self.deadlines.len() > 4 * self.by_id.len() + VOID_MAX {
            self.deadlines.clear();
            for (id, stored) in self.by_id.iter() {
                if let Some(second) = StoredSa(stored).open(SaId(id)).deadline {
                    self.deadlines.set(second, id);
                }
            }
        }
    }

    /// The SAs that are to be looked at by now, those that wait longest first.
    pub(super) fn take_due(&mut self, now: u64) -> Vec<SaId> {
        let due = self.deadlines.take_until(now);
        let counts = |(second, id): &(u64, u64)| {
            self.get(SaId(*id)).is_some_and(|sa| sa.deadline == Some(*second))
        };
        let mut due: Vec<SaId> = due.into_iter().filter(counts).map(|(_, id)| SaId(id)).collect();
        due.dedup();
        due
    }

    pub(super) fn limited(&self) -> impl Iterator<Item = SaId> {
        self.limited.iter().copied().map(SaId)
    }

    pub(super) fn set_limited(&mut self, id: SaId, limited: bool) {
        if limited {
            self.limited.insert(id.0);
        } else {
            self.limited.remove(&id.0);
        }
    }

    fn newest(&self, ids: Option<&Vec<u64>>, accepts: impl Fn(&Sa) -> bool) -> Option<SaId> {
        let mut found = ids?.iter().rev().map(|id| SaId(*id));
        found.find(|id| self.get(*id).as_ref().is_some_and(&accepts))
    }

    fn link(&mut self, id: u64, sa: &Sa) {
        let parameters = sa.parameters();
        if parameters.spi() != 0 {
            self.by_spi.insert(self.hasher.hash_one(SpiKey::of(&parameters.info)), id);
            *self.by_number.entry((parameters.spi(), parameters.info.id.proto)).or_default() += 1;
        } else if sa.is_larval() {
            self.by_addresses.entry(LarvalKey::of(parameters)).or_default().push(id);
        }
        if sa.is_larval() && parameters.info.seq != 0 {
            self.by_acquire.entry(parameters.info.seq).or_default().push(id);
        }
        if let Some(deadline) = sa.deadline {
            self.deadlines.set(deadline, id);
        }
        if !sa.is_larval() && watches_traffic(&parameters.info.lft) {
            self.limited.insert(id);
        }
    }

    fn unlink(&mut self, id: u64, sa: &Sa) {
        let parameters = sa.parameters();
        if parameters.spi() != 0 {
            self.by_spi.remove(self.hasher.hash_one(SpiKey::of(&parameters.info)), id);
        }
        let number = (parameters.spi(), parameters.info.id.proto);
        if let Some(count) = self.by_number.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                self.by_number.remove(&number);
            }
        }
        if sa.is_larval() {
            drop_from(&mut self.by_addresses, &LarvalKey::of(parameters), id);
            drop_from(&mut self.by_acquire, &parameters.info.seq, id);
        }
        self.limited.remove(&id);
    }
}

fn drop_from<K: std::hash::Hash + Eq>(index: &mut Names<K>, key: &K, id: u64) {
    let Some(ids) = index.get_mut(key) else { return };
    ids.retain(|&other| other != id);
    if ids.is_empty() {
        index.remove(key);
    }
}
