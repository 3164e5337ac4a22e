//! What the control loop waits for, which sockets it asks, and whether it sleeps meanwhile.
//!
//! Asking a socket that has nothing takes as long as a tenth of a request, so only those are asked that
//! have something, and all of them once a tick: some of what they do is due by time.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::patience::Patience;
use crate::xfrm::Clients;

/// How often the control loop looks at what has no file descriptor: events of the workers, timers.
/// Bounds how late a missing neighbour is asked for; shorter wakes an idle gateway more often.
const TICK: Duration = Duration::from_millis(10);

/// Between two looks at the clients, if nobody else has the core, pass two or three microseconds.
const ALONE_MAX: Duration = Duration::from_micros(10);

/// What descriptors that are not the clients' are called by.
const FEED: u32 = 0;
const API: u32 = 1;
const SIGNALS: u32 = 2;

/// Which sockets are to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The kernel's news.
    pub feed: bool,
    /// The questions of `show`.
    pub api: bool,
    /// The signals that ask for a stop.
    pub signals: bool,
}

/// When what was asked.
pub struct Attention {
    all_asked: Instant,
    patience: Patience,
    /// Clients had something when it was waited for last, and so have an answer now.
    answered: bool,
}

impl Attention {
    /// From now on.
    pub fn new() -> Attention {
        Attention { all_asked: Instant::now(), patience: Patience::default(), answered: false }
    }

    /// Has `clients` wait for these, too. Once.
    pub fn gather(
        clients: &Clients,
        feed: BorrowedFd<'_>,
        api: BorrowedFd<'_>,
        signals: BorrowedFd<'_>,
    ) -> io::Result<()> {
        clients.watch(feed, FEED)?;
        clients.watch(api, API)?;
        clients.watch(signals, SIGNALS)
    }

    /// Waits until one of them or a client has something, for a tick at most, or not at all where there is
    /// more to do. After an answer it may look for the next request for a moment before it sleeps.
    pub fn wait(&mut self, clients: &mut Clients, has_more: bool) -> io::Result<Ready> {
        let tick = if has_more { Duration::ZERO } else { TICK };
        let began = Instant::now();
        let look_until = self.answered.then(|| began + self.patience.look_for());
        let mut looked = began;
        let (ours, others) = loop {
            let now = Instant::now();
            // Somebody else had the core since the last look, and did not ask: who sleeps is preferred to
            // them when there is a request, who looks takes turns with them.
            let is_alone = now - looked < ALONE_MAX;
            let looks = !has_more && look_until.is_some_and(|until| now < until && is_alone);
            looked = now;
            let (ours, others) = clients.wait(if looks { Duration::ZERO } else { tick })?;
            if ours || others != 0 || !looks {
                break (ours, others);
            }
            // Whoever shares this core may be who is about to ask.
            rustix::thread::sched_yield();
        };
        if self.answered {
            self.patience.learn(ours.then(|| began.elapsed()));
        }
        self.answered = ours;
        let due = self.all_asked.elapsed() >= TICK;
        if due {
            self.all_asked = Instant::now();
        }
        let has = |bit: u32| due || others >> bit & 1 != 0;
        Ok(Ready { feed: has(FEED), api: has(API), signals: has(SIGNALS) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_has_something_is_asked_and_all_now_and_then() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("own").join("xfrm.sock");
        let mut clients = Clients::bind(&path).unwrap();
        let pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        let fd = |at: usize| pairs[at].0.as_fd();
        Attention::gather(&clients, fd(0), fd(1), fd(2)).unwrap();
        let mut attention = Attention::new();
        let mut wait = || attention.wait(&mut clients, false).unwrap();
        let all = Ready { feed: true, api: true, signals: true };
        // Nothing is readable: it waits for the tick, and then all are asked.
        assert_eq!(wait(), all);
        for (writer, feed, api) in [(2, false, false), (1, false, true), (0, true, true)] {
            (&pairs[writer].1).write_all(&[1]).unwrap();
            let ready = wait();
            // On a machine that took longer than a tick everything is due.
            assert!(ready == Ready { feed, api, signals: true } || ready == all);
        }
    }
}
