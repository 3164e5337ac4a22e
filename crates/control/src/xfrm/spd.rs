//! The SPD: every policy once, found by selector, by index, by deadline.
//!
//! Policies are kept packed (`stored`), and given out whole.

use std::collections::BTreeSet;
#[cfg(test)]
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;

use wire::xfrm::address::{Mark, Selector};
use wire::xfrm::number::direction;
use wire::xfrm::policy::UserTmpl;

use super::index::Index;
use super::policy::{Policy, PolicyId, PolicyRecord};
use super::stored::StoredPolicy;
use super::touched::Touched;
use crate::roster::shelf::Shelf;

/// Hash buckets of the kernel's tables at the start, and at most; shown by GETSPDINFO.
const BUCKETS_MIN: u32 = 8;
pub(super) const BUCKETS_MAX: u32 = 1 << 20;

/// What makes two policies the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PolicyKey {
    pub(super) kind: u8,
    pub(super) direction: u8,
    pub(super) selector: Selector,
    pub(super) mark: Mark,
    pub(super) if_id: u32,
}

impl PolicyKey {
    pub(super) fn of(record: &PolicyRecord) -> Self {
        Self {
            kind: record.kind,
            direction: record.direction,
            selector: record.selector,
            mark: record.mark,
            if_id: record.if_id,
        }
    }
}

/// The direction that an index belongs to.
pub(super) const fn direction_of(index: u32) -> u32 {
    index & 7
}

/// The table.
#[derive(Debug)]
pub(super) struct Spd {
    by_id: Shelf,
    by_key: Index,
    by_index: Index,
    hasher: RandomState,
    /// The policies with a time limit, which hardly any has.
    deadlines: BTreeSet<(u64, u64)>,
    next_id: u64,
    /// Where the search for a free index starts; grows by 8, because the low bits are the
    /// direction.
    next_index: u32,
    counts: [u32; direction::MAX as usize],
    /// Sizes that the kernel's hash tables would have, minus one: by direction, and by index.
    masks: [u32; direction::MAX as usize],
    index_mask: u32,
    /// What a journal has to hear of.
    pub(super) touched: Touched,
}

impl Default for Spd {
    fn default() -> Self {
        Self {
            by_id: Shelf::default(),
            by_key: Index::default(),
            by_index: Index::default(),
            hasher: RandomState::default(),
            deadlines: BTreeSet::new(),
            next_id: 0,
            next_index: 0,
            counts: [0; direction::MAX as usize],
            masks: [BUCKETS_MIN - 1; direction::MAX as usize],
            index_mask: BUCKETS_MIN - 1,
            touched: Touched::default(),
        }
    }
}

impl Spd {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn get(&self, id: PolicyId) -> Option<Policy> {
        Some(StoredPolicy(self.by_id.get(id.0)?).open(id))
    }

    pub(super) fn find(&self, key: &PolicyKey) -> Option<PolicyId> {
        let mut found = self.by_key.named(self.hasher.hash_one(key)).map(PolicyId);
        found.find(|id| self.get(*id).is_some_and(|policy| PolicyKey::of(&policy.record) == *key))
    }

    fn indexed(&self, index: u32) -> Option<Policy> {
        let mut found = self.by_index.named(self.hasher.hash_one(index));
        found.find_map(|id| self.get(PolicyId(id)).filter(|policy| policy.record.index == index))
    }

    /// The policy with this index.
    pub(super) fn named_by(&self, index: u32) -> Option<PolicyId> {
        self.indexed(index).map(|policy| policy.record.id)
    }

    /// The policy with this index, when everything but the selector is as in `key`.
    pub(super) fn find_by_index(&self, index: u32, key: &PolicyKey) -> Option<PolicyId> {
        let record = self.indexed(index)?.record;
        let found = PolicyKey::of(&record);
        let same = PolicyKey { selector: found.selector, ..*key } == found;
        same.then_some(record.id)
    }

    /// Adds a policy in place of the one with the same key, whose index it takes over. Returns the
    /// record as it was stored, and the name of the one it replaced.
    pub(super) fn insert(
        &mut self,
        mut record: PolicyRecord,
        now: u64,
    ) -> (Arc<PolicyRecord>, Option<PolicyId>) {
        let replaced = self.find(&PolicyKey::of(&record)).and_then(|id| self.remove(id));
        let id = self.next_id;
        self.next_id += 1;
        record.id = PolicyId(id);
        record.order = id;
        if let Some(old) = &replaced {
            record.index = old.record.index;
            if record.priority == old.record.priority {
                record.order = old.record.order;
            }
        } else {
            record.index = self.free_index(record.direction, record.index);
        }
        let record = Arc::new(record);
        self.link(&Policy { record: Arc::clone(&record), add_time: now, deadline: None });
        self.count(record.direction, replaced.is_none());
        (record, replaced.map(|old| old.record.id))
    }

    /// Gives a policy other templates; the record as it is then.
    pub(super) fn set_templates(
        &mut self,
        id: PolicyId,
        templates: Vec<UserTmpl>,
    ) -> Option<Arc<PolicyRecord>> {
        self.edit(id, |policy| {
            Arc::make_mut(&mut policy.record).templates = templates;
            Arc::clone(&policy.record)
        })
    }

    /// Changes a policy, but for what it is found by.
    fn edit<R>(&mut self, id: PolicyId, change: impl FnOnce(&mut Policy) -> R) -> Option<R> {
        let mut policy = self.get(id)?;
        let result = change(&mut policy);
        self.by_id.set(id.0, &StoredPolicy::pack(&policy));
        self.touched.add(id.0);
        Some(result)
    }

    /// Adds a policy under the name and the index that it had before. False if another has them.
    pub(super) fn restore(&mut self, policy: &Policy) -> bool {
        let record = &policy.record;
        let id = record.id.0;
        let taken = self.by_id.contains(id)
            || self.indexed(record.index).is_some()
            || self.find(&PolicyKey::of(record)).is_some();
        if !taken {
            let direction = record.direction;
            self.next_id = self.next_id.max(id + 1);
            self.link(policy);
            self.count(direction, true);
        }
        !taken
    }

    fn link(&mut self, policy: &Policy) {
        let id = policy.record.id.0;
        self.touched.add(id);
        self.by_key.insert(self.hasher.hash_one(PolicyKey::of(&policy.record)), id);
        self.by_index.insert(self.hasher.hash_one(policy.record.index), id);
        if let Some(deadline) = policy.deadline {
            self.deadlines.insert((deadline, id));
        }
        self.by_id.set(id, &StoredPolicy::pack(policy));
    }

    /// What the next policy is named and numbered by.
    pub(super) fn next(&self) -> (u64, u32) {
        (self.next_id, self.next_index)
    }

    /// Sets what [`Spd::next`] says, which never goes back.
    pub(super) fn skip_to(&mut self, (next_id, next_index): (u64, u32)) {
        self.next_id = self.next_id.max(next_id);
        self.next_index = next_index;
    }

    pub(super) fn remove(&mut self, id: PolicyId) -> Option<Policy> {
        let policy = self.get(id)?;
        self.by_id.remove(id.0);
        self.touched.add(id.0);
        self.by_key.remove(self.hasher.hash_one(PolicyKey::of(&policy.record)), id.0);
        self.by_index.remove(self.hasher.hash_one(policy.record.index), id.0);
        if let Some(deadline) = policy.deadline {
            self.deadlines.remove(&(deadline, id.0));
        }
        if let Some(count) = self.counts.get_mut(usize::from(policy.record.direction)) {
            *count -= 1;
        }
        Some(policy)
    }

    /// The newest policy older than `before`, for walking from the newest to the oldest.
    pub(super) fn before(&self, before: u64) -> Option<(PolicyId, Policy)> {
        let (id, stored) = self.by_id.before(before)?;
        Some((PolicyId(id), StoredPolicy(stored).open(PolicyId(id))))
    }

    /// Every policy, oldest first.
    pub(super) fn policies(&self) -> impl Iterator<Item = (PolicyId, Policy)> {
        self.by_id
            .iter()
            .map(|(id, stored)| (PolicyId(id), StoredPolicy(stored).open(PolicyId(id))))
    }

    pub(super) fn set_deadline(&mut self, id: PolicyId, deadline: Option<u64>) {
        let replace = |policy: &mut Policy| std::mem::replace(&mut policy.deadline, deadline);
        let Some(old) = self.edit(id, replace) else { return };
        if let Some(old) = old {
            self.deadlines.remove(&(old, id.0));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, id.0));
        }
    }

    /// The policies that are to be looked at by now, those that wait longest first.
    pub(super) fn due(&self, now: u64) -> impl Iterator<Item = PolicyId> {
        let due = self.deadlines.iter().take_while(move |(deadline, _)| *deadline <= now);
        due.map(|&(_, id)| PolicyId(id))
    }

    #[cfg(test)]
    pub(super) fn next_deadline(&self) -> Option<(u64, PolicyId)> {
        self.deadlines.first().map(|&(deadline, id)| (deadline, PolicyId(id)))
    }

    /// Policies of a direction.
    pub(super) fn count_of(&self, direction: u8) -> u32 {
        self.counts.get(usize::from(direction)).copied().unwrap_or_default()
    }

    /// Size of the kernel's hash table by index, minus one.
    pub(super) fn index_mask(&self) -> u32 {
        self.index_mask
    }

    /// `wanted` if it is free, else the next fresh one. Fresh ones are those of a kernel that was
    /// just booted: the direction in the low bits, counted up over all directions together.
    fn free_index(&mut self, direction: u8, wanted: u32) -> u32 {
        let mut wanted = wanted;
        loop {
            let mut index = wanted;
            if index == 0 {
                index = self.next_index | u32::from(direction);
                self.next_index = self.next_index.wrapping_add(8);
            }
            wanted = 0;
            if index == 0 {
                index = 8;
            }
            if self.indexed(index).is_none() {
                return index;
            }
        }
    }

    /// Counts a policy in, and doubles the tables where the kernel would.
    fn count(&mut self, direction: u8, is_new: bool) {
        let at = usize::from(direction);
        let (Some(count), Some(mask)) = (self.counts.get_mut(at), self.masks.get_mut(at)) else {
            return;
        };
        *count += 1;
        if is_new && *count > *mask && *mask + 1 < BUCKETS_MAX {
            *mask = *mask * 2 + 1;
            let total: u32 = self.counts.iter().sum();
            if total > self.index_mask && self.index_mask + 1 < BUCKETS_MAX {
                self.index_mask = self.index_mask * 2 + 1;
            }
        }
    }
}

/// Whether every policy is found by its key and its index, and nothing else is there.
#[cfg(test)]
pub(super) fn consistent(spd: &Spd) -> bool {
    let policies: Vec<Policy> = spd.policies().map(|(_, policy)| policy).collect();
    let indices: HashSet<u32> = policies.iter().map(|policy| policy.record.index).collect();
    let found = |policy: &Policy| {
        let (id, index) = (policy.record.id, policy.record.index);
        spd.find(&PolicyKey::of(&policy.record)) == Some(id) && spd.named_by(index) == Some(id)
    };
    let len = policies.len();
    policies.iter().all(found)
        && [indices.len(), spd.by_key.len(), spd.by_index.len(), spd.len()] == [len; 4]
        && spd.counts.iter().sum::<u32>() as usize == len
}
