//! Every order of steps of the commit ring, the publication of views, the replay window, and claims.

use interleavings::claim::{Access, RESTING, access, begin_turn, current_turn, end_turn};
use interleavings::commit::Owner;
use interleavings::publication::Publisher;
use interleavings::replay_window;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;

#[test]
fn work_is_committed_once_and_in_order_by_whomever_it_was_done() {
    loom::model(|| {
        // One slot less than pieces, so that one is used again.
        let mut owner = Owner::new(2, || 0u64);
        let helpers: Vec<_> = (0..2)
            .map(|_| {
                let ring = owner.ring().clone();
                thread::spawn(move || u64::from(ring.work(|work| *work += 10)))
            })
            .collect();
        let (mut published, mut committed) = (0, 0);
        for _ in 0..2 {
            assert!(owner.publish(|work| *work = published));
            published += 1;
        }
        assert!(!owner.publish(|_| unreachable!("the ring is full")));
        if owner.commit(|work| assert_eq!(*work, 10)) {
            committed += 1;
            assert!(owner.publish(|work| *work = published));
            published += 1;
        }
        let mut done: u64 = helpers.into_iter().map(|helper| helper.join().unwrap()).sum();
        while owner.ring().clone().work(|work| *work += 10) {
            done += 1;
        }
        while owner.commit(|work| assert_eq!(*work, committed + 10)) {
            committed += 1;
        }
        assert_eq!((done, committed, owner.pending()), (published, published, 0));
    });
}

#[test]
fn the_owner_competes_for_its_own_work() {
    loom::model(|| {
        let mut owner = Owner::new(1, || 0u64);
        let ring = owner.ring().clone();
        let helper = thread::spawn(move || ring.work(|work| *work += 10));
        assert!(owner.publish(|work| *work = 1));
        let own = owner.ring().clone().work(|work| *work += 10);
        let others = helper.join().unwrap();
        assert!(!(own && others), "done twice");
        if !(own || others) {
            // The helper came too early, and to us the compare-and-swap may fail without a reason.
            while !owner.ring().clone().work(|work| *work += 10) {}
        }
        assert!(owner.commit(|work| assert_eq!(*work, 11)));
        assert!(!owner.commit(|_| unreachable!("committed twice")));
    });
}

/// A version of something, which notices when it is read while or after it is freed.
struct Version {
    number: u64,
    freed: Arc<UnsafeCell<bool>>,
    /// Of a size that nothing else here has, so that a version is where one was freed.
    _room: [u64; 50],
}

// SAFETY: what is read and written without a lock is watched by loom, which is the point.
unsafe impl Send for Version {}

// SAFETY: as above.
unsafe impl Sync for Version {}

impl Version {
    fn new(number: u64) -> Version {
        Version { number, freed: Arc::new(UnsafeCell::new(false)), _room: [0; 50] }
    }

    fn read(&self) -> u64 {
        // SAFETY: loom fails the model if this races with the write in `drop`.
        self.freed.with(|freed| assert!(!unsafe { *freed }, "read after it was freed"));
        self.number
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        // SAFETY: as above.
        self.freed.with_mut(|freed| unsafe { *freed = true });
    }
}

#[test]
fn a_version_is_freed_only_when_no_reader_has_it() {
    loom::model(|| {
        let mut publisher = Publisher::new(Version::new(1));
        let mut reader = publisher.reader();
        let thread = thread::spawn(move || {
            let first = reader.enter().read();
            let second = reader.enter().read();
            assert!(first <= second, "versions only get newer");
        });
        publisher.publish(Version::new(2));
        publisher.reclaim();
        thread.join().unwrap();
    });
}

#[test]
fn a_reader_that_rests_keeps_nothing_and_wakes_to_what_is_alive() {
    loom::model(|| {
        let mut publisher = Publisher::new(Version::new(1));
        let mut reader = publisher.reader();
        let thread = thread::spawn(move || {
            reader.rest();
            reader.enter().read()
        });
        publisher.publish(Version::new(2));
        publisher.reclaim();
        let seen = thread.join().unwrap();
        assert!(seen == 1 || seen == 2);
    });
}

#[test]
fn a_number_is_one_versions_across_rests() {
    loom::model(|| {
        let mut publisher = Publisher::new(Version::new(1));
        let mut reader = publisher.reader();
        let (_, first) = reader.enter_numbered();
        reader.rest();
        let thread = thread::spawn(move || {
            let (version, number) = reader.enter_numbered();
            let seen = version.read();
            assert!(seen == 1 || number != first, "{number} again, of {seen}");
        });
        publisher.publish(Version::new(2));
        // Where the first one was, if that is freed.
        publisher.publish(Version::new(3));
        thread.join().unwrap();
    });
}

#[test]
fn what_a_reader_lent_lives_until_it_is_given_back() {
    loom::model(|| {
        let mut publisher = Publisher::new(Version::new(1));
        let mut reader = publisher.reader();
        let mut owner = Owner::new(1, || 0usize);
        let ring = owner.ring().clone();
        // As `crew.rs` lends parts of a view: an address in a piece of work.
        let read = |work: &mut usize| {
            // SAFETY: what this model is to prove; loom sees a read of what is freed.
            unsafe { &*(*work as *const Version) }.read();
        };
        let helper = thread::spawn(move || ring.work(read));
        let control = thread::spawn(move || {
            publisher.publish(Version::new(2));
            publisher
        });
        let lent = std::ptr::from_ref(reader.enter()) as usize;
        assert!(owner.publish(|work| *work = lent));
        reader.hold(true);
        let held = reader.enter();
        assert_eq!(std::ptr::from_ref(held) as usize, lent);
        held.read();
        if owner.commit(|_| ()) {
            reader.hold(false);
            reader.enter().read();
        }
        helper.join().unwrap();
        control.join().unwrap().reclaim();
        while owner.ring().clone().work(read) {}
        owner.commit(|_| ());
    });
}

#[test]
fn no_number_passes_a_replay_window_twice() {
    // Both in one word, one word apart, and so far apart that the first leaves the window and its word.
    for numbers in [[71, 72], [71, 103], [71, 71 + 128]] {
        loom::model(move || {
            let window = replay_window(64, 70);
            let receive = move |number: u32| {
                u64::from(window.check(number).and_then(|n| window.commit(n)).is_ok())
            };
            let thread = thread::spawn(move || [receive(numbers[0]), receive(numbers[1])]);
            let mine = [receive(numbers[1]), receive(numbers[0])];
            let others = thread.join().unwrap();
            assert!(mine[0] + others[1] == 1, "the newest passes exactly once");
            assert!(mine[1] + others[0] <= 1, "accepted twice");
            assert_eq!(window.top(), numbers[1].into());
            assert_eq!(receive(numbers[1]) + receive(numbers[0]), 0, "accepted again");
        });
    }
}

/// Words that two workers claim, and the turns they are in.
struct Claimed {
    claim: AtomicU64,
    turns: [AtomicU64; 2],
    sent: AtomicU64,
}

impl Claimed {
    /// A worker's turn with one packet: the number it took, unless it has to wait.
    fn turn(&self, seat: u16, turn: u64) -> Option<u64> {
        let turns = |seat: u16| &self.turns[usize::from(seat) - 1];
        let turn_of = |seat: u16| current_turn(turns(seat));
        begin_turn(turns(seat), turn);
        let taken = match access(&self.claim, seat, turn, turn_of) {
            Access::Alone => {
                let sent = self.sent.load(Relaxed) + 1;
                self.sent.store(sent, Relaxed);
                Some(sent)
            }
            Access::Shared => Some(self.sent.fetch_add(1, Relaxed) + 1),
            Access::Wait => None,
        };
        end_turn(turns(seat));
        taken
    }
}

#[test]
fn a_claimed_number_is_taken_once_and_none_is_left_out() {
    loom::model(|| {
        let claimed = Arc::new(Claimed {
            claim: AtomicU64::new(0),
            turns: [AtomicU64::new(RESTING), AtomicU64::new(RESTING)],
            sent: AtomicU64::new(0),
        });
        let theirs = claimed.clone();
        let other = thread::spawn(move || [theirs.turn(2, 1), theirs.turn(2, 2)]);
        let mine = [claimed.turn(1, 1), claimed.turn(1, 2)];
        let theirs = other.join().unwrap();
        let mut taken: Vec<u64> = mine.into_iter().chain(theirs).flatten().collect();
        taken.sort_unstable();
        assert!(taken.iter().copied().eq(1..=taken.len() as u64), "{taken:?}");
        assert_eq!(claimed.sent.load(Relaxed), taken.len() as u64);
    });
}
