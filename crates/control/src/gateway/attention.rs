//! What the control loop waits for, and which sockets it asks.
//!
//! Asking a socket that has nothing takes as long as a tenth of a request, so only those are asked that
//! have something, and all of them once a tick: some of what they do is due by time.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How often the control loop looks at what has no file descriptor: events of the workers, timers.
/// Bounds how late a missing neighbour is asked for; shorter wakes an idle gateway more often.
const TICK: Duration = Duration::from_millis(10);

/// Which sockets are to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The kernel's news.
    pub feed: bool,
    /// The questions of `show`.
    pub api: bool,
}

/// When what was asked.
pub struct Attention {
    all_asked: Instant,
}

impl Attention {
    /// From now on.
    pub fn new() -> Attention {
        Attention { all_asked: Instant::now() }
    }

    /// Waits until one of these is readable, for a tick at most.
    pub fn wait(
        &mut self,
        feed: BorrowedFd<'_>,
        api: BorrowedFd<'_>,
        others: [BorrowedFd<'_>; 2],
    ) -> io::Result<Ready> {
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = [feed, api, others[0], others[1]].map(readable);
        let timeout = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let due = self.all_asked.elapsed() >= TICK;
        if due {
            self.all_asked = Instant::now();
        }
        let has = |at: usize| due || !fds[at].revents().is_empty();
        Ok(Ready { feed: has(0), api: has(1) })
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
        let pairs: Vec<_> = (0..4).map(|_| UnixStream::pair().unwrap()).collect();
        let fd = |at: usize| pairs[at].0.as_fd();
        let mut attention = Attention::new();
        let mut wait = || attention.wait(fd(0), fd(1), [fd(2), fd(3)]).unwrap();
        // Nothing is readable: it waits for the tick, and then all are asked.
        assert_eq!(wait(), Ready { feed: true, api: true });
        for (writer, feed, api) in [(2, false, false), (1, false, true), (0, true, true)] {
            (&pairs[writer].1).write_all(&[1]).unwrap();
            let ready = wait();
            // On a machine that took longer than a tick everything is due.
            assert!(ready == Ready { feed, api } || ready == Ready { feed: true, api: true });
        }
    }
}
