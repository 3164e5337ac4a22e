//! Instances and epochs in a temporary directory.

use std::collections::BTreeSet;
use std::os::unix::net::UnixListener;

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_name_is_held_once_and_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run/peregrine");
    let first = Instance::hold(&run_dir, "gw0").unwrap();
    assert_eq!(first.directory(), run_dir.join("gw0"));
    assert_eq!((mode(first.directory()), mode(&first.directory().join("pid"))), (0o700, 0o600));

    let sentence = Instance::hold(&run_dir, "gw0").unwrap_err().to_string();
    let pid = std::process::id();
    assert!(sentence.contains("gw0 is already running") && sentence.contains(&pid.to_string()));

    let second = Instance::hold(&run_dir, "gw1").unwrap();
    let names = |list: Vec<Running>| list.into_iter().map(|r| (r.name, r.pid)).collect::<Vec<_>>();
    let both = [("gw0".to_owned(), Some(pid)), ("gw1".to_owned(), Some(pid))];
    assert_eq!(names(running(&run_dir)), both);
    drop(first);
    assert_eq!(names(running(&run_dir)), both[1..]);
    assert!(!run_dir.join("gw0").exists());
    Instance::hold(&run_dir, "gw0").unwrap();
    drop(second);
    assert_eq!(fs::read_dir(&run_dir).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn what_a_dead_instance_left_is_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let left = dir.path().join("gw0");
    fs::create_dir(&left).unwrap();
    fs::set_permissions(&left, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(left.join("pid"), "12345678901\n").unwrap();
    drop(UnixListener::bind(left.join(CONTROL_SOCKET)).unwrap());
    assert_eq!(running(dir.path()), []);

    let instance = Instance::hold(dir.path(), "gw0").unwrap();
    assert!(!instance.control_socket().exists());
    assert_eq!(mode(instance.directory()), 0o700);
    UnixListener::bind(instance.xfrm_socket()).unwrap();
    assert_eq!(running(dir.path())[0].pid, Some(std::process::id()));
}

#[test]
fn a_file_or_link_in_the_way_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    std::os::unix::fs::symlink("/tmp", dir.path().join("link")).unwrap();
    for name in ["file", "link"] {
        let sentence = Instance::hold(dir.path(), name).unwrap_err().to_string();
        assert!(sentence.contains(name) && sentence.contains("not a directory"), "{sentence}");
    }
}

#[test]
fn many_takers_leave_one_holder() {
    let dir = tempfile::tempdir().unwrap();
    let take = || {
        let instance = Instance::hold(dir.path(), "gw0");
        std::thread::sleep(Duration::from_millis(1));
        instance.map(drop)
    };
    for _ in 0..5 {
        // All are alive at once until the slowest has tried, so at least one and never two hold.
        let held = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| held.lock().unwrap().extend(Instance::hold(dir.path(), "gw0").ok()));
            }
        });
        assert_eq!(held.into_inner().unwrap().len(), 1);
    }
    // Takers that come and go never lock a file that is gone: each ends up with the name.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..10).for_each(|_| take().expect("the name, after those before")));
        }
    });
}

#[test]
fn who_only_looks_does_not_keep_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = running(dir.path());
                }
            });
        }
        let refused = (0..300).find_map(|_| Instance::hold(dir.path(), "gw0").err());
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(refused.is_none(), "{refused:?}");
    });
}

#[test]
fn a_command_means_the_named_or_the_only_instance() {
    let dir = tempfile::tempdir().unwrap();
    let sentence = |name| choose(dir.path(), name).unwrap_err().to_string();
    let place = dir.path().display().to_string();
    assert!(sentence(None).contains(&format!("no instance is running in {place}")));
    assert!(sentence(Some("gw0")).contains(&format!("gw0 is running in {place} (none is)")));
    let _first = Instance::hold(dir.path(), "gw0").unwrap();
    assert_eq!(choose(dir.path(), None).unwrap().name, "gw0");
    let _second = Instance::hold(dir.path(), "gw1").unwrap();
    assert!(sentence(None).contains("several instances are running (running: gw0, gw1)"));
    assert_eq!(choose(dir.path(), Some("gw1")).unwrap().directory, dir.path().join("gw1"));
    assert!(sentence(Some("gw2")).contains("gw2"));
    assert!(choose(Path::new("/nonexistent"), None).is_err());
}

#[test]
fn epochs_count_up_and_are_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let claim = |name| Epoch::claim(&dir.path().join("state"), name).unwrap().get();
    let first = claim("gw0");
    let others = claim("gw1");
    assert_eq!([claim("gw0"), claim("gw1"), claim("gw0")], [first + 1, others + 1, first + 2]);
    let state = dir.path().join("state/gw0");
    let text = fs::read_to_string(state.join("epoch")).unwrap();
    assert_eq!(text, format!("epoch {}\n", first + 2));
    assert_eq!((mode(&state), mode(&state.join("epoch"))), (0o700, 0o600));
    assert_eq!(fs::read_dir(&state).unwrap().count(), 1, "no new file is left");

    // A crash between writing the new file and moving it: the number may be lost, not repeated.
    fs::write(state.join("epoch.new"), "epo").unwrap();
    assert_eq!(claim("gw0"), first + 3);
}

#[test]
fn an_epoch_that_was_begun_and_not_taken_stands_between_no_two_runs() {
    let dir = tempfile::tempdir().unwrap();
    let begin = || Claim::begin(dir.path(), "gw0").unwrap();
    let first = begin().finish(|_| ()).unwrap().0.get();
    let [before, one, two] = [0, 1, 2].map(|n| u32::from(first) + n);
    // One that ends before it has written anything takes nothing.
    drop(begin());
    assert_eq!(u32::from(begin().epoch()), one);
    assert!(begin().follows(before) && !begin().follows(one) && !begin().follows(before - 1));
    // A kill while it is recorded: what the record says may be the one or the other.
    let new = dir.path().join("gw0/epoch.new");
    begin().finish(|_| fs::copy(&new, dir.path().join("kept")).unwrap()).unwrap();
    fs::write(dir.path().join("gw0/epoch"), format!("epoch {before}\n")).unwrap();
    fs::rename(dir.path().join("kept"), &new).unwrap();
    let claim = begin();
    assert_eq!(u32::from(claim.epoch()), two, "never the same again");
    assert!([before, one].into_iter().all(|epoch| claim.follows(epoch)) && !claim.follows(two));
    drop(claim);
    // Who takes the next one after all is a run of its own.
    begin().finish(|_| ()).unwrap();
    assert!(!begin().follows(before) && !begin().follows(one) && begin().follows(two));
    // It was recorded before it was taken.
    let file = dir.path().join("gw0/epoch");
    let seen = begin().finish(|_| fs::read_to_string(&file).unwrap()).unwrap().1;
    assert_eq!(seen, format!("epoch {two}\n"));
}

#[test]
fn a_gateway_that_lost_its_file_does_not_begin_where_it_began_before() {
    let dir = tempfile::tempdir().unwrap();
    let names = (0..64).map(|n| format!("gw{n}"));
    let firsts: BTreeSet<u16> =
        names.map(|name| Epoch::claim(dir.path(), &name).unwrap().get()).collect();
    // 64 of 32 768: more than 8 that coincide have a chance below 10^-12.
    assert!(firsts.len() > 55, "{firsts:?}");
    assert!(firsts.iter().all(|first| (1..=1 << 15).contains(first)), "{firsts:?}");
}

#[test]
fn concurrent_claims_never_share_an_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let epochs: BTreeSet<u16> = std::thread::scope(|scope| {
        let claim = || (0..8).map(|_| Epoch::claim(dir.path(), "gw0").unwrap().get());
        let claimers: Vec<_> =
            (0..4).map(|_| scope.spawn(move || claim().collect::<Vec<_>>())).collect();
        claimers.into_iter().flat_map(|claimer| claimer.join().unwrap()).collect()
    });
    let first = *epochs.first().unwrap();
    assert_eq!(epochs, (first..first + 32).collect());
}

#[test]
fn the_last_epoch_is_the_last() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("gw0")).unwrap();
    let path = dir.path().join("gw0/epoch");
    fs::write(&path, "epoch 65534\n").unwrap();
    assert_eq!(Epoch::claim(dir.path(), "gw0").unwrap().get(), 65_535);
    for _ in 0..2 {
        let sentence = Epoch::claim(dir.path(), "gw0").unwrap_err().to_string();
        assert!(sentence.contains("65535, the last epoch") && sentence.contains("rekey"));
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "epoch 65535\n");
}

#[test]
fn a_garbled_epoch_is_not_guessed_at() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("gw0")).unwrap();
    let path = dir.path().join("gw0/epoch");
    let garbled: [&[u8]; 10] = [
        b"",
        b"epoch ",
        b"epoch 7",
        b"7\n",
        b"epoch +7\n",
        b"epoch 0\n",
        b"epoch 65536\n",
        b"epoch 7\n\n",
        b"\xff\xfe",
        b"epoch 1111111111111111111111111111111111111111111111111111\n",
    ];
    for bytes in garbled {
        fs::write(&path, bytes).unwrap();
        let error = Epoch::claim(dir.path(), "gw0").unwrap_err();
        assert!(matches!(error, InstanceError::EpochGarbled { .. }), "{bytes:?}: {error}");
        assert!(!error.to_string().contains('\n'));
        assert_eq!(fs::read(&path).unwrap(), bytes, "the file is left as it was");
    }
}
