//! Entries come back as they were, are never in two hands, and never hold what others left.

use super::words::TICK_SHIFT;
use super::*;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::path::Path;

fn open(path: &Path, first_tag: u64) -> Ledger {
    let mut options = std::fs::File::options();
    let file = options.read(true).write(true).create(true).truncate(false).open(path).unwrap();
    Ledger::open(Region::open(file).unwrap(), first_tag)
}

/// The process dies: nothing is given back.
fn kill(entries: impl IntoIterator<Item = Entry>) {
    entries.into_iter().for_each(std::mem::forget);
}

/// Every word but the tag, those of the ring once.
fn words(entry: &Entry) -> impl Iterator<Item = &'static AtomicU64> {
    let head = entry.words.head();
    let apart = |word: &&AtomicU64| !head.as_ptr_range().contains(&std::ptr::from_ref(*word));
    let others = head.iter().enumerate().filter(|(index, _)| *index != word::TAG);
    others.map(|(_, word)| word).chain(entry.words.ring().filter(apart))
}

fn fill(entry: &Entry, value: u64) {
    for word in words(entry) {
        assert_eq!(word.load(Relaxed), 0, "an entry is taken with zeros");
        word.store(value, Relaxed);
    }
}

fn holds(entry: &Entry, value: u64) -> bool {
    words(entry).all(|word| word.load(Relaxed) == value)
        && entry.words.ring().all(|word| word.load(Relaxed) == value)
}

#[test]
fn an_entry_is_found_again_as_it_was_left_and_what_is_not_found_is_zeroed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let windows = [0, 32, 64, 480, 481, 1024, 2048, 4096, 64];
    let ledger = open(&path, 1 << 48);
    let entries: Vec<Entry> = windows.map(|window| ledger.take(window).unwrap()).into();
    entries.iter().enumerate().for_each(|(n, entry)| fill(entry, 1 + n as u64));
    let places: Vec<Place> = entries.iter().map(|entry| entry.at()).collect();
    kill(entries);

    // The last one's record was lost, and so were those of the classes of 1024 and 2048.
    let keep = |n: usize| ![5, 6, 8].contains(&n);
    let ledger = open(&path, 2 << 48);
    let find = |n: usize| ledger.find(places[n], windows[n]);
    let found: Vec<(usize, Entry)> =
        (0..windows.len()).filter(|n| keep(*n)).map(|n| (n, find(n).unwrap())).collect();
    assert!(found.iter().all(|(n, entry)| holds(entry, 1 + *n as u64)));
    assert!(find(0).is_none(), "an entry is found once");
    ledger.sweep();
    assert_eq!(ledger.in_use(), found.len());

    let mut cells: HashSet<u32> = found.iter().map(|(_, entry)| entry.at().cell).collect();
    for window in windows {
        let entry = ledger.take(window).unwrap();
        assert!(holds(&entry, 0) && cells.insert(entry.at().cell));
        assert!(!places.contains(&entry.at()), "no tag is used twice");
        kill([entry]);
    }
    let size = std::fs::metadata(&path).unwrap().len();
    assert_eq!(size, 6 << 20, "what was freed is used again");
}

#[test]
fn a_record_of_an_entry_that_has_gone_finds_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let ledger = open(&path, 7);
    let entry = ledger.take(64).unwrap();
    let place = entry.at();
    drop(entry);
    ledger.reclaim();
    let successor = ledger.take(64).unwrap();
    assert_eq!(successor.at().cell, place.cell);
    kill([successor]);

    let ledger = open(&path, 100);
    let wrong = [
        place,
        Place { tag: 0, ..place },
        Place { cell: 1 << 13, tag: 8 },
        Place { cell: u32::MAX, tag: 8 },
        Place { cell: place.cell + 1, tag: 8 },
    ];
    for place in wrong {
        assert!(ledger.find(place, 64).is_none(), "{place:?}");
    }
    let place = Place { cell: place.cell, tag: 8 };
    let entry = ledger.find(place, 64).unwrap();
    assert!(ledger.find(Place { cell: place.cell + 2, tag: 8 }, 1024).is_none(), "other class");
    kill([entry]);
}

#[test]
fn what_is_given_back_waits_until_the_record_of_it_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let ledger = open(&path, 1);
    let entry = ledger.take(64).unwrap();
    fill(&entry, 9);
    let place = entry.at();
    drop(entry);
    let other = ledger.take(64).unwrap();
    assert_ne!(other.at().cell, place.cell);
    kill([other]);
    // Killed before the record says that it is gone: it is there.
    let found = open(&path, 1 << 48).find(place, 64).unwrap();
    assert!(holds(&found, 9));
    drop(found);
}

#[test]
fn first_and_last_use_are_kept_to_the_tick() {
    let entry = Entry::in_memory(32).unwrap();
    let words = entry.words();
    let uses = || (words.usage().first_use_ns, words.usage().last_use_ns);
    assert_eq!(uses(), (0, 0));
    words.count(1, 100, 7, true);
    assert_eq!(uses(), (1, 1), "within the clock's first tick, and not never");
    let tick = 1 << TICK_SHIFT;
    words.count(1, 100, 5 * tick - 1, true);
    assert_eq!(uses(), (1, 4 * tick));
    words.count(1, 100, 5 * tick, false);
    assert_eq!(uses(), (1, 5 * tick));
    let later = Entry::in_memory(32).unwrap();
    later.words().count(1, 100, 9 * tick + 3, false);
    assert_eq!(later.words().usage().first_use_ns, 9 * tick);
    later.words().count_on(words);
    assert_eq!(later.words().usage(), words.usage());
}

/// What is read for every packet lies in one line up to windows of 32, and in two up to 96.
#[test]
fn usual_windows_take_two_lines() {
    for (window, ring_end) in [(1, 8), (32, 8), (33, 10), (64, 10), (96, 10)] {
        let entry = Entry::in_memory(window).unwrap();
        let last = std::ptr::from_ref(entry.words.ring().last().unwrap());
        let end =
            1 + (last as usize - entry.words.head().as_ptr() as usize) / size_of::<AtomicU64>();
        assert_eq!((class_of(window), end), (0, ring_end), "{window}");
    }
    assert_eq!([97, 128, 480, 481].map(class_of), [1, 1, 1, 2]);
}

#[test]
fn memory_is_used_again_and_aligned() {
    let ledger = Ledger::in_memory();
    for _ in 0..3 * CHUNK_CELLS {
        let entry = ledger.take(64).unwrap();
        assert_eq!(std::ptr::from_ref(entry.words.head()) as usize % 128, 0);
        fill(&entry, 3);
    }
    assert_eq!(ledger.in_use(), 0);
    assert_eq!(ledger.lock().chunks.len(), 1);
}

proptest! {
    // Mappings stay for the test's life, one of each chunk per kill: at most 16 × 10 × 6 MiB.
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Against a map of what every entry should hold, over any number of kills.
    #[test]
    fn entries_are_nobody_elses(
        steps in prop::collection::vec((0..4u8, 0..6usize, any::<u16>()), 1..200)
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let mut epoch = 1u64;
        let mut ledger = open(&path, epoch << 48);
        let mut twin: HashMap<Place, (u32, u64, Entry)> = HashMap::new();
        let mut kills = 0;
        for (step, class, choice) in steps {
            match step {
                0 | 1 => {
                    let window = [32, 64, 512, 1024, 2048, 4096][class];
                    let entry = ledger.take(window).unwrap();
                    fill(&entry, u64::from(choice) + 1);
                    let value = (window, u64::from(choice) + 1, entry);
                    prop_assert!(twin.insert(value.2.at(), value).is_none());
                }
                2 => {
                    let chosen = twin.keys().nth(usize::from(choice) % twin.len().max(1)).copied();
                    chosen.and_then(|place| twin.remove(&place));
                    ledger.reclaim();
                }
                _ if kills == 10 => {}
                _ => {
                    kills += 1;
                    let old = std::mem::take(&mut twin);
                    epoch += 1;
                    ledger = open(&path, epoch << 48);
                    for (place, (window, value, entry)) in old {
                        kill([entry]);
                        // Some records are lost.
                        if place.tag % 3 != 0 {
                            let entry = ledger.find(place, window).unwrap();
                            twin.insert(place, (window, value, entry));
                        }
                    }
                    ledger.sweep();
                }
            }
            prop_assert_eq!(ledger.in_use(), twin.len());
            prop_assert!(twin.values().all(|(_, value, entry)| holds(entry, *value)));
        }
        kill(twin.into_values().map(|(_, _, entry)| entry));
    }
}
