//! Tables against plain maps, versions against each other, and how entries lie.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, u32),
    Remove(u16),
    Publish,
    Settle,
    /// Another holder of a version, which may be an old one, goes on with that.
    GoOnWith(usize),
    Forget(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        80 => (0..2000u16, any::<u32>()).prop_map(|(k, v)| Step::Insert(k, v)),
        30 => (0..2000u16).prop_map(Step::Remove),
        10 => Just(Step::Publish),
        10 => Just(Step::Settle),
        1 => (0..4usize).prop_map(Step::GoOnWith),
        4 => (0..4usize).prop_map(Step::Forget),
    ]
}

/// A value that counts how many there are, and is found out when it is read after its end.
#[derive(Debug)]
struct Counted(u32, Arc<AtomicUsize>);

impl Counted {
    fn new(number: u32, all: &Arc<AtomicUsize>) -> Arc<Counted> {
        all.fetch_add(1, Relaxed);
        Arc::new(Counted(number, all.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Relaxed);
        self.0 = u32::MAX;
    }
}

type Version = (Table<u16, Arc<Counted>, 4>, HashMap<u16, u32>);

fn same((table, twin): &Version) {
    assert_eq!((table.len(), table.is_empty()), (twin.len(), twin.is_empty()));
    assert_eq!(table.iter().map(|(k, v)| (*k, v.0)).collect::<HashMap<_, _>>(), *twin);
    for key in 0..2000 {
        assert_eq!(table.get(&key).map(|v| v.0), twin.get(&key).copied());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Every version holds what it held when it was made, whoever changed what since, and at the end
    /// nothing is left.
    #[test]
    fn equals_a_plain_map_in_every_version(steps in prop::collection::vec(step(), 1..3000)) {
        let all = Arc::new(AtomicUsize::new(0));
        let mut newest: Version = (Table::new(), HashMap::new());
        let mut versions: Vec<Version> = Vec::new();
        for step in steps {
            let (table, twin) = &mut newest;
            match step {
                Step::Insert(key, number) => {
                    let number = number >> 1;
                    let replaced = table.insert(key, Counted::new(number, &all));
                    prop_assert_eq!(replaced.map(|v| v.0), twin.insert(key, number));
                }
                Step::Remove(key) => {
                    prop_assert_eq!(table.remove(&key).map(|v| v.0), twin.remove(&key));
                }
                Step::Publish if versions.len() < 4 => versions.push(newest.clone()),
                Step::Publish => {}
                Step::Settle => {
                    table.settle();
                    prop_assert!(!table.settle());
                }
                Step::GoOnWith(at) => {
                    if let Some(version) = versions.get_mut(at) {
                        std::mem::swap(version, &mut newest);
                    }
                }
                Step::Forget(at) if at < versions.len() => drop(versions.remove(at)),
                Step::Forget(_) => {}
            }
        }
        same(&newest);
        versions.iter().for_each(same);
        if versions.is_empty() {
            prop_assert_eq!(all.load(Relaxed), newest.1.len(), "what is left is what it has");
        }
        // Whoever goes last.
        versions.insert(versions.len() / 2, newest);
        while let Some(version) = versions.pop() {
            versions.iter().for_each(same);
            drop(version);
        }
        prop_assert_eq!(all.load(Relaxed), 0);
    }
}

/// Shards with lines of this version's own.
fn own<const N: usize>(table: &Table<u32, u32, N>) -> usize {
    let number = table.lineage.number();
    (0..table.shards.len()).filter(|index| table.shard(*index).born == number).count()
}

#[test]
fn one_change_copies_one_shard() {
    let mut table: Table<u32, u32> = Table::new();
    for key in 0..20_000u32 {
        table.insert(key, key);
    }
    let before = table.clone();
    table.insert(7, 8);
    assert_eq!(own(&table), 1);
    assert!(Arc::ptr_eq(&before.shards, &table.shards), "the array is shared as well");
    assert!(table.settle() && own(&table) == 1);
    assert!(table.shards.len() >= 64);
    assert_eq!((before.get(&7), table.get(&7)), (Some(&7), Some(&8)));
}

#[test]
fn many_changes_of_as_many_versions_copy_the_array_now_and_then() {
    let mut table: Table<u32, u32> = Table::new();
    (0..20_000u32).for_each(|key| assert_eq!(table.insert(key, key), None));
    let (mut arrays, mut last) = (0, table.clone());
    for key in 0..1000 {
        table.insert(key, 1);
        arrays += usize::from(!Arc::ptr_eq(&table.shards, &last.shards));
        last = table.clone();
        assert!(table.aside.len() <= ASIDE_MAX);
    }
    // Of a thousand changes some meet a shard that lies aside already.
    assert!((20..=1000 / ASIDE_MAX).contains(&arrays), "{arrays}");
}

/// Whether a key lies in the line that its hash names.
fn is_at_home<K: Hash + Eq + Copy, const N: usize>(table: &Table<K, u32, N>, key: &K) -> bool {
    let hash = table.hash(key);
    table.shard(shard_of(hash, table.shards.len())).is_at_home(hash, key)
}

#[test]
fn most_entries_lie_in_their_own_line_and_lines_are_half_full() {
    fn shares<const N: usize>() -> (f64, f64) {
        let mut table: Table<u64, u32, N> = Table::new();
        // Numbers that look random (Knuth's MMIX constants).
        let next = |key: &u64| {
            Some(
                key.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407),
            )
        };
        let keys = || std::iter::successors(Some(1), next).take(50_000);
        keys().for_each(|key| assert_eq!(table.insert(key, 0), None));
        let shards = (0..table.shards.len()).map(|index| table.shard(index));
        let slots: usize = shards.map(|shard| shard.slots()).sum();
        let at_home = keys().filter(|key| is_at_home(&table, key)).count();
        (at_home as f64 / 50_000.0, 50_000.0 / slots as f64)
    }
    for ((at_home, full), least) in
        [(shares::<1>(), 0.7), (shares::<2>(), 0.8), (shares::<4>(), 0.9)]
    {
        assert!(at_home > least && full > 0.44, "{at_home:.3} at home, {full:.3} full");
    }
}

/// Evenly spaced hashes would be better than random ones, but the same numbers with another seed worse by
/// any factor.
#[test]
fn numbers_that_count_up_lie_as_random_ones_do() {
    for _ in 0..20 {
        let mut table: Table<(u64, u64), u32, 2> = Table::new();
        let keys = || (0..10_000).map(|n| (0, n));
        keys().for_each(|key| assert_eq!(table.insert(key, 0), None));
        let at_home = keys().filter(|key| is_at_home(&table, key)).count();
        assert!((8600..9200).contains(&at_home), "{at_home} of 10 000");
    }
}
